# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale train``: output, and errors of one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from attnscale.cli import main  # noqa: E402
from attnscale.experiments import find, names  # noqa: E402

pytestmark = pytest.mark.torch

MARK = "; the reduced config, a test cell: no evidence for or against the claims"
KEPT = Path(__file__).parents[1] / "grid" / "kept" / "training.json"


TINY = Path(__file__).with_name("tiny.py")


def train(capsys, *arguments):
    arguments = [TINY if each == "tiny" else each for each in arguments]
    status = main(["train", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_it_prints_cells_with_errors(capsys, tmp_path):
    arguments = ("tiny", "--seeds", 2, "--store", tmp_path, "--set", "steps=5")
    status, out, err = train(capsys, *arguments)
    assert (status, err) == (0, "")
    assert "tiny: does a line fit?" in out
    assert out.splitlines()[1].split() == ["slope", "last", "standard", "error", "seeds"]
    assert "refuted if the interval of -2 less 1 (last) lies below 0 (“a flat line fits sooner”)" in out
    assert train(capsys, *arguments)[1] == out  # from the store
    assert train(capsys, *arguments[:-1], "steps=6")[2].startswith(
        f"attnscale: error: --store must be of this training, got '{tmp_path}', "
        "whose config has 'steps' = 5 and not 6; choose another directory"
    )


def test_what_programs_read(capsys, tmp_path):
    table = tmp_path / "tiny.csv"
    status, out, _ = train(capsys, "tiny", "--seeds", 2, "--reduced", "--json", "--csv", table)
    found = json.loads(out)
    assert status == 0
    assert found["axes"] == {"slope": [1.0, -2.0], "seed": [0, 1]}
    assert found["parameters"]["steps"] == 4
    assert len(found["arrays"]["loss"][0][0]) == 4
    assert table.read_text().splitlines()[0] == "slope,last,standard_error,seeds"


def test_a_registered_run_carries_its_hash(capsys, tmp_path):
    plan, kept = tmp_path / "plan.json", tmp_path / "tiny.json"
    own = ("tiny", "--seeds", 3, "--set", "steps=5")
    _, out, _ = train(capsys, *own, "--register", plan)
    found = json.loads(plan.read_text())["sha256"]
    assert out.splitlines()[-1] == found
    assert not list(tmp_path.glob("[!p]*"))  # nothing is trained
    store = ("--store", tmp_path / "store")
    _, out, _ = train(capsys, *own, "--registration", plan, "--keep", kept, *store)
    assert f"tiny, registered as {found}" in out
    verdict = out[out.index("tiny, registered") :]
    assert train(capsys, "tiny", "--judge", kept)[1] == verdict
    alone = train(capsys, "tiny", "--registration", plan)[1]  # the file has the design and the seeds
    assert alone[alone.index("tiny, registered") :] == verdict
    status, _, err = train(capsys, *own, *store)
    assert (status, "registration" in err) == (2, True)  # a store is of a registration, or of none
    others = {("--seeds", 4): "seeds is", ("--set", "steps=6"): "config has 'steps' = 5 and not 6"}
    for other, said in others.items():
        status, _, err = train(capsys, *own, *other, "--registration", plan)
        assert (status, err.count("\n")) == (2, 1)
        assert f"--registration must be of this run, got '{plan}', whose {said}" in err
        assert "commit" in err  # from which the run can be repeated
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "rate": 0.5}))
    assert "which has another hash" in train(capsys, *own, "--registration", plan)[2]


def test_verdicts_of_runs_that_were_not_registered(capsys, tmp_path):
    _, out, _ = train(capsys, "tiny", "--seeds", 2)
    assert "tiny, exploratory: not registered\n\n" in out
    found = train(capsys, "tiny", "--judge", KEPT)[1]  # of the test cell, and older than criteria
    told = f"tiny, exploratory: not registered{MARK}\n\nundecided in a test cell: a flat line"
    assert found.startswith(told)
    assert "-2 less 1  " in found
    data = json.loads(train(capsys, "tiny", "--judge", KEPT, "--json")[1])
    assert data["contrasts"][0]["seeds"] == 2


