# SPDX-License-Identifier: BSD-3-Clause
"""at.torch: models of transformers through this package's attention, against their own eager attention."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
import pytest
from versions import written_for

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from tests.tensors import operators  # noqa: E402
from tests.tensors.recording import calls, interface, readings  # noqa: E402
from tools.audit import oracle  # noqa: E402

# transformers and torch warn about their own affairs while they load and run.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

IDS = (torch.arange(3, 63) * 7 % 60 + 3)[None]
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("llama", {"rope_parameters": YARN}),  # grouped queries
    ("mistral", {"sliding_window": 16}),
    ("gemma2", {"sliding_window": 16, "attn_logit_softcapping": 5.0}),
    ("gemma3_text", {"sliding_window": 16}),
    ("gpt_oss", {"sliding_window": 16}),  # sinks
    ("llama4_text", {"attention_chunk_size": 16, "floor_scale": 8}),
    ("modernbert", {"local_attention": 16}),
    ("bert", {}),
    ("deepseek_v3", {"num_key_value_heads": 4}),  # values narrower than keys
    ("t5", {}),  # a relative position bias
]


@pytest.fixture(autouse=True)
def _no_gradient() -> Iterator[None]:
    with torch.no_grad():
        yield


def label(case: Any) -> str:
    return case if isinstance(case, str) else ",".join(case)


def entropy_of(weights: Any) -> np.ndarray:
    p = weights.double().numpy()
    return -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1)


def eager(model: Any, **inputs: Any) -> Any:
    model.set_attn_implementation("eager")
    return model(**inputs, output_attentions=True, use_cache=False)


@pytest.mark.parametrize(("kind", "keys"), CASES, ids=label)
def test_same_as_eager(kind: str, keys: dict[str, Any]) -> None:
    model, _ = oracle.build(kind, **keys)
    inputs: dict[str, Any] = {"input_ids": IDS}
    if kind == "t5":
        model = model.encoder
    expected = eager(model, **inputs)
    with at.torch.record(model) as log:
        found = model(**inputs, use_cache=False) if kind not in ("bert", "modernbert") else model(**inputs)
    scale = float(expected.last_hidden_state.abs().max())
    diff = float((found.last_hidden_state - expected.last_hidden_state).abs().max())
    assert diff < 2e-5 * max(scale, 1)
    weights = torch.stack(expected.attentions)
    if kind == "gpt_oss":  # weights without the sink
        weights = torch.cat([weights, 1 - weights.sum(-1, keepdim=True)], -1)
    np.testing.assert_allclose(log.entropy, entropy_of(weights), rtol=0, atol=1e-4)
    assert log.sink_layers == (log.layers if kind == "gpt_oss" else ())
    assert log.effective_keys.min() >= 1 - 1e-5
    assert model.config._attn_implementation == "eager"


def test_sinks_of_heads_and_of_rows() -> None:
    """Logits per head or per query, or -inf for no sink; the output is that of a further key of value 0."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = torch.randn(3, 2, 4, 9, 8, generator=generator)
    for sinks in (torch.randn(4, generator=generator), torch.randn(2, 4, 9, 1, generator=generator)):
        for logits in (sinks, torch.where(sinks > 0, sinks, -torch.inf)):
            found, _ = interface.attend(SimpleNamespace(is_causal=False), q, k, v, None, s_aux=logits)
            column = (logits.reshape(1, 4, 1, 1) if logits.ndim == 1 else logits).expand(2, 4, 9, 1)
            weights = torch.cat([q @ k.mT / 8**0.5, column], -1).softmax(-1)[..., :-1]
            torch.testing.assert_close(found, (weights @ v).transpose(1, 2), rtol=0, atol=1e-5)


def test_the_entropy_over_the_keys_alone() -> None:
    """The weight of the sink gives it; a diagnosis names the layers with a sink."""
    model, _ = oracle.build("gpt_oss", sliding_window=16)
    weights = torch.stack(eager(model, input_ids=IDS).attentions)
    with at.torch.record(model, statistics=("entropy", "sink_weight"), laws=["log_n"]) as log:
        model(input_ids=IDS, use_cache=False)
    w = log["sink_weight"].astype(np.float64)
    alone = (log.entropy + w * np.log(w) + (1 - w) * np.log1p(-w)) / (1 - w)
    keys = weights / weights.sum(-1, keepdim=True)
    np.testing.assert_allclose(alone, entropy_of(keys), rtol=0, atol=2e-4)
    found = at.torch.diagnose(model, IDS, [20])
    layers = ", ".join(map(str, log.layers))
    assert f"count the sink as one more outcome in the layers {layers}." in str(found)
    assert all(row["entropy_counts_sink"] for row in found.rows())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "bert", "modernbert", "mpt", "doge"])
