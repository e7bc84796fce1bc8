# SPDX-License-Identifier: BSD-3-Clause
"""Conventions of the log-sum-exp: which one an engine follows, and conversion to another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

import numpy as np

from .._base.checks import as_array, boolean, choose, fit_to, number, shown
from .._base.hints import hinted
from .._call.call import Call
from .._call.homes import home_of
from .._call.options import AttentionEntropyOptions, takes
from .._call.weights import read_sink
from .forward import attention_statistics

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


__all__ = ["LSE_CONVENTIONS", "LseConvention", "LseIdentity", "convert_lse", "identify_lse"]


@dataclass(frozen=True)
class LseConvention:
    """Convention by which an engine writes the log-sum-exp of a row of scores s = scale * query . key.

    Attributes
    ----------
    base : {"e", "2"}
        Base of the logarithm: ln sum exp(s), or log2 sum exp(s), which is 1.4427 times as large.
    scaled : bool
        False: the sum is over exp(query . key), without the scale of the call.
    sink : bool
        Whether the sink of :class:`attnscale.normalizers.Sink` or ``SoftmaxN`` is a term of the sum.
    less_max : bool
        True: the largest score is subtracted, log sum exp(s - max s), which is between 0 and the log of the
        number of keys.
    negated : bool
        True: the sign is reversed.
    empty : float or None
        Value of a row without keys and sink, as float64, float32, float16 or bfloat16 rounds it. None:
        unknown.

    Examples
    --------
    >>> import attnscale as at
    >>> print(at.LseConvention(base="2", empty=-5e4))
    base 2, scale inside, sinks counted, rows without keys -50000
    """

    base: Literal["e", "2"] = "e"
    scaled: bool = True
    sink: bool = True
    less_max: bool = False
    negated: bool = False
    empty: float | None = -math.inf

    def __post_init__(self) -> None:
        choose("base", self.base, ("e", "2"))
        for name in ("scaled", "sink", "less_max", "negated"):
            boolean(name, getattr(self, name))
        if self.empty is not None and not isinstance(self.empty, (int, float)):
            raise TypeError(f"empty must be a number or None, got {shown(self.empty)}")

    def __str__(self) -> str:
        parts = ["natural log" if self.base == "e" else "base 2"]
        parts.append("scale inside" if self.scaled else "without the scale")
        parts.append("sinks counted" if self.sink else "sinks left out")
        parts += ["less the largest score"] * self.less_max
        parts += ["negated"] * self.negated
        parts += [] if self.empty is None else [f"rows without keys {self.empty:.10g}"]
        return ", ".join(parts)

    @property
    def _unit(self) -> float:
        """Factor of the natural logarithm."""
        return (-1 if self.negated else 1) / (math.log(2) if self.base == "2" else 1)

    def _written(self, natural: NDArray[np.float64], top: NDArray[np.float64]) -> NDArray[np.float64]:
        """The written number of rows with a term, from ln of their sum and their largest score."""
        with np.errstate(invalid="ignore"):
            found = natural - top if self.less_max else natural
        return found * self._unit

    def _read(self, written: NDArray[np.float64], top: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """The inverse of :meth:`_written`."""
        return written / self._unit + (0 if top is None else top)

    def _is_empty(self, written: NDArray[np.float64]) -> NDArray[np.bool_]:
        if self.empty is None:
            return np.zeros(written.shape, bool)
        return np.isnan(written) if math.isnan(self.empty) else np.isin(written, _roundings(self.empty))


def _in_bfloat16(numbers: Any) -> NDArray[np.float64]:
    """Numbers rounded to bfloat16, half to even."""
    with np.errstate(over="ignore"):
        bits = np.asarray(numbers, np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(numbers), np.nan, rounded.view(np.float32)).astype(np.float64)


def _in_float16(numbers: Any) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.asarray(numbers).astype(np.float16).astype(np.float64)


#: Half of the step at 1 of a 16-bit type, and rounding to the type; the coarser type first.
_NARROW = ((2.0**-8, _in_bfloat16), (2.0**-11, _in_float16))


def _roundings(number: float) -> list[float]:
    """A number as rounded by each type of an lse."""
    with np.errstate(over="ignore"):
        return [number, float(np.float32(number)), *(float(to(number)) for _, to in _NARROW)]


def rounding_of(numbers: NDArray[np.float64]) -> float:
    """Relative rounding error of numbers that a 16-bit type holds exactly; else 0."""
    finite = numbers[np.isfinite(numbers)]
    return next((half for half, to in _NARROW if np.array_equal(to(finite), finite)), 0.0)


class _Known(NamedTuple):
    """A convention and its source."""

    convention: LseConvention
    source: str


#: Conventions of engines, each with its source.
_ENGINES = {
    "attnscale": _Known(LseConvention(), "attention_statistics, attention_state and jax of this package"),
    "flash_attention_2": _Known(
        LseConvention(empty=math.inf),
        "Dao-AILab/flash-attention issue 404; vLLM, triton_merge_attn_states.py",
    ),
    "flash_attention_3": _Known(
        LseConvention(), "Dao-AILab/flash-attention discussion 2112; vLLM, triton_merge_attn_states.py"
    ),
    "flex_attention": _Known(LseConvention(), "torch 2.13.0, AuxRequest(lse=True); measured on the CPU"),
    "torch_sdpa_cpu": _Known(
        LseConvention(empty=0.0), "torch 2.13.0, _scaled_dot_product_flash_attention_for_cpu; measured"
    ),
    "jax": _Known(
        LseConvention(empty=float(np.float32(-0.7) * np.finfo(np.float32).max)),
        "jax 0.10.2, dot_product_attention(return_residual=True); measured",
    ),
    "flashinfer": _Known(
        LseConvention(base="2", empty=-5e4), "flashinfer issue 2113, pull request 4547, state.cuh, math.cuh"
    ),
    "vllm_merge": _Known(
        LseConvention(), "vLLM, triton_merge_attn_states.py, which reads inf as -inf for FlashAttention 2"
    ),
    "sglang_merge": _Known(LseConvention(), "flashinfer pull request 4547, of merge_state_v2 in sglang"),
}

#: The convention of each engine by its name; docs/how-to/check-an-engine.md has the sources.
LSE_CONVENTIONS: Mapping[str, LseConvention] = {name: known.convention for name, known in _ENGINES.items()}


def _read_convention(name: str, given: Any) -> LseConvention:
    if isinstance(given, LseConvention):
        return given
    if not isinstance(given, str):
        raise TypeError(f"{name} must be an LseConvention or the name of an engine, got {shown(given)}")
    return LSE_CONVENTIONS[choose(name, given, tuple(LSE_CONVENTIONS))]


def convert_lse(
    lse: ArrayLike,
    *,
    from_: LseConvention | str,
    to: LseConvention | str = "attnscale",
    max_score: ArrayLike | None = None,
    sink: ArrayLike | None = None,
) -> NDArray[Any]:
    """The log-sum-exp of rows, written in another convention.

    Parameters
    ----------
    lse : array_like, shape (..., heads, n_queries)
        As an engine returned it.
    from_, to : LseConvention or str
        A convention, or the name of an engine in ``LSE_CONVENTIONS``.
    max_score : array_like, optional
        The largest scaled score of each row, -inf for a row without keys; needed where one of the two has
        ``less_max``. Where it is given, only such rows are without keys. It broadcasts to lse.
    The logit of the sink, needed where the two differ in ``sink``: a number, (heads, 1), or any array that
    broadcasts to lse.

    Returns
    -------
    ndarray
        Of the shape, type and library of lse.

    Raises
    ------
    TypeError
        If an argument is of another kind.
    ValueError
        If a name is unknown, max_score or sink is needed and not given, or the two differ in ``scaled``:
        the row alone does not determine the conversion.

    Notes
    -----
    A row of lse equal to ``from_.empty`` is one without keys and becomes ``to.empty``, or the logit of the
    sink where ``to`` counts one. If an engine writes 0 there (``torch_sdpa_cpu``), such a row looks like a
    sum of 1; then pass max_score. A sink is removed by lse + ln(1 - exp(sink - lse)), which keeps few digits
    where the sink has nearly all weight.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> at.convert_lse([2.0, -5e4], from_="flashinfer")  # four keys of score 0, and a row without keys
    array([1.38629436,       -inf])
    """
    source, target = _read_convention("from_", from_), _read_convention("to", to)
    array = read_numbers("lse", lse)
    if source.scaled != target.scaled:
        raise ValueError("from_ and to must agree in scaled: only the scores say what a scale changes")
    written = array.astype(np.float64)
    with np.errstate(all="ignore"):
        top = _needed("max_score", max_score, written, source.less_max or target.less_max)
        natural = source._read(written, top if source.less_max else None)
        empty = source._is_empty(written) & (True if top is None else np.isneginf(top))
        natural = np.where(empty, -math.inf, natural)
        if source.sink != target.sink:
            logit = _needed("sink", sink, written, needed=True)
            if target.sink:
                natural = np.logaddexp(natural, logit)
            else:  # a logit of -inf is no sink, whatever the row's value
                share = np.where(np.isneginf(logit), 0, np.exp(logit - natural))
                natural = natural + np.log1p(-np.minimum(share, 1))
            empty = np.isneginf(natural)
        found = target._written(natural, np.zeros(1) if top is None else top)
    if target.empty is not None:
        found = np.where(empty, target.empty, found)
    found = found.astype(np.float64 if array.dtype.kind in "iu" else array.dtype)
    convert = home_of(lse)
    return found if convert is None else convert(found)


def read_numbers(name: str, given: Any) -> NDArray[Any]:
    array = as_array(name, given)
    if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be numbers, got {array.dtype}")
    return array


def _needed(name: str, given: Any, like: NDArray[Any], needed: bool) -> Any:
    """An array that broadcasts to the rows, in float64; None if it is neither given nor needed."""
    if given is None:
        if not needed:
            return None
        raise ValueError(f"{name} must be given: from_ and to differ in it, or do not write it alike")
    found = fit_to(name, read_numbers(name, given), like.shape, "the shape of lse")
    return found.astype(np.float64)


@dataclass(frozen=True, eq=False)
class LseIdentity:
    """Result of :func:`identify_lse`.

    Attributes
    ----------
    convention : LseConvention or None
        The simplest convention that gives the numbers of all heads, or None.
    engines : tuple of str
        The engines of ``LSE_CONVENTIONS`` with this convention.
    also : tuple of LseConvention
        Other conventions that these rows cannot tell apart: with a scale of 1, for example, or a sink
        without weight.
    per_head : tuple of LseConvention or None
        The convention of each head; None for a head that fits none.
    error : ndarray, shape (heads,)
        Largest difference of a row of each head from its convention, or from ``nearest``, over
        max(1, abs(lse)).
    nearest : LseConvention
        The closest convention over all heads, whether it fits or not.
    axes : {"heads, queries", "queries, heads"}
        Order of the last axes of the given lse.
    tolerance : float
        Largest ``error`` that fits, including the rounding of a 16-bit lse.
    """

    convention: LseConvention | None
    engines: tuple[str, ...]
    also: tuple[LseConvention, ...]
    per_head: tuple[LseConvention | None, ...]
    error: NDArray[np.float64]
    nearest: LseConvention
    axes: str
    tolerance: float

    def __str__(self) -> str:
        worst = f"largest difference {self.error.max():.2g}, tolerance {self.tolerance:.2g}"
        if self.convention is not None:
            engines = f" ({', '.join(self.engines)})" if self.engines else ""
            also = "".join(f"\n  these rows do not tell it from: {each}" for each in self.also)
            return f"{self.convention}{engines}; axes {self.axes}; {worst}{also}"
        if all(each is not None for each in self.per_head):
            heads = "".join(f"\n  head {at}: {each}" for at, each in enumerate(self.per_head))
            return f"heads differ; axes {self.axes}; {worst}{heads}"
        bad = [str(at) for at, each in enumerate(self.per_head) if each is None]
        return f"no known convention for head {', '.join(bad)}; nearest: {self.nearest}; {worst}"

    __repr__ = __str__


@hinted
@takes(AttentionEntropyOptions)
def identify_lse(
    query: ArrayLike,
    key: ArrayLike,
    lse: ArrayLike,
    *,
    tolerance: float = 2e-3,
    **options: Unpack[AttentionEntropyOptions],
) -> LseIdentity:
    """Identify the convention of a log-sum-exp that another engine returned for this call.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    lse : array_like
        The engine's result, of shape (..., heads, n_queries) or (..., n_queries, heads); a last axis of 1 may
        follow.
    tolerance : float, default 2e-3
        How far a row may be from a convention, over max(1, abs(lse)). The default suits engines that sum in
        float32 or TF32. A smaller one separates close conventions; 8-bit products need a larger one. Where
        float16 or bfloat16 holds all numbers of lse, half of that type's step at 1 is added.
    {names}
        As for :func:`attention`; the normalizer is softmax, SoftmaxN or Sink.

    Returns
    -------
    LseIdentity
        Its text describes the result in words.

    Raises
    ------
    ValueError
        If lse has another shape than the rows, no row sees a key, or the tolerance is not a number greater
        than 0.

    Notes
    -----
    All combinations of :class:`LseConvention` are compared with the numbers: base e and 2, with and without
    the scale, with and without the sink, with and without the largest score subtracted, either sign. Rows
    without keys are compared apart: their value is ``empty``.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.random.default_rng(0).standard_normal((2, 2, 5, 8))
    >>> ours = at.attention_statistics(q, k, is_causal=True, statistics="lse").lse
    >>> at.identify_lse(q, k, ours / np.log(2), is_causal=True).convention.base
    '2'
    """
    allowed = number("tolerance", tolerance)
    if allowed <= 0:
        raise ValueError(f"tolerance must be greater than 0, got {shown(tolerance)}")
    call = Call(query, key, None, dict(options)).read()
    seen = np.broadcast_to(call.visible_keys() > 0, call.row_shape)
    if not seen.any():
        raise ValueError("some row of query must see a key, got none that does")
    has_sink = read_sink(options, call.row_shape, "identify_lse", "others have no log-sum-exp") is not None
    candidates = list(_candidates(query, key, dict(options), has_sink))
    numbers = read_numbers("lse", lse)
    allowed += rounding_of(numbers.astype(np.float64))
    found = [
        _identified(given, axes, candidates, seen, has_sink, allowed)
        for axes, given in _in_order(numbers, call.row_shape)
    ]
    return min(found, key=lambda each: each.error.max())


def _candidates(
    query: Any, key: Any, options: dict[str, Any], has_sink: bool
) -> Iterator[tuple[LseConvention, NDArray[np.float64]]]:
    """Conventions with the rows that each would write, the simplest first."""
    bases: tuple[Literal["e", "2"], ...] = ("e", "2")
    rows = {}
    for scaled in (True, False):
        for sink in (True, False) if has_sink else (True,):
            changes: dict[str, Any] = {} if scaled else {"scale": 1.0}
            changes |= {} if sink else {"normalizer": "softmax"}
            of = attention_statistics(query, key, statistics=("lse", "max_score"), **{**options, **changes})
            rows[scaled, sink] = [as_array("lse", x).astype(np.float64) for x in (of.lse, of.max_score)]
    every = [
        LseConvention(base, scaled, sink, less_max, negated, None)
        for scaled, sink in rows
        for base in bases
        for less_max in (False, True)
        for negated in (False, True)
    ]
    for convention in sorted(every, key=departures):
        yield convention, convention._written(*rows[convention.scaled, convention.sink])


def departures(convention: LseConvention) -> int:
    """The number of fields in which a convention differs from that of attnscale."""
    plain = LseConvention(empty=convention.empty)
    return sum(getattr(convention, each.name) != getattr(plain, each.name) for each in fields(plain))


def _in_order(lse: NDArray[Any], shape: tuple[int, ...]) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """The lse as (..., heads, n_queries), in each axis order that its shape allows."""
    given = lse.astype(np.float64)
    if given.ndim == len(shape) + 1 and given.shape[-1] == 1:
        given = given[..., 0]
    swapped = (*shape[:-2], *shape[:-3:-1])
    if given.shape not in (shape, swapped):
        raise ValueError(
            f"lse must have the shape of the rows, {shape} or with queries before heads {swapped}, "
            f"got {lse.shape}"
        )
    if given.shape == shape:
        yield "heads, queries", given
    if len(shape) > 1 and given.shape == swapped:
        yield "queries, heads", given.swapaxes(-1, -2)


def _identified(
    given: NDArray[np.float64],
    axes: str,
    candidates: list[tuple[LseConvention, NDArray[np.float64]]],
    seen: NDArray[np.bool_],
    has_sink: bool,
    allowed: float,
) -> LseIdentity:
    errors = np.stack(
        [
            row_errors(given, written, seen | (has_sink and of.sink and not of.less_max))
            for of, written in candidates
        ]
    )
    worst = errors.max(axis=1)
    nearest = int(worst.argmin())
    fits = errors <= allowed
    close = fits & (errors <= np.maximum(4 * errors.min(axis=0), 1e-5))
    holds = np.unique(given[~seen])

    def named(at: int) -> LseConvention:
        known = holds.size == 1 and not (has_sink and candidates[at][0].sink)
        return replace(candidates[at][0], empty=float(holds[0]) if known else None)

    per_head = tuple(named(int(of.argmax())) if of.any() else None for of in close.T)
    common = np.flatnonzero(fits.all(axis=1))
    if not common.size:
        error = np.where(fits.any(axis=0), errors.min(axis=0), errors[nearest])
        return LseIdentity(None, (), (), per_head, error, named(nearest), axes, allowed)
    best = next((at for at in common if close[at].all()), int(worst.argmin()))
    convention = named(int(best))
    engines = engines_of(convention)
    also = tuple(named(int(at)) for at in common if at != best)
    heads = tuple(convention for _ in per_head)
    return LseIdentity(convention, engines, also, heads, errors[best], convention, axes, allowed)


def row_errors(
    given: NDArray[np.float64], written: NDArray[np.float64], counts: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The largest error of each head, over max(1, abs(lse)), among the rows that count."""
    with np.errstate(invalid="ignore"):
        error = np.abs(given - written) / np.maximum(1, np.abs(written))
    same = (given == written) | (np.isnan(given) & np.isnan(written)) | ~counts
    error = np.where(same, 0, np.where(np.isnan(error), math.inf, error))
    if error.ndim < 2:
        return np.asarray(error.max(keepdims=True))
    return np.asarray(error.max(axis=(*range(error.ndim - 2), -1)))


def engines_of(convention: LseConvention) -> tuple[str, ...]:
    """Engines whose convention agrees with an identified one."""
    return tuple(name for name, known in LSE_CONVENTIONS.items() if _agree(convention, known))


def _agree(found: LseConvention, known: LseConvention) -> bool:
    """Whether an engine's convention is the identified one; ``empty`` counts where both are known."""
    if found.empty is not None and known.empty is not None:
        # A value that overflows float16 does not make its engine one that writes -inf.
        alike = math.isinf(found.empty) == math.isinf(known.empty)
        if not (alike and known._is_empty(np.array(found.empty))):
            return False
    return replace(found, empty=None) == replace(known, empty=None)
