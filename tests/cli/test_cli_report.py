# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale report``: pages from files and from a model, and refusals."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale._report import page
from attnscale.cli import _model, main
from pages import page as page_text

Run = Callable[..., str]
SMALL = ("--lengths", "32", "64", "--laws", "log_n")


@pytest.fixture
def heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of four heads, in an empty working directory."""
    data = at.datasets.minilm_qk()
    monkeypatch.chdir(tmp_path)
    provenance = json.dumps({"model": "MiniLM", "text": "a chapter"})
    chosen = [0, 1, 6, 12]
    names = {"query": "query", "key": "key", "layers": "layers", "heads": "heads"}
    arrays = {name: getattr(data, field)[chosen] for name, field in names.items()}
    np.savez("heads.npz", **arrays, provenance=provenance)
    return "heads.npz"


def test_it_says_what_stands_out_and_writes_the_page(heads: str, run: Run) -> None:
    said = run("report", heads, *SMALL)
    assert "spreads least: " in said
    assert said.startswith("From 32 to 64 tokens entropy rises by ")
    assert "\nOf 2 laws, with a constant for each head, log_n(base=32) keeps " in said
    assert said.splitlines()[-1].startswith("Page: report.html (")
    text = Path("report.html").read_text(encoding="utf-8")
    assert "<title>Attention heads of MiniLM</title>" in text
    assert sorted(os.listdir()) == ["heads.npz", "report.html"]


def test_json_and_csv_are_what_the_api_has(heads: str, run: Run) -> None:
    data = at.datasets.minilm_qk()
    chosen = [0, 1, 6, 12]
    places = list(zip(data.layers[chosen].tolist(), data.heads[chosen].tolist(), strict=True))
    options: dict[str, Any] = {"lengths": [32, 64], "laws": ["log_n"], "labels": places}
    found = at.report(data.query[chosen], data.key[chosen], is_causal=True, **options)
    said = json.loads(run("report", heads, *SMALL, "--causal", "--json", "-o", "a.html"))
    expected = found.to_dict()
    for content in (said, expected):
        del content["provenance"], content["about"], content["title"]
    assert said == expected
    table = run("report", heads, *SMALL, "--causal", "--csv", "-", "--output", "b")
    rows = list(csv.DictReader(io.StringIO(table)))
    assert len(rows) == 4 * 2
    assert [float(row["entropy log_n(base=32)"]) for row in rows] == found.entropy[..., 1].ravel().tolist()
    assert Path("b.html").is_file()


def test_two_inputs_are_shown_with_what_differs(heads: str, run: Run) -> None:
    with np.load(heads) as stored:
        arrays = {name: stored[name] for name in stored.files}
    np.savez("other.npz", **{**arrays, "query": arrays["query"] * 2})
    said = run("report", heads, "other.npz", *SMALL)
    assert "effective keys in heads.npz, " in said
    content = json.loads(run("report", heads, "other.npz", *SMALL, "--json"))
    assert content["names"] == ["heads.npz", "other.npz"]
    assert len(content["pair"]) == 2
    assert content["pair"][0]["entropy"] != content["pair"][1]["entropy"]


def test_a_file_beside_itself_differs_nowhere(heads: str, run: Run) -> None:
    said = run("report", heads, heads, *SMALL)
    assert said.splitlines()[0] == "No head differs, in its entropy at 64 or in its growth."


def test_heads_that_the_page_cannot_measure_are_left_out(
    heads: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A line says so if the package has no kernels for pages, or if there are two inputs."""
    monkeypatch.setattr(page, "_MODULE", tmp_path / "absent")
    assert main(["report", heads, *SMALL]) == 0
    capsys.readouterr()
    size = Path("report.html").stat().st_size
    for inputs, why in (([heads], page.NO_CORE), ([heads, heads], page.OF_TWO)):
        assert main(["report", *inputs, *SMALL, "--with-heads"]) == 0
        said = capsys.readouterr()
        assert said.err.splitlines()[0] == f"attnscale: {why.replace('with_heads', '--with-heads')}"
        assert '"kept":[' not in Path("report.html").read_text(encoding="utf-8")
        if len(inputs) == 1:
            assert abs(Path("report.html").stat().st_size - size) < 500