def test_padding(kind: str, side: str) -> None:
    """MPT makes its mask boolean, Doge hides the keys where it is not 0."""
    keys = (
        {"sliding_window": 16}
        if kind == "mistral"
        else {"local_attention": 16}
        if kind == "modernbert"
        else {}
    )
    model, _ = oracle.build(kind, **keys)
    mask = torch.ones(2, 60, dtype=torch.long)
    mask[1, : 25 if side == "left" else None] = 0
    if side == "right":
        mask[1] = 1
        mask[1, 40:] = 0
    inputs = {"input_ids": IDS.expand(2, -1), "attention_mask": mask}
    model.config._attn_implementation = "eager"
    expected = model(**inputs).last_hidden_state[mask.bool()]
    model.config._attn_implementation = at.torch.register()
    found = model(**inputs).last_hidden_state[mask.bool()]
    assert float((found - expected).abs().max()) < 2e-5 * max(1, float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "gpt_oss"])
def test_decoding_with_a_cache(kind: str) -> None:
    model, _ = oracle.build(kind, **({"sliding_window": 16} if kind in ("mistral", "gpt_oss") else {}))
    model.set_attn_implementation("eager")
    expected = model(input_ids=IDS).last_hidden_state
    model.set_attn_implementation(at.torch.register())
    start = model(input_ids=IDS[:, :50], use_cache=True)
    parts, cache = [start.last_hidden_state], start.past_key_values
    for piece in (IDS[:, 50:55], IDS[:, 55:56], IDS[:, 56:60]):
        step = model(input_ids=piece, past_key_values=cache, use_cache=True)
        parts.append(step.last_hidden_state)
        cache = step.past_key_values
    found = torch.cat(parts, 1)
    assert float((found - expected).abs().max()) < 2e-5 * max(1, float(expected.abs().max()))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_types(dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    model, _ = oracle.build("llama")
    model = model.to(getattr(torch, dtype))
    expected = eager(model, input_ids=IDS).last_hidden_state
    model.set_attn_implementation(at.torch.register())
    found = model(input_ids=IDS).last_hidden_state
    assert found.dtype == expected.dtype
    error = float((found - expected).abs().max() / expected.abs().max())
    assert (
        error
        < {
            "float64": 1e-6,  # their softmax is in float32
            "bfloat16": 0.05,
            "float16": 0.01,
        }[dtype]
    )


def test_memory_of_the_inputs_is_read_in_place() -> None:
    q, k, v = (torch.randn(1, 2, 8, 4) for _ in range(3))
    ((_, given),) = operators.taken(
        lambda: interface.attend(torch.nn.Identity(), q, k, v, None, is_causal=False)
    )
    assert [x.data_ptr() for x in given[:3]] == [x.data_ptr() for x in (q, k, v)]
    output, weights = interface.attend(torch.nn.Identity(), q, k, v, None, is_causal=False)
    assert weights is None
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    torch.testing.assert_close(output, expected)


def test_masks_of_a_pattern_are_not_made() -> None:
    """2^17 tokens would need 16 GiB of mask."""
    from transformers.masking_utils import sliding_window_causal_mask_function

    n = 2**17
    for function in (None, sliding_window_causal_mask_function(64)):
        options = {} if function is None else {"mask_function": function}
        mask = interface.make_mask(1, n, n, **options)
        assert isinstance(mask, interface.PatternMask)
        assert mask.pattern.causal
    small = interface.make_mask(1, 5, 5)
    full = torch.ones(5, 5, dtype=torch.bool).tril()
    assert torch.equal(small & True, full[None, None])  # an operation gets the full mask
    assert small.shape == (1, 1, 5, 5)
    assert small[..., :3].shape == (1, 1, 5, 3)


def test_other_masks_are_made() -> None:
    from transformers.masking_utils import and_masks, causal_mask_function, chunked_causal_mask_function

    for function in (
        chunked_causal_mask_function(3, torch.zeros(1, dtype=torch.int)),
        and_masks(causal_mask_function, lambda b, h, q, k: k != 1),
    ):
        mask = interface.make_mask(1, 6, 6, mask_function=function)
        assert mask.pattern is None
        assert mask.shape == (1, 1, 6, 6)
    assert interface.make_mask(1, 4, 10, q_offset=2).pattern is None  # a cache that is not full


@pytest.mark.parametrize("kind", [pytest.param("bloom", marks=written_for("transformers>5.4")), "llama"])
def test_a_static_cache_counts_on_before_the_mask_is_made(kind: str) -> None:
    from transformers import StaticCache

    model, _ = oracle.build(kind)
    found = []
    for implementation in ("eager", at.torch.register()):
        model.config._attn_implementation = implementation  # which some models refuse to change
        cache = StaticCache(model.config, max_cache_len=12)
        parts = (IDS[:, :6], IDS[:, 6:7], IDS[:, 7:10])
        steps = [model(part, past_key_values=cache).last_hidden_state for part in parts]
        found.append(torch.cat(steps, 1))
    torch.testing.assert_close(found[1], found[0], rtol=2e-5, atol=2e-5)


def test_a_model_that_reckons_with_its_mask_has_one_of_numbers() -> None:
    """Numbers are 0 at visible keys, as in transformers' eager attention; in logic the mask is boolean."""
    mask, scores = interface.make_mask(1, 4, 4), torch.randn(1, 2, 4, 4)
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
    numbers = torch.zeros(4, 4).masked_fill(hidden, torch.finfo(torch.float32).min)[None, None]
    torch.testing.assert_close(scores + mask, scores + numbers)
    torch.testing.assert_close(mask + scores, scores + numbers)
    torch.testing.assert_close(torch.cat([mask, scores[:, :1]], -1), torch.cat([numbers, scores[:, :1]], -1))
    wider = torch.nn.functional.pad(mask, (0, 2), value=0.0)
    assert (wider[..., 4:] == 0).all()  # seen
    torch.testing.assert_close(wider[..., :4], numbers)
    assert mask.dtype == torch.float32
    assert mask.to(torch.float64)[0, 0, 0, 1] == torch.finfo(torch.float64).min
    for true_where_hidden in (
        ~mask,
        mask.bool(),
        mask.to(torch.bool),
        mask != 0,
        mask < 0,
        mask[0, :, :4] != 0,
    ):
        assert torch.equal(true_where_hidden.view(4, 4), hidden)
    assert torch.equal(torch.where(mask, scores, 0), scores.masked_fill(hidden, 0))


def test_a_mask_that_is_passed_to_fused_attention_is_seen() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, interface.make_mask(1, 5, 5))

    layer = Layer()
    with at.torch.record(layer) as log:
        layer(torch.zeros(1, 1, 5, 4))
    np.testing.assert_allclose(log.entropy[0, 0, 0], np.log([1, 2, 3, 4, 5]), atol=1e-6)


