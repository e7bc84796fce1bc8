# SPDX-License-Identifier: BSD-3-Clause
"""The page "A model that does not fit", on a small model."""

from __future__ import annotations

import re
from pathlib import Path

import attnscale as at
import numpy as np
import pytest
from pages import ROOT

pytestmark = pytest.mark.torch
PAGE = ROOT / "docs" / "how-to" / "does-not-fit.md"


def test_the_page_writes_layers_and_reports_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
    config = transformers.LlamaConfig(hidden_size=32, intermediate_size=32, vocab_size=99, **sizes)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    tokens = torch.randint(99, (1, 512))
    with torch.inference_mode():
        before = model(input_ids=tokens).logits
        with at.torch.record(model, statistics="entropy") as log:
            model(input_ids=tokens)
    names = {"model": model, "tokens": tokens}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
    found = names["found"]
    assert [path.name for path in sorted((tmp_path / "layers").iterdir())] == [
        f"layer_{layer:02}.safetensors" for layer in range(3)
    ]
    assert (tmp_path / "model.html").exists()
    recorded = np.concatenate([each[0, :, -64:].mean(-1) for each in log["entropy"].values()])
    np.testing.assert_allclose(found.entropy[:, -1, 0], recorded, atol=1e-4)
    with torch.inference_mode():
        assert torch.equal(model(input_ids=tokens).logits, before)
