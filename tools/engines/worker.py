# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.engines.worker NAME FILE: version and answers of one engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import attnscale as at


def main(name: str, file: str) -> None:
    """Ask, each question in a process that a call may end, and write the answers."""
    engine = at.conformance.engines.find_engine(name)
    engine.need()
    found = at.conformance.ask(engine, isolate=True)
    answers = {each: {"says": x.says, "surprising": x.surprising} for each, x in found.items()}
    Path(file).write_text(json.dumps({"version": engine.installed, "answers": answers}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
