# SPDX-License-Identifier: BSD-3-Clause
"""Parts of a sweep, an experiment and a training in a shared store, and merged stores."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import re
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale._grid import case, fields, files, merge, part, store
from attnscale.cli import main

make_cases, locked, merge_stores, Part = case.make_cases, files.locked, merge.merge_stores, part.Part
Store, from_bytes, to_bytes = store.Store, store.from_bytes, store.to_bytes
write_new, write_whole = store.write_new, store.write_whole
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "cluster.md"
GRID = {"n": [4, 8, 16, 32], "law": ["standard", "log_n"]}
N = [8, 16, 32, 64, 128]
AS_ONE = {"samples": 300, "rng": 5}


def entropy(n: int, law: str, rng: Any) -> Any:
    query, key = rng.standard_normal((2, 3, n, 8))
    return at.attention_entropy(query, key, scale=law).mean(axis=-1)


class Counted:
    """The function `entropy`, which records its calls and may interrupt itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []
        self.dies_at = 0

    def __repr__(self) -> str:
        return "Counted()"

    def __call__(self, n: int, law: str, rng: Any) -> Any:
        self.calls.append((n, law))
        if n == self.dies_at:
            raise KeyboardInterrupt
        return entropy(n, law, rng)


def sweep(store: Any = None, function: Any = entropy, **options: Any) -> Any:
    return at.sweep(function, GRID, store=store, progress=False, **{"rng": 3, **options})


def same(one: Any, other: Any) -> bool:
    return bool(one.drop_attrs(deep=False).identical(other.drop_attrs(deep=False)))


def draw(store: Any = None, **options: Any) -> Any:
    return at.montecarlo.entropy_vs_length(N, law="log_n", store=store, **{**AS_ONE, **options})


# ---- parts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [1, 3, 7, 8])
def test_each_case_is_in_one_part(of: int) -> None:
    cases = make_cases(GRID, None)
    parts = [Part(k, of).choose(cases) for k in range(1, of + 1)]
    assert sorted(case.index for part in parts for case in part) == [case.index for case in cases]
    assert {len(part) for part in parts} <= {len(cases) // of, -(-len(cases) // of)}


def test_the_last_part_of_a_sweep_has_what_one_machine_has(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    whole = sweep()
    assert whole.attrs["missing"] == 0
    counted = Counted()
    first = sweep(tmp_path, counted, part=(2, 3))
    assert first.attrs["missing"] == 5
    assert np.isnan(first["value"].values).sum() == 3 * 5
    sweep(tmp_path, counted, part="3/3")
    assert same(sweep(tmp_path, counted, part="1/3"), whole)
    assert sorted(counted.calls) == sorted((n, law) for n in GRID["n"] for law in GRID["law"])
    assert same(sweep(tmp_path, counted), whole)
    assert same(sweep(tmp_path, counted, part="2/4"), whole)  # other parts of the same store
    assert len(counted.calls) == 8


def test_a_part_that_died_is_finished_by_running_it_again(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    counted = Counted()
    counted.dies_at = 16
    with pytest.raises(at.SweepInterrupted, match="2 of 4 cases are finished"):
        sweep(tmp_path, counted, part="1/2")
    counted.dies_at = 0
    assert sweep(tmp_path, counted, part="1/2").attrs["missing"] == 4
    assert [n for n, _ in counted.calls] == [4, 8, 16, 16, 32]
    assert same(sweep(tmp_path, counted, part="2/2"), sweep())


def test_parts_of_an_experiment(tmp_path: Path) -> None:
    whole = draw()
    first = draw(tmp_path, part="2/2")
    assert first.missing == 3
    assert first.samples.tolist() == [0, whole.samples[1], 0, whole.samples[3], 0]
    last = draw(tmp_path, part="1/2", rng=None)  # the store has the seed
    assert last.missing == 0
    np.testing.assert_array_equal(last.value, whole.value)
    np.testing.assert_array_equal(last.standard_error, whole.standard_error)
    more = draw(tmp_path, part="1/2", samples=600)
    assert more.missing == 2
    np.testing.assert_array_equal(more.value[::2], draw(samples=600).value[::2])


def test_the_time_that_is_announced_is_of_the_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def announced(experiment: Any, rows: int, target: Any, tallies: Any, threads: int) -> str:
        seen.append((len(experiment.cases), len(tallies)))
        return ""

    monkeypatch.setattr("attnscale.montecarlo._run.announcement", announced)
    for half in ("1/2", "2/2"):
        draw(tmp_path, part=half, announce=print)
    draw(announce=print)
    assert seen == [(3, 3), (2, 2), (5, 5)]


def test_commands_say_that_other_parts_are_missing(tmp_path: Path, capsys: Any) -> None:
    options = ["--n", "8", "16", "32", "--head-dim", "16", "--samples", "64", "--seed", "1"]
    command = ["mc", "max_cosine", *options]
    parts = [*command, "--store", str(tmp_path), "--part"]
    assert main([*parts, "1/2"]) == 0
    said = capsys.readouterr()
    assert said.err == (
        "attnscale: part 1/2 is finished, and 2 of 3 cases of the store are; the same command without --part "
        "computes and shows the rest\n"
    )
    assert main([*parts, "2/2"]) == 0
    whole = capsys.readouterr()
    assert whole.err == ""
    assert main(command) == 0
    assert capsys.readouterr().out == whole.out
    assert main([*command, "--part", "1/2"]) == 2
    assert "--part must come with a store, where the parts meet" in capsys.readouterr().err


@pytest.mark.torch
def test_parts_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))
    from tiny import Tiny

    whole = Tiny().run(2, progress=False)
    first = Tiny().run(2, progress=False, store=tmp_path, part="1/3")
    assert np.isnan(first.arrays["last"]).tolist() == [[False, True], [True, False]]
    for third in ("2/3", "3/3"):
        last = Tiny().run(2, progress=False, store=tmp_path, part=third)
    for name, values in whole.arrays.items():
        np.testing.assert_array_equal(last.arrays[name], values)


def test_two_threads_are_two_users_of_a_store(tmp_path: Path) -> None:
    refused = []
    with Store(tmp_path).locked(Part(1, 2)), ThreadPoolExecutor(1) as other:

        def enter(part: Any = None) -> None:
            try:
                with Store(tmp_path).locked(part):
                    pass
            except ValueError as error:
                refused.append(str(error))

        for own in (Part(2, 2), Part(1, 2), None):
            other.submit(enter, own).result()
        assert [text.partition(", another")[0] for text in refused] == [
            "store must be used by one process for part 1/2, or for the whole, at a time",
            "store must be used by one sweep at a time",
        ]
        code = "import sys; from attnscale._grid.store import *\nwith Store(sys.argv[1]).locked(): pass"
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False)
        assert b"another process writes" in done.stderr  # the threads that left released nothing
    with Store(tmp_path).locked():
        pass


