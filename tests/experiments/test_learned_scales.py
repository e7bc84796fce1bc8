# SPDX-License-Identifier: BSD-3-Clause
"""T5: models whose scale is fixed, learned, or learned for each head."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attnscale.experiments import Training  # noqa: E402
from studies.data.scale_tasks import Recall, Tagging  # noqa: E402
from studies.data.tags import OTHER, TAGS, tagged, tokens_of  # noqa: E402
from studies.learned_scales import LearnedScales  # noqa: E402
from studies.models.scaled_heads import SCALES, Heads, Tagger  # noqa: E402

pytestmark = pytest.mark.torch


def heads(scale="per_head", qk_norm=False, rotary=False, implementation="attnscale", width=12, **more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Heads(width, 2, 6, scale, implementation, qk_norm=qk_norm, rotary=rotary, **more)


def inputs(width=12):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 4, width, generator=generator), torch.randn(3, 9, width, generator=generator)


def test_a_scale_per_head_is_a_part_of_the_projection():
    layer, scales = heads(), torch.tensor([0.4, 3.0])
    layer.factor.data.copy_(scales)
    output = layer(*inputs())
    merged = heads()
    merged.query.weight.data.view(2, 6, 12).mul_(scales.view(2, 1, 1))
    assert torch.allclose(merged(*inputs()), output, atol=1e-6)
    normed, other = heads(qk_norm=True), heads(qk_norm=True)
    normed.factor.data.copy_(scales)
    other.query.weight.data.view(2, 6, 12).mul_(scales.view(2, 1, 1))  # which the norm takes away
    assert (normed(*inputs()) - other(*inputs())).abs().max() > 0.05


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("qk_norm", [False, True])
def test_scores_begin_as_the_scale_says(scale, qk_norm):
    width = 64
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = Heads(width, 2, 16, scale, "attnscale", qk_norm=qk_norm, rotary=False)
    generator = torch.Generator().manual_seed(1)
    draws = torch.randn(200, 4, width, generator=generator), torch.randn(200, 50, width, generator=generator)
    expected = 4.0 if scale.startswith("unscaled") and (qk_norm or scale == "unscaled") else 1.0
    assert torch.allclose(layer.spread(*draws), torch.full((2,), expected), rtol=0.15)
    cosine = 16 if qk_norm else 1
    start = (1.0 if scale.startswith("unscaled") else 0.25) * cosine
    assert torch.allclose(layer.scales(50), torch.full((2,), start))


def test_a_scale_that_grows_with_ln_n():
    draws = inputs()
    for n, factor in ((9, 1.0), (3, 2.0)):  # log_3(9) = 2
        layer, plain = heads(qk_norm=True, law=f"log_n(base={n})"), heads(qk_norm=True, start=factor)
        assert torch.allclose(layer(*draws), plain(*draws), atol=1e-6)
        assert torch.allclose(layer.spread(*draws), plain.spread(*draws))
        assert torch.allclose(layer.scales(9), plain.scales(9))


def test_rows_and_their_entropy():
    layer = heads(rotary=True)
    plain = layer(*inputs())
    layer.watched = True
    assert torch.allclose(layer(*inputs()), plain, atol=1e-6)
    query, key = layer.projected(*inputs())
    weights = (query @ key.mT / 6**0.5).softmax(-1)
    assert torch.allclose(layer.entropy, torch.special.entr(weights).sum(-1), atol=1e-5)


def test_recall_has_one_answer_of_two_halves():
    task = Recall(8, 16)
    (query, items), targets = task.batch(16, 5000, torch.Generator().manual_seed(0))
    found = (items[..., :8] - query[..., :8]).square().sum(-1).argmin(-1)
    assert torch.equal(items[torch.arange(5000), found, 8:], targets[:, :8])
    assert torch.allclose(items[..., 8:].mean(1) * 4, targets[:, 8:])
    assert targets.std(0).sub(1).abs().max() < 0.05
    assert torch.allclose(task.errors(torch.zeros_like(targets), targets), torch.ones(2))
    assert torch.equal(task.errors(targets, targets), torch.zeros(2))


def test_names_and_their_tags():
    source = "class A(B, metaclass=M):\n    def f(self, *rest: int, **more):  # x\n"
    source += '        return f"{self}".join(rest)\n'
    tokens, tags = tokens_of(source)
    named = [TAGS[tag] for tag in tags if tag != OTHER]
    assert named == [
        *("definition", "name", "keyword", "name", "definition", "parameter", "parameter", "name"),
        *("parameter", "attribute", "name"),
    ]
    assert len({int(token) for token, tag in zip(tokens, tags, strict=True) if tag != OTHER}) == 1


def test_what_is_tested_was_not_trained_on():
    train, test = tagged(False), tagged(True)
    assert not set(train.facts["train_modules"]) & set(test.facts["test_modules"])
    assert train.tokens.max() < train.vocabulary
    for part in (train, test):
        assert (np.bincount(part.tags[part.tags != OTHER], minlength=len(TAGS)) > 50).all()
    task = Tagging(8)
    tokens, tags = task.batch(20, 4, torch.Generator().manual_seed(0), held_out=True)
    right = torch.nn.functional.one_hot(tags.clamp(min=0), len(TAGS)).float()
    assert float(task.errors(right, tags).nansum()) == 0
    assert tokens.shape == (4, 20)


def small(**changes):
    sizes = {"head_dim": 4, "n": 8, "n_long": 16, "steps": 100, "tuning_steps": 5, "batch": 4, "test": 400}
    return LearnedScales(**{**sizes, "models": ("per_head", "per_head-norm"), **changes})


def test_programs_agree_on_the_losses():
    studies = [small(attention=each, tasks=("recall",)) for each in ("attnscale", "torch")]
    ours, theirs = (each.run(seeds=1, progress=False) for each in studies)
    first = slice(0, 10)
    assert np.allclose(ours.arrays["loss"][..., first], theirs.arrays["loss"][..., first], rtol=1e-4)
    assert np.allclose(ours.arrays["keys"], theirs.arrays["keys"], rtol=2e-2)
    assert np.isfinite(ours.arrays["error"]).all()


def test_fixed_factors_and_a_growth_that_only_longer_rows_see():
    models = ("8-norm", "64-norm", "per_head-norm", "per_head_ln_n-norm")
    found = small(models=models, tasks=("recall",)).run(seeds=1, progress=False)
    scales = found.select("scale", task="recall", seed=0)
    assert (scales[:2] == [[8, 8], [64, 64]]).all()
    constant, growing = (found.select("error", model=each)[0, 0] for each in models[2:])
    np.testing.assert_allclose(constant[0], growing[0], rtol=1e-3)  # at the n of the training
    assert abs(constant[1] - growing[1]).max() > 1e-3


def test_programs_agree_on_a_tagger():
    tokens = torch.randint(30, (2, 20), generator=torch.Generator().manual_seed(0))
    found = []
    for implementation in ("attnscale", "torch"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            options = {"heads": 2, "head_dim": 4, "scale": "one", "qk_norm": True, "rotary": True}
            tagger = Tagger(8, 30, len(TAGS), implementation=implementation, **options)
        loss = tagger(tokens).square().sum()
        loss.backward()
        found.append((loss.detach(), tagger.heads.factor.grad, tagger.heads.query.weight.grad))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    assert found[0][1].abs() > 0


def test_tuning_moves_the_scales_alone():
    from studies.learned_scales import _ScaledModel

    bench = _ScaledModel(small(), {"task": "recall", "model": "one"}, Training(0))
    before = [each.detach().clone() for each in bench.weights]
    factor = bench.heads.free()
    bench.fit(16, [{"params": [factor], "weight_decay": 0.0}], 5, "tune")
    assert all(torch.equal(one, other) for one, other in zip(before, bench.weights, strict=True))
    assert factor.shape == (2,)
    assert factor[0] != factor[1]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("models", ("fixd",), "models must be"),
        ("steps", 99, "steps must be at least 100, got 99"),
        ("n", 0, "n must be at least 1, got 0"),
        ("dtype", "float16", "dtype must be one of 'float32', 'bfloat16', got 'float16'"),
    ],
)
def test_bad_fields_are_named(field, value, said):
    with pytest.raises(ValueError, match=said):
        LearnedScales(**{field: value})
