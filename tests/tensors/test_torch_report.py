# SPDX-License-Identifier: BSD-3-Clause
"""Reports of what a log kept: the same rows as the log's own statistics, in models of several kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# transformers and torch warn about their own affairs while they load and run.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 50,
}
LENGTHS = (24, 48)
#: Name of the model's class, and further keys of its config.
MODELS: dict[str, dict[str, Any]] = {
    "Bert": {},
    "GPT2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "scale_attn_by_inverse_layer_idx": True},
    "Mistral": {"num_key_value_heads": 2, "sliding_window": 16},
    "Gemma2": {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 16,
        "attn_logit_softcapping": 2.0,
        "attn_implementation": "eager",  # the default of transformers 5.4 leaves the soft-cap out
    },
    "GptOss": {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
}
CAUSAL = {"GPT2", "Mistral", "Gemma2", "GptOss"}


def initial(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**({} if name == "GPT2" else SMALL), **MODELS[name]})
    return getattr(transformers, f"{name}Model")(config).eval()


def build(name: str) -> Any:
    model = initial(name)
    for parameter in model.parameters():  # scores of some size, so that weights differ
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def recorded(model: Any, lengths: Any = LENGTHS, batch: int = 1, **options: Any) -> Any:
    wanted: dict[str, Any] = {"statistics": ("entropy", "max_weight", "n_visible"), "keep_heads": True}
    with torch.no_grad(), at.torch.record(model, **{**wanted, **options}) as log:
        for n in lengths:
            model(input_ids=torch.arange(n)[None].repeat(batch, 1))
    return log


@pytest.mark.parametrize("name", MODELS)
def test_the_report_has_the_entropies_of_the_log(name: str) -> None:
    log = recorded(build(name), laws=["log_n(base=24)"])
    found = log.report(about={"model": name})
    assert found.lengths.tolist() == list(LENGTHS)
    assert found.about["causal"] == ("yes" if name in CAUSAL else "no")
    assert [law.spelling for law in found.laws] == ["standard", "log_n(base=24)"]
    np.testing.assert_array_equal(found.layers, np.repeat([0, 1], 4))
    for j, (n, layers) in enumerate(zip(LENGTHS, log.passes, strict=True)):
        last = n // 8 if name in CAUSAL else n
        for layer in (0, 1):
            here = found.layers == layer
            for k, statistic in enumerate(("entropy", "entropy under log_n(base=24)")):
                rows = layers[log.modules[layer]][statistic][0].astype(np.float64)
                np.testing.assert_allclose(
                    found.entropy[here, j, k], rows[:, -last:].mean(-1), atol=2e-6, rtol=2e-6
                )
            weights = layers[log.modules[layer]]["max_weight"][0, :, -last:].mean(-1)
            np.testing.assert_allclose(found.max_weight[here, j], weights, rtol=1e-5)
            seen = layers[log.modules[layer]]["n_visible"][0, :, -last:]
            equal = np.log(seen + (name == "GptOss")).mean(-1)  # with the sink
            np.testing.assert_allclose(found.uniform_entropy[here, j], equal)
    np.testing.assert_allclose(found.curve[..., 8], found.entropy[..., 0], atol=2e-6)
    assert found.entropy[..., 0].std() > 0.01  # the heads differ
    # Under a soft-cap or beside a sink no multiple of the scale is sought.
    assert np.isnan(found.beta).all() == (name in ("Gemma2", "GptOss"))


def encoder_decoder() -> Any:
    torch.manual_seed(0)
    sizes = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = transformers.BartConfig(vocab_size=50, d_model=32, init_std=0.5, **sizes)
    config.encoder_ffn_dim = config.decoder_ffn_dim = 16
    return transformers.BartModel._from_config(config, attn_implementation="eager").eval()


def entropies(weights: Any) -> np.ndarray:
    """Entropies of rows, (heads, queries), from the model's own weights for one text."""
    p = weights[0].double().numpy()
    return np.asarray(-(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1))


