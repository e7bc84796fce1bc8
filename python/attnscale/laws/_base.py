# SPDX-License-Identifier: BSD-3-Clause
"""What a scale law is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["MEANINGS_OF_N", "Law", "NMeans", "head_parameter"]

NMeans = Literal["visible keys", "row size", "query position + 1", "not used"]

#: The meanings that a law may give its n, and how attention() finds it for each query.
MEANINGS_OF_N: dict[NMeans, str] = {
    "visible keys": "keys that the query may see, after every mask",
    "row size": "keys up to the last one that causal, window and key_lengths let the query see "
    "(causal: i + 1); a mask or the window's left side does not shorten it",
    "query position + 1": "1-based index of the key that the query is aligned with, whatever is masked",
    "not used": "the scale is the same at every length",
}


class Law(ABC):
    """A named rule that gives the scale of q . k from n, head_dim and its own parameters.

    Laws are frozen dataclasses: equal parameters make equal laws, and the repr evaluates.

    Attributes
    ----------
    name : str
        Under which :func:`get` knows it.
    n_means : str
        What n counts, one of :data:`MEANINGS_OF_N`. Part of the law's identity: laws differ in
        nothing but n as often as in the formula.
    formula, source, used_by, remark : str
        Parts of :meth:`explain`.
    """

    name: ClassVar[str]
    n_means: ClassVar[NMeans]
    formula: ClassVar[str]
    source: ClassVar[str]
    used_by: ClassVar[str]
    remark: ClassVar[str] = ""

    @abstractmethod
    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        """The multiple of 1/sqrt(head_dim) at a checked n."""

    def multiplier(
        self, n: ArrayLike, head_dim: int, *, position: ArrayLike | None = None
    ) -> float | NDArray[np.float64]:
        """Beta: the multiple of the standard scale 1/sqrt(head_dim).

        Parameters
        ----------
        n : array_like
            What the law counts (see ``n_means``), at least 1.
        head_dim : int
            At least 1.
        position : array_like, optional
            0-based positions of the queries. A law whose n is "query position + 1" takes n from
            here if it is given; other laws ignore it.

        Returns
        -------
        float or ndarray of float64
            A float for a scalar n, else of the shape of n. With one parameter a head, of shape
            (heads, 1) broadcast against n.
        """
        return _plain(self._beta(self._checked_n(n, head_dim, position), head_dim))

    def scale(
        self, n: ArrayLike, head_dim: int, *, position: ArrayLike | None = None
    ) -> float | NDArray[np.float64]:
        """The whole multiplier of q . k; arguments and shapes as for :meth:`multiplier`."""
        return _plain(self._scale(self._checked_n(n, head_dim, position), head_dim))

    def explain(self) -> str:
        """Formula, meaning of n, source and users, as text."""
        lines = [
            f"{self.name}: {self!r}",
            f"  scale    {self.formula}",
            f"  n        {self.n_means}: {MEANINGS_OF_N[self.n_means]}",
            f"  source   {self.source}",
            f"  used by  {self.used_by}",
        ]
        return "\n".join([*lines, f"  note     {self.remark}"] if self.remark else lines)

    def _scale(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return self._beta(n, head_dim) / math.sqrt(head_dim)

    def _checked_n(self, n: ArrayLike, head_dim: int, position: ArrayLike | None) -> NDArray[np.float64]:
        if head_dim < 1:
            raise ValueError(f"head_dim must be at least 1, got {head_dim}")
        if position is not None and self.n_means == "query position + 1":
            n = np.asarray(position) + 1
        counts = np.asarray(n, np.float64)
        if not (counts >= 1).all():
            raise ValueError(f"n must be at least 1, got {counts.min()}")
        return counts


def head_parameter(law: Law, name: str) -> Any:
    """A parameter as a float, or with one value a head as an array (heads, 1)."""
    value = getattr(law, name)
    return np.array(value)[:, None] if isinstance(value, tuple) else value


def _plain(x: Any) -> float | NDArray[np.float64]:
    return float(x) if np.ndim(x) == 0 else np.asarray(x, np.float64)