def test_a_verdict_names_what_it_is_of(capsys):
    """The verdict of recall uses the loss; the table of a run shows accuracies."""
    _, out, _ = train(capsys, "recall", "--judge", "full")
    for block in out.split("\n\n")[1:-1]:
        _, header, *rows = block.splitlines()
        assert header.split()[:3] == ["difference", "of", "margin"]
        assert rows
        assert all("  nll (nat)  " in row for row in rows)
    for row in json.loads(train(capsys, "recall", "--judge", "full", "--json")[1])["contrasts"]:
        assert (row["variable"], row["unit"], row["reduced"]) == ("nll", "nat", False)


@pytest.mark.parametrize("changes", [(), ("--set", "steps=5")])
def test_a_run_of_the_test_cell_is_marked(capsys, changes):
    _, out, _ = train(capsys, "tiny", "--seeds", 2, "--reduced", *changes)
    first, claim = out[out.index("tiny, exploratory") :].split("\n\n")[:2]
    assert first == f"tiny, exploratory: not registered{MARK}"
    assert claim.startswith("undecided in a test cell: a flat line fits sooner")
    _, out, _ = train(capsys, "tiny", "--seeds", 2, "--reduced", *changes, "--json")
    assert json.loads(out)["verdict"]["contrasts"][0]["reduced"] is True


def test_a_stored_run_of_the_test_cell_is_marked(capsys):
    first, *claims = train(capsys, "recall", "--judge", "reduced")[1].split("\n\n")
    assert first.endswith(MARK)
    verdicts = ["shown in a test cell", "undecided in a test cell"]
    assert [each.partition(":")[0] for each in claims[:-1]] == verdicts
    assert all(row["reduced"] for row in find("recall").stored("reduced").verdict().rows())
    assert MARK not in train(capsys, "recall", "--judge", "full")[1]


