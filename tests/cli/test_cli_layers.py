# SPDX-License-Identifier: BSD-3-Clause
"""Queries and keys of a whole model: a folder with a file for each layer, and chosen heads."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from attnscale.calibration import parts
from attnscale.cli import entropy, main

RNG = np.random.default_rng(11)
QUERY = 2 * RNG.standard_normal((3, 4, 48, 8)).astype(np.float32)  # layers first
KEY = RNG.standard_normal((3, 2, 48, 8)).astype(np.float32)
LAWS = ["--laws", "log_n", "[1, 1.5, 2, 3] * standard"]


@pytest.fixture
def folder(tmp_path):
    """Layers 0, 2 and 10, in three formats, beside a file of something else."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "README.md").write_text("Activations.")
    np.savez(path / "layer_10.npz", q=QUERY[2], k=KEY[2])
    np.save(path / "layer_2_query.npy", QUERY[1])
    np.save(path / "layer_2_key.npy", KEY[1])
    np.savez_compressed(path / "layer_0.npz", q=QUERY[0], k=KEY[0])
    return path


@pytest.fixture
def stacked(tmp_path):
    """All layers in one file."""
    shared = KEY.repeat(2, 1).reshape(12, 48, 8)
    named = {"layers": np.repeat([0, 2, 10], 4), "heads": np.tile(range(4), 3)}
    np.savez(tmp_path / "stacked.npz", q=QUERY.reshape(12, 48, 8), k=shared, **named)
    return str(tmp_path / "stacked.npz")


def rows(run, *arguments):
    found = json.loads(run(*arguments, "--json"))
    return found["heads" if arguments[0] == "calibrate" else "rows"]


@pytest.mark.parametrize("command", ["entropy", "calibrate"])
@pytest.mark.parametrize("options", [["--n", "16", "48"], ["--causal"]])
def test_a_folder_is_the_layers_beside_each_other(run, folder, stacked, command, options):
    laws = ["--laws", "standard", "log_n", *options]
    assert rows(run, command, str(folder), *laws) == rows(run, command, stacked, *laws)
    if command == "calibrate":
        one, other = (json.loads(run(command, each, *laws, "--json")) for each in (str(folder), stacked))
        assert one == other  # the median law too, which all layers have in common


@pytest.mark.parametrize("command", ["entropy", "calibrate"])
def test_heads_are_chosen(run, folder, command):
    """Laws with a number a head have one for each chosen head."""
    given = [command, str(folder), "--laws", "log_n"]
    whole = rows(run, *given)
    assert rows(run, *given, "--head", "1-2") == [row for row in whole if row["head"][-1] in "12"]
    path = str(folder / "layer_10.npz")
    whole = rows(run, command, path, *LAWS, "--n", "16", "32")
    some = rows(
        run, command, path, "--laws", "log_n", "[1, 3] * standard", "--n", "16", "32", "--head", "0", "3"
    )
    numbers = ["entropy"] if command == "entropy" else ["target", "beta"]
    for name in numbers:
        assert [row[name] for row in some] == [row[name] for row in whole if row["head"] in "03"]


@pytest.mark.parametrize("command", ["entropy", "calibrate"])
def test_parts_of_a_file_have_the_bits_of_the_whole(run, monkeypatch, folder, command):
    """Numbers between multiples of their size are read a few heads at a time."""
    path = str(folder / "layer_10.npz")
    options = [*LAWS, "--n", "16", "40"]
    whole = run(command, path, *options, "--json")
    monkeypatch.setattr("attnscale._files.heads._PART", 1)
    assert run(command, path, *options, "--json") == whole


@pytest.mark.parametrize(
    ("command", "module", "work"),
    [("entropy", entropy, "mean_entropy"), ("calibrate", parts, "calibrate")],
)
def test_ctrl_c_keeps_finished_layers(run, capsys, monkeypatch, folder, tmp_path, command, module, work):
    given = [command, str(folder), "--n", "16", "32", "--laws", "standard", "log_n", "--csv", "-"]
    whole = run(*given)
    kept = [*given, "--store", str(tmp_path / "kept")]
    original, seen = getattr(module, work), []

    def interrupted(*arguments, **options):
        seen.append(arguments)
        if len(seen) > (6 if command == "entropy" else 1):  # in the second layer
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(module, work, interrupted)
    assert main(kept) == 130
    out, err = capsys.readouterr()
    assert f"{tmp_path / 'kept'} keeps it; to resume: attnscale {shlex.join(kept)}\n" in err
    heads = [line.split(",")[0] for line in out.splitlines()[1:]]
    assert set(heads) == {"L0 H0", "L0 H1", "L0 H2", "L0 H3"}
    monkeypatch.setattr(module, work, original)
    assert run(*kept) == whole
    monkeypatch.setattr(module, work, None)  # all of it is in the store
    assert run(*kept) == whole
    monkeypatch.setattr(module, work, original)
    np.savez(folder / "layer_10.npz", q=QUERY[2, :, ::-1], k=KEY[2])  # a file that was written anew
    changed = run(*kept).splitlines()
    assert [a == b for a, b in zip(changed, whole.splitlines(), strict=True)].count(False) > 0
    assert [line for line in changed if "L10" not in line] == [
        x for x in whole.splitlines() if "L10" not in x
    ]


