# SPDX-License-Identifier: BSD-3-Clause
"""The records of mlx-lm and llama.cpp against what a probe measured in them, docs/_measured/engines.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import attnscale as at
import pytest
from audit_configs import ROOT

from tools.audit import quietly
from tools.probe.configs import cases
from tools.probe.engines import KEYS

TABLE = (ROOT / "docs" / "_measured" / "engines.txt").read_text(encoding="utf-8")
#: Engines in the table, with the release that was measured, and in the probe.
ENGINES = {"mlx-lm": ("mlx-lm-0.32.2", "mlx"), "llama.cpp": ("llama.cpp-2026.10.11549", "llama_cpp")}
_ROW = re.compile(r"^\| (mlx-lm|llama\.cpp) \| (.+?) \| ([\d.]+)(?: to ([\d.]+))? \| .+? \| (.+) \|$", re.M)
#: Longer than the probe's prompts, which do not see windows beyond.
_LONGEST = 8192


class Compared(NamedTuple):
    """The differences of a config, and multipliers there over here, by layers and channels."""

    family: str
    scaling: str
    differs: bool
    ratios: frozenset[float]


@cache
def compared(engine: str) -> tuple[Compared, ...]:
    """Every config that the engine loaded, by the record."""
    release, name = ENGINES[engine]
    refused = dict(not_loaded(engine))
    found = []
    for family, scaling, config in cases():
        if scaling in refused.get(family, ()):
            continue
        plan = quietly(config | KEYS.get((name, family), {}))
        theirs, _ = at.audit.as_framework(plan, release)
        every = plan.differences(theirs, up_to=_LONGEST)
        differs = [each for each in every if each.what != "window" or each.here < _LONGEST]
        found.append(Compared(family, scaling, bool(differs), frozenset(ratios(plan, theirs))))
    return tuple(found)


def ratios(plan: at.audit.ScalePlan, theirs: at.audit.ScalePlan) -> Iterator[float]:
    for layer, other in zip(plan, theirs, strict=True):
        for channels in set(layer.channel_kinds) & set(other.channel_kinds):
            where: dict[str, Any] = {"layer": layer.index, "position": 0, "channels": channels}
            yield theirs.multiplier(**where) / plan.multiplier(**where)


def not_loaded(engine: str) -> Iterator[tuple[str, list[str]]]:
    (line,) = re.findall(rf"^Not loaded by {re.escape(engine)}: (.+)\.$", TABLE, re.M)
    for family, scalings in re.findall(r"(\w+) \((.+?)\)", line):
        yield family, scalings.split(", ")


@pytest.mark.parametrize("engine", ENGINES)
def test_as_many_configs_differ_as_were_measured(engine: str) -> None:
    numbers = r" \| (\d+)" * 4
    (counts,) = re.findall(rf"^\| {re.escape(engine)} .+?{numbers} \|$", TABLE, re.M)
    configs, as_asked, otherwise, refused = map(int, counts)
    found = compared(engine)
    assert len(found) == configs - refused
    assert sum(each.differs for each in found) == otherwise
    assert len(found) - otherwise == as_asked


def test_every_measured_difference_is_on_record() -> None:
    rows = _ROW.findall(TABLE)
    assert len(rows) >= 20
    for engine, slip, first, last, families in rows:
        chosen = [each for each in compared(engine) if each.differs and each.family in families.split(", ")]
        assert {each.family for each in chosen} == set(families.split(", ")), (engine, slip)
        every = [ratio for each in chosen for ratio in each.ratios]
        for end in filter(None, (first, last)):
            assert min(abs(ratio / float(end) - 1) for ratio in every) < 2e-3, (engine, slip, end)