@pytest.mark.parametrize("decoder", [1, 9])
def test_towers_and_cross_attention_are_groups(decoder: int) -> None:
    """An encoder's texts of several lengths, with one start for the decoder or one text."""
    model = encoder_decoder()
    kinds = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    shown = [kind for kind in kinds if decoder > 1 or kind != "decoder_attentions"]
    expected: dict[str, list[Any]] = {kind: [] for kind in kinds}
    start = {"decoder_input_ids": torch.arange(decoder)[None]}
    with torch.no_grad():
        for n in LENGTHS:
            weights = model(input_ids=torch.arange(n)[None], **start, output_attentions=True)
            for kind in kinds:
                expected[kind].append([entropies(each) for each in weights[kind]])
        model.set_attn_implementation("sdpa")
        with at.torch.record(model, keep_heads=True) as log:
            for n in LENGTHS:
                model(input_ids=torch.arange(n)[None], **start)
    found = log.report(laws=["log_n"])
    assert found.lengths.tolist() == list(LENGTHS)
    groups = ["encoder, self-attention", "decoder, self-attention, 9 keys", "decoder, cross-attention"]
    assert [*dict.fromkeys(found.groups)] == [groups[kinds.index(kind)] for kind in shown]
    modules = ("encoder.layers.{}.self_attn", "decoder.layers.{}.self_attn", "decoder.layers.{}.encoder_attn")
    for kind, module in zip(kinds, modules, strict=True):
        first = 8 if kind == "decoder_attentions" else 0  # causal: the last eighth of nine rows
        for layer in range(2) if kind in shown else ():
            here = np.array(found.modules) == module.format(layer)
            rows = [each[layer][:, first:].mean(-1) for each in expected[kind]]
            np.testing.assert_allclose(found.entropy[here, :, 0].T, rows, atol=1e-4)
    said = found.about.get("left out, as they see one key")
    assert said == (None if decoder > 1 else "decoder.layers.0.self_attn, decoder.layers.1.self_attn")
    assert found.name(0) == "head 0 of encoder.layers.0.self_attn"
    assert len({*zip(found.layers.tolist(), found.heads.tolist(), strict=True)}) == len(found.heads)


def test_a_page_of_one_part_has_no_groups() -> None:
    model = encoder_decoder()
    with torch.no_grad(), at.torch.record(model, keep_heads=True) as log:
        model(input_ids=torch.arange(24)[None], decoder_input_ids=torch.arange(9)[None])
    found = log.select("cross").report(laws=["log_n"])
    assert {*found.groups} == {""}
    assert found.name(0) == "layer 0, head 0"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["Bert", "GPT2", "Mistral"])