@pytest.mark.parametrize("command", ["entropy", "calibrate"])
def test_results_that_cannot_be_stored_are_printed(run, capsys, monkeypatch, folder, tmp_path, command):
    given = [command, str(folder), "--n", "16", "32", "--laws", "log_n"]
    whole, store = run(*given), tmp_path / "kept"

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("attnscale._grid.store.write_whole", full)
    assert main([*given, "--store", str(store)]) == 2
    out, err = capsys.readouterr()
    assert out == whole
    assert err.startswith(f"attnscale: error: --store {store}: ")
    assert "results could not be stored: [Errno 28] No space left on device: " in err


def test_hidden_files_are_no_layers(run, folder):
    whole = run("entropy", str(folder), "--csv", "-")
    (folder / "._layer_10.npz").write_bytes(b"macOS keeps attributes in such files")
    (folder / ".layer_2_query.npy").write_bytes(b"")
    assert run("entropy", str(folder), "--csv", "-") == whole


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "there is no file of queries and keys here (.npz, .safetensors, .pt"),
        (["a_query.npy"], "a_query.npy: there is no key of this query"),
        (["a.npy"], "a.npy: the name must say query or key, as 0_query.npy and 0_key.npy"),
        (["a_q.npy", "a_query.npy"], "a_query.npy: a_q.npy is of the same layer"),
        (["a.npz", "a_q.npy"], "a_q.npy: a.npz is of the same layer"),
        (["a.npz", "a.safetensors"], "a.safetensors: a.npz is of the same layer"),
    ],
)
def test_folders_that_are_refused(fail, tmp_path, files, message):
    for name in files:
        (tmp_path / name).touch()
    assert message in fail("entropy", str(tmp_path))


def test_layers_of_several_lengths_need_one(run, fail, folder):
    np.savez(folder / "layer_11.npz", q=QUERY[0, :, :32], k=KEY[0, :, :32])
    for command in ("entropy", "calibrate"):
        line = fail(command, str(folder))
        assert "--n must be given for layers of different numbers of queries and keys" in line
        assert len(rows(run, command, str(folder), "--n", "16", "24", "--laws", "log_n")) >= 16
    assert "--n must be between 1 and 32, the tokens in the file, got 40" in fail(
        "entropy", str(folder), "--n", "40"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("4", "--head must be between 0 and 3, the heads of "),
        ("x", "--head must be a number from 0, or FIRST-LAST, got 'x'"),
        ("3-1", "--head must be a number from 0, or FIRST-LAST, got '3-1'"),
    ],
)
def test_heads_that_are_not_there(fail, folder, given, message):
    for command in ("entropy", "calibrate"):
        assert message in fail(command, str(folder), "--head", given)


@pytest.mark.parametrize("name", ["stacked", "by_layer"])
def test_heads_of_a_report_keep_their_places(run, tmp_path, stacked, name):
    np.savez(tmp_path / "by_layer.npz", q=QUERY, k=KEY)
    page = ["--lengths", "16", "32", "--laws", "log_n", "--json", "--output", str(tmp_path / "page.html")]
    whole, some = (
        json.loads(run("report", str(tmp_path / f"{name}.npz"), *page, *more))
        for more in ([], ["--head", "1", "3"])
    )
    places = [(place, number) for place, number in enumerate(whole["heads"]) if number in (1, 3)]
    if name == "stacked":
        places = [(1, 1), (3, 3)]  # on the one axis of heads of the file
    assert some["heads"] == [number for _, number in places]
    for each in ("layers", "entropy", "beta"):
        assert some[each] == [whole[each][place] for place, _ in places]
