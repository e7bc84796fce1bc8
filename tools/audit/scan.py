# SPDX-License-Identifier: BSD-3-Clause
"""Every config class of the installed transformers, with every change of its keys, against its code.

``make audit-scan`` runs it, an hour long; a run that was stopped goes on where it was. Measurements are in
build/audit-scan, by version of transformers; the comparison reads it again at each run. Where another version
than that of the audit's tables is installed, it says what that version changes: types that are new or gone,
defaults that differ, and answers that its code does not give. Its numbers go into coverage.json otherwise,
for docs/reference/audit-coverage.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import pickle
import runpy
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import attnscale as at
import torch
import transformers
from attnscale.audit._keys import _defaults, known_types

from . import changes, measure, oracle
from .kinds import NOT_RUN

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "audit-scan"
COVERAGE = Path(__file__).with_name("coverage.json")

Measured = dict[str, tuple[dict[str, Any], Any]]  # by label: the config, and the heads or why there are none


class Line(NamedTuple):
    """Result of one type."""

    kind: str
    state: str  # "compared", "refused", "not built", "not measured", "not known", "a composite"
    words: dict[str, int]
    reason: str


def measured(folder: Path, kind: str) -> Measured | None:
    """Result of an earlier run, or None."""
    file = folder / f"{kind}.pkl"
    if not file.exists():
        return None
    found: Measured = pickle.loads(file.read_bytes())
    return found


def fill(folder: Path, kinds: list[str], processes: int, seconds: float) -> None:
    """Measure what is not in the folder yet, until the time is over."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [kind for kind in kinds if not (folder / f"{kind}.pkl").exists()]
    end = time.monotonic() + seconds
    with get_context("spawn").Pool(processes) as pool:
        for _ in pool.imap_unordered(_fill_one, [(folder, kind, end) for kind in waiting]):
            pass


def _fill_one(task: tuple[Path, str, float]) -> None:
    folder, kind, end = task
    if time.monotonic() > end:
        return
    content = pickle.dumps(measure_all(kind))
    file = folder / f"{kind}.pkl"
    file.with_suffix(".part").write_bytes(content)
    file.with_suffix(".part").rename(file)


def measure_all(kind: str) -> Measured:
    """Every change of one type."""
    found: Measured = {}
    with quiet():
        try:
            for label, keys in (*changes.changes(kind), *changes.saved_forms(kind)):
                found[label] = measure_one(kind, keys)
        except Exception as error:
            found["none"] = ({}, f"{type(error).__name__}: {error}"[:300])
    return found


def measure_one(kind: str, keys: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The config and its heads, or the reason why there are none."""
    try:
        return measure.measure(kind, keys)
    except Exception as error:
        return {"model_type": kind, **keys}, f"{type(error).__name__}: {error}"[:300]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Configs and models say much while they are made."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(50)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def all_types() -> list[str]:
    """Every model type that has a config class, the parts of composite models included."""
    return sorted({*transformers.CONFIG_MAPPING, *oracle.parts()} - {""})


def line(kind: str, heads: Measured | None) -> tuple[Line, list[str]]:
    """The line of one type, and its wrong answers."""
    if kind not in known_types() and heads is None:
        return _unknown(kind), []
    if heads is None:
        return Line(kind, "not measured", {}, "the time was over"), []
    words: Counter[str] = Counter()
    wrong, reasons = [], {}
    for label, (config, found) in heads.items():
        verdict = measure.judge(config, found)
        words[verdict.word] += 1
        reasons.setdefault(verdict.word, verdict.reason)
        if verdict.word == "wrong" or (verdict.word == "warned" and kind not in known_types()):
            wrong.append(f"{kind}: {label}: {verdict.reason}")
    if words["agrees"] or words["wrong"] or words["warned"]:
        return Line(kind, "compared", dict(words), ""), wrong
    if words["refused"]:
        return Line(kind, "refused", dict(words), reasons["refused"]), wrong
    return Line(kind, "not built", dict(words), NOT_RUN.get(kind, reasons.get("not built", ""))), wrong


def _unknown(kind: str) -> Line:
    inside = _defaults()["inside"].get(kind)
    if inside:
        return Line(kind, "a composite", {}, f"its language model is {inside[0]}, a {inside[1]}")
    return Line(kind, "not known", {}, "answered by its keys, with a warning")


def news() -> tuple[list[str], list[str]]:
    """(types that hold a language model and are new, what else the installed version changes, in words)."""
    collect = runpy.run_path(str(ROOT / "tools" / "evidence" / "extract_config_defaults.py"))["collect"]
    here, there = _defaults(), json.loads(json.dumps(collect()))
    said = []
    for title in ("inside", "parts", "models"):
        old, new = here[title], there[title]
        said += [f"{title}: {kind} is new" for kind in sorted(new.keys() - old.keys())]
        said += [f"{title}: {kind} is gone" for kind in sorted(old.keys() - new.keys())]
        for kind in sorted(old.keys() & new.keys()):
            said += [f"{title}: {kind}: {text}" for text in _changed(old[kind], new[kind])]
    return sorted(there["models"].keys() - here["models"].keys()), said


def _changed(old: Any, new: Any) -> list[str]:
    """Differences in an entry of the table, key by key."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [f"{old} -> {new}"]
    names = sorted(old.keys() | new.keys())
    return [f"{name}: {text}" for name in names for text in _changed(old.get(name), new.get(name))]


def report(folder: Path) -> int:
    """Print the table; how many answers are wrong."""
    lines, wrong = [], []
    for kind in all_types():
        found, faults = line(kind, measured(folder, kind))
        lines.append(found)
        wrong += faults
    for each in lines:
        counts = ", ".join(f"{count} {word}" for word, count in sorted(each.words.items()))
        print(f"{each.kind:40} {each.state:12} {counts or each.reason[:100]}")
    print("\n".join(wrong))
    states = Counter(each.state for each in lines)
    words = sum((Counter(each.words) for each in lines), Counter())
    print(f"transformers {transformers.__version__}, the audit's tables are of {at.audit.TRANSFORMERS}")
    _store(states, words)
    print("types:", ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    print("configs:", ", ".join(f"{count} {word}" for word, count in sorted(words.items())))
    return len(wrong)


def _store(states: Counter[str], words: Counter[str]) -> None:
    """Keep the numbers of a complete run, or the first ones of a version that the audit's tables are of."""
    version = transformers.__version__
    kept = json.loads(COVERAGE.read_text(encoding="utf-8")) if COVERAGE.exists() else {}
    if version == at.audit.TRANSFORMERS and (
        not states["not measured"]
        or kept.get("transformers") != version
        or states["not measured"] <= kept["types"].get("not measured", 0)
    ):
        content = {"transformers": version, "types": dict(states), "configs": dict(words)}
        COVERAGE.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Measure, compare and print; 1 if an answer is wrong without a warning."""
    parser = argparse.ArgumentParser(description="compare the audit with the code of transformers")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where measurements are kept")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop measuring after this time")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("types", nargs="*", help="model types; all by default")
    options: Any = parser.parse_args(arguments)
    folder = options.folder / transformers.__version__
    new, changed = news()
    print("\n".join(changed) or "defaults of keys: as in the audit's table")
    kinds = options.types or sorted({*known_types(), *new}, key=lambda kind: (kind in NOT_RUN, kind))
    fill(folder, kinds, options.processes, options.seconds)
    return 1 if report(folder) else 0


if __name__ == "__main__":
    sys.exit(main())