def test_padding_is_not_on_the_page(name: str, side: str) -> None:
    """The rows of one padded text are those that the model's own weights have of its tokens."""
    model = build(name)
    model.set_attn_implementation("eager")
    real = torch.ones(1, 40, dtype=torch.long)
    real[0, slice(0, 8) if side == "left" else slice(32, 40)] = 0
    with torch.no_grad(), at.torch.record(model, keep_heads=True) as log:
        given = {"input_ids": torch.arange(40)[None], "attention_mask": real}
        weights = model(**given, output_attentions=True).attentions
    found = log.report(laws=["log_n"])
    assert found.lengths.tolist() == [32]
    for layer, each in enumerate(weights):
        rows = entropies(each)[:, real[0].bool().numpy()]
        mean = rows[:, -4:].mean(-1) if name in CAUSAL else rows.mean(-1)
        np.testing.assert_allclose(found.entropy[found.layers == layer, 0, 0], mean, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_stands_out_of_a_model_that_was_not_trained(name: str) -> None:
    """Windows, soft-caps and the initial sinks included."""
    found = recorded(initial(name), laws=["log_n(base=24)"]).report()
    assert found.outliers == []
    assert len(found.summary) == (1 if name in ("Gemma2", "GptOss") else 2)


def test_the_scale_of_the_model_is_where_the_slider_begins() -> None:
    """GPT-2 divides its scores by the layer's number: the report's multiples are of that scale."""
    found = recorded(build("GPT2"), laws=["log_n"]).report()
    assert np.isfinite(found.beta[:, 0]).all()
    np.testing.assert_allclose(found.beta[:, 0], 1, atol=1e-3)


def test_a_causal_model_gives_what_its_queries_and_keys_give() -> None:
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    model = build("GPT2")
    own = at.torch._models.log.AttentionLog.add

    def keep(self: Any, call: Any) -> None:
        query, key, options = call.product
        kept.append((query[0] * options["scale"] * query.shape[-1] ** 0.5, key[0]))
        own(self, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at.torch._models.log.AttentionLog, "add", keep)
        with torch.no_grad(), at.torch.record(model, keep_heads=True) as log:
            model(input_ids=torch.arange(48)[None])
    whole = at.report(*kept[0], lengths=[48], laws=["log_n"], is_causal=True).to_dict()
    found = log.report(laws=["log_n"]).to_dict()
    for name in ("entropy", "curve", "first_key_weight", "received", "by_position", "histogram"):
        np.testing.assert_allclose(found[name][:4], whole[name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_the_page_is_written(tmp_path: Path) -> None:
    log = recorded(build("Bert"), laws=["log_n"])
    found = log.report(tmp_path / "page.html", plan="nothing but 1/sqrt(d)")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text == found.to_html()
    assert "nothing but 1/sqrt(d)" in text
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        log.report(tmp_path / "page.html")


def test_a_log_without_queries_and_keys_says_how_to_get_them() -> None:
    log = recorded(build("Bert"), keep_heads=False)
    with pytest.raises(ValueError, match=r"needs queries and keys: record\(model, keep_heads=True\)"):
        log.report()


def test_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"passes with one text, got a batch of 2 in encoder.layer.0"):
        recorded(build("Bert"), batch=2).report()


def test_a_step_with_a_cache_is_refused() -> None:
    model = build("Mistral")
    with torch.no_grad(), at.torch.record(model, keep_heads=True) as log:
        past = model(input_ids=torch.arange(8)[None]).past_key_values
        model(input_ids=torch.arange(1)[None], past_key_values=past)
    with pytest.raises(ValueError, match=r"as many queries as keys, got 1 and 9 in layers.0.self_attn"):
        log.report()


def test_keep_heads_is_a_boolean() -> None:
    with (
        pytest.raises(TypeError, match="keep_heads must be True or False, got 1"),
        at.torch.record(build("Bert"), keep_heads=1),
    ):
        pass


@pytest.mark.parametrize("name", ["Bert", "Mistral", "GptOss"])
def test_kinds_of_heads_are_sums_of_the_weights_of_the_model(name: str) -> None:
    """A text that comes twice: tokens of its second half were there 20 places before."""
    model, tokens = build(name), torch.arange(20).repeat(2)
    model.set_attn_implementation("eager")
    with torch.no_grad(), at.torch.record(model, keep_heads=True) as log:
        p = model(input_ids=tokens[None], output_attentions=True).attentions
    found = log.head_kinds(tokens)
    assert list(found) == list(log.modules)
    place = np.arange(40)
    for kinds, weights in zip(found.values(), p, strict=True):
        w = weights[0].double().numpy()
        np.testing.assert_allclose(kinds.previous[:, 1:], w[:, place[1:], place[:-1]], atol=1e-5)
        np.testing.assert_allclose(kinds.itself, w[:, place, place], atol=1e-5)
        seen = ~np.isnan(kinds.first)
        assert seen.all() or (name == "Mistral" and seen.mean() == 16 / 40)  # its window hides the first key
        np.testing.assert_allclose(kinds.first[seen], w[:, :, 0][seen], atol=1e-5)
        assert np.isnan(kinds.induction[:, :20]).all()
        if seen.all():
            np.testing.assert_allclose(kinds.induction[:, 20:], w[:, place[20:], place[1:21]], atol=1e-5)
        away = (w * np.abs(place[:, None] - place)).sum(-1) / w.sum(-1)
        np.testing.assert_allclose(kinds.distance, away, atol=4e-4)


def test_kinds_of_heads_need_one_whole_text_that_was_kept() -> None:
    message = r"head_kinds and HeadVis need self-attention, of record\(model, keep_"
    with pytest.raises(ValueError, match=message):
        recorded(build("Bert"), keep_heads=False).head_kinds()
    with pytest.raises(ValueError, match="one text, got a batch of 2"):
        recorded(build("Bert"), batch=2).head_kinds()


def test_headvis_shows_the_weights_of_the_model(tmp_path: Path) -> None:
    """Two texts, one of them with padding; the files hold the strongest weights that the model had."""
    model = build("Bert")
    model.set_attn_implementation("eager")
    texts, kept = [torch.arange(20).repeat(2), torch.arange(30).flip(0)], torch.arange(30) >= 5
    with torch.no_grad(), at.torch.record(model, keep_heads=True) as log:
        p = [
            model(input_ids=text[None], attention_mask=mask[None].long(), output_attentions=True).attentions
            for text, mask in zip(texts, (torch.ones(40), kept), strict=True)
        ]
    words = [[f"t{token}" for token in text.tolist()] for text in (texts[0], texts[1][kept])]
    folder = log.to_headvis(tmp_path / "data", words, model_name="small")
    assert json.loads((folder / "config.json").read_text())["n_layers"] == 2
    for layer, head in ((0, 0), (1, 3)):
        found = json.loads((folder / "heads" / f"L{layer}H{head}.json").read_text())["sequences"]
        assert sorted(each["sequence_id"] for each in found) == [0, 1]
        for each in found:
            number, n = each["sequence_id"], each["seq_len"]
            assert each["tokens"] == words[number]
            w = p[number][layer][0, head].double().numpy()[-n:, -n:].ravel()
            np.testing.assert_allclose(each["attention_values"], w[each["attention_indices"]], atol=6e-5)
    with pytest.raises(ValueError, match="tokens must be one for each query and each key of a text, got 40"):
        log.to_headvis(tmp_path / "other", [words[0], words[0]])
    with pytest.raises(ValueError, match="tokens must be one sequence for each of one or more texts"):
        log.to_headvis(tmp_path / "other", words[:1])
    with pytest.raises(ValueError, match="HeadVis need self-attention"):
        recorded(build("Bert"), keep_heads=False).to_headvis(tmp_path / "other", words)
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


def entropy_of_the_pass(model: Any, n: int) -> np.ndarray:
    """Entropies of rows with their sink, (layers, heads, n), of the weights that the model itself makes."""
    made: list[Any] = []
    before = torch.nn.functional.softmax

    def keep(x: Any, *given: Any, **options: Any) -> Any:
        made.append(before(x, *given, **options))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch.nn.functional, "softmax", keep)
        model.set_attn_implementation("eager")
        model(input_ids=torch.arange(n)[None])
    p = np.stack([each[0].double().numpy() for each in made if each.ndim == 4])
    assert p.shape[-1] == n + 1
    return np.asarray(-(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1))


def test_equal_weights_count_the_sink() -> None:
    """Zero scores and sinks of logit 0 are equal weights of n_visible keys and one outcome more."""
    model = initial("GptOss")
    for layer in model.layers:
        for each in (layer.self_attn.q_proj.weight, layer.self_attn.q_proj.bias, layer.self_attn.sinks):
            torch.nn.init.zeros_(each)
    found = recorded(model).report()
    own = found.entropy[..., 0]
    np.testing.assert_allclose(own, found.uniform_entropy, atol=1e-6)
    for j, n in enumerate(LENGTHS):
        last = np.arange(n - n // 8, n) + 1
        seen = np.repeat([np.minimum(last, model.config.sliding_window), last], 4, axis=0)
        np.testing.assert_allclose(found.uniform_entropy[:, j], np.log(seen + 1).mean(-1), rtol=1e-12)
        assert found.histogram[:, j, -1].min() >= 1  # the widest row of each head is in the last bin


def test_the_histogram_has_room_for_the_sink() -> None:
    """Rows of weights that are nearly equal are wider than the logarithm of their keys alone."""
    model = initial("GptOss")
    for layer in model.layers:
        torch.nn.init.normal_(layer.self_attn.q_proj.weight, std=3.0)
        torch.nn.init.zeros_(layer.self_attn.sinks)
    found = recorded(model, (48,)).report()
    entropies = entropy_of_the_pass(model, 48).reshape(8, 48)[:, -6:]
    for head, rows in enumerate(entropies):
        edge = np.log(49)
        expected = np.histogram(rows.clip(0, edge), bins=20, range=(0, edge))[0]
        np.testing.assert_array_equal(found.histogram[head, 0], expected)


def test_a_report_says_over_which_rows_entropies_are_means() -> None:
    causal, plain = (str(recorded(build(name)).report()) for name in ("GPT2", "Bert"))
    assert "Entropies are means over the last eighth of the queries." in causal
    assert "Entropies are means over all queries." in plain
    model, ids = encoder_decoder(), torch.arange(24)[None]
    with torch.no_grad(), at.torch.record(model, keep_heads=True) as log:
        model(input_ids=ids, decoder_input_ids=ids[:, :9])
    both = "Entropies are means over all queries, in causal layers over the last eighth of the queries."
    assert both in str(log.report())
