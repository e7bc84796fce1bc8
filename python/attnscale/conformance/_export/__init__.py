# SPDX-License-Identifier: BSD-3-Clause
"""The function ``export``: cases as files of other test benches."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..._base.checks import InputError, choose, refusal, shown
from ..._base.hints import hinted
from ..._base.text import counted, grouped, some_of
from .._call import numpy_type, read_cases
from .._cases import CASES
from . import flashinfer, onnx
from .plain import DTYPES, PlainCall, plain_call, slug

if TYPE_CHECKING:
    from .._call import Case

#: Function that writes plain calls into a folder, by the name of the form; returns why it left calls out.
_FORMS: dict[str, Callable[[Path, Mapping[str, PlainCall]], dict[str, str]]] = {
    "flashinfer-trace": flashinfer.write,
    "onnx": onnx.write,
}


@dataclass(frozen=True)
class Exported:
    """Cases that were written to a folder.

    Attributes
    ----------
    folder : Path
    form : str
    written : tuple of str
        Names of the cases in the folder.
    left_out : mapping of str to str
        Reasons by the names of the other cases.
    """

    folder: Path
    form: str
    written: tuple[str, ...]
    left_out: Mapping[str, str]

    def __str__(self) -> str:
        count = counted(len(self.written), "case")
        lines = [f"{count} as {self.form} in {self.folder}, {len(self.left_out)} left out"]
        reasons = grouped(self.left_out, self.left_out.__getitem__)
        for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
            lines.append(f"  {reason}: {some_of(names, 3)}")
        return "\n".join(lines)

    __repr__ = __str__


@hinted
def export(
    folder: str | os.PathLike[str],
    *,
    form: str,
    cases: Mapping[str, Case] | None = None,
    dtype: str = "float32",
) -> Exported:
    """Write cases and their answers as files that other test benches read.

    Parameters
    ----------
    folder : path
        New or empty.
    form : {"flashinfer-trace", "onnx"}
        "flashinfer-trace" is a dataset of FlashInfer-Bench: a Definition for each set of options, with a
        reference in PyTorch, and a Workload for each case, with its arrays in safetensors. "onnx" is a folder
        for each case, as the tests of ONNX nodes are: a model with the operator Attention (opset 24; 25 for a
        window), its inputs and its output. It needs the package onnx.
    cases : mapping of str to Case, optional
        Default: ``CASES``.
    dtype : {"float32", "float16", "bfloat16"}
        Type of the arrays and of float masks; bfloat16 needs the package ml_dtypes.

    Returns
    -------
    Exported
        Names of the written cases, and why the others were left out.

    Raises
    ------
    ValueError
        If ``form`` or ``dtype`` is another, ``folder`` has files in it, two cases have the same letters and
        digits in their names, or a package is missing.
    TypeError
        If ``folder`` is not a path.

    Notes
    -----
    The answer is computed in float64 from the numbers as they are stored, and then rounded to ``dtype``.
    A case is left out if the form has no place for one of its options, or does not say what they mean.

    Examples
    --------
    >>> import attnscale as at, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     some = {name: at.conformance.CASES[name] for name in ("causal", "biases")}
    ...     done = at.conformance.export(pathlib.Path(place) / "t", form="flashinfer-trace", cases=some)
    ...     done.written, dict(done.left_out), sorted(each.name for each in done.folder.iterdir())
    (('causal',), {'biases': 'no distance_bias'}, ['blob', 'definitions', 'workloads'])
    """
    root = _free(folder)
    write = _FORMS[choose("form", form, tuple(_FORMS))]
    kind = numpy_type(choose("dtype", dtype, DTYPES))
    chosen = _checked(CASES if cases is None else read_cases(cases))
    calls: dict[str, PlainCall] = {}
    left_out: dict[str, str] = {}
    for name, case in chosen.items():
        try:
            calls[name] = plain_call(case, kind)
        except NotImplementedError as error:
            left_out[name] = str(error)
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as place:
        new = Path(place) / "new"
        new.mkdir()
        left_out |= write(new, calls)
        new.replace(root)
    return Exported(root, form, tuple(name for name in calls if name not in left_out), left_out)


def _checked(cases: Mapping[str, Case]) -> Mapping[str, Case]:
    """Cases whose names give files of different names."""
    for names in grouped(cases, slug).values():
        if len(names) > 1 or not slug(names[0]):
            rule = "must have names that differ in their letters and digits, got "
            raise refusal(InputError, "cases", rule + " and ".join(map(repr, names)))
    return cases


def _free(folder: str | os.PathLike[str]) -> Path:
    """The whole path of a folder that is new or empty."""
    try:
        root = Path(folder).resolve()
    except TypeError:
        raise refusal(TypeError, "folder", f"must be a path, got {shown(folder)}") from None
    if any(each.exists() and not each.is_dir() for each in (root, *root.parents)):
        raise refusal(InputError, "folder", f"must be a folder, got the file {root} or a place in one")
    if root.exists() and any(root.iterdir()):
        raise refusal(InputError, "folder", f"must be new or empty, got {root} with files in it")
    return root
