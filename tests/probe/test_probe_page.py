# SPDX-License-Identifier: BSD-3-Clause
"""The how-to page of the probe: commands parse, and numbers, words and messages are those of the package."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import attnscale as at
import pytest
from attnscale.cli import build_parser, main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "is-my-scaling-applied.md"

if not PAGE.exists():
    pytest.skip("not a source tree", allow_module_level=True)

TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ {4}attnscale (.*)$", TEXT, flags=re.MULTILINE)
#: Layers are few here: prompts do not depend on their number.
CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
}


def sizes(folder: Path) -> list[int]:
    """Number of words of each prompt that is asked; the first one is asked twice."""
    lines = (folder / "layer-0" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    found = [len(json.loads(line)["ids"]) for line in lines]
    return [*found, found[0]]


def test_the_page_begins_with_the_three_steps() -> None:
    assert [command.split()[1] for command in COMMANDS[:3]] == ["write", "ask", "read"]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_are_read(command: str) -> None:
    options = build_parser().parse_args(shlex.split(command))
    assert callable(options.step)


def test_flags_of_the_page_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags of other programs stand in the table of recipes and behind llama-server."""
    for step in ("write", "ask", "read"):
        with pytest.raises(SystemExit):
            main(["probe", step, "--help"])
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    text = re.sub(r"^(?:\| (?:vLLM|SGLang|TGI)|    llama-server).*$", "", TEXT, flags=re.MULTILINE)
    text = text.replace("attnscale audit ./checkpoint --measure", "")
    named = set(re.findall(r"--[a-z][a-z-]*", text))
    assert len(named) > 12
    assert named - known == set()


def test_numbers_of_prompts_are_those_of_a_probe(tmp_path: Path) -> None:
    text = " ".join(TEXT.split())
    whole = sizes(at.probe.write(CONFIG, tmp_path / "whole"))
    scale = sizes(at.probe.write(CONFIG, tmp_path / "scale", kinds=["scale"]))
    assert f"after {len(whole)} prompts" in text
    assert f"answers ... must be to all {len(whole) - 1} prompts" in text
    assert f"asks {len(scale)} prompts of at most {max(scale)} words" in text


def source() -> str:
    """Code of the package, with strings that go on behind a line's end put together."""
    files = (ROOT / "python/attnscale/probe").rglob("*.py")
    return re.sub(r'"\s+f?"', "", " ".join(path.read_text(encoding="utf-8") for path in files))


def test_messages_of_the_page_are_those_of_the_package() -> None:
    section = TEXT.split("## Answers that are no answer")[1].split("\n## ")[0]
    quoted = re.findall(r"`([^`]+)`", section)
    parts = [part for each in quoted for part in re.split(r" ?(?:\.\.\.|\d+) ?", each) if part.count(" ") > 1]
    assert len(parts) >= 4
    assert [part for part in parts if part not in source()] == []


def test_slips_of_the_page_are_named_by_the_package(tmp_path: Path) -> None:
    config = {**CONFIG, "rope_scaling": {**CONFIG["rope_scaling"], "attention_factor": 1.0}}
    folder = at.probe.write(config, tmp_path / "probe")
    expected = json.loads((folder / "layer-0" / "expected.json").read_text(encoding="utf-8"))
    known = {each["name"] for each in expected["score_slips"]}
    known.add(f"{expected['scaling']} dropped")
    named = set(re.findall(r"wrong: (\w.*)$", TEXT, flags=re.MULTILINE))
    assert [slip for slip in sorted(named - known) if f'"{slip}"' not in source()] == []
