# SPDX-License-Identifier: BSD-3-Clause
"""Laws whose parameters are tensors: at.torch.Learned and at.torch.Scaled."""

from __future__ import annotations

from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("fixed_seed", "either_way"),
]


def inputs(**more: Any) -> Any:
    return [torch.randn(2, 3, 9, 4, dtype=torch.float64, **more) for _ in range(3)]


def wide(value: Any) -> Any:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


#: A law and its learned parameters; laws of one or two are among the cases of all backends.
LEARNED: list[tuple[Any, dict[str, Any]]] = [
    ("ssmax(b=0.2)", {"s": 0.4}),
    ("asentmax", {"delta": [1.0, 0.9, 0.8], "beta": 0.5, "gamma": [1.5, 1.0, 0.5]}),
    (at.laws.Annealed(), {"n0": 3.0}),
    ("2 * log_n", {"amplitude": [1.0, 2.0, 3.0], "base": 5.0}),
]


@pytest.mark.parametrize(("law", "values"), LEARNED, ids=str)
def test_gradients_agree_with_finite_differences(law: Any, values: dict[str, Any]) -> None:
    q, k, v = inputs()
    v = v[..., :1]  # one channel of the output, since each number of it is a backward pass

    def call(*parameters: Any) -> tuple[Any, ...]:
        scale = at.torch.Learned(law, **dict(zip(values, parameters, strict=True)))
        rows = at.torch.attention_statistics(q, k, v, scale=scale, is_causal=True)
        return rows.output, rows.entropy

    assert torch.autograd.gradcheck(call, tuple(wide(x) for x in values.values()))


def test_the_values_agree_with_the_law() -> None:
    q, k, v = inputs()
    s = torch.tensor([0.4, 0.5, 0.6])
    scale = at.torch.Learned("ssmax(floor=2)", s=s)
    law = at.laws.SSMax(s=s.double().tolist(), floor=2)
    assert scale.current() == law
    assert torch.equal(at.torch.attention(q, k, v, scale=scale), at.torch.attention(q, k, v, scale=law))


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_factor_is_the_amplitude_of_a_law(shape: tuple[int, ...]) -> None:
    q, k, v = inputs()
    found = []
    for make in (
        lambda x: at.torch.Scaled("standard", x),
        lambda x: at.torch.Learned("per_head", values=x),
        lambda x: at.torch.Learned("1 * standard", amplitude=x),
    ):
        x = torch.full(shape, 1.3, dtype=torch.float64, requires_grad=True)
        at.torch.attention(q, k, v, scale=make(x)).square().sum().backward()
        found.append(x.grad)
    assert all(torch.equal(each, found[0]) for each in found)


def test_the_law_and_the_factor_can_be_read() -> None:
    factor = torch.ones(3)
    scaled = at.torch.Scaled(at.laws.LogN(base=8), factor)
    assert scaled.factor is factor
    assert at.laws.get(scaled.law) == at.laws.LogN(base=8)


def test_a_factor_of_a_factor() -> None:
    """The derivative by the outer one, not by the inner one."""
    q, k, v = inputs()
    assert torch.autograd.gradcheck(
        lambda x: at.torch.attention(q, k, v, scale=at.torch.Scaled("3 * log_n(base=8)", x)), (wide(0.5),)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_keep_their_type(dtype: Any) -> None:
    q, k, v = inputs()
    s = torch.full((3,), 0.5, dtype=dtype, requires_grad=True)
    b = torch.tensor(0.25, requires_grad=True)
    at.torch.attention(q, k, v, scale=at.torch.Learned("ssmax", s=s, b=b)).square().sum().backward()
    assert (s.grad.dtype, b.grad.dtype) == (dtype, torch.float32)


def test_opcheck() -> None:
    from tests.tensors import operators

    q, k, v = inputs()
    law = at.torch.Learned("ssmax(floor=2)", s=wide([0.4, 0.5, 0.6]), b=wide(0.1))
    operators.check(lambda: at.torch.attention_statistics(q, k, v, scale=law, is_causal=True), "attend")


@pytest.mark.parametrize(
    "law", ["ssmax", "2 * ssmax", at.laws.SSMax(floor=2), 1.5 * at.laws.SSMax(b=[0.1, 0.2, 0.3])], ids=str
)
def test_compiled_and_under_transforms(law: Any) -> None:
    q, k, v = inputs()
    s = wide([0.4, 0.5, 0.6])

    def loss(s: Any) -> Any:
        return at.torch.attention(q, k, v, scale=at.torch.Learned(law, s=s), is_causal=True).square().sum()

    (want,) = torch.autograd.grad(loss(s), s)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(s), s)[0], want)
    assert torch.equal(torch.func.grad(loss)(s.detach()), want)


def test_every_law_says_what_can_be_learned() -> None:
    known = dict.fromkeys(("standard", "natural_log_n", "entropy_invariant"), "it has none")
    for law, names in {**known, "ssmax": "s, b"}.items():
        with pytest.raises(ValueError, match=rf"law '{law}' has a gradient of \({names}\), got 'x'"):
            at.torch.nn.MultiheadAttention(8, 2, law=law, learnable_law="x")


@pytest.mark.parametrize(("law", "parameters", "message"), [
    ("log_n", {"floor": torch.tensor(2.0)}, r"law 'log_n' has a gradient of \(base\), got 'floor'"),
    ("standard", {"s": torch.tensor(2.0)}, "law 'standard' has no parameter 's'"),
    ("annealed", {"least": torch.tensor(2.0)}, r"has a gradient of \(n0\), got 'least'"),
    ("entropy_invariant", {"n0": torch.tensor(9.0)}, r"has a gradient of \(it has none\), got 'n0'"),
    ("log_n", {"base": 2.0}, r"base must be a tensor of shape \(\) or \(heads,\), got 2.0"),
    ("ssmax", {"s": torch.ones(2, 3)}, "s must be a tensor of shape"),
    ("ssmax", {}, "a parameter of 'ssmax' must be given as a tensor, got none"),
    ("log_m", {"base": torch.tensor(2.0)}, "log_m"),
])  # fmt: skip
def test_refused_when_it_is_made(law: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        at.torch.Learned(law, **parameters)


@pytest.mark.parametrize(("parameters", "message"), [
    ({"base": torch.tensor(0.5)}, "base must be greater than 1, got 0.5"),
    ({"base": torch.tensor(torch.nan)}, "base must be finite, got nan"),
    ({"base": torch.ones(3)}, r"base must be a number, got \(1.0, 1.0, 1.0\)"),
])  # fmt: skip
def test_values_are_checked_as_those_of_the_law(parameters: dict[str, Any], message: str) -> None:
    q, k, v = inputs()
    scale = at.torch.Learned("log_n", **parameters)
    with pytest.raises((TypeError, ValueError), match=message):
        at.torch.attention(q, k, v, scale=scale)
