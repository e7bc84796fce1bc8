# SPDX-License-Identifier: BSD-3-Clause
"""What would refute a claim, as data: differences that a claim predicts, each with a sign and a margin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from .._checks import choose


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of measurements of one seed, which a claim predicts to be above a margin.

    Attributes
    ----------
    name : str
        What is compared with what, in words.
    variable : str
        The variable of the result that is compared.
    terms : tuple of (float, dict)
        A weight, and the labels that choose one number of each seed.
    least : float
        The margin, in the variable's unit. Below 0 it is the loss that the claim allows.
    """

    name: str
    variable: str
    terms: tuple[tuple[float, Mapping[str, Any]], ...]
    least: float = 0.0

    def less(self, other: Contrast, name: str) -> Contrast:
        """The contrast of this sum less another one of the same variable, with a margin of 0."""
        return Contrast(name, self.variable, (*self.terms, *((-weight, at) for weight, at in other.terms)))


def difference(
    name: str,
    variable: str,
    between: Mapping[str, tuple[Any, Any]],
    place: Mapping[str, Any],
    *,
    least: float = 0.0,
) -> Contrast:
    """The first of two places of a table less the second.

    Parameters
    ----------
    name, variable : str
        As of :class:`Contrast`.
    between : dict of str to (label, label)
        The axes in which the places differ, with the labels of the first and of the second.
    place : dict
        The labels that they share.
    least : float, default 0
        The margin, as of :class:`Contrast`.

    Returns
    -------
    Contrast

    Examples
    --------
    >>> difference("b less a", "loss", {"model": ("b", "a")}, {"n": 8}).terms
    ((1.0, {'model': 'b', 'n': 8}), (-1.0, {'model': 'a', 'n': 8}))
    """
    one, other = ({axis: pair[i] for axis, pair in between.items()} for i in (0, 1))
    return Contrast(name, variable, ((1.0, {**one, **place}), (-1.0, {**other, **place})), least)


@dataclass(frozen=True)
class Claim:
    """A sentence, and the contrasts that it predicts.

    Attributes
    ----------
    text : str
    contrasts : tuple of Contrast
    needs : {"all", "any"}
        Whether the claim says that all contrasts are above their margins, or that one or more are.
    """

    text: str
    contrasts: tuple[Contrast, ...]
    needs: str = "all"

    def __post_init__(self) -> None:
        choose("needs", self.needs, ("all", "any"))

    @property
    def sentence(self) -> str:
        """What would refute the claim, in words."""
        margins = ", ".join(f"{each.name} ({each.variable}, {each.least:g})" for each in self.contrasts)
        if len(self.contrasts) == 1:
            (only,) = self.contrasts
            return f"the interval of {only.name} ({only.variable}) lies below {only.least:g} (“{self.text}”)"
        which = "one of these intervals lies" if self.needs == "all" else "all of these intervals lie"
        return f"{which} below the margin: {margins} (“{self.text}”)"


@dataclass(frozen=True)
class Criterion:
    """The claims of one experiment, and the rate of wrong verdicts that is accepted over all of them.

    Attributes
    ----------
    claims : tuple of Claim
    rate : float
        Largest probability that any interval of the experiment misses its true value.
    """

    claims: tuple[Claim, ...]
    rate: float = 0.05

    @property
    def contrasts(self) -> int:
        """The number of contrasts of all claims, over which the rate is shared."""
        return sum(len(each.contrasts) for each in self.claims)

    @property
    def sentence(self) -> str:
        """What would refute each claim, in words."""
        return "; or ".join(each.sentence for each in self.claims)

    def to_dict(self) -> dict[str, Any]:
        """The criterion in types that JSON has."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The criterion that :meth:`to_dict` gave, also when JSON made lists of its tuples."""
        claims = tuple(
            Claim(each["text"], tuple(map(_contrast, each["contrasts"])), each["needs"])
            for each in stored["claims"]
        )
        return cls(claims, stored["rate"])


def _contrast(stored: Mapping[str, Any]) -> Contrast:
    terms = tuple((float(weight), dict(labels)) for weight, labels in stored["terms"])
    return Contrast(stored["name"], stored["variable"], terms, stored["least"])