FORKED = """
import os, sys; from pathlib import Path; from attnscale._grid.files import locked

def free():
    with locked(Path(sys.argv[1]), wait=False) as held:
        return held

told, say = os.pipe()
with locked(Path(sys.argv[1]), wait=False):
    if not os.fork():
        os._exit(free())
    while_held = os.wait()[1]
    if not os.fork():
        os.read(told, 1)
        os._exit(not free())
os.write(say, b"-")
sys.exit(while_held or os.wait()[1])
"""


def test_a_forked_process_holds_no_lock_of_its_parent(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(tmp_path / "lock")], check=False)
    assert done.returncode == 0


def test_a_part_works_beside_other_parts_and_not_beside_itself_or_the_whole(tmp_path: Path) -> None:
    held = "import sys; from attnscale._grid.store import *; from contextlib import ExitStack\n"
    held += "with Store(sys.argv[1]).locked(Part.read(sys.argv[2], 1)): print('held', flush=True); input()"
    command, pipe = [sys.executable, "-c", held, str(tmp_path), "1/2"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with Store(tmp_path).locked(Part(2, 2)):
            pass
        with pytest.raises(ValueError, match="one process for part 1/2"), Store(tmp_path).locked(Part(1, 2)):
            pass
        with pytest.raises(ValueError, match="one sweep at a time"), Store(tmp_path).locked():
            pass
        other.communicate(b"\n")
    with locked(tmp_path / "lock", wait=False) as free:
        assert free


@pytest.mark.parametrize(
    ("part", "store", "kind", "message"),
    [
        ("0/2", "s", ValueError, "part must be k of N parts, counted from 1 to N, got '0/2'"),
        ((3, 2), "s", ValueError, r"counted from 1 to N, got \(3, 2\)"),
        ("1", "s", ValueError, r"part must be 'k/N' or a pair \(k, N\), got '1'"),
        (0.5, "s", TypeError, "got 0.5"),
        ("1/2", None, ValueError, "part must come with a store, where the parts meet, got '1/2' alone"),
        ("1/9", "s", ValueError, "part must be one of at most 5 parts, one a case, got 1/9"),
    ],
)
def test_what_is_no_part_is_refused(
    part: Any, store: str | None, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        draw(store and tmp_path / store, part=part)
    assert not (tmp_path / "s").exists()


def test_parts_draw_with_one_seed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="part must come with a seed, rng, where the store has none"):
        draw(tmp_path, part="1/2", rng=None)
    pytest.importorskip("xarray")
    with pytest.raises(ValueError, match="part must come with a seed"):
        sweep(tmp_path / "sweep", part="1/2", rng=None)


# ---- the page ----------------------------------------------------------------------------------

MODULE = """
import attnscale as at

def mean_entropy(n, law, rng):
    query, key = rng.standard_normal((2, 3, n, 8))
    return at.attention_entropy(query, key, scale=law).mean()
"""
FILE = 'function = "own_module:mean_entropy"\nstore = "runs/lengths"\nrng = 0\n[grid]\n'
FILE += 'n = [4, 8, 16, 32, 64]\nlaw = ["standard", "log_n"]\n'


@pytest.mark.slow
def test_the_job_array_of_the_page_in_processes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("xarray")
    monkeypatch.chdir(tmp_path)
    Path("own_module.py").write_text(MODULE)
    Path("lengths.toml").write_text(FILE)
    (script,) = re.findall(r"```bash\n(#!.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    first, last = map(int, re.search(r"--array=(\d+)-(\d+)", script).groups())  # type: ignore[union-attr]
    Path("array.sh").write_text(script)
    where = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "SLURM_CPUS_PER_TASK": "1"}
    jobs = [
        subprocess.Popen(
            ["bash", "array.sh"],
            env=where | {"SLURM_ARRAY_TASK_ID": str(k)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(first, last + 1)
    ]
    printed = [job.communicate() for job in jobs]
    assert [job.returncode for job in jobs] == [0] * len(jobs), printed
    remarks = [error for _, error in printed if error]
    assert all(re.fullmatch(r"attnscale: part ./8 is finished, and \d of 10 cases .*\n", x) for x in remarks)
    tables = {text for text, error in printed if not error}
    assert len(tables) == 1  # of the last, or of several that saw all
    assert main(["sweep", "lengths.toml", "--store", "one"]) == 0
    assert {capsys.readouterr().out} == tables
    sys.modules.pop("own_module", None)


# ---- merged stores -------------------------------------------------------------------------------


def run_merge(*arguments: Any) -> int:
    return main(["store", "merge", *map(str, arguments)])


def test_stores_of_machines_without_a_common_disk(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xarray")
    whole = sweep()
    a, b, c = (tmp_path / name for name in "abc")
    sweep(a, part="1/2")
    sweep(b, part="2/2")
    assert run_merge(a, b, "--to", c) == 0
    assert capsys.readouterr().out == f"{c}: 8 cases of 2 stores\n"
    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", lambda *_: pytest.fail("computed again"))
        assert same(sweep(c), whole)
    assert len(list((a / "cases").iterdir())) == 4  # as it was
    assert run_merge(b, "--to", a) == 0  # into one that is there
    assert len(list((a / "cases").iterdir())) == 8


def test_the_longer_tally_of_a_case_is_kept(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    draw(a)
    draw(b, samples=600, part="1/2")
    for stores in ((a, b), (b, a)):
        shutil.rmtree(c, ignore_errors=True)
        assert merge_stores(stores, c).cases == 5
        found = draw(c, samples=1)
        assert found.samples.tolist() == [600, 300, 600, 300, 600]
        np.testing.assert_array_equal(found.value[::2], draw(samples=600).value[::2])


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"seed": {"entropy": 4}}, "whose seed has 'entropy' = 4 and not 5"),
        ({"attnscale": "0.0.1"}, f'whose attnscale is "0.0.1" and not "{at.__version__}"'),
        ({"parameters": {"n": [1]}}, "whose parameters has 'n' = "),
    ],
)
def test_stores_that_were_made_otherwise_are_refused(
    change: dict[str, Any], difference: str, tmp_path: Path, capsys: Any
) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    draw(a, part="1/2")
    shutil.copytree(a, b)
    manifest = b / "attnscale-mc.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    assert run_merge(a, b, "--to", c) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"attnscale: error: stores must be of the same work as '{a}', got '{b}', whose ")
    assert difference in error
    assert error.count("\n") == 1
    assert not c.exists()


def test_what_cannot_be_merged(tmp_path: Path, capsys: Any) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    draw(a, samples=300)
    shutil.copytree(a, b)
    assert run_merge(a, tmp_path, "--to", c) == 2
    assert "stores must be stores, got " in capsys.readouterr().err
    (one, other, *_) = sorted((b / "cases").iterdir())
    one.write_bytes(one.read_bytes()[:-9])
    other.unlink()
    assert run_merge(b, "--to", c) == 0
    assert "damaged, and left out" in capsys.readouterr().err
    assert run_merge(b, a, "--to", c) == 0  # whole in the other store
    assert capsys.readouterr().err == ""
    assert draw(c).missing == 0
    store, case = Store(b, "mc"), sorted((b / "cases").iterdir())[-1]
    fields = from_bytes(case.read_bytes(), case.stem)
    assert fields is not None
    fields["sums"].values[...] += 1
    with np.load(case) as stored:
        digest = json.loads(stored["about"][0])["case"]
    case.write_bytes(to_bytes(fields, digest))
    with pytest.raises(ValueError, match="must have the same result for the same case"):
        merge_stores([a, store.directory], c)


def state(step: int) -> bytes:
    """A file with the structure that torch.save gives a state."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"model": OrderedDict(a=1), "step": step}, 2))
    return content.getvalue()


def test_the_later_state_of_a_training_is_kept_not_the_younger_file(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    identity = {"experiment": "tiny", "config": {}, "registration": None}
    for folder, step in ((a, 900), (b, 10)):
        with Store(folder, "train").locked():
            Store(folder, "train").claim(identity)
        states = folder / "checkpoints"
        states.mkdir()
        (states / f"unit-of-{folder.name}.pt").write_bytes(b"damaged")
        (states / "shared-fit.pt").write_bytes(state(step))
        (states / "half-fit.pt").write_bytes(state(3) if folder == b else b"")
        os.utime(states / "shared-fit.pt", (1000 - step, 1000 - step))
    for stores in ((a, b), (b, a)):
        merge_stores(stores, c)
        found = {path.name: path.read_bytes() for path in (c / "checkpoints").iterdir()}
        damaged = {"unit-of-a.pt": b"damaged", "unit-of-b.pt": b"damaged"}
        assert found == {"shared-fit.pt": state(900), "half-fit.pt": state(3), **damaged}
        shutil.rmtree(c)


class Trap:
    """An object whose pickle makes a folder when it is read."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("trap",)


def test_the_step_of_a_state_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("state.pt", "w") as archive:
        archive.writestr("state/data.pkl", pickle.dumps({"model": Trap(), "step": 7}))
    assert merge.step_of(Path("state.pt")) == 7
    assert os.listdir() == ["state.pt"]


@pytest.mark.torch
def test_the_step_of_a_state_that_pytorch_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))
    from tiny import Tiny

    def stop(line: str) -> None:
        if "after" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tiny(steps=40).run(1, store=tmp_path, progress=False, checkpoint_seconds=0.0, watch=stop)
    paths = list((tmp_path / "checkpoints").glob("*.pt"))
    assert paths
    for path in paths:
        assert merge.step_of(path) == torch.load(path, weights_only=True)["step"] > 0


