"""Files of answers: bad ones are refused in one line, incomplete ones go on, and those of two engines."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnscale import probe as probe_of
from attnscale.cli import main
from small_bench import Bench, config_of, engine_of, lines_of, reading
from small_engine import Array

Lines = list[dict[str, Any]]
GPT = config_of("gpt_oss", "yarn")
QWEN = config_of("qwen2", "yarn")


@pytest.fixture
def lines(bench: Bench) -> Lines:
    """Answers of a right engine to one checkpoint: a header, and a line for each prompt."""
    return copy.deepcopy(bench.lines(bench.probe(QWEN), lambda rules: rules))


def prompt(lines: Lines, name: str) -> dict[str, Any]:
    return next(line for line in lines if line.get("prompt") == name)


# ---- refusals --------------------------------------------------------------------------------------


def other_digest(lines: Lines) -> None:
    lines[0]["checkpoint"] = lines[1]["checkpoint"] = "0" * 16


def unknown_digest(lines: Lines) -> None:
    lines[3]["checkpoint"] = "0" * 16


def repeats_differ(lines: Lines) -> None:
    row = prompt(lines, "count again")["logprobs"]
    row.update({token: each - 0.2 for token, each in list(row.items())[:1]})


def too_few(lines: Lines) -> None:
    """The words of the prompt alone."""
    for line in lines[1:]:
        line["logprobs"] = dict(list(line["logprobs"].items())[:1])


def one_missing(lines: Lines) -> None:
    lines.remove(prompt(lines, "cos 3"))


def first_missing(lines: Lines) -> None:
    answer = prompt(lines, "count")
    lines.remove(answer)
    lines.append({"checkpoint": answer["checkpoint"], "prompt": "count", "refused": "busy"})


def uniform(lines: Lines) -> None:
    """A model that has no weights of the probe."""
    for line in lines[1:]:
        line["logprobs"] = {str(token): -5.5 for token in range(256)}


def random(lines: Lines) -> None:
    rng = np.random.default_rng(7)
    for line in lines[1:-1]:
        line["logprobs"] = {str(token): float(each) for token, each in enumerate(-5.5 + rng.normal(size=256))}
    lines[-1]["logprobs"] = lines[1]["logprobs"]


def other_print(lines: Lines) -> None:
    """Answers to a prompt of the digest, as from a checkpoint with another one."""
    row = prompt(lines, "print 1")["logprobs"]
    row["177"] -= 2.0


TOO_FEW = "layer 0: answer to 'count' must have the log-probability of a word that nothing speaks to, got 1 o"
MISSING = r"answers of layer 0 must be to all \d+ prompts, got \d+: ask again, it goes on where it stopped$"
NOT_LOADED = "layer 0: the model that answered did not load this checkpoint: "
ANOTHER = "layer 0: the model that answered loaded another probe or another layer's checkpoint, or its "
ANOTHER += "log-probabilities are rounded to 8 bits$"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (other_digest, "line 1: must be an answer of a probe, got '{"),
        (unknown_digest, "line 4: must be an answer of a probe, got '{"),
        (repeats_differ, "layer 0: two answers to one prompt must agree, but they differ by 0.2: "),
        (too_few, TOO_FEW),
        (one_missing, MISSING),
        (first_missing, "layer 0: answers must have one to 'count', the first prompt: ask again$"),
        (uniform, NOT_LOADED),
        (random, NOT_LOADED),
        (other_print, ANOTHER),
        (lambda lines: lines.clear(), "must hold answers of a probe, but no line names a checkpoint$"),
        (lambda lines: lines.insert(2, [1]), r"line 3: must be an answer of a probe, got '\[1\]'$"),
        (lambda lines: lines.insert(2, "x"), "line 3: must be an answer of a probe, got 'x'$"),
        (lambda lines: lines[2].update(logprobs=[1]), "line 3: must be an answer of a probe"),
        (lambda lines: lines[2].update(logprobs={"a": 1}), "line 3: must be an answer of a probe"),
        (lambda lines: lines[0].pop("expected"), "line 1: must be an answer of a probe"),
    ],
)
def test_bad_answers(tmp_path: Path, lines: Lines, change: Callable[[Lines], object], told: str) -> None:
    change(lines)
    with pytest.raises(ValueError, match=told) as error:
        reading(tmp_path / "answers.jsonl", lines)
    assert "\n" not in str(error.value)


def test_the_checkpoint_of_another_layer(bench: Bench, tmp_path: Path) -> None:
    """A server that has loaded one checkpoint, asked the prompts of another; and one of another probe."""
    for first, second in (("layer-0", "layer-1"), ("layer-1", "layer-0")):
        asked, loaded = (bench.probe(GPT) / name for name in (first, second))
        with pytest.raises(ValueError, match=f"^layer {first[-1]}: the model that answered loaded another"):
            reading(tmp_path / "answers.jsonl", lines_of(asked, engine_of(loaded)))
    others = (bench.probe(config) / "layer-0" for config in (QWEN, {**QWEN, "max_position_embeddings": 4096}))
    asked, loaded = others
    with pytest.raises(ValueError, match=ANOTHER):
        reading(tmp_path / "answers.jsonl", lines_of(asked, engine_of(loaded)))


def test_files_that_are_none(tmp_path: Path) -> None:
    from attnscale.probe import read

    with pytest.raises(ValueError, match=r"^answers must be a file, got the folder "):
        read(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="x"):
        read(tmp_path / "x")
    with pytest.raises((OSError, ValueError), match="nothing"):
        read(tmp_path / "nothing.jsonl")


# ---- interrupted, refused, several engines ---------------------------------------------------------


def test_half_a_last_line_is_dropped(tmp_path: Path, lines: Lines) -> None:
    """The answer that a kill cut short is missing, unless it was the second to the first prompt."""
    texts = [json.dumps(line) for line in lines]
    assert not reading(tmp_path / "answers.jsonl", [*texts, texts[-1][:40]]).wrong
    assert not reading(tmp_path / "answers.jsonl", [*texts[:-1], texts[-1][:40]]).wrong
    with pytest.raises(ValueError, match=MISSING):
        reading(tmp_path / "answers.jsonl", [*texts[:-2], texts[-2][:40]])


def test_a_refused_prompt_is_not_asked(tmp_path: Path, lines: Lines) -> None:
    for name in ("cos 11", "self 2"):
        answer = prompt(lines, name)
        del answer["logprobs"]
        answer["refused"] = "the context has 64 words"
    found = reading(tmp_path / "answers.jsonl", lines)
    assert not found.wrong
    assert "not asked: cos 11: the context has 64 words" in found.table()
    (lost,) = [row for row in found.rows() if row["verdict"] == "not resolved"]
    assert lost["what"] == "pair 63, rad a word"


def test_a_prompt_that_was_refused_and_then_answered(tmp_path: Path, lines: Lines) -> None:
    refused = {"checkpoint": lines[0]["checkpoint"], "prompt": "cos 11", "refused": "busy"}
    for place in (1, len(lines)):
        found = reading(tmp_path / "answers.jsonl", [*lines[:place], refused, *lines[place:]])
        assert "not asked" not in found.table()
        assert [row["verdict"] for row in found.rows()] == ["as asked"] * len(found.rows())


def test_missing_numbers_of_a_json_writer(tmp_path: Path, lines: Lines) -> None:
    """Log-probabilities of -infinity are left out."""
    for line in lines[1:]:
        line["logprobs"]["0"] = -np.inf
    assert not reading(tmp_path / "answers.jsonl", lines).wrong


def test_two_engines_in_one_file(bench: Bench, tmp_path: Path) -> None:
    """Checkpoints that were served one after the other, and in any order."""
    first, second = (bench.probe(GPT) / name for name in ("layer-0", "layer-1"))
    answers = []
    for folder, name in ((second, "one"), (first, "two")):
        answers.append(lines_of(folder, engine_of(folder), name=name))
    mixed = [answers[0][0], answers[1][0], *answers[1][1:], *answers[0][1:]]
    found = reading(tmp_path / "answers.jsonl", mixed)
    assert [(each.layer, each.engine) for each in found.checkpoints] == [(0, "two"), (1, "one")]
    assert found.table().startswith("gpt_oss in two, one\n")
    assert not found.wrong


# ---- the result ------------------------------------------------------------------------------------


@pytest.fixture
def wrong(bench: Bench) -> Any:
    """A reading with every verdict: window and sink ignored, YaRN's score as well."""
    return bench.read(GPT, lambda rules: rules.but(window=None, sink=None), k=None)


