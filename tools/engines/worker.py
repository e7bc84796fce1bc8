# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.engines.worker NAME FILE [SKIPPED ...]: the answers of one engine, a line each.

A line that names a question comes before the question is asked, so that a file which ends with such a line
says which question ended the process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import attnscale as at


def main(name: str, file: str, *skipped: str) -> None:
    """Ask, and append to the file."""
    engine = at.conformance.engines.find_engine(name)
    with Path(file).open("a", encoding="utf-8") as out:

        def tell(**line: Any) -> None:
            print(json.dumps(line), file=out, flush=True)

        tell(version=engine.installed)
        for each in at.conformance.QUESTIONS:
            if each not in skipped:
                tell(asked=each)
                answer = at.conformance.ask(engine, names=[each])[each]
                tell(answered=each, says=answer.says, surprising=answer.surprising)


if __name__ == "__main__":
    main(*sys.argv[1:])
