# SPDX-License-Identifier: BSD-3-Clause
"""Scales stored in weights, read from safetensors with the tensor names of models."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale._files import safetensors
from attnscale.cli import main
from audit_configs import GPT_OSS, sizes, typed

RNG = np.random.default_rng(5)


def write(path: Path, **tensors: np.ndarray) -> Path:
    """Write a file of safetensors by the specification; 16-bit unsigned numbers stand for bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    kinds, start = {"f4": "F32", "f2": "F16", "f8": "F64", "u2": "BF16", "i4": "I32"}, 0
    for name, tensor in tensors.items():
        places = [start, start + tensor.nbytes]
        kind = kinds[tensor.dtype.str[1:]]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": places}
        start += tensor.nbytes
    text = json.dumps(header).encode()
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def numbers(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def bfloat16(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def values(found: at.audit.LearnedScales, quantity: str) -> list[np.ndarray]:
    return [each.values for each in found.entries if each.quantity == quantity]


@pytest.mark.parametrize(
    "names", [("softmax_scaling.scale", "softmax_scaling.bias"), ("ssmax_scaling.s", "ssmax_scaling.b")]
)
def test_scalable_softmax_of_mistral_large_4(tmp_path: Path, names: tuple[str, str]) -> None:
    """Tensors with the names of the model, and with those of its files."""
    s, b = numbers(2, 4), numbers(2, 4)
    tensors = {
        f"model.language_model.layers.{layer}.self_attn.{name}": each[layer]
        for layer in range(2)
        for name, each in zip(names, (s, b), strict=True)
    }
    found = at.audit.learned_scales(write(tmp_path / "model.safetensors", **tensors))
    np.testing.assert_array_equal(values(found, "s"), s)
    laws = found.laws()
    assert len(laws) == 8
    for (layer, _, head), law in laws.items():
        expected = s[layer, head] * math.log(1000) + b[layer, head]
        assert law.multiplier_at(1000, 64) == pytest.approx(expected, rel=1e-6)
    assert found.unread == ()


def test_scales_of_cosines_are_clamped(tmp_path: Path) -> None:
    theta = np.array([[[2.0]], [[9.0]]], np.float32)
    name = "swinv2.encoder.layers.{}.blocks.{}.attention.self.logit_scale"
    tensors = {name.format(*place): theta for place in ((1, 0), (0, 1), (0, 0))}
    found = at.audit.learned_scales(write(tmp_path / "a.safetensors", **tensors))
    assert [each.layer for each in found.entries] == [0, 1, 2]
    np.testing.assert_allclose(values(found, "cosine scale")[0], [math.exp(2), 100], rtol=1e-7)
    assert {law.name for law in found.laws().values()} == {"constant"}


@pytest.mark.parametrize(
    "name", ["sinks", "learnable_sink_param", "attn_sink", "attention_sink_bias", "softmax_offset"]
)
def test_sinks_in_bfloat16(tmp_path: Path, name: str) -> None:
    logits = numbers(3)
    path = write(tmp_path / "a.safetensors", **{f"model.layers.7.self_attn.{name}": bfloat16(logits)})
    (each,) = at.audit.learned_scales(path).entries
    assert (each.layer, each.quantity) == (7, "sink")
    np.testing.assert_allclose(each.values, logits, rtol=2**-7)
    assert at.audit.learned_scales(path).laws() == {}


def test_asentmax_and_its_kinds(tmp_path: Path) -> None:
    beta, gamma = numbers(1, 4, 1, 1), numbers(1, 4, 1, 1)
    place = "model.layers.0.self_attn."
    both = {f"{place}attn_scale_beta": beta, f"{place}attn_scale_gamma": gamma}
    found = at.audit.learned_scales(write(tmp_path / "a.safetensors", **both), config={"attn_scale_delta": 2})
    law = found.laws()[0, place[:-1], 3]
    expected = 2 + beta[0, 3, 0, 0] * math.log(102) ** gamma[0, 3, 0, 0]
    assert law.multiplier(np.ones(1), 64, position=np.array([100])) == pytest.approx([expected], rel=1e-6)
    alone = at.audit.learned_scales(write(tmp_path / "b.safetensors", **{f"{place}attn_scale_beta": beta}))
    law = alone.laws()[0, place[:-1], 0]
    expected = beta[0, 0, 0, 0] * math.log(102)
    assert law.multiplier(np.ones(1), 64, position=np.array([100])) == pytest.approx([expected], rel=1e-6)
    adaptive = {f"{place}attn_scale_beta_proj.weight": numbers(4, 8)}
    told = at.audit.learned_scales(write(tmp_path / "c.safetensors", **adaptive))
    assert told.entries == ()
    assert "1 x model.layers.*.self_attn.attn_scale_beta_proj.weight" in told.unread[0]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("by_channel", "place"),
    [
        (True, "icl_predictor.blocks.0.ssmax_layer"),
        (False, "icl_predictor.blocks.0.ssmax_layer"),
        (True, "heads.many_class_decoder.softmax_scaling_layer"),  # the second place, of TabPFN 3.5
    ],
)
def test_the_base_of_a_query_aware_softmax(tmp_path: Path, by_channel: bool, place: str) -> None:
    torch = pytest.importorskip("torch")
    heads, channels = 2, 3
    torch.manual_seed(0)

    def mlp(taken: int, made: int) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(taken, 8), torch.nn.GELU(), torch.nn.Linear(8, made))

    base = mlp(1, heads * channels if by_channel else heads)
    query = mlp(channels, channels if by_channel else 1)
    module = torch.nn.ModuleDict({"base_mlp": base, "query_mlp": query})
    tensors = {f"{place}.{name}": x.numpy() for name, x in module.state_dict().items()}
    scales = at.audit.learned_scales(write(tmp_path / "a.safetensors", **tensors))
    (each,) = scales.entries
    assert each.curve is not None
    assert (each.module, scales.unread) == (place, ())
    for n in (1, 64, 5000):
        with torch.no_grad():
            expected = base(torch.tensor([[math.log(n)]])).numpy().reshape(each.values.shape)
        np.testing.assert_allclose(each.curve(n), expected, rtol=1e-5, atol=1e-6)
    assert each.values.shape == ((heads, channels) if by_channel else (heads,))


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["full", "base_only", "log_only", None])
def test_nori(tmp_path: Path, mode: str | None) -> None:
    """Networks and temperatures as in the files of Nori; of base_only there is no gate in newer ones."""
    torch = pytest.importorskip("torch")
    heads, channels = 2, 3
    torch.manual_seed(1)
    place = "transformer_encoder.layers.4.sequence_attentions.0"
    base = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.GELU(), torch.nn.Linear(8, heads * channels))
    parts = {"base_mlp": base} | ({} if mode == "base_only" else {"gate_mlp": torch.nn.Linear(channels, 8)})
    tensors = {
        f"{place}.qassmax.{part}.{name if part == 'base_mlp' else f'0.{name}'}": x.numpy()
        for part, module in parts.items()
        for name, x in module.state_dict().items()
    }
    tensors |= {
        f"{place}.qkv_proj_weight": numbers(3, heads, channels, 6),
        f"{place}.attn_temperature": np.array([-1.5], np.float32),
    }
    config = {} if mode is None else {"qass_mode": mode}
    found = at.audit.learned_scales(write(tmp_path / "a.safetensors", **tensors), config=config)
    assert found.unread == ()
    assert found.laws() == {}
    np.testing.assert_array_equal(values(found, "layer temperature"), [[1.5]])
    bases = [each for each in found.entries if each.curve is not None]
    assert len(bases) == (mode != "log_only")
    for each in bases:
        assert each.curve is not None
        for n in (2, 64, 5000):
            log = torch.tensor([[math.log(n)]])
            with torch.no_grad():
                expected = (log * (1 + torch.tanh(base(log)))).numpy().reshape(heads, channels)
            np.testing.assert_allclose(each.curve(n), expected, rtol=1e-5, atol=1e-6)
        assert (each.curve(1) == 1).all()  # one key: the query stays as it is


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_scales_of_channels_are_those_of_the_models_code(tmp_path: Path) -> None:
    """Multipliers of q . k of unit vectors in Dory: in transformers' code and from the weights."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers.models.dory")
    from tools.audit import oracle

    small = {"num_hidden_layers": 3, "n_input_layers": 1, "n_output_layers": 1, "n_recurrent_layers": 1}
    model, config = oracle.build("dory", **small)
    calls = oracle.run(model).calls
    tensors = {f"model.{name}": x.numpy() for name, x in model.state_dict().items() if "inv_freq" not in name}
    found = at.audit.learned_scales(write(tmp_path / "a.safetensors", **tensors), config=config)
    scales = {each.layer: each.values for each in found.entries if each.quantity == "channel scale"}
    assert sorted(scales) == [0, 1, 2]
    for call in calls:
        q, scale = call["query"][0], torch.as_tensor(scales[call["module"].layer_idx])[:, None]
        expected = torch.nn.functional.normalize(q / scale, dim=-1) * scale
        torch.testing.assert_close(q * call["scale"], expected.to(q.dtype), rtol=1e-5, atol=1e-6)


def test_scales_of_quantisation_and_norms_are_left_out(tmp_path: Path) -> None:
    """A tensor that could be a scale and has no rule is named."""
    place = "model.layers.0.self_attn."
    silent = ("q_proj.weight_scale", "k_scale", "q_norm.weight", "o_proj.scales", "k_proj.input_scale")
    tensors = {f"{place}{name}": numbers(4) for name in (*silent, "head_temper")}
    found = at.audit.learned_scales(write(tmp_path / "a.safetensors", **tensors))
    assert found.entries == ()
    assert found.unread == ("1 x model.layers.*.self_attn.head_temper of shape (4,): no rule is known",)


def sharded(folder: Path) -> np.ndarray:
    """Write a checkpoint of gpt-oss in files with an index; one file, without a scale, is missing."""
    folder.mkdir()
    logits = numbers(2, 4)
    names = [f"model.layers.{layer}.self_attn.sinks" for layer in range(2)]
    index = {"model.embed_tokens.weight": "model-3.safetensors"}
    for number, name in enumerate(names):
        file = write(folder / f"model-{number}.safetensors", **{name: logits[number]})
        index[name] = file.name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), encoding="utf-8")
    config = {**GPT_OSS, "num_hidden_layers": 2, "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return logits


def test_an_index_opens_only_the_files_that_are_needed(tmp_path: Path) -> None:
    logits = sharded(tmp_path / "oss")
    for place in (tmp_path / "oss", tmp_path / "oss" / "model.safetensors.index.json"):
        np.testing.assert_array_equal(values(at.audit.learned_scales(place), "sink"), logits)


def test_the_command_shows_them_behind_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logits = sharded(tmp_path / "oss")
    assert main(["audit", str(tmp_path / "oss")]) == 0
    text = capsys.readouterr().out
    assert "gpt_oss, 2 layers" in text
    assert "in the weights" in text
    assert f"{np.median(logits[1]):.6g}" in text
    assert main(["audit", str(tmp_path / "oss"), "--layer", "1"]) == 0
    text = capsys.readouterr().out
    assert all(f"{x:.6g}" in text for x in logits[1])
    assert f"{logits[0, 0]:.6g}" not in text
    assert main(["audit", str(tmp_path / "oss" / "model-0.safetensors"), "--json"]) == 0
    (learned,) = json.loads(capsys.readouterr().out)["learned"]
    assert learned["values"] == logits[0].astype(float).tolist()


def test_laws_of_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    s = numbers(3)
    file = write(tmp_path / "a.safetensors", **{"model.layers.4.self_attn.ssmax_scaling.s": s})
    table = tmp_path / "laws.csv"
    assert main(["laws", "--from", str(file), "--n", "100", "1000", "--csv", str(table)]) == 0
    assert "m(1000)" in capsys.readouterr().out
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert [float(row["m(100)"]) for row in rows] == pytest.approx((s * math.log(100)).tolist(), rel=1e-6)
    law = at.laws.get(rows[1]["law"])
    assert law.multiplier_at(1000, 64) == pytest.approx(float(rows[1]["m(1000)"]), rel=1e-6)
    assert main(["laws", "--from", str(file), "--laws", "log_n"]) == 2
    assert "--laws must be left out with --from" in capsys.readouterr().err
    assert main(["laws", "--from", str(write(tmp_path / "b.safetensors", x=s))]) == 2
    assert "no weight in it is a law of a head" in capsys.readouterr().err


def test_weights_without_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.safetensors", x=numbers(2))
    assert main(["audit", str(file)]) == 2
    assert "there is no config.json beside it; attnscale laws --from" in capsys.readouterr().err


def entry(**changes: Any) -> bytes:
    """A file with one tensor of two numbers whose header is changed."""
    name = "model.layers.0.self_attn.sinks"
    text = json.dumps({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has no header"),
        (b"\xff" * 64, "its header has 18446744073709551615 bytes, the file 64"),
        (b"\x05" + bytes(7) + b"{nope", "its header is not JSON"),
        (b"\x02" + bytes(7) + b"[]", "its header is not a JSON object"),
        (entry()[:-3], "does not fit the file"),
        (entry(shape=[3]), "does not fit the file"),
        (entry(shape=[2**62, 4]), "does not fit the file"),
        (entry(shape=[-2]), "does not fit the file"),
        (entry(shape="2"), "does not fit the file"),
        (entry(data_offsets=[8, 0]), "does not fit the file"),
        (entry(data_offsets=[0]), "does not fit the file"),
        (entry(dtype=4), "does not fit the file"),
        (entry(dtype="F8_E4M3"), "numbers must be of type F64"),
    ],
)
def test_files_that_lie_get_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        at.audit.learned_scales(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_or_an_index_that_is_not_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no \.safetensors file here"):
        at.audit.learned_scales(tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        at.audit.learned_scales(tmp_path / "none.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    for content in ("{", "[]", '{"weight_map": []}', '{"weight_map": {"a.attn.sinks": 3}}'):
        index.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=r"not a readable index|must be a name without a folder"):
            at.audit.learned_scales(index)
    index.write_text('{"weight_map": {"a.attn.sinks": "../other.safetensors"}}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"a name without a folder, got '\.\./other"):
        at.audit.learned_scales(index)


def test_every_type_is_read_as_the_format_has_it(tmp_path: Path) -> None:
    """Numbers of every type, written by the package safetensors."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    tensors = {
        kind: np.arange(6).reshape(2, 3).astype(kind)
        for kind in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?")
    }
    tensors["none"] = np.zeros((0, 4), np.float32)
    save_file(tensors, tmp_path / "a.safetensors")
    found = safetensors.stored_tensors(tmp_path / "a.safetensors")
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name].read(), tensor)
        assert found[name].read().dtype == tensor.dtype


def test_a_model_whose_scale_is_in_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The config refuses and names the weights; where they are beside it, the command shows the scale."""
    config = typed("mistral_large4_text", **sizes(64, 4, 1))
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    plan = at.audit.resolve(tmp_path)
    assert "weights of the checkpoint" in str(plan[0].refusal)
    place = "model.layers.0.self_attn.ssmax_scaling."
    write(tmp_path / "model.safetensors", **{f"{place}s": numbers(4), f"{place}b": numbers(4)})
    assert main(["audit", str(tmp_path)]) == 0
    assert "q . k is multiplied by (s ln n + b) / sqrt(head_dim), n = i + 1\n" in capsys.readouterr().out
