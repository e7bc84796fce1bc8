"""Files of a probe: what is written for each family, what stays of the config, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from small_bench import Bench, config_of, engine_of
from small_engine import tensors_in

from tools.probe.configs import FAMILIES, cases

Array = np.ndarray[Any, Any]
FILES = {
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "prompts.jsonl",
    "expected.json",
}
MODELS = [each[:2] for each in cases() if each[1] in ("plain", "yarn", "longrope", "temperature")]


def content(path: Path) -> Any:
    return json.loads(path.read_text())


def digests(probe: Path) -> list[str]:
    return [content(folder / "expected.json")["checkpoint"] for folder in sorted(probe.glob("layer-*"))]


# ---- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_for_each_kind_of_layer(bench: Bench, family: str) -> None:
    """Checkpoints are one a group of layers that multiply alike; together they name each layer once."""
    probe = bench.probe(config_of(family, "plain"))
    about = content(probe / "probe.json")
    assert about["format"] == 1
    assert {each.name for each in probe.iterdir()} == {"probe.json", "ask.py", *about["checkpoints"]}
    layers = []
    for name in about["checkpoints"]:
        assert {each.name for each in (probe / name).iterdir()} == FILES
        expected = content(probe / name / "expected.json")
        assert expected["layers"][0] == expected["layer"] == int(name.removeprefix("layer-"))
        assert expected["model_type"] == family
        layers += expected["layers"]
    assert sorted(layers) == list(range(FAMILIES[family]["num_hidden_layers"]))


def test_prompts_are_words_of_the_tokenizer(bench: Bench) -> None:
    folder = bench.probe(config_of("gpt_oss", "yarn")) / "layer-0"
    tokenizer = content(folder / "tokenizer.json")
    words = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    assert tokenizer["model"]["vocab"] == words
    assert sorted(words.values()) == list(range(content(folder / "config.json")["vocab_size"]))
    prompts = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    assert [each["prompt"] for each in prompts] == list(content(folder / "expected.json")["prompts"])
    for each in prompts:
        assert [words[word] for word in each["text"].split()] == each["ids"]


def test_large_models_stay_small(tmp_path: Path) -> None:
    """Depth stays, since engines infer from it, and a file has less than 40 MB."""
    deep = {"num_hidden_layers": 62, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 11}
    deep["layer_types"] = deep["layer_types"][:62]
    wide = {"hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 80}
    for family, keys in (("gemma3_text", deep), ("llama", wide)):
        probe = at.probe.write(config_of(family, "linear", **keys), tmp_path / "probe")
        for folder in probe.glob("layer-*"):
            assert content(folder / "config.json")["num_hidden_layers"] == keys["num_hidden_layers"]
            assert sum(file.stat().st_size for file in folder.iterdir()) < 40e6


# ---- configs ---------------------------------------------------------------------------------------

#: Keys whose values are sizes, which become small.
SIZES = {"hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "intermediate_size"}
SIZES |= {"intermediate_size_mlp", "moe_intermediate_size", "num_local_experts", "num_experts"}
SIZES |= {"n_routed_experts", "num_experts_per_tok", "n_group", "topk_group", "q_lora_rank", "kv_lora_rank"}


@pytest.mark.parametrize("family", FAMILIES)
def test_all_keys_but_sizes_stay(bench: Bench, family: str) -> None:
    given = config_of(family, "plain", a_new_key={"of": ["an engine"]}, rms_norm_eps=1e-7)
    for folder in bench.probe(given).glob("layer-*"):
        small = content(folder / "config.json")
        assert {name: small[name] for name in given.keys() - SIZES} == {
            name: value for name, value in given.items() if name not in SIZES
        }
        assert small["hidden_size"] / small["num_attention_heads"] == (
            given["hidden_size"] / given["num_attention_heads"]
        )
        assert small["vocab_size"] == 256


def test_files_and_formats_of_weights_are_not_named(bench: Bench) -> None:
    dropped = {"auto_map": {"AutoModel": "x.py"}, "quantization_config": {"bits": 4}, "_name_or_path": "a/b"}
    small = content(bench.probe(config_of("llama", "plain", **dropped)) / "layer-0" / "config.json")
    assert not small.keys() & dropped.keys()
    assert small["dtype"] == small["torch_dtype"] == "float32"
    probe = bench.probe(config_of("llama", "plain", torch_dtype="float16"), dtype="bfloat16")
    small = content(probe / "layer-0" / "config.json")
    assert small["dtype"] == small["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize(("family", "scaling"), MODELS)
def test_the_cut_config_has_the_plan_of_the_whole(bench: Bench, family: str, scaling: str) -> None:
    given = config_of(family, scaling)
    whole = at.audit.resolve(given)
    where = np.array([0, 1, 2047, 2048, 100_000])
    for folder in bench.probe(given).glob("layer-*"):
        for here, there in zip(at.audit.resolve(folder / "config.json"), whole, strict=True):
            assert (here.kind, here.head_dim, here.window, here.softcap, here.sink, here.rotated) == (
                (there.kind, there.head_dim, there.window, there.softcap, there.sink, there.rotated)
            )
            assert here.channel_kinds == there.channel_kinds
            for kind in here.channel_kinds:
                np.testing.assert_array_equal(here.multipliers(where, kind), there.multipliers(where, kind))
            assert (here.rotation is None) == (there.rotation is None)
            if here.rotation is not None and there.rotation is not None:
                np.testing.assert_array_equal(here.rotation.frequencies(1), there.rotation.frequencies(1))


@pytest.mark.parametrize(
    ("kind", "text"), [("gemma3", "gemma3_text"), ("llama4", "llama4_text"), ("mistral3", "mistral")]
)
def test_of_a_composite_config_the_language_model(bench: Bench, tmp_path: Path, kind: str, text: str) -> None:
    inner = config_of(text, "plain")
    nameless = {name: value for name, value in inner.items() if name != "model_type"}
    for text_config in (inner, nameless):
        whole = {"model_type": kind, "text_config": text_config, "vision_config": {"hidden_size": 64}}
        assert digests(at.probe.write(whole, tmp_path / "probe", longest=4200)) == digests(bench.probe(inner))


# ---- digests ---------------------------------------------------------------------------------------


def test_a_digest_is_of_config_layer_and_questions(bench: Bench, tmp_path: Path) -> None:
    given = config_of("gemma2", "plain")
    first, second = digests(bench.probe(given))
    assert first != second
    assert digests(at.probe.write(given, tmp_path / "again", longest=4200)) == [first, second]
    others = [
        bench.probe({**given, "query_pre_attn_scalar": 224}),
        bench.probe({**given, "a_new_key": 1}),
        bench.probe(given, kinds=["scale", "angles"]),
        bench.probe(given, dtype="float16"),
    ]
    assert not {first, second} & {each for probe in others for each in digests(probe)}
    assert digests(bench.probe(given, layer=1)) == [second]


def test_the_digest_is_in_the_weights(bench: Bench) -> None:
    """Four values of the checkpoint differ from those of another."""
    given = config_of("llama", "plain")
    values, prints = [], []
    for other in (given, {**given, "a_new_key": 1}):
        folder = bench.probe(other) / "layer-0"
        values.append(tensors_in(folder)["model.layers.0.self_attn.v_proj.weight"])
        prints.append(content(folder / "expected.json")["prints"])
    seen = [np.abs(value).max(axis=0) for value in values]
    (changed,) = np.nonzero(seen[0] != seen[1])
    assert prints[0] != prints[1]
    np.testing.assert_array_equal(
        np.log2(seen[1] / seen[0])[changed],
        [there - here for here, there in zip(*prints, strict=True) if here != there],
    )


# ---- weights ---------------------------------------------------------------------------------------

#: Projections; those into a latent are left out, whose norm takes away what is rounded.
SPOKEN = ("q_proj", "k_proj", "v_proj", "qkv_proj", "q_b_proj", "kv_b_proj", "kv_a_proj_with_mqa")


def in_blocks_of_8_bits(numbers: Array) -> Array:
    """Numbers as Q8_0 keeps them: an integer up to 127, and a scale in float16 for 32 of them."""
    blocks = numbers.astype(np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    whole: Array = np.round(blocks * inverse) * scale.astype(np.float16).astype(np.float32)
    return whole.reshape(numbers.shape)


@pytest.mark.parametrize(("family", "scaling"), MODELS)
def test_weights_are_exact_in_few_bits(bench: Bench, family: str, scaling: str) -> None:
    """Bfloat16 holds all but the last norm; blocks of 8 bits hold queries, keys and values, too."""
    for folder in bench.probe(config_of(family, scaling)).glob("layer-*"):
        tensors = tensors_in(folder)
        del tensors["model.norm.weight"]
        for name, tensor in tensors.items():
            assert not (tensor.view(np.uint32) & 0xFFFF).any(), name
        heard = [name for name in tensors if name.split(".")[-2] in SPOKEN and tensors[name].any()]
        assert len(heard) == {"phi3": 1, "deepseek_v3": 3}.get(family, 3)
        for name in heard:
            tensor = tensors[name]
            if name.endswith("kv_a_proj_with_mqa.weight"):
                tensor = tensor[content(folder / "config.json")["kv_lora_rank"] :]
            if tensor.shape[1] % 32 == 0:  # other rows have no blocks
                np.testing.assert_array_equal(in_blocks_of_8_bits(tensor), tensor, name)


@pytest.mark.parametrize("keys", [{}, {"query_pre_attn_scalar": 224}, {"query_pre_attn_scalar": 400}])
def test_large_values_fit_float16(bench: Bench, keys: dict[str, Any]) -> None:
    """Values of the question of a soft-cap fit, also behind the output projection, before a norm."""
    for scaling in ("plain", "yarn"):
        for folder in bench.probe(config_of("gemma2", scaling, **keys)).glob("layer-*"):
            engine = engine_of(folder)
            assert 1000 < engine.largest < 65504


@pytest.mark.parametrize("family", FAMILIES)
def test_one_layer_speaks(bench: Bench, family: str) -> None:
    for folder in bench.probe(config_of(family, "plain")).glob("layer-*"):
        parts = ("_proj", "_proj_with_mqa", "w1", "w2", "w3", "gate")
        full = [name for name, each in tensors_in(folder).items() if each.any() and "layers" in name]
        full = [name for name in full if name.split(".")[-2].endswith(parts)]
        assert {name.split(".")[2] for name in full} == {folder.name.removeprefix("layer-")}
        assert {name.split(".")[3] for name in full} == {"self_attn"}


# ---- questions that cannot be asked ----------------------------------------------------------------


def test_questions_beyond_the_longest_text(bench: Bench) -> None:
    given = config_of("mistral", "plain", sliding_window=4096)
    skipped = content(bench.probe(given, longest=600) / "layer-0" / "expected.json")["skipped"]
    assert skipped == ["window of 4096 keys: it needs a text of 4102 words (--longest)"]
    found = bench.read(given, longest=600)
    assert not found.wrong
    assert "window" not in {row["what"] for row in found.rows()}
    assert f"not asked: {skipped[0]}" in found.table()
    folder = bench.probe(given, longest=4102) / "layer-0"
    assert content(folder / "expected.json")["skipped"] == []
    assert max(map(words_of, (folder / "prompts.jsonl").read_text().splitlines())) == 4102


def words_of(line: str) -> int:
    return len(json.loads(line)["ids"])


def test_no_prompt_is_longer_than_the_longest(bench: Bench) -> None:
    for family in ("gemma2", "ministral3", "llama4_text"):
        for folder in bench.probe(config_of(family, "plain"), longest=64).glob("layer-*"):
            lines = (folder / "prompts.jsonl").read_text().splitlines()
            assert 40 < max(map(words_of, lines)) <= 64


def test_kinds_of_questions(bench: Bench) -> None:
    given = config_of("gemma2", "plain")
    asked = {
        kind: {row["what"].split()[0] for row in bench.read(given, kinds=[kind], layer=0).rows()}
        for kind in ("scale", "angles", "window", "cap")
    }
    assert asked["scale"] == {"scale,"}
    assert asked["window"] == {"window"}
    assert "window" not in asked["angles"] | asked["cap"]


def test_a_soft_cap_that_is_not_asked_is_taken_as_given(bench: Bench) -> None:
    """A soft-cap lowers even small scores, by 3e-4."""
    for row in bench.read(config_of("gemma2", "plain"), kinds=["scale"]).rows():
        assert row["answered"] == pytest.approx(row["asked"], rel=1e-6)


# ---- refusals --------------------------------------------------------------------------------------

LLAMA, QWEN3 = config_of("llama", "plain"), config_of("qwen3", "plain")


@pytest.mark.parametrize(
    ("config", "options", "told"),
    [
        ({**LLAMA, "model_type": "mamba2"}, {}, "^model_type must be .*llama.*, got 'mamba2': a probe needs"),
        ({**LLAMA, "hidden_size": 0}, {}, "^hidden_size must be a positive integer, got 0$"),
        ({**LLAMA, "head_dim": 16}, {}, "^layer 0: heads must have at least 23 channels, got 16$"),
        ({**QWEN3, "head_dim": 32}, {}, "^layer 0: heads must have at least 40 channels, got 32$"),
        (LLAMA, {"longest": 63}, "^longest must be at least 64, got 63$"),
        (LLAMA, {"longest": "4096"}, "^longest must be an integer, got '4096'$"),
        (LLAMA, {"kinds": []}, "^kinds must be at least one name, got none$"),
        (LLAMA, {"gguf": 8}, "^gguf must be a sequence of names, got 8$"),
        (LLAMA, {"kinds": ["scales"]}, "kinds must be one of .*, got 'scales'$"),
        (LLAMA, {"dtype": "int8"}, "dtype must be one of .*, got 'int8'$"),
        (LLAMA, {"layer": 9}, "^layer must be .*got 9$"),
        (LLAMA, {"gguf": "q4_0"}, "gguf must be one of .*, got 'q4_0'$"),
        (LLAMA, {"converter": "x.py"}, "^converter must come with gguf"),
        (LLAMA, {"long": 3}, "did you mean 'longest'"),
    ],
)
def test_refusals(tmp_path: Path, config: Any, options: Any, told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        at.probe.write(config, tmp_path / "probe", **options)
    assert list(tmp_path.iterdir()) == []


def test_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"^folder must be new, empty or a probe, got "):
        at.probe.write(LLAMA, tmp_path)
    with pytest.raises(ValueError, match=r"^folder must be a folder, got the file "):
        at.probe.write(LLAMA, tmp_path / "mine.txt")
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]


def test_a_probe_with_files_of_others_stays(tmp_path: Path) -> None:
    """A file called probe.json makes no probe, and answers kept in a probe are not lost."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "probe.json").write_text('{"mine": 1}')
    with pytest.raises(ValueError, match=r"^folder must be new, empty or a probe, got .* with probe\.json$"):
        at.probe.write(LLAMA, tmp_path / "a")
    probe = at.probe.write(LLAMA, tmp_path / "b", kinds="scale")
    (probe / "answers.jsonl").write_text("kept")
    with pytest.raises(
        ValueError, match=r"^folder must be new, empty or a probe, got .* with answers\.jsonl$"
    ):
        at.probe.write(LLAMA, probe)
    assert (probe / "answers.jsonl").read_text() == "kept"


