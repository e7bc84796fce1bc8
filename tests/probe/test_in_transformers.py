"""Probes in transformers itself: all families are as asked, and faults that are planted have their names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attnscale as at
import pytest
from small_bench import Bench, config_of

pytestmark = [pytest.mark.torch, pytest.mark.maintainer]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tools.probe import faults as do  # noqa: E402
from tools.probe.asked import read  # noqa: E402
from tools.probe.configs import FAMILIES  # noqa: E402

_SHORT = {"sliding_window": 512}
_TEMPERED = config_of("ministral3", "temperature")["rope_parameters"]
_TEMPERED = {"rope_parameters": {**_TEMPERED, "original_max_position_embeddings": 512}}

#: Families, scalings and other keys.
ASKED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("qwen2", "yarn", {}),
    ("gpt_oss", "yarn", {}),
    ("glm4", "yarn", {}),
    ("gemma2", "plain", _SHORT),
    ("ministral3", "temperature", _TEMPERED),
    ("deepseek_v3", "mscale", {}),
)
#: Faults of three of them, the layer that has it, and its name; other families: test_planted.py.
FAULTS = {
    "gemma2": (do.reads(attn_logit_softcapping=None), 1, "cap absent"),
    "ministral3": (do.rope_with(llama_4_scaling_beta=0.0), 0, "temperature absent"),
    "deepseek_v3": (do.rope_without("mscale", "mscale_all_dim"), 0, "mscale pair ignored"),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("family", "scaling", "keys"), ASKED, ids=[each[0] for each in ASKED])
def test_transformers_is_as_asked(
    bench: Bench, tmp_path: Path, family: str, scaling: str, keys: dict[str, Any]
) -> None:
    probe = bench.probe(config_of(family, scaling, **keys))
    found = at.probe.read(at.probe.ask(probe, tmp_path / "answers.jsonl", engine="transformers"))
    assert found.slips == ()
    for row in found.rows():
        assert row["verdict"] == "as asked", row
        assert row["answered"] == pytest.approx(row["asked"], rel=1e-4, abs=1e-6) or "pair" in row["what"]


@pytest.mark.parametrize(("family", "scaling", "keys"), ASKED[3:], ids=[each[0] for each in ASKED[3:]])
def test_a_fault_has_its_name(bench: Bench, family: str, scaling: str, keys: dict[str, Any]) -> None:
    fault, layer, name = FAULTS[family]
    probe = bench.probe(config_of(family, scaling, **keys), layer=layer)
    for dtype in ("float32", "bfloat16"):
        found = read(probe, lambda folder, dtype=dtype: fault.engine(folder, dtype))  # type: ignore[misc]
        assert found.slips == (name,), dtype


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_loaded_whole(bench: Bench, tmp_path: Path, family: str) -> None:
    """Names and shapes of all tensors; a missing one is an error of the engine that asks."""
    probe = bench.probe(config_of(family, "plain"), kinds=["scale"])
    found = at.probe.read(at.probe.ask(probe, tmp_path / "answers.jsonl", engine="transformers"))
    for row in found.rows():
        assert row["answered"] == pytest.approx(row["asked"], rel=1e-4), row
