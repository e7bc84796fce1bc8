# SPDX-License-Identifier: BSD-3-Clause
"""Types of options, by the functions that take them: for type checkers and the record in `options.py`."""

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
    """Heads, axes and threads: options of every function of query, key and value."""

    enable_gqa: bool
    layout: Layout
    num_threads: int | None


class VariantOptions(FormOptions, total=False):
    """Options of the variants of attention."""

    is_causal: bool
    causal: Causal | None


class SharedOptions(VariantOptions, total=False):
    """Masks and layout: options of every exact function."""

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
    """Weights from scores, besides their scale."""

    softcap: float | None
    normalizer: str | Normalizer
    qk_norm: QKNorm | None


class CallOptions(WeightOptions, total=False):
    """Options that functions pass on to the exact kernel: those of attention except scale and out."""

    distance_scale: DistanceTable | None
    distance_bias: DistanceTable | None


class StateOptions(WeightOptions, total=False):
    """Options of :func:`attnscale.attention_state`."""

    scale: Scale
    dims: Dims | None


class DivergenceOptions(SharedOptions, total=False):
    """Options of :func:`attnscale.attention_divergence`, for both attentions or the first."""

    scale: Scale
    softcap: float | None


class CurveOptions(CallOptions, total=False):
    """Options of :func:`attnscale.entropy_curve`."""

    dims: Dims | None


class GradientOptions(CallOptions, total=False):
    """Options of :func:`attnscale.attention_gradients`."""

    scale: Scale


class RowOptions(CurveOptions, total=False):
    """Options of functions with a result for each row."""

    scale: Scale


class AttentionOptions(RowOptions, total=False):
    """Options of functions with an output."""

    out: NDArray[Any] | None
