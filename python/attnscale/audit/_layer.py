# SPDX-License-Identifier: BSD-3-Clause
"""One layer of a plan: the factors of its score multiplier, and what else is known of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from .._base.spelling import as_number, spell
from ..laws import Law
from ._angles import Rotation

if TYPE_CHECKING:
    from numpy.typing import NDArray

Channels = Literal["rotated", "unrotated"]


class PlanError(ValueError):
    """A question that the config cannot answer; the text is the reason."""


@dataclass(frozen=True)
class Term:
    """One factor of the score multiplier.

    Attributes
    ----------
    law : Law
        The rule with its parameters. For the base of a layer it gives the whole scale, for the other
        terms a factor on top of it.
    channels : {"all", "rotated", "unrotated"}
        Channels of q and k that the factor multiplies.
    key : str
        The key of the config that the factor comes from, with the value.
    rule : str
        Where the rule is written down.
    behind_cap : bool
        Whether the factor multiplies what the layer's soft-cap gives, and not what goes into the soft-cap.
    """

    law: Law
    channels: Literal["all", "rotated", "unrotated"]
    key: str
    rule: str
    behind_cap: bool = False

    @property
    def n_means(self) -> str:
        """What the law's n counts; "not used" for a constant."""
        return self.law.n_means

    @property
    def depends_on_n(self) -> bool:
        """Whether the factor differs between lengths."""
        return self.law.meaning.is_used

    def acts_on(self, channels: Channels) -> bool:
        """Whether the factor multiplies these channels."""
        return self.channels in ("all", channels)


def spelling(term: Term) -> str:
    """The law as the command line writes it, without its channels and without values that are usual."""
    given = term.law.to_dict()["parameters"]
    hidden = {"channels", *(["slope"] if given.get("slope") == 0.1 else [])}
    parameters = {name: value for name, value in given.items() if value is not None and name not in hidden}
    return spell(term.law.name, parameters)


@dataclass(frozen=True)
class LayerPlan:
    """One layer of a plan.

    Attributes
    ----------
    index : int
        0-based.
    kind : str
        As transformers names it: "full_attention", "sliding_attention", "linear_attention", ...
    head_dim : int
        Channels of q and k.
    rotated : int
        Channels that rotary positions turn; 0 if there are none.
    base : Term
        The scale before the other terms.
    terms : tuple of Term
        Factors on top of it.
    softcap : float or None
        c of c * tanh(score / c), after all factors but those that are ``behind_cap``.
    softcap_key : str
        The key of the config that the soft-cap comes from.
    window : int or None
        The most keys that a query sees; None if it sees all that come before it.
    window_key : str
        The key of the config that the window comes from, and how the keys lie around the query.
    sink : bool
        Whether the softmax has a learned extra logit without a value.
    qk_norm : {"none", "before rotation", "after rotation"}
        A norm of q and k. After the rotation, the norm undoes what was multiplied before.
    counts_padding : bool
        Whether the position in laws is the index in a row, padding and packed texts before it included,
        as only the defects of frameworks have it.
    notes : tuple of str
        What else is to be known about the layer.
    refusal : str or None
        Why the config does not say the scale, if it does not.
    rotation : Rotation or None
        How far rotary positions turn each pair of channels; None without rotary positions.
    """

    index: int
    kind: str
    head_dim: int
    rotated: int
    base: Term
    terms: tuple[Term, ...] = ()
    softcap: float | None = None
    softcap_key: str = ""
    window: int | None = None
    window_key: str = ""
    sink: bool = False
    qk_norm: Literal["none", "before rotation", "after rotation"] = "none"
    counts_padding: bool = False
    notes: tuple[str, ...] = ()
    refusal: str | None = None
    rotation: Rotation | None = None

    def __repr__(self) -> str:
        """One line with the factors by their spelling; the plan's explain() says where each comes from."""
        start = f"LayerPlan(layer {self.index}, {self.kind}"
        if self.refusal is not None:
            return f"{start}: {self.refusal})"
        base, law = spelling(self.base), self.base.law
        if not self.base.depends_on_n:
            number = f"{np.ravel(law.scale(1, self.head_dim))[0]:.7g}"
            base = number if law.name == "constant" else f"{number} ({base})"
        turned = {0: "none", self.head_dim: "all"}.get(self.rotated, str(self.rotated))
        on = ("" if term.channels == "all" else f" on {term.channels}" for term in self.terms)
        factors = [base, *(f"{spelling(term)}{where}" for term, where in zip(self.terms, on, strict=True))]
        parts = [f"scale {' x '.join(factors)}", f"rotary on {turned} of {self.head_dim} channels"]
        parts += [] if self.softcap is None else [f"soft-cap {as_number(self.softcap)}"]
        parts += [] if self.window is None else [f"window of {self.window} keys"]
        parts += ["sink"] if self.sink else []
        parts += [] if self.qk_norm == "none" else [f"q and k normed {self.qk_norm}"]
        return f"{start}: {', '.join(parts)})"

    @property
    def channel_kinds(self) -> tuple[Channels, ...]:
        """Which of "rotated" and "unrotated" the layer has."""
        kinds: list[Channels] = []
        if self.rotated:
            kinds.append("rotated")
        if self.rotated < self.head_dim:
            kinds.append("unrotated")
        return tuple(kinds)

    @property
    def depends_on_n(self) -> bool:
        """Whether a factor differs between lengths."""
        return any(term.depends_on_n for term in (self.base, *self.terms))

    @property
    def terms_behind_cap(self) -> tuple[Term, ...]:
        """The factors that multiply the capped score; without a soft-cap there is no such place."""
        return () if self.softcap is None else tuple(term for term in self.terms if term.behind_cap)

    def multipliers(self, positions: NDArray[np.int64], channels: Channels) -> NDArray[np.float64]:
        """The multiplier of q . k at each position, on one kind of channels, before the soft-cap."""
        start = self.base.law.scale(positions + 1.0, self.head_dim, position=positions)
        before = [term for term in self.terms if self.softcap is None or not term.behind_cap]
        return self._times(np.asarray(start), filter(lambda term: term.acts_on(channels), before), positions)

    def capped_multipliers(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The multiplier of the capped score at each position; 1 for nearly all models."""
        return self._times(np.ones(()), self.terms_behind_cap, positions)

    def _times(
        self, start: NDArray[np.float64], terms: Iterable[Term], positions: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        n = positions + 1.0  # for laws that count keys
        for term in terms:
            start = start * term.law.multiplier(n, self.head_dim, position=positions)
        return np.broadcast_to(start, positions.shape)
