# SPDX-License-Identifier: BSD-3-Clause
"""One layer of a plan: the factors of its score multiplier, and further facts."""

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
    """A question without an answer in the config; the message is the reason."""


@dataclass(frozen=True)
class Term:
    """One factor of the score multiplier.

    Attributes
    ----------
    law : Law
        The rule with its parameters. For the base of a layer it gives the whole scale, for other terms a
        factor on top.
    channels : {"all", "rotated", "unrotated"}
        Channels of q and k that the factor multiplies.
    key : str
        The key of the config for the factor, with its value.
    rule : str
        Where the rule is written down.
    behind_cap : bool
        Whether the factor multiplies the output of the layer's soft-cap instead of its input.
    """

    law: Law
    channels: Literal["all", "rotated", "unrotated"]
    key: str
    rule: str
    behind_cap: bool = False

    @property
    def n_means(self) -> str:
        """Meaning of the law's n; "not used" for a constant."""
        return self.law.n_means

    @property
    def depends_on_n(self) -> bool:
        return self.law.meaning.is_used

    def acts_on(self, channels: Channels) -> bool:
        return self.channels in ("all", channels)


def spelling(term: Term) -> str:
    """The law as on the command line, without its channels and usual values."""
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
        Name in transformers: "full_attention", "sliding_attention", "linear_attention", ...
    head_dim : int
        Channels of q and k.
    rotated : int
        Channels rotated by rotary positions; 0 if there are none.
    base : Term
        The scale before the other terms.
    terms : tuple of Term
        Factors on top of it.
    softcap : float or None
        c of c * tanh(score / c), after all factors except those ``behind_cap``.
    softcap_key : str
        The key of the config for the soft-cap.
    window : int or None
        Largest number of keys that a query sees; None if it sees all earlier ones.
    window_key : str
        The key of the config for the window, and the position of the keys around the query.
    sink : bool
        Whether the softmax has a learned extra logit without a value.
    qk_norm : {"none", "before rotation", "after rotation"}
        A norm of q and k. After the rotation, the norm cancels earlier factors.
    counts_padding : bool
        Whether the position in laws is the index in a row, including earlier padding and packed texts; only
        defects of frameworks have it.
    notes : tuple of str
        Further remarks on the layer.
    refusal : str or None
        Reason why the config does not give the scale, or None.
    rotation : Rotation or None
        Rotation of each pair of channels by rotary positions; None without them.
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
        """One line with the spellings of the factors; the plan's explain() adds their origin."""
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
        """The kinds of channels in the layer: "rotated", "unrotated" or both."""
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
        """The factors of the capped score; empty without a soft-cap."""
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
