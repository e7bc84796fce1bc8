# SPDX-License-Identifier: BSD-3-Clause
"""sweep with a store: resume, also after kill -9, and damage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
import sweep_functions
from attnscale._grid import fields, files
from attnscale._grid import store as stores

pytest.importorskip("xarray")

GRID = {"n": [1, 2, 3], "law": ["a", "b"]}


class Counting:
    """A function that keeps the arguments of its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []

    def __repr__(self) -> str:
        return "Counting()"

    def __call__(self, n: int, law: str, *, rng: Any = None) -> Any:
        self.calls.append((n, law))
        return sweep_functions.draw(n, law, rng=rng)


def sweep(function: Any, grid: Any, **options: Any) -> Any:
    return at.sweep(function, grid, **{"progress": False, **options})


def data(table: Any) -> Any:
    return table.drop_attrs(deep=False)


def case_files(store: Path) -> list[Path]:
    return sorted((store / "cases").iterdir())


def test_finished_cases_are_not_computed_again(tmp_path: Path) -> None:
    function = Counting()
    first = sweep(function, GRID, store=tmp_path / "deep" / "store", rng=1)
    assert len(function.calls) == 6
    seen = []
    again = sweep(
        function,
        GRID,
        store=tmp_path / "deep" / "store",
        rng=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert len(function.calls) == 6
    assert seen == [(6, 6)]
    assert data(again).identical(data(first))
    assert data(sweep(function, GRID, rng=1)).identical(data(first))


def test_failed_and_missing_cases_are_computed_by_the_next_call(tmp_path: Path) -> None:
    fails, store = tmp_path / "fails", tmp_path / "store"
    log = tmp_path / "log"

    def function(n: int) -> int:
        with log.open("a") as stream:
            stream.write(str(n))
        if n == 2 and fails.exists():
            raise OSError("not today")
        return n

    fails.touch()
    with pytest.raises(at.SweepError, match=r"2 are finished; .*store' keeps them, and the same call"):
        sweep(function, {"n": [1, 2, 3]}, store=store)
    fails.unlink()
    table = sweep(function, {"n": [1, 2, 3]}, store=store)
    assert log.read_text() == "1232"
    assert table["value"].values.tolist() == [1, 2, 3]


def test_an_interrupted_sweep_goes_on_with_the_seed_it_began_with(tmp_path: Path) -> None:
    stop_at = tmp_path / "stop"

    def function(n: int, rng: Any) -> Any:
        if stop_at.exists() and n == 2:
            raise KeyboardInterrupt
        return rng.standard_normal()

    stop_at.touch()
    with pytest.raises(at.SweepInterrupted, match="the same call computes the rest") as raised:
        sweep(function, {"n": [1, 2, 3]}, store=tmp_path / "store")
    stop_at.unlink()
    table = sweep(function, {"n": [1, 2, 3]}, store=tmp_path / "store")
    assert table["value"][0] == raised.value.partial["value"][0]
    seed = int(table.attrs["seed"])
    np.testing.assert_array_equal(table["value"], sweep(function, {"n": [1, 2, 3]}, rng=seed)["value"])


# ---- killed ------------------------------------------------------------------------------------

# The process says when to kill it, and waits.
SCRIPT = """
import os, sys, time
import attnscale as at, numpy as np

store, moment = sys.argv[1:]
sync, place = os.fsync, os.path.join(store, "cases", "")

def wait_for_the_end():
    print("now", flush=True)
    time.sleep(3600)

def half(fd):
    name = os.readlink(f"/proc/self/fd/{fd}")
    if name.startswith(place) and name.endswith(".tmp") and len(os.listdir(place)) == 4:
        os.ftruncate(fd, os.fstat(fd).st_size // 2)
        wait_for_the_end()
    sync(fd)

def large(n, rng):
    if moment == "between cases" and n == 3:
        wait_for_the_end()
    return rng.standard_normal((100, 40)) * n

if moment == "while a file is written":
    os.fsync = half
table = at.sweep(large, {"n": list(range(8))}, store=store, rng=4, progress=False)
np.save(store + ".npy", table["value"].values)
"""


@pytest.mark.parametrize("moment", ["between cases", "while a file is written"])
def test_kill_9_loses_nothing_that_was_finished(moment: str, tmp_path: Path) -> None:
    script, store = tmp_path / "script.py", tmp_path / "store"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(store)]
    cases = store / "cases"
    with subprocess.Popen([*command, moment], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    kept = {path: path.stat().st_mtime_ns for path in cases.glob("*.npz")}
    assert len(kept) == 3
    assert len(case_files(store)) == (3 if moment == "between cases" else 4)
    subprocess.run([*command, "never"], check=True)
    assert len([*cases.glob("*.npz")]) == 8
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    clean = sweep(lambda n, rng: rng.standard_normal((100, 40)) * n, {"n": list(range(8))}, rng=4)
    np.testing.assert_array_equal(np.load(f"{store}.npy"), clean["value"])


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: events.append(os.readlink(f"/proc/self/fd/{fd}")) or sync(fd))
    monkeypatch.setattr(Path, "replace", lambda a, b: events.append(f"{a} -> {b}") or replace(a, b))
    path = tmp_path / "file"
    files.write_whole(path, b"content")
    beside = str(events[0])
    assert beside.startswith(f"{path}.")
    assert beside.endswith(".tmp")
    assert events == [beside, f"{beside} -> {path}", str(tmp_path)]
    assert path.read_bytes() == b"content"


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises(OSError, match="file"):
        files.write_whole(path, b"content")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of ZipFile.__del__
