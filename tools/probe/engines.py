# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.probe.engines: what transformers, mlx-lm and llama.cpp do with each config.

``make probe-engines`` runs it. Results are kept line by line, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attnscale as at

from .configs import FAMILIES, SCALINGS, cases
from .engines_table import table

ROOT = Path(__file__).resolve().parents[2]
LINES = ROOT / "build" / "probe-engines.jsonl"
#: Engines, and the options with which each is asked.
ENGINES: dict[str, dict[str, Any]] = {
    "transformers": {},
    "mlx": {},
    "llama_cpp": {"file": "f32.gguf"},
}
#: Keys that an engine needs: it infers scales, windows and layers without positions from the depth, has a
#: constant in place of the key, or is slow in long texts.
KEYS: dict[tuple[str, str], dict[str, Any]] = {
    ("mlx", "cohere2"): {"sliding_window": 512},
    ("mlx", "olmo3"): {"sliding_window": 512},
    ("mlx", "exaone4"): {"sliding_window": 512},
    ("llama_cpp", "gemma3_text"): {"num_hidden_layers": 62},
    ("llama_cpp", "llama4_text"): {"floor_scale": 8192},
    ("llama_cpp", "exaone4"): {
        "num_hidden_layers": 64,
        "layer_types": FAMILIES["exaone4"]["layer_types"] * 16,
    },
}


def asked(config: dict[str, Any], engine: str) -> dict[str, Any]:
    """The answer of one engine to a config, or the error with which it refuses it."""
    _few_threads(engine)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place = Path(folder)
        try:
            files = "f32" if engine == "llama_cpp" else None
            probe = at.probe.write(config, place / "probe", longest=_longest(config), gguf=files)
            at.probe.ask(probe, place / "answers.jsonl", engine=engine, **ENGINES[engine])
            found = at.probe.read(place / "answers.jsonl")
        except (ValueError, ImportError) as error:
            return {"error": str(error).replace(folder, "").strip("/: ")}
    return {"wrong": found.wrong, "slips": list(found.slips), "layers": [*map(_layer, found.checkpoints)]}


def _longest(config: dict[str, Any]) -> int:
    """Words of the longest prompt: enough for the windows, and for the first change of a temperature."""
    turn = config["floor_scale"] if config.get("attn_temperature_tuning") else 0
    return int(max(4200, turn + 100))


def _few_threads(engine: str) -> None:
    if engine == "transformers":
        import torch

        torch.set_num_threads(1)


def _layer(each: at.probe.CheckpointReading) -> dict[str, Any]:
    """The multipliers and the slips of a kind of layer."""
    rows = {row.what: row for row in each.rows}
    scales = {
        what.split()[1]: {"asked": row.asked, "answered": row.answered}
        for what, row in rows.items()
        if what.startswith("scale, ")
    }
    return {
        "engine": each.engine,
        "kind": each.kind,
        "slips": list(each.slips),
        "scales": scales,
        "wrong": [row.what for row in each.rows if row.verdict == "wrong"],
        "not_resolved": [row.what for row in each.rows if row.verdict == "not resolved"],
        "not_asked": list(each.skipped),
    }


# ---------------------------------------------------------------- many configs


def survey(families: list[str], engines: list[str], lines: Path) -> Iterator[dict[str, Any]]:
    """The answers of engines to the configs of families; answers in the file are not asked again."""
    kept = _kept(lines)
    lines.parent.mkdir(parents=True, exist_ok=True)
    with lines.open("a") as out:
        for engine in engines:
            asker = _Asker(engine)
            for family, scaling, config in cases(families):
                key = (engine, family, scaling)
                if key not in kept:
                    found = asker(config | KEYS.get((engine, family), {}))
                    kept[key] = {"engine": engine, "family": family, "scaling": scaling, **found}
                    out.write(json.dumps(kept[key]) + "\n")
                    out.flush()
                yield kept[key]
            asker.close()


def _kept(lines: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    if not lines.exists():
        return {}
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    return {(each["engine"], each["family"], each["scaling"]): each for each in found}


class _Asker:
    """A process that asks an engine; a new one follows where the engine ends it."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._pool = self._start()

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        for _ in range(2):
            try:
                return self._pool.submit(asked, config, self._engine).result()
            except BrokenProcessPool:
                self._pool = self._start()
        return {"error": "the engine ended the process, twice"}

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown()

    @staticmethod
    def _start() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def main() -> None:
    """Ask all, and write the results and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", nargs="*", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--family", nargs="*", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--lines", type=Path, default=LINES, help="file of results, to go on with")
    parser.add_argument("--json", type=Path, help="file for all results")
    parser.add_argument("--table", type=Path, help="Markdown file for the table")
    args = parser.parse_args()
    results = []
    for each in survey(args.family, args.engine, args.lines):
        results.append(each)
        said = each.get("error") or "; ".join(each["slips"]) or ("wrong" if each["wrong"] else "as asked")
        print(f"{each['engine']} {each['family']} {each['scaling']}: {said}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"scalings": SCALINGS, "results": results}, indent=1) + "\n")
    text = table(results)
    print(text)
    if args.table:
        args.table.write_text(text)


if __name__ == "__main__":
    main()
