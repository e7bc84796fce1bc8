# SPDX-License-Identifier: BSD-3-Clause
"""A12, trained: heads with one or two scales that find a needle and a majority at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attnscale import theory  # noqa: E402
from studies import stored  # noqa: E402
from studies import two_heads as study  # noqa: E402
from studies.data.tasks import CODE, LABELS, mixture  # noqa: E402
from studies.models.two_scales import TwoScales  # noqa: E402
from studies.two_heads import TwoHeads  # noqa: E402

pytestmark = pytest.mark.torch

VARIANTS = ("one: ssmax", "shared: pair", "two: split")
SMALL = TwoHeads(variants=VARIANTS, steps=4, batch=8, lengths=(16, 40), tests=50)


def model(*, factors=(1.0, 1.0), shared=False, laws=None, learned=False):
    laws = ["standard"] * len(factors) if laws is None else laws
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        own = {"laws": laws, "factors": factors, "learned": learned, "shared": shared}
        return TwoScales(CODE + LABELS + 2, LABELS + 2, width=16, implementation="attnscale", **own)


def rows(batch=30, n=21):
    return mixture(batch, n, torch.Generator().manual_seed(n))


def answers(of, drawn):
    with torch.no_grad():
        return of(drawn.query[:, None], drawn.tokens)[0]


@pytest.mark.parametrize("n", [2, 3, 16, 101])
def test_a_row_has_a_needle_and_a_majority(n):
    drawn = rows(400, n)
    code, label, bits = drawn.tokens.split((CODE, LABELS, 2), -1)
    nearest = (code @ drawn.query[:, :CODE, None]).argmax(1)[:, 0]
    assert (nearest == drawn.place).double().mean() > 0.97
    assert torch.equal(label[torch.arange(400), drawn.place].argmax(-1), drawn.label)
    assert not drawn.query[:, CODE:].any()
    ones = bits[..., 1].mean(1)
    assert torch.equal((ones > 0.5).long(), drawn.majority)
    assert (ones != 0.5).all()
    assert 0.3 < drawn.majority.double().mean() < 0.7


def test_heads_that_share_scores_and_scale_are_one_head():
    drawn, one = rows(), answers(model(factors=(3.0,)), rows())
    assert torch.allclose(answers(model(factors=(3.0, 3.0), shared=True), drawn), one, atol=1e-5)
    for other in (model(factors=(3.0, 0.2), shared=True), model(factors=(3.0, 3.0))):
        assert (answers(other, drawn) - one).abs().max() > 1e-3


def test_two_scales_are_a_part_of_projections_that_are_a_heads_own():
    scales = torch.tensor([5.0, 0.2])
    merged = model()
    for each in (merged.query.weight.data, merged.query.bias.data):
        each.unflatten(0, (2, 8)).mul_(scales.view(2, *[1] * each.ndim))
    assert torch.allclose(answers(merged, rows()), answers(model(factors=(5.0, 0.2)), rows()), atol=1e-5)


def test_each_head_has_its_law():
    split = model(laws=("log_n(base=16)", "standard"), factors=(2.0, 1.0))
    expected = np.array([2 * np.log(64) / np.log(16), 1.0]) / 8**0.5
    np.testing.assert_allclose(split.scale(64, 8)[:, 0], expected, rtol=1e-6)
    learned = model(factors=(1.0, 1.0), shared=True, learned=True)
    drawn = rows()
    learned(drawn.query[:, None], drawn.tokens)[0].square().sum().backward()
    assert (learned.factor.grad != 0).all()
    assert "factor" not in dict(split.named_parameters())


def test_what_is_measured_of_heads():
    of, drawn, spare = model(factors=(30.0, 0.0), shared=True), rows(), rows(1, 500).tokens
    with torch.no_grad():
        found = {name: values.numpy() for name, values in study._of_heads(of, drawn, spare).items()}
        scores, new = (
            of.scores(drawn.query[:, None], tokens, 21)[:, 0, 0].double().numpy()
            for tokens in (drawn.tokens, spare)
        )
    own = np.arange(21) == drawn.place.numpy()[:, None]
    others = scores[~own].reshape(30, 20)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    hidden = np.exp(others) / np.exp(others).sum(-1, keepdims=True)
    above, beta = scores[own] - new.mean(-1), new.std(-1, ddof=1)
    expected = {
        "weight": weights[own],
        "excess": 21 * (weights**2).sum(-1),
        "others_excess": 20 * (hidden**2).sum(-1),
        "variance": beta**2,
        "above": above,
        "excess_bound": theory.averaging_excess_bound(20, beta),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found[name][:, 0], values, rtol=1e-9, err_msg=name)
    up = above > 0
    assert up.sum() > 5
    bound = theory.needle_weight_bound(20, gap=above[up] / beta[up], beta=beta[up])
    np.testing.assert_allclose(found["weight_bound"][up, 0], bound, rtol=1e-9)
    flat = {"weight": 1 / 21, "excess": 1, "others_excess": 1, "variance": 0, "above": 0}
    for name, value in (flat | {"weight_bound": 1 / 21}).items():
        np.testing.assert_allclose(found[name][:, 1], value, atol=1e-9, err_msg=name)


def test_ours_and_pytorch_train_alike():
    studies = [replace(SMALL, attention=each) for each in ("attnscale", "torch")]
    ours, theirs = (each.run(seeds=1, progress=False) for each in studies)
    assert ours.complete
    for name, values in ours.arrays.items():
        np.testing.assert_allclose(theirs.arrays[name], values, rtol=5e-3, atol=5e-3, err_msg=name)


def test_the_sharper_head_is_the_first():
    found = replace(SMALL, variants=("shared: pair", "one: log_n")).run(seeds=2, progress=False)
    weight = found.select("weight", variant="shared: pair", n=16)
    assert (weight[:, 0] > weight[:, 1]).all()
    factor = found.select("factor", variant="shared: pair")
    np.testing.assert_allclose(np.sort(factor), [[0.2, 5.0]] * 2, rtol=1e-6)
    alone = found.select("entropy", variant="one: log_n")
    assert np.isfinite(alone[..., 0]).all()
    assert np.isnan(alone[..., 1]).all()
    both = found.select("accuracy", part="both")
    assert (both <= found.select("accuracy", part="needle")).all()
    assert (both <= found.select("accuracy", part="majority")).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": ("three: pair",)}, "variants"),
        ({"width": 15}, "width must be even, as two heads share it, got 15"),
        ({"lengths": (2,)}, r"train_length must be at least 2 and lengths at least 3, got 16 and \(2,\)"),
        ({"steps": 0}, "steps must be"),
        ({"code": 0}, "code must be"),
        ({"hidden": -1}, "hidden must be"),
        ({"dtype": "float64"}, "dtype must be one of"),
    ],
)
def test_bad_configs(changes, message):
    with pytest.raises(ValueError, match=message):
        TwoHeads(**changes)


@pytest.mark.maintainer
@pytest.mark.slow
def test_the_reduced_run_is_within_the_stored_error_bars():
    kept = stored("two_heads", "reduced")["accuracy"]
    again = TwoHeads.reduced().run(seeds=[100], progress=False)["accuracy"].value
    spread = kept.standard_error * np.sqrt(kept.seeds + 1)  # of one model, and of the mean
    assert (abs(again - kept.value) <= 4 * spread + 0.02).all()


def test_claims_are_about_the_models_that_there_are():
    whole = TwoHeads().criterion()
    assert [len(claim.contrasts) for claim in whole.claims] == [5, 5, 1, 1, 1]
    contrasts = [each for claim in whole.claims for each in claim.contrasts]
    assert {term[1]["n"] for each in contrasts for term in each.terms} == {1024}
    (claim,) = TwoHeads.reduced().criterion().claims
    assert [each.name for each in claim.contrasts] == ["shared: pair less one: log_n"]


def test_where_the_answer_has_hidden_units_what_is_kept_is_judged():
    design = replace(TwoHeads.answered(), steps=3, batch=8, lengths=(6, 384), tests=60)
    found = design.run(seeds=2, progress=False)
    accuracy = found.select("accuracy")
    with np.errstate(invalid="ignore", divide="ignore"):
        np.testing.assert_array_equal(found.select("kept"), accuracy[..., 1, :] / accuracy[..., 0, :])
    right, kept = found.verdict().claims
    at_first = accuracy[..., 0, 2].mean(1)
    np.testing.assert_allclose([each.value for each in right.findings], at_first)
    laws = ("standard", "log_n", "natural_log_n")
    assert [each.name for each in kept.findings] == [f"shared: pair less one: {law}" for law in laws]
    drawn = mixture(4000, 6, torch.Generator().manual_seed(0), 128)
    code = drawn.tokens[torch.arange(4000), drawn.place, :128]
    near = torch.nn.functional.cosine_similarity(drawn.query[:, :128], code, dim=-1)
    assert abs(near.mean() - 0.87) < 0.01  # at every length of the codes