def test_table(wrong: Any) -> None:
    text = str(wrong.table())
    assert repr(wrong) == text
    title, header, *lines, verdict = text.splitlines()
    assert title == "gpt_oss in small"
    assert header.split() == ["layers", "what", "asked", "answered", "error", "verdict"]
    assert verdict == "  wrong: window absent or longer; sink ignored"
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    assert ["0,2", "window", "128", "-", "0.0e+00", "wrong: window absent or longer"] in cells
    assert ["1,3", "sink", "1.5", "none", "0.0e+00", "wrong: sink ignored"] in cells
    assert [row[1] for row in cells].count("scale, rotated channels") == 2
    assert sum("angles of 12 pairs" in row[1] for row in cells) == 2


def test_rows_and_json(wrong: Any) -> None:
    rows = wrong.rows()
    keys = ["engine", "layer", "kind", "what", "asked", "answered", "error", "verdict", "slip"]
    assert all(list(row) == keys for row in rows)
    assert {(row["layer"], row["slip"]) for row in rows if row["verdict"] == "wrong"} == {
        (0, "window absent or longer"),
        (0, "sink ignored"),
        (1, "sink ignored"),
    }
    found = json.loads(json.dumps(wrong.to_dict(), allow_nan=False))
    assert found["wrong"] is True
    assert found["slips"] == ["window absent or longer", "sink ignored"]
    assert [each["layers"] for each in found["checkpoints"]] == [[0, 2], [1, 3]]
    inner = [row for each in found["checkpoints"] for row in each["rows"]]
    assert [row["what"] for row in inner] == [row["what"] for row in rows]
    assert {row["answered"] for row in inner if row["slip"]} == {"none", None}


