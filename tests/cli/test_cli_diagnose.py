# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale diagnose`` on all-MiniLM-L6-v2, against the model's own eager attention."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import plot
from attnscale.cli import main
from attnscale.cli._model import Reader
from attnscale.cli.diagnose import Measured, _table, draw, measure

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import other_device  # noqa: E402
from other_device import full_masks  # noqa: E402, F401

# transformers and torch warn about their own affairs while they load and run.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]


def eager_entropy(path: str, text: str, n: int) -> np.ndarray:
    """Mean entropy (layers, heads) of the weights that the model itself makes."""
    model = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(path)(Path(text).read_text(), truncation=False)[
        "input_ids"
    ]
    with torch.no_grad():
        weights = model(input_ids=torch.tensor([tokens[:n]]), output_attentions=True).attentions
    p = torch.stack(weights).double().numpy()
    return np.asarray(-(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1).mean(axis=(1, 3)))


def diagnose(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["diagnose", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_entropy_is_that_of_eager_attention(
    minilm: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = diagnose(
        [
            minilm,
            "--text",
            text,
            "--n",
            "64",
            "512",
            "--laws",
            "standard",
            "log_n",
            "entropy_invariant",
        ],
        capsys,
    )
    rows = report["rows"]
    assert len(rows) == 2 * 3 * 6
    for n in (64, 512):
        found = [row["entropy_by_head"] for row in rows if (row["n"], row["law"]) == (n, "standard")]
        np.testing.assert_allclose(found, eager_entropy(minilm, text, n), rtol=0, atol=1e-4)
    by_law = {
        law: [row["entropy"] for row in rows if (row["n"], row["law"]) == (64, law)]
        for law in ("standard", "log_n")
    }
    assert np.mean(by_law["log_n"]) > np.mean(by_law["standard"])  # below n = 512 the law flattens
    own, log_n = (
        [row["entropy"] for row in rows if (row["n"], row["law"]) == (512, law)]
        for law in ("standard", "log_n")
    )
    np.testing.assert_allclose(own, log_n, atol=1e-5)  # and at 512 it is the standard scale
    assert report["plan"]["model_type"] == "bert"


@pytest.mark.usefixtures("full_masks")
def test_a_model_runs_where_it_is_told_to(minilm: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    start = [minilm, "--text", text, "--n", "32", "--laws", "standard", "log_n"]
    plain, there, narrow = (
        [row["entropy_by_head"] for row in diagnose([*start, *place], capsys)["rows"]]
        for place in ([], ["--device", other_device.NAME], ["--dtype", "bfloat16"])
    )
    np.testing.assert_allclose(there, plain, rtol=0, atol=1e-5)
    np.testing.assert_allclose(narrow, plain, rtol=0, atol=0.05)
    assert narrow != plain


def test_a_device_that_is_not_here_is_one_line(
    minilm: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for device in ("nowhere", "meta", "cuda:99"):
        assert main(["diagnose", minilm, "--text", text, "--device", device]) == 2
        err = capsys.readouterr().err
        assert err.startswith(
            f"attnscale: error: --device must be one that PyTorch sees here, got '{device}'"
        )
        assert err.count("\n") == 1


def test_the_table_and_the_figure(
    minilm: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    figure = tmp_path / "heads.png"
    assert main(["diagnose", minilm, "--text", text, "--n", "128", "32", "--plot", str(figure)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("bert, 6 layers")
    assert "Mean entropy (nats) of the heads" in out
    assert [line.split()[:2] for line in out.splitlines() if " mean " in line] == [
        ["32", "mean"],
        ["128", "mean"],
    ]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_bidirectional_rows_see_every_key(minilm: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = diagnose([minilm, "--text", text, "--n", "32"], capsys)["rows"]
    np.testing.assert_allclose([row["uniform_entropy"] for row in rows], np.log(32), rtol=1e-12)


def test_the_default_lengths_are_those_of_the_text(
    minilm: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Names refer.", encoding="utf-8")
    for path, lengths in ((str(short), {5}), (text, {64, 128, 256, 512})):
        assert {row["n"] for row in diagnose([minilm, "--text", path], capsys)["rows"]} == lengths


def causal_model(**options: Any) -> Any:
    """Two layers that look at nothing: each row weighs the keys that it sees equally."""
    config = transformers.MistralConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=50,
        **options,
    )
    model = transformers.MistralModel(config).eval()
    for layer in model.layers:
        torch.nn.init.zeros_(layer.self_attn.q_proj.weight)
    return model


@pytest.mark.parametrize("window", [None, 4])
def test_causal_rows_are_held_against_what_they_see(window: int | None) -> None:
    """Uniform rows stand on the line: the mean of ln(i + 1), or of ln(min(i + 1, window)), not ln n."""
    lengths = [8, 32]
    model = causal_model(sliding_window=window)
    found = measure(Reader(model, [[*range(40)]]), lengths, {"standard": at.laws.get("standard")})
    for index, n in enumerate(lengths):
        seen = np.minimum(np.arange(1, n + 1), window or n)
        np.testing.assert_allclose(found.equal[index], np.log(seen).mean(), rtol=1e-12)
    np.testing.assert_allclose(found.entropy["standard"], np.stack([found.equal] * 2, axis=-1), atol=1e-6)
    table = _table(lengths, found, {"standard": "as the model has it"})
    assert table.startswith("Mean entropy (nats) of the heads over all queries; keys: exp(entropy).\n")
    header, *rows = (re.split(r"\s{2,}", line.strip()) for line in table.splitlines()[3:])
    assert header == ["n", "layer", "equal", "as the model has it", "keys"]
    assert all(row[2] == row[3] for row in rows)


def gpt_oss() -> Any:
    """Two layers of GPT-OSS, each head with a sink; the first sees 4 keys, the second all."""
    config = transformers.GptOssConfig(
        hidden_size=16,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=4,
        vocab_size=50,
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    return transformers.GptOssModel(config).eval()


def test_equal_weights_count_the_sink() -> None:
    """Zero scores and a sink of logit 0 are equal weights: n_visible keys and one outcome more."""
    model = gpt_oss()
    for layer in model.layers:
        for each in (layer.self_attn.q_proj.weight, layer.self_attn.q_proj.bias, layer.self_attn.sinks):
            torch.nn.init.zeros_(each)
    found = measure(Reader(model, [[*range(20)]]), [20], {"standard": at.laws.get("standard")})
    assert found.sinks == (0, 1)
    seen = np.arange(1, 21)
    expected = [np.log(np.minimum(seen, 4) + 1).mean(), np.log(seen + 1).mean()]
    np.testing.assert_allclose(found.equal[0], expected, rtol=1e-12)
    np.testing.assert_allclose(found.entropy["standard"][0, :, 0], expected, atol=1e-6)
    table = _table([20], found, {"standard": "as the model has it"})
    assert "\nequal: of equal weights on the keys that each query sees and the sink.\n" in table
    assert "\nBoth count the sink as one more outcome in the layers 0, 1.\n" in table


def test_the_table_says_what_multiplies_the_models_own_scale(
    minilm: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model's own scale may be another than the standard one: no column has that name."""
    arguments = ["diagnose", minilm, "--text", text, "--n", "16", "--laws", "standard", "log_n"]
    assert main(arguments) == 0
    plain = capsys.readouterr().out
    assert re.search(r"equal +as the model has it +keys +times log_n +keys\n", plain)
    assert main([*arguments, "--per-head"]) == 0
    by_head = capsys.readouterr().out
    assert "Means over all queries of each head (nats), as the model has it;" in by_head
    assert re.search(r"max_score +times log_n\n", by_head)


@pytest.mark.parametrize(("n", "notes"), [(16, 0), (17, 1)])
def test_a_text_that_is_longer_than_the_model_was_made_for(n: int, notes: int) -> None:
    """Rotary positions go on without an error, which is worth a note."""
    reader = Reader(causal_model(max_position_embeddings=16), [[*range(40)]])
    measure(reader, [8, n, n], {"standard": at.laws.get("standard")})
    said = ["the model was made for 16 positions (max_position_embeddings); longer texts ran"]
    assert reader.notes == said[:notes]


def test_the_table_in_bits() -> None:
    lengths = [8, 32]
    found = measure(Reader(causal_model(), [[*range(40)]]), lengths, {"log_n": at.laws.get("log_n")})
    labels = {"log_n": "times log_n"}
    nats, bits = _table(lengths, found, labels), _table(lengths, found, labels, "bits")
    assert "Mean entropy (bits) of the heads over all queries; keys: 2^entropy." in bits
    for before, after in zip(nats.splitlines()[4:], bits.splitlines()[4:], strict=True):
        a, b = before.split(), after.split()
        assert (a[:2], a[4]) == (b[:2], b[4])  # effective keys are the same
        np.testing.assert_allclose([*map(float, b[2:4])], np.log2(np.exp([*map(float, a[2:4])])), atol=2e-3)


def test_the_figure_has_lines_and_a_map_of_the_heads_at_each_length() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    laws = {"standard": at.laws.get("standard"), "log_n": at.laws.get("log_n")}
    found = measure(Reader(causal_model(), [[*range(40)]]), [8, 32], laws)
    draw(found, [8, 32], figure, about="a model")
    lines, *maps, bar = figure.get_axes()
    assert lines.get_title() == "a model"
    limit, own, _ = lines.get_lines()
    np.testing.assert_allclose(limit.get_ydata(), own.get_ydata(), atol=1e-6)
    assert "equal weights" in {text.get_text() for text in lines.texts}
    assert lines.get_xlabel() == "tokens, $n$"
    assert bar.get_ylabel() == "mean entropy (nats)"
    drawn = [np.asarray(ax.get_images()[0].get_array()) for ax in maps]
    np.testing.assert_array_equal(drawn, [*found.entropy["standard"], *found.entropy["log_n"]])
    assert [ax.get_title(loc="left") for ax in maps][2:] == ["log_n\n$n = 8$", "$n = 32$"]
    assert figure.subfigs[1].get_suptitle() == "layers: layers.*.self_attn"


def test_no_title_of_a_map_lies_on_another() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    entropy = np.ones((4, 2, 2))
    laws = {"as it is": entropy, "1.2 * log_n(base=131072)": entropy}
    draw(
        Measured(laws, entropy[:, :, 0], (), ["layers.0", "layers.1"], ["self"] * 2, (0, 1)),
        [64, 4096, 8192, 131072],
        figure,
    )
    figure.canvas.draw()
    texts = [text for ax in figure.subfigs[1].axes for text in (ax.title, ax._left_title) if text.get_text()]
    for text in texts:  # the line of a row's name stands alone above those of the lengths
        text.set_text(text.get_text().splitlines()[-1])
    boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) == 8
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize(("layers", "heads", "lengths"), [(6, 12, 2), (2, 2, 1)])
def test_nothing_of_the_figure_is_cut_off(layers: int, heads: int, lengths: int) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    entropy = np.random.default_rng(0).uniform(0, 4, (lengths, layers, heads))
    names = [f"encoder.layer.{layer}.attention.self" for layer in range(layers)]
    found = Measured(
        {"standard": entropy}, np.full((lengths, layers), 4.5), (), names, ["self"] * layers, (0, 1)
    )
    draw(found, [64, 128][:lengths], figure)
    figure.draw_without_rendering()
    drawn = figure.get_tightbbox()
    assert min(drawn.x0, drawn.y0) >= 0
    assert drawn.x1 <= figure.get_figwidth()
    assert drawn.y1 <= figure.get_figheight()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n", "0"], "--n must be at least 1, got 0"),
        (["--n", "100000"], "--n must be at most"),
        (["--n", "513"], "--n must be at most 512, the positions of the model, got 513"),
        (["--laws", "lig_n"], "lig_n"),
    ],
)
def test_bad_input_is_one_line(
    minilm: str, text: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", minilm, "--text", text, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnscale: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_directory_without_a_model(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path), "--text", text]) == 2
    assert "error: MODEL" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path), "--text", str(tmp_path / "absent.txt")]) == 2
    assert "--text " in capsys.readouterr().err


def test_a_text_without_a_word(minilm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    assert main(["diagnose", minilm, "--text", str(tmp_path / "empty.txt")]) == 2
    assert "empty.txt: there is no word in it" in capsys.readouterr().err


def test_the_figure_says_what_was_measured_and_what_a_law_multiplies(
    minilm: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("matplotlib")
    found: list[Any] = []
    own = plot.entropy_vs_length

    def keep(*given: Any, **options: Any) -> None:
        found.append(own(*given, **options))

    monkeypatch.setattr(plot, "entropy_vs_length", keep)
    arguments = ["diagnose", minilm, "--text", text, "--n", "16", "--laws", "standard", "log_n"]
    assert main([*arguments, "--unit", "bits", "--plot", str(tmp_path / "a.png")]) == 0
    (axes,) = found
    assert axes.get_title(loc="left") == "model, first $n$ tokens of text.txt"
    names = {each.get_text() for each in axes.texts}
    assert names == {
        "equal weights",
        "as the model has it",
        "times log_n",
    }  # not 1/sqrt(d): it may have another
    assert axes.get_ylabel() == "mean entropy (bits)"
    assert "Mean entropy (bits) of the heads" in capsys.readouterr().out
