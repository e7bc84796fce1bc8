# SPDX-License-Identifier: BSD-3-Clause
"""at.compare and attnscale compare: logs, their files, heads files and models."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
import torch
from attnscale.cli import main
from transformers import LlamaConfig, LlamaModel

TOKENS = torch.arange(64)[None] % 50


def llama(layers: int = 4, **options: Any) -> Any:
    torch.manual_seed(3)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"vocab_size": 50, "initializer_range": 0.1, "num_hidden_layers": layers}
    return LlamaModel(LlamaConfig(**sizes | options)).eval()


def recorded(model: Any, tokens: Any = TOKENS, **options: Any) -> Any:
    with torch.no_grad(), at.torch.record(model, to_compare=True, **options) as log:
        model(tokens)
    return log


def times(model: Any, layer: int, factor: float) -> Any:
    found = copy.deepcopy(model)
    found.layers[layer].self_attn.scaling *= factor
    return found


def test_a_model_with_itself() -> None:
    model = llama()
    found = at.compare(model, model)
    assert found.cause is None
    assert found.noise == (0.0, "none")
    assert str(found).startswith("no difference\n")
    assert all(each["divergence"] == each["scores"] == 0 for each in found.rows())


def test_one_layer_with_another_scale() -> None:
    model = llama()
    found = at.compare(model, times(model, 3, 1.1386**2))
    assert found.cause is not None
    assert (found.cause.kind, found.cause.layer) == ("scale", 3)
    assert found.cause.module == "layers.3.self_attn"
    assert found.cause.factor == pytest.approx(1.2965, rel=1e-3)
    assert found.cause.fit == pytest.approx(1.0, abs=1e-6)
    assert [each.divergence.max() > 0 for each in found.layers] == [False, False, False, True]


def test_a_scale_in_the_queries_is_the_same_scale() -> None:
    """A factor of the score is found wherever it sits."""
    model = llama()
    moved = times(model, 1, 0.5)
    moved.layers[1].self_attn.q_proj.weight.data *= 2
    assert at.compare(model, moved).cause is None


def test_queries_and_keys_of_zeros_give_no_warning_of_numpy() -> None:
    model = llama(layers=2)
    zeros = copy.deepcopy(model)
    for each in (zeros.layers[1].self_attn.q_proj, zeros.layers[1].self_attn.k_proj):
        each.weight.data.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = at.compare(zeros, model)
    assert found.cause is not None
    assert (found.cause.kind, found.cause.layer) == ("projection", 1)


def test_bfloat16_is_rounding() -> None:
    model = llama()
    found = at.compare(model, copy.deepcopy(model).bfloat16())
    assert found.cause is None
    assert found.noise.said == "rounding as of bfloat16"
    assert 1e-3 < found.noise.size < 0.02


def test_an_input_that_differs_points_before_the_layer() -> None:
    model = llama()
    other = copy.deepcopy(model)
    other.layers[1].mlp.down_proj.weight.data *= 1.5
    found = at.compare(model, other).cause
    assert found is not None
    assert (found.kind, found.layer) == ("input", 2)


def test_other_tokens_are_an_other_input() -> None:
    model = llama()
    found = at.compare(recorded(model), recorded(model, TOKENS.flip(1))).cause
    assert found is not None
    assert (found.kind, found.layer) == ("input", 0)


def test_log_file_and_model_give_the_same_answer(tmp_path: Path) -> None:
    model = llama()
    other = times(model, 2, 0.8)
    logs = [recorded(each) for each in (model, other)]
    files = [str(tmp_path / f"{name}.npz") for name in "ab"]
    for log, file in zip(logs, files, strict=True):
        log.save(file)
    inputs = {"input_ids": TOKENS}
    found = at.compare(*logs)
    answer = found.to_dict()
    assert answer["cause"]["factor"] == pytest.approx(0.8)
    assert at.compare(*files).to_dict() == answer
    assert at.compare(logs[0], files[1]).to_dict() == answer
    assert at.compare(model, other, inputs=inputs).to_dict() == answer
    assert at.compare(files[0], other, inputs=inputs).to_dict() == answer
    json.dumps(answer, allow_nan=False)


def test_a_layer_of_32_heads_takes_little(tmp_path: Path) -> None:
    model = llama(1, num_attention_heads=32, num_key_value_heads=32, head_dim=128, hidden_size=4096)
    log = recorded(model)
    (rows,) = log.kept_rows()
    held = sum(x.nbytes for x in vars(rows).values() if isinstance(x, np.ndarray))
    assert held < 2_000_000
    log.save(tmp_path / "run.npz")
    assert (tmp_path / "run.npz").stat().st_size < 2_000_000
    assert [int(rows.positions[0]), int(rows.positions[-1]), len(rows.positions)] == [0, 63, 16]


def test_rows_of_padding_are_not_kept() -> None:
    mask = torch.ones(2, 64, dtype=torch.long)
    mask[0, 40:] = 0
    model = llama()
    with torch.no_grad(), at.torch.record(model, to_compare=True) as log:
        model(TOKENS.repeat(2, 1), attention_mask=mask)
    assert {int(each.positions[-1]) for each in log.kept_rows()} == {39}


def test_rows_are_the_model_s_own() -> None:
    """Weights of the kept keys from a file's queries, keys and log-sum-exp, beside eager weights."""
    model = llama(2)
    model.set_attn_implementation("eager")
    rows = recorded(model).kept_rows()[1]
    with torch.no_grad():
        weights = model(TOKENS, output_attentions=True).attentions[1][0].numpy()
    scores = rows.query @ rows.key[rows.key_of].swapaxes(1, 2) * rows.scale
    made = np.where(rows.seen, np.exp(scores - rows.lse[..., None]), 0)
    at_rows = weights[:, rows.positions][:, :, rows.key_positions]
    np.testing.assert_allclose(made, at_rows, rtol=1e-4, atol=1e-7)
    assert (rows.visible == rows.positions + 1).all()


