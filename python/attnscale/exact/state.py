# SPDX-License-Identifier: BSD-3-Clause
"""Attention over parts of the keys, and merging of the parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._base.checks import as_array, choose, refuse_masked, shown
from .._base.hints import hinted
from .._base.tabled import Labelled, Sheet, Tabled, row_dims, summary
from .._call.arrays import LAYOUTS, laid_out
from .._call.call import Call, split_rows
from .._call.homes import home_of
from .._call.options import AttentionStateOptions, takes
from .._call.scale import read_law
from .._call.weights import require_softmax
from .lse import convert_lse
from .results import coordinates_of, labelled_as

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Layout
    from .lse import LseConvention


__all__ = ["AttentionState", "attention_state", "merge_states"]

_INSTEAD = (
    "a sink is one more state for merge_states, of output 0 and lse and mean_score its logit; the weights of "
    "other normalizers do not merge: attention takes all keys at once"
)


_FILL = "fill it: rows without keys have the lse -inf"


@dataclass(frozen=True, eq=False, repr=False)
class AttentionState(Tabled):
    """Attention of queries to some of their keys, with all that merging needs.

    Attributes
    ----------
    output : ndarray, shape (..., heads, n_queries, value_dim)
        (..., n_queries, heads, value_dim) for layout "bshd".
    lse : ndarray, shape (..., heads, n_queries)
        ln sum exp(score) over these keys; -inf where there are none.
    mean_score : ndarray, shape (..., heads, n_queries), or None
        Mean score under the weights over these keys. None: unknown, and so is the entropy, as for engines
        that return only output and lse.
    layout : {"bhsd", "bshd"}
        Order of the output's axes.
    lse_rest, mean_rest : ndarray of float64, shape (..., heads, n_queries), or None
        What float32 rounding removed from lse and mean_score; entropy and merge_states restore it. None:
        nothing, or unknown.
    """

    output: NDArray[Any]
    lse: NDArray[Any]
    mean_score: NDArray[Any] | None = None
    layout: Layout = "bhsd"
    lse_rest: NDArray[Any] | None = None
    mean_rest: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            refuse_masked(f"{each.name} of a state", getattr(self, each.name), _FILL)

    @property
    def entropy(self) -> NDArray[Any]:
        """lse - mean_score, in nats, including the rounded-off parts of both; 0 without keys."""
        if self.mean_score is None:
            raise AttributeError("entropy is lse - mean_score, and this state was made without mean_score")
        home, rows = home_of(self.lse), _on_arrays(self)
        with np.errstate(invalid="ignore"):
            difference = _wide(rows.lse, rows.lse_rest) - _wide(rows.mean_score, rows.mean_rest)
            # The difference of two large numbers may be just below 0.
            found = np.where(np.isneginf(rows.lse), 0, np.maximum(difference, 0))
        entropy = labelled_as(rows.lse, found.astype(rows.lse.dtype), "entropy", "nat")
        return entropy if home is None else home(entropy)

    def _variables(self) -> dict[str, Labelled]:
        dims = getattr(self.lse, "dims", row_dims(self.lse.ndim))
        names = {"lse": ""} if self.mean_score is None else {"lse": "", "mean_score": "", "entropy": "nat"}
        return {name: Labelled(dims, getattr(self, name), kind) for name, kind in names.items()}

    def _coordinates(self) -> dict[str, Any]:
        return coordinates_of([self.lse])

    def _sheet(self, nats: float, unit: str) -> Sheet:
        title = f"AttentionState: rows {tuple(self.lse.shape)}, output {tuple(self.output.shape)}"
        return Sheet(
            f"{title} of {self.output.dtype}, {self.layout}", *summary(self._variables(), nats, unit)
        )


@hinted
@takes(AttentionStateOptions)
def attention_state(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, **options: Unpack[AttentionStateOptions]
) -> AttentionState:
    """Attention to a part of the keys, ready to be merged with the other parts.

    Parameters
    ----------
    query, key, value, {names}
        As for :func:`attnscale.attention`. Masks and alignment are those of this part: its key 0 is the first
        one given here. A law uses the n of this part alone: to use the whole length, evaluate it first and
        pass the number, ``scale=law.scale(n_total, head_dim)``.

    Returns
    -------
    AttentionState

    Raises
    ------
    ValueError
        If a law of the distance is the scale, or the normalizer's parts do not merge.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 4, 100, 16))
    >>> parts = [at.attention_state(q, k[:, i : i + 50], v[:, i : i + 50]) for i in (0, 50)]
    >>> bool(np.allclose(at.merge_states(parts).entropy, at.attention_entropy(q, k)))
    True
    """
    require_softmax(options, "attention_state", _INSTEAD)
    if value is None:
        raise TypeError("value must be an array, got None")
    law = read_law(options.get("scale"))
    if law is not None and law.meaning.is_distance:
        raise ValueError(
            f"scale={law.name!r} depends on distances in the whole sequence, and a state knows only its part"
        )
    call = Call(query, key, value, {**options, "scale": options.get("scale") if law is None else law}).read()
    rests = {"lse": "lse_rest", "mean_score": "mean_rest"}
    output, rows = call.attend(None, tuple(rests), order="rows", rests=rests)
    assert output is not None
    return AttentionState(output, **rows, layout=call.layout)


def merge_states(
    states: Iterable[AttentionState], *, convention: LseConvention | str | None = None
) -> AttentionState:
    """The state over all keys, merged from states over parts of them.

    Parameters
    ----------
    states : iterable of AttentionState
        At least one, of equal shapes, over disjoint sets of keys; at most one counts a sink.
    convention : LseConvention or str, optional
        Convention of the states' lse, if an engine made them: a name of ``LSE_CONVENTIONS`` or your own, as
        for :func:`convert_lse`. Default: that of :func:`attention_state`.

    Returns
    -------
    AttentionState
        Of the common type of the states, with attnscale's lse, and mean_score if the states have it.

    Raises
    ------
    ValueError
        If there is no state, their shapes or layouts differ, or the convention is not known.
    TypeError
        If one of them is not an AttentionState.

    Notes
    -----
    With w_k = exp(lse_k) / sum_l exp(lse_l), output and mean_score are the w-weighted means of the parts: the
    merge is associative and commutative up to rounding, and a state without keys (lse = -inf) changes
    nothing, whatever its output and mean_score. Arithmetic is float64.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> one = at.AttentionState(np.ones((1, 1, 2)), np.zeros((1, 1)), np.zeros((1, 1)))
    >>> at.merge_states([one, one]).entropy  # two keys of weight 1/2
    array([[0.69314718]])
    >>> theirs = at.AttentionState(np.ones((1, 1, 2)), np.zeros((1, 1)))  # an engine's output and lse
    >>> at.merge_states([theirs, theirs], convention="flashinfer").lse
    array([[0.69314718]])
    """
    try:
        parts = list(states)
    except TypeError:
        raise TypeError(f"states must be AttentionState objects, got {shown(states)}") from None
    _check_states(parts)
    home, parts = home_of(parts[0].output), [_on_arrays(part) for part in parts]
    lse = np.stack([_wide(part.lse, part.lse_rest) for part in parts])
    if convention is not None:
        lse = convert_lse(lse, from_=convention)
    layout, row_type = parts[0].layout, np.result_type(*(part.lse for part in parts))
    with np.errstate(all="ignore"):
        weights, merged_lse = _shares(lse)
        # 0 * inf = NaN: a visible infinity shows, however small the weight of its part.
        output = _sum(weights, [laid_out(part.output, layout) for part in parts], np.isneginf(lse))
        output = laid_out(output.astype(np.result_type(*(part.output for part in parts))), layout)
        found = {"output": output, **_row(merged_lse, row_type, "lse", "lse_rest")}
        means = [_wide(part.mean_score, part.mean_rest) for part in parts if part.mean_score is not None]
        if means:
            mean = _sum(weights, means, np.isneginf(lse))
            found |= _row(mean, row_type, "mean_score", "mean_rest")
    at_home = {name: x if home is None else home(x) for name, x in found.items()}
    return AttentionState(**at_home, layout=layout)


def _shares(lse: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The weight of each part, and the lse of the whole; the first axis indexes the parts."""
    # Rows without any key have no maximum; 0 makes their weights exp(-inf) = 0.
    top = lse.max(axis=0)
    top = np.where(np.isneginf(top), 0.0, top)
    weights = np.exp(lse - top)  # a part that underflows against the whole has no weight
    total = weights.sum(axis=0)
    return weights / np.where(total == 0, 1.0, total), np.log(total) + top  # ln 0 = -inf: no keys at all