# ---- recording ---------------------------------------------------------------------------------------


def test_what_is_recorded() -> None:
    xarray = pytest.importorskip("xarray")
    model, _ = oracle.build("llama")
    with at.torch.record(
        model, statistics=("entropy", "n_visible", "lse", "max_score"), laws=["log_n"]
    ) as log:
        model(input_ids=IDS[:, :20])
        model(input_ids=IDS)
    assert len(log) == 2
    assert log.layers == (0, 1, 2, 3)
    assert log.entropy.shape == log.lse.shape == log.max_score.shape == (4, 1, 4, 60)
    np.testing.assert_array_equal(log["n_visible"][2, 0, 3], np.arange(1, 61))
    np.testing.assert_allclose(log.effective_keys, np.exp(log.entropy))
    assert log.mean_entropy().shape == (4, 4)
    assert (log.lse >= log.max_score - 1e-6).all()
    data = log.to_xarray()
    assert isinstance(data, xarray.Dataset)
    assert data.entropy.dims == ("layer", "batch", "head", "query")
    assert {"entropy", "lse", "max_score", "effective_keys", "entropy under log_n"} <= set(data)
    assert log.modules == tuple(f"layers.{i}.self_attn" for i in range(4))
    assert log["entropy"]["layers.2.self_attn"].shape == (1, 4, 60)
    assert log.passes[0]["layers.0.self_attn"]["entropy"].shape == (1, 4, 20)


def test_laws_multiply_the_models_own_scale() -> None:
    model, _ = oracle.build("granite", attention_multiplier=0.5)
    with at.torch.record(model, laws={"own": at.laws.Standard(), "log": at.laws.LogN(base=8)}) as log:
        model(input_ids=IDS)
    # Two calls that round a scale in another place: each is within 2e-6 of the definition.
    np.testing.assert_allclose(log["entropy under own"], log.entropy, atol=4e-6)
    assert not np.allclose(log["entropy under log"], log.entropy, atol=1e-3)


@pytest.mark.parametrize("law", ["log_n", 0.25, at.laws.LogN(base=8)])
def test_one_law_and_one_statistic_need_no_list(law: Any) -> None:
    model, _ = oracle.build("llama")
    with at.torch.record(model, statistics="entropy", laws=law) as log:
        model(input_ids=IDS)
    assert log.statistics == ("entropy",)
    assert [*log.laws.values()] == [at.laws.get(law)]


