# SPDX-License-Identifier: BSD-3-Clause
"""Names for the types of options; imported by type checkers only."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

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


class CallOptions(TypedDict, total=False):
    """Options that functions on the exact kernel hand on to it: those of attention without scale and out."""

    is_causal: bool
    causal: Causal | None
    attn_mask: ArrayLike | None
    window: Window | None
    key_lengths: KeyLengths | None
    document_ids: ArrayLike | None
    distance_scale: DistanceTable | None
    distance_bias: DistanceTable | None
    enable_gqa: bool
    softcap: float | None
    normalizer: str | Normalizer
    qk_norm: QKNorm | None
    layout: Layout
    num_threads: int | None
