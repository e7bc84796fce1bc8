# SPDX-License-Identifier: BSD-3-Clause
"""Families of linear time on tensors: plain operations of PyTorch against the kernels of this package."""

from __future__ import annotations

from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

from other_device import there  # noqa: E402

from tests.tensors import operators  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]

DIRECTIONS = torch.from_numpy(at.variants.performer_projection(16, 8, rng=0))
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "elu": ("linear_attention", {}),
    "relu": ("linear_attention", {"feature_map": "relu"}),
    "efficient": ("efficient_attention", {"scale": 0.7}),
    "scaling": ("efficient_attention", {"normalization": "scaling", "scale": 0.5}),
    "cosformer": ("cosformer_attention", {"max_length": 400}),
    "performer": ("performer_attention", {"projection": DIRECTIONS, "scale": 0.5}),
}
MASKS: dict[str, dict[str, Any]] = {
    "every key": {},
    "causal": {"is_causal": True},
    "bottom right": {"causal": "bottom_right"},
    "before the first key": {"causal": -3},
    "from a position": {"causal": 5},
    "no key": {"causal": -1000},
}


def draw(*shape: int, factor: float = 1.0) -> Any:
    return (factor * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


def same(found: Any, want: Any, given: list[Any]) -> None:
    """Values and gradients."""
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-10)
    weights = torch.linspace(-1, 1, want.numel(), dtype=want.dtype).reshape(want.shape)
    gradients = (torch.autograd.grad((weights * x).sum(), given, retain_graph=True) for x in (found, want))
    for got, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_agree_with_the_kernels(family: str, masks: str) -> None:
    """Blocks of pairs have 32 and 128 keys; features of rows of length 30 and more need their logarithms."""
    name, own = FAMILIES[family]
    function, options = getattr(at.torch, name), {**own, **MASKS[masks], "enable_gqa": True}
    for n_queries, n_keys, factor in ((7, 7, 1.0), (33, 150, 30.0), (150, 33, 1.0), (1, 300, 1.0)):
        given = [
            draw(2, 4, n_queries, 8, factor=factor),
            draw(2, 2, n_keys, 8, factor=factor),
            draw(2, 2, n_keys, 5),
        ]
        kernels, plain = (function(*given, **options, backend=each) for each in ("core", "torch"))
        same(plain, kernels, given)


def test_ssd() -> None:
    a = draw(3, 200)
    given = [draw(2, 3, 200, 8), draw(2, 3, 200, 8), draw(2, 3, 200, 5)]
    kernels, plain = (at.torch.ssd(*given, -a.exp(), backend=each) for each in ("core", "torch"))
    same(plain, kernels, [*given, a])


@pytest.mark.parametrize("backend", ["core", "torch"])
def test_features_of_ones_own_get_gradients(backend: str) -> None:
    q, k, v = draw(3, 20, 8), draw(3, 20, 8), draw(3, 20, 5)
    features = (q.exp(), k.exp())
    found = at.torch.linear_attention(q, k, v, feature_map=features, is_causal=True, backend=backend)
    weights = (features[0] @ features[1].mT).tril()
    same(found, weights / weights.sum(-1, keepdim=True) @ v, [q, k, v])


