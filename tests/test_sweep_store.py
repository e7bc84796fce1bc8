# SPDX-License-Identifier: BSD-3-Clause
"""sweep with a store: resume, also after kill -9, damage, and stores of something else."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
import sweep_functions
from attnscale.sweep import _store
from attnscale.sweep._describe import describe
from attnscale.sweep._results import to_fields

pytest.importorskip("xarray")

GRID = {"n": [1, 2, 3], "law": ["a", "b"]}


class Counting:
    """A function that knows what it was called with."""

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
    entropy = int(table.attrs["entropy"])
    np.testing.assert_array_equal(table["value"], sweep(function, {"n": [1, 2, 3]}, rng=entropy)["value"])


# ---- killed ------------------------------------------------------------------------------------

SCRIPT = """
import sys, time
import attnscale as at, numpy as np

def large(n, rng):
    time.sleep(0.02)
    return rng.standard_normal((1000, 400)) * n

table = at.sweep(large, {"n": list(range(8))}, store=sys.argv[1], rng=4, progress=False)
np.save(sys.argv[1] + ".npy", table["value"].values)
"""


def wait_for(condition: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.0005)


@pytest.mark.parametrize("moment", ["between cases", "while a file is written"])
def test_kill_9_loses_nothing_that_was_finished(moment: str, tmp_path: Path) -> None:
    script, store = tmp_path / "script.py", tmp_path / "store"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(store)]
    cases = store / "cases"
    process = subprocess.Popen(command)
    wait_for(lambda: len(list(cases.glob("*.npz"))) >= 3, process)
    if moment == "while a file is written":
        wait_for(lambda: list(cases.glob("*.tmp")), process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    kept = {path: path.stat().st_mtime_ns for path in cases.glob("*.npz")}
    assert 3 <= len(kept) < 8
    subprocess.run(command, check=True)
    assert len(case_files(store)) == 8
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    clean = sweep(lambda n, rng: rng.standard_normal((1000, 400)) * n, {"n": list(range(8))}, rng=4)
    np.testing.assert_array_equal(np.load(f"{store}.npy"), clean["value"])


def test_what_is_written_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: events.append(os.readlink(f"/proc/self/fd/{fd}")) or sync(fd))
    monkeypatch.setattr(Path, "replace", lambda a, b: events.append(f"{a} -> {b}") or replace(a, b))
    path = tmp_path / "file"
    _store._write(path, b"content")
    assert events == [f"{path}.tmp", f"{path}.tmp -> {path}", str(tmp_path)]
    assert path.read_bytes() == b"content"


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
    """Each byte of a file: it is either noticed, or of no consequence (a time stamp of the archive)."""
    fields = to_fields({"a": np.arange(3.0), "b": "text"})
    content = _store.to_bytes(fields, "case")
    noticed = 0
    for place in range(len(content)):
        found = _store.from_bytes(flip(content, place), "case")
        noticed += found is None
        if found is not None:
            assert list(found) == ["a", "b"]
            for name in found:
                np.testing.assert_array_equal(found[name].values, fields[name].values)
                assert (found[name].dims, found[name].attrs) == (fields[name].dims, fields[name].attrs)
    assert noticed > len(content) / 2


def test_the_checksum_finds_what_the_archive_does_not(tmp_path: Path) -> None:
    """A file whose archive is sound, and whose array is not the one that was written."""
    fields = to_fields(np.arange(3.0))
    path = tmp_path / "case.npz"
    path.write_bytes(_store.to_bytes(fields, "case"))
    with np.load(path) as stored:
        entries = dict(stored)
    entries["array_0"][1] = 7
    np.savez(path, **entries)
    assert _store.from_bytes(path.read_bytes(), "case") is None


# ---- something else ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Law:
    base: float


def square(x: float, power: int = 2) -> float:
    """Square."""
    return x**power


def other_source(x: float, power: int = 2) -> float:
    return x ** (power + 0)


other_source.__qualname__ = "square"


@pytest.mark.parametrize(
    ("function", "grid", "options", "message"),
    [
        (other_source, {"x": [1, 2]}, {}, "whose function has 'source' = "),
        (functools.partial(square, power=3), {"x": [1, 2]}, {}, "whose function has 'function' = "),
        (square, {"x": [1, 2, 3]}, {}, "whose grid has 'x' = [1, 2] and not [1, 2, 3]; choose another"),
        (square, {"x": [1, 2.0]}, {}, "whose grid has 'x' = [1, 2] and not [1, 2.0]"),
        (square, {"x": [1, 2.5]}, {}, "whose grid has 'x' = [1, 2] and not [1, 2.5]"),
        (square, {"power": [1, 2]}, {"constants": {"x": 1}}, "whose constants has 'x' = null and not 1"),
        (square, {"x": [1, 2]}, {"constants": {"power": 3}}, "whose constants has 'power' = null and not 3"),
    ],
)
def test_a_store_of_another_sweep_is_refused(
    function: Any, grid: Any, options: Any, message: str, tmp_path: Path
) -> None:
    sweep(square, {"x": [1, 2]}, store=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="store must be of this sweep") as raised:
        sweep(function, grid, store=tmp_path, **options)
    assert message in str(raised.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_comments_and_docstrings_do_not_count(tmp_path: Path) -> None:
    told = []
    for words in ("one", "two"):
        source = f"def f(x):\n    '''{words}'''\n    # {words}\n    return x\n"
        path = tmp_path / f"{words}.py"
        path.write_text(source)
        scope: dict[str, Any] = {"__name__": "m"}
        exec(compile(source, str(path), "exec"), scope)
        told.append(describe("f", scope["f"]))
    assert told[0] == told[1]


def test_another_law_of_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscale.laws._registry._functions", {})
    grid = {"law": ["standard", "sweep_store_test"]}
    at.laws.register("sweep_store_test")(lambda n, head_dim: 0.25)
    sweep(sweep_functions.scale_of, grid, store=tmp_path)
    at.laws.register("sweep_store_test")(lambda n, head_dim: 0.5)
    with pytest.raises(ValueError, match="whose laws has 'sweep_store_test' = "):
        sweep(sweep_functions.scale_of, grid, store=tmp_path)


def test_another_seed_is_refused(tmp_path: Path) -> None:
    sweep(sweep_functions.draw, {"n": [1]}, store=tmp_path, rng=1)
    with pytest.raises(ValueError, match="whose seed has 'entropy' = 1 and not 2"):
        sweep(sweep_functions.draw, {"n": [1]}, store=tmp_path, rng=2)


def test_another_version_and_another_format_are_refused(tmp_path: Path) -> None:
    sweep(square, {"x": [1]}, store=tmp_path)
    path = tmp_path / "attnscale-sweep.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "attnscale": "0.0.9"}))
    with pytest.raises(ValueError, match=r'whose attnscale is "0\.0\.9" and not "'):
        sweep(square, {"x": [1]}, store=tmp_path)
    path.write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(ValueError, match=r"store must have format 1, got 99 in .* written by attnscale"):
        sweep(square, {"x": [1]}, store=tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "else"}', "\x00\x01"])
def test_a_manifest_of_another_program_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "attnscale-sweep.json").write_text(content)
    with pytest.raises(ValueError, match=r"store must be written by a sweep, got .* of another program"):
        sweep(square, {"x": [1]}, store=tmp_path)


def test_a_directory_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match=r"store must be a new or empty directory or one of a sweep, got "):
        sweep(square, {"x": [1]}, store=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_write_to_one_store(tmp_path: Path) -> None:
    code = (
        "import sys, time; from attnscale.sweep._store import Store\n"
        "with Store(sys.argv[1]).locked(): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        with pytest.raises(ValueError, match="one sweep at a time, another process writes"):
            sweep(square, {"x": [1]}, store=tmp_path)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert sweep(square, {"x": [1]}, store=tmp_path)["value"].item() == 1


# ---- what identifies a value -------------------------------------------------------------------


def test_equal_values_are_described_equally_and_others_are_not() -> None:
    y, z = 1.0, 2.0
    groups = [
        [512, np.int64(512)],
        [512.0, np.float32(512)],
        ["512"],
        [True],
        [None],
        [(1, 2), [1, 2]],
        [np.array([1, 2])],
        [np.array([1.0, 2.0]), np.array([[1.0, 2.0]])[0]],
        [np.array([[1.0, 2.0]])],
        [Law(2), Law(2)],
        [Law(3)],
        [at.laws.LogN(), at.laws.get("log_n")],
        [at.laws.LogN(base=64)],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{1, 2}, {2, 1}],
        [Path("a/b")],
        [lambda x: x + y],
        [lambda x: x + z],
        [lambda x: x - y],
        [functools.partial(square, 2)],
        [square, square],
        [Law],
        [math_module()],
        [at.attention],
    ]
    seen: list[Any] = []
    for group in groups:
        told = [describe("x", value) for value in group]
        assert all(json.loads(json.dumps(each)) == told[0] for each in told)
        assert not any(repr(told[0]) == repr(other) for other in seen), group
        seen.append(told[0])


def math_module() -> Any:
    import math

    return math


def test_functions_that_call_themselves_are_described() -> None:
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert describe("f", factorial)["function"].endswith("factorial")


def test_methods_tell_their_object() -> None:
    class Shift:
        def __init__(self, by: float) -> None:
            self.by = by

        def __repr__(self) -> str:
            return f"Shift({self.by})"

        def add(self, x: float) -> float:
            return x + self.by

    assert describe("f", Shift(1).add) == describe("f", Shift(1).add)
    assert describe("f", Shift(1).add) != describe("f", Shift(2).add)
