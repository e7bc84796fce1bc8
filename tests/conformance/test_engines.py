# SPDX-License-Identifier: BSD-3-Clause
"""at.conformance: right engines, engines with a slip, and engines of PyTorch and JAX."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import LSE_CONVENTIONS, LseConvention
from versions import ready, written_for

Engine = Callable[..., Any]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "check-an-engine.md"


def ours(*arrays: Any, **options: Any) -> Any:
    rows = at.attention_statistics(*arrays, statistics=("lse", "n_visible"), **options)
    return rows.output, rows.lse


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_our_own_functions_are_right(dtype: str) -> None:
    report = at.conformance.check(ours, dtype=dtype)
    assert len(report.right) == len(report.outcomes) > 200, report
    assert report.lse == LSE_CONVENTIONS["attnscale"]
    assert "(attnscale, flash_attention_3, flex_attention" in str(report)


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda options: {each: x for each, x in options.items() if each != name}


#: Options that an engine may accept and ignore, and the name of that.
IGNORED = {
    "scale": "scale is not read",
    "is_causal": "the causal mask is not read",
    "softcap": "softcap is not read",
    "key_lengths": "key_lengths is not read",
    "document_ids": "document_ids is not read",
    "distance_bias": "distance_bias is not read",
    "distance_scale": "distance_scale is not read",
    "normalizer": "the sink is missing",
    "window": "window is not read",
    "attn_mask": "attn_mask is not read",
}


@pytest.mark.parametrize("name", IGNORED)
def test_an_option_that_is_not_read_is_named(name: str) -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        other = "causal" if name == "is_causal" else name
        return ours(*arrays, **without(other)(without(name)(options)))

    report = at.conformance.check(attend, seed=1)
    assert IGNORED[name] in report.slips
    assert report.right
    assert not report.errors


@pytest.mark.parametrize("name", LSE_CONVENTIONS)
def test_the_convention_of_an_lse_is_found(name: str) -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        output, lse = ours(*arrays, **options)
        return output, at.convert_lse(lse, from_="attnscale", to=name)

    report = at.conformance.check(attend)
    assert report.lse == LSE_CONVENTIONS[name]
    assert name in str(report)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "bfloat16") for name in ("attnscale", "jax", "flashinfer")),
        *((name, "float16") for name in ("attnscale", "flashinfer")),  # jax has no number of its own there
    ],
)
def test_the_convention_of_an_lse_of_16_bits_is_found(name: str, dtype: str) -> None:
    def attend(query: Any, *arrays: Any, **options: Any) -> Any:
        output, lse = ours(query, *arrays, **options)
        written = at.convert_lse(lse, from_="attnscale", to=name)
        return output, written.astype(query.dtype).astype(np.float32)

    report = at.conformance.check(attend, dtype=dtype)
    assert report.lse is not None
    assert report.lse.base == LSE_CONVENTIONS[name].base
    assert name in str(report)


def test_an_lse_without_the_sink_is_told_from_the_output() -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        return ours(*arrays, **options)[0], ours(*arrays, **without("normalizer")(options))[1]

    report = at.conformance.check(attend)
    assert not report.wrong
    assert report.lse == LseConvention(sink=False)


def test_an_lse_that_nothing_explains_is_said() -> None:
    report = at.conformance.check(lambda *arrays, **options: [x + 0.1 for x in ours(*arrays, **options)])
    assert report.lse is None
    assert "lse: no convention for" in str(report)
    assert report.wrong["plain"].why == ""
    assert "not explained" in str(report)


def test_conventions_that_differ_by_case_are_listed() -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        output, lse = ours(*arrays, **options)
        return output, lse / math.log(2) if options.get("is_causal") else lse

    assert "lse: another convention in other cases" in str(at.conformance.check(attend))


def test_failures_and_refusals_are_part_of_the_report() -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        if "window" in options:
            raise NotImplementedError("no windows")
        if "softcap" in options:
            raise RuntimeError("out of registers")
        return ours(*arrays, **options)[0][..., :1]

    report = at.conformance.check(attend)
    assert report.not_served["window"].why == "no windows"
    assert report.errors["soft-cap"].why == "RuntimeError: out of registers"
    assert "the output has shape" in report.wrong["plain"].why
    assert "out of registers: " in str(report)


def test_an_error_that_documents_announce_is_no_error() -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        if "window" in options:
            raise RuntimeError("windows are for others (see the manual)")
        return ours(*arrays, **options)[0]

    record = {"call": "f", "package": "attnscale", "run_with": "1.0", "attend": attend}
    plain = at.conformance.engines.Engine(name="plain", **record)
    kind = at.conformance.engines.Engine(name="kind", refusals=("windows are for others",), **record)
    assert "window" in at.conformance.check(plain).errors
    report = at.conformance.check(kind)
    assert not report.errors
    assert report.not_served["window"].why.startswith("refused, as its documents say: windows are")
    assert str(report).startswith(f"kind {at.__version__}: ")


def test_a_wrong_statistic_does_not_pass() -> None:
    cases = {name: at.conformance.CASES[name] for name in ("plain", "causal", "window")}
    assert at.conformance.check(ours, cases=cases).passed

    def attend(*arrays: Any, **options: Any) -> Any:
        rows = at.attention_statistics(*arrays, statistics=("lse", "max_score"), **options)
        return {"output": rows.output, "lse": rows.lse, "max_score": 2 * rows.max_score}

    report = at.conformance.check(attend, cases=cases)
    assert not report.wrong
    assert not report.passed
    moved = at.conformance.check(lambda *a, **o: [x + (x.ndim == 3) for x in ours(*a, **o)], cases=cases)
    assert not moved.wrong
    assert not moved.passed


def test_an_engine_that_refuses_everything_does_not_pass() -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        raise NotImplementedError

    report = at.conformance.check(attend, seed=0)
    assert not report.passed
    assert "nothing was judged: every call was refused" in str(report)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="engine must be a function or the name of an engine, got 3"):
        at.conformance.check(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'torch'"):
        at.conformance.check("torhc")
    with pytest.raises(TypeError, match="seed must be an integer or None, got 'a'"):
        at.conformance.check(ours, seed="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed must be 0 or greater, got -1"):
        at.conformance.check(ours, seed=-1)
    with pytest.raises(ValueError, match="did you mean 'float32'"):
        at.conformance.check(ours, dtype="flaot32")
    with pytest.raises(ValueError, match="tolerance must be greater than 0"):
        at.conformance.check(ours, tolerance=-1)
    with pytest.raises(ValueError, match="cases must have a value each, got none in 'no value'"):
        at.conformance.check(ours, cases=at.conformance.CASES)
    for bad, seen in ((3, "3"), (["plain"], r"\['plain'\]"), ({"a": 1}, "'a': 1")):
        with pytest.raises(TypeError, match=f"cases must map names to Case, got {seen}"):
            at.conformance.check(ours, cases=bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"cases must map names to Case, got {seen}"):
            at.conformance.export("unused", form="onnx", cases=bad)  # type: ignore[arg-type]


#: Conventions of the lse of ready adapters, and calls that they serve.
LSE_OF = {
    "torch-fused": ("torch_sdpa_cpu", ("even", "even, causal", "even, rows without keys by -inf")),
    "torch-flex": ("flex_attention", ("plain", "mask", "window", "window + mask")),
    "jax": ("jax", ("even", "even, causal", "even, rows without keys", "even, window (2, 2)")),
}


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "name",
    [  # JAX 0.8 returns no lse
        pytest.param(name, marks=written_for("jax>=0.10") if name == "jax" else ()) for name in LSE_OF
    ],
)
def test_the_lse_of_an_engine_has_its_convention(name: str) -> None:
    ready(name)
    convention, names = LSE_OF[name]
    cases = at.conformance.draw_cases(0)
    report = at.conformance.check(name, cases={each: cases[each] for each in names}, seed=0)
    assert report.lse == LSE_CONVENTIONS[convention], report
    kinds = {"rows without keys hold the mean of values, not 0"} if name == "jax" else set()
    assert {each.why for each in report.wrong.values()} == kinds


@pytest.mark.torch
def test_the_page_says_what_pytorch_does(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    page = PAGE.read_text(encoding="utf-8")
    installed = at.conformance.engines.find_engine("torch").installed
    if f"For PyTorch {installed} it says" not in page:
        pytest.skip(f"the page is not about PyTorch {installed}")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = (block for block in blocks if "def attend" in block)
    exec(compile(code, "check-an-engine.md", "exec"), {})
    assert f"```text\n{capsys.readouterr().out}```" in page


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_the_page_says_what_engines_for_inference_do(name: str) -> None:
    """`make peers` installs these engines and runs this test."""
    engine = at.conformance.engines.find_engine(name)
    page = PAGE.read_text(encoding="utf-8")
    if f"{name} {engine.installed}" not in page:
        pytest.skip(f"the page is not about {name} {engine.installed}")
    report = at.conformance.check(name, seed=0)
    counts = f"{len(report.right)} right, {len(report.wrong)} wrong, {len(report.errors)} errors"
    told = re.search(rf"{name} {engine.installed}: {counts}[^`\n]*\n((?:  .*\n)*)", page)
    assert told is not None
    assert set(told[1].splitlines()) - {"  ..."} <= set(str(report).splitlines())
