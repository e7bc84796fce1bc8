# SPDX-License-Identifier: BSD-3-Clause
"""at.torch.record on a HookedTransformer, against the weights that the model itself makes.

The package transformer-lens has one until its version 3. Where it is not installed, a model of this file
stands for it, which has the same hook points, config and call of attention.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

# TransformerLens, transformers and torch warn about their own affairs while they load and run.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("fixed_seed"),
]

HEADS, DIM, WIDTH, VOCABULARY = 4, 8, 32, 50
IDS = torch.arange(24).repeat(2, 1) * torch.tensor([[7], [11]]) % VOCABULARY
USUAL = {
    "positional_embedding_type": "standard",
    "attention_dir": "causal",
    "use_attn_scale": True,
    "attn_scores_soft_cap": -1.0,
    "n_key_value_heads": None,
    "rotary_dim": None,
    "window_size": None,
    "attn_types": None,
    "use_local_attn": False,
    "use_logn_attn": False,
}
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


class Point(torch.nn.Module):
    """A place in the model where a tensor passes."""

    def forward(self, x: Any) -> Any:
        return x


class Attention(torch.nn.Module):
    """Attention with the hook points, the options and the call of TransformerLens."""

    def __init__(self, cfg: Any, kind: str) -> None:
        super().__init__()
        self.cfg, self.attn_type = cfg, kind
        self.attn_scale = math.sqrt(DIM) if cfg.use_attn_scale else 1.0
        kv_heads = cfg.n_key_value_heads or HEADS
        sizes = {"q": HEADS, "k": kv_heads, "v": kv_heads}
        self.project = torch.nn.ModuleDict({n: torch.nn.Linear(WIDTH, h * DIM) for n, h in sizes.items()})
        self.out = torch.nn.Linear(HEADS * DIM, WIDTH)
        for name in ("hook_q", "hook_k", "hook_v", "hook_rot_q", "hook_rot_k", "hook_pattern"):
            setattr(self, name, Point())
        slopes = 2.0 ** -torch.arange(1, HEADS + 1)
        distance = torch.arange(64)[None] - torch.arange(64)[:, None]
        self.alibi = slopes[:, None, None] * distance.clamp(max=0)

    def forward(self, query_input: Any, *, attention_mask: Any = None, **_: Any) -> Any:
        cfg, n = self.cfg, query_input.shape[1]
        q, k, v = (
            getattr(self, f"hook_{name}")(layer(query_input).unflatten(-1, (-1, DIM)))
            for name, layer in self.project.items()
        )
        if cfg.positional_embedding_type == "rotary":
            q, k = self.hook_rot_q(rotated(q)), self.hook_rot_k(rotated(k))
        k, v = (each.repeat_interleave(HEADS // each.shape[2], 2) for each in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.attn_scale
        if cfg.attn_scores_soft_cap > 0:
            scores = cfg.attn_scores_soft_cap * torch.tanh(scores / cfg.attn_scores_soft_cap)
        if cfg.positional_embedding_type == "alibi":
            scores = scores + self.alibi[:, :n, :n]
        if cfg.attention_dir == "causal":
            seen = torch.ones(n, n, dtype=torch.bool).tril()
            if self.attn_type == "local":
                seen = seen.triu(1 - cfg.window_size)
            if attention_mask is not None:
                seen = seen & attention_mask[:, None, None].bool()
            scores = scores.masked_fill(~seen, -torch.inf)
        pattern = self.hook_pattern(scores.softmax(-1).nan_to_num())
        return self.out(torch.einsum("bhqk,bkhd->bqhd", pattern, v).flatten(2))


def rotated(x: Any) -> Any:
    angle = torch.arange(x.shape[1])[:, None, None] / 100.0 ** torch.linspace(0, 1, DIM // 2)
    one, other = x.chunk(2, -1)
    return torch.cat([one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()], -1)


class Block(torch.nn.Module):
    def __init__(self, cfg: Any, kind: str) -> None:
        super().__init__()
        self.attn = Attention(cfg, kind)

    def forward(self, x: Any, mask: Any) -> Any:
        return x + self.attn(query_input=x, key_input=x, value_input=x, attention_mask=mask)


class Model(torch.nn.Module):
    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        kinds = cfg.attn_types or ["global", "global"]
        self.blocks = torch.nn.ModuleList([Block(cfg, kind) for kind in kinds])

    def forward(self, ids: Any, attention_mask: Any = None) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, attention_mask)
        return x


def build(package: str, **options: Any) -> Any:
    """A model of two layers whose scores differ from key to key."""
    if package == "own":
        model = Model(SimpleNamespace(**USUAL | options))
    else:
        transformer_lens = pytest.importorskip("transformer_lens")
        try:
            hooked = transformer_lens.HookedTransformer
        except ImportError:
            pytest.skip("transformer-lens 4 and later have no HookedTransformer")
        sizes = {"n_layers": 2, "d_model": WIDTH, "n_ctx": 64, "d_head": DIM, "n_heads": HEADS}
        more = {"d_vocab": VOCABULARY, "act_fn": "gelu", "seed": 0}
        cfg = transformer_lens.HookedTransformerConfig(**sizes, **more, **options)
        model = hooked(cfg)
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


@pytest.mark.parametrize("package", ["own", "transformer-lens"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_recorded_is_what_its_weights_say(case: str, padded: bool, package: str) -> None:
    model = build(package, **CASES[case])
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


def test_no_hook_is_left_on_the_model() -> None:
    model = build("own")
    with pytest.raises(TypeError), at.torch.record(model):
        model(IDS, attention_mask=3)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