def test_tokens_of_a_model_are_letters() -> None:
    """A token may hold some bytes of a letter; the text continues after the shown tokens."""
    byte_level = SimpleNamespace(decode=lambda ids: bytes(ids).decode(errors="replace"))
    reader = _model.Reader(None, [list("a\u4f60".encode())], tokenizer=byte_level)
    assert reader.words(3) == ["a", "\u4f60 [1/3]", "\u4f60 [2/3]"]


def test_a_page_that_is_there_is_replaced_as_every_file(heads: str, run: Run) -> None:
    assert run("report", heads, *SMALL).endswith(" kB)\n")
    Path("report.html").write_text("older", encoding="utf-8")
    assert run("report", heads, *SMALL).endswith(" kB), replacing the old one\n")
    assert "<title>" in Path("report.html").read_text(encoding="utf-8")
    assert "A file that exists is replaced" in page_text("docs/reference/command-line.md")


def test_input_that_it_reads_is_not_overwritten(heads: str, fail: Run) -> None:
    Path("text.html").write_text("<p>A text", encoding="utf-8")
    arguments = ("report", "./checkpoint", "--text", "text.html", "-o", "text.html")
    assert "--output text.html: the command reads this file" in fail(*arguments)
    assert Path("text.html").read_text(encoding="utf-8") == "<p>A text"


