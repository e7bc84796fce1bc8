# SPDX-License-Identifier: BSD-3-Clause
"""A law whose n is not a count has no value at a number of keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws
from attnscale.cli import main

plt = pytest.importorskip("matplotlib.pyplot")

NO_COUNT = ("scale_invariant", "adaptive_temperature", "critical_scale", "norm_softmax")

CALLS: dict[str, Callable[[str], Any]] = {
    "multiplier_at": lambda law: laws.get(law).multiplier_at(512, 64),
    "law_comparison": lambda law: at.plot.law_comparison([law], [64, 512]),
    "phase_diagram": lambda law: at.plot.phase_diagram([64, 512], [1, 2], np.ones((2, 2)), laws=[law]),
    "entropy_vs_length": lambda law: at.montecarlo.entropy_vs_length(64, law=law, samples=2),
    "sparsity": lambda law: at.montecarlo.sparsity(64, law=law, samples=2),
    "rank_and_sparsity": lambda law: at.montecarlo.rank_and_sparsity(8, law=law, samples=2),
    "softmax_saturation": lambda law: at.montecarlo.softmax_saturation(head_dim=4, law=law, samples=2),
}


@pytest.fixture(autouse=True)
def no_figures_left() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.mark.parametrize("law", NO_COUNT)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_law_without_a_count_is_refused(call: Callable[[str], Any], law: str) -> None:
    with pytest.raises(ValueError, match=f"law '{law}' (has no n at a position|gives the keys of a row)"):
        call(law)


@pytest.mark.parametrize("law", NO_COUNT)
def test_commands_print_nothing_in_its_place(law: str, capsys: Any) -> None:
    assert main(["theory", "--n", "512", "--laws", law]) == 2
    assert capsys.readouterr().err.startswith(f"attnscale: error: --laws {law}: law '{law}'")
    assert main(["laws", "--n", "64", "--laws", law, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["multiplier"] is None
    assert row["sphere_entropy"] is None
    assert row["minilm_entropy"] > 0  # attention measures n on the rows


def test_positions_are_those_of_the_last_query(capsys: Any) -> None:
    """Grok counts i from 0: the last of 1025 queries is at 1024, the law's length."""
    law = laws.GrokTemperature(1024)
    assert law.multiplier_at([1025, 1024**2 + 1], 64) == pytest.approx([1, 2], abs=1e-12)
    axes = at.plot.law_comparison([law], [1025, 1024**2 + 1])
    np.testing.assert_allclose(np.asarray(axes.get_lines()[0].get_ydata())[[0, -1]], [1, 2], rtol=1e-12)
    assert main(["theory", "--n", "1025", "--laws", "grok_temperature(length=1024)", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["beta"] == 1


def test_theory_refuses_a_law_of_some_channels(capsys: Any) -> None:
    assert main(["theory", "--n", "512", "--laws", "yarn(factor=16)"]) == 2
    assert "acts on the rotated channels only" in capsys.readouterr().err