def heads_file(path: Path, log: Any, factor: float = 1.0) -> str:
    """A file of the queries and keys of a log, all layers beside each other."""
    layers = log.kept_rows()
    query, key = (np.concatenate([getattr(each, name) for each in layers]) for name in ("query", "key"))
    names = {
        name: np.repeat(np.arange(2), 4) if name == "layers" else np.tile(np.arange(4), 2)
        for name in ("layers", "heads")
    }
    np.savez(path, query=query * factor, key=key, **names)
    return str(path)


def test_files_of_heads_tell_what_they_can(tmp_path: Path) -> None:
    log = recorded(llama(2), TOKENS[:, :16])
    files = [heads_file(tmp_path / "a.npz", log), heads_file(tmp_path / "b.npz", log, 1.5)]
    found = at.compare(*files)
    assert found.cause is not None
    assert (found.cause.kind, found.cause.layer) == ("scale", 0)
    assert found.cause.factor == pytest.approx(1.5)
    assert {"mask", "sink", "softcap", "values"} <= {*found.unknown}
    assert not found.has_weights
    assert at.compare(log, files[0]).cause is None


# ---- refusals ----------------------------------------------------------------------------------------


def test_a_log_without_rows_is_refused(tmp_path: Path) -> None:
    model = llama(1)
    with torch.no_grad(), at.torch.record(model) as log:
        model(TOKENS)
    for use in (lambda: log.save(tmp_path / "run.npz"), lambda: at.compare(log, log)):
        with pytest.raises(ValueError, match=r"^log must be of record\(model, to_compare=True\)"):
            use()
    assert [*tmp_path.iterdir()] == []


def test_arguments_are_refused(tmp_path: Path) -> None:
    model = llama(1)
    log = recorded(model)
    with pytest.raises(TypeError, match=r"^b must be a log of .*, got 3$"):
        at.compare(log, 3)
    with pytest.raises(ValueError, match=r"^inputs must be given to compare a model with a stored run"):
        at.compare(log, model)
    with pytest.raises(
        ValueError, match=r"^a and b must have as many heads in a layer, got 4 in .* and 8 in"
    ):
        at.compare(log, recorded(llama(1, num_attention_heads=8)))
    with pytest.raises(ValueError, match=r"^path must end in \.npz, got 'run\.pt'$"):
        log.save("run.pt")
    with pytest.raises(ValueError, match=r"^inputs must be given for models without config\.vocab_size"):
        at.compare(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "other shapes", "other format"])
def test_a_damaged_file_gives_one_line(tmp_path: Path, capsys: Any, damage: str) -> None:
    path = tmp_path / "run.npz"
    recorded(llama(1)).save(path)
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        middle = len(content) // 2
        path.write_bytes(
            content[:middle] + bytes(255 - x for x in content[middle : middle + 64]) + content[middle + 64 :]
        )
    elif damage == "foreign":
        path.write_bytes(b"no archive at all")
    else:
        with np.load(path) as stored:
            arrays = dict(stored)
        if damage == "other shapes":
            arrays["0/key"] = arrays["0/key"][:, :3]
        else:
            arrays["recording"] = np.frombuffer(b'{"format": 99, "layers": []}', np.uint8)
        np.savez(path, **arrays)
    assert main(["compare", str(path), str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("attnscale: error: ")
    assert said.err.count("\n") == 1
    assert "run.npz" in said.err


# ---- the command and the figure ----------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Files of a run, and of one with another scale in layer 1."""
    model = llama(2)
    found = []
    for name, each in (("a", model), ("b", times(model, 1, 1.3))):
        recorded(each).save(tmp_path / f"{name}.npz")
        found.append(str(tmp_path / f"{name}.npz"))
    return found


def test_the_command_begins_with_the_cause(files: list[str], capsys: Any) -> None:
    assert main(["compare", *files]) == 0
    said = capsys.readouterr().out
    assert said.startswith("layer 1 (layers.1.self_attn): the scores of b are 1.3 times those of a\n")
    assert main(["compare", *files, "--strict"]) == 3
    assert main(["compare", files[0], files[0], "--strict"]) == 0
    capsys.readouterr()
    assert main(["compare", *files, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cause"]["kind"] == "scale"
    assert len(found["rows"]) == 8


def test_the_command_runs_models_in_folders(tmp_path: Path, capsys: Any) -> None:
    model = llama(2)
    model.save_pretrained(tmp_path / "a")
    model.bfloat16().save_pretrained(tmp_path / "b")
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.startswith("no cause: the differences are rounding as of bfloat16\n")


def test_the_figure_marks_the_layer(files: list[str]) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = at.compare(*files).plot()
    (frame,) = axes.patches
    assert frame.get_xy() == (-0.5, 0.5)
    assert frame.get_width() == 4
    assert len(at.compare(files[0], files[0]).plot().patches) == 0