#: Arguments and their errors.
REFUSED = {
    "heads.npz --lengths 1": "--lengths must be at least 2, got 1",
    "heads.npz --lengths 64 513": "--lengths must be at most 512, the tokens in heads.npz, got 513",
    "heads.npz --laws lig_n": "attnscale: error: did you mean 'log_n'? the name of a law must be one of",
    "heads.npz --laws log_n(base=-1)": "law 'log_n(base=-1)': base must be greater than 1, got -1",
    "heads.npz --n 64": "unrecognized arguments: --n 64: did you mean --lengths?",
    "heads.npz -o a.pdf": "--output a.pdf must end in .html, which is what a page is, got .pdf",
    "heads.npz --text a.txt": "--text a.txt: only a model reads a text, got files",
    "heads.npz --device cpu": "--device cpu: only a model has one, got files of queries and keys",
    "heads.npz --dtype half": "--dtype must be one of 'float64', 'float32',",
    "./checkpoint --text a.txt --causal": "--causal is for files of queries and keys",
    "heads.npz -o absent/a.html": "--output absent/a.html: there is no folder absent",
    "heads.npz -o .": "is a folder, not a file",
    "heads.npz -o -": "--output must be a file's name, got '-'",
    "heads.npz --spans title": "--spans must be written NAME=START:STOP, got 'title'",
    "heads.npz --spans a=0:4": "--spans must come with tokens, of which they are parts",
    "absent.npz": "absent.npz: no such file",
    "./checkpoint": "no such file or folder, and a model needs --text FILE",
    "absent --causal": "INPUT absent: no such file or folder, and a model needs --text FILE",
    "heads.npz heads.npz heads.npz": "give one INPUT or two, got 3",
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_line_and_nothing_is_written(heads: str, fail: Run, line: str) -> None:
    assert REFUSED[line] in fail("report", *line.split())
    assert os.listdir() == ["heads.npz"]


def test_a_read_only_folder_is_refused_before_anything_is_measured(
    heads: str, fail: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page.os, "access", lambda *_: False)
    monkeypatch.setattr("attnscale.cli.report.report", lambda *_, **__: pytest.fail("it was measured"))
    assert "--output report.html cannot be written here" in fail("report", heads)


def test_a_disk_that_is_full_leaves_nothing(
    heads: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page.os, "replace", full)
    assert main(["report", heads, *SMALL]) == 1
    assert capsys.readouterr().err == "attnscale: error: --output report.html: No space left on device\n"
    assert os.listdir() == ["heads.npz"]


def test_heads_of_different_files_must_match(heads: str, fail: Run) -> None:
    data = at.datasets.minilm_qk()
    np.savez("other.npz", query=data.query[:2], key=data.key[:2])
    assert "two reports must have the same heads" in fail("report", heads, "other.npz", *SMALL)
    assert sorted(os.listdir()) == ["heads.npz", "other.npz"]


def test_a_file_with_its_tokens_shows_the_text(heads: str, run: Run) -> None:
    tokens = at.datasets.minilm_qk().tokens
    with np.load(heads) as stored:
        np.savez("text.npz", **stored, tokens=tokens)
    spans = ("--spans", "title=0:3", "all the rest=3:64")
    found = json.loads(run("report", "text.npz", *spans, *SMALL, "--json"))
    assert found["text"]["tokens"] == list(tokens[:64])
    assert [span["name"] for span in found["text"]["spans"]] == ["title", "all the rest"]
    assert json.loads(run("report", heads, *SMALL, "--json"))["text"] is None


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_a_model_reads_a_text(minilm: str, heads: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text.txt").write_text("Names refer to objects. " * 40, encoding="utf-8")
    arguments = ["report", minilm, "--text", "text.txt", *SMALL]
    assert main([*arguments, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["layers"] == np.repeat(np.arange(6), 12).tolist()
    assert content["about"]["model"] == "model (BertModel)"
    assert content["about"]["text"] == "text.txt"
    assert content["text"]["tokens"][:5] == ["[CLS]", "names", "refer", "to", "objects"]
    assert len(content["text"]["tokens"]) == 64
    assert "sqrt" in content["plan"] or "scale" in content["plan"]
    assert main(["diagnose", minilm, "--text", "text.txt", "--n", "32", "64", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    for j, n in enumerate((32, 64)):
        own = [row["entropy_by_head"] for row in rows if (row["n"], row["law"]) == (n, "standard")]
        found = np.array(content["entropy"])[:, j, 0].reshape(6, 12)
        np.testing.assert_allclose(found, own, rtol=1e-5, atol=2e-6)


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_a_text_that_is_too_short_and_a_model_that_cannot_be_recorded(
    minilm: str, heads: str, fail: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("text.txt").write_text("Names refer to objects.", encoding="utf-8")
    start = ("report", minilm, "--text", "text.txt")
    assert "--lengths must be at most 7, the tokens of text.txt, got 64" in fail(*start, *SMALL)

    def load(*given: Any, **more: Any) -> Any:
        reader = _model.load(*given, **more)
        reader.model.config._attn_implementation = "flash_attention_2"
        return reader

    monkeypatch.setattr("attnscale.cli.report.load", load)
    said = fail(*start, "--lengths", "4")
    assert "BertModel has attn_implementation='flash_attention_2', a closed kernel" in said
    assert sorted(os.listdir()) == ["heads.npz", "text.txt"]


@pytest.mark.parametrize(("causal", "rows"), [(True, "the last eighth of the"), (False, "all")])
def test_it_says_over_which_rows_entropies_are_means(heads: str, run: Run, causal: bool, rows: str) -> None:
    said = run("report", heads, *SMALL, *["--causal"] * causal).splitlines()
    assert [line for line in said if "means" in line] == [f"Entropies are means over {rows} queries."]


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_what_is_seen_and_not_measured_is_said_and_stands_on_the_page(
    tmp_path: Path, run: Run, fail: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from small_model import OPAQUE, Small

    from tests.models.spellings import fused, products

    monkeypatch.chdir(tmp_path)
    Path("small").mkdir()
    start = ("report", "small", "--text", "text.txt", "--lengths", "8", "16")
    model = Small(plain=products.Matmul(), other=fused.Opaque(), another=fused.Opaque())
    lost = f"parts.other, parts.another: {OPAQUE}"
    reader = _model.Reader(model, [[*range(20)]])
    monkeypatch.setattr(_model.Reader, "words", lambda self, n: [])
    monkeypatch.setattr("attnscale.cli.report.load", lambda name, options: reader)
    assert f"Seen, not measured: {lost}." in run(*start).splitlines()
    text = Path("report.html").read_text(encoding="utf-8").replace('","', '", "').replace('":"', '": "')
    assert json.dumps({"seen, not measured": lost})[1:-1] in text
    model.parts = torch.nn.ModuleDict({"one": fused.Opaque()})
    said = "MODEL small: attention was seen, and none could be measured: parts.one: " + OPAQUE
    assert said in fail(*start, "--kind", "self")


def test_rows_measures_a_sample(heads: str, run: Run) -> None:
    said = json.loads(
        run("report", heads, "--lengths", "64", "256", "--rows", "32", "--laws", "log_n", "--json")
    )
    assert said["about"]["rows"].startswith(
        "at most 32 rows at each length, one of each equal stretch: standard error "
    )
    assert np.shape(said["entropy_error"]) == (4, 2)
    assert np.min(said["entropy_error"]) > 0