@pytest.mark.parametrize("family", [*FAMILIES, "given", "ssd"])
def test_another_device(family: str) -> None:
    """Tensors in bfloat16 of another device, in the other layout, with their gradients."""
    q, k, v = (draw(2, 40, 3, 8).detach().bfloat16().requires_grad_() for _ in range(3))
    own: dict[str, Any] = {}
    if family == "given":
        name, more = "linear_attention", {"feature_map": (k.exp(), q.exp())}
    elif family == "ssd":
        name, more, own = "ssd", {"log_decay": -torch.rand(3, 40)}, {"layout": "bshd"}
    else:
        name, more = FAMILIES[family]
    options = {"layout": "bshd", **({} if name == "ssd" else {"is_causal": True}), **own}

    def place(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(place, x))
        return there(x) if isinstance(x, torch.Tensor) else x

    moved = [place(x) for x in (q, k, v)]
    found = getattr(at.torch, name)(*moved, **options, **{n: place(x) for n, x in more.items()})
    want = getattr(at.torch, name)(q, k, v, **options, **more)
    assert (found.device.type, found.dtype, found.shape) == ("elsewhere", torch.bfloat16, want.shape)
    torch.testing.assert_close(found.cpu(), want, rtol=0.02, atol=0.02)
    if family != "given":
        found.float().square().sum().backward()
        wanted = torch.autograd.grad(want.float().square().sum(), (q, k, v))
        for x, gradient in zip(moved, wanted, strict=True):
            torch.testing.assert_close(x.grad.cpu(), gradient, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_that_is_not_finite_is_seen_by_those_who_see_its_key(family: str) -> None:
    name, own = FAMILIES[family]
    q, k, v = (draw(3, 200, 8).detach() for _ in range(3))
    v[1, 150, 2] = torch.inf
    found = getattr(at.torch, name)(q, k, v, **own, is_causal=True, backend="torch")
    bad = torch.zeros_like(found, dtype=torch.bool)
    bad[1, 150:, 2] = True
    assert torch.equal(~found.isfinite(), bad)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformed(family: str) -> None:
    name, own = FAMILIES[family]
    q, k, v = (draw(2, 40, 8).detach() for _ in range(3))

    def call(query: Any) -> Any:
        return getattr(at.torch, name)(query, k, v, **own, is_causal=True, backend="torch")

    mapped = torch.func.vmap(call)(torch.stack([q, -q]))
    torch.testing.assert_close(mapped, torch.stack([call(q), call(-q)]))
    k, v = k[0, :3], v[0, :3]
    assert torch.autograd.gradgradcheck(call, q[0, :3].clone().requires_grad_(), fast_mode=True)


@pytest.mark.parametrize(
    ("family", "backend"),
    [*((name, "core") for name in ("elu", "efficient", "cosformer", "performer")), ("performer", "torch")],
)
def test_compiled_and_what_pytorch_expects_of_the_operator(family: str, backend: str) -> None:
    """A graph without breaks; it takes the compiler some seconds."""
    name, own = FAMILIES[family]
    given = [draw(10, 8) for _ in range(3)]
    torch.compiler.reset()  # a number that differs from case to case would be no constant

    def call(*rows: Any) -> Any:
        return getattr(at.torch, name)(*rows, **own, is_causal=True, backend=backend)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(*given)
    same(compiled, call(*given), given)
    if backend == "core":
        operators.check(lambda: call(*given), "attend_variant")
        first = torch.func.grad(lambda x: call(x, *(x.detach() for x in given[1:])).square().sum())
        assert bool(first(given[0].detach()).isfinite().all())


@pytest.mark.parametrize("family", ["efficient", "performer"])
def test_the_scale_of_a_compiled_call_may_change(family: str) -> None:
    """The compiler has a symbol for a number that was another one in the call before."""
    name, own = FAMILIES[family]
    given = [draw(10, 8).detach() for _ in range(3)]

    def call(scale: float) -> Any:
        return getattr(at.torch, name)(*given, **{**own, "scale": scale}, backend="core")

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for scale in (1.0, 0.5, 0.25):
        torch.testing.assert_close(compiled(scale), call(scale), rtol=0, atol=0)


def test_refused() -> None:
    q, k, v = (draw(3, 20, 8).detach() for _ in range(3))
    for given, options, message in (
        ((q, k[..., :5], v), {}, "same last dimension .head_dim., got 8 and 5"),
        ((q, k, v[:, :4]), {}, "same number of keys, got 20 and 4"),
        ((q, k, v), {"num_threads": 2}, "num_threads must be None with backend='torch'"),
        *(((q, k, v), {"feature_map": name}, "feature_map must be one of") for name in ("tanh", "given")),
        ((q, k, v), {"backend": "cuda"}, "backend must be one of"),
        ((there(q), k, v), {}, "must be on the device of query, elsewhere:0, got one on cpu"),
        ((there(q), there(k), there(v)), {"backend": "core"}, "backend='core' takes tensors on the CPU"),
    ):
        with pytest.raises(ValueError, match=message):
            at.torch.linear_attention(*given, **{"backend": "torch", **options})
    with pytest.raises(ValueError, match="max_length must be at least the number of positions, 20"):
        at.torch.cosformer_attention(q, k, v, max_length=5, backend="torch")
    with pytest.raises(ValueError, match="positions, 21, got 20"):
        at.torch.cosformer_attention(q, k, v, max_length=20, causal=1, backend="torch")
    with pytest.raises(ValueError, match="log_decay must"):
        at.torch.ssd(q, k, v, torch.zeros(7), backend="torch")
    with pytest.raises(ValueError, match="projection has no gradient"):
        at.torch.performer_attention(q, k, v, projection=DIRECTIONS.clone().requires_grad_())
    for backend in ("core", "torch"):
        with pytest.raises(ValueError, match="normalization must be one of 'softmax', 'scaling', got None"):
            at.torch.efficient_attention(q, k, v, normalization=None, backend=backend)
    query = q.requires_grad_()
    (first,) = torch.autograd.grad(
        at.torch.linear_attention(query, k, v).square().sum(), query, create_graph=True
    )
    with pytest.raises(RuntimeError, match="first derivatives only"):
        first.sum().backward()
