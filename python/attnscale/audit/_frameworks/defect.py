# SPDX-License-Identifier: BSD-3-Clause
"""One rule of a framework that is on record not to be the model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .._plan.layer import LayerPlan
from .._plan.plan import ScalePlan

#: (plan, layer) to the layer as the framework computes it; the same layer if it is not concerned.
Change: TypeAlias = Callable[[ScalePlan, LayerPlan], LayerPlan]


@dataclass(frozen=True)
class Defect:
    """A rule of a model that a framework does not follow.

    Attributes
    ----------
    what : str
        What the framework does instead.
    reference : str
        The public report.
    config : mapping
        A config that shows the defect.
    change : callable
        (plan, layer) to the layer as the framework computes it.
    seen : str
        A version in which the report saw the defect, or empty.
    since : str
        The first version that has the defect, where the report says so, or empty.
    before : str
        The first version that no longer has the defect, where the report says so, or empty.
    mended : str
        The change that mended the defect, or empty.
    """

    what: str
    reference: str
    config: Mapping[str, Any] = field(repr=False, hash=False)
    change: Change = field(repr=False)
    seen: str = ""
    since: str = ""
    before: str = ""
    mended: str = ""

    @property
    def versions(self) -> str:
        """What the report says of versions, in words.

        Examples
        --------
        >>> import attnscale as at
        >>> at.audit.FRAMEWORKS["onnxruntime-genai"].defects[0].versions
        'before version 0.5.0'
        """
        if self.before:
            return f"before version {self.before}"
        if self.since:
            return f"from version {self.since} on"
        return f"seen in version {self.seen}" if self.seen else "versions not known"

    def concerns(self, version: tuple[int, ...]) -> bool:
        """Whether a version may have the defect, as far as the report says; an empty one stands for any."""
        since, before = version_of(self.since), version_of(self.before)
        early = version[: len(since)] < since[: len(version)]
        return not version or not (early or (before and version >= before))

    def to_dict(self) -> dict[str, str]:
        """What the report says of the defect, in types that JSON has."""
        return {
            "what": self.what,
            "reference": self.reference,
            "versions": self.versions,
            "mended": self.mended,
        }

    def __str__(self) -> str:
        where = "there" if self.mended == self.reference else f"by {self.mended}"
        mended = f"; mended {where}" if self.mended else ""
        return f"{self.what} ({self.reference}; {self.versions}{mended})"


@dataclass(frozen=True)
class Framework:
    """What is on record about a framework.

    Attributes
    ----------
    defects : tuple of Defect
    """

    defects: tuple[Defect, ...]

    @property
    def seen(self) -> tuple[int, ...]:
        """The last version in which a report saw a defect; empty if none says so."""
        return max((version_of(each.seen) for each in self.defects), default=())

    @property
    def has_versions(self) -> bool:
        """Whether a report says anything about versions."""
        return any(each.seen or each.since or each.before for each in self.defects)


def version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version, without zeros at the end; an empty text has none.

    Examples
    --------
    >>> version_of("0.25.1"), version_of("0.25.0"), version_of("")
    ((0, 25, 1), (0, 25), ())
    """
    numbers = [int(part) for part in text.split(".")] if text else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
