"""Probes of small engines: what they answer, and the readings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
from small_engine import Rules, SmallEngine, rules_of

from tools.probe.configs import scaled

Change = Callable[[Rules], Rules]


def config_of(family: str, scaling: str, **keys: Any) -> dict[str, Any]:
    found = scaled(family, scaling)
    assert found is not None
    return {**found, **keys}


class Bench:
    """Probes, written once, and the readings of small engines."""

    def __init__(self, root: Path) -> None:
        self._root, self.answers = root, root / "answers.jsonl"
        self._kept: dict[str, Path] = {}

    def probe(self, config: dict[str, Any], **options: Any) -> Path:
        name = repr((config, options))
        if name not in self._kept:
            folder = self._root / f"probe-{len(self._kept)}"
            self._kept[name] = at.probe.write(config, folder, **{"longest": 4200, **options})
        return self._kept[name]

    def lines(self, probe: Path, change: Change, k: int | None = 24, **options: Any) -> list[Any]:
        """Answers of the small engine to all checkpoints, each with changed rules."""
        return [
            line
            for folder in sorted(probe.glob("layer-*"))
            for line in lines_of(folder, engine_of(folder, change, **options), k)
        ]

    def read(self, config: dict[str, Any], change: Change = lambda rules: rules, **given: Any) -> Any:
        options = {name: given.pop(name) for name in ("layer", "longest", "kinds") if name in given}
        return reading(self.answers, self.lines(self.probe(config, **options), change, **given))


def engine_of(folder: Path, change: Change = lambda rules: rules, **options: Any) -> SmallEngine:
    """The small engine with a checkpoint loaded."""
    rules = rules_of(folder / "config.json", int(folder.name.removeprefix("layer-")))
    return SmallEngine(folder, change(rules), **options)


def lines_of(
    folder: Path, engine: SmallEngine, k: int | None = 24, name: str = "small"
) -> list[dict[str, Any]]:
    """Lines of answers to all prompts of a checkpoint, the first of which is asked again."""
    expected = json.loads((folder / "expected.json").read_text())
    mark = {"checkpoint": expected["checkpoint"]}
    out: list[dict[str, Any]] = [{**mark, "name": folder.name, "engine": name, "expected": expected}]
    prompts = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    for each in [*prompts, {**prompts[0], "prompt": f"{prompts[0]['prompt']} again"}]:
        logits = engine.logits(each["ids"])
        found = logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())
        best = np.argsort(-found, kind="stable")[:k]
        out.append({**mark, "prompt": each["prompt"], "logprobs": {str(n): float(found[n]) for n in best}})
    return out


def reading(file: Path, lines: Iterable[Any]) -> at.probe.ProbeReading:
    """The reading of lines of answers; a text stands as it is."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    file.write_text("\n".join(texts) + "\n")
    return at.probe.read(file)
