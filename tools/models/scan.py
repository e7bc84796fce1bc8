# SPDX-License-Identifier: BSD-3-Clause
"""Every model type of the installed transformers, watched by the package and by plain torch.

``python -m tools.models.scan [PATTERN ...]`` prints one line a type and a table; a run that was stopped goes
on where it was. Each type runs in a process of its own, with a limit of time and memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXPECTATIONS = Path(__file__).with_name("expectations.json")
FOLDER = ROOT / "build" / "models-scan"
SECONDS, MEMORY = 30, 6 * 2**30


def results(kinds: Iterable[str], processes: int, seconds: float = SECONDS) -> Iterator[dict[str, Any]]:
    """Results of each type as they come; a process that dies or takes too long counts as a result."""
    prepare()
    context = multiprocessing.get_context("fork")
    waiting, running = list(kinds)[::-1], {}
    while waiting or running:
        while waiting and len(running) < processes:
            kind = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(kind, theirs), daemon=True)
            process.start()
            theirs.close()
            running[ours] = (kind, process, time.monotonic() + seconds)
        for ours in multiprocessing.connection.wait([*running], timeout=0.5):
            kind, process, _ = running.pop(ours)
            try:
                answer = ours.recv()
            except EOFError:
                process.join()
                answer = _dead(kind, f"its process ended with {process.exitcode}")
            process.join()
            yield answer
        for ours, (kind, process, end) in list(running.items()):
            if time.monotonic() > end:
                process.kill()
                process.join()
                del running[ours]
                yield _dead(kind, f"took more than {seconds:.0f} s")


def _dead(kind: str, reason: str) -> dict[str, Any]:
    return {"kind": kind, "state": "died", "faults": ["died"], "reason": reason}


def prepare() -> None:
    """Import what every process needs, once."""
    import attnscale.torch
    import torch
    import transformers

    from ..audit import oracle
    from . import compare  # noqa: F401

    torch.set_num_threads(1)
    needed = ("BertModel", "BartModel", "LlamaModel", "ViTModel", "MODEL_MAPPING")
    assert all(hasattr(transformers, name) for name in needed)
    assert attnscale.torch.record
    oracle.parts()
    transformers.logging.set_verbosity(50)
    all_types()


def _work(kind: str, pipe: Any) -> None:
    from . import compare

    # Not RLIMIT_AS: PyTorch's libraries for CUDA alone take most of it.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    try:
        answer = compare.found(kind)
    except BaseException as error:
        answer = _dead(kind, f"{type(error).__name__}: {error}"[:400])
    pipe.send(answer)
    pipe.close()


def all_types() -> list[str]:
    from ..audit import scan

    return scan.all_types()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--every", type=int, default=1, help="each nth type alone")
    parser.add_argument(
        "--again", nargs="*", default=None, help="run again what had one of these states or faults"
    )
    parser.add_argument("--write", action="store_true", help="enter what was found into expectations.json")
    options = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / "results.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    done = {each["kind"]: each for each in map(json.loads, lines)}
    kinds = [k for k in all_types() if any(fnmatchcase(k, p) for p in options.patterns)][:: options.every]
    again = set(options.again or ())
    new = [k for k in kinds if k not in done or options.again == []
           or again & {done[k]["state"], *done[k]["faults"]}]  # fmt: skip
    with file.open("a") as out:
        for answer in results(new, options.processes, options.seconds):
            done[answer["kind"]] = answer
            out.write(json.dumps(answer) + "\n")
            out.flush()
            print(line(answer), flush=True)
    print(table([done[k] for k in kinds if k in done]))
    if options.write:
        write(done)
    return 0


def write(done: dict[str, dict[str, Any]]) -> None:
    """Enter what was found: the state of each type, and why it is not right."""
    known = json.loads(EXPECTATIONS.read_text()) if EXPECTATIONS.exists() else {}
    for kind in all_types():
        found = done.get(kind)
        if found is None or found["state"] == "died":
            reason = found["reason"] if found else "the scan did not come to it"
            known.setdefault(kind, {"state": "not measured", "reason": reason})
            continue
        known[kind] = {"state": found["state"]}
        if found["state"] not in ("right", "no attention"):
            reasons = [found["reason"], *found.get("detail", ())[:2]]
            known[kind]["reason"] = "; ".join(each for each in reasons if each)[:300] or "no inputs fit"
    lines = (
        f"{json.dumps(kind)}: {json.dumps(each, sort_keys=True)}" for kind, each in sorted(known.items())
    )
    EXPECTATIONS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def line(answer: dict[str, Any]) -> str:
    faults = ",".join(answer["faults"])
    return f"{answer['kind']:36} {answer['state']:14} {faults} {answer['reason'][:150]}"


def table(answers: list[dict[str, Any]]) -> str:
    states = Counter(each["state"] for each in answers)
    faults = Counter(fault for each in answers for fault in each["faults"])
    return (f"{len(answers)} types: " + ", ".join(f"{n} {w}" for w, n in states.most_common())
            + "\nfaults: " + ", ".join(f"{n} {w}" for w, n in faults.most_common()))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
