# SPDX-License-Identifier: BSD-3-Clause
"""Laws that the core evaluates."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from .._core import law_parameters, law_values
from ._base import Law

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ClosedForm(Law):
    """A law of cpp/include/attnscale/scale_law.hpp, with the same name and the same names of parameters."""

    @property
    def is_one_law(self) -> bool:
        """Whether no parameter is one number a head, so that the core reads the law's spelling."""
        return not any(isinstance(each, tuple) for each in self._numbers())

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return law_values(self.name, self._numbers(), n, head_dim, False)

    def _scale(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return law_values(self.name, self._numbers(), n, head_dim, True)

    def _numbers(self) -> tuple[Any, ...]:
        """The parameters as the core takes them: a number, None or a tuple of one number a head for each."""
        return tuple([getattr(self, name) for name in _parameters(self.name)])


@cache
def _parameters(law: str) -> list[str]:
    return law_parameters(law)