def _sum(
    weights: NDArray[np.float64], parts: list[NDArray[Any]], empty: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The weighted sum of outputs or mean scores; values of rows without keys are ignored."""
    inner = (None,) * (parts[0].ndim - empty.ndim + 1)
    total = np.zeros(parts[0].shape)
    for share, part, none in zip(weights, parts, empty, strict=True):
        at = (..., *inner)
        total += np.where(none[at], 0, share[at] * np.asarray(part, np.float64))
    return total


def _wide(rows: Any, rest: Any) -> Any:
    """Rows in float64, including the rounded-off part."""
    wide = rows.astype(np.float64)
    return wide if rest is None else wide + rest


def _row(wide: NDArray[np.float64], dtype: Any, name: str, rest: str) -> dict[str, NDArray[Any]]:
    """Merged rows in their type and the rounded-off part, by the names of a state."""
    if dtype == np.float64:
        return {name: wide}
    return dict(zip((name, rest), split_rows(wide, dtype), strict=True))


def _on_arrays(state: AttentionState) -> AttentionState:
    """The state with NumPy or xarray arrays in place of another library's."""
    if home_of(state.output) is None:
        return state
    names = [each.name for each in fields(state) if each.name != "layout"]
    given = {name: getattr(state, name) for name in names}
    arrays: dict[str, Any] = {name: None if x is None else as_array(name, x) for name, x in given.items()}
    return AttentionState(**arrays, layout=state.layout)


def _check_states(states: list[AttentionState]) -> None:
    if not states:
        raise ValueError("states must hold at least one AttentionState, got none")
    for state in states:
        if not isinstance(state, AttentionState):
            raise TypeError(f"states must be AttentionState objects, got {type(state).__name__}")
        choose("the layout of a state", state.layout, LAYOUTS)
    first = states[0]
    for state in states[1:]:
        for name in ("layout", "output", "lse", "mean_score"):
            seen, wanted = (getattr(s, name) for s in (state, first))
            if getattr(seen, "shape", seen) != getattr(wanted, "shape", wanted):
                raise ValueError(
                    f"states must agree in {name}, got {getattr(wanted, 'shape', wanted)} "
                    f"and {getattr(seen, 'shape', seen)}"
                )
