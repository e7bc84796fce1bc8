# SPDX-License-Identifier: BSD-3-Clause
"""Models of timm and torchvision, watched as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tools.models.vision import TIMM, WRITTEN_OUT

pytestmark = [pytest.mark.torch, pytest.mark.maintainer, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
#: A folder for ``pip install --no-deps --target``, where transformers does not find torchvision.
APART = ROOT / "build" / "vision"
#: Models without a softmax over queries and keys.
WITHOUT = {"timm resnet18", "timm mobilevitv2_050"}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """Results by name of the model."""
    if not (APART / "timm").is_dir() and find_spec("timm") is None:
        pytest.skip("needs timm and torchvision, here or in build/vision")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tools.models.vision", str(APART)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {answer["name"]: answer for answer in map(json.loads, done.stdout.splitlines())}


def test_every_model_is_there(answers: dict[str, dict[str, Any]]) -> None:
    assert len(answers) == len(TIMM) + len(WRITTEN_OUT) + 2
    ways = {way for answer in answers.values() for way in answer.get("ways", ())}
    assert ways == {"scaled_dot_product_attention", "softmax"}


def test_entropies_agree_with_the_weights_of_the_model(answers: dict[str, dict[str, Any]]) -> None:
    for name, answer in answers.items():
        if name not in WITHOUT:
            assert sorted(answer["found"]) == sorted(answer["wanted"]), name
            assert answer["off"] < 1e-5, name
            assert answer["same_output"], name


def test_models_without_attention_are_reported(answers: dict[str, dict[str, Any]]) -> None:
    for name in WITHOUT:
        assert answers[name]["wanted"] == []
        assert answers[name]["said"].startswith("no attention of ")