# ---- stores that several processes begin at once, and file systems that lack something --------------


def test_of_two_identities_at_the_same_moment_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both processes see a new folder before either writes."""
    first, second = (Store(tmp_path, "mc") for _ in range(2))
    identities = [{"experiment": "tiny", "seed": seed} for seed in (1, 2)]
    read = Store.read_manifest
    seen: list[Store] = []

    def blind(self: Any) -> Any:
        """The manifest, but nothing at the first look of each."""
        if self in seen:
            return read(self)
        seen.append(self)
        return None

    monkeypatch.setattr(Store, "read_manifest", blind)
    assert first.claim(identities[0]) == identities[0]
    with pytest.raises(ValueError, match="whose seed is 1 and not 2"):
        second.claim(identities[1])
    assert read(second)["seed"] == 1


def test_one_of_many_processes_writes_a_new_file(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / str(number)
        ready = threading.Barrier(4)

        def write(content: bytes, path: Path = path, ready: threading.Barrier = ready) -> tuple[bool, bytes]:
            ready.wait()
            return write_new(path, content), content

        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(write, (b"a", b"b", b"c", b"d")))
        assert [content for written, content in done if written] == [path.read_bytes()]
    assert len(list(tmp_path.iterdir())) == 20


def test_a_new_file_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    assert write_new(tmp_path / "a", b"one")
    assert not write_new(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_case_of_another_work_is_not_read(tmp_path: Path) -> None:
    found = {"x": fields.Field(np.arange(3.0))}
    content = to_bytes(found, "case", "one work")
    assert from_bytes(content, "case", "one work") is not None
    assert from_bytes(content, "case") is not None
    assert from_bytes(content, "case", "another") is None
    assert from_bytes(to_bytes(found, "case"), "case", "another") is not None  # written before it was told


def test_a_folder_that_cannot_be_put_on_disk_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    write_whole(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"
