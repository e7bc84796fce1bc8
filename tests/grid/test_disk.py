# SPDX-License-Identifier: BSD-3-Clause
"""Stores and outputs on a full disk, and in a place that can only be read."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.cli import main

N = [8, 16, 32, 64, 128]
GRID = {"n": list(range(1, 8))}
FULL = r"its result could not be stored: \[Errno 28\] No space left on device: '.*/cases/[0-9a-f]{32}\.npz'"


@contextmanager
def disk_of(cases: int) -> Iterator[None]:
    """A disk that is full after so many files of cases, as a folder's file system says it: without a path."""
    sync, room = os.fsync, [cases]

    def full(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if "/cases/" in name or "/checkpoints/" in name:
            room[0] -= 1
            if room[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", full)
        yield


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system on which nothing can be written."""
    opened = os.open

    def refuse(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refuse)


def sound(store: Path) -> int:
    """The number of stored cases, after a look for what a failed write may leave behind."""
    files = [path for path in store.rglob("*") if path.is_file() and "lock" not in path.name]
    assert all(path.stat().st_size and path.suffix != ".tmp" for path in files)
    return sum(path.suffix == ".npz" for path in files)


def draws(n: int, rng: Any) -> Any:
    return rng.standard_normal(n)


def sweep(store: Path | None, function: Any = draws, **options: Any) -> Any:
    pytest.importorskip("xarray")
    return at.sweep(function, GRID, store=store, progress=False, rng=3, **options)


def experiment(store: Path | None, **options: Any) -> Any:
    return at.montecarlo.entropy_vs_length(N, law="log_n", store=store, samples=300, rng=5, **options)


# ---- a full disk ---------------------------------------------------------------------------------


def test_a_sweep_on_a_full_disk_has_all_its_results(tmp_path: Path) -> None:
    whole = sweep(None)
    with (
        disk_of(4),
        pytest.raises(at.SweepError, match=f"^3 of 7 cases failed, the first at n=5: {FULL}") as full,
    ):
        sweep(tmp_path)
    assert "(4 are finished; " in str(full.value)
    assert list(full.value.failures) == ["n=5", "n=6", "n=7"]
    np.testing.assert_array_equal(full.value.partial["value"], whole["value"])
    assert sound(tmp_path) == 4
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cases").iterdir()}
    np.testing.assert_array_equal(sweep(tmp_path)["value"], whole["value"])
    assert sound(tmp_path) == 7
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())


def test_an_experiment_on_a_full_disk_has_all_its_results(tmp_path: Path) -> None:
    whole = experiment(None)
    with (
        disk_of(2),
        pytest.raises(at.SweepError, match=f"^3 of 5 cases failed, the first at n=32, .*: {FULL}") as full,
    ):
        experiment(tmp_path)
    np.testing.assert_array_equal(full.value.partial.value, whole.value)
    assert sound(tmp_path) == 2
    np.testing.assert_array_equal(experiment(tmp_path).value, whole.value)


def test_an_interrupted_experiment_on_a_full_disk(tmp_path: Path) -> None:
    def stop(done: int, total: int | None) -> None:
        if done > 600:
            raise KeyboardInterrupt

    with disk_of(1), pytest.raises(at.SweepError, match=FULL) as full:
        experiment(tmp_path, progress=stop)
    assert full.value.partial.interrupted
    assert full.value.partial.samples.tolist()[1] > 0
    assert sound(tmp_path) == 1


def test_commands_print_what_a_full_disk_does_not_take(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--n", "8", "16", "32", "--head-dim", "16", "--samples", "64", "--seed", "1"]
    command = ["mc", "max_cosine", *options]
    assert main(command) == 0
    table = capsys.readouterr().out
    with disk_of(2):
        assert main([*command, "--store", "mc"]) == 2
    said = capsys.readouterr()
    assert said.out == table
    assert said.err.startswith("attnscale: error: 1 of 3 cases failed, the first at n=32")
    assert said.err.endswith("(2 are finished; 'mc' keeps them)\n")
    pytest.importorskip("xarray")
    grid = "[grid]\nscale = [0.5, 1]\nhead_dim = [64, 128]\n"
    Path("own.toml").write_text(f'function = "attnscale.theory:sphere_entropy_deficit"\n{grid}')
    assert main(["sweep", "own.toml"]) == 0
    table = capsys.readouterr().out
    with disk_of(1):
        assert main(["sweep", "own.toml", "--store", "sweep"]) == 2
    said = capsys.readouterr()
    assert said.out == table
    assert "error: 3 of 4 cases failed" in said.err
    assert said.err.endswith("(1 are finished; 'sweep' keeps them)\n")


def test_a_merge_on_a_full_disk_goes_on(tmp_path: Path, capsys: Any) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    experiment(a, part="1/2")
    experiment(b, part="2/2")
    command = ["store", "merge", str(a), str(b), "--to", str(c)]
    with disk_of(3):
        assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "attnscale: error: 3 of 5 files are merged, and the same merge goes on: [Errno 28] No"
    )
    assert f"'{c}/cases/" in error
    assert sound(c) == 3
    assert main(command) == 0
    np.testing.assert_array_equal(experiment(c).value, experiment(None).value)


def test_a_store_that_cannot_begin_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*attnscale-mc\.json'"):
        experiment(tmp_path)
    assert sound(tmp_path) == 0
    assert not list(tmp_path.glob("*.json*"))


@pytest.mark.torch
def test_a_training_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))
    from tiny import Tiny

    whole = Tiny().run(2, progress=False)
    always = {"progress": False, "store": tmp_path, "checkpoint_seconds": 0.0}
    with (
        disk_of(0),
        pytest.warns(UserWarning, match=r"checkpoints cannot keep the state of a training, .* \(No space"),
        pytest.raises(
            at.SweepError, match=f"4 of 4 models failed, the first at slope=1.0, seed=0: {FULL}"
        ) as full,
    ):
        Tiny().run(2, **always)
    np.testing.assert_array_equal(full.value.partial.arrays["loss"], whole.arrays["loss"])
    assert sound(tmp_path) == 0
    again = Tiny().run(2, **always)
    np.testing.assert_array_equal(again.arrays["loss"], whole.arrays["loss"])


def test_a_damaged_state_begins_its_training_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))
    from tiny import Checkpoints

    (tmp_path / "unit-fit.pt").write_bytes(b"")  # a copy onto a full disk
    with pytest.warns(UserWarning, match="unit-fit.pt is damaged, and this training begins anew"):
        assert Checkpoints(tmp_path, "unit").read("fit") is None


TMPFS = """
mkdir {0}/small && mount -t tmpfs -o size=48k none {0}/small && cd {0}/small || exit 77
{1} sweep ../own.toml --store s; echo status $?
find . -name '*.tmp'; find . -name '*.npz' -size 0; ls s/cases | wc -l
mount -o remount,size=1m . ; {1} sweep ../own.toml --store s > ../grown; echo status $?
mount -o remount,ro . ; {1} sweep ../own.toml --store s | cmp - ../grown; echo status $?
"""


@pytest.mark.slow
def test_a_sweep_on_a_disk_of_48_kb(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    if not shutil.which("unshare"):
        pytest.skip("needs unshare")
    (tmp_path / "own_draws.py").write_text("def f(n, rng):\n    return rng.standard_normal(900)\n")
    (tmp_path / "own.toml").write_text(
        'function = "own_draws:f"\nrng = 1\n[grid]\nn = [1, 2, 3, 4, 5, 6, 7]\n'
    )
    script = TMPFS.format(tmp_path, f"{sys.executable} -m attnscale")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("may not mount a file system")
    table, _, rest = done.stdout.partition("status 2\n")
    assert table.count(" 900\n") == 7
    assert rest == "3\nstatus 0\nstatus 0\n"
    assert done.stderr.startswith(
        "attnscale: error: 4 of 7 cases failed, the first at n=4: its result could not"
    )


# ---- a place that can only be read ---------------------------------------------------------------


@pytest.mark.parametrize("run", [sweep, experiment])
def test_a_finished_store_is_read_where_nothing_can_be_written(
    run: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    request.getfixturevalue("read_only")
    for options in ({}, {"part": "1/2"}):
        again = run(tmp_path, **options)
        if run is sweep:
            assert again["value"].identical(whole["value"])
        else:
            np.testing.assert_array_equal(again.value, whole.value)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.torch
def test_a_finished_study_is_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))
    from tiny import Tiny

    whole = Tiny().run(2, progress=False, store=tmp_path)
    request.getfixturevalue("read_only")
    again = Tiny().run(2, progress=False, store=tmp_path)
    np.testing.assert_array_equal(again.arrays["loss"], whole.arrays["loss"])
    with pytest.raises(ValueError, match="which lacks 2 cases"):
        Tiny().run(3, progress=False, store=tmp_path)


@pytest.mark.parametrize("run", [sweep, experiment])
def test_an_unfinished_store_is_refused_where_nothing_can_be_written(
    run: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run(tmp_path, part="1/2")
    request.getfixturevalue("read_only")
    lacks = {"sweep": "3 cases", "experiment": "2 cases"}[run.__name__]
    with pytest.raises(ValueError, match="store must be writable while cases are missing, got ") as refused:
        run(tmp_path)
    assert str(refused.value).endswith(f"got {str(tmp_path)!r} (Read-only file system), which lacks {lacks}")
    with pytest.raises(ValueError, match="store must be a folder that can be made and written"):
        run(tmp_path / "new")


# ---- outputs -------------------------------------------------------------------------------------


def test_an_output_that_is_there_outlives_a_full_disk(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["laws", "--csv", "laws.csv"]) == 0
    Path("laws.csv").chmod(0o600)
    content = Path("laws.csv").read_bytes()
    with monkeypatch.context() as patched:

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patched.setattr(os, "fsync", full)
        assert main(["theory", "--n", "8", "--csv", "laws.csv"]) == 1
    assert capsys.readouterr().err == "attnscale: error: --csv laws.csv: No space left on device\n"
    assert Path("laws.csv").read_bytes() == content
    assert main(["theory", "--n", "8", "--csv", "laws.csv"]) == 0
    assert Path("laws.csv").read_bytes() != content
    assert Path("laws.csv").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["laws.csv"]


class Short(io.RawIOBase):
    """Standard output of ``python -u`` that takes 10 bytes at a time, like a disk with little room."""

    def __init__(self) -> None:
        self.taken = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.taken += content[:10]
        return min(10, len(content))


def test_unbuffered_output_is_whole(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["laws"]) == 0
    table = capsys.readouterr().out
    short = Short()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(short, encoding="utf-8", write_through=True))  # type: ignore[arg-type]
    assert main(["laws"]) == 0
    assert short.taken.decode() == table
