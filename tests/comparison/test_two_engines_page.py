# SPDX-License-Identifier: BSD-3-Clause
"""The how-to page of two engines: its recipes run, and say what the page says."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
import pytest
import torch
from attnscale.cli import build_parser, main

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "two-engines.md"
CAUSES = ROOT / "python" / "attnscale" / "comparison" / "_causes.py"

if not PAGE.exists():
    pytest.skip("not a source tree", allow_module_level=True)

TEXT = PAGE.read_text(encoding="utf-8")
OUTPUTS = re.findall(r"^```text\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def dumps() -> ModuleType:
    """The file of recipes beside the page."""
    spec = importlib.util.spec_from_file_location("engine_dumps", PAGE.with_name("engine_dumps.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_said(shown: str, printed: str) -> bool:
    """Whether the words of an output are those shown, and its numbers close to them, up to the dots."""
    here, there = shown.partition("\n...")[0].split(), printed.split()
    return all(
        x == y or _number(x) == pytest.approx(_number(y), rel=0.3) for x, y in zip(here, there, strict=False)
    )


def _number(word: str) -> float:
    return float(word) if re.fullmatch(r"[\d.]+(e-\d+)?", word) else float("nan")


def test_words_and_numbers_of_an_output_are_compared() -> None:
    assert is_said("layer 3 0.0057\n...\n", "layer 3 0.0059\nand more")
    assert not is_said("layer 3 0.0057\n", "layer 3 0.9")
    assert not is_said("layer 3\n", "head 3\n")


def test_commands_of_the_page_are_read() -> None:
    commands = re.findall(r"^ {4}attnscale (.*)$", TEXT, flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert build_parser().parse_args(shlex.split(command)).a.suffix == ".npz"


def test_kinds_of_the_page_are_those_of_the_package() -> None:
    table = TEXT.split("| kind of cause")[1].split("\n\n")[0]
    cells = " ".join(re.findall(r"^\| ([^|]*) \|", table, flags=re.MULTILINE))
    listed = CAUSES.read_text(encoding="utf-8").split("kind : str\n")[1].split("layer : int\n")[0]
    assert set(re.findall("`(.*?)`", cells)) == set(re.findall('"([a-z -]+)"', listed))


def test_the_recipe_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 5}
    config = transformers.LlamaConfig(**sizes, vocab_size=200, initializer_range=0.1)
    model = transformers.LlamaModel(config).eval()
    ported = copy.deepcopy(model)
    ported.layers[3].self_attn.scaling *= 1.2965
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    scope = {"model": model, "ported": ported, "tokens": torch.arange(64)[None]}
    exec(compile(code, PAGE.name, "exec"), scope)
    main(["compare", "before.npz", "after.npz"])
    assert is_said(OUTPUTS[0], capsys.readouterr().out)
    scope["record"](copy.deepcopy(model).to(torch.bfloat16), "rounded.npz")
    main(["compare", "before.npz", "rounded.npz"])
    assert is_said(OUTPUTS[1], capsys.readouterr().out)


def test_a_dump_shows_its_scale(dumps: ModuleType, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    layers = [(rng.standard_normal((4, 20, 8)), rng.standard_normal((2, 20, 8)), 8**-0.5) for _ in range(3)]
    dumps.save(tmp_path / "a.npz", layers)
    layers[1] = (*layers[1][:2], 1.5 * 8**-0.5)
    dumps.save(tmp_path / "b.npz", layers)
    cause = at.compare(tmp_path / "a.npz", tmp_path / "b.npz").cause
    assert (cause.kind, cause.layer) == ("scale", 1)
    assert cause.factor == pytest.approx(1.5)
    dumps.save(tmp_path / "b.npz", [(q, k, 1.0) for q, k, _ in layers], scale=1.0)
    assert at.compare(tmp_path / "a.npz", tmp_path / "b.npz").sentence == "no difference"


def test_hooks_of_servers_write_what_the_model_has(
    dumps: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules like those of vLLM and SGLang: they show what the hooks do, not what servers call."""
    rows = [torch.randn(10, heads * 8) for heads in (4, 2)]  # two rows are padding
    dumps.save(
        tmp_path / "right.npz",
        [(*(x[:8].reshape(8, -1, 8).transpose(0, 1).numpy() for x in rows), 0.5)] * 2,
    )

    class Attention(torch.nn.Module):
        head_size, impl = 8, SimpleNamespace(scale=0.5)

        def forward(self, query: Any, key: Any, value: Any) -> Any:
            return query

    class Engine:
        def __init__(self, checkpoint: str, **options: bool) -> None:
            self.model = torch.nn.ModuleList([Attention(), Attention()])

        def apply_model(self, function: Any) -> None:
            function(self.model)

        def generate(self, prompt: Any, options: Any) -> None:
            for n in (10, 1):
                for module in self.model:
                    module(*(x[:n] for x in (*rows, rows[1])))

    vllm, layer = SimpleNamespace(LLM=Engine, SamplingParams=dict), SimpleNamespace(Attention=Attention)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.attention", layer)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    dumps.from_vllm("checkpoint", list(range(8)), tmp_path / "vllm.npz")
    hook = dumps.sglang_hook({"n": 8, "layers": 2, "path": tmp_path / "sglang.npz"})
    for layer in (0, 1):
        hook(SimpleNamespace(layer_id=layer, qk_head_dim=8, scaling=0.5), (*rows, rows[1]), None)
    for name in ("vllm", "sglang"):
        assert at.compare(tmp_path / "right.npz", tmp_path / f"{name}.npz").sentence == "no difference"


def test_the_recipe_of_mlx(dumps: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm")
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = transformers.Qwen3MoeConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        vocab_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=131072,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        initializer_range=0.1,
        rope_parameters={"rope_theta": 1e6, **scaling},
    )
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    # mlx-lm reads the spelling that checkpoints have.
    older = {"rope_theta": 1e6, "rope_scaling": scaling, "num_experts": 4}
    path.write_text(json.dumps({**json.loads(path.read_text()), **older}))
    tokens = torch.randint(256, (1, 512), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), at.torch.record(model, to_compare=True) as log:
        model(tokens)
    dumps.from_mlx(tmp_path, tokens[0].tolist(), tmp_path / "mlx.npz")
    assert at.compare(log, tmp_path / "mlx.npz").sentence == OUTPUTS[2].strip()
    with torch.no_grad(), at.torch.record(model, to_compare=True) as log:
        model(tokens[:, :64])
    dumps.from_mlx(tmp_path, tokens[0, :64].tolist(), tmp_path / "mlx.npz")
    cause = at.compare(log, tmp_path / "mlx.npz").cause
    assert cause.kind == "scale"
    assert cause.factor == pytest.approx(0.7713, rel=0.01)
