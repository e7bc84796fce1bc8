# SPDX-License-Identifier: BSD-3-Clause
"""Results show themselves: as tables, in notebooks, as data frames and datasets, in nats or bits."""

from __future__ import annotations

import copy
import html.parser
import pickle
from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import random_inputs

Q, K, V = random_inputs(1, batch=(2,), heads=3, n_queries=8, n_keys=8)
GEMMA = {
    "model_type": "gemma2",
    "hidden_size": 4608,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_hidden_layers": 4,
    "query_pre_attn_scalar": 144,
}
RESULTS: dict[str, Any] = {
    "statistics": lambda: at.attention_statistics(Q, K, V, statistics=("entropy", "argmax", "n_visible")),
    "solution": lambda: at.solve_scale(Q, K, 1.0),
    "solution a head": lambda: at.solve_scale(Q, K, 1.0, per="head"),
    "one solution": lambda: at.solve_scale(Q, K, 1.0, per="all"),
    "curve": lambda: at.entropy_curve(Q, K, [0.0, 0.1, 0.25]),
    "state": lambda: at.attention_state(Q, K, V),
    "calibration": lambda: at.calibrate(Q, K, n0=4, lengths=[4, 8], laws=["log_n", "standard"]),
    "experiment": lambda: at.montecarlo.entropy_vs_length([16, 64], law="standard", samples=40, rng=0),
    "plan": lambda: at.audit.resolve(GEMMA),
}
AXES = {
    "statistics": {"batch": 2, "head": 3, "query": 8},
    "solution": {"batch": 2, "head": 3, "query": 8},
    "solution a head": {"batch": 2, "head": 3},
    "one solution": {},
    "curve": {"batch": 2, "head": 3, "query": 8, "scale": 3},
    "state": {"batch": 2, "head": 3, "query": 8},
    "calibration": {"batch": 2, "head": 3, "n": 2, "law": 2},
    "experiment": {"n": 2},
    "plan": {"layer": 4},
}
#: An entropy of each in the dataset: it is there in nats, and in bits as nats / ln 2.
ENTROPY = {
    "statistics": "entropy",
    "solution": "highest",
    "solution a head": "lowest",
    "one solution": "entropy",
    "curve": "entropy",
    "state": "entropy",
    "calibration": "standard_entropy",
    "experiment": "value",
}


