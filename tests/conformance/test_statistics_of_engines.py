# SPDX-License-Identifier: BSD-3-Clause
"""Statistics, weights, scores and gradients that engines return: right ones pass, each slip has its name."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.conformance import Case
from attnscale.conformance._statistics import StatisticOutcome, judge_statistics

ALLOWED = 5e-5
LN2 = math.log(2)
SINK = at.normalizers.Sink([0.0, 1.0, -0.5, 2.0])
RNG = np.random.default_rng(7)
BIAS = RNG.standard_normal((2, 4, 5, 7))
HIDING = np.where(RNG.random((5, 7)) > 0.2, BIAS, -np.inf)


def arrays(*, key_heads: int = 4, n_queries: int = 5) -> list[Any]:
    rng = np.random.default_rng(3)
    drawn = [rng.standard_normal((2, 4, n_queries, 6)), *rng.standard_normal((2, 2, key_heads, 7, 6))]
    return [x.astype(np.float32).astype(np.float64) for x in drawn]


def call(given: list[Any], **options: Any) -> Any:
    """Parts of a call in NumPy: scores by stage, weights, and statistics of the rows."""
    query, key, _ = given
    key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    n, m = query.shape[-2], key.shape[-2]
    seen = np.ones((2, 4, n, m), bool)
    if options.get("is_causal"):
        seen = seen & np.tri(n, m, dtype=bool)
    if options.get("document_ids") is not None:
        ids = np.asarray(options["document_ids"])
        seen = seen & (ids[:n, None] == ids)
    bias = options.get("attn_mask")
    bias = np.zeros((n, m)) if bias is None else bias
    seen = seen & np.isfinite(bias)
    of = SimpleNamespace(
        product=query @ key.swapaxes(-1, -2), seen=seen, bias=np.where(np.isfinite(bias), bias, 0)
    )
    of.scale = options.get("scale", 6**-0.5)
    of.scaled = of.product * of.scale
    cap = options.get("softcap")
    of.capped = of.scaled if cap is None else cap * np.tanh(of.scaled / cap)
    of.scores = np.where(seen, of.capped + of.bias, -np.inf)
    of.max_score, of.n_visible = of.scores.max(-1), seen.sum(-1)
    sink = options.get("normalizer")
    logit = np.full((4, 1), -np.inf) if sink is None else np.asarray(sink.logits)[:, None]
    of.logit = logit
    total = np.exp(of.scores).sum(-1) + np.exp(logit)
    of.lse = np.log(total)
    of.weights = np.exp(of.scores - of.lse[..., None])
    of.sink = np.exp(logit - of.lse)
    of.terms = -of.weights * np.log(np.where(of.weights > 0, of.weights, 1))
    of.entropy = of.terms.sum(-1) - of.sink * np.log(np.where(of.sink > 0, of.sink, 1))
    return of


def outcome(name: str, given: Any, drawn: list[Any] | None = None, **options: Any) -> StatisticOutcome:
    drawn = arrays() if drawn is None else drawn
    case = Case(options, *(x.shape for x in drawn))
    found = judge_statistics(case, drawn, {name: given, "output": None, "another": 1}, ALLOWED)
    assert list(found) == [name]
    assert found[name].name == name
    return found[name]


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "cap and bias": {"softcap": 1.5, "attn_mask": HIDING},
    "sink": {"normalizer": SINK},
    "scale": {"scale": 0.7, "is_causal": True},
    "documents": {"document_ids": [0, 0, 0, 1, 1, 1, 1], "is_causal": True},
}
ROWS = ("lse", "entropy", "max_score", "n_visible", "weights", "scores")


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_what_is_right_is_right(name: str, options: dict[str, Any]) -> None:
    found = outcome(name, getattr(call(arrays(), **options), name).astype(np.float32), **options)
    assert found.kind == "right"
    assert found.difference < ALLOWED


#: Statistic, options, what an engine returns from a call, and the name of the slip.
SLIPS: list[tuple[str, str, Any, str]] = [
    ("lse", "causal", lambda of: of.lse + 0.3, "no known convention; nearest: "),
    (
        "lse",
        "causal",
        lambda of: of.max_score / LN2 + of.lse - of.max_score,
        "max in base 2 plus ln of the sum",
    ),
    ("entropy", "causal", lambda of: of.entropy + 0.3, "no known quantity; nearest: "),
    ("entropy", "sink", lambda of: of.terms.sum(-1), "nats, the sink's term is left out"),
    (
        "entropy",
        "plain",
        lambda of: -(of.weights * np.log(of.weights + 0.01)).sum(-1),
        "nats, eps inside the lo",
    ),
    ("max_score", "causal", lambda of: of.max_score / LN2, "in base 2"),
    ("max_score", "causal", lambda of: -of.max_score, "negated"),
    ("max_score", "causal", lambda of: of.scaled.max(-1), "hidden keys count"),
    ("max_score", "causal", lambda of: masked(of, 0).max(-1), "hidden keys count with score 0"),
    ("max_score", "plain", lambda of: np.maximum(of.max_score, 0), "never below 0"),
    ("max_score", "scale", lambda of: masked(of, -np.inf, of.product).max(-1), "the scale is not applied"),
    (
        "max_score",
        "cap and bias",
        lambda of: masked(of, -np.inf, of.capped).max(-1),
        "of scores that are soft-capp",
    ),
    (
        "max_score",
        "cap and bias",
        lambda of: masked(of, -np.inf, of.scaled).max(-1),
        "of scores that are scaled",
    ),
    ("max_score", "sink", lambda of: np.maximum(of.max_score, of.logit), "the sink counts"),
    ("max_score", "causal", lambda of: of.max_score + 1, "not explained"),
    ("n_visible", "causal", lambda of: np.full(of.n_visible.shape, 7), "the causal mask is not read"),
    ("n_visible", "cap and bias", lambda of: np.full(of.n_visible.shape, 7), "attn_mask is not read"),
    (
        "n_visible",
        "documents",
        lambda of: of.n_visible + np.array([0, 0, 0, 3, 3]),
        "document_ids is not read",
    ),
    ("n_visible", "causal", lambda of: 7 - of.n_visible, "hidden keys are counted"),
    ("n_visible", "causal", lambda of: of.n_visible + 1, "one too many"),
    ("n_visible", "causal", lambda of: of.n_visible - 1, "one too few"),
    ("n_visible", "plain", lambda of: of.n_visible * 2, "not explained"),
    ("weights", "plain", lambda of: dropped(of.weights, 0.25), "after dropout of 0.25"),
    ("weights", "plain", lambda of: of.weights / 2, "rows sum to 0.5 to 0.5, not 1"),
    ("weights", "sink", lambda of: of.weights / 2, "rows sum to "),
    ("weights", "causal", lambda of: np.exp(of.scores), "exp(score), not divided by the sum"),
    (
        "weights",
        "causal",
        lambda of: np.exp(of.scores - of.max_score[..., None]),
        "exp(score - max), not divided by the sum",
    ),
    ("weights", "causal", lambda of: np.log(of.weights), "logarithms of the weights"),
    ("weights", "causal", lambda of: softmax(of.scaled), "the causal mask is not read"),
    ("weights", "causal", lambda of: leaking(of), "hidden keys keep weight, up to "),
    ("weights", "sink", lambda of: softmax(of.scores), "the sink is missing"),
    ("weights", "scale", lambda of: softmax(of.scores / 0.7), "the scale is not applied"),
    ("weights", "causal", lambda of: of.weights.swapaxes(-1, -2), "queries and keys are exchanged"),
    ("weights", "causal", lambda of: of.weights.swapaxes(1, 2), "heads and queries are exchanged"),
    ("weights", "causal", lambda of: of.weights.mean(1), "averaged over heads"),
    (
        "weights",
        "sink",
        lambda of: np.concatenate([of.weights, of.sink[..., None]], -1),
        "another column, the last",
    ),
    (
        "weights",
        "sink",
        lambda of: np.concatenate([of.sink[..., None], of.weights], -1),
        "another column, the first",
    ),
    ("weights", "causal", lambda of: of.weights[:1], "shape (1, 4, 5, 7) in place of (2, 4, 5, 7)"),
    ("weights", "causal", lambda of: np.where(of.seen, of.weights, np.nan), "NaN"),
    ("scores", "causal", lambda of: of.scores / LN2, "scaled, in base 2"),
    ("scores", "causal", lambda of: -of.scores, "scaled, negated"),
    ("scores", "causal", lambda of: of.scores + 1, "not explained"),
    ("scores", "causal", lambda of: of.scores[:1], "shape (1, 4, 5, 7) in place of (2, 4, 5, 7)"),
]


def masked(of: Any, number: float, scores: Any = None) -> Any:
    """Scores with a number at the hidden keys."""
    return np.where(of.seen, of.capped + of.bias if scores is None else scores, number)


def softmax(scores: Any) -> Any:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def dropped(weights: Any, rate: float) -> Any:
    return weights * (np.random.default_rng(5).random(weights.shape) >= rate) / (1 - rate)


def leaking(of: Any) -> Any:
    """Weights where hiding takes only 6 from a score."""
    return softmax(np.where(of.seen, of.scaled, of.scaled - 6))


@pytest.mark.parametrize(
    ("name", "options", "returned", "says"), SLIPS, ids=[f"{n}-{s}" for n, _, _, s in SLIPS]
)
def test_a_slip_of_a_statistic_is_named(name: str, options: str, returned: Any, says: str) -> None:
    with np.errstate(divide="ignore"):
        found = outcome(name, returned(call(arrays(), **CALLS[options])), **CALLS[options])
    assert found.kind == "wrong"
    assert found.says.startswith(says)


#: Scores by stage, and what hidden keys may hold.
STAGES: list[tuple[str, Any, str]] = [
    ("plain", lambda of: of.product, "query . key"),
    ("plain", lambda of: of.scaled, "scaled"),
    ("causal", lambda of: of.scaled, "scaled; hidden keys hold their own score"),
    ("causal", lambda of: of.scores, "scaled; hidden keys hold -inf"),
    ("causal", lambda of: masked(of, 0), "scaled; hidden keys hold 0"),
    ("causal", lambda of: masked(of, np.finfo(np.float32).min), "scaled; hidden keys hold the lowest number"),
    ("causal", lambda of: masked(of, -65504), "scaled; hidden keys hold -65504, the lowest of float16"),
    (
        "causal",
        lambda of: np.where(of.seen, of.scaled, of.scaled - 1e4),
        "scaled; hidden keys hold their score with a large negative number added",
    ),
    ("causal", lambda of: masked(of, 17), "scaled; hidden keys hold other numbers"),
    ("causal", lambda of: of.weights, "weights"),
    ("cap and bias", lambda of: of.scaled, "scaled; hidden keys hold their own score"),
    ("cap and bias", lambda of: of.capped, "soft-capped; hidden keys hold their own score"),
    ("cap and bias", lambda of: of.scores, "soft-capped, bias added; hidden keys hold -inf"),
    (
        "cap and bias",
        lambda of: masked(of, -np.inf, of.scaled + of.bias),
        "scaled, bias added; hidden keys hold -inf",
    ),
    (
        "cap and bias",
        lambda of: masked(of, -np.inf, 1.5 * np.tanh((of.scaled + of.bias) / 1.5)),
        "bias added, soft-capped; hidden keys hold -inf",
    ),
]


@pytest.mark.parametrize(("options", "returned", "says"), STAGES, ids=[f"{o}-{s}" for o, _, s in STAGES])
def test_the_stage_of_scores_is_named(options: str, returned: Any, says: str) -> None:
    found = outcome("scores", returned(call(arrays(), **CALLS[options])), **CALLS[options])
    assert (found.kind, found.says) == ("right", says)


def test_the_convention_of_what_is_right_is_said() -> None:
    of = call(arrays(), **CALLS["causal"])
    for name, given, says in (
        ("lse", of.lse / LN2, "base 2, scale inside, sinks counted"),
        (
            "lse",
            (of.max_score / LN2, np.exp(of.lse - of.max_score)),
            "base 2, scale inside, sinks counted, as max and",
        ),
        (
            "lse",
            np.log(np.exp(masked(of, 0)).sum(-1)),
            "natural log, scale inside, sinks counted, hidden keys count",
        ),
        ("entropy", of.entropy / LN2, "bits"),
        ("entropy", of.entropy.mean((0, 2)), "nats, mean over batch and queries"),
        ("entropy", of.entropy.swapaxes(1, 2), "nats"),
    ):
        found = outcome(name, given, **CALLS["causal"])
        assert found.kind == "right"
        assert found.says.startswith(says)


def test_weights_show_that_the_entropy_is_behind_dropout() -> None:
    of = call(arrays())
    weights = dropped(of.weights, 0.5)
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)
    case = Case({}, *(x.shape for x in arrays()))
    found = judge_statistics(case, arrays(), {"entropy": entropy, "weights": weights}, ALLOWED)
    assert found["entropy"].says == "nats, of the weights after dropout of 0.5"
    assert found["weights"].says == "after dropout of 0.5"


def test_rows_without_keys() -> None:
    mask = np.ones((5, 7), bool)
    mask[2] = False
    drawn, options = arrays(), {"attn_mask": mask}
    weights = at.attention_weights(drawn[0], drawn[1], attn_mask=mask)
    assert outcome("weights", weights, **options).kind == "right"
    for held, says in ((np.nan, "NaN"), (1 / 7, "weights that sum to 1")):
        wrong = np.where(mask.any(-1)[:, None], weights, held)
        found = outcome("weights", wrong, **options)
        assert (found.kind, found.says) == ("wrong", f"rows without keys hold {says}, not 0")
    top = at.attention_statistics(drawn[0], drawn[1], attn_mask=mask, statistics="max_score").max_score
    assert outcome("max_score", np.where(np.isfinite(top), top, 0), **options).kind == "right"
    nothing = {"attn_mask": np.zeros((5, 7), bool)}
    case = Case(nothing, *(x.shape for x in drawn))
    assert judge_statistics(case, drawn, {"lse": top, "entropy": top}, ALLOWED) == {}


class Backward:
    """Gradients as an engine computes them, with slips by name."""

    def __init__(self, drawn: list[Any], options: dict[str, Any], *slips: str, last: bool = False) -> None:
        self.drawn, self.options, self.slips, self.last = drawn, options, slips, last
        self.of = call(drawn, **options)

    def of_output(self, grad: Any) -> tuple[Any, ...]:
        value = self.drawn[2]
        p = self.of.weights
        dp = grad @ self._repeated(value).swapaxes(-1, -2)
        mean = 0 if "no mean" in self.slips else (p * dp).sum(-1, keepdims=True)
        of_value = self._summed(p.swapaxes(-1, -2) @ grad)
        return (*self._of_scores(p * (dp - mean)), of_value)

    def of_lse(self, grad: Any) -> tuple[Any, ...]:
        return self._of_scores(self.of.weights * grad[..., None])

    def _of_scores(self, ds: Any) -> tuple[Any, Any]:
        query, key, _ = self.drawn
        cap = self.options.get("softcap")
        if cap is not None and "no slope" not in self.slips:
            ds = ds * (1 - np.tanh(self.of.scaled / cap) ** 2)
        ds = ds * (1 if "no scale" in self.slips else self.of.scale)
        ds = ds * (self.of.scale if "scale twice" in self.slips else 1)
        found = ds @ self._repeated(key), self._summed(ds.swapaxes(-1, -2) @ query)
        return found[::-1] if "exchanged" in self.slips else found

    def _repeated(self, array: Any) -> Any:
        return np.repeat(array, 4 // array.shape[1], axis=1)

    def _summed(self, array: Any) -> Any:
        heads = self.drawn[1].shape[1]
        split = array.reshape(2, heads, 4 // heads, *array.shape[-2:])
        if heads == 4 or "not summed" in self.slips:
            return array
        if "first head" in self.slips:
            return split[:, :, 0]
        if "last head" in self.slips:
            return split[:, :, -1]
        if "mean" in self.slips:
            return split.mean(2)
        if "other heads" in self.slips:
            return array.reshape(2, 4 // heads, heads, *array.shape[-2:]).sum(1)
        return split.sum(2)


GRADIENT_CALLS: dict[str, dict[str, Any]] = {
    **CALLS,
    "grouped": {"enable_gqa": True},
    "cap": {"softcap": 1.5},
}


def drawn_for(options: str) -> list[Any]:
    return arrays(key_heads=2 if options == "grouped" else 4)


@pytest.mark.parametrize("options", GRADIENT_CALLS)
def test_gradients_that_are_right(options: str) -> None:
    drawn, chosen = drawn_for(options), GRADIENT_CALLS[options]
    backward = Backward(drawn, chosen)
    for name, function in (("gradients", backward.of_output), ("lse_gradients", backward.of_lse)):
        found = outcome(name, function, drawn, **chosen)
        assert (found.kind, found.says) == ("right", "")
        assert found.difference < 1e-10


GRADIENT_SLIPS: list[tuple[str, str, str, str]] = [
    ("gradients", "causal", "no scale", "gradient of query and key: the scale is missing"),
    ("gradients", "causal", "scale twice", "gradient of query and key: the scale is applied twice"),
    ("gradients", "cap", "no slope", "gradient of query and key: the derivative of the soft-cap is missing"),
    ("gradients", "causal", "no mean", "gradient of query and key: the mean of the row is not subtracted"),
    (
        "gradients",
        "grouped",
        "not summed",
        "gradient of key and value: not summed over the heads that share it",
    ),
    (
        "gradients",
        "grouped",
        "first head",
        "gradient of key and value: of the first head that shares it alone",
    ),
    ("gradients", "grouped", "last head", "gradient of key and value: of the last head that shares it alone"),
    ("gradients", "grouped", "mean", "gradient of key and value: the mean over the heads that share it"),
    ("gradients", "grouped", "other heads", "gradient of key and value: summed over other heads than those"),
    ("lse_gradients", "causal", "no scale", "gradient of query and key: the scale is missing"),
    (
        "lse_gradients",
        "cap",
        "no slope",
        "gradient of query and key: the derivative of the soft-cap is missing",
    ),
    ("lse_gradients", "grouped", "first head", "gradient of key: of the first head that shares it alone"),
]


@pytest.mark.parametrize(("name", "options", "slip", "says"), GRADIENT_SLIPS, ids=lambda each: each)
def test_a_slip_of_a_gradient_is_named(name: str, options: str, slip: str, says: str) -> None:
    drawn, chosen = drawn_for(options), GRADIENT_CALLS[options]
    backward = Backward(drawn, chosen, slip)
    function = backward.of_output if name == "gradients" else backward.of_lse
    found = outcome(name, function, drawn, **chosen)
    assert found.kind == "wrong"
    assert found.says.startswith(says)


def square() -> list[Any]:
    rng = np.random.default_rng(11)
    return list(rng.standard_normal((3, 2, 4, 7, 6)))


#: What becomes of right gradients of query, key and value, and its name.
MENDED: list[tuple[Any, str]] = [
    (lambda q, k, v: (k, q, v), "gradients of query and key are exchanged"),
    (lambda q, k, v: (-q, k, v), "gradient of query: the sign is reversed"),
    (lambda q, k, v: (q, 0 * k, v), "gradient of key: 0"),
    (lambda q, k, v: (q, k, v * 6**-0.5), "gradient of value: the scale is applied"),
    (
        lambda q, k, v: (q / 6**-0.5, k, v + 1),
        "gradient of query: the scale is missing; gradient of value: not expl",
    ),
    (lambda q, k, v: (q, k[:1], v), "gradient of key: shape (1, 4, 7, 6) in place of (2, 4, 7, 6)"),
    (lambda q, k, v: (q * np.nan, k, v), "gradient of query: NaN"),
]


@pytest.mark.parametrize(("change", "says"), MENDED, ids=[says for _, says in MENDED])
def test_a_changed_gradient_is_named(change: Any, says: str) -> None:
    drawn = square()
    found = outcome("gradients", lambda grad: change(*Backward(drawn, {}).of_output(grad)), drawn)
    assert found.kind == "wrong"
    assert found.says.startswith(says)


def test_a_gradient_of_lse_that_is_missing_is_named() -> None:
    drawn = square()
    found = outcome("lse_gradients", lambda _: (0 * drawn[0], 0 * drawn[1]), drawn)
    assert (found.kind, found.says) == ("wrong", "gradient of query and key: 0")


def test_errors_and_refusals_of_an_engine() -> None:
    def fails(_: Any) -> Any:
        raise RuntimeError("out of  memory")

    def refuses(_: Any) -> Any:
        raise NotImplementedError

    assert outcome("gradients", fails).says == "RuntimeError: out of memory"
    assert outcome("entropy", np.zeros((2, 9))).says.startswith("ValueError: entropy must have the shape")
    assert outcome("max_score", np.zeros(3)).says.startswith("ValueError: max_score must have the shape")
    case, drawn = Case({}, *(x.shape for x in arrays())), arrays()
    assert judge_statistics(case, drawn, {"gradients": refuses}, ALLOWED) == {}
    drawn[1][..., 0, 0] = np.nan
    assert judge_statistics(case, drawn, {"lse": np.zeros((2, 4, 5))}, ALLOWED) == {}


def test_a_gradient_has_the_type_of_the_output() -> None:
    seen = []

    def gradients(grad: Any) -> Any:
        seen.append(grad)
        return Backward(arrays(), {}).of_output(grad)

    case = Case({}, *(x.shape for x in arrays()))
    output = np.zeros((2, 4, 5, 6), np.float16)
    given = {"gradients": gradients, "output": output}
    assert judge_statistics(case, arrays(), given, ALLOWED)["gradients"].kind == "right"
    assert seen[0].dtype == np.float16
    assert seen[0].shape == output.shape


def test_torch_has_its_gradients_right_and_its_weights_behind_dropout() -> None:
    torch = pytest.importorskip("torch")
    drawn = arrays()
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in drawn)
    output = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    found = outcome(
        "gradients",
        lambda g: torch.autograd.grad(output, (q, k, v), torch.from_numpy(g)),
        is_causal=True,
        drawn=drawn,
    )
    assert (found.kind, found.difference < 1e-12) == ("right", True)
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(24, 4, dropout=0.5, bias=False, batch_first=True).double()
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(24).repeat(3, 1))
    tokens = torch.from_numpy(np.random.default_rng(2).standard_normal((2, 5, 24)))
    _, weights = layer(tokens, tokens, tokens, average_attn_weights=False)
    split = tokens.numpy().reshape(2, 5, 4, 6).transpose(0, 2, 1, 3)
    found = outcome("weights", weights.detach().numpy(), [split] * 3)
    assert (found.kind, found.says) == ("wrong", "after dropout of 0.5")
    mean = layer.eval()(tokens, tokens, tokens)[1].detach().numpy()
    assert outcome("weights", mean, [split] * 3).says == "averaged over heads"


def test_gradients_that_are_0_are_not_exchanged() -> None:
    case = at.conformance.CASES["plain"]._replace(options={"scale": 0.0})

    def attend(*arrays: Any, **options: Any) -> Any:
        def gradients(grad: Any) -> Any:
            zeros = [np.zeros(x.shape) for x in arrays[:2]]
            return (*zeros, np.full(arrays[2].shape, np.nan))

        return {"output": at.attention(*arrays, **options), "gradients": gradients}

    found = at.conformance.check(attend, cases={"zero": case}, seed=0).outcomes["zero"]
    assert found.statistics["gradients"].says == "gradient of value: NaN"
