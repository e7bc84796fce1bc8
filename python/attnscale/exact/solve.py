# SPDX-License-Identifier: BSD-3-Clause
"""The scale that gives attention a target entropy."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from .._base.checks import answer_infeasible, as_array, choose, fit_to, number, read_on_infeasible, shown
from .._base.hints import hinted
from .._call.call import Call
from .._call.options import SolveScaleOptions, takes
from .._call.rows import shows
from .._call.weights import require_softmax
from .results import ScaleSolution

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


__all__ = ["ScaleSolution", "solve_scale"]

_INSTEAD = "entropy_curve takes SoftmaxN and Sink, attention_statistics every normalizer, at given scales"
_GROUPS = ("row", "head", "all")
_AXES = {"row": "(..., heads, n_queries)", "head": "(..., heads)", "all": "()"}
#: The axes of a target, where axes have names.
_NAMED_AXES: dict[str, tuple[str, ...]] = {"row": ("heads", "queries"), "head": ("heads",), "all": ()}


@hinted
@takes(SolveScaleOptions)
def solve_scale(
    query: ArrayLike,
    key: ArrayLike,
    target_entropy: ArrayLike,
    *,
    per: Literal["row", "head", "all"] = "row",
    tolerance: float | None = None,
    on_infeasible: Literal["warn", "nan", "raise"] = "warn",
    **options: Unpack[SolveScaleOptions],
) -> ScaleSolution:
    """The scale at which attention weights have the target entropy.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attnscale.attention`.
    target_entropy : float or array_like
        In nats, finite and at least 0. Broadcasts to the shape of the result.
    per : {"row", "head", "all"}, default "row"
        Rows that share a scale: "row", each its own; "head", those of a head (and batch entry); "all", all
        rows. For the last two the target is the mean entropy over the rows that see a key.
    tolerance : float, optional
        Largest distance of an entropy from its target, in nats. Default: 1e-9 for float64 input, else 1e-6.
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        The answer where no scale reaches the target, because it is above ln n_visible or below ``lowest``:
        NaN, with or without a warning, or an error. The nearest scale would be 0 or infinite, and attention
        would silently accept the 0, for equal weights.
    {names}
        As for :func:`attnscale.attention`. A float mask may hold only 0 and values that hide a key, such as
        -inf. The normalizer is the softmax, without a softcap: see the notes.

    Returns
    -------
    ScaleSolution

    Warns
    -----
    UserWarning
        If a target is out of reach, by default.

    Raises
    ------
    ValueError
        If a target or the tolerance is out of range, or a soft-cap or bias is given.

    Notes
    -----
    Let x = query . key over the visible keys, p the weights and a the scale. Entropy falls in a > 0,
    d entropy / d ln a = -a^2 Var_p(x), from ln n_visible to ln of the number of keys that tie for the
    largest x: between them the scale is unique. It is found by Halley steps on
    ln((highest - H) / (H - lowest)), which is nearly linear in ln a, kept inside a bracket.

    With a soft-cap c the score c tanh(a x / c) tends to c sign(x): entropy rises again as keys saturate. With
    a bias the weights at a = 0 are softmax(bias), which need not be the flattest. In both cases a target can
    have several scales or none, so both are refused.

    For "row", dot products are computed once and kept during the search, at most 16 MiB in all (one thread
    with 2^18 keys in float32 and AVX-512); rows beyond that are recomputed at every step. "head" and "all"
    take one pass of :func:`attnscale.attention_statistics` a step.

    The search for the perplexity of t-SNE is this problem with x = -distance^2, the target
    ln(perplexity) and the scale 1 / (2 sigma^2).

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.standard_normal((2, 8, 256, 64))
    >>> solution = at.solve_scale(q, k, np.log(20))  # 20 effective keys in every row
    >>> np.exp(at.attention_entropy(q, k, scale=solution.scale)).round(6).min()
    np.float64(20.0)
    >>> one_a_head = at.solve_scale(q, k, np.log(20), per="head")
    >>> at.attention_entropy(q, k, scale=one_a_head.scale[:, None]).mean(axis=-1).round(6)
    array([2.995732, 2.995732, 2.995732, 2.995732, 2.995732, 2.995732,
           2.995732, 2.995732])
    """
    group = choose("per", per, _GROUPS)
    read_on_infeasible(on_infeasible)
    _refuse_softcap(options.get("softcap"))
    require_softmax(options, "solve_scale", _INSTEAD)
    call = Call(query, key, None, options)
    call.see()
    _refuse_bias(call.mask)
    call.score()
    wide = np.float64 in (call.inputs.query.dtype, call.inputs.key.dtype)
    limit = _read_tolerance(tolerance, 1e-9 if wide else 1e-6)
    rows = call.row_shape
    shape = {"row": rows, "head": rows[:-1], "all": ()}[group]
    if call.names is not None:
        target_entropy = call.names.place_option("target_entropy", target_entropy, _NAMED_AXES[group])
    target = _read_target(target_entropy, shape, group)
    if group == "row":
        found = ScaleSolution(*call.core.solve(target, limit))
    else:
        from .solve_mean import solve_mean

        axes = (-1,) if group == "head" else tuple(range(-len(rows), 0))
        found = replace(solve_mean(call, target, limit, axes), per=group)
    found = _answer(found, target, call, on_infeasible)
    arrays = () if group == "all" else (each.name for each in fields(found) if each.name != "per")
    return call.label(found, dict.fromkeys(arrays, (..., *_NAMED_AXES[group][1:])))


def _answer(
    found: ScaleSolution, target: NDArray[np.float64], call: Call, on_infeasible: str
) -> ScaleSolution:
    """NaN for scales whose targets are out of reach, with the chosen warning or error."""
    lost = ~found.feasible & ~np.isnan(found.scale)
    if lost.any():  # rows without keys have no weights: any scale will do
        seen = np.broadcast_to(call.core.count() > 0, call.row_shape)
        lost &= {"row": seen, "head": seen.any(-1), "all": seen.any()}[found.per]
    if not lost.any():
        return found
    first = tuple(np.argwhere(lost)[0])
    wanted = np.broadcast_to(target, lost.shape)[first]
    count = f"{lost.sum()} of {lost.size}"
    who = {"row": f"{count} rows", "head": f"{count} heads", "all": "the rows together"}[found.per]
    where = f" at {tuple(map(int, first))}" if first else ""
    answer_infeasible(
        on_infeasible,
        f"no scale gives {who} the target_entropy: {wanted:.6g} nats{where}, which can have "
        f"{found.lowest[first]:.6g} to {found.highest[first]:.6g}",
    )
    return replace(found, scale=np.where(lost, np.nan, found.scale))


def _read_tolerance(tolerance: Any, default: float) -> float:
    if tolerance is None:
        return default
    limit = number("tolerance", tolerance)
    if limit <= 0:
        raise ValueError(f"tolerance must be greater than 0, got {shown(tolerance)}")
    return limit


def _read_target(target_entropy: Any, shape: tuple[int, ...], group: str) -> NDArray[np.float64]:
    array = as_array("target_entropy", target_entropy)
    if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
        raise TypeError(
            f"target_entropy must be a number or an array of numbers, got {shown(target_entropy)}"
        )
    target = fit_to("target_entropy", array, shape, _AXES[group]).astype(np.float64)
    if not np.isfinite(target).all():
        raise ValueError(f"target_entropy must be finite, got {_first(target, ~np.isfinite(target))}")
    if (target < 0).any():
        raise ValueError(f"target_entropy must be at least 0, got {_first(target, target < 0)}")
    return target if group == "row" else np.broadcast_to(target, shape)


def _first(array: NDArray[np.float64], where: NDArray[np.bool_]) -> float:
    return float(array[where].flat[0])


def _refuse_softcap(softcap: Any) -> None:
    if softcap is not None:
        raise ValueError(
            "solve_scale takes no softcap: under it entropy need not fall with the scale, and a target can "
            f"have several scales or none; got softcap={shown(softcap)}"
        )


def _refuse_bias(mask: NDArray[Any] | None) -> None:
    if mask is None or mask.dtype == np.bool_:
        return
    bias = (mask != 0) & shows(mask)
    if bias.any():
        seen = float(mask[bias].flat[0])
        raise ValueError(
            "attn_mask of solve_scale must be bool, or float with 0 and -inf only: with a bias entropy need "
            f"not fall with the scale, and a target can have several scales or none; got {seen}"
        )
