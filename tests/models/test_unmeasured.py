# SPDX-License-Identifier: BSD-3-Clause
"""Attention that a log cannot measure, unnamed axes, and softmaxes that are not attention."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.models.spellings import ALL, HEADS, WIDTH, Spelling, fused, products  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fixed_seed")]

BATCH, N = 2, 6


class Beside(nn.Module):
    """Measured attention, and another module."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.plain, self.other = products.Matmul(), other

    def forward(self, *args: Any) -> Any:
        return self.plain(torch.randn(BATCH, N, WIDTH)), self.other(*args)


def recorded(model: nn.Module, *args: Any, **options: Any) -> Any:
    with torch.no_grad(), at.torch.record(model, **options) as log:
        model(*args)
    return log


# ---- not measured


def test_fully_measured_models_have_nothing_unmeasured() -> None:
    log = recorded(products.Matmul(), torch.randn(BATCH, N, WIDTH))
    assert log.unmeasured == {}
    assert "not measured" not in str(log)


def test_a_module_that_cannot_be_measured_is_named_with_the_reason() -> None:
    """The log, its text, a selection and its report name it; it is not among modules with rows."""
    x = torch.randn(1, N, WIDTH)
    log = recorded(Beside(fused.Opaque()), x)
    assert [*log.unmeasured] == ["other"]
    assert "flash_attn_forward" in log.unmeasured["other"]
    assert log.modules == ("plain",)
    assert log.entropy.shape == (1, BATCH, HEADS, N)
    (line,) = [line for line in str(log).splitlines() if "not measured" in line]
    assert "other" in line
    assert log.select(modules="plain").unmeasured == {}
    assert [*log.select(modules=["plain", "other"]).unmeasured] == ["other"]


def test_each_call_of_such_a_module_is_named() -> None:
    other = fused.Opaque()

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.other = other

        def forward(self, x: Any) -> Any:
            return self.other(self.other(x))

    log = recorded(Beside(Twice()), torch.randn(BATCH, N, WIDTH))
    assert [*log.unmeasured] == ["other.other", "other.other#1"]


def test_a_model_that_has_nothing_else_says_so() -> None:
    """No rows, and the reason in place of "it has none"."""
    log = recorded(fused.Opaque(), torch.randn(BATCH, N, WIDTH))
    assert [*log.unmeasured] == [""]
    assert log.modules == ()


def test_a_report_names_missing_modules() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.other = products.Matmul(), fused.Opaque()

        def forward(self, x: Any) -> Any:
            return self.other(x + self.plain(x))

    log = recorded(Model(), torch.randn(1, N, WIDTH), keep_heads=True)
    report = log.report()
    assert report.about["seen, not measured"].startswith("other: its weights stay inside of")
    line = f"Seen, not measured: {report.about['seen, not measured']}."
    assert line in (each.strip() for each in str(report).splitlines())


def test_laws_and_heads_of_the_others_are_kept() -> None:
    log = recorded(Beside(fused.Opaque()), torch.randn(BATCH, N, WIDTH), laws=["log_n"], keep_heads=True)
    assert log.mean_entropy("log_n").shape == (1, HEADS)


def test_a_monitor_goes_on() -> None:
    model = Beside(fused.Opaque())
    monitor = at.torch.Monitor(model, every=1)
    with monitor.step():
        model(torch.randn(BATCH, N, WIDTH))
    assert monitor.modules == ["plain"]


@pytest.mark.parametrize(
    "kind", [each for each in ALL if each.unmeasured == "may"], ids=lambda kind: kind.__name__
)
def test_none_is_lost_alone_or_beside_another(kind: type[Spelling]) -> None:
    model = kind()
    args, kwargs = model.inputs(BATCH, N)
    beside = Beside(model)
    with torch.no_grad(), at.torch.record(beside) as log:
        beside.plain(torch.randn(BATCH, N, WIDTH))
        beside.other(*args, **kwargs)
    assert "other" in {*log.modules, *log.unmeasured}


# ---- axes


def test_calls_know_their_axes() -> None:
    log = recorded(products.Folded(), torch.randn(BATCH, N, WIDTH))
    assert log.calls[""].axes == "batch, heads, queries"


@pytest.mark.parametrize(
    "kind",
    [each for each in ALL if each.unmeasured == "no"],
    ids=lambda kind: kind.__name__,
)
def test_axes_are_known_where_the_module_made_them(kind: type[Spelling]) -> None:
    """Calls with unknown axes keep all rows; no mean per head is shown."""
    model = kind()
    args, kwargs = model.inputs(*next(iter(kind.sizes.values())))
    with torch.no_grad():
        rights = model.right(*args, **kwargs)
        with at.torch.record(model) as log:
            model(*args, **kwargs)
    for name, right in zip(log.modules, rights, strict=True):
        axes = log.calls[name].axes
        assert axes in ("batch, heads, queries", "unknown")
        if right.has_axes:
            assert axes == "batch, heads, queries"
        if axes == "unknown":
            assert log["entropy"][name].size == right.entropy().numel()
            assert all(np.isnan(each).all() for each in means(log.select(modules=name)))


