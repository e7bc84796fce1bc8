# SPDX-License-Identifier: BSD-3-Clause
"""The fewest known slips that explain an engine's answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from ._draft import Draft, Predicted, computed
from ._slips import SLIPS, Slip
from ._turn import Turn, difference

#: A slip is named for some cases alone if it explains this share of the cases that it would change.
_SHARE = 0.5
#: Right answers by which pairs of slips are left out early.
_PROBES = 12
#: Most answers that a slip would change and nothing explains, for each that it explains.
_MISFITS = 0.4


class Ledger:
    """Predictions of every slip for an engine's answers, each computed when it is asked."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        #: Wrong answers first, small ones before large ones.
        self.turns = sorted(turns, key=lambda turn: (turn.is_right, turn.found.size * turn.case.key[-2]))
        self._single: dict[tuple[str, str], bool | None] = {}

    @property
    def wrong(self) -> list[Turn]:
        """Wrong answers."""
        return [turn for turn in self.turns if not turn.is_right]

    def fits(self, slips: Sequence[Slip], turn: Turn) -> bool | None:
        """Whether the slips together give the answer; None where none of them can show."""
        single = [self._fits_alone(slip, turn) for slip in slips]
        active = [slip for slip, fit in zip(slips, single, strict=True) if fit is not None]
        if not active:
            return None
        if len(active) == 1:
            return next(fit for fit in single if fit is not None)
        return _fits_all(active, turn)

    def shows(self, slips: Sequence[Slip], turn: Turn) -> bool:
        """Whether each of the slips would change the answer."""
        return all(self._fits_alone(slip, turn) is not None for slip in slips)

    def _fits_alone(self, slip: Slip, turn: Turn) -> bool | None:
        at = (slip.says, turn.name)
        if at not in self._single:
            self._single[at] = self._alone(slip, turn)
        return self._single[at]

    def _alone(self, slip: Slip, turn: Turn) -> bool | None:
        draft = slip.apply(turn.draft)
        predicted = None if draft is None else prediction(draft)
        if predicted is None:
            return None
        # A prediction that is the truth tells nothing.
        hidden = turn.truth._replace(empty=turn.truth.empty & predicted.empty)
        alike = difference(predicted.output, hidden, turn.mass) <= turn.allowed * slip.loose
        return None if alike else turn.fits(predicted, slip.loose)

    def explain_all(self, slips: Sequence[Slip]) -> bool:
        """Whether the slips give every answer of the engine, right ones included."""
        fits = ((turn, self.fits(slips, turn)) for turn in self.turns)
        return all(turn.is_right if fit is None else fit for turn, fit in fits)


def prediction(draft: Draft) -> Predicted | None:
    """The output of a changed draft; None where it cannot be computed, as beyond the end of a table."""
    try:
        return computed(draft)
    except (IndexError, ValueError):
        return None


def drafted(slips: Sequence[Slip], turn: Turn) -> Draft:
    """The call's draft with those of the slips that can show."""
    draft = turn.draft
    for slip in slips:
        draft = slip.apply(draft) or draft
    return draft


def explain(turns: Sequence[Turn]) -> tuple[tuple[Slip, ...], dict[str, tuple[Slip, ...]]]:
    """The slips that explain all answers, or else those of each answer by the name of its case.

    Answers to calls with a NaN or an infinity follow the others.
    """
    ledger = Ledger([turn for turn in turns if turn.is_finite])
    if not ledger.wrong:
        return (), {}
    for slips in _small_sets(ledger):
        if ledger.explain_all(slips):
            return slips, {turn.name: slips for turn in ledger.wrong}
    found = _by_answer(ledger)
    chosen = dict.fromkeys(found.values())
    for turn in turns:
        if not turn.is_finite and not turn.is_right:
            fitting = next((slips for slips in chosen if _fits_all(slips, turn)), None)
            if fitting is not None:
                found[turn.name] = fitting
    return (), found


def _fits_all(slips: Sequence[Slip], turn: Turn) -> bool:
    predicted = prediction(drafted(slips, turn))
    return predicted is not None and turn.fits(predicted, max(slip.loose for slip in slips))


def _small_sets(ledger: Ledger) -> Iterator[tuple[Slip, ...]]:
    """Single slips, then pairs, that explain the first wrong answer."""
    yield from ((slip,) for slip in SLIPS)
    first, right = ledger.wrong[0], [turn for turn in ledger.turns if turn.is_right]
    # A right answer that refutes one slip, and that the other does not touch, refutes the pair.
    some = right[:: max(1, len(right) // _PROBES)]
    fits = {slip.says: [ledger.fits((slip,), turn) for turn in some] for slip in SLIPS}
    for one, other in combinations(SLIPS, 2):
        if not any({a, b} == {None, False} for a, b in zip(fits[one.says], fits[other.says], strict=True)):
            yield from [(one, other)] if ledger.fits((one, other), first) else []


def _by_answer(ledger: Ledger) -> dict[str, tuple[Slip, ...]]:
    """Slips of each wrong answer; those that explain most are chosen first."""
    found: dict[str, tuple[Slip, ...]] = {}
    left = ledger.wrong
    usable = [slip for slip in SLIPS if _share(ledger, (slip,)) >= _SHARE]
    while left and usable:
        best = max(usable, key=lambda slip: sum(ledger.fits((slip,), turn) is True for turn in left))
        explained = [turn for turn in left if ledger.fits((best,), turn)]
        if not explained:
            break
        found |= {turn.name: (best,) for turn in explained}
        left = [turn for turn in left if turn not in explained]
    chosen = [slip for slip in SLIPS if any(slip in each for each in found.values())]
    for turn in left:
        pairs = ((one, other) for one in chosen for other in SLIPS if one is not other)
        fitting = (pair for pair in pairs if ledger.shows(pair, turn) and ledger.fits(pair, turn))
        pair = next((pair for pair in fitting if _share(ledger, pair) >= _SHARE), None)
        if pair is not None:
            found[turn.name] = pair
    return _without_misfits(ledger, found)


def _without_misfits(ledger: Ledger, found: dict[str, tuple[Slip, ...]]) -> dict[str, tuple[Slip, ...]]:
    """Names but those of slips that would show in too many answers which nothing explains."""
    left = [turn for turn in ledger.wrong if turn.name not in found]
    for slip in {slip for slips in found.values() for slip in slips}:
        misfits = sum(ledger.shows((slip,), turn) for turn in left)
        if misfits > _MISFITS * sum(slip in slips for slips in found.values()):
            found = {name: slips for name, slips in found.items() if slip not in slips}
    return found


def _share(ledger: Ledger, slips: Sequence[Slip]) -> float:
    """Share of the answers explained, of those in which each of the slips shows."""
    changed = [ledger.fits(slips, turn) is True for turn in ledger.turns if ledger.shows(slips, turn)]
    return sum(changed) / len(changed) if changed else 0.0
