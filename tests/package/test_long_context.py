# SPDX-License-Identifier: BSD-3-Clause
"""The recipe of docs/how-to/long-context.md: a loss with distances clipped, of models of transformers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "long-context.md"

if not PAGE.exists():
    pytest.skip("not a source tree", allow_module_level=True)

# transformers and torch warn about their own affairs.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "original_max_position_embeddings": 16}


def a_model(kind: str = "Llama", **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **options)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def run_page(model: Any, train_length: int, n: int = 64) -> dict[str, Any]:
    """The names that the recipe of the page leaves, on a random text."""
    (recipe,) = re.findall(r"```python\n(import torch\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    torch.manual_seed(1)
    names = {"model": model, "tokens": torch.randint(1, 50, (1, n)), "train_length": train_length}
    exec(compile(recipe, str(PAGE), "exec"), names)
    return names


@pytest.mark.parametrize(
    ("kind", "options"),
    [("Llama", {"rope_parameters": YARN}), ("Mistral", {"sliding_window": None}), ("Qwen3", {"head_dim": 8})],
)
def test_where_no_distance_is_too_long_nothing_changes(kind: str, options: dict[str, Any]) -> None:
    names = run_page(a_model(kind, **options), train_length=64)
    clipped = names["losses"](names["tokens"])
    names["model"].set_attn_implementation("eager")
    torch.testing.assert_close(clipped, names["losses"](names["tokens"]), rtol=0, atol=2e-6)


def test_a_far_key_is_seen_at_the_largest_distance_of_training() -> None:
    """Scores by complex numbers: the pair of channels c is turned by the distance, at most 15."""
    model = a_model(rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    names = run_page(model, train_length=16)
    q, k, v = torch.randn(3, 1, 2, 40, 8)
    cos, sin = (x[:, None] for x in names["rotary"](q, torch.arange(40)[None]))
    turned = [names["turned"](x, cos, sin) for x in (q, k)]
    _, weights = names["clipped"](None, *turned, v, None, 8**-0.5)
    pairs = [x.numpy().astype(np.float64) for x in (q, k)]
    query, key = (x[0, :, :, :4] + 1j * x[0, :, :, 4:] for x in pairs)
    distance = np.arange(40)[:, None] - np.arange(40)
    angle = np.minimum(distance, 15)[..., None] * 100.0 ** (-np.arange(4) / 4)
    products = query[:, :, None] * key[:, None].conj() * np.exp(1j * angle)
    scores = np.where(distance >= 0, products.real.sum(-1) / np.sqrt(8), -np.inf)
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights[0], expected, atol=1e-6)


def test_the_three_losses_are_of_the_same_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """A model whose attention adds nothing has the same loss of a token wherever the text begins."""
    model = a_model()
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    names = run_page(model, train_length=16)
    assert names["whole"].shape == (64 - 16,)
    torch.testing.assert_close(names["windows"], names["whole"])
    assert len(set(re.findall(r"\((\d\.\d{3})", capsys.readouterr().out))) == 1