def test_to_pandas(wrong: Any) -> None:
    pytest.importorskip("pandas")
    frame = wrong.to_pandas()
    assert len(frame) == len(wrong.rows())
    assert list(frame["slip"][frame["verdict"] == "wrong"]) == [
        "window absent or longer",
        "sink ignored",
        "sink ignored",
    ]
    asked = np.array([np.nan if row["asked"] is None else row["asked"] for row in wrong.rows()])
    np.testing.assert_array_equal(frame["asked"].to_numpy(float), asked)


def test_plot(bench: Bench) -> None:
    """Pairs that are wrong have a mark of their own; the line is what was asked."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    def unscaled(rules: Any) -> Any:
        return rules.but(turns=150000.0 ** (-np.arange(32) / 32)) if rules.window is None else rules

    found = bench.read(GPT, unscaled)
    figure = Figure()
    assert found.plot(figure=figure) is figure.axes[0]
    assert len(figure.axes) == 2
    for axes, checkpoint in zip(figure.axes, found.checkpoints, strict=True):
        pairs = checkpoint.expected["pairs"]
        line, *marks = axes.get_lines()
        shares: Array = np.array([pair["asked"] / pair["unscaled"] for pair in pairs])
        np.testing.assert_allclose(line.get_ydata(), shares)
        drawn = {each.get_marker(): each.get_ydata() for each in marks if each.get_marker() in "oX"}
        assert sum(map(len, drawn.values())) == len(pairs)
        np.testing.assert_allclose(drawn["o"], 1.0 if checkpoint.layer else shares, rtol=1e-4)
        if checkpoint.layer:
            np.testing.assert_allclose(drawn["X"], 1.0, rtol=1e-4)
            assert "score multiplied, frequencies not scaled" in axes.get_title()
        else:
            assert "as asked" in axes.get_title()


# ---- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("sink", "strict", "status"), [(True, True, 0), (False, False, 0), (False, True, 3)])
def test_the_command_is_strict(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], sink: bool, strict: bool, status: int
) -> None:
    file = tmp_path / "answers.jsonl"
    found = bench.read(GPT, (lambda rules: rules) if sink else lambda rules: rules.but(sink=None), layer=1)
    file.write_bytes(bench.answers.read_bytes())
    assert main(["probe", "read", str(file), *(["--strict"] if strict else [])]) == status
    said = capsys.readouterr()
    assert ("wrong: sink ignored" in said.out) is not sink
    said_by_python = [line.split() for line in str(found.table()).splitlines()[1:]]
    assert [line.split() for line in said.out.splitlines()] == said_by_python
    assert ("an answer is wrong (--strict)" in said.err) is (status == 3)
    assert main(["probe", "read", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoints"][0]["layer"] == 1


def test_the_command_refuses_in_one_line(
    tmp_path: Path, lines: Lines, capsys: pytest.CaptureFixture[str]
) -> None:
    one_missing(lines)
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["probe", "read", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "answers of layer 0 must be to all" in said.err


def test_an_engine_of_a_narrow_window_is_right(bench: Bench) -> None:
    found = bench.read(config_of("mistral", "plain", sliding_window=24))
    assert not found.wrong, found


def test_questions_bring_the_scale_that_they_need(bench: Bench) -> None:
    found = bench.read(config_of("gemma2", "plain"), kinds=["cap"], layer=1)
    assert {row["what"]: row["verdict"] for row in found.rows()} == {
        "scale, rotated channels": "as asked",
        "soft-cap": "as asked",
    }


def test_nothing_asked_is_not_as_asked(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench.read(config_of("llama", "plain"), kinds=["sink"])
    assert not found.wrong
    assert not found.told
    assert "nothing was asked" in found.table()


def test_other_bytes_and_blank_lines(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=r"must hold answers of a probe as lines of JSON, got other bytes$"):
        probe_of.read(file)
    file.write_text('{"checkpoint": "a", "expected": {"checkpoint": "a"}}\n\n{"checkpoint": "a"}\n')
    with pytest.raises(ValueError, match="line 1: must be an answer of a probe"):
        probe_of.read(file)
