# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale conformance``: reports and answers of engines with a ready adapter."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attnscale as at
import pytest
from attnscale.conformance.engines import Engine

Run = Callable[..., str]


def attend(query: Any, key: Any, value: Any, *, attn_mask: Any = None, **options: Any) -> Any:
    """Plain attention, whose rows without keys hold NaN; all but a mask is refused."""
    if options:
        raise NotImplementedError(f"no <{min(options)}>")
    rows = at.attention_statistics(query, key, value, attn_mask=attn_mask, statistics="n_visible")
    assert rows.output is not None
    rows.output[rows.n_visible == 0] = float("nan")
    return rows.output


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Engine]:
    """Two engines: one that is installed, and one that is not."""
    record = {"call": "nan_attention", "run_with": "1.0", "attend": attend}
    found = {
        "nan": Engine(name="nan", package="attnscale", **record),
        "gone": Engine(
            name="gone", package="no-such-engine", requirements=("no-such-engine==1.0",), **record
        ),
    }
    monkeypatch.setattr(at.conformance.engines, "engines", lambda: found)
    return found


def test_the_report_and_the_answers_are_printed(known: Mapping[str, Engine], run: Run) -> None:
    printed = run("conformance", "nan")
    assert f"nan {at.__version__} (attnscale): nan_attention" in printed
    assert "right, " in printed
    lines = printed.splitlines()
    assert ["no_keys_boolean", "NaN", "!"] in [line.split() for line in lines]
    assert "! no_keys_boolean: no key, no output" in lines
    assert ["causal_fewer", "refused:", "no", "<is_causal>"] in [line.split() for line in lines]


def test_the_word_list_lists(run: Run) -> None:
    assert run("conformance", "list") == run("conformance", "--list")


def test_the_json_has_cases_and_answers(known: Mapping[str, Engine], run: Run) -> None:
    (found,) = json.loads(run("conformance", "nan", "--json"))["engines"]
    assert found["engine"] == "nan"
    assert found["cases"]["plain"]["kind"] == "right"
    assert set(found["answers"]) == set(at.conformance.QUESTIONS)
    assert found["answers"]["no_keys_boolean"]["says"] == "NaN"


def test_the_page_and_the_rows_are_written(known: Mapping[str, Engine], run: Run, tmp_path: Path) -> None:
    page, rows = tmp_path / "page.html", tmp_path / "rows.csv"
    run("conformance", "nan", "--html", str(page), "--csv", str(rows), "--dtype", "float64")
    written = page.read_text(encoding="utf-8")
    assert "<td>no_keys_boolean</td><td>NaN</td><td>!</td>" in written
    assert "refused: no &lt;is_causal&gt;" in written
    assert "<is_causal>" not in written
    with rows.open(encoding="utf-8") as lines:
        found = {row["name"]: row["says"] for row in csv.DictReader(lines)}
    assert found["no_keys_boolean"] == "NaN"


def test_the_list_says_what_is_installed(known: Mapping[str, Engine], run: Run) -> None:
    header, *lines = run("conformance", "--list").splitlines()
    assert header.split() == ["engine", "installed", "run", "with", "package", "call"]
    assert [line.split() for line in lines] == [
        ["nan", at.__version__, "1.0", "attnscale", "nan_attention"],
        ["gone", "-", "1.0", "no-such-engine", "nan_attention"],
    ]
    assert json.loads(run("conformance", "--list", "--json"))[1]["installed"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the name of an engine; attnscale conformance --list shows them"),
        (["nam"], "did you mean 'nan'? engine must be one of 'nan', 'gone', got 'nam'"),
        (["gone"], "the engine 'gone' needs no-such-engine: pip install no-such-engine==1.0"),
        (["--list", "--seed", "3"], "--seed must be left out with --list"),
        (["nan", "--list"], "ENGINE must be left out with --list"),
        (["nan", "--dtype", "float8"], "--dtype must be one of"),
        (
            ["nan", "--html", "/no/such/folder/page.html"],
            "--html /no/such/folder/page.html: there is no folder",
        ),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], said: str, known: Mapping[str, Engine], fail: Run
) -> None:
    assert said in fail("conformance", *arguments)
