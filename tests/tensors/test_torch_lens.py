# SPDX-License-Identifier: BSD-3-Clause
"""at.torch.record on a HookedTransformer, against the weights that the model itself makes.

The package transformer-lens has one until its version 3. Where it is not installed, test_torch_watch.py has
attention as it writes it.
"""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

# TransformerLens, transformers and torch warn about their own affairs while they load and run.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]

HEADS, DIM, WIDTH, VOCABULARY = 4, 8, 32, 50
IDS = torch.arange(24).repeat(2, 1) * torch.tensor([[7], [11]]) % VOCABULARY
CASES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "bidirectional": {"attention_dir": "bidirectional"},
    "without a scale": {"use_attn_scale": False},
    "soft-cap": {"attn_scores_soft_cap": 0.5},
    "grouped keys": {"n_key_value_heads": 2},
    "rotary": {"positional_embedding_type": "rotary", "rotary_dim": DIM},
    "alibi": {"positional_embedding_type": "alibi"},
    "window": {"use_local_attn": True, "window_size": 5, "attn_types": ["global", "local"]},
}


def build(**options: Any) -> Any:
    """A model of two layers whose scores differ from key to key."""
    transformer_lens = pytest.importorskip("transformer_lens")
    try:
        hooked = transformer_lens.HookedTransformer
    except ImportError:
        pytest.skip("transformer-lens 4 and later have no HookedTransformer")
    sizes = {"n_layers": 2, "d_model": WIDTH, "n_ctx": 64, "d_head": DIM, "n_heads": HEADS}
    more = {"d_vocab": VOCABULARY, "act_fn": "gelu", "seed": 0}
    model = hooked(transformer_lens.HookedTransformerConfig(**sizes, **more, **options))
    with torch.no_grad():
        for each in model.parameters():
            torch.nn.init.normal_(each, std=0.3)
    return model.eval()


def patterns(model: Any, call: Any) -> np.ndarray:
    """The weights that the model makes, (layers, batch, heads, n, n)."""
    found: list[Any] = []
    hooks = [
        block.attn.hook_pattern.register_forward_hook(lambda _, args, out: found.append(out))
        for block in model.blocks
    ]
    call()
    for hook in hooks:
        hook.remove()
    return torch.stack(found).double().numpy()


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_recorded_is_what_its_weights_say(case: str, padded: bool) -> None:
    model = build(**CASES[case])
    mask = torch.ones_like(IDS)
    mask[1, :6] = 0  # in front
    given = {"attention_mask": mask} if padded and case != "bidirectional" else {}
    with torch.no_grad():
        before = model(IDS, **given)
        p = patterns(model, lambda: model(IDS, **given))
        statistics = ("entropy", "concentration", "max_weight")
        with at.torch.record(model, statistics=statistics, laws=["standard"]) as log:
            after = model(IDS, **given)
    assert torch.equal(before, after)
    entropy = -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1)
    np.testing.assert_allclose(log.entropy, entropy, atol=2e-5)
    np.testing.assert_allclose(log["concentration"], (p**2).sum(-1), atol=2e-5)
    np.testing.assert_allclose(log["max_weight"], p.max(-1), atol=2e-5)
    real = mask.bool().numpy() if given else np.ones(IDS.shape, bool)
    of_texts = np.moveaxis(entropy, 2, -1)[:, real].mean(1)
    np.testing.assert_allclose(log.mean_entropy("standard"), of_texts, atol=2e-5)
    assert log.modules == ("blocks.0.attn", "blocks.1.attn")
    assert set(log.key_heads.values()) == {CASES[case].get("n_key_value_heads") or HEADS}
