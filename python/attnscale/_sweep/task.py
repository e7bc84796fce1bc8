# SPDX-License-Identifier: BSD-3-Clause
"""The task of a sweep: all that a process needs to run a case.

Other processes do not know laws that the caller registered, and each case has its own random numbers.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import laws
from .._base.runtime import get_num_threads, threads_within
from .._base.seeds import child_seed
from .._grid.case import Case
from .._grid.complete import Outcome
from .._grid.errors import Failure
from .._grid.fields import Reserved, to_fields


@dataclass(frozen=True)
class FunctionTask:
    """All that a process needs to run a case of the sweep."""

    function: Callable[..., Any]
    constants: dict[str, Any]
    seed: np.random.SeedSequence | None  # the seed of the whole sweep; None if the function takes no ``rng``
    reserved: Reserved  # names of the axes
    #: Registered laws among the parameters, for processes that do not know them.
    laws: tuple[laws.FunctionLaw, ...] = ()
    num_threads: int | None = None  # largest number of attention threads in another process
    away: bool = False  # whether the task was pickled, and so runs in another process than the caller's

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.function, self.constants, self.seed, self.reserved, self.laws, self.num_threads)
        return FunctionTask, (*parts, True)

    def __call__(self, case: Case) -> Outcome:
        """The result of a case, or its exception as text."""
        try:
            if self.away:
                make_known(self.laws)
            arguments = {**self.constants, **case.parameters}
            if self.seed is not None:
                arguments["rng"] = np.random.default_rng(case_seed(self.seed, case))
            with self._few_threads():
                result = self.function(**arguments)
            if getattr(result, "interrupted", False) is True:
                raise KeyboardInterrupt  # an experiment returned its partial result at Ctrl-C
            return to_fields(result, self.reserved)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            return Failure(f"{type(error).__name__}: {error}", trace, None if self.away else error)

    def _few_threads(self) -> AbstractContextManager[None]:
        """Limit a worker to its share of the threads; results do not depend on it."""
        if self.num_threads is None or not self.away:
            return nullcontext()
        return threads_within(min(get_num_threads(), self.num_threads))


def case_seed(root: np.random.SeedSequence, case: Case) -> np.random.SeedSequence:
    """The child of `root` for a case, from the case's parameters.

    It depends on neither the grid nor the order of cases. 128 bits of the digest keep cases apart.
    """
    words = tuple(int(case.digest[start : start + 8], 16) for start in range(0, 32, 8))
    return child_seed(root, words)


def registered_laws(values: Iterable[Any]) -> tuple[laws.FunctionLaw, ...]:
    """Registered laws spelled in `values`, also in nested lists and tuples.

    Each name gives one law with its default parameters, since its function identifies it; given parameters
    are in the spelling, which the grid or the constants have.
    """
    found: dict[str, laws.FunctionLaw] = {}
    for text in sorted(set(_texts(values))):
        try:
            law = laws.get(text)
        except (TypeError, ValueError):  # not a law, or one whose parameter is missing or wrong
            continue
        while isinstance(law, laws.Scaled):
            law = law.law
        if isinstance(law, laws.FunctionLaw):
            found.setdefault(law.name, law.with_defaults())
    return tuple(found.values())


def make_known(registered: Iterable[laws.FunctionLaw]) -> None:
    """Register in this process the laws that the caller registered."""
    for law in registered:
        laws.register(law.name, n_means=law.n_means)(law.function)


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _texts(value)
