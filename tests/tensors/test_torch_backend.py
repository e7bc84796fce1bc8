# SPDX-License-Identifier: BSD-3-Clause
"""``backend="torch"``: plain operations of PyTorch, on any device, against the kernels of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import pytest
from cases import SMOOTH, functions_entered
from versions import written_for

torch = pytest.importorskip("torch")

from attnscale.torch._plain import rows, scores  # noqa: E402

from tests.tensors import operators  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]


def draw(*shape: int, seed: int = 0, dtype: Any = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


def qkv() -> tuple[Any, Any, Any]:
    return draw(2, 4, 7, 6, seed=1), draw(2, 4, 9, 6, seed=2), draw(2, 4, 9, 5, seed=3)


def hidden() -> Any:
    """A mask under which one query sees no key."""
    mask = torch.rand(2, 1, 7, 9, generator=torch.Generator().manual_seed(4)) > 0.3
    mask[0, 0, 3] = False
    return mask


LENGTHS = torch.tensor([4, 0])

#: Options of a call, each with new tensors.
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "causal": lambda: {"is_causal": True},
    "mask": lambda: {"attn_mask": hidden()},
    "biases by distance": lambda: {"distance_bias": draw(9), "is_causal": True},
    "biases, bottom right": lambda: {
        "distance_bias": draw(16),
        "key_lengths": LENGTHS + 4,
        "causal": "bottom_right",
    },
    "law": lambda: {"scale": "log_n(base=3)", "is_causal": True},
    "learned law": lambda: {"scale": at.torch.Learned("ssmax", s=draw(4), b=draw()), "is_causal": True},
    "factor of a law": lambda: {"scale": at.torch.Scaled("log_n", draw(4)), "attn_mask": hidden()},
    "entmax": lambda: {"normalizer": at.torch.Entmax((draw() * 0 + 1.4).detach().requires_grad_())},
    "sparsemax": lambda: {"normalizer": "sparsemax"},
}


COMPILED = ("mask", "learned law", "biases, bottom right", "entmax")


def learnt(options: dict[str, Any]) -> list[Any]:
    """Tensors of the options that require grad."""
    given: list[Any] = []
    for option in options.values():
        given += vars(option).get("parameters", {}).values() if hasattr(option, "__dict__") else ()
        given += [option, *(getattr(option, name, None) for name in ("logits", "bias", "alpha"))]
    return [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]


def test_statistics_that_were_not_requested_are_none() -> None:
    rows = at.torch.attention_statistics(*qkv()[:2], backend="torch")
    assert [name for name, x in rows._asdict().items() if x is not None] == ["lse", "entropy"]


def test_autocast_picks_the_type_but_not_that_of_the_sums() -> None:
    q, k, v = (x.detach().float() for x in qkv())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = at.torch.attention_statistics(q, k, v, backend="torch")
    want = at.torch.attention_statistics(*(x.bfloat16() for x in (q, k, v)))
    assert rows.output.dtype == torch.bfloat16
    torch.testing.assert_close(rows.entropy, want.entropy, rtol=1e-5, atol=1e-5)


def test_scores_beyond_the_type_are_nan() -> None:
    q = torch.full((1, 3, 4), -1e30)
    for scale in (-1e10, 1e10):
        assert bool(at.torch.attention(q, q, torch.ones(1, 3, 2), scale=scale, backend="torch").isnan().all())


@pytest.mark.parametrize("normalizer", ["softmax", "sigmoid", "relu(divide='sum')"])
def test_values_that_are_not_finite_reach_the_rows_that_see_them(normalizer: str) -> None:
    """Infinity where all visible values have a weight and one sign, else NaN, as in the kernels."""
    q, k, v = qkv()
    bad = {(0, 2, 0): torch.inf, (0, 5, 0): -torch.inf, (0, 6, 1): torch.nan, (1, 4, 2): -torch.inf}
    with torch.no_grad():
        for (entry, j, channel), number in bad.items():
            v[entry, :, j, channel] = number
    options = {"attn_mask": hidden(), "normalizer": normalizer}
    found, exact = (at.torch.attention(q, k, v, **options, backend=each) for each in ("torch", "core"))
    assert {*found.detach()[~found.isfinite()].isnan().tolist()} == {True, False}
    torch.testing.assert_close(found, exact, equal_nan=True)
    (slope,) = torch.autograd.grad(found.sum(), q)
    is_finite = found.isfinite().all(-1)
    assert slope[is_finite].isfinite().all()
    assert slope[~is_finite].isnan().any()


@pytest.mark.parametrize("normalizer", ["relu", "relu(divide='sum')", "squared_relu", "softpick"])
def test_a_score_of_zero_has_no_weight_and_no_slope(normalizer: str) -> None:
    """A query of zeros, such as one of padding: softpick divides its slope by eps where it has one."""
    q, k, v = qkv()
    with torch.no_grad():
        q[0, :, 2] = 0
    for backend in ("torch", "core"):
        output = at.torch.attention(q, k, v, normalizer=normalizer, backend=backend)
        (slope,) = torch.autograd.grad(output.sum(), q)
        assert (slope[0, :, 2] == 0).all()
        assert (slope[1, :, 2] != 0).any()


def test_no_array_of_all_pairs_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    n, rows = 64, []
    monkeypatch.setattr(scores, "_PAIRS", 4 * n)
    scored = scores.Scores.of_rows

    def watch(self: Any, start: int, stop: int) -> Any:
        rows.append(stop - start)
        return scored(self, start, stop)

    monkeypatch.setattr(scores.Scores, "of_rows", watch)
    q = draw(1, n, 4)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        rows_of = at.torch.attention_statistics(q, q, q, is_causal=True, backend="torch")
    assert rows == [4] * (n // 4)
    assert max(kept) <= 4 * n  # inputs
    rows_of.entropy.sum().backward()
    assert rows == [4] * (n // 2)  # each block again


@pytest.mark.parametrize(
    "name",
    [  # The compiler of PyTorch 2.6 fails: 'OutputGraph' object has no attribute 'distributed_state'.
        pytest.param(name, marks=written_for("torch>=2.13") if name == "entmax" else ()) for name in COMPILED
    ],
)
def test_compiled_and_transformed(name: str) -> None:
    options = OPTIONS[name]()

    def loss(*tensors: Any) -> Any:
        rows = at.torch.attention_statistics(
            *tensors, statistics=("max_score", "n_visible"), backend="torch", **options
        )
        return rows.output.sin().sum() + rows.max_score.nan_to_num(neginf=0.0).sum()

    inputs = qkv()
    want = torch.autograd.grad(loss(*inputs), inputs)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    by_functional = torch.func.grad(loss, argnums=(0, 1, 2))(*(x.detach() for x in inputs))
    for found in (torch.autograd.grad(compiled(*inputs), inputs), by_functional):
        for one, other in zip(found, want, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["causal", "law", "sparsemax", "factor of a law", "biases by distance"])
def test_vmap(name: str) -> None:
    q, k, v = qkv()
    options = {key: x[0] if key == "attn_mask" else x for key, x in OPTIONS[name]().items()}

    def attend(q: Any, k: Any) -> Any:
        return at.torch.attention(q, k, v[0], backend="torch", **options)

    each = torch.stack([attend(q[i], k[i]) for i in range(2)])
    torch.testing.assert_close(torch.func.vmap(attend)(q, k), each)


@pytest.mark.parametrize("name", COMPILED)
def test_everything_stays_on_the_device(name: str) -> None:
    """The device "meta" has no numbers, and PyTorch refuses to mix it with another; on one that has some the
    cases of all backends run.
    """

    def moved(x: Any) -> Any:
        return x.detach().to("meta")

    options = {key: moved(x) if isinstance(x, torch.Tensor) else x for key, x in OPTIONS[name]().items()}
    for option in options.values():
        if isinstance(option, at.torch.Learned):
            option.parameters = {key: moved(x) for key, x in option.parameters.items()}
        for parameter in {"logits", "bias", "alpha"} & set(getattr(option, "__dict__", ())):
            setattr(option, parameter, moved(getattr(option, parameter)))
    tensors = [moved(x) for x in qkv()]
    rows = at.torch.attention_statistics(*tensors, statistics="max_weight", backend="torch", **options)
    assert {x.device.type for x in rows if x is not None} == {"meta"}
    assert rows.output.shape == (2, 4, 7, 5)


def test_opcheck_of_the_plan() -> None:
    q, k, _ = (x.detach() for x in qkv())
    law = at.torch.Learned("ssmax", s=torch.ones(4))
    for options in ({"scale": law, "window": (None, None)}, {"scale": "scale_invariant", "is_causal": True}):
        operators.check(
            lambda options=options: at.torch.attention_statistics(q, k, backend="torch", **options),
            "row_plan",
            learns=False,
        )


def test_a_law_that_is_replaced_counts_at_once() -> None:
    q, k, v = qkv()
    for factor in (1.0, 2.0):
        at.laws.register("of_this_test")(lambda n, head_dim, *, factor=factor: factor + 0 * n)
        output = at.torch.attention(q, k, v, scale="of_this_test", backend="torch")
        torch.testing.assert_close(output, at.torch.attention(q, k, v, scale=factor))


def test_a_tiny_call_enters_few_functions() -> None:
    """A mask and a law: 117 functions of this package and of PyTorch, once 283."""
    query, key, value = (draw(4, 16, 16, seed=seed, dtype=torch.float32).detach() for seed in range(3))
    mask = torch.ones(16, 16, dtype=torch.bool).tril()
    options: Any = {"backend": "torch", "attn_mask": mask, "scale": "ssmax"}
    found = functions_entered(
        lambda: at.torch.attention(query, key, value, **options), lambda _, event: event == "call"
    )
    assert found <= 180


def test_names_of_axes_are_refused() -> None:
    """The arithmetic would take the axes in the order of "bhsd"."""
    with pytest.raises(ValueError, match=r"^layout must be one of 'bhsd', 'bshd', got 'b n h d'$"):
        at.torch.attention(*qkv(), backend="torch", layout="b n h d")


def test_refusals_of_its_own() -> None:
    q = torch.ones(2, 6, 4)
    message = "backend must be one of 'auto', 'core', 'torch', 'triton', got 'fla"
    with pytest.raises(ValueError, match=message):
        at.torch.attention(q, q, q, backend="flash")
    with pytest.raises(ValueError, match="num_threads must be None with backend='torch', got 2"):
        at.torch.attention(q, q, q, num_threads=2, backend="torch")
    with pytest.raises(ValueError, match="takes tensors on a GPU of CUDA or ROCm, got tensors on cpu"):
        at.torch.attention(q, q, q, backend="triton")
    with pytest.raises(ValueError, match="backend must be one of 'auto', 'core', 'torch', got 'triton'"):
        at.torch.linear_attention(q, q, q, backend="triton")
    for backend in ("auto", "core", "torch"):
        message = "all tensors must be on the device of query, cpu, got one on meta"
        with pytest.raises(ValueError, match=message):
            at.torch.attention(q, q, q.to("meta"), backend=backend)


# ---- second derivatives -------------------------------------------------------------------------

TWICE: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "causal": lambda: {"is_causal": True},
    "bottom right": lambda: {"causal": "bottom_right"},
    "law": lambda: {"scale": "ssmax(s=0.43)", "is_causal": True},
    "number": lambda: {"scale": 0.3},
    "mask": lambda: {"attn_mask": torch.eye(4, 5) + torch.eye(4, 5).flip(0) < 1},
    "a query without keys": lambda: {"attn_mask": (torch.arange(4) != 1)[:, None]},
    "window": lambda: {"window": (1, 1)},
    "key lengths": lambda: {"key_lengths": 3},
    "documents": lambda: {"document_ids": torch.tensor([0, 0, 1, 1, 1]), "is_causal": True},
    "soft-cap": lambda: {"softcap": 1.5},
    "grouped": lambda: {"enable_gqa": True},
    "bshd": lambda: {"layout": "bshd"},
    "l2": lambda: {"qk_norm": "l2"},
    "rms": lambda: {"qk_norm": "rms"},
    "law of the distance": lambda: {"scale": "scale_invariant"},
    "float mask": lambda: {"attn_mask": draw(4, 5)},
    "scales": lambda: {"scale": draw(2, 1)},
    "a learned law": lambda: {"scale": at.torch.Learned("ssmax(s=0.4)", s=draw(2))},
    "factors by distance": lambda: {"distance_scale": draw(5)},
    "biases by distance": lambda: {"distance_bias": draw(2, 5)},
    "a learned sink": lambda: {"normalizer": at.torch.Sink(draw(2))},
    "a learned bias": lambda: {"normalizer": at.torch.Sigmoid(draw(2))},
    "a learned alpha": lambda: {"normalizer": at.torch.Entmax(torch.tensor(1.6).double().requires_grad_())},
    **{
        name: lambda name=name: {"normalizer": name}
        for name in (
            *("softmax_1", "sink(logits=0.5)", "sparsemax", "entmax15", "entmax(alpha=3)", "top_k(k=2)"),
            *("sigmoid", "relu", "relu(divide='sum')", "squared_relu", "softpick"),
        )
    },
}


@pytest.mark.parametrize("batch", [(), (2,)], ids=["3 axes", "4 axes"])
@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives(name: str, batch: tuple[int, ...]) -> None:
    """Second derivatives by differences; PyTorch's own attention, used in plain calls of 4 axes, has none."""
    options = TWICE[name]()
    heads = 4 if options.get("enable_gqa") else 2
    tensors = [draw(*batch, h, n, 4, seed=i) for i, (h, n) in enumerate(((heads, 4), (2, 5), (2, 5)))]
    if options.get("layout"):
        tensors = [x.detach().transpose(-3, -2).contiguous().requires_grad_() for x in tensors]
    parameters = learnt(options)
    call = lambda q, k, v, *_: at.torch.attention(q, k, v, backend="torch", **options)  # noqa: E731
    assert torch.autograd.gradgradcheck(call, (*tensors, *parameters), fast_mode=True, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{"is_causal": True}, {"normalizer": "softmax_1"}, {"softcap": 1.5}], ids=str
)
@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_of_statistics(name: str, options: dict[str, Any]) -> None:
    def call(query: Any, key: Any) -> Any:
        rows = at.torch.attention_statistics(query, key, statistics=[name], backend="torch", **options)
        return getattr(rows, name)

    query, key = draw(2, 4, 4, seed=0), draw(2, 5, 4, seed=1)
    assert torch.autograd.gradgradcheck(call, (query, key), fast_mode=True, atol=1e-4)


