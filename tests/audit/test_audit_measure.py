# SPDX-License-Identifier: BSD-3-Clause
"""A loaded model measured: equal to its config where nobody touched it, and what was touched by name."""

from __future__ import annotations

import copy
import json
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attnscale as at
import jsonschema
import numpy as np
import pytest
from cases import closed_schema
from versions import written_for

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attnscale.cli import main  # noqa: E402
from torch.nn import functional  # noqa: E402
from transformers import AttentionInterface, LlamaConfig, LlamaModel  # noqa: E402

from tools.audit import oracle  # noqa: E402
from tools.audit.cases import CASES, LATENT, PHI, TEMPERED, YARN  # noqa: E402

LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64}
LISTS = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
#: Model types, each with the keys that make its rules matter.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": YARN},
    "mistral": {},
    "ministral3": {"rope_parameters": TEMPERED},
    "mixtral": {"sliding_window": None},
    "qwen2": {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}},
    "qwen3": {"rope_parameters": YARN},
    "qwen3_moe": {},
    "qwen3_next": {"full_attention_interval": 2},
    "gemma2": {"query_pre_attn_scalar": 100},
    "gemma3_text": {"query_pre_attn_scalar": 100},
    "phi3": {**PHI, "rope_parameters": {**LONG, **LISTS}},
    "gpt_oss": {},
    "glm4": {"partial_rotary_factor": 0.5},
    "cohere2": {},
    "olmo2": {},
    "olmo3": {},
    "smollm3": {},
    "llama4_text": {},
    "granite": {"attention_multiplier": 0.125},
    "deepseek_v3": {**LATENT, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    "exaone4": {},
    "mimo_v2_flash": {},
    "dots3_note_text": dict(CASES)["dots3_note_text"],
    "falcon_h1": {"key_multiplier": 0.5, "num_hidden_layers": 1},
    "gpt2": {"scale_attn_by_inverse_layer_idx": True},
    "gpt_neox": {"rotary_pct": 0.5},
    "opt": {},
    "bert": {},
    "bloom": {},
    "longcat_flash": {
        **LATENT,
        "head_dim": 8,
        "num_layers": 2,
        "ffn_hidden_size": 32,
        "expert_ffn_hidden_size": 16,
        "moe_topk": 2,
        "zero_expert_num": 1,
    },
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def built(kind: str, **keys: Any) -> tuple[Any, dict[str, Any]]:
    """A small model of a type with random weights, and its config."""
    found: tuple[Any, dict[str, Any]] = oracle.build(kind, **copy.deepcopy(keys))
    return found


# The first two are absent from transformers 5.4, and OLMo 3 had other default angles there.
AFTER_5_4 = dict.fromkeys(("dots3_note_text", "mimo_v2_flash", "olmo3"), written_for("transformers>5.4"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [pytest.param(each, marks=AFTER_5_4.get(each, ())) for each in FAMILIES])
def test_an_untouched_model_multiplies_what_its_config_says(kind: str) -> None:
    model, config = built(kind, **FAMILIES[kind])
    found = at.audit.measure(model, config=config)
    assert not found.differences, str(found)
    assert len(found.measured) == len(found.layers) > 0
    assert found.passes <= 10
    assert found.tokens <= 64
    plan = at.audit.resolve(config)
    for layer in found.layers:
        asked = plan.layers[layer.index]
        latents = [term for term in asked.terms if term.law.name == "latent_scale"]
        if latents or asked.depends_on_n:
            continue  # compared by measure itself
        for channels in asked.channel_kinds:
            seen = layer.factors if asked.rotated in (0, asked.head_dim) else layer.factors[
                layer.rotated if channels == "rotated" else ~layer.rotated
            ]  # fmt: skip
            assert np.allclose(
                seen, plan.multiplier(layer=layer.index, position=0, channels=channels), rtol=1e-5
            )


@pytest.mark.parametrize("adjacent", [True, False])
def test_pairs_that_a_key_chooses(adjacent: bool) -> None:
    model, config = built("deepseek_v3", **LATENT, rope_interleave=adjacent, num_hidden_layers=1)
    found = at.audit.measure(model, config=config)
    assert found.differences == ()
    assert found[0].pairing == ("adjacent" if adjacent else "halves")
    (other,) = at.audit.measure(model, config={**config, "rope_interleave": not adjacent}).differences
    assert other.what == "pairs"


def test_a_config_that_changes_after_the_model_is_built_is_seen_in_one_line() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 32}
    model = LlamaModel(LlamaConfig(**sizes, vocab_size=100))
    assert at.audit.measure(model).differences == ()
    model.config.rope_parameters = {**YARN, "original_max_position_embeddings": 512}
    found = at.audit.measure(model)
    scale = found.differences[0]
    assert (scale.what, scale.layers, scale.position) == ("rotated", (0, 1), 0)
    assert scale.measured == pytest.approx(0.25, rel=1e-6)
    assert scale.config == pytest.approx(0.3241191, rel=1e-6)
    assert str(scale) == (
        "layers 0-1: the model multiplies q . k by 0.25, the config says 0.324119 (0.7713 times): "
        "YaRN not applied"
    )
    assert {each.slip for each in found.differences} == {"YaRN not applied"}
    assert "a later change has no effect" in found.table()


# ---- changes to one layer: the layer, the kind and the factor are named


def only(found: Any) -> Any:
    """The single difference of a measurement."""
    assert len(found.differences) == 1, str(found)
    return found.differences[0]


def test_a_scale_of_one_layer() -> None:
    model, config = built("qwen3")
    model.layers[2].self_attn.scaling *= 1.2965
    found = only(at.audit.measure(model, config=config))
    assert (found.layers, found.what, found.position) == ((2,), "rotated", 0)
    assert found.ratio == pytest.approx(1.2965, rel=1e-4)


def test_a_factor_on_the_keys_of_one_layer_by_a_patch() -> None:
    model, config = built("llama")
    inner = model.layers[3].self_attn.k_proj.forward
    norm = torch.nn.RMSNorm(32)  # a patch behind the projection is part of the projection's module
    model.layers[3].self_attn.k_norm = norm
    model.layers[3].self_attn.k_proj.forward = lambda x: 2.0 * inner(x)
    assert at.audit.measure(model, config=config).differences == ()  # keys are what the module gives


def test_a_temperature_that_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.ministral3 import modeling_ministral3 as code

    model, config = built("ministral3", rope_parameters=TEMPERED)
    monkeypatch.setattr(code, "get_llama_4_attn_scale", lambda *given: torch.tensor(1.0))
    found = only(at.audit.measure(model, config=config))
    assert (found.layers, found.what) == ((0, 1, 2, 3), "rotated")
    assert found.position == 8
    assert found.slip == "temperature by position not applied"
    assert found.ratio == pytest.approx(1 / (1 + 0.2 * np.log(2)), rel=1e-5)


def test_a_temperature_that_follows_the_cache_is_measured_there() -> None:
    model, config = built("llama4_text")
    found = at.audit.measure(model, config=config)
    assert found.differences == ()
    assert any("follows the length of the cache" in note for note in found.remarks)
    assert found.layers[3].multiplier(65536, rotated=False) == pytest.approx(
        at.audit.resolve(config).multiplier(layer=3, position=65536), rel=1e-5
    )


def paired_otherwise(self: Any, hidden_states: Any, position_embeddings: Any = None, **kwargs: Any) -> Any:
    """Attention of a Llama layer that turns neighbouring channels."""
    cos, sin = (x[..., : x.shape[-1] // 2].repeat_interleave(2, -1)[:, None] for x in position_embeddings)
    shape = (*hidden_states.shape[:-1], -1, self.head_dim)
    projections = (self.q_proj, self.k_proj, self.v_proj)
    q, k, v = (each(hidden_states).view(shape).transpose(1, 2) for each in projections)

    def turned(x: Any) -> Any:
        other = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return x * cos + other * sin

    out = functional.scaled_dot_product_attention(
        turned(q), turned(k), v, is_causal=True, enable_gqa=True, scale=self.scaling
    )
    return self.o_proj(out.transpose(1, 2).flatten(-2)), None


def test_channels_of_one_layer_that_are_paired_otherwise() -> None:
    model, config = built("llama", num_hidden_layers=3)
    attention = model.layers[1].self_attn
    attention.forward = types.MethodType(paired_otherwise, attention)
    found = only(at.audit.measure(model, config=config))
    assert (found.layers, found.what, found.measured, found.config) == ((1,), "pairs", "adjacent", "halves")


@pytest.fixture
def plain_attention() -> Iterator[str]:
    """Name of an attention function that knows no window, soft-cap or sink."""

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **given: Any
    ) -> Any:
        out = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("plain", attend)
    yield "plain"
    AttentionInterface._global_mapping.pop("plain")


def test_another_implementation_without_sinks_caps_and_windows(plain_attention: str) -> None:
    model, config = built("gpt_oss")
    model.set_attn_implementation(plain_attention)
    slips = {each.slip: each.layers for each in at.audit.measure(model, config=config).differences}
    assert slips == {"window absent or longer": (0, 2), "sink absent": (0, 1, 2, 3)}
    model, config = built("gemma2")
    model.set_attn_implementation(plain_attention)
    slips = {each.slip: each.layers for each in at.audit.measure(model, config=config).differences}
    assert slips == {"window absent or longer": (0, 2), "cap absent": (0, 1, 2, 3)}


def test_a_window_off_by_one() -> None:
    model, config = built("mistral", sliding_window=8)
    model.config.sliding_window = 9
    found = only(at.audit.measure(model, config=config))
    assert (found.what, found.measured, found.config, found.slip) == ("window", 9, 8, "window one long")


def test_frequencies_that_were_cast_with_the_model() -> None:
    model, config = built("llama", rope_parameters={**YARN, "original_max_position_embeddings": 512})
    model.to(torch.bfloat16)
    found = only(at.audit.measure(model, config=config))
    assert (found.what, found.slip) == ("angles", "frequencies rounded to bfloat16")


# ---- models as people load them


class Adapter(torch.nn.Module):
    """A projection with a low-rank part beside it, as adapters have."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


class Quantised(torch.nn.Module):
    """A projection with weights of 4 bits."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        step = base.weight.abs().amax(1, keepdim=True) / 7
        self.register_buffer("numbers", (base.weight / step).round().to(torch.int8))
        self.register_buffer("step", step.detach())

    def forward(self, x: Any) -> Any:
        return functional.linear(x, self.numbers.to(x.dtype) * self.step.to(x.dtype))


@pytest.mark.parametrize("wrapper", [Adapter, Quantised])
def test_adapters_and_quantised_projections(wrapper: Any) -> None:
    model, config = built("llama", rope_parameters=YARN, attention_bias=False)
    for layer in model.layers:
        for name in ("q_proj", "k_proj"):
            setattr(layer.self_attn, name, wrapper(getattr(layer.self_attn, name)))
    found = at.audit.measure(model, config=config)
    assert found.differences == ()
    assert len(found.measured) == 4


def test_sixteen_bits() -> None:
    model, config = built("qwen3", rope_parameters={**YARN, "original_max_position_embeddings": 512})
    kept = {name: x.clone() for name, x in model.named_buffers() if "inv_freq" in name}
    for dtype in (torch.bfloat16, torch.float16):
        cast = copy.deepcopy(model).to(dtype)
        for name, x in kept.items():  # as from_pretrained(dtype=...) leaves them
            module, _, buffer = name.rpartition(".")
            setattr(cast.get_submodule(module), buffer, x)
        found = at.audit.measure(cast, config=config)
        assert found.differences == (), str(found)


def test_queries_that_overflow_are_not_measured() -> None:
    model, config = built("llama")
    with torch.no_grad():
        model.layers[1].self_attn.q_proj.weight.fill_(3e4)
    found = at.audit.measure(model.to(torch.float16), config=config)
    assert found.layers[1].reason == "its queries or keys are not finite in float16"
    assert "not finite in float16" in found.table()


@written_for("transformers>5.4")  # which has no granite_swa
def test_sinks_outside_of_the_softmax_are_not_called_absent() -> None:
    model, config = built("granite_swa")
    found = at.audit.measure(model, config=config)
    assert found.differences == ()
    assert found.layers[0].sink is None


def test_the_model_stays_as_it_was() -> None:
    model, config = built("llama")
    model.train()
    model.layers[0].eval()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    at.audit.measure(model, config=config)
    assert [module.training for module in model.modules()] == modes
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


# ---- without a config, and what is refused


class Plain(torch.nn.Module):
    """A module with attention of its own, without a config."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(80, 32)
        self.qkv = torch.nn.Linear(32, 96)

    def get_input_embeddings(self) -> Any:
        return self.words

    def forward(self, input_ids: Any) -> Any:
        q, k, v = self.qkv(self.words(input_ids)).view(*input_ids.shape, 3, 2, 16).unbind(2)
        q, k, v = (x.transpose(1, 2) for x in (q * 3.0, k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5).flatten(2)


def test_a_module_without_a_config_is_measured_alone() -> None:
    found = at.audit.measure(Plain())
    assert found.plan is None
    assert found.differences == ()
    assert found.layers[0].multiplier(rotated=False) == pytest.approx(1.5, rel=1e-6)
    assert found.rows()[0]["unrotated"] == pytest.approx(1.5, rel=1e-6)


def test_a_config_of_another_kind_is_not_compared() -> None:
    model = Plain()
    model.config = types.SimpleNamespace(n_layer=1)
    found = at.audit.measure(model)
    assert found.plan is None
    assert "not compared: the config of the model cannot be read" in found.table()
    with pytest.raises(TypeError, match="config must be"):
        at.audit.measure(model, config=model.config)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got 3"):
        at.audit.measure(3)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="model must read input_ids, Linear reads input"):
        at.audit.measure(torch.nn.Linear(3, 3))


def test_the_numbers_in_json_and_in_a_data_frame() -> None:
    model, config = built("gpt_oss")
    found = at.audit.measure(model, config=config)
    assert "0.25 to" not in found.table()
    content = json.loads(json.dumps(found.to_dict()))
    assert content["differences"] == []
    assert {row["layer"] for row in content["rows"]} == {0, 1, 2, 3}
    assert content["rows"][0]["rotated"] == pytest.approx(0.25 * 1.346574**2, rel=1e-5)
    assert len(found.to_pandas()) == len(content["rows"])


def test_the_command_measures_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = built("llama", rope_parameters={**YARN, "original_max_position_embeddings": 512})
    model.save_pretrained(tmp_path)
    assert main(["audit", str(tmp_path), "--measure", "--strict"]) == 0
    assert "4 layers measured in 6 passes of 61 tokens, as its config says" in capsys.readouterr().out
    assert main(["audit", str(tmp_path), "--measure", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(closed_schema(at.audit.json_schema())).validate(report)
    assert (report["report"], report["differences"], report["model"]) == ("measured", [], "LlamaModel")


def test_the_command_needs_a_folder_with_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(tmp_path / "config.json"), "--measure"]) == 2
    assert "--measure needs one folder with a model" in capsys.readouterr().err
    assert main(["audit", str(tmp_path), "--measure"]) == 2
    assert "must be a folder with a model, and has no config.json" in capsys.readouterr().err
    assert main(["audit", str(tmp_path), "--measure", "--at", "0"]) == 2
    assert "--at must be left out with --measure" in capsys.readouterr().err


# ---- further changes to one layer of a Llama: one difference each


@pytest.fixture
def llama() -> Iterator[tuple[Any, dict[str, Any]]]:
    yield built("llama", num_hidden_layers=3, sliding_window=None)
    AttentionInterface._global_mapping.pop("changed", None)


def behind_rotation(model: Any, layer: int, change: Any) -> None:
    """Change queries, keys and the mask of one layer behind its rotation."""
    number = {id(each.self_attn): index for index, each in enumerate(model.layers)}

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **given: Any
    ) -> Any:
        options = {"is_causal": True}
        if number[id(module)] == layer:
            query, key, options = change(query, key, options)
        out = functional.scaled_dot_product_attention(
            query, key, value, scale=scaling, enable_gqa=True, **options
        )
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("changed", attend)
    model.set_attn_implementation("changed")


def with_bias(query: Any, key: Any, options: Any) -> Any:
    """A slope over the distance, in place of the causal mask alone."""
    n = query.shape[2]
    return query, key, {"attn_mask": torch.ones(n, n).tril().log() + 0.1 * torch.arange(float(n))}


CHANGES = {
    "causal": lambda q, k, options: (q, k, {"is_causal": False}),
    "bias": with_bias,
    "factor by head": lambda q, k, options: (q * torch.tensor([2.0, 1, 1, 1])[:, None, None], k, options),
    "factor by channel": lambda q, k, options: (
        q * torch.where(torch.arange(16) == 3, 1.5, 1.0),
        k,
        options,
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_the_only_difference(llama: Any, what: str) -> None:
    model, config = llama
    behind_rotation(model, 1, CHANGES[what])
    found = only(at.audit.measure(model, config=config))
    assert (found.what, found.layers) == (what, (1,))


def queries_alone(self: Any, hidden_states: Any, position_embeddings: Any = None, **kwargs: Any) -> Any:
    """Attention of a Llama layer that does not turn its keys."""
    cos, sin = (x[:, None] for x in position_embeddings)
    shape = (*hidden_states.shape[:-1], -1, self.head_dim)
    projections = (self.q_proj, self.k_proj, self.v_proj)
    q, k, v = (each(hidden_states).view(shape).transpose(1, 2) for each in projections)
    q = q * cos + torch.cat((-q[..., 8:], q[..., :8]), -1) * sin
    out = functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True, scale=self.scaling
    )
    return self.o_proj(out.transpose(1, 2).flatten(-2)), None


def test_keys_that_do_not_turn(llama: Any) -> None:
    model, config = llama
    attention = model.layers[2].self_attn
    attention.forward = types.MethodType(queries_alone, attention)
    found = only(at.audit.measure(model, config=config))
    assert (found.what, found.layers, found.measured) == ("angles of keys", (2,), 0.0)


def test_another_base_in_one_layer_is_no_lost_factor() -> None:
    """Without YaRN and with another base: no slip explains both."""
    model, config = built("llama", rope_parameters={**YARN, "original_max_position_embeddings": 512})
    other = oracle.build("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5})[0].rotary_emb
    forward, rotary = model.layers[2].forward, other

    def turned(
        hidden_states: Any, position_embeddings: Any = None, position_ids: Any = None, **given: Any
    ) -> Any:
        own = rotary(hidden_states, position_ids)
        return forward(hidden_states, position_embeddings=own, position_ids=position_ids, **given)

    model.layers[2].forward = turned
    found = at.audit.measure(model, config=config).differences
    assert [(each.what, each.layers) for each in found] == [("rotated", (2,)), ("angles", (2,))]
    assert not any("does not multiply" in each.slip for each in found)


# ---- models that tell less


def test_one_pair_of_channels_has_no_order() -> None:
    model, config = built("gpt_neox", rotary_pct=0.125)
    found = at.audit.measure(model, config=config)
    assert found.differences == ()
    assert found[0].rotated.sum() == 2


def test_layers_that_cannot_be_measured_are_not_as_the_config_says() -> None:
    model, config = built("longformer", attention_window=[8, 8, 8, 8])
    found = at.audit.measure(model, config=config)
    assert found.compared == 0
    assert "0 layers measured" in found.table()
    assert "as its config says" not in found.table()
    assert "none compared with its config" in found.table()


def test_layers_beyond_the_config_are_named() -> None:
    model, config = built("llama", num_hidden_layers=3)
    found = at.audit.measure(model, config={**config, "num_hidden_layers": 1})
    assert found.compared == 1
    assert "layers 1-2 were not compared: the config has 1 layers" in found.remarks
    assert "1 of them as its config says" in found.table()


def test_an_encoder_is_compared_with_its_own_part() -> None:
    model, config = built("bart")
    found = at.audit.measure(model, config=config)
    assert found.differences == ()
    assert found.compared == len(found.measured) == 16
    assert any("it attends to other rows" in note for note in found.remarks)
    model.encoder.layers[1].self_attn.scaling *= 2
    changed = only(at.audit.measure(model, config=config))
    assert (changed.tower, changed.layers, changed.ratio) == ("encoder", (1,), pytest.approx(2.0, rel=1e-5))


def test_dynamic_positions_forget_the_long_texts() -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model, config = built("llama", rope_parameters=rope, max_position_embeddings=64)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        before = model(ids).last_hidden_state
        assert at.audit.measure(model, config=config).differences == ()
        assert torch.equal(model(ids).last_hidden_state, before)
    assert model.rotary_emb.max_seq_len_cached == 64


class Outer(torch.nn.Module):
    """A model that hands its arguments to another, as adapters do."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return self.inner(input_ids, attention_mask=attention_mask, **kwargs)


@pytest.mark.parametrize("wrap", [Outer, torch.nn.DataParallel, partial(torch.compile, backend="eager")])
def test_wrapped_models(monkeypatch: pytest.MonkeyPatch, wrap: Any) -> None:
    parallel = sys.modules["torch.nn.parallel.data_parallel"]
    monkeypatch.setattr(parallel, "_get_available_device_type", lambda: None)  # no accelerator
    model, config = built("llama", num_hidden_layers=2)
    model.layers[0].self_attn.scaling *= 2
    found = only(at.audit.measure(wrap(model), config=config))
    assert (found.layers, found.ratio) == ((0,), pytest.approx(2.0, rel=1e-5))


def test_keys_with_large_biases_in_sixteen_bits() -> None:
    model, config = built("llama", attention_bias=True, head_dim=32, num_hidden_layers=1)
    with torch.no_grad():
        model.layers[0].self_attn.k_proj.bias.normal_(0, 300)
    frequencies = model.rotary_emb.inv_freq.clone()
    cast = model.to(torch.float16)
    cast.rotary_emb.inv_freq = frequencies
    assert at.audit.measure(cast, config=config).differences == ()


def test_a_model_without_weights_is_refused() -> None:
    model, _ = built("llama")
    with pytest.raises(NotImplementedError, match="must hold its weights, got some on the device meta"):
        at.audit.measure(model.to("meta"))
