# SPDX-License-Identifier: BSD-3-Clause
"""Collapse of entropy, and guards against it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attnscale.experiments import Training  # noqa: E402
from studies.collapse import Collapse, _GuardedModel  # noqa: E402
from studies.data.tags import tagged  # noqa: E402
from studies.models.spectral import SpectralScale, reparametrise  # noqa: E402

pytestmark = pytest.mark.torch


def small(**changes):
    sizes = {"layers": 2, "width": 16, "heads": 2, "n": 16, "steps": 20, "batch": 4, "test": 8}
    return Collapse(**{**sizes, **changes})


def test_programs_agree_on_the_losses():
    options = {"learning_rates": (0.003,), "floor": 0.95}
    studies = [small(attention=each, **options) for each in ("attnscale", "torch")]
    ours, theirs = (each.run(seeds=1, progress=False) for each in studies)
    for name in ("loss", "entropy", "test_loss"):
        assert np.allclose(ours.arrays[name], theirs.arrays[name], rtol=2e-3)


def test_the_penalty_is_of_rows_below_the_floor():
    bench = _GuardedModel(small(floor=0.5), "entropy_floor", Training(0))
    even = bench.even
    bench.entropies = [even.expand(2, 3, -1), 0.5 * even.expand(2, 3, -1)]
    assert float(bench.penalty()) == 0
    bench.entropies = [0.25 * even.expand(2, 3, -1), even.expand(2, 3, -1)]
    assert float(bench.penalty()) == pytest.approx(0.125 * float(even.mean()))


def test_the_penalty_raises_the_entropy():
    def lowest(guard):
        study = small(learning_rates=(0.05,), floor=0.8, floor_weight=10.0)
        found = study.measure({"guard": guard, "learning_rate": 0.05}, 0, Training(0))
        return found["entropy"][1:].min()

    assert lowest("entropy_floor") > lowest("none") + 0.3


def test_the_loss_of_each_text_is_kept_with_its_file():
    found = small(guards=("none",), learning_rates=(0.01,)).run(seeds=2, progress=False)
    by_text = found.select("test_loss_by_text")
    np.testing.assert_allclose(by_text.mean(-1), found.select("test_loss"), rtol=1e-5)
    files = found.select("text_file")
    assert (files == files[0, 0, 0]).all()  # the same texts for each seed
    part = tagged(True)
    assert set(files.ravel()) <= set(range(len(part.facts["test_modules"])))
    bench = _GuardedModel(small(), "none", Training(0))
    windows = np.lib.stride_tricks.sliding_window_view(part.tokens, 17)
    for text, file in zip(bench.probe.numpy(), bench.probe_files, strict=True):
        assert file in part.files[np.flatnonzero((windows == text).all(-1))]


def test_a_loss_that_is_not_finite_has_diverged(monkeypatch):
    monkeypatch.setattr(_GuardedModel, "loss", lambda bench, step: bench.model.norm.weight.sum() * torch.nan)
    found = small().measure({"guard": "none", "learning_rate": 0.01}, 0, Training(0))
    assert found["diverged"] == 1
    assert np.isnan(found["test_loss_by_text"]).all()
    assert found["entropy"].shape == (21, 2)


def test_weights_have_the_norm_that_is_learned():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = torch.nn.Sequential(torch.nn.Linear(12, 7), torch.nn.LayerNorm(7))
        reparametrise(layer)
    for _ in range(50):
        _ = layer[0].weight
    norm = torch.linalg.matrix_norm(layer[0].weight.detach(), 2)
    assert float(norm) == pytest.approx(1, abs=1e-4)
    scale = layer[0].parametrizations.weight[0]
    assert isinstance(scale, SpectralScale)
    scale.gamma.data.fill_(3.0)
    layer.eval()
    held = scale.left.clone()
    assert float(torch.linalg.matrix_norm(layer[0].weight.detach(), 2)) == pytest.approx(3, abs=1e-3)
    assert torch.equal(held, scale.left)
    layer[0].weight.sum().backward()
    assert scale.gamma.grad is not None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("guards", ("nothing",), "guards must be"),
        ("steps", 30, "steps must be a multiple of 20, got 30"),
        ("width", 60, "width must be a multiple of 2 \\* heads = 8, got 60"),
        ("floor", 1.0, "floor must be at least 0 and below 1, got 1.0"),
    ],
)
def test_bad_fields_are_named(field, value, said):
    with pytest.raises(ValueError, match=said):
        Collapse(**{field: value})