def test_the_map_of_heads() -> None:
    pytest.importorskip("matplotlib")
    model, _ = oracle.build("llama")
    with at.torch.record(model) as log:
        model(input_ids=IDS)
    ax = log.plot()
    assert ax.get_ylabel() == "layer"
    assert ax.get_images()[0].get_clim() == (0, np.log(IDS.shape[1]))  # no contrast where all heads are alike
    bits = log.plot(unit="bits")
    assert bits.get_images()[0].get_clim() == pytest.approx((0, np.log2(IDS.shape[1])))
    assert bits.figure.axes[1].get_ylabel() == "mean entropy (bits)"


def test_bad_use_is_a_clear_error() -> None:
    model, _ = oracle.build("llama")
    with pytest.raises(ValueError, match="no attention of LlamaModel was recorded"), at.torch.record(model):
        pass
    with pytest.raises(ValueError, match="nothing was recorded"):
        _ = at.torch.AttentionLog((), {}).entropy
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got 3"), at.torch.record(3):
        pass
    flash = torch.nn.Identity()
    flash.config = SimpleNamespace(_attn_implementation="flash_attention_2")
    with pytest.raises(NotImplementedError, match=r"Identity has .*'flash_att"), at.torch.record(flash):
        pass
    linear = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="no attention of Linear was recorded"), at.torch.record(linear):
        linear(torch.ones(2))
    with pytest.raises(ValueError, match="statistics"), at.torch.record(model, statistics=("entropie",)):
        pass
    with pytest.raises(ValueError, match="law"), at.torch.record(model, laws=["lig_n"]):
        pass


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_an_unknown_argument_is_not_ignored(dropout: float) -> None:
    q = torch.randn(1, 2, 8, 4)
    with pytest.raises(NotImplementedError, match="Identity passes indices="):
        interface.attend(torch.nn.Identity(), q, q, q, None, dropout=dropout, indices=torch.zeros(1))
    with pytest.raises(ValueError, match="must be on the device of query, meta, got one on cpu"):
        interface.attend(torch.nn.Identity(), q.to("meta"), q, q, None, dropout=dropout)


def test_a_position_bias_of_a_wider_type_shows_no_hidden_key() -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 4)
    hidden, bias = torch.ones(8, 8, dtype=torch.bool).triu(1), torch.randn(1, 2, 8, 8)
    mask = torch.zeros(1, 1, 8, 8, dtype=torch.half).masked_fill(hidden, torch.finfo(torch.half).min)
    options = interface.call_options(torch.nn.Identity(), q, k, mask, position_bias=bias)
    rows = at.torch.attention_statistics(q, k, v, statistics="n_visible", **options)
    assert (rows.n_visible == torch.arange(1, 9)).all()
    both = bias.masked_fill(hidden, -torch.inf)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=both)
    torch.testing.assert_close(rows.output, want, rtol=1e-5, atol=1e-6)


def test_the_log_shows_itself() -> None:
    log = at.torch.AttentionLog(("entropy", "max_score"), {})
    assert repr(log) == "AttentionLog: nothing was recorded yet"
    zeros = readings.Product(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 8, 4), {"scale": 1.0})
    for layer in range(2):
        place = calls.Place(f"layers.{layer}", 0)
        real = torch.tensor([[True, True, layer == 0]])
        log.add(
            calls.SeenCall(place, "scaled_dot_product_attention", "self", (0, 1), zeros, zeros, real=real)
        )
    assert repr(log).splitlines() == [
        "AttentionLog: 1 pass; means over the last one",
        "  module    batch x heads x queries  entropy (nats)  max_score",
        "  layers.0  1 x 2 x 3                         2.079          0",
        "  layers.1  1 x 2 x 3                         2.079          0",
        "  left out of the means as padding: 1 of 3 rows in 1 module",
    ]
    assert log.table(unit="bits").splitlines()[-2].split()[-2:] == ["3", "0"]
    assert "<td>2.079</td>" in log._repr_html_()
    frame = log.to_pandas(unit="bits")
    places = ["layer", "batch", "head", "query"]
    assert list(frame.columns) == [
        *places,
        "entropy",
        "max_score",
        "effective_keys",
        "real",
        "module",
        "kind",
    ]
    assert len(frame) == 12
    np.testing.assert_allclose(frame["entropy"], 3)
    np.testing.assert_allclose(frame["effective_keys"], 8)
    assert log.to_xarray(unit="bits")["entropy"].attrs == {"units": "bit"}
