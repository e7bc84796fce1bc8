# SPDX-License-Identifier: BSD-3-Clause
"""Names for the types of options; imported by type checkers only."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .laws import Law

Scale: TypeAlias = float | ArrayLike | Law | str | None
Causal: TypeAlias = Literal["top_left", "bottom_right"]
Layout: TypeAlias = Literal["bhsd", "bshd"]
Window: TypeAlias = tuple[int | None, int | None]
KeyLengths: TypeAlias = ArrayLike
DistanceTable: TypeAlias = ArrayLike | Callable[[NDArray[np.int64]], NDArray[Any]]
