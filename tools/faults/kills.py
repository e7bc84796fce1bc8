# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.faults.kills: disturb commands at random moments, and look for what is lost.

After each of the kills the same command goes on undisturbed. Its store must hold, bit for bit, what that of
an undisturbed run holds, and all that was stored before the kill. A table counts the kills that met a running
command; the status is 1 if one of them lost or changed something. It mounts small file systems, in a
namespace of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .works import WORKS, Stored, Work, ended, make_inputs, stored

#: Kills of each kind, of a thousand.
SHARES = {
    ("sweep", "KILL"): 160, ("sweep", "TERM"): 100, ("sweep", "full disk"): 80,
    ("pool", "dead worker"): 160, ("pool", "KILL"): 40,
    ("mc", "KILL"): 120, ("mc", "TERM"): 80, ("mc", "full disk"): 60,
    ("merge", "KILL"): 60, ("merge", "TERM"): 20, ("merge", "full disk"): 40,
    ("train", "KILL"): 40, ("train", "TERM"): 20, ("train", "full disk"): 20,
}  # fmt: skip
_INSIDE = "ATTNSCALE_FAULTS_INSIDE"  # set where file systems can be mounted


@dataclass
class Tally:
    """Counts of one kind of kill."""

    kills: int = 0
    missed: int = 0  # the command had ended
    kept: list[int] = field(default_factory=list)  # stored cases after each kill
    statuses: Counter[int] = field(default_factory=Counter)


class Trials:
    """Kills of one command."""

    def __init__(self, work: Work, inputs: Path, folder: Path, random: random.Random) -> None:
        self.work, self.inputs, self.folder, self.random = work, inputs, folder, random
        self.log = folder / "log"
        self.seconds = 0.0
        self.faults: list[str] = []
        self.pages = 0  # of the store's files
        self.group = 0  # of the processes of the last command
        self.reference = self._undisturbed()

    def _undisturbed(self) -> Stored:
        place = self.folder / "reference"
        for _ in range(3):
            shutil.rmtree(place, ignore_errors=True)
            began = time.perf_counter()
            if (status := self.work.finish(self.inputs, place, self.log)) != 0:
                raise SystemExit(f"{self.work.name} ends with {status}: {self.log.read_text()}")
            self.seconds = time.perf_counter() - began
        self.pages = sum(-(-path.stat().st_size // 4096) for path in place.rglob("*") if path.is_file())
        return stored(place)[0]

    def kill(self, how: str, tally: Tally) -> None:
        """One kill, and what the command makes of it when it runs again."""
        place = self.folder / "trial"
        place.mkdir()
        try:
            store = place / "store"
            before, status = self._on_full_disk(place) if how == "full disk" else self._killed(store, how)
            if before is None:
                tally.missed += 1
                return
            tally.kills += 1
            tally.statuses[status] += 1
            after, damaged = stored(store)
            tally.kept.append(len(after))
            lost = before - after.keys()
            whole = {name for name in after if self.work.name == "mc" or after[name] == self.reference[name]}
            left = self._leftovers(store) if how == "full disk" else []
            if damaged or lost or left or len(whole) < len(after):
                self._fault(how, f"after the kill: {damaged=} {lost=} {left=} status {status}")
            status = self.work.finish(self.inputs, store, self.log)
            after, damaged = stored(store)
            if status or damaged or after != self.reference:
                self._fault(how, f"going on: status {status}, {damaged=}, equal {after == self.reference}")
        finally:
            if how == "full disk":
                subprocess.run(["umount", "--lazy", place], check=True)
            shutil.rmtree(place)
            if how != "full disk":
                with suppress(ProcessLookupError):
                    os.killpg(self.group, signal.SIGKILL)  # workers that outlived their parent

    def _killed(self, store: Path, how: str) -> tuple[set[str] | None, int]:
        """The files of cases before the kill, None if it met no command, and the command's status."""
        process = self.group = self.work.begin(self.inputs, store, self.log)
        time.sleep(self.random.uniform(0, 1.1 * self.seconds))
        before = {path.name for path in (store / "cases").glob("*.npz")}
        over = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        victims = [process]
        if how == "dead worker" and not over:
            victims = [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
        # The machine may be slower or faster than it was, and a command without workers has yet to begin.
        self.seconds *= 0.95 if over else 1.01 if victims else 1.05
        if victims:
            with suppress(ProcessLookupError):
                os.kill(self.random.choice(victims), signal.SIGTERM if how == "TERM" else signal.SIGKILL)
        status = ended(process)
        allowed = {"KILL": (-9,), "TERM": (-15, 143), "dead worker": (2,)}[how]
        if not over and status not in (0, *allowed):
            self._fault(how, f"status {status}")
        return (None if over or status == 0 else before), status

    def _on_full_disk(self, place: Path) -> tuple[set[str] | None, int]:
        """Nothing, or None if the disk was large enough, and the command's status."""
        size = self.random.randint(1, self.pages)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={4 * size}k", "none", place], check=True)
        status = self.work.finish(self.inputs, place / "store", self.log)
        subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
        if status not in (0, 2):
            self._fault("full disk", f"status {status}")
        return (set() if status else None), status

    def _leftovers(self, store: Path) -> list[str]:
        """Names of empty or temporary files."""
        files = [path for path in store.rglob("*") if path.is_file() and "lock" not in path.name]
        return [path.name for path in files if path.suffix == ".tmp" or not path.stat().st_size]

    def _fault(self, how: str, what: str) -> None:
        """Keep a line on what went wrong, with the last that the command said."""
        said = self.log.read_text().strip().splitlines()
        self.faults.append(f"{self.work.name}, {how}: {what}; {said[-1] if said else ''}")
        print(self.faults[-1], flush=True)


def main() -> int:
    """Run all kills, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if _INSIDE not in os.environ:
        os.environ |= {_INSIDE: "1", "ATTNSCALE_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        os.execvp("unshare", ["unshare", "-rm", sys.executable, "-m", "tools.faults.kills", *sys.argv[1:]])
    tallies = {kind: Tally() for kind in SHARES}
    faults = []
    with tempfile.TemporaryDirectory() as base:
        subprocess.run(
            ["mount", "-t", "tmpfs", "none", base], check=True
        )  # each fsync of a disk takes its time
        inputs = Path(base, "inputs")
        inputs.mkdir()
        make_inputs(inputs)
        for name, work in WORKS.items():
            folder = Path(base, name)
            folder.mkdir()
            trials = Trials(work, inputs, folder, random.Random(f"{options.seed} {name}"))
            for kind in (kind for kind in SHARES if kind[0] == name):
                while tallies[kind].kills < max(1, round(SHARES[kind] * options.kills / 1000)):
                    trials.kill(kind[1], tallies[kind])
                print(row(kind, tallies[kind]), flush=True)
            faults += trials.faults
        subprocess.run(["umount", "--lazy", base], check=True)
    total = sum(each.kills for each in tallies.values())
    print(f"{total} kills, seed {options.seed}: {len(faults)} faults")
    return 1 if faults else 0


def row(kind: tuple[str, str], tally: Tally) -> str:
    """A line of the table."""
    kept = sorted(tally.kept)
    ends = ", ".join(f"{count} x {status}" for status, count in sorted(tally.statuses.items()))
    return (
        f"{kind[0]:6} {kind[1]:12} kills {tally.kills:4} missed {tally.missed:4}  stored at the kill "
        f"{kept[0]} ... {kept[len(kept) // 2]} ... {kept[-1]}  exit status {ends}"
    )


if __name__ == "__main__":
    sys.exit(main())
