# SPDX-License-Identifier: BSD-3-Clause
"""The types of options, by what takes them: for type checkers, and for the record in `options.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal, TypeAlias

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from ..laws import Law
    from ..normalizers import Normalizer

    Scale: TypeAlias = float | ArrayLike | Law | str | None
    Causal: TypeAlias = Literal["top_left", "bottom_right"] | int
    QKNorm: TypeAlias = Literal["l2", "rms"]
    Layout: TypeAlias = Literal["bhsd", "bshd"] | str  # or a pattern of names: "b n h d"
    Dims: TypeAlias = Mapping[str, str | Sequence[str]]
    Window: TypeAlias = tuple[int | None, int | None]
    KeyLengths: TypeAlias = ArrayLike
    DistanceTable: TypeAlias = ArrayLike | Callable[[NDArray[np.int64]], NDArray[Any]]


class FormOptions(TypedDict, total=False):
    """How heads, axes and threads are shared out: options of every function on query, key and value."""

    enable_gqa: bool
    layout: Layout
    num_threads: int | None


class VariantOptions(FormOptions, total=False):
    """Options of the variants of attention."""

    is_causal: bool
    causal: Causal | None


class SharedOptions(VariantOptions, total=False):
    """Who sees whom, and how a call is laid out: options of every exact function."""

    attn_mask: ArrayLike | None
    window: Window | None
    key_lengths: KeyLengths | None
    document_ids: ArrayLike | None


class SolveOptions(SharedOptions, total=False):
    """Options of :func:`attnscale.solve_scale`."""

    softcap: None
    normalizer: str
    dims: Dims | None


class WeightOptions(SharedOptions, total=False):
    """How scores become weights, besides their scale."""

    softcap: float | None
    normalizer: str | Normalizer
    qk_norm: QKNorm | None


class CallOptions(WeightOptions, total=False):
    """Options that functions on the exact kernel hand on to it: those of attention without scale and out."""

    distance_scale: DistanceTable | None
    distance_bias: DistanceTable | None


class StateOptions(WeightOptions, total=False):
    """Options of :func:`attnscale.attention_state`."""

    scale: Scale
    dims: Dims | None


class DivergenceOptions(SharedOptions, total=False):
    """Options of :func:`attnscale.attention_divergence`, of both attentions or of the first."""

    scale: Scale
    softcap: float | None


class CurveOptions(CallOptions, total=False):
    """Options of :func:`attnscale.entropy_curve`."""

    dims: Dims | None


class GradientOptions(CallOptions, total=False):
    """Options of :func:`attnscale.attention_gradients`."""

    scale: Scale


class RowOptions(CurveOptions, total=False):
    """Options of functions whose results are of rows."""

    scale: Scale


class AttentionOptions(RowOptions, total=False):
    """Options of functions that have an output."""

    out: NDArray[Any] | None
