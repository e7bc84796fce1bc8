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

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import other_device  # noqa: E402
from attnscale.torch import AttentionLog, Diagnosis, diagnose  # noqa: E402
from attnscale.torch._models import budget, calls, diagnosed_heads, diagnosis, readings  # noqa: E402
from other_device import full_masks  # noqa: E402, F401
from small_model import OPAQUE, Reader, Small, weights_of  # noqa: E402

from tests.models.spellings import fused, heads, products  # noqa: E402

# transformers and torch give warnings of their own.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]


def eager_entropy(path: str, text: str, n: int) -> np.ndarray:
    """Mean entropy (layers, heads) of the model's own weights."""
    p = weights_of(path, text, n)
    return np.asarray(-(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1).mean(axis=-1))


def report_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["diagnose", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_entropy_is_that_of_eager_attention(
    minilm: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    laws = ("standard", "log_n", "entropy_invariant")
    report = report_of([minilm, "--text", text, "--n", "64", "512", "--laws", *laws], capsys)
    rows = report["rows"]
    assert len(rows) == 2 * 3 * 6

    def values(name: str, n: int, law: str) -> list[Any]:
        return [row[name] for row in rows if (row["n"], row["law"]) == (n, law)]

    for n in (64, 512):
        found = values("entropy_by_head", n, "standard")
        np.testing.assert_allclose(found, eager_entropy(minilm, text, n), rtol=0, atol=1e-4)
    short, long = ([values("entropy", n, law) for law in ("standard", "log_n")] for n in (64, 512))
    assert np.mean(short[1]) > np.mean(short[0])  # below n = 512 the law flattens
    np.testing.assert_allclose(*long, atol=1e-5)  # at 512 it is the standard scale
    assert report["plan"]["model_type"] == "bert"


@pytest.mark.usefixtures("full_masks")
def test_a_model_runs_where_it_is_told_to(minilm: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    start = [minilm, "--text", text, "--n", "32", "--laws", "standard", "log_n"]
    plain, there, narrow = (
        [row["entropy_by_head"] for row in report_of([*start, *place], capsys)["rows"]]
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
        told = f"attnscale: error: --device must be one that PyTorch sees here, got '{device}'"
        assert err.startswith(told)
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
    assert [line.split()[0] for line in out.splitlines() if line.split()[1:2] == ["mean"]] == ["32", "128"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_bidirectional_rows_see_every_key(minilm: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = report_of([minilm, "--text", text, "--n", "32"], capsys)["rows"]
    np.testing.assert_allclose([row["uniform_entropy"] for row in rows], np.log(32), rtol=1e-12)


def test_the_default_lengths_are_those_of_the_text(
    minilm: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Names refer.", encoding="utf-8")
    for path, lengths in ((str(short), {5}), (text, {64, 128, 256, 512})):
        assert {row["n"] for row in report_of([minilm, "--text", path], capsys)["rows"]} == lengths


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
SMALL |= {"vocab_size": 50}
IDS = torch.arange(40)[None]


def causal_model(**options: Any) -> Any:
    """A model of two layers with zero scores: each row weighs its visible keys equally."""
    config = transformers.MistralConfig(**SMALL, intermediate_size=16, **options)
    model = transformers.MistralModel(config).eval()
    for layer in model.layers:
        torch.nn.init.zeros_(layer.self_attn.q_proj.weight)
    return model


@pytest.mark.parametrize("window", [None, 4])
def test_causal_rows_are_held_against_what_they_see(window: int | None) -> None:
    """The reference of uniform rows is the mean of ln(i + 1) or of ln(min(i + 1, window)), not ln n."""
    lengths = [8, 32]
    model = causal_model(sliding_window=window)
    found = diagnose(model, IDS, lengths)
    for index, n in enumerate(lengths):
        seen = np.minimum(np.arange(1, n + 1), window or n)
        np.testing.assert_allclose(found.uniform_entropy[index], np.log(seen).mean(), rtol=1e-12)
    np.testing.assert_allclose(
        found.entropy["standard"], np.stack([found.uniform_entropy] * 2, axis=-1), atol=1e-6
    )
    title, *table, first, _ = str(found).splitlines()
    assert title == "Diagnosis"
    assert first == "Mean entropy (nats) of the heads over all queries; keys: exp(entropy)."
    header, *rows = (re.split(r"\s{2,}", line.strip()) for line in table)
    assert header == ["n", "layer", "equal", "as the model has it", "keys"]
    assert all(row[2] == row[3] for row in rows)


def gpt_oss() -> Any:
    """Two layers of GPT-OSS with a sink for each head; the first sees 4 keys, the second all."""
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    config = transformers.GptOssConfig(**SMALL, **experts, intermediate_size=8, head_dim=8, sliding_window=4)
    return transformers.GptOssModel(config).eval()


def test_equal_weights_count_the_sink() -> None:
    """Zero scores and a sink of logit 0 give n_visible + 1 equal weights."""
    model = gpt_oss()
    for layer in model.layers:
        for each in (layer.self_attn.q_proj.weight, layer.self_attn.q_proj.bias, layer.self_attn.sinks):
            torch.nn.init.zeros_(each)
    found = diagnose(model, IDS[:, :20])
    assert found.lengths == (20,)
    assert found.sinks == (0, 1)
    seen = np.arange(1, 21)
    expected = [np.log(np.minimum(seen, 4) + 1).mean(), np.log(seen + 1).mean()]
    np.testing.assert_allclose(found.uniform_entropy[0], expected, rtol=1e-12)
    np.testing.assert_allclose(found.entropy["standard"][0, :, 0], expected, atol=1e-6)
    assert str(found).splitlines()[-2:] == [
        "equal: of equal weights on the keys that each query sees and the sink.",
        "Both count the sink as one more outcome in the layers 0, 1.",
    ]


def test_the_table_says_what_multiplies_the_models_own_scale(
    minilm: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model whose scale is not the standard one has no column of that name."""
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
    """Rotary positions beyond the trained length raise no error, but give a note."""
    reader = Reader(causal_model(max_position_embeddings=16), [[*range(40)]])
    diagnose(reader.model, reader.run, [8, n])
    reader.run(n)
    said = ["the model was made for 16 positions (max_position_embeddings); longer texts ran"]
    assert reader.notes == said[:notes]


def test_the_table_in_bits() -> None:
    found = diagnose(causal_model(), IDS, [8, 32], laws=["log_n"])
    nats, bits = (found.table(unit=unit).splitlines() for unit in ("nats", "bits"))
    assert "Mean entropy (bits) of the heads over all queries; keys: 2^entropy." in bits
    for before, after in zip(nats[2:-2], bits[2:-2], strict=True):
        a, b = before.split(), after.split()
        assert (a[:2], a[4]) == (b[:2], b[4])  # effective keys are the same
        np.testing.assert_allclose([*map(float, b[2:4])], np.log2(np.exp([*map(float, a[2:4])])), atol=2e-3)


def test_the_figure_has_lines_and_a_map_of_the_heads_at_each_length() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    found = diagnose(causal_model(), IDS, [8, 32], laws=["standard", "log_n"])
    found.plot(figure=figure, about="a model")
    lines, *maps, bar = figure.get_axes()
    assert lines.get_title(loc="left") == "a model"
    limit, own, _ = lines.get_lines()
    np.testing.assert_allclose(limit.get_ydata(), own.get_ydata(), atol=1e-6)
    assert "equal weights" in {text.get_text() for text in lines.texts}
    assert lines.get_xlabel() == "tokens, $n$"
    assert bar.get_ylabel() == "mean entropy (nats)"
    drawn = [np.asarray(ax.get_images()[0].get_array()) for ax in maps]
    np.testing.assert_array_equal(drawn, [*found.entropy["standard"], *found.entropy["log_n"]])
    assert [ax.get_title(loc="left") for ax in maps][2:] == ["times log_n\n$n = 8$", "$n = 32$"]
    assert figure.subfigs[1].get_suptitle() == "layers: layers.*.self_attn"


def measured(entropy: dict[str, Any], lengths: tuple[int, ...], names: str) -> Diagnosis:
    """A diagnosis with these entropies, by the spellings of laws."""
    shape = next(iter(entropy.values())).shape[:2]
    return Diagnosis(
        laws={name: at.laws.get(name) for name in entropy},
        lengths=lengths,
        entropy=entropy,
        uniform_entropy=np.full(shape, 4.5),
        sinks=(),
        modules=tuple(names.format(layer) for layer in range(shape[1])),
        kinds=("self",) * shape[1],
        padding=(0, 1),
        unmeasured={},
    )


def test_no_title_of_a_map_lies_on_another() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    entropy = np.ones((4, 2, 2))
    laws = ("standard", "1.2 * log_n(base=131072)")
    measured(dict.fromkeys(laws, entropy), (64, 4096, 8192, 131072), "layers.{}").plot(figure=figure)
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
    names = "encoder.layer.{}.attention.self"
    measured({"standard": entropy}, (64, 128)[:lengths], names).plot(figure=figure)
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

    monkeypatch.setattr("attnscale.plot._diagnosis.entropy_vs_length", keep)
    arguments = ["diagnose", minilm, "--text", text, "--n", "16", "--laws", "standard", "log_n"]
    assert main([*arguments, "--unit", "bits", "--plot", str(tmp_path / "a.png")]) == 0
    (axes,) = found
    assert axes.get_title(loc="left") == "model, first $n$ tokens of text.txt"
    names = {each.get_text() for each in axes.texts}
    assert names == {"equal weights", "as the model has it", "times log_n"}  # not 1/sqrt(d)
    assert axes.get_ylabel() == "mean entropy (bits)"
    assert "Mean entropy (bits) of the heads" in capsys.readouterr().out


# ---- attention that is not measured, and heads that share keys -----------------------------------


OWN = {"standard": at.laws.get("standard")}


def small_command(model: Any, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    reader = Reader(model, [[*range(20)]])
    monkeypatch.setattr("attnscale.cli.diagnose.load", lambda name, options: reader)
    return main(["diagnose", "small", "--text", "text.txt", "--n", "16", *more])


def test_what_is_seen_and_not_measured_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Small(plain=products.Matmul(), other=fused.Opaque(), another=fused.Opaque())
    assert small_command(model, monkeypatch) == 0
    line = f"Seen, not measured: parts.other, parts.another: {OPAQUE}."
    assert line in capsys.readouterr().out.splitlines()
    assert small_command(model, monkeypatch, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["unmeasured"] == {"parts.other": OPAQUE, "parts.another": OPAQUE}
    assert {row["module"] for row in report["rows"]} == {"parts.plain"}
    assert small_command(model, monkeypatch, "--modules", "*.plain", "--json") == 0
    assert json.loads(capsys.readouterr().out)["unmeasured"] == {}
    assert small_command(model, monkeypatch, "--modules", "*.other") == 2
    error = capsys.readouterr().err
    assert "there is parts.plain (self)" in error
    assert f"; seen, not measured: parts.other, parts.another: {OPAQUE}" in error


def test_a_model_of_which_nothing_can_be_measured_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Small(**{f"layer{i}": fused.Opaque() for i in range(6)})
    names = ", ".join(f"parts.layer{i}" for i in range(4))
    assert small_command(model, monkeypatch, "--kind", "self") == 2
    told = f"MODEL Small: attention was seen, and none could be measured: {names} and 2 more: {OPAQUE}"
    assert capsys.readouterr().err == f"attnscale: error: {told}\n"


@pytest.mark.parametrize(
    ("kind", "key_of"), [(heads.GroupedByRepeating, [0, 0, 1, 1]), (heads.GroupedByRemainder, [0, 1, 0, 1])]
)
def test_key_heads_are_shared_as_the_model_shares_them(kind: Any, key_of: list[int]) -> None:
    """Neighbouring heads share keys in one module, heads of one remainder in the other."""
    module = kind()
    torch.nn.init.normal_(module.to_q.weight, std=2.0)  # heads that differ
    model, ids = Small(attention=module), [*range(20)]
    found = diagnose(model, torch.tensor([ids]), [16], per_head=True)
    rows = found.heads(bits=4.0, tokens=6.0).rows()
    assert [row["key_head"] for row in rows] == key_of

    with torch.no_grad():
        (right,) = module.right(model.embed(torch.tensor([ids[:16]])))
    p = right.weights()[0].numpy()
    squares, entropy = (p**2).sum(-1), -(p * np.log(p)).sum(-1)
    np.testing.assert_allclose([row["entropy"] for row in rows], entropy.mean(-1), atol=1e-5)
    shared = [[head for head in range(4) if key_of[head] == key] for key in range(2)]
    h2 = -np.log(squares).mean(-1)
    of_keys = np.array([-np.log2(np.exp(-h2[each]).mean()) for each in shared])
    bits = 4 + (of_keys.mean() - of_keys) / 4
    np.testing.assert_allclose([row["bits"] for row in rows], bits[key_of], atol=1e-5)
    keys = np.exp([entropy.mean(-1)[each].max() for each in shared])
    tokens = np.array([row["tokens"] for row in rows])
    assert len({*tokens[key_of == np.array(0)]}) == 1
    assert tokens[shared[0][0]] + tokens[shared[1][0]] == 12
    np.testing.assert_allclose(tokens, (12 * keys / keys.sum())[key_of], atol=1)


def log_without_heads(*names: str) -> Any:
    """A log of two texts and two heads; in modules of these names their axes are unknown."""
    log = AttentionLog(diagnosed_heads.STATISTICS, {})
    log.begin_pass()
    for name in ("first", "second"):
        query, key = torch.randn(2, 2, 2, 5, 4, generator=torch.Generator().manual_seed(len(name)))
        is_known = name not in names
        if not is_known:
            query, key = (x.reshape(4, 1, 5, 4) for x in (query, key))
        product = readings.Product(query, key, {"scale": 1.0})
        place, form = calls.Place(name, 0), {"way": "softmax", "kind": "self", "measured": product}
        key_of = (0, 1) if is_known else (0,)
        log.add(calls.SeenCall(place, key_of=key_of, product=product, has_known_axes=is_known, **form))
    return log


def test_no_number_is_of_a_head_where_heads_are_not_known() -> None:
    whole = diagnosis.diagnosis_of(log_without_heads(), 5, OWN, per_head=True)
    found = diagnosis.diagnosis_of(log_without_heads("second"), 5, OWN, per_head=True)
    assert found.without_heads == ("second",)
    means = np.nanmean(found.entropy["standard"], -1)
    np.testing.assert_allclose(means, whole.entropy["standard"].mean(-1), rtol=1e-6)
    first, second = found.rows()
    assert [len(each["entropy_by_head"]) for each in (first, second)] == [2, 0]
    assert [each["axes"] for each in (first, second)] == ["batch, heads, queries", "unknown"]
    np.testing.assert_allclose(second["entropy"], whole.entropy["standard"][0, 1].mean(), rtol=1e-6)
    rows = found.heads(bits=4.0, tokens=2.0).rows()
    assert [(row["module"], row["head"]) for row in rows] == [("first", 0), ("first", 1)]
    assert np.mean([row["bits"] for row in rows]) == pytest.approx(4)
    assert sum(row["tokens"] for row in rows) == 4
    last = str(found).splitlines()[4]
    assert last.split()[-2] == f"{whole.entropy['standard'].mean():.3f}"  # each layer counts once


def test_the_figure_has_no_field_for_heads_that_are_not_known() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    found = diagnosis.diagnosis_of(log_without_heads("second"), 5, OWN)
    found.plot(figure=figure)
    lines, drawn, _ = figure.get_axes()
    values = np.asarray(drawn.get_images()[0].get_array())
    np.testing.assert_array_equal(np.isnan(values), [[False, False], [True, True]])
    mean = lines.get_lines()[1].get_ydata()
    np.testing.assert_allclose(mean, [found.entropy["standard"][0, 0].mean()])


@pytest.mark.parametrize("flag", ["--per-head", "--budget bits=4", "--plot heads.png"])
def test_what_shows_heads_needs_some(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    found = diagnosis.diagnosis_of(log_without_heads("first", "second"), 5, OWN, per_head=True)
    with pytest.raises(ValueError, match="cannot be told apart in first, second"):
        found.heads()
    monkeypatch.setattr("attnscale.torch.diagnose", lambda *given, **options: found)
    assert small_command(Small(), monkeypatch, *flag.split()) == 2
    said = f"{flag.split()[0]} needs heads: texts and heads cannot be told apart in first, second"
    assert capsys.readouterr().err == f"attnscale: error: {said}\n"
    assert small_command(Small(), monkeypatch) == 0
    note = "Texts and heads cannot be told apart in first, second: no number is per head."
    assert note in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("seed", range(20))
def test_tokens_add_up_and_follow_the_effective_keys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys, most = np.exp(rng.uniform(0, 6, 17)), rng.integers(1, 200, 17)
    mean = float(rng.uniform(1, 220))
    found = budget.tokens_by_head(keys, most, mean)
    assert found.sum() == max(17, min(round(17 * mean), most.sum()))
    assert ((found >= 1) & (found <= most)).all()
    free = (found > 1) & (found < most)  # those that nothing bounds have the same share, to the rounding
    ratios = np.stack([(found[free] - 1) / keys[free], (found[free] + 1) / keys[free]])
    assert free.sum() < 2 or ratios[0].max() <= ratios[1].min()


def test_bits_are_those_of_the_formula() -> None:
    found = budget.bits_by_head(np.log([1.0, 16.0]), 4.0)  # 0 and 4 bits, 2 on average
    np.testing.assert_allclose(found, [4.5, 3.5])
    np.testing.assert_allclose(budget.mean_renyi2(-np.log([[0.5, 0.25]]), axis=1), -np.log([0.375]))
