# SPDX-License-Identifier: BSD-3-Clause
"""Attention as libraries spell it, recorded and compared with weights that float64 computes."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.models import spellings  # noqa: E402
from tests.models.spellings import ALL, HEADS, SIZES, WIDTH, Right, Spelling, arranged  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fixed_seed")]

STATISTICS = ("entropy", "n_visible", "max_weight")
LAW = "log_n(base=4)"
EVERY = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


def made(kind: type[Spelling]) -> Spelling:
    """A module whose rows are neither flat nor of one key."""
    module = kind()
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return module.train(kind.trained)


def answer(module: Spelling, args: Any, kwargs: Any) -> list[Right]:
    """The right answer of each call."""
    with torch.no_grad():
        return module.right(*args, **kwargs)


def listed(log: Any) -> dict[str, str]:
    """The modules that the log names as not measured, with their reasons."""
    return dict(getattr(log, "unmeasured", {}))


def named(right: Right, prefix: str = "") -> str:
    """The name of the call in a model where the module has this name."""
    module, mark, number = right.module.partition("#")
    return ".".join(part for part in (prefix, module) if part) + mark + number


def recorded(model: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad(), at.torch.record(model, statistics=STATISTICS) as log:
        model(*args, **kwargs)
    return log


def same(found: Any, wanted: Any, right: Right, atol: float = 1e-5) -> None:
    """Real rows are equal; in any order where axes cannot be told apart."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if right.has_axes:
        assert found.shape == wanted.shape
        if right.real is not None:
            found, wanted = (np.moveaxis(x, 1, -1)[right.real.numpy()] for x in (found, wanted))
    else:
        found, wanted = np.sort(found.ravel()), np.sort(wanted.ravel())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


def check(log: Any, rights: list[Right], unmeasured: str, prefix: str = "", near: float = 1e-5) -> None:
    """Check that the log has these calls with their rows, or names them as not measured if allowed."""
    for right in rights:
        name = named(right, prefix)
        if name in listed(log) and unmeasured != "no":
            assert listed(log)[name]
            continue
        assert unmeasured != "must", "measured, which it cannot be"
        assert name in log.modules
        rows = {statistic: log[statistic][name] for statistic in STATISTICS}
        same(rows["entropy"], right.entropy(), right, near)
        n_keys = right.product.shape[-1]
        same(rows["max_weight"], right.weights()[..., :n_keys].amax(-1), right, near)
        if right.tells_visible:
            same(rows["n_visible"], right.n_visible(), right)
        if right.has_axes:
            check_means(log, name, right, near)


def check_means(log: Any, name: str, right: Right, near: float) -> None:
    """Kind, heads, rows that count and means of a call are right."""
    assert right.kind in (None, log.kinds[name])
    assert log.calls[name].heads == right.product.shape[1]
    assert log.calls[name].key_heads == (right.key_heads or right.product.shape[1])
    real = np.ones(log.rows[name].shape, bool) if right.real is None else right.real.numpy()
    np.testing.assert_array_equal(log.rows[name], real)
    mean = log.select(modules=name).mean_entropy()[0]
    np.testing.assert_allclose(mean, right.mean_entropy(), rtol=0, atol=near)


@EVERY
def test_the_right_answer_agrees_with_the_module(kind: type[Spelling]) -> None:
    """The module's weights in float64, or its output, equal the answer's."""
    for batch, n in kind.sizes.values():
        module = made(kind)
        args, kwargs = module.inputs(batch, n)
        rights = answer(module, args, kwargs)
        module, args, kwargs = in_float64(module.eval(), args, kwargs)
        with torch.no_grad():
            output = module(*args, **kwargs)
        wanted = module.output(rights, *args, **kwargs)
        assert wanted is not None or len(module.own) == len(rights)
        if wanted is not None:
            torch.testing.assert_close(output, wanted, rtol=0, atol=1e-7)
        for own, right in zip(module.own, rights if module.own else (), strict=True):
            b, h, i, _ = right.product.shape
            sizes = {"b": b, "h": h, "i": i}
            own = arranged(own, kind.own_axes, {**sizes, **module.own_sizes(batch, n)}, kind.own_order)
            same(own.double().nan_to_num(), right.weights(), right, atol=1e-7)


def in_float64(module: Any, args: Any, kwargs: Any) -> Any:
    def cast(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: cast(each) for name, each in x.items()}
        return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    return copy.deepcopy(module).double(), tuple(cast(x) for x in args), cast(kwargs)


@EVERY
@pytest.mark.parametrize("size", SIZES)
def test_rows_agree_with_the_weights(kind: type[Spelling], size: str) -> None:
    if size not in kind.sizes:
        pytest.skip("the module has other sizes")
    module = made(kind)
    args, kwargs = module.inputs(*kind.sizes[size])
    rights = answer(module, args, kwargs)
    with torch.no_grad():
        torch.manual_seed(1)
        plain = module(*args, **kwargs)
        torch.manual_seed(1)
        with at.torch.record(module, statistics=STATISTICS) as log:
            output = module(*args, **kwargs)
    torch.testing.assert_close(output, plain, rtol=0, atol=0 if kind.exact else 1e-5)
    assert sorted({*log.modules, *listed(log)}) == sorted(map(named, rights))
    check(log, rights, kind.unmeasured, near=kind.near)