def test_a_judged_run_has_its_figure(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    figure, rows = tmp_path / "tr.png", tmp_path / "tr.csv"
    _, out, err = train(capsys, "recall", "--judge", "full", "--plot", figure, "--csv", rows)
    assert (out.splitlines()[-1], err) == (f"Figure: {figure}", "")
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert rows.read_text().startswith("claim,verdict,name,")


def test_lists_have_rows(capsys):
    rows = train(capsys, "--list", "--csv", "-")[1].splitlines()
    assert rows[0] == "study,question"
    assert len(rows) == 1 + len(names())
    rows = train(capsys, "tiny", "--seeds", 1, "--list", "--csv", "-")[1].splitlines()
    assert rows == ["slope,seed", "1.0,0", "-2.0,0"]


#: Arguments that a mode would ignore, and their errors.
DROPPED = {
    "--list --plot x.png": "--plot must be left out with --list",
    "--list --keep x.json": "--keep must be left out with --list",
    "--register r.json --csv x.csv": "--csv must be left out with --register",
    "--register r.json --plot x.png": "--plot must be left out with --register",
    "--judge full --keep x.json": "--keep must be left out with --judge",
    "--judge full --set steps=3": "--set must be left out with --judge",
    "--judge full --store x": "--store must be left out with --judge",
    "--judge full --register r.json": "--register and --judge exclude each other",
    "--list --register r.json": "--list and --register exclude each other",
}


@pytest.mark.parametrize("line", DROPPED)
def test_nothing_that_is_asked_for_is_dropped(capsys, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    status, out, err = train(capsys, "tiny", *line.split())
    assert (status, out, list(tmp_path.iterdir())) == (2, "", [])
    assert err.startswith(f"attnscale: error: {DROPPED[line]}")


def test_values_that_agree_have_no_error(capsys, monkeypatch):
    """One seed, or two seeds with equal numbers, give no error of the mean."""

    def measure(study, cell, seed, training):
        return {"last": 0.5, "loss": [1.0] * study.steps, "weight": [0.0, 1.0, seed]}

    monkeypatch.setattr(find(TINY), "measure", measure)
    for seeds in (1, 2):
        rows = train(capsys, "tiny", "--seeds", seeds)[1].splitlines()[2:4]
        assert [row.split() for row in rows] == [[slope, "0.5", "-", str(seeds)] for slope in ("1.0", "-2.0")]


def test_some_models(capsys, tmp_path):
    _, out, _ = train(capsys, "tiny", "--seeds", 2, "--list")
    names = out.split()
    assert names == ["slope=1.0,seed=0", "slope=1.0,seed=1", "slope=-2.0,seed=0", "slope=-2.0,seed=1"]
    assert train(capsys, "tiny", "--seeds", 2, "--list", "--only", "seed=1")[1].split() == names[1::2]
    _, out, _ = train(capsys, "tiny", "--seeds", 2, "--only", names[1], names[2])
    assert "2 of 4 models are not trained" in out
    status, _, err = train(capsys, "tiny", "--only", "slope=3")
    assert status == 2
    told = "--only must name models of the experiment, got 'slope=3': there is none"
    assert err == f"attnscale: error: {told}\n"


@pytest.mark.parametrize(
    "variants",
    ["4 dot, dot + 3 efficient", "('4 dot', 'dot + 3 efficient')", '["4 dot", "dot + 3 efficient"]'],
)
def test_several_values_of_a_field(capsys, variants):
    _, out, _ = train(capsys, "hybrids", "--seeds", 1, "--list", "--set", f"variants={variants}")
    assert out.splitlines() == ["variant=4 dot,seed=0", "variant=dot + 3 efficient,seed=0"]
    _, out, _ = train(capsys, "recall", "--seeds", 1, "--list", "--set", "variants=2 dot", "pairs=4")
    assert out.splitlines() == ["variant=2 dot,pairs=4,seed=0"]


#: Arguments and their errors.
REFUSED = {
    "": "STUDY must be a file, FILE.py, or a name that --list shows, got none",
    "length_generalisation": "did you mean 'length_generalization'? study must be ",
    "length_generalization --set step=3": "did you mean 'steps'? --set must be NAME=VALUE with a ",
    "length_generalization --set steps=0": "steps must be at least 1, got 0",
    "recall --set tests=8 --device nowhere": (
        "--device must be one that PyTorch sees here, got 'nowhere', which is not a device of PyTorch"
    ),
    "recall --device cpu --set device=cpu": "--device and --set device=... say the same",
    "layers --dtype bfloat16": "--dtype must be left out: Layers has no field dtype",
    "length_generalization --seeds 0": "--seeds must be at least 1, got 0",
}


@pytest.mark.parametrize("line", REFUSED)
def test_one_line(capsys, line):
    status, out, err = train(capsys, *line.split())
    assert (status, out) == (2, "")
    assert err.startswith(f"attnscale: error: {REFUSED[line]}")
    assert err.count("\n") == 1


def test_every_experiment_is_listed(capsys):
    status, out, _ = train(capsys, "--list")
    assert status == 0
    lines = out.split("\n\n")[0].splitlines()[1:]
    assert max(map(len, lines)) <= 100  # a question goes on in the next line
    rows = [line for line in lines if not line.startswith(" ")]
    assert [line.split()[0] for line in rows] == list(names())
    times = {line.split()[0] for line in rows if " seconds (" in line or " minutes (" in line}
    assert times == set(names())


@pytest.mark.parametrize("study", ["recall", None])
def test_a_name_outside_of_a_clone_is_refused_before_torch_is_imported(tmp_path, study):
    arguments = ["train", *([study] if study else []), "--list"]
    code = (
        "import sys; from attnscale.cli import main; found = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(found)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        "attnscale: error: study must be a file, FILE.py, or in a clone the name of one in "
        f"notebooks/studies; run it in a clone of the repository, got the working directory '{tmp_path}'"
    )


def test_torch_is_missing():
    code = (
        "import sys; sys.modules['torch'] = None; from attnscale.cli import main; sys.exit(main(['train']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("attnscale: error: attnscale.experiments needs torch")
    assert ended.stderr.count("\n") == 1
