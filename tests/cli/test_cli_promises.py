# SPDX-License-Identifier: BSD-3-Clause
"""Promises of every command: nothing is lost, and an error is one line and a status."""

from __future__ import annotations

import argparse
import ast
import csv
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import attnscale
import numpy as np
import pytest
from attnscale import cli, laws
from attnscale.cli import _output, main
from attnscale.cli import entropy as entropy_command
from attnscale.cli import sweep as sweep_command

HEADS = str(files("attnscale") / "data" / "minilm_qk.npz")
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
TINY = Path(__file__).parents[1] / "experiments" / "tiny.py"
SWEEP = 'function = "beside_the_grid:inverse"\n[grid]\nx = [2.0, 4.0]\n[constants]\ntimes = 3.0\n'
FUNCTION = "def inverse(x, times):\n    return times / x\n"

#: A short run of every command that has rows or a figure, in a folder with the files of `place`.
RUNS = {
    "demo": "demo",
    "entropy": f"entropy {HEADS} --laws standard --n 8 16",
    "calibrate": "calibrate --demo --n0 16 --n 8 16 32 --laws standard log_n",
    "laws": "laws --n 8 16 --laws log_n",
    "theory": "theory --n 8 16",
    "mc": "mc max_cosine --n 8 16 --samples 3 --seed 1",
    "sweep": "sweep grid.toml",
    "audit": "audit config.json",
    "report": f"report {HEADS} --lengths 16 --laws log_n",
    "train": f"train {TINY} --seeds 2 --reduced",
}
#: Commands that take too long or need a model or answers; only their start is tested.
BEGUN = RUNS | {
    "compare": "compare a.npz b.npz",
    "conformance": "conformance torch",
    "diagnose": "diagnose model --text book.txt",
    "probe": "probe read answers.jsonl",
}
FIGURES = {"out": b"\x89PNG", "out.pdf": b"%PDF", "out.svg": b"<?xml"}
DRAWN = [name for name in BEGUN if name not in ("audit", "report", "conformance")]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the files that commands read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "grid.toml").write_text(SWEEP, encoding="utf-8")
    (tmp_path / "beside_the_grid.py").write_text(FUNCTION, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command: its status, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        return (status, *capsys.readouterr())

    return call


Command = Callable[..., tuple[int, str, str]]


def test_every_command_that_computes_has_a_run() -> None:
    assert cli._main.COMMANDS.keys() - {"explain", "info", "store"} == BEGUN.keys()


def replace_runs(monkeypatch: pytest.MonkeyPatch, run: Callable[[Any], Any]) -> None:
    for name in cli._main.COMMANDS:
        monkeypatch.setattr(f"attnscale.cli.{name}.run", run)


@pytest.fixture
def not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if a command begins."""

    def begin(options: Any) -> None:
        pytest.fail("the command began")

    replace_runs(monkeypatch, begin)


BAD_FILES = {
    "nowhere/x.png": "there is no folder nowhere",
    "folder": "is a folder, not a file",
    "config.json/x.png": "there is no folder config.json",
    "": "must be a file's name, got ''",
    "locked.png": "cannot be written here",
}


@pytest.mark.usefixtures("not_run")
@pytest.mark.parametrize("path", BAD_FILES)
@pytest.mark.parametrize("name", BEGUN)
def test_files_are_looked_at_before_the_run(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    if path == "locked.png":  # whoever tests may write everywhere
        Path(path).touch()
        monkeypatch.setattr(os, "access", lambda where, mode: Path(where).name != path)
    if path == "folder":
        Path("folder.png").mkdir()
        Path("folder.csv").mkdir()
    for flag in ("--csv", *(["--plot"] if name in DRAWN else [])):
        if flag == "--plot":
            pytest.importorskip("matplotlib")
        given = {"folder": f"folder.{'png' if flag == '--plot' else 'csv'}"}.get(path, path)
        status, out, err = command(*BEGUN[name].split(), f"{flag}={given}")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"attnscale: error: {flag} ")
        assert BAD_FILES[path] in err


@pytest.mark.usefixtures("not_run")
@pytest.mark.parametrize("name", BEGUN)
def test_json_and_csv_do_not_share_standard_output(command: Command, name: str) -> None:
    said = "--json and --csv - both print to standard output: give one, or --csv a file"
    assert command(*BEGUN[name].split(), "--json", "--csv", "-") == (2, "", f"attnscale: error: {said}\n")


@pytest.mark.usefixtures("not_run")
@pytest.mark.parametrize("name", DRAWN)
def test_figures_are_files_of_a_known_kind(command: Command, name: str) -> None:
    pytest.importorskip("matplotlib")
    for path, why in {
        "-": "must be a file's name, got '-'",
        "x.xyz": "the suffix must be .png, .pdf, .svg or another that matplotlib knows, got .xyz",
    }.items():
        status, out, err = command(*BEGUN[name].split(), f"--plot={path}")
        assert (status, out) == (2, "")
        assert why in err


@pytest.mark.usefixtures("not_run")
def test_what_a_command_reads_is_not_replaced(command: Command) -> None:
    for arguments in (
        "audit config.json --csv config.json",
        "sweep grid.toml --csv ./grid.toml",
        "mc entropy_vs_length --n 8 --heads config.json --csv config.json",
    ):
        status, _, err = command(*arguments.split())
        assert status == 2
        assert "the command reads this file, and would overwrite it" in err
    pytest.importorskip("matplotlib")
    assert "must be two files" in command("theory", "--n", "8", "--csv", "x.png", "--plot", "x")[2]


@pytest.mark.usefixtures("not_run")
def test_a_store_that_cannot_be_made(command: Command) -> None:
    status, _, err = command("sweep", "grid.toml", "--store", "config.json/runs")
    told = "attnscale: error: --store config.json/runs: config.json is a file, not a folder\n"
    assert (status, err) == (2, told)


def test_a_store_of_the_file_is_looked_at_too(command: Command, place: Path) -> None:
    pytest.importorskip("xarray")
    (place / "stored.toml").write_text(f'store = "config.json/runs"\n{SWEEP}', encoding="utf-8")
    status, out, err = command("sweep", "stored.toml")
    assert (status, out) == (2, "")
    assert "stored.toml: store config.json/runs: config.json is a file, not a folder" in err


def needs_of(name: str) -> None:
    pytest.importorskip("matplotlib")
    for package in {"sweep": ["xarray"], "train": ["torch"]}.get(name, ()):
        pytest.importorskip(package)


@pytest.mark.parametrize("name", RUNS)
def test_the_table_is_printed_whatever_happens_to_a_file(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    needs_of(name)
    arguments = [*RUNS[name].split(), "--csv", "rows.csv"]
    arguments += ["--plot", "x.png"] if name in DRAWN else []

    replace = Path.replace

    def full(self: Path, target: Path) -> Any:
        if target.name == "rows.csv":
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    status, out, err = command(*arguments)
    assert (status, err) == (1, "attnscale: error: --csv rows.csv: No space left on device\n")
    assert len(out.splitlines()) > 2
    assert Path("x.png").exists() == (name in DRAWN)
    assert not [*Path().glob("rows.csv*")]


def test_a_figure_that_cannot_be_drawn_takes_nothing_along(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def fails(self: _output.Drawing, path: Path) -> None:
        raise ValueError("nothing to draw")

    monkeypatch.setattr(_output.Drawing, "save", fails)
    status, out, err = command("theory", "--n", "8", "--plot", "x.png", "--csv", "rows.csv")
    assert (status, err) == (1, "attnscale: error: --plot x.png: nothing to draw\n")
    assert "E[H]" in out
    assert "Figure" not in out
    assert Path("rows.csv").exists()


@pytest.mark.parametrize("name", RUNS)
def test_an_answer_is_text_json_csv_and_a_figure(command: Command, name: str) -> None:
    needs_of(name)
    arguments = RUNS[name].split()

    def printed(*more: str) -> str:
        status, out, err = command(*arguments, *more)
        assert (status, err) == (0, "")
        return out

    text = printed()
    assert len(text.splitlines()) > 2
    assert all(line == line.rstrip() and "\t" not in line for line in text.splitlines())
    assert text.endswith("\n")
    content = json.loads(printed("--json", "--csv", "rows.csv"), parse_constant=pytest.fail)
    table = printed("--csv", "-")
    assert Path("rows.csv").read_text(encoding="utf-8") == table
    rows = list(csv.DictReader(io.StringIO(table)))
    assert len(rows) > 1
    assert all(None not in row and None not in row.values() for row in rows)
    if isinstance(content, dict) and isinstance(content.get("rows"), list):
        assert len(content["rows"]) == len(rows)
    for path, start in FIGURES.items() if name in DRAWN else ():
        out = printed("--plot", path)
        assert out.splitlines()[-1] == f"Figure: {path if '.' in path else path + '.png'}"
        assert Path(out.splitlines()[-1].removeprefix("Figure: ")).read_bytes().startswith(start)


@pytest.mark.parametrize("flag", ["--json", "--csv", "--plot"])
def test_what_is_asked_for_is_written_or_refused(command: Command, flag: str) -> None:
    """An export has no rows and no figure, and refuses the option before it writes files."""
    pytest.importorskip("matplotlib")
    status, out, err = command("demo", "--export", "out", flag, *([] if flag == "--json" else ["x.png"]))
    assert (status, out) == (2, "")
    assert err == f"attnscale: error: {flag} must be left out with --export: it has no effect there\n"
    assert not Path("out").exists()


@pytest.mark.parametrize("flag", ["csv", "plot", "json"])
def test_an_answer_without_a_form_is_never_silent(flag: str) -> None:
    options = argparse.Namespace(**{"csv": None, "plot": None, "json": False, flag: "x.png"})
    with pytest.raises(_output.InputError, match=f"^--{flag} must be left out with this answer"):
        _output.emit(options, _output.Answer("words"))


def test_explain_prints_json(command: Command) -> None:
    report = json.loads(command("explain", "log_n(base=64)", "--json")[1])
    assert (report["name"], report["definition"]) == ("log_n", repr(laws.LogN(base=64)))
    assert json.loads(command("explain", "constant", "--json")[1])["required"] == ["value"]


@pytest.mark.parametrize("name", BEGUN)
def test_ctrl_c_is_one_line_and_status_130(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def interrupt(options: Any) -> None:
        raise KeyboardInterrupt

    replace_runs(monkeypatch, interrupt)
    keeps = name in ("mc", "sweep", "train", "entropy", "calibrate")
    goes_on = f"; with a store it can be resumed: attnscale {BEGUN[name]} --store DIR" if keeps else ""
    assert command(*BEGUN[name].split()) == (130, "", f"attnscale: interrupted{goes_on}\n")


@pytest.mark.parametrize(
    ("arguments", "calls", "finished"),
    [
        ("--laws standard log_n", 1, {("512", "standard")}),
        ("--laws log_n standard --n 16 8", 1, {("8", "log_n")}),
        ("--laws standard --n 16 8", 1, {("8", "standard")}),
        # Only lengths of which all laws are finished.
        ("--laws standard log_n --n 8 16", 3, {("8", "standard"), ("8", "log_n")}),
    ],
)
def test_ctrl_c_prints_what_is_finished(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    calls: int,
    finished: set[tuple[str, str]],
) -> None:
    original, seen = entropy_command.mean_entropy, []

    def interrupted(*given: Any, **options: Any) -> Any:
        seen.append(given)
        if len(seen) > calls:
            raise KeyboardInterrupt
        return original(*given, **options)

    monkeypatch.setattr(entropy_command, "mean_entropy", interrupted)
    given = ["entropy", HEADS, *arguments.split(), "--csv", "-"]
    status, out, err = command(*given)
    goes_on = f"with a store it can be resumed: attnscale {shlex.join(given)} --store DIR"
    assert (status, err) == (130, f"attnscale: interrupted: this is what was finished; {goes_on}\n")
    rows = csv.DictReader(io.StringIO(out))
    assert {(row["n_keys"], row["law"]) for row in rows} == finished


ENDINGS = {
    "ValueError": (ValueError("x must be\n 1"), 2, "error: x must be 1 (--debug shows where)"),
    "TypeError": (TypeError("no"), 2, "error: no (--debug shows where)"),
    "OverflowError": (OverflowError("large"), 2, "error: OverflowError: large (--debug shows where)"),
    "KeyError": (KeyError("a"), 2, "error: KeyError: 'a' (--debug shows where)"),
    "RuntimeError": (RuntimeError("ATTNSCALE_SIMD"), 2, "error: ATTNSCALE_SIMD"),
    "ImportError": (ImportError("no torch"), 2, "error: no torch"),
    "MemoryError": (MemoryError(), 2, "error: not enough memory"),
    "bad_alloc": (MemoryError("std::bad_alloc"), 2, "error: not enough memory"),
    "NumPy's": (
        MemoryError("Unable to allocate 7 TiB"),
        2,
        "error: not enough memory: Unable to allocate 7 TiB",
    ),
    "OSError": (OSError(13, "Permission denied", "x"), 2, "error: [Errno 13] Permission denied: 'x'"),
    "UnicodeDecodeError": (
        UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid start byte"),
        2,
        "error: 'utf-8' codec can't decode byte 0xe9 in position 0: invalid start byte (--debug shows where)",
    ),
    "KeyboardInterrupt": (KeyboardInterrupt(), 130, "interrupted"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_whatever_is_raised_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    error, expected, line = ENDINGS[name]

    def fails(options: Any) -> None:
        raise error

    monkeypatch.setattr(cli.info, "run", fails)
    assert command("info") == (expected, "", f"attnscale: {line}\n")
    for arguments in (["--debug", "info"], ["info", "--debug"]):
        status, _, err = command(*arguments)
        assert status == expected
        assert err.startswith("Traceback")
        assert "in fails" in err


def test_a_size_beyond_memory_says_what_it_would_take(command: Command) -> None:
    for arguments, line in {
        "mc max_cosine --n 1e18 --samples 2": "--n must be at most 2^53",
        "mc rank_and_sparsity --n 1e7 --samples 2": "got 10000000, whose arrays take 728 TiB",
        "mc sparsity --n 1e15": "got 1000000000000000, whose arrays take 7.11 PiB",
        "mc jl_distortion --points 1e9 --dim 1e9 --k 1": "--points must be small enough for the memory",
    }.items():
        status, out, err = command(*arguments.split())
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert line in err


def started(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "attnscale", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **options)


@pytest.mark.parametrize("variable", ["ATTNSCALE_NUM_THREADS", "ATTNSCALE_SIMD"])
def test_a_variable_of_the_environment_is_refused_in_one_line(variable: str) -> None:
    result = started("info", stdout=subprocess.PIPE, env={**os.environ, variable: "abc"})
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"attnscale: error: {variable} ")
    assert result.stderr.count("\n") == 1


def test_python_dash_m_and_version() -> None:
    result = started("--version", stdout=subprocess.PIPE)
    assert (result.returncode, result.stdout) == (0, f"attnscale {attnscale.__version__}\n")
    assert started("entropy", "nope.npz").returncode == 2


def test_a_reader_that_goes_away_leaves_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = started("laws", stdout=writer)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")


def test_commands_do_not_import_matplotlib() -> None:
    code = "import sys; from attnscale.cli import main; main(['laws']); print('matplotlib' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"


def test_a_closed_standard_output_is_a_reader_that_went_away(place: Path) -> None:
    shell = ["sh", "-c", '"$0" -m attnscale laws --csv rows.csv >&-', sys.executable]
    result = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, "")
    assert (place / "rows.csv").exists()


def test_ctrl_c_is_answered_while_the_commands_are_imported() -> None:
    code = (
        "import builtins, sys, attnscale.__main__ as entry\n"
        "known = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'cli': raise KeyboardInterrupt\n"
        "    return known(name, *rest)\n"
        "builtins.__import__ = interrupted\n"
        "sys.exit(entry.run())\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "attnscale: interrupted\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_device_is_a_failed_write() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        result = started("laws", stdout=full)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("attnscale: error: standard output: No space left on device")


def test_the_file_in_the_help_of_sweep_runs_as_it_stands(command: Command, place: Path) -> None:
    pytest.importorskip("xarray")
    pytest.importorskip("joblib")
    block = sweep_command.DESCRIPTION.split("FILE is TOML:\n\n")[1].split("\n\nA function")[0]
    (place / "pasted.toml").write_text(block, encoding="utf-8")
    status, out, err = command("sweep", "pasted.toml", "--csv", "-")
    assert (status, err) == (0, "")
    assert len(out.splitlines()) == 1 + 6
    assert (place / "runs" / "deficit").is_dir()


def test_a_failed_case_of_a_sweep_speaks_of_options(command: Command, place: Path) -> None:
    pytest.importorskip("xarray")
    (place / "fails.toml").write_text(SWEEP.replace("4.0]", "0.0]"), encoding="utf-8")
    status, out, err = command("sweep", "fails.toml")
    assert status == 2
    assert "the table has them, and --store DIR keeps them" in err
    assert out


def test_laws_fit_a_hundred_columns(command: Command) -> None:
    lines = command("laws")[1].splitlines()
    assert max(map(len, lines)) <= 100
    for words in ("sqrt(hidden / rank) /", "ministral_temperature(beta=0.1, length=16384)"):
        assert any(words in line for line in lines)


def test_one_is_singular_and_arrays_are_called_by_their_files(command: Command, place: Path) -> None:
    array = np.random.default_rng(0).standard_normal((1, 8, 4))
    np.savez(place / "one.npz", query=array, key=array)
    text = command("entropy", "one.npz", "--n", "1")[1]
    assert text.startswith("Mean entropy (nats) of 1 head over all queries, 1 token; ")
    arguments = ["--heads", "one.npz", "--samples", "3", "--seed", "1"]
    for experiment in (["entropy_vs_length", "--n", "4"], ["dot_product_variance"]):
        title = command("mc", *experiment, *arguments)[1].splitlines()[0]
        assert title.endswith("heads one.npz, seed 1")
        assert "sha" not in title.lower()


def test_a_law_without_its_parameter_is_refused_in_words_of_the_command_line(command: Command) -> None:
    err = command("entropy", HEADS, "--laws", "constant")[2]
    assert "needs value: 'constant(value=...)'" in err
    assert "laws.get" not in err


def test_what_a_wheel_lacks_is_not_named(command: Command) -> None:
    assert ".ipynb" not in command("demo")[1]


def test_plans_differ_in_words(command: Command, place: Path) -> None:
    gemma = {"model_type": "gemma2", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    for name, cap in (("a.json", 50.0), ("b.json", None)):
        config = {**gemma, "attn_logit_softcapping": cap, "head_dim": 16, "query_pre_attn_scalar": 16}
        (place / name).write_text(json.dumps(config), encoding="utf-8")
    assert "softcap: 50.0 here, none there" in command("audit", "a.json", "--against", "b.json")[1]


def test_a_text_in_another_encoding(command: Command, place: Path) -> None:
    (place / "latin1.txt").write_bytes(b"ros\xe9")
    status, _, err = command("diagnose", "folder", "--text", "latin1.txt")
    assert (status, err.count("\n")) == (2, 1)
    assert "latin1.txt: not a text in UTF-8 (unexpected end of data at byte 3)" in err


def test_a_model_that_is_a_path_is_not_looked_for_elsewhere(command: Command, place: Path) -> None:
    pytest.importorskip("transformers")
    (place / "book.txt").write_text("a b c", encoding="utf-8")
    for path in ("./nothing", str(place / "nothing"), "~/nothing"):
        assert command("diagnose", path, "--text", "book.txt")[2].endswith(f"MODEL {path}: no such folder\n")
    (place / "empty").mkdir()
    seen = command("diagnose", "empty", "--text", "book.txt")[2]
    assert seen.endswith("MODEL empty: must be a folder with a model, and has no config.json\n")


def test_diagnose_without_torch(command: Command, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "book.txt").write_text("a b c", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "torch", None)
    status, _, err = command("diagnose", "folder", "--text", "book.txt")
    assert status == 2
    assert "a model needs torch and transformers: pip install torch transformers" in err


def test_a_name_that_leads_nowhere_is_asked_for_once(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked = []

    def offline(self: Any, name: str, **_: Any) -> None:
        asked.append(name)
        raise OSError("no network")

    monkeypatch.setattr(hub.HfApi, "model_info", offline)
    (place / "book.txt").write_text("a b c", encoding="utf-8")
    status, _, err = command("diagnose", "nodir", "--text", "book.txt")
    assert (status, asked) == (2, ["nodir"])
    assert err.splitlines()[-1].endswith("or a name that leads to one (no network)")


def test_no_command_prints_a_format_by_itself() -> None:
    names = {
        module.name
        for module in sorted(Path(cli.__file__).parent.glob("*.py"))
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id in ("to_csv", "to_json")
    }
    assert names == {"_output.py"}


@pytest.mark.parametrize("error", [ValueError, TypeError, _output.InputError])
def test_what_the_library_refuses_is_bad_input(error: type[Exception]) -> None:
    with pytest.raises(_output.InputError, match=r"^n must be at least 1$"), _output.bad_input():
        raise error("n must be at least 1")


def test_bad_input_says_where_and_takes_other_errors_by_name() -> None:
    refused = pytest.raises(_output.InputError, match=r"^FILE: no module$")
    with refused, _output.bad_input("FILE", ImportError):
        raise ImportError("no module")
    with pytest.raises(ImportError), _output.bad_input("FILE"):
        raise ImportError("no module")
    with pytest.raises(ZeroDivisionError), _output.bad_input():
        raise ZeroDivisionError
