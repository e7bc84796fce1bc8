# SPDX-License-Identifier: BSD-3-Clause
"""Entropy and laws at one length of a calibration, and the fit of laws to what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from . import laws as registry
from ._call.call import Call
from ._call.scale import check_one_scale_a_row
from .attention import attention_entropy
from .laws import Law
from .laws._registry import class_of
from .solve import ScaleSolution, solve_scale

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._call.arrays import Inputs

    Array = NDArray[np.float64]

__all__ = ["Fit", "Length", "candidates", "cut", "fit_laws"]


class Length(NamedTuple):
    """The rows whose mean entropy counts at one length."""

    query: NDArray[Any]
    key: NDArray[Any]
    options: dict[str, Any]

    def entropy(self, scale: Any) -> Array:
        """Mean over the rows of each head, shape (..., heads)."""
        rows = attention_entropy(self.query, self.key, scale=scale, **self.options)
        return np.asarray(rows.mean(-1, dtype=np.float64))

    def solve(self, target: Array) -> ScaleSolution:
        """One scale a head."""
        return solve_scale(self.query, self.key, target, per="head", on_infeasible="nan", **self.options)

    def law_scale(self, law: Law) -> Array:
        """The law's scale of each row, shape (..., heads, rows)."""
        check_one_scale_a_row(law)
        form = {name: self.options[name] for name in ("enable_gqa", "num_threads")}
        call = Call(self.query, self.key, **form)
        call.see(None, False, self.options["causal"])
        call.score(law)
        return np.broadcast_to(call.scale, call.row_shape)


class Fit(NamedTuple):
    """Laws at their amplitudes; see Calibration."""

    amplitude: Array
    law_beta: Array
    law_entropy: Array


def cut(inputs: Inputs, n: int, is_causal: bool, num_threads: int | None) -> Length:
    """The first n keys with the first n queries; causal: with the last eighth of those."""
    first = n - max(n // 8, 1) if is_causal else 0
    query, key = inputs.query[..., first:n, :], inputs.key[..., :n, :]
    heads = query.ndim > 2 and query.shape[-3] != key.shape[-3]
    causal = "bottom_right" if is_causal else None
    return Length(query, key, {"causal": causal, "enable_gqa": heads, "num_threads": num_threads})


def candidates(wanted: Iterable[Law | str] | None, n0: int) -> Iterator[Law]:
    """The laws to compare; by name with n0 for the parameter that is a length."""
    if isinstance(wanted, (str, Law)):
        wanted = (wanted,)
    if wanted is not None:
        chosen = [_with_length(law, n0) if isinstance(law, str) else registry.get(law) for law in wanted]
        if not chosen:
            raise ValueError("laws must name at least one law, got none")
        yield from cast(list[Law], chosen)
        return
    for name in registry.names():
        law = _with_length(name, n0, required=False)
        if law is None or law.channels != "all" or law.meaning.is_distance:
            continue
        if law.meaning.is_used or name == "standard":
            yield law


def _with_length(name: str, n0: int, *, required: bool = True) -> Law | None:
    """None if another parameter has no default; `required` makes that the registry's error."""
    law = class_of(name)
    if law is None:
        return registry.get(name)
    given = {} if law.length_parameter is None else {law.length_parameter: float(n0)}
    needed = {each.name for each in fields(cast(Any, law)) if each.default is MISSING}
    return None if needed - given.keys() and not required else registry.get(name, **given)


def fit_laws(compared: Sequence[Law], cuts: Sequence[Length], beta: Array, head_dim: int) -> Fit:
    """Each law times the amplitude that brings it closest to beta, and the entropy that gives."""
    fits = [_fit(law, cuts, beta, np.sqrt(head_dim)) for law in compared]
    return Fit(*(np.stack(part) for part in zip(*fits, strict=True)))


def _fit(law: Law, cuts: Sequence[Length], beta: Array, root: float) -> Fit:
    scales = [each.law_scale(law) for each in cuts]
    multiplier = np.stack([scale.mean(-1) for scale in scales], axis=-1) * root
    amplitude = _amplitude(multiplier, beta)
    known = np.isfinite(amplitude)
    usable = np.where(known, amplitude, 0.0)[..., None]
    entropy = [each.entropy(usable * scale) for each, scale in zip(cuts, scales, strict=True)]
    kept = np.stack(entropy, axis=-1)
    return Fit(amplitude, amplitude[..., None] * multiplier, np.where(known[..., None], kept, np.nan))


def _amplitude(multiplier: Array, beta: Array) -> Array:
    """c with the least sum of (c multiplier - beta)^2 over the lengths with a beta; NaN without one."""
    known = np.isfinite(beta)
    squares = np.where(known, multiplier**2, 0.0).sum(-1)
    products = (np.where(known, multiplier, 0.0) * np.where(known, beta, 0.0)).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(squares > 0, products / squares, np.nan))
