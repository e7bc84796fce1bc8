# SPDX-License-Identifier: BSD-3-Clause
"""Names and signatures that users rely on: a change here is a change of the interface."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws, reference
from cases import random_inputs

NAMES = [
    "LSE_CONVENTIONS",
    "AttentionGradients",
    "AttentionState",
    "AttentionStatistics",
    "Calibration",
    "EntropyCurve",
    "EntropyIdentity",
    "EntropyQuantity",
    "HeadKinds",
    "HeldOutError",
    "LawCalibrator",
    "LseConvention",
    "LseIdentity",
    "PerplexitySolution",
    "Report",
    "ReportPair",
    "RunComparison",
    "ScaleSolution",
    "SweepError",
    "SweepInterrupted",
    "TopKeys",
    "__version__",
    "attention",
    "attention_divergence",
    "attention_entropy",
    "attention_gradients",
    "attention_mass",
    "attention_received",
    "attention_spans",
    "attention_state",
    "attention_statistics",
    "attention_weights",
    "audit",
    "calibrate",
    "compare",
    "conformance",
    "convert_lse",
    "datasets",
    "entropy_curve",
    "export_headvis",
    "get_num_threads",
    "head_kinds",
    "held_out_error",
    "identify_entropy",
    "identify_lse",
    "laws",
    "merge_states",
    "montecarlo",
    "normalizers",
    "plot",
    "probe",
    "reference",
    "report",
    "report_folder",
    "set_num_threads",
    "show_config",
    "simd_level",
    "solve_perplexity",
    "solve_scale",
    "sweep",
    "theory",
    "top_keys",
    "variants",
]

MASKS = "is_causal=False, causal=None, attn_mask=None, window=None, key_lengths=None, document_ids=None"
TABLES = "distance_scale=None, distance_bias=None"
SOLVE = "enable_gqa=False, softcap=None, normalizer='softmax', layout='bhsd', dims=None"
REST = SOLVE.replace("layout", "qk_norm=None, layout")

SIGNATURES = {
    "attention": f"query, key, value, *, scale=None, {MASKS}, {TABLES}, {REST}, out=None, num_threads=None",
    "attention_statistics": "query, key, value=None, *, statistics=('lse', 'entropy'), "
    f"scale=None, {MASKS}, {TABLES}, {REST}, out=None, num_threads=None",
    "attention_entropy": f"query, key, *, scale=None, {MASKS}, {TABLES}, {REST}, num_threads=None",
    "attention_gradients": "query, key, value, grad_output=None, *, grad_lse=None, grad_entropy=None, "
    "grad_max_score=None, grad_mean_score=None, grad_score_variance=None, grad_concentration=None, "
    "grad_max_weight=None, grad_renyi2=None, forward=None, "
    "wanted=('query', 'key', 'value', 'scale', 'law', 'sink', 'bias', 'alpha'), "
    f"scale=None, {MASKS}, {TABLES}, "
    f"{REST.replace(', dims=None', '')}, num_threads=None",
    "attention_divergence": "query, key, other_query, other_key, *, other_scale=None, other_attn_mask=None, "
    f"other_softcap=None, scale=None, {MASKS}, enable_gqa=False, softcap=None, layout='bhsd', "
    "num_threads=None",
    "attention_mass": "query, key, selected, *, block_size=None, "
    f"scale=None, {MASKS}, {TABLES}, {REST}, num_threads=None",
    "attention_received": "query, key, *, reduce='sum', forward=None, "
    f"scale=None, {MASKS}, {TABLES}, {REST}, num_threads=None",
    "attention_spans": f"query, key, lengths=None, *, ids=None, scale=None, {MASKS}, {TABLES}, {REST}, "
    "num_threads=None",
    "attention_weights": f"query, key, *, max_bytes=4294967296, scale=None, {MASKS}, {TABLES}, {REST}, "
    "num_threads=None",
    "attention_state": f"query, key, value, *, scale=None, {MASKS}, {REST}, num_threads=None",
    "entropy_curve": f"query, key, scales, *, {MASKS}, {TABLES}, {REST}, num_threads=None",
    "merge_states": "states, *, convention=None",
    "head_kinds": f"query, key, tokens=None, *, scale=None, {MASKS}, {TABLES}, {REST}, num_threads=None",
    "identify_entropy": f"query, key, entropy, *, weights=None, tolerance=0.002, scale=None, "
    f"{MASKS}, {TABLES}, {REST}, num_threads=None",
    "identify_lse": f"query, key, lse, *, tolerance=0.002, scale=None, {MASKS}, {TABLES}, {REST}, "
    "num_threads=None",
    "convert_lse": "lse, *, from_, to='attnscale', max_score=None, sink=None",
    "calibrate": "query, key, n0=None, lengths=None, *, laws=None, is_causal=False, enable_gqa=False, "
    "layout='bhsd', dims=None, num_threads=None, progress=False",
    "held_out_error": "misses, *, less=None",
    "export_headvis": "directory, query, key, tokens, *, model_name='model', overwrite=False, "
    f"scale=None, {MASKS}, {TABLES}, {REST}, num_threads=None",
    "report": "query, key, *, lengths=None, laws=None, rows=None, is_causal=False, enable_gqa=False, "
    "labels=None, about=None, tokens=None, spans=None, with_heads=False, layout='bhsd', num_threads=None",
    "report_folder": "folder, *, lengths=None, laws=None, rows=None, heads=None, is_causal=False, "
    "about=None, layout='bhsd', num_threads=None, n_jobs=1, executor=None, store=None, part=None, "
    "progress=True",
    "solve_perplexity": "points, perplexity=30.0, *, metric='euclidean', neighbors=None, drop_self=False, "
    "tolerance=None, on_infeasible='warn', num_threads=None",
    "solve_scale": "query, key, target_entropy, *, per='row', tolerance=None, "
    f"on_infeasible='warn', {MASKS}, {SOLVE}, num_threads=None",
    "top_keys": f"query, key, k, *, scale=None, {MASKS}, {TABLES}, {REST}, num_threads=None",
}

FIELDS = {
    "AttentionGradients": "query key value scale law sink attn_mask distance_scale distance_bias bias alpha",
    "AttentionStatistics": "output lse entropy max_score mean_score score_variance concentration n_visible "
    "argmax max_weight sink_weight support renyi2 min_score",
    "AttentionState": "output lse mean_score layout lse_rest mean_rest",
    "EntropyIdentity": "quantity also per_head error nearest axes tolerance",
    "EntropyQuantity": "unit over negated slip eps rows empty",
    "LseConvention": "base scaled sink less_max negated empty hidden_zeros",
    "LseIdentity": "convention engines also per_head error nearest axes tolerance rounded parts",
    "HeadKinds": "previous itself first induction distance",
    "HeldOutError": "value error low high",
    "EntropyCurve": "scales entropy lse mean variance",
    "Calibration": "n0 lengths target beta standard_entropy laws amplitude law_beta law_entropy "
    "median_entropy equal_scores is_causal",
    "PerplexitySolution": "affinities beta perplexity feasible converged",
    "Report": "layers heads lengths laws multiples entropy entropy_error random_entropy uniform_entropy "
    "uniform_first_key uniform_received histogram by_position curve random_curve max_weight_curve "
    "first_key_curve received_curve received_by_curve beta best best_constant misses about plan provenance "
    "modules groups text kept",
    "ScaleSolution": "scale entropy lowest highest converged feasible iterations per",
    "TopKeys": "index weight",
}


def test_names() -> None:
    assert sorted(at.__all__) == sorted(NAMES)
    assert dir(at) == sorted([*NAMES, "experiments", "jax", "torch"])
    for name in NAMES:
        if name != "plot":  # needs matplotlib
            assert getattr(at, name) is not None


@pytest.mark.parametrize(
    "name", ["audit", "datasets", "laws", "montecarlo", "normalizers", "theory", "variants"]
)
def test_modules_list_their_public_names_alone(name: str) -> None:
    module = getattr(at, name)
    assert [each for each in dir(module) if not each.startswith("_")] == sorted(module.__all__)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    signature = inspect.signature(getattr(at, name))
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(plain)) == f"({SIGNATURES[name]})"


def fields_of(cls: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass or a named tuple, in their order."""
    return getattr(cls, "_fields", None) or tuple(field.name for field in dataclasses.fields(cls))


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    cls = getattr(at, name)
    assert " ".join(fields_of(cls)) == FIELDS[name]
    assert issubclass(cls, tuple) or cls.__dataclass_params__.frozen


