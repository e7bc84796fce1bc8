# SPDX-License-Identifier: BSD-3-Clause
"""The window of each layer, by model type; test_audit_oracle.py compares it with the masks of models."""

from __future__ import annotations

from typing import Any

import attnscale as at
import pytest

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 6}


def windows(kind: str, **keys: Any) -> list[int | None]:
    plan = at.audit.resolve({**SIZES, **keys, "model_type": kind})
    return [plan.window(layer.index) for layer in plan.layers]


@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        ("llama", {}, [None] * 6),
        ("mistral", {"sliding_window": 4096}, [4096] * 6),
        ("mistral", {"sliding_window": None}, [None] * 6),
        ("gemma2", {}, [4096, None] * 3),
        ("gemma3_text", {"sliding_window": 512}, [512] * 5 + [None]),
        ("gemma3_text", {"sliding_window": 512, "use_bidirectional_attention": True}, [513] * 5 + [None]),
        ("qwen2", {"sliding_window": 32, "max_window_layers": 4}, [None] * 6),
        (
            "qwen2",
            {"sliding_window": 32, "max_window_layers": 4, "use_sliding_window": True},
            [None] * 4 + [32] * 2,
        ),
        ("qwen3_moe", {"sliding_window": 32}, [None] * 6),
        ("qwen3_moe", {"sliding_window": 32, "use_sliding_window": True}, [32] * 6),
        ("llama4_text", {}, [8192] * 3 + [None] + [8192] * 2),
        ("modernbert", {}, [None, 129, 129] * 2),
        ("modernbert-decoder", {}, [None, 64, 64] * 2),
        ("neomme", {}, [513, 2049, 513, 2049, 513, None]),
        ("neomme", {"per_layer_config": {"1": {"sliding_window": 9}}}, [513, 19, 513, 513, 513, None]),
        ("gpt_neo", {"attention_types": [[["global", "local"], 3]]}, [None, 256] * 3),
        ("longformer", {"attention_window": [2, 4, 6, 8, 10, 12]}, [3, 5, 7, 9, 11, 13]),
        ("t5gemma", {"sliding_window": 16}, None),
    ],
)
def test_window(kind: str, keys: dict[str, Any], expected: list[int | None] | None) -> None:
    if expected is None:  # both halves of one model: the decoder looks back, the encoder both ways
        half = {**SIZES, **keys, "model_type": "t5_gemma_module", "layer_types": ["sliding_attention"] * 6}
        config = {"model_type": kind, "encoder": half, "decoder": half}
        found = [at.audit.resolve(config, part=part).window(0) for part in ("decoder", "encoder")]
        assert found == [16, 33]
        return
    assert windows(kind, **keys) == expected


def test_it_is_shown_and_compared() -> None:
    config = {**SIZES, "model_type": "gemma2", "sliding_window": 512}
    plan = at.audit.resolve(config)
    assert "window: sliding_window = 512" in plan.explain()
    assert "window of 512 keys" in repr(plan.layer(0))
    assert plan.to_dict()["layers"][0]["window"] == 512
    (differs,) = plan.differences(at.audit.resolve({**config, "sliding_window": 256}))
    assert (differs.layers, differs.what, differs.here, differs.there) == ((0, 2, 4), "window", 512, 256)
    assert differs.keys_here == ("sliding_window = 512",)
    assert plan.to_pandas()["window"].tolist()[:1] == [512.0]


def test_a_list_of_layers_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="attention_types must describe 6 layers, got 4"):
        windows("gpt_neo", attention_types=[[["global", "local"], 2]])
    with pytest.raises(ValueError, match="attention_windows must have one entry for each of 6 layers, got 2"):
        windows("ultrabert", attention_windows=[0, 128])
