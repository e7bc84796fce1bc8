# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of laws and parameters are printed in full: their text reads back as the same number."""

from __future__ import annotations

import json
import math
from pathlib import Path

import attnscale as at
import pytest
from attnscale._base import spelling as numbers
from attnscale.audit import _layer, resolve
from attnscale.cli import main

#: The next number, with the same six digits.
TWELFTH = 1 / 12
NEXT = math.nextafter(TWELFTH, 1)


@pytest.mark.parametrize(
    "value", [TWELFTH, NEXT, 64.0, 1e-5, 1e300, 1234567.0, 0.1 + 0.2, math.inf, -math.inf]
)
def test_the_shortest_text_reads_back(value: float) -> None:
    assert float(numbers.as_number(value)) == value
    assert len(numbers.as_number(value)) <= len(repr(value)) or value == 1e300


def test_a_base_of_the_audit_reads_back() -> None:
    sizes = {"hidden_size": 2304, "num_hidden_layers": 2, "head_dim": 144, "num_attention_heads": 8}
    plan = resolve({"model_type": "gemma2", **sizes, "query_pre_attn_scalar": 144})
    base = plan.layers[0].base
    assert at.laws.get(_layer.spelling(base)) == base.law
    assert _layer.spelling(base) == "constant(value=0.08333333333333333)"


def test_two_laws_of_the_audit_do_not_look_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their temperatures differ in the seventh digit."""
    listed = []
    for beta in (0.1, 0.1000001):
        yarn = {"rope_type": "yarn", "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 1e6}
        rope = {**yarn, "original_max_position_embeddings": 16384, "llama_4_scaling_beta": beta}
        sizes = {"hidden_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 32, "head_dim": 128}
        config = {"model_type": "ministral3", **sizes, "num_key_value_heads": 8, "rope_parameters": rope}
        path = tmp_path / f"{beta}" / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(config), encoding="utf-8")
        listed.append([_layer.spelling(term) for term in resolve(config).layers[0].terms])
    assert main(["audit", str(tmp_path), "--json"]) == 0
    laws = [model["laws"] for model in json.loads(capsys.readouterr().out)["models"]]
    assert laws == listed
    assert laws[0] != laws[1]
    assert "ministral_temperature(beta=0.1000001, length=16384)" in laws[1]


def test_a_soft_cap_is_a_parameter() -> None:
    config = {"model_type": "gemma2", "num_hidden_layers": 1, "attn_logit_softcapping": 50.00001}
    assert "soft-cap 50.00001," in repr(resolve(config).layers[0])


def test_a_label_of_a_figure_tells_bases_apart() -> None:
    pytest.importorskip("matplotlib")
    from attnscale.plot import _curves, _style, _tables

    assert _style.law_label("log_n(base=512)") == r"$\log_{512} n\,/\sqrt{d}$"
    assert _style.law_label("log_n(base=512.0001)") == r"$\log_{512.0001} n\,/\sqrt{d}$"
    assert _curves._word("n", 1234567, None) == "$n = 1234567$"
    assert _curves._word("cosine", 0.1234567, None) == "cosine 0.1234567"
    assert _tables._value("n", 1234567) == "1234567"


def test_the_parameters_of_a_grid_are_not_rounded() -> None:
    xarray = pytest.importorskip("xarray")
    from attnscale.cli.sweep import table_text

    values = [TWELFTH, NEXT, math.inf]
    table = xarray.Dataset({"y": ("x", [1.0, 2.0, 3.0])}, {"x": values})
    rows = [line.split()[0] for line in table_text(table, ["x"]).splitlines()]
    assert [float(row) for row in rows if row not in ("x",) and not row.startswith("-")] == values


def test_what_was_refused_is_not_shown_as_the_bound() -> None:
    with pytest.raises(ValueError, match=r"n0 must be at least 1, got 0\.99999999"):
        at.laws.get("annealed(n0=0.99999999)")