def test_derivatives_of_derivatives_of_one_tensor_in_three_roles() -> None:
    """A query that is the key, and a value that is a function of both."""
    x = draw(1, 2, 4, 6)
    call = lambda x: at.torch.attention(x, x, x.sin(), backend="torch", is_causal=True)  # noqa: E731
    assert torch.autograd.gradgradcheck(call, x, fast_mode=True, atol=1e-4)
    loss = lambda call: torch.func.hessian(lambda y: call(y).sum())(x.detach())  # noqa: E731
    written = lambda x: (x @ x.mT / 6**0.5).masked_fill(~torch.ones(4, 4).tril().bool(), -torch.inf)  # noqa: E731
    torch.testing.assert_close(loss(call), loss(lambda x: written(x).softmax(-1) @ x.sin()))


def test_the_first_derivative_uses_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a backward pass that is differentiated computes attention again."""
    calls: list[bool] = []
    fused = rows.scaled_dot_product_attention
    counted = lambda *x, **y: calls.append(True) or fused(*x, **y)  # noqa: E731
    monkeypatch.setattr(rows, "scaled_dot_product_attention", counted)
    q, k, v = (draw(1, 2, 4, 8, seed=i) for i in range(3))
    output = at.torch.attention(q, k, v, backend="torch")
    once = torch.autograd.grad(output.square().sum(), (q, k, v), retain_graph=True)
    assert len(calls) == 1
    again = torch.autograd.grad(output.square().sum(), (q, k, v), create_graph=True)
    assert len(calls) == 2
    torch.testing.assert_close(once, again)


def test_forward_mode_of_a_plain_call() -> None:
    q, k, v = (draw(1, 2, 4, 8, seed=i).detach() for i in range(3))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        found = torch.autograd.forward_ad.unpack_dual(at.torch.attention(dual, k, v, backend="torch")).tangent
    call = lambda q: (q @ k.mT / 8**0.5).softmax(-1) @ v  # noqa: E731
    torch.testing.assert_close(found, torch.func.jvp(call, (q,), (torch.ones_like(q),))[1])
