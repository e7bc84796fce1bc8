# SPDX-License-Identifier: BSD-3-Clause
"""Small random models of transformers, watched, against the weights that their own code computes.

``tools/models/expectations.json`` says of each type what is known of it: "right", "no attention", or another
state with its reason. ``python -m tools.models.scan`` runs them all, and ``--write`` enters what it found.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import attnscale as at
import pytest
from versions import written_for

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tools.models import scan

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

EXPECTED: dict[str, dict[str, str]] = json.loads(scan.EXPECTATIONS.read_text())
#: Types that differ in how they attend, watched before each commit.
SAMPLE = (
    *("bert", "bart", "t5", "whisper", "llava", "gemma3", "albert", "deberta-v2", "bloom", "mpt", "gpt_neo"),
    *("xlnet", "longformer", "gpt_oss", "clip"),
)
GOOD = ("right", "no attention")
SECONDS = 120


def _check(kinds: list[str]) -> None:
    answers = list(scan.results(kinds, 2, SECONDS))
    assert sorted(each["kind"] for each in answers) == sorted(kinds)
    faults = [f"{scan.line(x)} {x.get('detail', '')}" for x in answers if x["state"] not in GOOD]
    assert not faults, "\n".join(faults)


def test_each_way_to_attend_is_seen_as_the_model_computes_it() -> None:
    _check([*SAMPLE])


@pytest.mark.parametrize(
    "kind",
    [
        "bigbird_pegasus",
        pytest.param("deepseek_v4", marks=written_for(f"transformers=={at.audit.TRANSFORMERS}")),
    ],
)
def test_models_that_reckon_with_their_mask_run_on_this_packages_attention(kind: str) -> None:
    """Models that add their mask to scores, or to numbers that they add."""
    import torch

    from tools.models.zoo import made, runs

    scan.prepare()
    model, inputs = made(kind)
    model.set_attn_implementation("eager")
    wanted = runs(model, inputs)[0]
    model.set_attn_implementation(at.torch.register())
    torch.testing.assert_close(runs(model, inputs)[0], wanted, rtol=0, atol=5e-5)


@pytest.mark.maintainer
def test_a_sixth_of_all_types_is_right() -> None:
    """Names fix the sixth; the script runs all types."""
    good = [kind for kind, each in EXPECTED.items() if each["state"] in GOOD]
    kinds = [kind for kind in good if zlib.crc32(kind.encode()) % 6 == 0]
    assert len(kinds) > 40
    _check(kinds)


@written_for(f"transformers=={at.audit.TRANSFORMERS}")
def test_the_table_knows_every_type_and_says_why_one_is_not_right() -> None:
    missing: list[Any] = sorted({*scan.all_types()} - {*EXPECTED})
    assert not missing
    for kind, each in EXPECTED.items():
        assert each["state"] in (*GOOD, "wrong", "refused", "not buildable", "not measured"), kind
        assert each["state"] in GOOD or each["reason"], kind
