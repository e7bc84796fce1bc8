# SPDX-License-Identifier: BSD-3-Clause
"""Every config class of the installed transformers, with every change of its keys, against its code.

``make audit-scan`` runs it, an hour long; a run that was stopped goes on where it was. Measurements are in
build/audit-scan, by version of transformers; the comparison reads it again at each run.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import attnscale as at
import scan_cache
import scan_compare
from attnscale.audit._keys import known_types
from audit_types import NOT_RUN

FOLDER = Path(__file__).resolve().parents[2] / "build" / "audit-scan"


class Line(NamedTuple):
    """What is said of one type."""

    kind: str
    state: str  # "compared", "refused", "not built", "not measured", "not known", "a composite"
    words: dict[str, int]
    reason: str


def all_types() -> list[str]:
    """Every model type that has a config class, the parts of composite models included."""
    from transformers import CONFIG_MAPPING

    classes = {kind: CONFIG_MAPPING[kind] for kind in CONFIG_MAPPING}
    waiting = list(classes.values())
    while waiting:
        for part in getattr(waiting.pop(), "sub_configs", {}).values():
            kind = getattr(part, "model_type", "")
            if kind and kind not in classes:
                classes[kind] = part
                waiting.append(part)
    return sorted(classes)


def line(kind: str, measured: scan_cache.Measured | None) -> tuple[Line, list[str]]:
    """The line of one type, and its wrong answers."""
    if kind not in known_types():
        return _unknown(kind), []
    if measured is None:
        return Line(kind, "not measured", {}, "the time was over"), []
    words: Counter[str] = Counter()
    wrong, reasons = [], {}
    for label, (config, heads) in measured.items():
        verdict = scan_compare.judge(config, heads)
        words[verdict.word] += 1
        reasons.setdefault(verdict.word, verdict.reason)
        if verdict.word == "wrong":
            wrong.append(f"{kind}: {label}: {verdict.reason}")
    if words["agrees"] or words["wrong"] or words["warned"]:
        return Line(kind, "compared", dict(words), ""), wrong
    if words["refused"]:
        return Line(kind, "refused", dict(words), reasons["refused"]), wrong
    return Line(kind, "not built", dict(words), NOT_RUN.get(kind, reasons.get("not built", ""))), wrong


def _unknown(kind: str) -> Line:
    from attnscale.audit._keys import _defaults

    inside = _defaults()["inside"].get(kind)
    if inside:
        return Line(kind, "a composite", {}, f"its language model is {inside[0]}, a {inside[1]}")
    return Line(kind, "not known", {}, "answered by its keys, with a warning")


def report(folder: Path) -> int:
    """Print the table; how many answers are wrong."""
    lines, wrong = [], []
    for kind in all_types():
        found, faults = line(kind, scan_cache.measured(folder, kind))
        lines.append(found)
        wrong += faults
    for each in lines:
        counts = ", ".join(f"{count} {word}" for word, count in sorted(each.words.items()))
        print(f"{each.kind:40} {each.state:12} {counts or each.reason[:100]}")
    print("\n".join(wrong))
    states = Counter(each.state for each in lines)
    words = sum((Counter(each.words) for each in lines), Counter())
    print(f"transformers {_version()}, the audit's tables are of {at.audit.TRANSFORMERS}")
    print("types:", ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    print("configs:", ", ".join(f"{count} {word}" for word, count in sorted(words.items())))
    return len(wrong)


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def main(arguments: list[str] | None = None) -> int:
    """Measure, compare and print; 1 if an answer is wrong without a warning."""
    parser = argparse.ArgumentParser(description="compare the audit with the code of transformers")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where measurements are kept")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop measuring after this time")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("types", nargs="*", help="model types; all by default")
    options: Any = parser.parse_args(arguments)
    folder = options.folder / _version()
    kinds = options.types or sorted(known_types(), key=lambda kind: (kind in NOT_RUN, kind))
    scan_cache.fill(folder, kinds, options.processes, options.seconds)
    return 1 if report(folder) else 0


if __name__ == "__main__":
    sys.exit(main())
