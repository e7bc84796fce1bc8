# SPDX-License-Identifier: BSD-3-Clause
"""Normalizers by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._checks import choose
from ._base import Normalizer
from .pointwise import ReLU, Sigmoid, Softpick, SquaredReLU
from .softmax import Softmax, SoftmaxN
from .sparse import Entmax, Sparsemax

__all__ = ["get", "names"]

_BY_NAME: dict[str, Callable[[], Normalizer]] = {
    "softmax": Softmax,
    "softmax_1": SoftmaxN,
    "sigmoid": Sigmoid,
    "relu": ReLU,
    "squared_relu": SquaredReLU,
    "softpick": Softpick,
    "sparsemax": Sparsemax,
    "entmax15": lambda: Entmax(1.5),
}


def names() -> tuple[str, ...]:
    """The names that ``normalizer=`` takes.

    :class:`Sink` and :class:`TopK` have none: what they need has no usual value.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> import attnscale as at
    >>> at.normalizers.names()
    ('softmax', 'softmax_1', 'sigmoid', 'relu', 'squared_relu', 'softpick', 'sparsemax', 'entmax15')
    """
    return tuple(_BY_NAME)


def get(normalizer: Any) -> Normalizer:
    """The normalizer of a name; a normalizer comes back as it is.

    Parameters
    ----------
    normalizer : str or Normalizer

    Returns
    -------
    Normalizer

    Raises
    ------
    TypeError
        If it is neither.
    ValueError
        If there is no such name.

    Examples
    --------
    >>> import attnscale as at
    >>> at.normalizers.get("entmax15")
    Entmax(alpha=1.5)
    """
    if isinstance(normalizer, Normalizer):
        return normalizer
    if not isinstance(normalizer, str):
        raise TypeError(f"normalizer must be a name or one of attnscale.normalizers, got {normalizer!r}")
    return _BY_NAME[choose("normalizer", normalizer, names())]()
