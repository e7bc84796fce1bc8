# SPDX-License-Identifier: BSD-3-Clause
"""Names for the types of options; imported by type checkers only."""

from typing import Literal, TypeAlias

from numpy.typing import ArrayLike

from .laws import Law

Scale: TypeAlias = float | ArrayLike | Law | str | None
Causal: TypeAlias = Literal["top_left", "bottom_right"]
Layout: TypeAlias = Literal["bhsd", "bshd"]
Window: TypeAlias = tuple[int | None, int | None]
KeyLengths: TypeAlias = ArrayLike
