# SPDX-License-Identifier: BSD-3-Clause
"""The types of single options."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal, TypeAlias

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from ..laws import Law

    Scale: TypeAlias = float | ArrayLike | Law | str | None
    Causal: TypeAlias = Literal["top_left", "bottom_right"] | int
    QKNorm: TypeAlias = Literal["l2", "rms"]
    Layout: TypeAlias = Literal["bhsd", "bshd"] | str  # or a pattern of names: "b n h d"
    Dims: TypeAlias = Mapping[str, str | Sequence[str]]
    Window: TypeAlias = tuple[int | None, int | None]
    KeyLengths: TypeAlias = ArrayLike
    DistanceTable: TypeAlias = ArrayLike | Callable[[NDArray[np.int64]], NDArray[Any]]