class Beside(nn.Module):
    """The spelling beside plain attention, in a model with another number of heads."""

    def __init__(self, spelled: Spelling, batch: int, n: int) -> None:
        super().__init__()
        self.num_heads, self.n_heads, self.heads = n, n, batch
        self.plain, self.spelled = made(spellings.products.Matmul), spelled

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return self.plain(x), self.spelled(*args, **kwargs)


@EVERY
def test_nothing_is_lost_beside_a_layer_that_is_seen(kind: type[Spelling]) -> None:
    """Rows of both layers are there, whatever counts a module around them has."""
    batch, n = next(iter(kind.sizes.values()))
    module = made(kind)
    args, kwargs = module.inputs(batch, n)
    rights, x = answer(module, args, kwargs), torch.randn(batch, n, WIDTH)
    model = Beside(module, batch, n).train(kind.trained)
    log = recorded(model, x, *args, **kwargs)
    check(log, [Right(r.product, r.after, "plain") for r in answer(model.plain, (x,), {})], "no")
    wanted = ["plain", *(named(right, "spelled") for right in rights)]
    assert sorted({*log.modules, *listed(log)}) == sorted(wanted)
    check(log, rights, kind.unmeasured, "spelled", kind.near)


@EVERY
@pytest.mark.parametrize("mode", ["inference mode", "with gradients"])
def test_rows_under_another_mode(kind: type[Spelling], mode: str) -> None:
    """Gradients equal those of an unwatched model."""
    module = made(kind)
    args, kwargs = module.inputs(*next(iter(kind.sizes.values())))
    rights = answer(module, args, kwargs)
    found = []
    for watched in (False, True):
        module.zero_grad()
        log = None
        with torch.inference_mode() if mode == "inference mode" else nullcontext():
            torch.manual_seed(1)
            with at.torch.record(module, statistics=STATISTICS) if watched else nullcontext() as log:
                output = module(*args, **kwargs)
        output = output if isinstance(output, torch.Tensor) else output[0]
        if output.requires_grad:
            output.square().sum().backward()
        found.append([output, *(p.grad for p in module.parameters() if p.grad is not None)])
    check(log, rights, kind.unmeasured, near=kind.near)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_part_keeps_its_digits_in_inference_mode() -> None:
    """PyTorch folds a product with a parameter, whose views require gradients there unless a mode looks."""

    class FirstAlone(Spelling):
        def forward(self, x: Any) -> Any:
            q, k, v = self.split(x)
            return self.to_out(x[:, :1]), self.joined((q @ k.mT).softmax(-1) @ v)

    torch.manual_seed(0)
    module = FirstAlone().eval()
    for width in (WIDTH, 96):
        module.to_out, x = nn.Linear(width, 2 * width), torch.randn(2, 17, width)
        module.to_q, module.to_k, module.to_v = (nn.Linear(width, WIDTH) for _ in range(3))
        module.joined = lambda y: y.transpose(1, 2).flatten(-2)  # type: ignore[method-assign]
        with torch.inference_mode():
            plain = module(x)
            with at.torch.record(module):
                output = module(x)
        for one, other in zip(output, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


ONE_PRODUCT = [kind for kind in ALL if kind.unmeasured == "no" and kind.has_law]


@pytest.mark.parametrize("kind", ONE_PRODUCT, ids=lambda kind: kind.__name__)
def test_a_law_multiplies_products_and_counts_the_keys_that_are_seen(kind: type[Spelling]) -> None:
    module = made(kind)
    args, kwargs = module.inputs(*next(iter(kind.sizes.values())))
    rights = answer(module, args, kwargs)
    with torch.no_grad(), at.torch.record(module, laws=[LAW]) as log:
        module(*args, **kwargs)
    for right in rights:
        factor = right.n_visible().clamp(min=1).double().log()[..., None] / np.log(4)
        same(log[f"entropy under {LAW}"][named(right)], right.entropy(factor), right, kind.near)


REFUSED = [kind for kind in ALL if kind.has_law is False]


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_law_is_refused_without_a_known_product(kind: type[Spelling]) -> None:
    """A module may be listed as not measured in place of an error; rows under a law are never guessed."""
    module = made(kind)
    args, kwargs = module.inputs(*next(iter(kind.sizes.values())))
    names = [*map(named, answer(module, args, kwargs))]
    try:
        with torch.no_grad(), at.torch.record(module, laws=[LAW]) as log:
            module(*args, **kwargs)
        refused = all(listed(log).get(name) for name in names)
    except NotImplementedError as error:
        refused = "law log_n" in str(error)
    assert refused


def test_every_module_is_another_one() -> None:
    assert len(ALL) >= 60
    assert len({kind.__name__ for kind in ALL}) == len(ALL)
    assert HEADS != WIDTH // HEADS