@pytest.mark.parametrize("name", [*SIGNATURES, *FIELDS])
def test_docstrings_have_the_parts_of_numpydoc(name: str) -> None:
    text = inspect.getdoc(getattr(at, name)) or ""
    assert text.splitlines()[0].endswith(".")
    if name in SIGNATURES:
        for part in ("Parameters\n---", "Returns\n---", "Raises\n---", "Examples\n---", ">>> "):
            assert part in text, part
        for parameter in inspect.signature(getattr(at, name)).parameters:
            assert parameter in text, parameter
    else:
        for field in fields_of(getattr(at, name)):
            assert field in text, field


def test_every_numeric_function_has_its_twin() -> None:
    # Reports and files combine the others; operations on an lse are plain NumPy.
    for name in SIGNATURES.keys() - {
        *("report", "report_folder", "export_headvis", "convert_lse"),
        *("identify_entropy", "identify_lse"),
    }:
        twin: Callable[..., Any] = getattr(reference, name)
        body = inspect.getsource(twin).split('"""')[2].strip().splitlines()
        assert len(body) <= 15, name


@pytest.mark.parametrize("name", ["laws", "normalizers", "variants", "theory", "montecarlo"])
def test_modules_without_an_underscore_are_public(name: str) -> None:
    """at.laws.ssmax would be a module where a law is expected."""
    package = getattr(at, name)
    modules = {each for each, value in vars(package).items() if inspect.ismodule(value)}
    assert {each for each in modules if not each.startswith("_")} <= set(package.__all__)


def test_laws_have_their_names() -> None:
    assert set(laws.__all__) >= {
        *("Standard", "Unscaled", "Constant", "LogN", "LogNFromTraining", "NaturalLogN", "Kappa", "SSMax"),
        *("PerHead", "Law", "get", "names", "explain", "register", "MEANINGS_OF_N"),
    }


def test_unknown_attributes_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'attnscale' has no attribute 'atention'"):
        at.atention  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("with_value", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("enable_gqa", [False, True])
def test_types_of_results_do_not_depend_on_booleans(
    with_value: bool, is_causal: bool, enable_gqa: bool
) -> None:
    q, k, v = random_inputs(1)
    options = {"is_causal": is_causal, "enable_gqa": enable_gqa}
    rows = at.attention_statistics(q, k, v if with_value else None, **options)
    assert type(rows) is at.AttentionStatistics
    assert type(at.attention(q, k, v, **options)) is np.ndarray
    assert type(at.attention_entropy(q[0], k[0], **options)) is np.ndarray


def test_the_example_of_the_issue() -> None:
    q, k, _ = random_inputs(2)
    entropy = at.attention_statistics(q, k, scale="log_n", is_causal=True).entropy
    assert entropy is not None
    assert entropy.shape == (2, 17)