def test_ctrl_c_in_the_middle_of_an_archive_is_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive whose entry is open cannot be closed, and says that instead."""
    opened = zipfile.ZipFile.open

    def interrupted(*arguments: Any, **options: Any) -> Any:
        entry = opened(*arguments, **options)  # noqa: F841 - open as long as this frame is known
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stores.to_bytes(fields.to_fields(np.arange(3.0)), "case")


# ---- damage ------------------------------------------------------------------------------------


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


@pytest.mark.parametrize("damage", ["empty", "cut", "first", "middle", "zeros", "another case", "not ours"])
def test_a_damaged_file_is_computed_again(damage: str, tmp_path: Path) -> None:
    function = Counting()
    whole = sweep(function, GRID, store=tmp_path, rng=1)
    victim, other = case_files(tmp_path)[:2]
    content = victim.read_bytes()
    victim.write_bytes(
        {
            "empty": b"",
            "cut": content[:-1],
            "first": flip(content, 0),
            "middle": flip(content, len(content) // 2),
            "zeros": bytes(len(content)),
            "another case": other.read_bytes(),
            "not ours": b"\x93NUMPY\x01\x00hello",
        }[damage]
    )
    function.calls.clear()
    again = sweep(function, GRID, store=tmp_path, rng=1)
    assert len(function.calls) == 1
    assert data(again).identical(data(whole))
    assert victim.read_bytes() == content  # repaired


def test_no_flipped_bit_changes_a_result() -> None:
    """A flip in any byte of a file is noticed, or has no consequence (a time stamp of the archive)."""
    written = fields.to_fields({"a": np.arange(3.0), "b": "text"})
    content = stores.to_bytes(written, "case")
    noticed = 0
    for place in range(len(content)):
        found = stores.from_bytes(flip(content, place), "case")
        noticed += found is None
        if found is not None:
            assert list(found) == ["a", "b"]
            for name in found:
                np.testing.assert_array_equal(found[name].values, written[name].values)
                assert (found[name].dims, found[name].attrs) == (written[name].dims, written[name].attrs)
    assert noticed > len(content) / 2


def test_the_checksum_finds_what_the_archive_does_not(tmp_path: Path) -> None:
    """A file whose archive is sound, and whose array is not the one that was written."""
    path = tmp_path / "case.npz"
    path.write_bytes(stores.to_bytes(fields.to_fields(np.arange(3.0)), "case"))
    with np.load(path) as stored:
        entries = dict(stored)
    entries["array_0"][1] = 7
    np.savez(path, **entries)
    assert stores.from_bytes(path.read_bytes(), "case") is None
