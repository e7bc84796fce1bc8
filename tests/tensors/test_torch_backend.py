# SPDX-License-Identifier: BSD-3-Clause
"""``backend="torch"``: plain operations of PyTorch, on any device, against the kernels of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

from attnscale._results import NAMES  # noqa: E402
from attnscale.torch import _row_plan, _scores  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

SOFTMAXES = ("softmax", "softmax_n", "sink")


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
DOCUMENTS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])

#: Options of a call, and the tensors among them that require grad. Each has tensors of its own.
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "causal": lambda: {"is_causal": True},
    "bottom right": lambda: {"causal": "bottom_right"},
    "an integer": lambda: {"causal": -2},
    "window": lambda: {"window": (2, 1)},
    "open window": lambda: {"window": (None, None)},
    "mask": lambda: {"attn_mask": hidden()},
    "mask and causal": lambda: {"attn_mask": hidden() | torch.eye(7, 9, dtype=torch.bool), "is_causal": True},
    "mask of keys": lambda: {"attn_mask": torch.arange(9) % 3 > 0},
    "float mask": lambda: {"attn_mask": draw(7, 9)},
    "key lengths": lambda: {"key_lengths": LENGTHS},
    "key lengths, bottom right": lambda: {"key_lengths": LENGTHS + 2, "causal": "bottom_right"},
    "documents": lambda: {"document_ids": DOCUMENTS, "is_causal": True},
    "number": lambda: {"scale": 0.3},
    "scales of heads": lambda: {"scale": draw(4, 1)},
    "soft-cap": lambda: {"softcap": 2.0},
    "factors by distance": lambda: {"distance_scale": draw(4, 9)},
    "biases by distance": lambda: {"distance_bias": draw(9), "is_causal": True},
    "biases, bottom right": lambda: {
        "distance_bias": draw(16),
        "key_lengths": LENGTHS + 4,
        "causal": "bottom_right",
    },
    "l2": lambda: {"qk_norm": "l2"},
    "rms": lambda: {"qk_norm": "rms", "is_causal": True},
    "law": lambda: {"scale": "log_n(base=3)", "is_causal": True},
    "law of visible keys": lambda: {"scale": "log_n(base=3)", "attn_mask": hidden()},
    "law of positions": lambda: {"scale": "llama4_temperature(floor=2)", "causal": 2},
    "law of entropies": lambda: {"scale": "adaptive_temperature", "attn_mask": hidden()},
    "law of gaps": lambda: {"scale": "critical_scale", "attn_mask": hidden()},
    "law of spreads": lambda: {"scale": "norm_softmax", "is_causal": True},
    "law of distances": lambda: {"scale": "scale_invariant", "distance_bias": draw(9)},
    "learned law": lambda: {"scale": at.torch.Learned("ssmax", s=draw(4), b=draw()), "is_causal": True},
    "factor of a law": lambda: {"scale": at.torch.Scaled("log_n", draw(4)), "attn_mask": hidden()},
    "one factor": lambda: {"scale": at.torch.Scaled("log_n", draw())},
    "sink": lambda: {"normalizer": at.torch.Sink(draw(4)), "key_lengths": LENGTHS},
    "sink of a row": lambda: {"normalizer": at.torch.Sink(draw(2, 4, 7))},
    "sigmoid": lambda: {"normalizer": at.torch.Sigmoid(draw(4))},
    "entmax": lambda: {"normalizer": at.torch.Entmax((draw() * 0 + 1.4).detach().requires_grad_())},
    "spelled sink": lambda: {"normalizer": "sink(logits=[0.0, 1.0, 0.5, 2.0])"},
    **{
        f"{name}, {'mask' if masked else 'all'}": lambda name=name, masked=masked: {
            "normalizer": name,
            **({"attn_mask": hidden()} if masked else {}),
        }
        for masked in (False, True)
        for name in (
            *("softmax_n(n=2)", "sparsemax", "entmax(alpha=1.3)", "entmax(alpha=3)", "top_k(k=3)", "sigmoid"),
            *("sigmoid(bias=-1.0)", "relu", "relu(divide='sum')", "squared_relu", "softpick"),
        )
    },
}


def learnt(options: dict[str, Any]) -> list[Any]:
    """What of the options requires grad."""
    given: list[Any] = []
    for option in options.values():
        given += vars(option).get("parameters", {}).values() if hasattr(option, "__dict__") else ()
        given += [option, *(getattr(option, name, None) for name in ("logits", "bias", "alpha"))]
    return [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]


def statistics_of(normalizer: Any) -> tuple[str, ...]:
    kinds = {at.torch.Sink: "softmax", at.torch.Sigmoid: "sigmoid", at.torch.Entmax: "entmax"}
    return at.normalizers.get(kinds.get(type(normalizer), normalizer)).statistics


@pytest.mark.parametrize("pairs", [2**25, 150], ids=["a block", "blocks"])
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients_are_those_of_the_kernels(
    name: str, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_scores, "_PAIRS", pairs)
    options = OPTIONS[name]()
    normalizer = options.get("normalizer", "softmax")
    asked = statistics_of(normalizer)
    inputs = [*qkv(), *learnt(options)]
    is_softmax = isinstance(normalizer, at.torch.Sink) or str(normalizer).startswith(SOFTMAXES)
    ints = ("n_visible", "argmax", "support", "sink_weight", "min_score")
    loss_of = [name for name in asked if name not in ints] if is_softmax else []
    found = []
    for backend in ("torch", "core"):
        rows = at.torch.attention_statistics(*inputs[:3], statistics=asked, backend=backend, **options)
        output = at.torch.attention(*inputs[:3], backend=backend, **options)
        terms = [(i + 1) * getattr(rows, each).nan_to_num(neginf=0.0).sum() for i, each in enumerate(loss_of)]
        loss = rows.output.sin().sum() + output.square().sum() + sum(terms)
        found.append((rows, output, torch.autograd.grad(loss, inputs)))
    (rows, output, gradients), (want, core_output, core_gradients) = found
    for each in ("output", *asked):
        torch.testing.assert_close(getattr(rows, each), getattr(want, each), rtol=1e-6, atol=5e-8)
    torch.testing.assert_close(output, core_output, rtol=1e-6, atol=5e-8)
    for one, other in zip(gradients, core_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_statistics_that_were_not_asked_for_are_none() -> None:
    rows = at.torch.attention_statistics(*qkv()[:2], backend="torch")
    assert [name for name, x in rows._asdict().items() if x is not None] == ["lse", "entropy"]


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((5, 4), (6, 4), (6, 3)), {"is_causal": True}),
        (((5, 4), (6, 4), (6, 3)), {"normalizer": at.torch.Sink(torch.ones(1)) if torch else None}),
        (((2, 5, 4, 8), (2, 6, 4, 8), (2, 6, 4, 3)), {"layout": "bshd", "is_causal": True}),
        (((2, 4, 5, 8), (2, 2, 6, 8), (2, 1, 6, 3)), {"enable_gqa": True}),
        (((2, 5, 4, 8), (2, 6, 2, 8), (2, 6, 1, 3)), {"enable_gqa": True, "layout": "bshd"}),
        (((1, 1, 6, 8), (2, 4, 6, 8), (3, 1, 4, 6, 8)), {}),
        (((4, 6, 8), (4, 6, 8), (4, 6, 8)), {"scale": torch.full((1, 1, 4, 1), 0.2)}),
        (((0, 4), (5, 4), (5, 3)), {"is_causal": True}),
        (((5, 4), (0, 4), (0, 3)), {"distance_bias": torch.ones(9)}),
        (((2, 5, 0), (2, 6, 0), (2, 6, 3)), {}),
        (((0, 5, 4), (0, 6, 4), (0, 6, 3)), {}),
    ],
)
def test_shapes(shapes: Any, options: dict[str, Any]) -> None:
    tensors = [draw(*shape, dtype=torch.float32) for shape in shapes]
    rows, want = (
        at.torch.attention_statistics(*tensors, statistics=NAMES, backend=each, **options)
        for each in ("torch", "core")
    )
    for one, other in zip(rows, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types(dtype: Any) -> None:
    q, k, v = (x.detach().to(dtype) for x in qkv())
    rows, want = (
        at.torch.attention_statistics(q, k, v, is_causal=True, backend=each) for each in ("torch", "core")
    )
    torch.testing.assert_close(rows.output, want.output)
    torch.testing.assert_close(rows.entropy, want.entropy, rtol=1e-5, atol=1e-5)
    mixed = at.torch.attention(q, k, v.float(), backend="torch")
    assert mixed.dtype == torch.float32


def test_autocast_picks_the_type_but_not_that_of_the_sums() -> None:
    q, k, v = (x.detach().float() for x in qkv())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = at.torch.attention_statistics(q, k, v, backend="torch")
    want = at.torch.attention_statistics(*(x.bfloat16() for x in (q, k, v)))
    assert rows.output.dtype == torch.bfloat16
    torch.testing.assert_close(rows.entropy, want.entropy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", range(3), ids=["query", "key", "value"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_the_rows_that_see_it(place: int, value: float) -> None:
    tensors = [draw(2, 6, 4, seed=i, dtype=torch.float32).detach() for i in range(3)]
    tensors[place][:, 3, 1] = value
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.arange(6) != 3}):
        output, want = (at.torch.attention(*tensors, backend=each, **options) for each in ("torch", "core"))
        assert torch.equal(output.isfinite(), want.isfinite())
        torch.testing.assert_close(output[want.isfinite()], want[want.isfinite()], rtol=1e-5, atol=1e-5)


def test_a_hidden_nan_reaches_no_gradient() -> None:
    q, k, v = (draw(2, 6, 4, seed=i).detach() for i in range(3))
    k[:, 4:], v[:, 4:] = torch.nan, torch.inf
    for tensors in ([q, k, v], [q, k[:, :4], v[:, :4]]):
        for x in tensors:
            x.requires_grad_()
    at.torch.attention(q, k, v, key_lengths=4, backend="torch").square().sum().backward()
    assert all(bool(x.grad.isfinite().all()) for x in (q, k, v))
    assert bool((k.grad[:, 4:] == 0).all())


def test_scores_beyond_the_type_are_nan() -> None:
    q = torch.full((1, 3, 4), -1e30)
    for scale in (-1e10, 1e10):
        assert bool(at.torch.attention(q, q, torch.ones(1, 3, 2), scale=scale, backend="torch").isnan().all())


def test_no_array_of_all_pairs_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    n, rows = 64, []
    monkeypatch.setattr(_scores, "_PAIRS", 4 * n)
    scored = _scores.Scores.of_rows

    def watch(self: Any, start: int, stop: int) -> Any:
        rows.append(stop - start)
        return scored(self, start, stop)

    monkeypatch.setattr(_scores.Scores, "of_rows", watch)
    q = draw(1, n, 4)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        rows_of = at.torch.attention_statistics(q, q, q, is_causal=True, backend="torch")
    assert rows == [4] * (n // 4)
    assert max(kept) <= 4 * n  # inputs
    rows_of.entropy.sum().backward()
    assert rows == [4] * (n // 2)  # each block again


@pytest.mark.parametrize("name", ["mask", "learned law", "biases, bottom right", "entmax"])
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


@pytest.mark.parametrize("name", ["causal", "law", "sparsemax, all", "factor of a law", "biases by distance"])
def test_vmap(name: str) -> None:
    q, k, v = qkv()
    options = {key: x[0] if key == "attn_mask" else x for key, x in OPTIONS[name]().items()}

    def attend(q: Any, k: Any) -> Any:
        return at.torch.attention(q, k, v[0], backend="torch", **options)

    each = torch.stack([attend(q[i], k[i]) for i in range(2)])
    torch.testing.assert_close(torch.func.vmap(attend)(q, k), each)


def test_opcheck_of_the_plan() -> None:
    q, k, _ = (x.detach() for x in qkv())
    law = at.torch.Learned("ssmax", s=torch.ones(4))
    for options in ({"scale": law, "window": (None, None)}, {"scale": "scale_invariant", "is_causal": True}):
        call = _row_plan.Arguments.of(at.torch._arguments.read_call(q, k, **options).flat)
        assert set(torch.library.opcheck(_row_plan.row_plan, call.flat).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "law of gaps"])
def test_everything_stays_on_the_device(name: str) -> None:
    """The device "meta" has no numbers, and PyTorch refuses to mix it with another."""

    def moved(x: Any) -> Any:
        return x.detach().to("meta")

    options = {key: moved(x) if isinstance(x, torch.Tensor) else x for key, x in OPTIONS[name]().items()}
    for option in options.values():
        if isinstance(option, at.torch.Learned):
            option.parameters = {key: moved(x) for key, x in option.parameters.items()}
        for parameter in {"logits", "bias", "alpha"} & set(getattr(option, "__dict__", ())):
            setattr(option, parameter, moved(getattr(option, parameter)))
    asked = statistics_of(options.get("normalizer", "softmax"))
    tensors = [moved(x) for x in qkv()]
    rows = at.torch.attention_statistics(*tensors, statistics=asked, backend="torch", **options)
    assert {x.device.type for x in rows if x is not None} == {"meta"}
    assert rows.output.shape == (2, 4, 7, 5)


def test_a_law_that_is_replaced_counts_at_once() -> None:
    q, k, v = qkv()
    for factor in (1.0, 2.0):
        at.laws.register("of_this_test")(lambda n, head_dim, *, factor=factor: factor + 0 * n)
        output = at.torch.attention(q, k, v, scale="of_this_test", backend="torch")
        torch.testing.assert_close(output, at.torch.attention(q, k, v, scale=factor))


def test_what_reads_the_shapes_alone_is_kept() -> None:
    q, k, v = qkv()
    with torch.inference_mode():
        at.torch.attention(q, k, v, scale="log_n(base=5)", is_causal=True, backend="torch")
    before = _row_plan._read_shapes.cache_info()
    at.torch.attention(q, k, v, scale="log_n(base=5)", is_causal=True, backend="torch").sum().backward()
    after = _row_plan._read_shapes.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 0)


WRONG: list[dict[str, Any]] = [
    {"scale": "nope"},
    {"scale": torch.tensor(torch.nan)},
    {"scale": torch.ones(2, 2, 2)},
    {"scale": "critical_scale", "distance_bias": torch.ones(9)},
    {"causal": "x"},
    {"window": (-1, None)},
    {"key_lengths": 99},
    {"attn_mask": torch.ones(3, 3)},
    {"attn_mask": torch.ones(6, 6, dtype=torch.int32)},
    {"softcap": 0.0},
    {"normalizer": "nope"},
    {"normalizer": at.torch.Sink(torch.ones(7))},
    {"normalizer": at.torch.Sigmoid(torch.ones(3)), "statistics": ("max_score",)},
    {"normalizer": at.torch.Entmax(torch.tensor(0.9)), "statistics": ("entropy",)},
    {"normalizer": "sparsemax", "statistics": ("lse",)},
    {"statistics": ("nope",)},
    {"layout": "x"},
    {"qk_norm": "x"},
    {"distance_bias": torch.ones(2)},
    {"distance_scale": torch.full((9,), torch.nan)},
    {"document_ids": torch.tensor([0, 1, 0, 1, 1, 1])},
    {"key": torch.ones(2, 6, 5)},
    {"key": torch.ones(3, 6, 4)},
    {"query": torch.ones(4)},
    {"query": torch.ones(2, 6, 4, dtype=torch.int32)},
]


@pytest.mark.parametrize("given", WRONG, ids=lambda given: ", ".join(given))
def test_refusals_are_those_of_the_kernels(given: dict[str, Any]) -> None:
    call = {"query": torch.ones(2, 6, 4), "key": torch.ones(2, 6, 4), **given}
    seen = []
    for backend in ("torch", "core"):
        with pytest.raises((TypeError, ValueError)) as error:
            at.torch.attention_statistics(**call, backend=backend)
        seen.append((error.type, str(error.value)))
    assert seen[0] == seen[1]


def test_refusals_of_its_own() -> None:
    q = torch.ones(2, 6, 4)
    with pytest.raises(
        ValueError, match="backend must be one of 'auto', 'core', 'torch', 'triton', got 'fla"
    ):
        at.torch.attention(q, q, q, backend="flash")
    with pytest.raises(ValueError, match="num_threads must be None with backend='torch', got 2"):
        at.torch.attention(q, q, q, num_threads=2, backend="torch")
    with pytest.raises(ValueError, match="takes tensors on a GPU of CUDA or ROCm, got tensors on cpu"):
        at.torch.attention(q, q, q, backend="triton")
    with pytest.raises(ValueError, match="backend must be one of 'auto', 'core', 'torch', got 'triton'"):
        at.torch.linear_attention(q, q, q, backend="triton")
    for backend in ("auto", "core", "torch"):
        with pytest.raises(
            ValueError, match="all tensors must be on the device of query, cpu, got one on meta"
        ):
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
    """Those of differences; PyTorch's own attention, which a plain call of 4 axes gets, has none."""
    options = TWICE[name]()
    heads = 4 if options.get("enable_gqa") else 2
    tensors = [draw(*batch, h, n, 4, seed=i) for i, (h, n) in enumerate(((heads, 4), (2, 5), (2, 5)))]
    if options.get("layout"):
        tensors = [x.detach().transpose(-3, -2).contiguous().requires_grad_() for x in tensors]
    parameters = learnt(options)
    call = lambda q, k, v, *_: at.torch.attention(q, k, v, backend="torch", **options)  # noqa: E731
    assert torch.autograd.gradgradcheck(call, (*tensors, *parameters), fast_mode=True, atol=1e-4)


def test_derivatives_of_derivatives_of_one_tensor_in_three_roles() -> None:
    """A query that is the key, and a value that is a function of both."""
    x = draw(1, 2, 4, 6)
    call = lambda x: at.torch.attention(x, x, x.sin(), backend="torch", is_causal=True)  # noqa: E731
    assert torch.autograd.gradgradcheck(call, x, fast_mode=True, atol=1e-4)
    loss = lambda call: torch.func.hessian(lambda y: call(y).sum())(x.detach())  # noqa: E731
    written = lambda x: (x @ x.mT / 6**0.5).masked_fill(~torch.ones(4, 4).tril().bool(), -torch.inf)  # noqa: E731
    torch.testing.assert_close(loss(call), loss(lambda x: written(x).softmax(-1) @ x.sin()))


def test_the_first_derivative_is_that_of_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a backward pass that is differentiated computes attention again."""
    from attnscale.torch import _block_rows

    calls: list[bool] = []
    fused = _block_rows.scaled_dot_product_attention
    counted = lambda *x, **y: calls.append(True) or fused(*x, **y)  # noqa: E731
    monkeypatch.setattr(_block_rows, "scaled_dot_product_attention", counted)
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
