# SPDX-License-Identifier: BSD-3-Clause
"""A law times a number, as a fit gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._base import Channels, Law, head_parameter
from ._meaning import NMeans
from ._parameters import OneOrPerHead, one_or_per_head

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Scaled"]


@dataclass(frozen=True)
class Scaled(Law):
    """A number, or one a head, times a law; ``2 * law`` and the spelling ``"2 * NAME"`` make it.

    Parameters
    ----------
    law : Law
        Any that gives the keys of a row one scale.
    amplitude : float or sequence of float
        What multiplies it: one number, or one a head.

    Examples
    --------
    >>> from attnscale.laws import LogN, get
    >>> law = 1.5 * LogN(base=64)
    >>> law.name, law == get("1.5 * log_n(base=64)")
    ('1.5 * log_n(base=64)', True)
    >>> law.multiplier([64, 4096], head_dim=32)
    array([1.5, 3. ])
    """

    law: Law
    amplitude: OneOrPerHead | Sequence[float]

    def __post_init__(self) -> None:
        one_or_per_head(self, "amplitude")
        if self.law.meaning.is_distance:
            raise ValueError(f"law {self.law.name!r} adds to the score as well: a number times it is no law")

    @property
    def name(self) -> str:  # type: ignore[override]  # of the instance here, of the class for others
        """The spelling of the whole."""
        numbers = list(self.amplitude) if isinstance(self.amplitude, tuple) else self.amplitude
        return f"{numbers!r} * {self.law.spelling}"

    @property
    def spelling(self) -> str:
        """The same as the name."""
        return self.name

    @property
    def n_means(self) -> NMeans:  # type: ignore[override]
        """That of the law."""
        return self.law.n_means

    @property
    def channels(self) -> Channels:  # type: ignore[override]
        """Those of the law."""
        return self.law.channels

    @property
    def formula(self) -> str:  # type: ignore[override]
        """The amplitude and the formula of the law."""
        return f"amplitude * ({self.law.formula})"

    @property
    def source(self) -> str:  # type: ignore[override]
        """That of the law."""
        return f"{self.law.source}; the amplitude: whoever measured it"

    used_by = "the heads that it was fitted to"

    def to_dict(self) -> dict[str, Any]:
        """The spelling as a name; the way back is :func:`from_dict`."""
        return {"name": self.name, "parameters": {}}

    def _beta(self, n: NDArray[Any], head_dim: int) -> Any:
        return head_parameter(self, "amplitude") * self.law._beta(n, head_dim)

    def _scale(self, n: NDArray[Any], head_dim: int) -> Any:
        return head_parameter(self, "amplitude") * self.law._scale(n, head_dim)
