# SPDX-License-Identifier: BSD-3-Clause
"""A sample of the scan: changed configs of every family, and of plain types, against the models' code.

``make audit-scan`` runs all of it.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

pytest.importorskip("transformers")
pytest.importorskip("torch")

from attnscale.audit._keys import known_types
from attnscale.audit._rules.families import FAMILIES

from tools.audit.changes import changes, saved_forms
from tools.audit.kinds import NOT_RUN
from tools.audit.measure import judge
from tools.audit.scan import measure_one, quiet

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

_SEED = 12
#: Ways to spell rotary positions that every family is looked at with, one of them each.
_SPELLINGS = (
    "flat yarn",
    "legacy type yarn",
    "legacy rope_type yarn",
    "nested both yarn",
    "rope_parameters null",
)


def sample() -> list[tuple[str, str]]:
    """(model type, change): two of each row of the table, and of 40 plain types."""
    rng = random.Random(_SEED)
    runs = known_types() - set(NOT_RUN)
    rows = [sorted(runs.intersection(row.types)) for row in FAMILIES]
    kinds = [rng.choice(types) for types in rows if types]
    plain = sorted(runs - {kind for row in FAMILIES for kind in row.types})
    kinds += rng.sample(plain, 40)
    chosen = []
    for kind in kinds:
        labels = [label for label, _ in changes(kind)]
        spellings = [label for label in _SPELLINGS if label in labels]
        # Some types have no rotary positions to spell, or cannot be asked for their keys here.
        chosen += [(kind, rng.choice(each)) for each in (spellings, labels) if each]
    return sorted(set(chosen))


@pytest.mark.maintainer
def test_changed_configs_are_read_as_the_code_reads_them() -> None:
    words: Counter[str] = Counter()
    wrong = []
    with quiet():
        for kind, label in sample():
            keys = dict(changes(kind))[label]
            verdict = judge(*measure_one(kind, keys))
            words[verdict.word] += 1
            if verdict.word == "wrong":
                wrong.append((kind, label, verdict.reason))
    assert not wrong
    assert words.total() > 150
    assert words["agrees"] > 0.7 * words.total(), words


def test_saved_configs_are_read_as_the_code_reads_them() -> None:
    """As save_pretrained writes them, with defaults left out and blocks by layer."""
    compared = 0
    with quiet():
        for kind in ("dots3_note_text", "gemma4_text", "neomme", "gpt_oss", "deepseek_v4", "zaya"):
            for label, keys in saved_forms(kind):
                verdict = judge(*measure_one(kind, keys))
                assert verdict.word in ("agrees", "not built"), (kind, label, verdict)
                compared += verdict.word == "agrees"
    assert compared >= 16
