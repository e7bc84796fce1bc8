# SPDX-License-Identifier: BSD-3-Clause
"""The record of an engine, and refusals that adapters share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Engine:
    """Another attention, and how it is called.

    Attributes
    ----------
    name : str
        Name that :func:`attnscale.conformance.check` takes.
    call : str
        The function, operator or layer that computes.
    package : str
        Distribution whose version counts.
    run_with : str
        Version of the package with which the adapter was last run, or several: "2.13.0, 2.15.0".
    attend : callable
        The adapter: ``attend(query, key, value, **options)``.
    requirements : tuple of str
        Pinned packages that ``make engines`` installs into a folder of their own. Empty: the packages for
        developing this one suffice.
    refusals : tuple of str
        Parts of messages of errors that the engine's own documents announce. Such a call is not served,
        and no error.
    uses : str
        Name that older versions of the package lack, where the adapter needs one.
    notes : str
        A word on what the adapter does beside the call, such as a copy of weights or a transposition.
    """

    name: str
    call: str
    package: str
    run_with: str
    attend: Callable[..., Any]
    requirements: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    uses: str = ""
    notes: str = ""

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        try:
            return self.attend(query, key, value, **options)
        except Exception as error:
            if any(part in str(error) for part in self.refusals):
                raise NotImplementedError(f"refused, as its documents say: {error}") from error
            raise

    def need(self) -> None:
        """Raise ModuleNotFoundError if the package is absent, and ImportError if it is too old."""
        with_ = " ".join(self.requirements) or f"{self.package}=={self.run_with.rpartition(', ')[2]}"
        if self.installed is None:
            raise ModuleNotFoundError(f"the engine {self.name!r} needs {self.package}: pip install {with_}")
        if self.uses and not _is_there(self.uses):
            raise ImportError(
                f"the engine {self.name!r} needs {self.uses}, which {self.package} {self.installed} lacks: "
                f"pip install {with_}"
            )

    @property
    def installed(self) -> str | None:
        """Installed version of the package, without a local part; None if it is absent."""
        try:
            return version(self.package).partition("+")[0]
        except PackageNotFoundError:
            return None


def _is_there(name: str) -> bool:
    """Whether a module has a name, both in one: ``package.module.name``."""
    module, _, attribute = name.rpartition(".")
    try:
        return hasattr(import_module(module), attribute)
    except ModuleNotFoundError:
        return False


def refuse(options: Mapping[str, Any], *arrays: Any, axes: int = 4) -> None:
    """Raise NotImplementedError for options that are left, and for arrays of another number of axes."""
    left = [name for name, given in options.items() if given is not None and given is not False]
    if left:
        raise NotImplementedError(f"no {', no '.join(sorted(left))}")
    if any(x.ndim != axes for x in arrays):
        raise NotImplementedError(f"arrays of {axes} axes only")


def mask_of_axes(mask: Any, n_axes: int) -> Any:
    """A mask with leading axes of length 1 added or left out; NotImplementedError if it has more axes."""
    array = np.asarray(mask)
    shape = (1,) * (n_axes - array.ndim) + array.shape
    if any(length != 1 for length in shape[: len(shape) - n_axes]):
        raise NotImplementedError(f"masks of {n_axes} axes")
    return array.reshape(shape[len(shape) - n_axes :])
