"""Heads of several families (T27)."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import attnscale as at  # noqa: E402
from studies import stored  # noqa: E402
from studies.hybrids import Hybrids, _places  # noqa: E402
from studies.models.families import FAMILIES, check_variant, effective_keys, mix_heads  # noqa: E402

pytestmark = pytest.mark.torch

SMALL = replace(Hybrids.reduced(), steps=3, windows=4, n=24, batch=4, width=32, most_bytes=50_000)
VARIANTS = ("4 dot", "4 efficient", "4 linear", "4 sparse", "dot + 3 efficient", "2 dot + 2 efficient")


def rows(n=20, heads=4):
    return torch.randn(3, 2, heads, n, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_both_programs_agree_with_gradients(family, causal):
    found = []
    for implementation in ("attnscale", "torch"):
        given = rows().requires_grad_()
        output = mix_heads(*given, (family,) * 4, causal=causal, implementation=implementation)
        output.square().sum().backward()
        found.append((output.detach(), given.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("implementation", ["attnscale", "torch"])
def test_an_early_sum_far_below_the_last_key_has_a_gradient(implementation):
    """A channel that grows from key to key has e^-60 for the first, in float32."""
    query, key, value = (x[..., :4, :].float() for x in rows(heads=1))
    key = (key + torch.tensor([-60.0, -40.0, -20.0, 0.0])[:, None]).requires_grad_()
    query.requires_grad_()
    output = mix_heads(query, key, value, ("efficient",), causal=True, implementation=implementation)
    output.square().sum().backward()
    torch.testing.assert_close(output[..., :1, :], value[..., :1, :])  # the first row sees one key
    for gradient in (query.grad, key.grad):
        assert torch.isfinite(gradient).all()


def test_each_head_is_of_its_family():
    q, k, v = rows()
    families = check_variant("variants", "dot + 2 efficient + linear")
    assert families == ("dot", "efficient", "efficient", "linear")
    together = mix_heads(q, k, v, families, causal=True)
    for head, family in enumerate(families):
        one = slice(head, head + 1)
        alone = mix_heads(q[:, one], k[:, one], v[:, one], (family,), causal=True)
        torch.testing.assert_close(together[:, one], alone)


@pytest.mark.parametrize("causal", [False, True])
def test_effective_keys(causal):
    q, k, _ = rows()
    found = effective_keys(q, k, ("dot", "sparse", "efficient", "linear"), causal=causal)
    entropy = at.attention_entropy(q.numpy(), k.numpy(), is_causal=causal)
    np.testing.assert_allclose(found[:, 0], np.exp(entropy)[:, 0])
    if not causal:
        weights = at.variants.efficient_attention_weights(q[:, 2].numpy(), k[:, 2].numpy())
        np.testing.assert_allclose(found[:, 2], np.exp(-(weights * np.log(weights)).sum(-1)))
    assert (found <= torch.arange(1, 21) + 1e-9).all() or not causal


def test_ours_and_pytorch_train_alike(tmp_path):
    study = replace(SMALL, variants=VARIANTS)
    ours, theirs = (
        each.run(seeds=1, progress=False, store=tmp_path / each.attention)
        for each in (study, replace(study, attention="torch"))
    )
    assert ours.complete
    for name in ours.variables:
        np.testing.assert_allclose(ours.arrays[name], theirs.arrays[name], rtol=1e-4)
    nll = ours.select("nll", seed=0)
    assert len(np.unique(nll)) == len(VARIANTS)
    by_position = ours.select("nll_by_position", seed=0)
    sizes = [len(part) for part in _places(study.n)]
    np.testing.assert_allclose(by_position @ sizes / study.n, nll)
    assert sum(sizes) == study.n


def test_models_of_several_widths_and_numbers_of_heads():
    study = replace(SMALL, variants=("4 dot", "dot + 15 efficient"), widths=(16, 32))
    result = study.run(seeds=1, progress=False)
    assert result.complete
    assert result.axes["width"] == (16, 32)
    keys = result.select("effective_keys", seed=0)  # variant, width, layer, head
    assert np.isfinite(keys[1]).all()
    assert np.isfinite(keys[0, ..., :4]).all()
    assert np.isnan(keys[0, ..., 4:]).all()
    assert len(np.unique(result.select("nll"))) == 4


def test_bad_studys():
    with pytest.raises(ValueError, match="divides the width 12, got 'dot \\+ 7 efficient' with 8"):
        replace(SMALL, variants=("4 dot", "dot + 7 efficient"), widths=(32, 12))
    with pytest.raises(ValueError, match="widths must be at least 1, got 0"):
        replace(SMALL, widths=(0,))
    with pytest.raises(ValueError, match="dots"):
        replace(SMALL, variants=("4 dots",))


@pytest.mark.maintainer
@pytest.mark.slow
def test_the_reduced_run_is_within_the_stored_error_bars():
    kept = stored("hybrids", "reduced")["nll"]
    again = Hybrids.reduced().run(seeds=[100], progress=False)["nll"].value
    spread = kept.standard_error * np.sqrt(kept.seeds + 1)  # of one model, and of the mean
    assert (abs(again - kept.value) <= 4 * spread).all()
