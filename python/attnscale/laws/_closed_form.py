# SPDX-License-Identifier: BSD-3-Clause
"""Laws that the core evaluates."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from .. import _core
from ._base import Law

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ClosedForm"]


class ClosedForm(Law):
    """A law of cpp/include/attnscale/scale_law.hpp: of the same name, with parameters of the same names."""

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return _core.law_values(self.name, self._numbers(), n, head_dim, False)

    def _scale(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return _core.law_values(self.name, self._numbers(), n, head_dim, True)

    def _numbers(self) -> tuple[Any, ...]:
        """What the core asks for: a number, None or a tuple of one number a head for each parameter."""
        return tuple([getattr(self, name) for name in _parameters(self.name)])


@cache
def _parameters(law: str) -> list[str]:
    return _core.law_parameters(law)
