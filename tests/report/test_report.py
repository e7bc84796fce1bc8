# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of a report against the public functions."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale._report import kept, make, measure, rows, text
from attnscale.calibration.fit import Length
from attnscale.theory import expected_entropy

kept_heads, readable, text_rows = kept.kept_heads, text.readable, text.text_rows
LENGTHS = [32, 64, 128]
LAWS = ("log_n", "annealed")


@pytest.fixture(scope="module")
def heads() -> tuple[np.ndarray, np.ndarray]:
    """Four very different heads of MiniLM, in float32."""
    data = at.datasets.minilm_qk()
    chosen = [0, 2, 7, 11]
    return data.query[chosen].astype(np.float32), data.key[chosen].astype(np.float32)


@pytest.fixture(scope="module")
def found(heads: tuple[np.ndarray, np.ndarray]) -> at.Report:
    return at.report(*heads, lengths=LENGTHS, laws=LAWS, about={"model": "MiniLM"})


@pytest.fixture(scope="module")
def causal() -> tuple[np.ndarray, np.ndarray, at.Report]:
    data = at.datasets.causal_qk()
    q, k = data.query[[0, 3]].astype(np.float32), data.key[[0, 3]].astype(np.float32)
    return q, k, at.report(q, k, lengths=LENGTHS, laws=["log_n"], is_causal=True)


def test_entropy_under_each_law_is_that_of_attention_entropy(found: at.Report, heads: Any) -> None:
    assert [law.spelling for law in found.laws] == ["standard", "log_n(base=32)", "annealed(n0=32)"]
    for j, n in enumerate(LENGTHS):
        for k, law in enumerate(found.laws):
            expected = at.attention_entropy(*(x[:, :n] for x in heads), scale=law)
            np.testing.assert_allclose(found.entropy[:, j, k], expected.mean(-1), atol=1e-5)
    np.testing.assert_allclose(found.effective_keys, np.exp(found.entropy[..., 0]))


@pytest.mark.parametrize("is_causal", [False, True])
def test_kept_heads_are_queries_and_keys_in_float16(heads: Any, causal: Any, is_causal: bool) -> None:
    q, k = (causal if is_causal else heads)[:2]
    options: dict[str, Any] = {"lengths": [32, 64], "laws": [], "enable_gqa": True, "with_heads": True}
    kept = at.report(q, k[:1], is_causal=is_causal, **options).to_dict()["kept"]
    for each, query in zip(kept, q, strict=True):
        assert (each["n"], each["head_dim"]) == (64, q.shape[-1])
        assert (each["is_causal"], each["window"]) == (is_causal, None)
        for name, array in (("query", query), ("key", k[0])):
            numbers = np.frombuffer(base64.b64decode(each[name]), "<f2").reshape(64, -1)
            np.testing.assert_array_equal(numbers, array[:64].astype(np.float16))


def test_heads_that_a_page_cannot_measure_are_not_kept(found: at.Report, heads: Any) -> None:
    assert found.kept is None
    q, k = (x[:, :64] for x in heads)
    large = np.where(np.arange(4)[:, None, None] == 2, 1e6, 1).astype(np.float32)
    options: dict[str, Any] = {"causal": None, "enable_gqa": False, "num_threads": None}
    rows = {
        "large": Length(q * large, k, options),
        "mask": Length(q, k, options | {"attn_mask": np.ones((64, 64), bool)}),
        "soft-cap": Length(q, k, options | {"softcap": 5.0}),
        "window": Length(q, k, options | {"causal": "bottom_right", "window": (8, 0)}),
        "keys": Length(q[:, :32], k, options),
    }
    kept = {name: kept_heads([each]) for name, each in rows.items()}
    assert [x is None for x in kept["large"]] == [False, False, True, False]
    for name in ("mask", "soft-cap", "keys"):
        assert kept[name] == (None,) * 4
    assert all(x and x.is_causal and x.window == (8, 0) for x in kept["window"])


