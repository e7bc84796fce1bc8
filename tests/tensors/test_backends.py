# SPDX-License-Identifier: BSD-3-Clause
"""The same calls through everything that computes attention on tensors, against the mathematics in NumPy.

A backend is an entry of ``BACKENDS``; a case is an entry of ``CASES``, the options of one call. Triton
decides when it is imported whether it interprets its kernels, so they have a process of their own, with
TRITON_INTERPRET=1, which `test_triton.py` starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import other_device  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]


class Backend(NamedTuple):
    """Where tensors are, and what ``backend=`` says."""

    place: Callable[[Any], Any]
    backend: str | None


def on_the_cpu(x: Any) -> Any:
    return x.detach().clone().requires_grad_(x.requires_grad)


BACKENDS = {
    "core": Backend(on_the_cpu, "core"),
    "torch": Backend(on_the_cpu, "torch"),
    "another device": Backend(other_device.there, None),
}
if os.environ.get("TRITON_INTERPRET") == "1":
    import triton_calls

    BACKENDS = {"Triton": Backend(on_the_cpu, "triton")}
    triton_calls.start("cpu")
    triton_calls.serve_the_cpu()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


RNG = np.random.default_rng(26)
HIDDEN = RNG.random((2, 1, 7, 9)) > 0.3
HIDDEN[0, 0, 3] = False  # a query without keys
LENGTHS = np.array([4, 0])

#: Laws of each meaning of n, of the row, of the distance and of neither.
LAWS = (
    *("unscaled", "log_n(base=3)", "natural_log_n", "ssmax(s=0.43)", "entropy_invariant", "annealed"),
    *("llama4_temperature(floor=2)", "critical_scale", "adaptive_temperature", "norm_softmax"),
    *("scale_invariant", "constant(value=0.2)", "per_head(values=(1, 2, 0.5, 0.1))"),
)

#: Options by name, with arrays of NumPy, as the functions of attnscale.reference take them.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "bottom right": {"causal": "bottom_right"},
    "from a position": {"causal": 3},
    "before the first key": {"causal": -2},
    "window": {"window": (2, 1)},
    "open window": {"window": (None, 0), "causal": "bottom_right"},
    "boolean mask": {"attn_mask": HIDDEN},
    "mask of keys": {"attn_mask": np.arange(9) % 3 > 0, "is_causal": True},
    "float mask": {"attn_mask": np.where(HIDDEN, RNG.standard_normal((2, 4, 7, 9)), -np.inf)},
    "mask of the smallest numbers": {"attn_mask": np.where(HIDDEN, np.float16(0.5), np.float16(-65504))},
    "key lengths": {"key_lengths": LENGTHS},
    "key lengths, bottom right": {"key_lengths": LENGTHS + 2, "causal": "bottom_right"},
    "documents": {"document_ids": np.array([0, 0, 0, 1, 1, 2, 2, 2, 2]), "is_causal": True},
    "number": {"scale": -0.7},
    "scales of heads": {"scale": np.array([[0.1], [0.2], [0.5], [1.0]])},
    "soft-cap": {"softcap": 2.0, "is_causal": True},
    "tables of the distance": {"distance_scale": RNG.random((4, 9)), "distance_bias": RNG.random(9)},
    "l2": {"qk_norm": "l2", "scale": 4.0},
    "rms": {"qk_norm": "rms"},
    **{f"law {law}": {"scale": law, "is_causal": True} for law in LAWS},
    "law of visible keys": {"scale": "log_n(base=3)", "attn_mask": HIDDEN},
    "softmax with one": {"normalizer": "softmax_n(n=1)"},
    "sink": {"normalizer": "sink(logits=[0.0, 1.0, 0.5, 2.0])", "key_lengths": LENGTHS},
    **{
        name: {"normalizer": name, "attn_mask": HIDDEN}
        for name in (
            *("sparsemax", "entmax(alpha=1.5)", "top_k(k=3)", "sigmoid", "sigmoid(bias=-1.0)", "relu"),
            *("relu(divide='sum')", "squared_relu", "softpick"),
        )
    },
}


class Shapes(NamedTuple):
    """Shapes of query, key and value."""

    query: tuple[int, ...] = (2, 4, 7, 6)
    key: tuple[int, ...] = (2, 4, 9, 6)
    value: tuple[int, ...] = (2, 4, 9, 5)

    def draw(self) -> list[Any]:
        """Arrays of numbers that float32 has, in float64."""
        rng = np.random.default_rng(1)
        return [rng.standard_normal(shape, np.float32).astype(np.float64) for shape in self]


def as_tensor(name: str, given: Any, backend: Backend) -> Any:
    """An option as the functions on tensors take it: in float32 where it is a float."""
    if not isinstance(given, np.ndarray):
        return given
    tensor = torch.from_numpy(given)
    return backend.place(tensor.float() if tensor.dtype == torch.float64 else tensor)


def call(backend: Backend, arrays: list[Any], options: dict[str, Any], **more: Any) -> tuple[Any, list[Any]]:
    """The rows of a call in float32, and its tensors, which require grad."""
    tensors = [backend.place(torch.from_numpy(x).float().requires_grad_()) for x in arrays]
    given = {name: as_tensor(name, x, backend) for name, x in options.items()}
    return at.torch.attention_statistics(*tensors, backend=backend.backend, **given, **more), tensors


def of_reference(arrays: list[Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options with objects in the place of texts, which the reference does not read."""
    read = {"scale": at.laws.get, "normalizer": at.normalizers.get}
    return {name: read[name](x) if isinstance(x, str) and name in read else x for name, x in options.items()}


