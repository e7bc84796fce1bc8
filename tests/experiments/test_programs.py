# SPDX-License-Identifier: BSD-3-Clause
"""The two programs of attention agree: values, entropies and gradients."""

import pytest

torch = pytest.importorskip("torch")

from attnscale.experiments._attention import attend, attend_rows  # noqa: E402
from attnscale.torch import Scaled  # noqa: E402

pytestmark = pytest.mark.torch


def inputs(n=19):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, 3, n, 8, generator=generator).mul(1.5).requires_grad_() for _ in range(3)]


def both(**options):
    found = []
    for implementation in ("attnscale", "torch"):
        tensors = inputs()
        output = attend(*tensors, implementation=implementation, **options)
        (output * torch.arange(8)).sum().backward()
        with torch.no_grad():
            rows, entropy = attend_rows(*tensors, implementation=implementation, **options)
        assert torch.allclose(rows, output, atol=2e-6)
        found.append((output.detach(), entropy, *(each.grad for each in tensors)))
    return found


MASK = torch.ones(19, 19, dtype=torch.bool).tril(3)


@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("law", "normalizer"),
    [
        ("standard", "softmax"),
        ("log_n(base=7)", "softmax"),
        ("natural_log_n", "softmax"),
        ("log_n_from_training(train_length=4)", "softmax"),
        (torch.tensor([[0.1], [0.4], [0.9]]), "softmax"),
        (Scaled("log_n", torch.tensor([0.5, 1.0, 2.0])), "sparsemax"),
        ("standard", "entmax(alpha=1.5)"),
        ("2 * standard", "sparsemax"),
    ],
)
def test_programs_agree(law, normalizer, causal, mask):
    ours, theirs = both(law=law, normalizer=normalizer, causal=causal, mask=mask)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=3e-5, rtol=1e-4)


def test_what_pytorch_does_not_compute_is_refused():
    with pytest.raises(ValueError, match="normalizer must be softmax, sparsemax or entmax"):
        attend(*inputs(), normalizer="sigmoid", implementation="torch")
    with pytest.raises(ValueError, match="law must have one n a row"):
        attend(*inputs(), law="critical_scale", implementation="torch")


def test_the_entropy_of_masked_keys_has_a_gradient():
    found = []
    for implementation in ("attnscale", "torch"):
        tensors = inputs()
        attend_rows(*tensors, causal=True, implementation=implementation)[1].square().sum().backward()
        found.append(tensors[0].grad)
    assert torch.allclose(*found, atol=1e-4)