def decoded(text: Any, name: str, head: int, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text[name][head]), kind)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_rows_of_the_text_are_those_of_attention(heads: Any, causal: Any, is_causal: bool) -> None:
    q, k = (x[:, :100] for x in (causal if is_causal else heads)[:2])
    tokens, spans = [f"t{i}" for i in range(100)], {"head": (0, 3), "tail": (90, 100)}
    options: dict[str, Any] = {"lengths": [50, 100], "laws": ["log_n"], "is_causal": is_causal}
    text = at.report(q, k, tokens=tokens, spans=spans, **options).text
    assert text is not None
    weights = at.attention_weights(q, k, is_causal=is_causal).astype(np.float64)
    np.testing.assert_allclose(text.entropy, at.attention_entropy(q, k, is_causal=is_causal), atol=1e-6)
    np.testing.assert_allclose(text.top_weights, -np.sort(-weights, -1)[..., :5], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(weights, text.top_keys, -1), text.top_weights, atol=1e-6)
    parts = np.stack([weights[..., a:b].sum(-1) for a, b in spans.values()], -1)
    np.testing.assert_allclose(text.span_weights, parts, atol=1e-6)
    written = text.to_dict()
    assert written["spans"][1] == {"name": "tail", "start": 90, "stop": 100}
    np.testing.assert_array_equal(decoded(written, "top_keys", 1, "<u2").reshape(100, 5), text.top_keys[1])
    nats = decoded(written, "entropy", 1, "u1") / 255 * np.log(100)
    np.testing.assert_allclose(nats, text.entropy[1], atol=0.5 / 255 * np.log(100) + 1e-9)
    shares = decoded(written, "top_weights", 1, "u1").reshape(100, 5) / 255
    np.testing.assert_allclose(shares, text.top_weights[1], atol=0.5 / 255 + 1e-9)


def test_heads_that_read_something_else_have_no_text(heads: Any) -> None:
    q, k = heads
    options = {"causal": None, "enable_gqa": False, "num_threads": None, "window": (5, 5)}
    own = {n: Length(q[:1, :n], k[:1, :n], options) for n in (40, 64)}
    other = {n: Length(q[:1, :n], k[:1, :30], {**options, "window": None}) for n in (40, 64)}
    groups = [make.Group(other, [(0, 0)], "cross"), make.Group(own, [(1, 0)], "self")]
    text = make.report_of(groups, ["log_n"], {}, tokens=["x"] * 64).text
    assert text is not None
    assert np.isnan(text.entropy[0]).all()
    assert text.to_dict()["entropy"][0] is None
    wanted = at.attention_entropy(q[0, :64], k[0, :64], window=(5, 5))
    np.testing.assert_allclose(text.entropy[1], wanted, atol=1e-6)