def means(log: Any) -> Any:
    """The means by head of the only module; none where they are refused."""
    try:
        return [*log.mean_entropy()]
    except ValueError as error:
        return [] if "axes" in str(error) else [np.zeros(1)]


# ---- not attention


class Router(nn.Module):
    """Gates of experts by a layer, of which the best two are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])

    def forward(self, x: Any) -> Any:
        weights, which = self.gate(x).softmax(-1).topk(2, -1)
        made = torch.stack([expert(x) for expert in self.experts], -2)
        return (weights.unsqueeze(-1) * made.gather(-2, which.unsqueeze(-1).expand(*which.shape, WIDTH))).sum(
            -2
        )


class SoftExperts(Router):
    """All experts, mixed by einsum."""

    def forward(self, x: Any) -> Any:
        made = torch.stack([expert(x) for expert in self.experts], -2)
        return torch.einsum("bne,bned->bnd", self.gate(x).softmax(-1), made)


class Slots(nn.Module):
    """Soft mixture of experts: tokens to slots and back, by vectors that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Parameter(torch.randn(WIDTH, 5))

    def forward(self, x: Any) -> Any:
        logits = x @ self.phi
        return logits.softmax(-1) @ (logits.softmax(1).mT @ x)


class Memory(nn.Module):
    """Words of a learned book, by product."""

    def __init__(self) -> None:
        super().__init__()
        self.book = nn.Parameter(torch.randn(9, WIDTH))

    def forward(self, x: Any) -> Any:
        return (x @ self.book.T).softmax(-1) @ self.book


class Codebook(Memory):
    """Words of a learned book, by distance."""

    def forward(self, x: Any) -> Any:
        return (-torch.cdist(x, self.book[None])).softmax(-1) @ self.book


class Pooling(nn.Module):
    """Tokens pooled by weights of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, x: Any) -> Any:
        return (self.score(x).softmax(1) * x).sum(1)


class PoolingByProduct(Pooling):
    """Tokens pooled by weights of a layer, by a product."""

    def forward(self, x: Any) -> Any:
        return (self.score(x).softmax(1).mT @ x).squeeze(1)


class DynamicConvolution(nn.Module):
    """Kernels of a convolution for each token, by a layer and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        windows = functional.pad(x, (0, 0, 1, 1)).unfold(1, 3, 1)
        return (windows @ self.kernel(x).softmax(-1).unsqueeze(-1)).squeeze(-1)


class Efficient(nn.Module):
    """Queries and keys that are each normalised, and no product of them: linear attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return q.softmax(-1) @ (k.softmax(1).mT @ v)


class OfMoments(nn.Module):
    """A layer over products of features, whose softmax mixes what a layer made."""

    def __init__(self) -> None:
        super().__init__()
        self.of_moments, self.values = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 5 * WIDTH)

    def forward(self, x: Any) -> Any:
        gates = self.of_moments(x.mT @ x).mean(1).softmax(-1)
        return (gates[:, None] @ self.values(x.mean(1)).unflatten(-1, (5, WIDTH))).squeeze(1)


class Branches(nn.Module):
    """Branches of a convolution weighted against each other, as selective kernels are."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.gate = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Any) -> Any:
        made = torch.stack([self.one(x), self.other(x)], 1)
        gates = torch.stack([self.gate(x.mean(1)), self.gate(x.amax(1))], 1).softmax(1)
        return (gates[:, :, None] * made).sum(1)


class Classifier(nn.Module):
    """Classes, and the mean of their vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 7)

    def forward(self, x: Any) -> Any:
        return self.layer(x).softmax(-1) @ self.layer.weight


class InfoNCE(nn.Module):
    """A loss over the products of two views."""

    def forward(self, x: Any) -> Any:
        one, other = x[:, 0], x[:, 1]
        return functional.cross_entropy(one @ other.T / 0.1, torch.arange(len(x)))


OTHERS = (
    *(Router, SoftExperts, Slots, Memory, Codebook, Pooling, PoolingByProduct, DynamicConvolution, Efficient),
    *(OfMoments, Branches, Classifier, InfoNCE),
)


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_other_softmaxes_are_neither_recorded_nor_missed(kind: type[nn.Module]) -> None:
    log = recorded(Beside(kind()), torch.randn(BATCH, N, WIDTH))
    assert log.modules == ("plain",)
    assert dict(getattr(log, "unmeasured", {})) == {}


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_a_model_of_other_softmaxes_has_no_attention(kind: type[nn.Module]) -> None:
    model = kind()
    with pytest.raises(ValueError, match="no attention of"), at.torch.record(model):
        model(torch.randn(BATCH, N, WIDTH))