def statistics_of(options: dict[str, Any]) -> tuple[str, ...]:
    return at.normalizers.get(options.get("normalizer", "softmax")).statistics


@pytest.mark.parametrize("name", CASES)
def test_output_and_statistics(backend: Backend, name: str) -> None:
    arrays, options = Shapes().draw(), CASES[name]
    asked = statistics_of(options)
    rows, _ = call(backend, arrays, options, statistics=asked)
    want = at.reference.attention_statistics(*arrays, **of_reference(arrays, options))
    for each in ("output", *asked):
        found = getattr(rows, each).detach().cpu().numpy()
        expected = np.broadcast_to(getattr(want, each), found.shape)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5, err_msg=each)


OF_ROWS = ("lse", "entropy", "mean_score", "score_variance", "concentration", "max_score", "max_weight")


#: A query with one key has scores of a million under this law. The backward pass of the kernels in Triton
#: starts from their log-sum-exp in float32, which is off by up to 0.06 there, and so are the weights.
LARGE_SCORES = "law norm_softmax"


@pytest.mark.parametrize("name", CASES)
def test_gradients(backend: Backend, name: str, request: pytest.FixtureRequest) -> None:
    if name == LARGE_SCORES and "Triton" in BACKENDS:
        request.applymarker(pytest.mark.xfail(strict=True, reason="a log-sum-exp of a million, in float32"))
    arrays, options = Shapes().draw(), CASES[name]
    is_softmax = options.get("normalizer", "softmax").startswith(("softmax", "sink"))
    weights = {each: (i + 1) / 4 for i, each in enumerate(OF_ROWS)} if is_softmax else {}
    rows, tensors = call(backend, arrays, options, statistics=tuple(weights) or ("max_score",))
    loss = rows.output.sin().sum()
    for each, weight in weights.items():
        loss = loss + weight * getattr(rows, each).nan_to_num(neginf=0.0).sum()
    found = torch.autograd.grad(loss, tensors)
    read = of_reference(arrays, options)
    forward = at.reference.attention_statistics(*arrays, **read)
    cotangents = {f"grad_{each}": np.full(forward.entropy.shape, weight) for each, weight in weights.items()}
    want = at.reference.attention_gradients(*arrays, np.cos(forward.output), **cotangents, **read)
    for one, each in zip(found, ("query", "key", "value"), strict=True):
        np.testing.assert_allclose(one.cpu(), getattr(want, each), rtol=2e-3, atol=1e-4, err_msg=each)


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (Shapes((5, 4), (6, 4), (6, 3)), {"is_causal": True}),
        (Shapes((2, 5, 4, 8), (2, 6, 4, 8), (2, 6, 4, 3)), {"layout": "bshd", "is_causal": True}),
        (Shapes((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3)), {"enable_gqa": True}),
        (Shapes((2, 5, 4, 8), (2, 6, 2, 8), (2, 6, 2, 3)), {"enable_gqa": True, "layout": "bshd"}),
        (Shapes((1, 1, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8)), {}),
        (Shapes((2, 130, 16), (2, 130, 16), (2, 130, 16)), {"is_causal": True, "window": (64, None)}),
    ],
    ids=["no heads", "bshd", "grouped", "grouped bshd", "broadcast", "tiles"],
)
def test_shapes(backend: Backend, shapes: Shapes, options: dict[str, Any]) -> None:
    arrays = shapes.draw()
    rows, _ = call(backend, arrays, options)
    if not options.keys() & {"enable_gqa", "layout"}:
        lead = np.broadcast_shapes(*(x.shape[:-2] for x in arrays))
        arrays = [np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in arrays]
    want = at.reference.attention_statistics(*arrays, **options)
    for each in ("output", "lse", "entropy"):
        np.testing.assert_allclose(
            getattr(rows, each).detach().cpu(), getattr(want, each), rtol=1e-4, atol=1e-5, err_msg=each
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_storage(backend: Backend, dtype: Any) -> None:
    """Sums are in float32: statistics are those of the rounded numbers, to float32."""
    tensors = [backend.place(torch.from_numpy(x).to(dtype)) for x in Shapes().draw()]
    rows = at.torch.attention_statistics(*tensors, is_causal=True, backend=backend.backend)
    want = at.reference.attention_statistics(*(x.double().cpu().numpy() for x in tensors), is_causal=True)
    assert rows.output.dtype == dtype
    assert rows.entropy.dtype == torch.float32
    np.testing.assert_allclose(rows.entropy.cpu(), want.entropy, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rows.output.float().cpu(), want.output, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masks_hide_by_low_numbers(backend: Backend, dtype: Any) -> None:
    """By half of the smallest number of their type, bit by bit as by -inf; what is hidden is not read."""
    arrays, hidden = Shapes().draw(), torch.from_numpy(~HIDDEN[0, 0]).index_fill(1, torch.tensor(2), True)
    for x in arrays[1:]:
        x[..., 2, :] = np.nan
    bias = torch.from_numpy(RNG.standard_normal(hidden.shape)).to(dtype)
    results = []
    for low in (torch.finfo(dtype).min, torch.finfo(dtype).min / 2, -torch.inf):
        mask = backend.place(bias.masked_fill(hidden, low).requires_grad_())
        options = {"attn_mask": mask, "statistics": ("entropy", "n_visible", "lse")}
        rows, tensors = call(backend, arrays, {}, **options, scale="log_n")
        loss = rows.output.sin().sum() + rows.entropy.sum()
        gradients = torch.autograd.grad(loss, [*tensors, mask])
        found = [rows.output, rows.entropy, rows.n_visible, rows.lse, *gradients]
        results.append([x.detach().cpu() for x in found])
        assert (results[-1][-1][hidden] == 0).all()
    for want, *others in zip(*reversed(results), strict=True):
        for each in others:
            torch.testing.assert_close(each, want, rtol=0, atol=0)
    large = backend.place(torch.full_like(bias, torch.finfo(dtype).min / 2.01))
    rows, _ = call(backend, Shapes().draw(), {}, attn_mask=large, statistics=("n_visible", "max_weight"))
    assert (rows.n_visible == 9).all()
    assert (rows.max_weight > 0).all()


def test_entropy_alone_and_its_gradient(backend: Backend) -> None:
    arrays = Shapes().draw()
    q, k = (backend.place(torch.from_numpy(x).float().requires_grad_()) for x in arrays[:2])
    entropy = at.torch.attention_entropy(q, k, is_causal=True, scale="log_n", backend=backend.backend)
    entropy.sum().backward()
    options = {"is_causal": True, "scale": at.laws.get("log_n")}
    want = at.reference.attention_gradients(*arrays[:2], grad_entropy=np.ones((2, 4, 7)), **options)
    np.testing.assert_allclose(
        entropy.detach().cpu(), at.reference.attention_entropy(*arrays[:2], **options), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(q.grad.cpu(), want.query, rtol=1e-4, atol=1e-5)


def test_what_is_learned_has_its_gradient(backend: Backend) -> None:
    """The parameters of a law, a factor, logits of sinks, scales and masks: as in the kernels in float64."""
    for options in (
        {"scale": lambda x: at.torch.Learned("ssmax", s=x, b=x)},
        {"scale": lambda x: at.torch.Scaled("log_n", x)},
        {"normalizer": lambda x: at.torch.Sink(x)},
        {"scale": lambda x: x[:, None]},
        {"attn_mask": lambda x: x[:, None, None]},
    ):
        found = []
        wide = Backend(on_the_cpu, "core")
        for (place, chosen), dtype in ((backend, torch.float32), (wide, torch.float64)):
            x = place(torch.linspace(0.2, 0.8, 4, dtype=dtype).requires_grad_())
            tensors = [place(torch.from_numpy(each).to(dtype)) for each in Shapes().draw()]
            given = {name: make(x) for name, make in options.items()}
            rows = at.torch.attention_statistics(*tensors, is_causal=True, backend=chosen, **given)
            (rows.output.sin().sum() + rows.entropy.square().sum()).backward()
            found.append(x.grad.double().cpu())
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_bad_input_is_one_line(backend: Backend) -> None:
    q, k, v = (backend.place(torch.from_numpy(x).float()) for x in Shapes().draw())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"causal": "x"}, "causal must be"),
        ({"scale": "nope"}, "nope"),
        ({"softcap": 0.0}, "softcap must be greater than 0"),
        ({"softcap": 1e-40}, "softcap must be between 1e-37 and 1e37"),
        ({"key_lengths": 99}, "key_lengths"),
        ({"normalizer": "sparsemax", "statistics": "lse"}, "lse"),
    ]
    for options, said in wrong:
        with pytest.raises(ValueError, match=said) as error:
            at.torch.attention_statistics(q, k, v, backend=backend.backend, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="all tensors must be on the device of query"):
        at.torch.attention(q, k.to("meta"), v, backend=backend.backend)
    names = "'auto', 'core', 'torch', 'triton'"
    with pytest.raises(ValueError, match=f"backend must be one of {names}, got 'cuda'"):
        at.torch.attention(q, k, v, backend="cuda")
