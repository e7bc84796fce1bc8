# SPDX-License-Identifier: BSD-3-Clause
"""Base class of all normalizers, their form in the core, and normalizers by name."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, cast

from .._base.checks import choose, shown
from .._base.rows import CallRows
from .._base.spelling import Spelled, check_parameters, parse_spelling, spell
from .._base.statistics import NAMES


class Rule(NamedTuple):
    """The core's form of a normalizer; numbers of a row may be arrays."""

    kind: str  # a name of the core's enum normalizer
    alpha: float = 1.5  # entmax
    k: int = 1  # top_k
    eps: float = 0.0  # added to the sum that divides the weights
    sink: Any = None  # softmax: score of another outcome
    bias: Any = None  # sigmoid: added to the score
    factor: Any = None  # multiplies the weights; None: their sum divides them


class Normalizer(Spelled):
    """Base of all normalizers; not one itself.

    Attributes
    ----------
    name : str
        Name for :func:`attnscale.normalizers.get`.
    statistics : tuple of str
        The fields of :class:`attnscale.AttentionStatistics` that its rows have.
    """

    name: ClassVar[str]
    statistics: ClassVar[tuple[str, ...]] = NAMES

    @property
    def _keeps_weights(self) -> Literal["always", "while small", "never"]:
        """Condition under which a positive factor on all scores of a row leaves its weights unchanged.

        "while small": if the scores s are so small that exp(s) - 1 is s in float64.
        """
        return "never"

    @property
    def spelling(self) -> str:
        """Text that :func:`attnscale.normalizers.get` reads as this normalizer.

        Examples
        --------
        >>> import attnscale as at
        >>> at.normalizers.TopK(8).spelling
        'top_k(k=8)'
        """
        return self._spelled or self._spell()

    def _spell(self) -> str:
        usual = {each.name: each.default for each in fields(cast(Any, self))}
        given = {name: getattr(self, name) for name in usual}
        changed = {name for name, value in usual.items() if value is MISSING or given[name] != value}
        return spell(self.name, {name: given[name] for name in given if name in changed})

    def _rule(self, call: CallRows) -> Rule:
        """The core's form for this call; a normalizer that does not fit the call is refused."""
        raise TypeError(f"normalizer must be one of attnscale.normalizers, got {shown(self)}")


_NormalizerType = TypeVar("_NormalizerType", bound=type[Normalizer])

_classes: dict[str, type[Normalizer]] = {}

#: Other names of a name with a parameter.
_ALIASES = {"softmax_1": "softmax_n(n=1)", "entmax15": "entmax(alpha=1.5)"}


def built_in(normalizer: _NormalizerType) -> _NormalizerType:
    """Register a class of normalizers of this package under its name."""
    _classes[normalizer.name] = normalizer
    return normalizer


def names() -> tuple[str, ...]:
    """The names that :func:`get` and ``normalizer=`` take, alone or with parameters.

    ``"sink"`` and ``"top_k"`` need parameters: ``"sink(logits=[0, 1.5])"``, ``"top_k(k=8)"``. ``"softmax_1"``
    stands for ``"softmax_n(n=1)"`` and ``"entmax15"`` for ``"entmax(alpha=1.5)"``.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> import attnscale as at
    >>> at.normalizers.names()[:5]
    ('softmax', 'softmax_n', 'sink', 'sigmoid', 'relu')
    """
    return tuple(_classes)


def get(normalizer: Any, **parameters: Any) -> Normalizer:
    """The normalizer of a name; a normalizer is returned unchanged.

    Parameters
    ----------
    normalizer : str or Normalizer
        One of :func:`names`, or a name with parameters: ``"entmax(alpha=1.2)"``.
    **parameters
        Parameters of that normalizer, if ``normalizer`` is a name without them.

    Returns
    -------
    Normalizer

    Raises
    ------
    TypeError
        If ``normalizer`` is neither, has no such parameter, or lacks a required one.
    ValueError
        If there is no such name, or a parameter is out of range.

    Examples
    --------
    >>> import attnscale as at
    >>> at.normalizers.get("top_k(k=8)")
    TopK(k=8)
    >>> at.normalizers.get("entmax", alpha=1.2)
    Entmax(alpha=1.2)
    """
    if isinstance(normalizer, Normalizer):
        if parameters:
            raise TypeError(
                f"parameters go with a normalizer's name, got {shown(normalizer)} and {sorted(parameters)}"
            )
        return normalizer
    if not isinstance(normalizer, str):
        raise TypeError(f"normalizer must be a name or one of attnscale.normalizers, got {shown(normalizer)}")
    name, own = _read(normalizer)
    if own and parameters:
        raise TypeError(
            f"parameters stand in the name or beside it, got {shown(normalizer)} and {sorted(parameters)}"
        )
    given = own or parameters
    found = _classes[choose("normalizer", name, names(), _ALIASES)]
    known = fields(cast(Any, found))
    required = [each.name for each in known if each.default is MISSING]
    check_parameters(
        f"normalizer {name!r}", f"'{name}({{}}=...)'", given, [each.name for each in known], required
    )
    return found(**given)


def _read(text: str) -> tuple[str, dict[str, Any]]:
    text = _ALIASES.get(text, text)
    return parse_spelling(text, "a normalizer") if "(" in text else (text, {})


def spelling_of(normalizer: Normalizer) -> str:
    """The first name by which :func:`get` makes an equal normalizer; its repr if it needs parameters."""
    for spelling in (*_ALIASES, *_classes):
        try:
            if get(spelling) == normalizer:
                return spelling
        except TypeError:  # the normalizer of this name needs a parameter
            continue
    return repr(normalizer)
