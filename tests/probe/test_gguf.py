"""GGUF files of checkpoints: the format, keys and tensors of every family, and the user's own converter."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from gguf_models import MODELS, VARIANTS, config_of, gguf, parsed
from gguf_record import RECORD

write = gguf.write_gguf_file
Tensor = gguf.Tensor


def key_of(path: Path, name: str) -> Any:
    return parsed(path)[0][name][1]


# ---- the format ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (True, 7, True),
        ("größe", 8, "größe"),
        (7, 4, 7),
        (2**32 - 1, 4, 2**32 - 1),
        (-7, 5, -7),
        (2**40, 11, 2**40),
        (0.5, 6, 0.5),
        (np.uint8(255), 0, 255),
        (np.int8(-128), 1, -128),
        (np.uint16(65535), 2, 65535),
        (np.int16(-3), 3, -3),
        (np.uint64(2**63), 10, 2**63),
        (np.float64(0.1), 12, 0.1),
        (np.float32(0.5), 6, 0.5),
        ([], 9, (8, [])),
        (["a", "ß"], 9, (8, ["a", "ß"])),
        ([1, -2], 9, (5, [1, -2])),
        ([0.5, 2.0], 9, (6, [0.5, 2.0])),
        ([True, False], 9, (7, [True, False])),
        (np.array([3], np.uint16), 9, (2, [3])),
    ],
)
def test_values_keep_their_types(tmp_path: Path, value: Any, kind: int, expected: Any) -> None:
    write(tmp_path / "x.gguf", {"a": value, "b": 1}, {})
    assert parsed(tmp_path / "x.gguf") == ({"a": (kind, expected), "b": (4, 1)}, {})


@pytest.mark.parametrize("value", [None, ["a", 1], [[1, 2]], 2j, [1, "a"]])
def test_other_values_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^key must be (text, a number, a flag|a list of texts alone)"):
        write(tmp_path / "x.gguf", {"key": value}, {})
    assert list(tmp_path.iterdir()) == []


#: Largest relative error of a rounded number; for blocks, of the block's largest number.
_ERRORS = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8, "q8_0": 0.5 / 127 + 2.0**-11}


@pytest.mark.parametrize("kind", _ERRORS)
def test_tensors_are_stored_in_every_type(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(3)
    arrays = {"a": rng.normal(size=(3, 64)), "b": rng.normal(size=(2, 5, 32)), "c": np.zeros(32)}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    write(tmp_path / "x.gguf", {}, {name: Tensor(array, kind) for name, array in arrays.items()})
    _, found = parsed(tmp_path / "x.gguf")
    for name, array in arrays.items():
        assert found[name][0] == kind
        size = np.abs(array)
        if kind == "q8_0":
            blocks = size.reshape(-1, 32)
            size = np.broadcast_to(blocks.max(axis=1, keepdims=True), blocks.shape).reshape(array.shape)
        assert (np.abs(found[name][1] - array) <= _ERRORS[kind] * size).all()


def test_blocks_of_8_bits_by_hand(tmp_path: Path) -> None:
    """Halves are rounded away from zero; a scale is float16; a block of zeros has the scale 0."""
    block = np.zeros(64, np.float32)
    block[:4] = 127.0, 2.5, -2.5, 0.5
    write(tmp_path / "x.gguf", {}, {"a": Tensor(block, "q8_0")})
    raw = (tmp_path / "x.gguf").read_bytes()[-96:]  # two blocks of 34 bytes, and zeros up to a multiple of 32
    one = np.array([1.0], "<f2").tobytes()
    assert raw[:6] == one + np.array([127, 3, -3, 1], np.int8).tobytes()
    assert raw[6:] == bytes(90)


def test_16_bits_are_rounded_to_even(tmp_path: Path) -> None:
    numbers = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, np.inf, np.nan, -0.0], np.float32)
    write(tmp_path / "x.gguf", {}, {"a": Tensor(numbers, "bf16")})
    found = parsed(tmp_path / "x.gguf")[1]["a"][1]
    np.testing.assert_array_equal(found, [1.0, 1.0, 1 + 2.0**-6, np.inf, np.nan, 0.0])


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Tensor(np.zeros((2, 33), np.float32), "q8_0"), "multiple of 32 numbers as q8_0, got 33"),
        (Tensor(np.zeros((2, 32), np.float32), "q4_0"), "must be one of f32, f16, q8_0, bf16, got 'q4_0'"),
        (Tensor(np.zeros((1, 1, 1, 1, 1), np.float32), "f32"), "must have 1 to 4 axes"),
        (Tensor(np.full(2, 1e6, np.float32), "f16"), "tensor a must fit f16, got 1000000.0"),
    ],
)
def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, tensor: gguf.Tensor, message: str
) -> None:
    old = tmp_path / "x.gguf"
    old.write_bytes(b"old")
    with pytest.raises(ValueError, match=message):
        write(old, {}, {"first": Tensor(np.zeros(8, np.float32), "f32"), "a": tensor})
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x.gguf", b"old")]


# ---- keys ------------------------------------------------------------------------------------------

_RECORD: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
_CASES = [(kind, variant) for kind in MODELS for variant in VARIANTS]

#: Differences from the converter: llama.cpp does not load its file with llama3 of SmolLM3; of Phi-3,
#: transformers refuses all types but longrope, so that the converter reads the config without its defaults.
_REFUSED = {("smollm3", "llama3")}
_PHI3 = [name for name in VARIANTS if name.startswith(("yarn,", "llama3")) or name == "yarn"]
_OTHER = {("phi3", name) for name in _PHI3}


def keys_in(path: Path) -> dict[str, Any]:
    """Keys of the architecture; lists as lists."""
    found = parsed(path)[0]
    plain = {name: each for name, each in found.items() if not name.startswith(("general.", "tokenizer."))}
    return {name: each[1] if kind == 9 else each for name, (kind, each) in plain.items()}


@pytest.mark.parametrize(("kind", "variant"), _CASES)
def test_keys_are_those_of_the_converter(tmp_path: Path, kind: str, variant: str) -> None:
    seen = _RECORD[kind][variant]
    if isinstance(seen, str) or (kind, variant) in _REFUSED:
        with pytest.raises(ValueError, match=f"^{kind} has no GGUF file for this config: "):
            gguf.write_gguf(config_of(kind, variant), {}, tmp_path / "x.gguf")
        return
    gguf.write_gguf(config_of(kind, variant), {}, tmp_path / "x.gguf")
    expected = {**_RECORD[kind]["plain"], **seen}
    if (kind, variant) in _OTHER:
        expected["phi3.rope.scaling.original_context_length"] = 4096
    expected = {name: np.float32(each) if type(each) is float else each for name, each in expected.items()}
    assert keys_in(tmp_path / "x.gguf") == expected


@pytest.mark.torch
def test_a_missing_key_is_the_default_of_transformers(tmp_path: Path) -> None:
    """Keys that the config class fills in, such as the size of heads, have their default, too."""
    pytest.importorskip("transformers", exc_type=ImportError)
    from transformers import AutoConfig

    dropped = {"rms_norm_eps", "layer_norm_eps", "rope_theta", "max_position_embeddings", "logit_scale"}
    dropped |= {"num_key_value_heads", "num_experts_per_tok", "v_head_dim", "n_group", "topk_group"}
    dropped |= {
        "n_shared_experts",
        "routed_scaling_factor",
        "final_logit_softcapping",
        "attention_multiplier",
    }
    dropped |= {"embedding_multiplier", "residual_multiplier", "logits_scaling", "partial_rotary_factor"}
    dropped |= {"interleave_moe_layer_step", "head_dim", "sliding_window", "attn_logit_softcapping"}
    for kind in set(MODELS) - {"exaone4"}:  # its own config class refuses the rest without a window
        short = {name: value for name, value in MODELS[kind].items() if name not in dropped}
        whole = AutoConfig.for_model(**short).to_dict()
        whole |= {"rotary_pct": 1.0} if kind == "cohere2" else {}
        whole |= {"scoring_func": "sigmoid"} if kind == "deepseek_v3" else {}
        for config, name in ((short, "short"), (whole, "whole")):
            gguf.write_gguf(config, {}, tmp_path / name)
        short_keys, whole_keys = keys_in(tmp_path / "short"), keys_in(tmp_path / "whole")
        assert {n for n in whole_keys if whole_keys[n] != short_keys.get(n)} <= {
            f"{key_of(tmp_path / 'whole', 'general.architecture')}.attention.{part}_length"
            for part in ("key", "value")
        }, kind
        assert set(short_keys) <= set(whole_keys)


@pytest.mark.parametrize("kind", MODELS)
def test_the_audit_reads_the_same_plan(tmp_path: Path, kind: str) -> None:
    """The file's plan, by what llama.cpp does, is that of the config: multipliers, windows and soft-caps."""
    config = config_of(kind)
    gguf.write_gguf(config, {}, tmp_path / "x.gguf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.audit.AuditWarning)
        ours, theirs = at.audit.resolve(config), at.audit.resolve(tmp_path / "x.gguf")
    assert theirs.known
    for here, there in zip(ours, theirs, strict=True):
        assert (here.head_dim, here.rotated) == (there.head_dim, there.rotated)
        assert here.softcap == there.softcap
        if kind != "llama4_text":  # chunks of llama.cpp are no entry of the file
            assert here.window == there.window
        for channels in here.channel_kinds:
            seen = theirs.multiplier(layer=here.index, position=100, channels=channels)
            asked = ours.multiplier(layer=here.index, position=100, channels=channels)
            assert seen == pytest.approx(asked, rel=1e-6)


def test_words_are_the_ids(tmp_path: Path) -> None:
    gguf.write_gguf(config_of("llama"), {}, tmp_path / "x.gguf", "f16")
    found = {name: each for name, (_, each) in parsed(tmp_path / "x.gguf")[0].items()}
    assert found["tokenizer.ggml.tokens"][1][:5] == ["<unk>", "<s>", "</s>", "<p3>", "<p4>"]
    assert found["tokenizer.ggml.token_type"] == (5, [2, 3, 3] + [4] * 253)
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert found["general.file_type"] == 1


# ---- tensors ---------------------------------------------------------------------------------------


def checkpoint(**tensors: Any) -> dict[str, Any]:
    """Tensors of layer 0; __ in a name stands for a dot."""
    return {f"model.layers.0.{name.replace('__', '.')}": array for name, array in tensors.items()}


def written(tmp_path: Path, kind: str, tensors: dict[str, Any], **keys: Any) -> dict[str, Any]:
    gguf.write_gguf({**config_of(kind), **keys}, tensors, tmp_path / "x.gguf")
    return {name: array for name, (_, array) in parsed(tmp_path / "x.gguf")[1].items()}


def test_queries_and_keys_of_llama_have_neighbouring_pairs(tmp_path: Path) -> None:
    """Row i and i + half of a head become rows 2 i and 2 i + 1; values stay."""
    rows = np.arange(256, dtype=np.float32)[:, None] * np.ones((1, 32), np.float32)
    tensors = {f"self_attn__{name}_proj__weight": rows[: 256 if name == "q" else 128] for name in "qkv"}
    found = written(tmp_path, "llama", checkpoint(**tensors))
    pairs = np.stack([np.arange(32), np.arange(32) + 32], axis=1).ravel()
    assert found["blk.0.attn_q.weight"][64:128, 0].tolist() == (64 + pairs).tolist()
    assert found["blk.0.attn_k.weight"][:64, 0].tolist() == pairs.tolist()
    np.testing.assert_array_equal(found["blk.0.attn_v.weight"], rows[:128])
    kept = written(tmp_path, "qwen2", checkpoint(**tensors))
    np.testing.assert_array_equal(kept["blk.0.attn_q.weight"], rows)


def test_norms_of_gemma_hold_one_plus_the_weight(tmp_path: Path) -> None:
    norm = np.full(256, 0.25, np.float32)
    tensors = checkpoint(post_attention_layernorm__weight=norm, pre_feedforward_layernorm__weight=norm)
    found = written(tmp_path, "gemma2", {**tensors, "lm_head.weight": np.zeros((256, 256), np.float32)})
    assert set(found) == {"blk.0.post_attention_norm.weight", "blk.0.ffn_norm.weight"}
    assert (found["blk.0.ffn_norm.weight"] == 1.25).all()


def test_experts_are_stacked(tmp_path: Path) -> None:
    """Experts are single in Mixtral; gate and up alternate in gpt-oss, and are concatenated in Llama 4."""
    experts = [np.full((256, 256), number, np.float32) for number in range(4)]
    names = {f"block_sparse_moe__experts__{n}__w3__weight": experts[n] for n in (2, 0, 1, 3)}
    found = written(tmp_path, "mixtral", checkpoint(**names))["blk.0.ffn_up_exps.weight"]
    assert found[:, 0, 0].tolist() == [0, 1, 2, 3]
    rng = np.random.default_rng(5)
    fused = rng.normal(size=(4, 256, 64)).astype(np.float32)
    down = rng.normal(size=(4, 32, 256)).astype(np.float32)
    both = {"mlp__experts__gate_up_proj": fused, "mlp__experts__down_proj": down}
    found = written(tmp_path, "gpt_oss", checkpoint(**both, mlp__experts__gate_up_proj_bias=fused[:, 0]))
    np.testing.assert_array_equal(found["blk.0.ffn_gate_exps.weight"], fused[:, :, ::2].swapaxes(1, 2))
    np.testing.assert_array_equal(found["blk.0.ffn_up_exps.bias"], fused[:, 0, 1::2])
    np.testing.assert_array_equal(found["blk.0.ffn_down_exps.weight"], down.swapaxes(1, 2))
    both = {name.replace("mlp", "feed_forward"): array for name, array in both.items()}
    found = written(tmp_path, "llama4_text", checkpoint(**both))
    np.testing.assert_array_equal(found["blk.0.ffn_up_exps.weight"], fused[:, :, 32:].swapaxes(1, 2))


def test_latent_keys_and_values_are_split(tmp_path: Path) -> None:
    """A query's product with a key is the same, whether the key or the query is mapped."""
    rng = np.random.default_rng(7)
    whole = rng.normal(size=(4 * 64, 64)).astype(np.float32)  # 4 heads of 32 keys and 32 values, latent of 64
    found = written(tmp_path, "deepseek_v3", checkpoint(self_attn__kv_b_proj__weight=whole))
    latent, query = rng.normal(size=64), rng.normal(size=(4, 32))
    heads = (whole @ latent).reshape(4, 64)
    mapped = np.einsum("hlk,hk->hl", found["blk.0.attn_k_b.weight"], query)
    np.testing.assert_allclose(mapped @ latent, (heads[:, :32] * query).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found["blk.0.attn_v_b.weight"] @ latent, heads[:, 32:], rtol=1e-12)


def test_frequencies_of_llama3_are_divided_by_its_factors(tmp_path: Path) -> None:
    config = config_of("llama", "llama3")
    gguf.write_gguf(config, {}, tmp_path / "x.gguf")
    factors = parsed(tmp_path / "x.gguf")[1]["rope_freqs.weight"][1]
    rotation = at.audit.resolve(config)[0].rotation
    assert rotation is not None
    plain = 10000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(plain / factors, rotation.frequencies(), rtol=1e-6)
    gguf.write_gguf(config_of("phi3", "longrope"), {}, tmp_path / "x.gguf")
    found = parsed(tmp_path / "x.gguf")[1]
    assert set(found) == {"rope_factors_long.weight", "rope_factors_short.weight"}
    assert found["rope_factors_long.weight"][1][1] == np.float32(2.02)


def test_types_of_tensors(tmp_path: Path) -> None:
    """Vectors, norms and routers are float32; a row of 48 numbers has no blocks; zeros of 16 bits stay so."""
    wide, odd = np.ones((64, 256), np.float32), np.ones((64, 48), np.float32)
    tensors = checkpoint(
        input_layernorm__weight=np.ones(256, np.float32),
        mlp__gate__weight=wide,
        mlp__up_proj__weight=wide,
        self_attn__o_proj__weight=odd,
        mlp__down_proj__weight=odd.astype(np.float16),
    )
    types = {}
    for kind in ("f32", "f16", "bf16", "q8_0"):
        gguf.write_gguf(config_of("qwen3_moe"), tensors, tmp_path / "x.gguf", kind)
        found = {name.split(".")[2]: each for name, (each, _) in parsed(tmp_path / "x.gguf")[1].items()}
        assert (found.pop("attn_norm"), found.pop("ffn_gate_inp")) == ("f32", "f32")
        types[kind] = [found[name] for name in ("ffn_up", "attn_output", "ffn_down")]
    assert types == {
        "f32": ["f32", "f32", "f16"],
        "f16": ["f16", "f16", "f16"],
        "bf16": ["bf16", "bf16", "bf16"],
        "q8_0": ["q8_0", "f16", "f16"],
    }


# ---- refusals --------------------------------------------------------------------------------------


def test_what_has_no_file_is_refused(tmp_path: Path) -> None:
    llama = config_of("llama")
    long = config_of("phi3", "longrope")
    long["rope_scaling"]["short_factor"] = [1.0]
    strange = {"model.layers.0.self_attn.rotary.weight": np.zeros((2, 2), np.float32)}
    for config, tensors, kind, message in (
        (
            {**llama, "model_type": "mamba"},
            {},
            "f32",
            r"^model_type must be one of cohere2, .*, got 'mamba'$",
        ),
        (llama, {}, "q4_0", r"^kind must be one of f32, f16, q8_0, bf16, got 'q4_0'$"),
        (llama, strange, "f32", r"^tensor .*rotary.weight has no place in a GGUF file of llama$"),
        (
            {**llama, "intermediate_size": None},
            {},
            "f32",
            r"^config must have intermediate_size .*, got None$",
        ),
        (long, {}, "f32", r"^short_factor must have 32 numbers, one a pair, got 1$"),
    ):
        with pytest.raises(ValueError, match=message):
            gguf.write_gguf(config, tensors, tmp_path / "x.gguf", kind)
    assert list(tmp_path.iterdir()) == []


# ---- a converter of the user -----------------------------------------------------------------------

_CONVERTER = """
import hashlib, json, sys
from pathlib import Path
folder, out = Path(sys.argv[1]), sys.argv[sys.argv.index("--outfile") + 1]
assert hashlib.sha256(str([1, 2]).encode()).hexdigest().startswith("3ce83efda")
assert hashlib.sha256(b"x").hexdigest().startswith("2d711642b")
tokenizer = json.loads((folder / "tokenizer.json").read_text())
assert [each["content"] for each in tokenizer["added_tokens"]][2:4] == ["</s>", "<p3>"]
if sys.argv[sys.argv.index("--outtype") + 1] == "bf16":
    sys.exit("no such type\\nat all")
Path(out).write_text((folder / "config.json").read_text())
"""


def test_the_users_converter_is_run(tmp_path: Path) -> None:
    config = json.dumps(config_of("llama"))
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").write_bytes(b"")
    program, out = tmp_path / "convert_hf_to_gguf.py", tmp_path / "out.gguf"
    program.write_text(_CONVERTER)
    gguf.convert(tmp_path, out, program, "f16")
    assert out.read_text() == config
    out.unlink()
    with pytest.raises(ValueError, match=r"ended with an error: at all$"):
        gguf.convert(tmp_path, out, program, "bf16")
    with pytest.raises(
        ValueError, match=r"^converter must be convert_hf_to_gguf.py of llama.cpp, got '.*no.py'$"
    ):
        gguf.convert(tmp_path, out, tmp_path / "no.py", "f16")
    assert not out.exists()
