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


def served(rest: dict[str, Any], *arrays: Any) -> None:
    """Refuse options that the engines below lack, and arrays with less than four axes."""
    if any(x is not None and x is not False for x in rest.values()) or any(x.ndim != 4 for x in arrays):
        raise NotImplementedError


@pytest.mark.torch
def test_scaled_dot_product_attention_of_torch() -> None:
    torch = pytest.importorskip("torch")

    def attend(*arrays: Any, is_causal: bool = False, attn_mask: Any = None, **rest: Any) -> Any:
        served(rest, *arrays)
        q, k, v = map(torch.from_numpy, arrays)
        if q.shape[:2] != k.shape[:2] or v.shape != k.shape or is_causal:
            raise NotImplementedError("the kernel that returns lse wants equal shapes")
        mask = None if attn_mask is None else torch.from_numpy(np.ascontiguousarray(attn_mask))
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
        if mask is not None and mask.dtype != q.dtype:
            raise NotImplementedError
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, lse = flash(q, k, v, 0.0, is_causal, attn_mask=mask)
        return output, lse

    square = {
        name: case._replace(query=(2, 4, 7, 8), key=(2, 4, 9, 8), value=(2, 4, 9, 8))
        for name, case in at.conformance.CASES.items()
        if name in ("plain", "mask", "mask of queries")
    }
    report = at.conformance.check(attend, cases=square)
    assert len(report.right) == 3, report
    assert report.lse == LSE_CONVENTIONS["torch_sdpa_cpu"]


@pytest.mark.torch
def test_the_page_says_what_pytorch_does(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = (block for block in blocks if "def attend" in block)
    exec(compile(code, "check-an-engine.md", "exec"), {})
    assert f"```text\n{capsys.readouterr().out}```" in page


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_of_torch() -> None:
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    def attend(*arrays: Any, attn_mask: Any = None, window: Any = None, **rest: Any) -> Any:
        served(rest, *arrays)
        q, k, v = map(torch.from_numpy, arrays)
        if q.shape[:2] != k.shape[:2] or (attn_mask is not None and np.shape(attn_mask) != (2, 1, 7, 9)):
            raise NotImplementedError
        hidden = None if attn_mask is None else torch.from_numpy(np.asarray(attn_mask))
        left, right = ((1 << 20) if x is None else x for x in window or (None, None))

        def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            s = torch.where((i - j <= left) & (j - i <= right), s, -math.inf)
            return s if hidden is None else torch.where(hidden[b, 0, i, j], s, -math.inf)

        output, aux = flex.flex_attention(q, k, v, score_mod=score, return_aux=flex.AuxRequest(lse=True))
        return output, aux.lse

    cases = {name: at.conformance.CASES[name] for name in ("plain", "mask", "window", "window + mask")}
    report = at.conformance.check(attend, cases=cases)
    assert len(report.right) == 4, report
    assert report.lse == LSE_CONVENTIONS["flex_attention"]


@pytest.mark.jax
def test_dot_product_attention_of_jax() -> None:
    jax = pytest.importorskip("jax")

    def attend(*arrays: Any, attn_mask: Any = None, window: Any = None, **options: Any) -> Any:
        is_causal, scale = options.pop("is_causal", False), options.pop("scale", None)
        served(options, *arrays)
        if np.ndim(scale) or (attn_mask is not None and np.asarray(attn_mask).dtype != np.bool_):
            raise NotImplementedError
        if window is not None and None in window:
            raise NotImplementedError
        mask = None if attn_mask is None else np.broadcast_to(attn_mask, (2, 1, 7, 9))
        q, k, v = (x.swapaxes(1, 2) for x in arrays)
        call = {"mask": mask, "is_causal": is_causal, "scale": scale, "local_window_size": window}
        output, lse = jax.nn.dot_product_attention(q, k, v, **call, return_residual=True)
        return np.asarray(output).swapaxes(1, 2), np.asarray(lse)

    names = ("plain", "causal", "window", "mask", "mask of queries", "causal + window", "number", "zero")
    even = {name: at.conformance.CASES[name]._replace(value=(2, 4, 9, 6)) for name in names}
    report = at.conformance.check(attend, cases=even)
    assert len(report.right) == 6, report
    assert {each.why for each in report.wrong.values()} == {
        "rows without keys hold the mean of values, not 0"
    }
    assert report.lse == LSE_CONVENTIONS["jax"]


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_the_page_says_what_engines_for_inference_do(name: str) -> None:
    """`make peers` installs these engines and runs this test."""
    engine = at.conformance.engines.find_engine(name)
    page = PAGE.read_text(encoding="utf-8")
    if f"{name} {engine.installed}" not in page:
        pytest.skip(f"the page is not about {name} {engine.installed}")
    report = at.conformance.check(name, seed=0)
    counts = f"{len(report.right)} right, {len(report.wrong)} wrong, {len(report.errors)} errors"
    told = re.search(rf"{name} {engine.installed}:\s+(?:```text\n)?{counts}[^`\n]*\n((?:  .*\n)*)", page)
    assert told is not None
    assert set(told[1].splitlines()) - {"  ..."} <= set(str(report).splitlines())
