# SPDX-License-Identifier: BSD-3-Clause
"""A run of an engine through the cases, and the report of its differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._base.checks import as_array, choose, number, shown
from .._base.text import grouped, some_of
from ..exact.forward import attention_statistics
from ..exact.lse import LseConvention, departures, engines_of, identify_lse
from ..laws import Law
from ._cases import CASES, Case
from ._explain import has_sink, slips

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Largest allowed error of an output, absolute and relative.
_TOLERANCES = {"float64": 1e-9, "float32": 5e-5, "float16": 4e-3, "bfloat16": 3e-2}

Kind = Literal["right", "wrong", "error", "not served"]


@dataclass(frozen=True)
class Outcome:
    """Result of an engine for one case.

    Attributes
    ----------
    kind : {"right", "wrong", "error", "not served"}
        "error": the engine raised something; "not served": it raised NotImplementedError.
    difference : float
        The largest error of the output, over 1 + abs(output); NaN if nothing was compared.
    why : str
        For a wrong output, the known slip that explains it, or "" if none does; else the error.
    lse : tuple of LseConvention
        Conventions that fit the lse of the case, the simplest first; empty if none fits or no lse was
        returned.
    lse_is_wrong : bool
        Whether an lse was returned that no convention explains.
    """

    kind: Kind
    difference: float = math.nan
    why: str = ""
    lse: tuple[LseConvention, ...] = ()
    lse_is_wrong: bool = False


@dataclass(frozen=True, repr=False)
class Conformance:
    """The outcomes of all cases by name; prints an engine's differences.

    Attributes
    ----------
    outcomes : dict of str to Outcome
    tolerance : float
        The largest error of a right output.
    """

    outcomes: Mapping[str, Outcome]
    tolerance: float

    def _of(self, kind: Kind) -> dict[str, Outcome]:
        return {name: each for name, each in self.outcomes.items() if each.kind == kind}

    @property
    def right(self) -> dict[str, Outcome]:
        """Cases whose output is right."""
        return self._of("right")

    @property
    def wrong(self) -> dict[str, Outcome]:
        """Cases with a wrong output, the largest error first."""
        return dict(sorted(self._of("wrong").items(), key=lambda item: -_size(item[1].difference)))

    @property
    def errors(self) -> dict[str, Outcome]:
        """Cases in which the engine failed."""
        return self._of("error")

    @property
    def not_served(self) -> dict[str, Outcome]:
        """Cases that the engine says it does not support."""
        return self._of("not served")

    @cached_property
    def lse(self) -> LseConvention | None:
        """The convention that fits every lse of the engine; None without one, or without an lse."""
        given = [each.lse for each in self.outcomes.values() if each.lse]
        if not given or any(each.lse_is_wrong for each in self.outcomes.values()):
            return None
        plain = [{replace(of, empty=None) for of in each} for each in given]
        common = set.intersection(*plain)
        if not common:
            return None
        found = min(common, key=departures)
        empties = {of.empty for each in given for of in each if replace(of, empty=None) == found} - {None}
        return replace(found, empty=empties.pop() if len(empties) == 1 else None)

    def __str__(self) -> str:
        counts = f"{len(self.right)} right, {len(self.wrong)} wrong, {len(self.errors)} errors, "
        lines = [f"{counts}{len(self.not_served)} not served (tolerance {self.tolerance:.0e})"]
        told = {name: each.why or "not explained" for name, each in (self.wrong | self.errors).items()}
        alike = grouped(told, told.__getitem__)
        for reason, names in sorted(alike.items(), key=lambda item: -len(item[1])):
            largest = max(_size(self.outcomes[name].difference) for name in names)
            size = "" if largest < 0 else f", up to {largest:.2g}"
            lines.append(f"  {reason}{size}: {some_of(names, 3)}")
        return "\n".join([*lines, *self._lse_lines()])

    __repr__ = __str__

    def _lse_lines(self) -> list[str]:
        given = {name: each for name, each in self.outcomes.items() if each.lse or each.lse_is_wrong}
        if not given:
            return ["  lse: none returned"]
        if self.lse is not None:
            known = "" if self.lse.empty is None else ", ".join(engines_of(self.lse))
            return [f"  lse: {self.lse}{f' ({known})' if known else ''}"]
        wrong = [name for name, each in given.items() if each.lse_is_wrong]
        if wrong:
            return [f"  lse: no convention for {len(wrong)} cases, such as {', '.join(wrong[:3])}"]
        first = {str(replace(each.lse[0], empty=None)): name for name, each in given.items()}
        return [
            "  lse: another convention in other cases",
            *(f"    {of}: {name}" for of, name in first.items()),
        ]


def check(
    attend: Callable[..., Any],
    *,
    cases: Mapping[str, Case] | None = None,
    dtype: str = "float32",
    tolerance: float | None = None,
) -> Conformance:
    """Run another attention through the cases of this package, and report its differences.

    Parameters
    ----------
    attend : callable
        ``attend(query, key, value, **options)`` with arrays (batch, heads, n, dim), some with fewer axes, and
        options of :func:`attnscale.attention`. It returns the output, or (output, lse), as arrays that NumPy
        reads, and raises NotImplementedError for unsupported options.
    cases : mapping of str to Case, optional
        Default: the cases of ``CASES`` with a value, a softmax with or without a sink, and no law, since an
        engine takes the scale as a number, or one number a row.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        Type of the arrays passed to ``attend``; bfloat16 needs ml_dtypes.
    tolerance : float, optional
        The largest error of a right output, over 1 + abs(output). Default: 5e-5 for float32, 1e-9 for
        float64, 4e-3 for float16, 3e-2 for bfloat16.

    Returns
    -------
    Conformance

    Raises
    ------
    TypeError
        If attend is not a function.
    ValueError
        If dtype is another, or tolerance is not greater than 0.

    Notes
    -----
    The truth is the same call in float64. A wrong output is compared with calls with a known slip: a dropped
    or doubled scale, an ignored option, a window off by one, a causal mask at the other end, an inverted
    mask, a missing sink, key heads in another order, numbers in rows without keys.

    Examples
    --------
    >>> import attnscale as at
    >>> print(at.conformance.check(lambda q, k, v, **options: at.attention(q, k, v, **options)))
    164 right, 0 wrong, 0 errors, 0 not served (tolerance 5e-05)
      lse: none returned
    """
    if not callable(attend):
        raise TypeError(f"attend must be a function, got {shown(attend)}")
    choose("dtype", dtype, tuple(_TOLERANCES))
    allowed = _TOLERANCES[dtype] if tolerance is None else number("tolerance", tolerance)
    if allowed <= 0:
        raise ValueError(f"tolerance must be greater than 0, got {shown(tolerance)}")
    chosen = {name: case for name, case in CASES.items() if _is_for_engines(case)} if cases is None else cases
    return Conformance({name: _run(attend, case, dtype, allowed) for name, case in chosen.items()}, allowed)


def _is_for_engines(case: Case) -> bool:
    options = case.options
    spelled = isinstance(options.get("scale"), (str, Law))
    softmax = "normalizer" not in options or has_sink(options)
    return case.value is not None and softmax and not spelled and not callable(options.get("distance_bias"))


def _run(attend: Callable[..., Any], case: Case, dtype: str, allowed: float) -> Outcome:
    arrays = case.arrays()
    given = [x.astype(_numpy_type(dtype)) for x in arrays]
    try:
        answer = attend(*given, **case.options)
    except NotImplementedError as error:
        return Outcome("not served", why=str(error))
    except Exception as error:  # any failure of an engine is part of the report
        return Outcome("error", why=f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
    output, *rest = answer if isinstance(answer, (tuple, list)) else (answer,)
    truth = attention_statistics(*arrays, statistics=("lse", "n_visible"), **case.options)
    assert truth.output is not None
    found = as_array("the output", output).astype(np.float64)
    says_lse = rest and rest[0] is not None and _is_finite(arrays) and truth.n_visible.any()
    written = _read_lse(case, arrays, rest[0]) if says_lse else ((), False)
    if found.shape != truth.output.shape:
        said = f"the output has shape {found.shape} in place of {truth.output.shape}"
        return Outcome("wrong", why=said, lse=written[0], lse_is_wrong=written[1])
    difference = _difference(found, truth.output)
    if difference <= allowed:
        return Outcome("right", difference, "", *written)
    why = _explained(case, arrays, found, truth, allowed)
    return Outcome("wrong", difference, why, *written)


def _numpy_type(dtype: str) -> Any:
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return ml_dtypes.bfloat16


def _is_finite(arrays: list[Any]) -> bool:
    """Whether all numbers are finite; engines may treat NaN differently."""
    return all(np.isfinite(x).all() for x in arrays)


def _difference(found: NDArray[np.float64], truth: Any) -> float:
    """The largest error over 1 + abs(output); infinite where only one is a number."""
    with np.errstate(invalid="ignore"):
        error = np.abs(found - truth) / (1 + np.abs(truth))
    same = (found == truth) | (~np.isfinite(found) & ~np.isfinite(truth))
    error = np.where(same, 0, np.where(np.isnan(error), math.inf, error))
    return float(error.max(initial=0))


def _explained(case: Case, arrays: list[Any], found: Any, truth: Any, allowed: float) -> str:
    empty = np.broadcast_to(truth.n_visible == 0, truth.lse.shape)
    if case.options.get("layout") == "bshd" and empty.ndim > 1:
        empty = empty.swapaxes(-1, -2)
    if empty.any() and _difference(found[~empty], truth.output[~empty]) <= allowed:
        kind = "numbers" if np.isfinite(found[empty].ravel()[:1]).all() else "NaN"
        return f"rows without keys hold {kind}, not 0"
    if not _is_finite(arrays):
        finite = np.isfinite(truth.output) & np.isfinite(found)
        if _difference(found[finite], truth.output[finite]) <= allowed:
            return "a NaN or an infinity reaches other numbers"
    for slip in slips(case, arrays):
        fits = slip.output.shape == found.shape
        if fits and _difference(found[~empty], slip.output[~empty]) <= allowed:
            return slip.says
    return ""


def _read_lse(case: Case, arrays: list[Any], lse: Any) -> tuple[tuple[LseConvention, ...], bool]:
    """The conventions that fit the lse of a case with visible keys, and whether none does."""
    query, key, value = arrays
    if key.ndim > 2:  # batch axes of the value alone are axes of the rows too
        batch = np.broadcast_shapes(key.shape[:-3], value.shape[:-3])
        key = np.broadcast_to(key, (*batch, *key.shape[-3:]))
    try:
        found = identify_lse(query, key, lse, **case.options)
    except ValueError:  # another shape
        return (), True
    if found.convention is None:
        return (), True
    allows = (found.convention, *found.also)
    if not has_sink(case.options):  # the rows do not show whether a sink would be counted
        allows += tuple(replace(of, sink=False) for of in allows)
    return allows, False


def _size(difference: float) -> float:
    """Sort key: -1 where nothing was compared."""
    return -1.0 if math.isnan(difference) else difference