class Tags(html.parser.HTMLParser):
    """A parser with the open tags and the text of the cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_table_at_the_prompt_and_in_a_notebook(name: str) -> None:
    result = RESULTS[name]()
    lines = repr(result).splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 120
    assert "object at 0x" not in repr(result)
    assert "array(" not in repr(result)
    page = Tags(result._repr_html_())
    assert page.open == []
    # Cells of the page are those of the table.
    assert all(word in " ".join(page.cells) for word in lines[2].split()[:2])


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_dataset_and_a_data_frame(name: str) -> None:
    pytest.importorskip("xarray")
    result = RESULTS[name]()
    data, frame = result.to_xarray(), result.to_pandas()
    assert dict(data.sizes) == AXES[name]
    assert len(frame) == np.prod(list(AXES[name].values()), dtype=int)
    assert set(AXES[name]) <= set(frame.columns)
    renamed = {"value": getattr(result, "quantity", ""), "standard_error": ""}
    for variable in data.data_vars:
        column = renamed.get(str(variable), variable)
        if column not in frame:
            continue
        series = frame.set_index(list(AXES[name]))[column] if AXES[name] else frame[column]
        labels = tuple(data[axis].values[-1] for axis in AXES[name])
        cell = series.loc[labels if len(labels) > 1 else labels[0]] if labels else series.iloc[0]
        np.testing.assert_equal(cell, data[variable].values.flat[-1])


@pytest.mark.parametrize("name", ENTROPY)
def test_bits_are_nats_by_ln_2(name: str) -> None:
    pytest.importorskip("xarray")
    result, variable = RESULTS[name](), ENTROPY[name]
    nats, bits = result.to_xarray()[variable], result.to_xarray(unit="bits")[variable]
    assert (nats.attrs["units"], bits.attrs["units"]) == ("nat", "bit")
    np.testing.assert_allclose(bits.values * np.log(2), nats.values, rtol=1e-6)
    assert "(nat" in result.table()
    assert "(bit" in result.table(unit="bits")
    with pytest.raises(ValueError, match="unit must be one of 'nats', 'bits', got 'bit'"):
        result.table(unit="bit")


def test_units_reach_the_numbers_that_are_printed() -> None:
    rows = at.attention_statistics(Q * 0, K, statistics=("entropy", "lse"))
    assert "entropy (nats)  2.07944" in rows.table()
    assert "entropy (bits)        3" in rows.table(unit="bits")
    assert rows.to_pandas(unit="bits")["entropy"].unique().tolist() == [3.0]
    np.testing.assert_allclose(rows.to_pandas(unit="bits")["lse"], np.log(8), rtol=1e-6)  # no entropy
    curve = at.entropy_curve(Q * 0, K, [1.0])
    assert curve.table(unit="bits").split()[-5:] == ["1", "3.0000", "3.0000", "3.0000", "8"]


def test_a_statistic_that_was_not_requested_is_named() -> None:
    rows = at.attention_statistics(Q, K)
    message = r"argmax was not asked for: attention_statistics\(..., statistics=\(..., 'argmax'\)\) has it; "
    with pytest.raises(AttributeError, match=message + "these rows have lse, entropy"):
        rows.argmax  # noqa: B018
    assert not hasattr(rows, "support")
    assert rows.output is None
    with pytest.raises(AttributeError, match="'AttentionStatistics' object has no attribute 'entropie'"):
        rows.entropie  # noqa: B018
    with pytest.raises(AttributeError, match="entropy was not asked for"):
        at.attention_statistics(Q, K, statistics="lse").effective_keys  # noqa: B018
    with pytest.raises(TypeError, match=r"statistics must be among lse, .*; got entropie"):
        at.AttentionStatistics(entropie=Q)
    for same in (copy.copy(rows), copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        np.testing.assert_array_equal(same.lse, rows.lse)
        assert not hasattr(same, "argmax")


def test_effective_keys() -> None:
    rows = at.attention_statistics(Q * 0, K, is_causal=True)
    np.testing.assert_allclose(rows.effective_keys, np.broadcast_to(np.arange(1, 9), (2, 3, 8)), rtol=1e-6)
    curve = at.entropy_curve(Q, K, [0.0, 1.0])
    np.testing.assert_array_equal(curve.effective_keys, np.exp(curve.entropy))


def test_numbers_that_are_not_finite_are_reported() -> None:
    rows = at.attention_statistics(Q, K, statistics="lse", key_lengths=[0, 8])
    assert "lse: 24 of 48 are not finite" in repr(rows)
    assert repr(at.attention_statistics(Q, K, V, statistics=())).startswith(
        "AttentionStatistics: output (2, 3, 8"
    )
    empty = at.attention_statistics(Q[:, :, :0], K)
    assert repr(empty).splitlines()[2].split() == ["lse", "-", "-", "-"]
    assert at.entropy_curve(Q[:, :, :0], K, [1.0]).table().split()[-5:] == ["1", "-", "-", "-", "-"]


def test_long_tables_are_cut() -> None:
    curve = at.entropy_curve(Q, K, np.linspace(0, 1, 25))
    assert repr(curve).splitlines()[-1] == "  ... 5 more"
    assert len(repr(curve).splitlines()) == 23


def test_layers_of_a_plan_by_their_number() -> None:
    plan = at.audit.resolve(GEMMA)
    assert plan[0] is plan.layers[0]
    assert plan[-1] is plan.layers[3]
    assert [layer.index for layer in plan] == [0, 1, 2, 3]
    assert repr(plan).splitlines()[0] == "gemma2, 4 layers"
    assert plan.to_pandas()["base_scale"].tolist() == pytest.approx([1 / 12] * 4)
    with pytest.raises(IndexError, match="layer must be between 0 and 3, got 4"):
        plan[4]
    with pytest.raises(TypeError, match="layer must be an integer, got 'a'"):
        plan["a"]  # type: ignore[index]
    assert repr(plan.explain()) == plan.explain()


def test_a_layer_of_a_plan_is_one_short_line() -> None:
    soft = at.audit.resolve({**GEMMA, "query_pre_attn_scalar": 144})
    assert repr(soft[1]) == (
        "LayerPlan(layer 1, full_attention: scale 0.08333333, rotary on all of 128 channels, soft-cap 50)"
    )
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "head_dim": 64, "num_hidden_layers": 4}
    sinks = at.audit.resolve({"model_type": "gpt_oss", **sizes, "sliding_window": 128})
    assert repr(sinks[0]) == (
        "LayerPlan(layer 0, sliding_attention: scale 0.125 (standard) x yarn(factor=32) on rotated, "
        "rotary on all of 64 channels, window of 128 keys, sink)"
    )
    mixed = at.audit.resolve({"model_type": "qwen3_next", **sizes})
    assert repr(mixed[0]) == (
        "LayerPlan(layer 0, linear_attention: this layer has no softmax over keys, so no score multiplier)"
    )
    assert repr(mixed[3]) == (
        "LayerPlan(layer 3, full_attention: scale 0.125 (standard), rotary on 16 of 64 channels, "
        "q and k normed before rotation)"
    )


def test_laws_explain_themselves() -> None:
    text = at.laws.explain("log_n")
    assert isinstance(text, str)
    assert repr(text) == text
    assert "\n" in repr(text)
    assert eval(repr(at.laws.LogN(1024)), vars(at.laws)) == at.laws.LogN(1024)
    page = Tags(at.laws.LogN(1024)._repr_html_())
    assert page.open == []
    assert "ln(max(n, floor)) / ln(base) / sqrt(head_dim)" in page.cells
    at.laws.get("log_n")


def test_other_objects_say_what_they_are() -> None:
    data = at.datasets.minilm_qk()
    assert "query, key  float16 (18, 512, 32)" in repr(data)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    rows = at.attention_statistics(Q, K)
    for method, package in (("to_xarray", "xarray"), ("to_pandas", "pandas")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=rf"{method}\(\) needs {package}: pip install"):
            getattr(rows, method)()