def test_the_text_of_many_heads_is_cut_to_keep_the_page_small() -> None:
    q, k = np.random.default_rng(0).standard_normal((2, 144, 512, 8)).astype(np.float32)
    options = {"causal": "bottom_right", "enable_gqa": False, "num_threads": None}
    text = text_rows([Length(q, k, options)], tuple(["word"] * 512), ())
    assert len(text.tokens) == 227
    assert len(json.dumps(text.to_dict())) < 750_000
    wanted = at.attention_entropy(q[3], k[3], is_causal=True)[:227].astype(np.float64)
    np.testing.assert_array_equal(text.entropy[3], wanted)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"tokens": "text"}, TypeError, "tokens must be a sequence of str, got 'text'"),
        ({"tokens": [1, 2]}, TypeError, "tokens must be a sequence of str"),
        ({"tokens": ["a"] * 63}, ValueError, "tokens must be one for each of the 64 rows, got 63"),
        ({"spans": {"a": (0, 1)}}, ValueError, "spans must come with tokens"),
        ({"tokens": ["a"] * 64, "spans": {"a": (3, 65)}}, ValueError, r"stop <= 64, got \(3, 65\) for 'a'"),
        ({"tokens": ["a"] * 64, "spans": {"a": (0, 4), "b": (3, 5)}}, ValueError, "overlap, got 'a' and 'b'"),
        ({"tokens": ["a"] * 64, "spans": [(0, 4)]}, TypeError, "spans must map names"),
    ],
)
def test_what_is_no_text_is_refused(heads: Any, given: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        at.report(*(x[:, :64] for x in heads), laws=["log_n"], **given)


def test_causal_entropy_is_the_mean_of_the_last_eighth(causal: Any) -> None:
    q, k, found = causal
    for j, n in enumerate(LENGTHS):
        rows = at.attention_entropy(q[:, :n], k[:, :n], is_causal=True)
        np.testing.assert_allclose(found.entropy[:, j, 0], rows[:, -n // 8 :].mean(-1), atol=1e-5)
        seen = np.arange(n - n // 8, n) + 1
        np.testing.assert_allclose(found.uniform_entropy[:, j], np.log(seen).mean())
        parts = [part.mean(-1) for part in np.array_split(rows.astype(float), measure.POSITIONS, axis=1)]
        np.testing.assert_allclose(found.by_position[:, j], np.stack(parts, -1), atol=1e-6)


def test_weights_are_those_of_the_matrix(found: at.Report, heads: Any, causal: Any) -> None:
    q, k, report = causal
    for each, (query, key), is_causal, share in ((found, heads, False, 1), (report, (q, k), True, 8)):
        for j, n in enumerate(LENGTHS):
            weights = at.attention_weights(query[:, :n], key[:, :n], is_causal=is_causal).astype(float)
            last = weights[:, -n // share :]
            np.testing.assert_allclose(each.first_key_weight[:, j], last[..., 0].mean(-1), atol=1e-6)
            np.testing.assert_allclose(each.max_weight[:, j], last.max(-1).mean(-1), atol=1e-6)
            received = weights.mean(1)
            np.testing.assert_allclose(each.received[:, j], received.max(-1), atol=1e-6)
            np.testing.assert_array_equal(each.received_by[:, j], received.argmax(-1))


def test_the_histogram_counts_every_row(found: at.Report, heads: Any) -> None:
    for j, n in enumerate(LENGTHS):
        rows = at.attention_entropy(*(x[:, :n] for x in heads))
        for i, each in enumerate(rows):
            expected = np.histogram(each.clip(0, np.log(n)), bins=measure.BINS, range=(0, np.log(n)))[0]
            np.testing.assert_array_equal(found.histogram[i, j], expected)
    np.testing.assert_array_equal(found.histogram.sum(-1), np.broadcast_to(LENGTHS, (4, 3)))


def test_the_law_that_keeps_the_entropy_is_that_of_calibrate(found: at.Report, heads: Any) -> None:
    q, k = (x[:, : LENGTHS[-1]] for x in heads)
    expected = at.calibrate(q, k, LENGTHS[0], LENGTHS, laws=found.laws)
    np.testing.assert_array_equal(found.best, expected.best)
    wide = q.astype(np.float64), k.astype(np.float64)
    for j, n in enumerate(LENGTHS):  # nearer to the target than the tolerance of float32 in calibrate
        scale = found.beta[:, j, None] / np.sqrt(32)
        there = at.attention_entropy(*(x[:, :n] for x in wide), scale=scale).mean(-1)
        np.testing.assert_allclose(there, expected.target, atol=5e-7)
    np.testing.assert_allclose(found.beta, expected.beta, rtol=2e-6)
    errors = np.asarray(expected.entropy_error)[expected.best, range(4)]
    np.testing.assert_allclose(found.best_misses, errors, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.misses.T, expected.entropy_error, rtol=1e-6, atol=1e-6)
    constants = np.asarray(expected.amplitude)[expected.best, range(4)]
    np.testing.assert_allclose(found.best_constant, constants, rtol=2e-6)
    np.testing.assert_allclose(found.entropy[..., 0], expected.standard_entropy, atol=1e-5)


def test_random_keys_have_their_exact_entropy(found: at.Report) -> None:
    for j, n in enumerate(LENGTHS):
        for k, law in enumerate(found.laws):
            exact = expected_entropy(n, float(law.multiplier(n, 32)), head_dim=32)
            np.testing.assert_allclose(found.random_entropy[:, j, k], exact, rtol=1e-9)
        exact = [float(expected_entropy(n, beta, head_dim=32)) for beta in measure.MULTIPLES]
        np.testing.assert_allclose(found.random_curve[:, j], np.broadcast_to(exact, (4, 17)), rtol=1e-9)


def test_random_keys_of_causal_rows_are_their_mean(causal: Any) -> None:
    found = causal[2]
    seen = np.arange(28, 32) + 1
    exact = expected_entropy(seen, found.laws[1].multiplier(seen, 32), head_dim=32)
    np.testing.assert_allclose(found.random_entropy[:, 0, 1], exact.mean(), atol=1e-4)
    seen = np.arange(112, 128) + 1
    exact = expected_entropy(seen, 1.0, head_dim=32)
    np.testing.assert_allclose(found.random_entropy[:, 2, 0], exact.mean(), atol=1e-4)
    for m in (0, measure.OWN, 14):
        exact = expected_entropy(seen, measure.MULTIPLES[m], head_dim=32)
        np.testing.assert_allclose(found.random_curve[:, 2, m], exact.mean(), atol=2e-4)


def softmax_numbers(q: np.ndarray, k: np.ndarray, scale: float, rows: slice, is_causal: bool) -> Any:
    """Entropy, largest weight, first key and received of heads, by plain NumPy in float64."""
    scores = scale * q.astype(float) @ k.astype(float).swapaxes(-1, -2)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    logs = np.log(np.where(weights > 0, weights, 1))
    counted, received = weights[:, rows], weights.mean(1)
    entropy = -(weights * logs).sum(-1)[:, rows].mean(-1)
    most = counted.max(-1).mean(-1), counted[..., 0].mean(-1), received.max(-1)
    return entropy, *most, received.argmax(-1)


@pytest.mark.parametrize("is_causal", [False, True])
def test_every_number_at_a_multiple_is_that_of_softmax_there(
    found: at.Report, heads: Any, causal: Any, is_causal: bool
) -> None:
    q, k, report = causal if is_causal else (*heads, found)
    assert report.multiples[measure.OWN] == 1
    for j, n in enumerate(LENGTHS):
        rows = slice(-(n // 8) if is_causal else 0, None)
        for m, multiple in enumerate(measure.MULTIPLES):
            expected = softmax_numbers(q[:, :n], k[:, :n], multiple / np.sqrt(32), rows, is_causal)
            names = ("curve", "max_weight_curve", "first_key_curve", "received_curve")
            for name, exact in zip(names, expected, strict=False):
                np.testing.assert_allclose(getattr(report, name)[:, j, m], exact, atol=2e-5, err_msg=name)
            np.testing.assert_array_equal(report.received_by_curve[:, j, m], expected[-1])
        equal = softmax_numbers(q[:, :n], k[:, :n], 0.0, rows, is_causal)
        np.testing.assert_allclose(report.uniform_entropy[:, j], equal[0])
        np.testing.assert_allclose(report.uniform_first_key[:, j], equal[2], rtol=1e-5)
        np.testing.assert_allclose(report.uniform_received[:, j], equal[3], rtol=1e-5)


def in_a_band(n: int) -> np.ndarray:
    seen = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) % 7 < 4
    return np.stack([seen, seen | (np.arange(n) < 3)]).repeat(2, axis=0)


@pytest.mark.parametrize(
    "option",
    [
        {"window": (20, 3)},
        {"causal": "bottom_right", "window": (20, 0)},
        {"attn_mask": in_a_band(64)},
        {"attn_mask": np.where(in_a_band(64)[0], 0, -np.inf).astype(np.float32), "causal": "bottom_right"},
        {"attn_mask": np.linspace(-2, 2, 64, dtype=np.float32)[None].repeat(64, axis=0)},
        {"softcap": 5.0},
        {"normalizer": at.normalizers.Sink((0.5, -1.0, 2.0, 0.0))},
    ],
    ids=lambda option: "-".join(option),
)
@pytest.mark.parametrize("together", [4, 1])
def test_numbers_at_multiples_are_those_of_the_direct_functions(
    heads: Any, option: Any, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where heads share keys, and are measured one after another."""
    monkeypatch.setattr(rows, "_MOST_NUMBERS", 128 * 17 * together)
    q, k = heads[0][:, :64], heads[1][:2, :64]
    options = {"causal": None, "enable_gqa": True, "num_threads": None} | option
    found = make.report_of([make.Group({64: Length(q, k, options)}, [(0, i) for i in range(4)])], [], {})
    last = 8 if options["causal"] else 64
    wide = q.astype(np.float64), k.astype(np.float64)
    first = np.zeros((2, 64, 1))
    first[:, 0] = 1
    names = ("entropy", "max_weight", "lse")
    for m, multiple in enumerate([*measure.MULTIPLES, 0.0]):
        options["scale"] = multiple / np.sqrt(32)
        rows_there = at.attention_statistics(*wide, first, statistics=names, **options)
        share = at.attention_received(*wide, **options) / 64
        weight = rows_there.output[:, -last:, 0].mean(-1)
        if not multiple:
            np.testing.assert_allclose(found.uniform_first_key[:, 0], weight, atol=1e-6)
            np.testing.assert_allclose(found.uniform_received[:, 0], share.max(-1), atol=1e-6)
            continue
        entropy = rows_there.entropy[:, -last:].mean(-1)
        np.testing.assert_allclose(found.curve[:, 0, m], entropy, rtol=1e-6, atol=1e-6)
        most = rows_there.max_weight[:, -last:].mean(-1)
        np.testing.assert_allclose(found.max_weight_curve[:, 0, m], most, atol=1e-6)
        np.testing.assert_allclose(found.first_key_curve[:, 0, m], weight, atol=1e-6)
        np.testing.assert_allclose(found.received_curve[:, 0, m], share.max(-1), atol=1e-6)


def test_no_head_contradicts_itself_at_any_multiple(found: at.Report, causal: Any) -> None:
    """The largest weight of a row is at least exp(-entropy), and so is its mean: exp is convex."""
    for each in (found, causal[2]):
        content = each.to_dict()
        curve, weight = (np.array(content[name]) for name in ("curve", "max_weight_curve"))
        assert (weight >= np.exp(-curve) * (1 - 3e-6)).all()  # both were rounded to six digits
        assert (np.diff(curve) < 1e-6).all()  # sharper with every multiple
        np.testing.assert_array_equal(curve[..., measure.OWN], np.array(content["entropy"])[..., 0])
        np.testing.assert_array_equal(weight[..., measure.OWN], content["max_weight"])


def test_growth_is_for_each_doubling(found: at.Report) -> None:
    rise = found.entropy[:, -1, 0] - found.entropy[:, 0, 0]
    np.testing.assert_allclose(found.growth, rise / 2)  # 32 to 128


def test_heads_that_share_keys_are_as_with_keys_of_their_own(heads: Any) -> None:
    q, k = heads
    one = at.report(q, k[:2], lengths=[32, 64], laws=["log_n"], enable_gqa=True).to_dict()
    other = at.report(q, k[:2].repeat(2, axis=0), lengths=[32, 64], laws=["log_n"]).to_dict()
    for each in (one, other):
        del each["provenance"]
    assert one == other


def test_json_has_the_numbers_to_six_digits_and_follows_the_schema(found: at.Report) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    schema = at.Report.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(content, schema)
    jsonschema.validate(json.loads(json.dumps(found.beside(found).to_dict())), schema)
    with_heads = at.report(*(np.ones((2, 16, 4)),) * 2, laws=[], with_heads=True)
    jsonschema.validate(json.loads(json.dumps(with_heads.to_dict())), schema)
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        if isinstance(value, np.ndarray):
            kept = np.array(content[field.name], np.float64)
            np.testing.assert_allclose(kept, value, rtol=1e-5, atol=1e-12, err_msg=field.name)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**content, "more": 1}, schema)


def test_one_length_has_no_growth_and_no_best_law(heads: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found = at.report(*heads, lengths=[10], laws=["log_n"])
    assert np.isnan(found.growth).all()
    assert (found.best == -1).all()
    content = found.to_dict()
    jsonschema.validate(content, at.Report.json_schema())
    assert content["growth"] == content["best_misses"] == [None] * 4
    parts = content["by_position"][0][0]
    assert (parts.count(None), len(parts)) == (6, measure.POSITIONS)
    assert "sharpest at 10" in " ".join(found.outliers)
    assert "spreads" not in " ".join(found.outliers)
    mean = found.entropy[:, 0, 0].mean()
    assert found.summary == [f"At 10 tokens the mean entropy is {mean:.2f} nat, with equal weights 2.30."]


def test_a_law_of_the_scores_has_no_random_keys(heads: Any) -> None:
    found = at.report(*heads, lengths=[32, 64], laws=["adaptive_temperature"])
    assert np.isnan(found.random_entropy[..., 1]).all()
    assert np.isfinite(found.entropy).all()


def test_outliers_are_named_in_words(found: at.Report) -> None:
    spreads = int(np.argmin(found.growth))
    first, last = found.effective_keys[spreads, [0, -1]]
    said = f"layer 0, head {spreads} spreads least: {first:.1f} effective keys at 32, {last:.1f} at 128."
    assert said in found.outliers
    sharp = int(np.argmin(found.effective_keys[:, -1]))
    assert any(text.startswith(f"layer 0, head {sharp} is the sharpest at 128") for text in found.outliers)


def test_the_head_that_no_law_keeps_says_how_many_laws_were_asked(heads: Any) -> None:
    pair, alone = (at.report(*heads, lengths=[32, 64, 512], laws=laws) for laws in (["log_n"], ["standard"]))
    said: Any = re.fullmatch(
        r"None of 2 laws keeps layer 0, head (\d) well: the best, (.*), misses by (.*) nat\.",
        pair.outliers[-1],
    )
    worst = int(said[1])
    assert said[2] == pair.laws[int(pair.best[worst])].spelling
    assert said[3] == f"{pair.misses[worst].min():.2f}"
    said = re.fullmatch(
        r"The standard scale keeps layer 0, head (\d) least: it misses by (.*) nat\.", alone.outliers[-1]
    )
    assert said[2] == f"{alone.misses[int(said[1]), 0]:.2f}"


def test_two_sentences_hold_for_all_heads(found: at.Report) -> None:
    growth, law = found.summary
    rise = (found.entropy[:, -1, 0] - found.entropy[:, 0, 0]) / 2
    assert growth == (
        f"From 32 to 128 tokens entropy rises by {rise.mean():.2f} nat a doubling in the mean of 4 heads "
        f"({rise.min():.2f} to {rise.max():.2f}), with equal weights by {np.log(2):.2f}."
    )
    misses = np.sqrt((found.misses**2).mean(0))
    best = int(misses.argmin())
    assert best > 0
    assert law == (
        f"Of 3 laws, with a constant for each head, {found.laws[best].spelling} keeps the entropies of 32 "
        f"tokens best: it misses by {misses[best]:.2f} nat, the standard scale by {misses[0]:.2f}."
    )
    alone = dataclasses.replace(found, misses=np.sort(found.misses, axis=1))
    assert alone.summary[1].startswith("No law of 3, with a constant for each head, keeps the entropies of")
    falls = dataclasses.replace(found, entropy=found.entropy[:, ::-1])
    assert f"entropy falls by {rise.mean():.2f} nat a doubling" in falls.summary[0]
    unknown = dataclasses.replace(found, best=np.full(4, -1.0))
    assert unknown.summary == [growth]
    some = dataclasses.replace(found, best=np.array([1.0, 1.0, -1.0, 1.0])).summary[1]
    assert "for each of the 3 heads where one is determined, " in some


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("spread", [0.02, 0.3, 1.0])
def test_nothing_stands_out_of_random_scores(spread: float, is_causal: bool) -> None:
    """An untrained model: equal weights, or random keys, explain all of it."""
    rng = np.random.default_rng(3)
    q, k = (spread**0.5 * rng.standard_normal((2, 12, 256, 32))).astype(np.float32)
    found = at.report(q, k, lengths=[64, 128, 256], is_causal=is_causal)
    assert found.outliers == []
    assert 0.6 < found.growth.mean() < 0.75


def test_what_a_window_explains_does_not_stand_out(causal: Any) -> None:
    """Heads of equal weights in a window do not grow and are the sharpest; the others see all keys."""
    q, k = np.zeros((2, 2, 128, 32), np.float32)
    options: dict[str, Any] = {"causal": "bottom_right", "enable_gqa": False, "num_threads": None}
    windows = [{}, {"window": (7, 0)}]
    groups = [
        make.Group(
            {n: Length(q[:, :n], k[:, :n], {**options, **window}) for n in LENGTHS}, [(layer, 0), (layer, 1)]
        )
        for layer, window in enumerate(windows)
    ]
    found = make.report_of(groups, ["log_n"], {})
    assert found.effective_keys[2, -1] < 9 < 100 < found.effective_keys[0, -1]
    assert found.growth[2] == 0
    assert found.outliers == []


def test_two_reports_say_what_differs(found: at.Report, heads: Any) -> None:
    q, k = heads
    other = q.copy()
    other[2] *= 3
    pair = found.beside(at.report(other, k, lengths=LENGTHS, laws=LAWS), ("before", "after"))
    first, second, *_ = pair.differences
    assert first.startswith("layer 0, head 2 differs most at 128: ")
    assert "0 of 4 heads are wider in after and 1 are sharper" in second
    assert "differs" in repr(pair)


def with_queries(heads: Any, factor: float, **options: Any) -> at.Report:
    """Report of the heads with the queries of the third multiplied."""
    q, k = heads
    other = q.astype(np.float64)
    other[2] *= factor
    return at.report(other, k.astype(np.float64), lengths=LENGTHS, laws=LAWS, **options)


@pytest.mark.parametrize("factor", [1.0001, 0.9999])
def test_reports_that_differ_by_next_to_nothing(heads: Any, factor: float) -> None:
    pair = with_queries(heads, 1.0).beside(with_queries(heads, factor))
    change = np.abs(pair.second.entropy - pair.first.entropy)[..., 0]
    assert 0 < change.max() < 0.005
    told = "No head differs by 0.005 nat in its entropy at 128, or by 0.005 nat a doubling in its growth."
    assert pair.differences == [told]


def test_numbers_that_differ_have_the_digits_that_tell_them_apart(found: at.Report) -> None:
    def ending(first: float, last: float) -> at.Report:
        entropy = found.entropy.copy()
        entropy[1, [0, -1], 0] = first, last
        return dataclasses.replace(found, entropy=entropy)

    end = np.log(3.01)
    start = ending(end - 0.1102, end)
    keys, moved = start.beside(ending(end - 0.1102, np.log(3.03)), ("a", "b")).differences
    assert keys == "layer 0, head 1 differs most at 128: 3.01 effective keys in a, 3.03 in b."
    assert moved.endswith("by more than 0.005 nat; the mean entropy changes by +0.002 nat.")
    moved, growth = start.beside(ending(end - 0.1220, end), ("a", "b")).differences
    assert moved.endswith(
        "0 of 4 heads are wider in b and 0 are sharper, by more than 0.005 nat; the mean entropy "
        "changes by less than 0.001 nat."
    )
    assert growth == "The growth of layer 0, head 1 differs most: +0.055 nat a doubling in a, +0.061 in b."


def test_a_head_is_named_once_for_the_first_key() -> None:
    """Head 5 of layer 2 of MiniLM gives key 0 the largest share that any key gets."""
    data = at.datasets.minilm_qk()
    found = at.report(data.query, data.key, lengths=[64, 512], laws=[])
    i = int(found.first_key_weight[:, -1].argmax())
    assert (i, found.received_by[i, -1]) == (int(found.received[:, -1].argmax()), 0)
    said = [text for text in found.outliers if "key" in text and "effective" not in text]
    assert said == [
        f"layer 0, head {i} gives the first key the most: {found.received[i, -1]:.1%} of the weight at 512."
    ]
    other = dataclasses.replace(found, received_by_curve=found.received_by_curve + 3)
    said = [text for text in other.outliers if "key" in text and "effective" not in text]
    assert said[1].startswith(f"layer 0, head {i} has the key that gets the most: key 3, ")


def test_no_law_is_judged_by_heads_of_equal_weights() -> None:
    """An untrained model, whose constants would be 28 times a law."""
    q, k = 0.3 * np.random.default_rng(0).standard_normal((2, 4, 128, 32))
    growth, law = at.report(q, k, lengths=[32, 128], laws=["log_n"]).summary
    assert growth.startswith("From 32 to 128 tokens")
    assert law == "At 32 tokens the weights of every head are nearly equal: no law is judged by them."


def test_tokens_that_share_the_bytes_of_a_letter_are_read_together() -> None:
    text = "a\u4f60\u597d, \U0001f600!"

    def of_bytes(part: Any) -> str:
        return bytes(part).decode(errors="replace")

    found = readable(of_bytes, list(text.encode()))
    parts = [("\u4f60", 3), ("\u597d", 3), (", ", 0), ("\U0001f600", 4)]
    expected = [f"{each} [{i + 1}/{n}]" for each, n in parts for i in range(n)]
    assert found == ["a", *expected[:6], ",", " ", *expected[6:], "!"]
    # A token may end inside a letter and hold the first byte of the next.
    pieces = [b"\xe4", b"\xbd\xa0\xe5", b"\xa5\xbd", b"!"]
    joined = readable(lambda part: b"".join(pieces[i] for i in part).decode(errors="replace"), range(4))
    assert joined == [*(f"\u4f60\u597d [{i}/3]" for i in (1, 2, 3)), "!"]
    broken = [0xE4, 0x41, 0xFF]  # not a letter
    assert readable(of_bytes, broken) == ["\ufffd", "A", "\ufffd"]


def test_reports_of_other_heads_or_lengths_are_not_compared(found: at.Report, heads: Any) -> None:
    with pytest.raises(ValueError, match=r"must have the same lengths, got \[32, 64, 128\] and \[32"):
        found.beside(at.report(*heads, lengths=[32, 64], laws=LAWS))
    with pytest.raises(TypeError, match="other must be a Report, got 3"):
        found.beside(3)
    for names in ("ab", ("a",)):
        with pytest.raises(TypeError, match="names must be a pair of str, got "):
            found.beside(found, names)
    with pytest.raises(ValueError, match="two reports must have the same heads"):
        found.beside(at.report(*(x[:2] for x in heads), lengths=LENGTHS, laws=LAWS))


def test_it_prints_as_a_table_and_becomes_a_data_frame(found: at.Report) -> None:
    text = str(found)
    assert text.startswith("Report: 4 heads")
    assert "L0 H3" in text
    pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert len(frame) == 4 * 3 * 3
    np.testing.assert_allclose(frame["entropy"].to_numpy(), found.entropy.ravel())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": [1, 32]}, "lengths must be between 2 and the number of keys, 512, got 1"),
        ({"lengths": [1024]}, "lengths must be between 2 and the number of keys, 512, got 1024"),
        ({"lengths": []}, "lengths must name at least one length, got none"),
        ({"laws": ["lig_n"]}, "lig_n"),
        ({"laws": ["yarn(factor=4)"]}, "acts on the"),
        ({"labels": [(0, 1)]}, "labels must name each of the 4 heads, got 1"),
        ({"labels": 3}, r"labels must be pairs of integers \(layer, head\), got 3"),
        ({"labels": [1, 2, 3, 4]}, r"labels must be pairs of integers \(layer, head\), got \[1, 2, 3, 4\]"),
        ({"labels": [(0, 0.5)] * 4}, "labels must be pairs of integers"),
        ({"about": "mine"}, "about must be a mapping of str to str, got 'mine'"),
        ({"laws": 1j}, "laws must be a law or several, got 1j"),
        ({"law": "log_n"}, "unexpected keyword argument 'law'; did you mean 'laws'"),
        ({"n": [64]}, "unexpected keyword argument 'n'; did you mean 'lengths'"),
        ({"is_causal": 2}, "is_causal must be True or False, got 2"),
    ],
)
def test_bad_options_are_refused(heads: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        at.report(*heads, **change)


def test_arrays_that_are_no_heads_of_one_text_are_refused(heads: Any) -> None:
    q, k = heads
    with pytest.raises(ValueError, match=r"must have the axes \(heads, n, head_dim\), got shape \(1"):
        at.report(q[None], k[None])
    with pytest.raises(ValueError, match="key must have at least 2 keys, got 1"):
        at.report(q[:, :1], k[:, :1])
    with pytest.raises(ValueError, match="key must be finite, got 1 NaN or infinite values"):
        at.report(q, np.where(np.arange(k.size).reshape(k.shape) == 7, np.nan, k))
    with pytest.raises(ValueError, match="a report needs as many queries as keys, got 20 and 512"):
        at.report(q[:, :20], k)


@pytest.mark.parametrize(("n", "lengths"), [(512, [64, 128, 256, 512]), (40, [20, 40]), (9, [9])])
def test_lengths_are_halves_by_default(heads: Any, n: int, lengths: list[int]) -> None:
    found = at.report(*(x[:1, :n] for x in heads), laws=["log_n"])
    assert found.lengths.tolist() == lengths