def test_the_folder_that_one_works_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    at.probe.write(LLAMA, ".", kinds="scale")
    assert {each.name for each in Path().iterdir()} == {"ask.py", "layer-0", "probe.json"}


def test_narrow_windows_are_refused(tmp_path: Path) -> None:
    """A window shorter than the short prompts would call a right engine wrong."""
    config = config_of("mistral", "plain", sliding_window=23)
    with pytest.raises(ValueError, match=r"^sliding_window must be at least 24 keys, got 23 in layer 0$"):
        at.probe.write(config, tmp_path / "probe")
    at.probe.write({**config, "sliding_window": 24}, tmp_path / "probe")


def test_a_depth_that_the_config_leaves_out(tmp_path: Path) -> None:
    config = {name: value for name, value in LLAMA.items() if name != "num_hidden_layers"}
    probe = at.probe.write(config, tmp_path / "probe", kinds="scale")
    assert content(probe / "layer-0" / "config.json")["num_hidden_layers"] == 32


def test_a_probe_is_replaced_as_a_whole(bench: Bench, tmp_path: Path) -> None:
    """Nothing stays of the old probe, and a write that fails leaves it as it was."""
    folder = tmp_path / "probe"
    shutil.copytree(bench.probe(config_of("gemma2", "plain")), folder)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match="smollm3 has no GGUF file for this config"):
        at.probe.write(config_of("smollm3", "llama3"), folder, gguf="f32", kinds=["scale"])
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    at.probe.write(LLAMA, folder, gguf="f32", kinds=["scale"])
    assert {each.name for each in folder.iterdir()} == {"ask.py", "layer-0", "probe.json"}
    assert {each.name for each in (folder / "layer-0").iterdir()} == FILES | {"f32.gguf"}
    assert [each.name for each in tmp_path.iterdir()] == ["probe"]


def test_a_cap_of_logits_that_the_config_leaves_out(tmp_path: Path) -> None:
    """Gemma 2's class caps logits at 30; null switches it off."""
    caps = {"left out": 30.0, "null": None, "50": 50.0}
    for name, cap in caps.items():
        config = config_of("gemma2", "plain")
        config.pop("final_logit_softcapping", None)
        config |= {} if name == "left out" else {"final_logit_softcapping": cap}
        probe = at.probe.write(config, tmp_path / name)
        assert content(probe / "layer-0" / "expected.json")["final_cap"] == cap
