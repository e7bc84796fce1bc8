# SPDX-License-Identifier: BSD-3-Clause
"""Figures of commands: exact curves between the lengths, causal rows with their own reference."""

from __future__ import annotations

from pathlib import Path

import attnscale as at
import numpy as np
import pytest
from attnscale import plot
from attnscale.cli import main

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")


@pytest.fixture
def drawn(monkeypatch):
    """Axes of drawn figures, by the name of the function."""
    found = {}

    def keep(own):
        def draw(*given, **options):
            found[own.__name__] = own(*given, **options)
            return found[own.__name__]

        return draw

    for own in (plot.entropy_vs_length, plot.entropy_by_head):
        monkeypatch.setattr(plot, own.__name__, keep(own))
    return found


def test_theory_draws_what_is_between_the_lengths(drawn, tmp_path, capsys):
    main(["theory", "--n", "64", "4096", "--model", "gaussian", "--plot", str(tmp_path / "a.png")])
    line = next(line for line in drawn["entropy_vs_length"].lines if line.get_linestyle() == "-")
    n = line.get_xdata()
    assert n.size >= 25
    np.testing.assert_allclose(
        line.get_ydata()[::6], at.theory.expected_entropy(n[::6], 1.0, model="gaussian")
    )
    assert "Gaussian scores" in drawn["entropy_vs_length"].get_title(loc="left")
    capsys.readouterr()


@pytest.fixture
def heads(tmp_path) -> Path:
    query, key = np.random.default_rng(0).standard_normal((2, 2, 16, 4))
    np.savez(tmp_path / "heads.npz", query=query, key=key)
    return tmp_path / "heads.npz"


def test_causal_rows_are_drawn_below_their_own_limit(drawn, heads, tmp_path, capsys):
    main(["entropy", str(heads), "--causal", "--plot", str(tmp_path / "a.png")])
    limit = drawn["entropy_by_head"].get_lines()[0].get_xdata()[0]
    assert limit == pytest.approx(np.log(np.arange(1, 17)).mean())
    assert drawn["entropy_by_head"].get_title(loc="left") == "heads.npz"
    capsys.readouterr()


@pytest.mark.parametrize("given", [["--laws", "standard", "log_n", "qwen_log_n"], []], ids=["three", "all"])
def test_laws_are_drawn_in_panels_of_few_lines(given, monkeypatch, tmp_path, capsys):
    """Each law is in one panel, beside equal laws; panels are in falling order of the factor."""
    seen = []

    def keep(curves, n, *, ax):
        seen.append({name: values[-1] for name, values in curves.items()})
        return draw(curves, n, ax=ax)

    draw = plot.multiplier_vs_length
    monkeypatch.setattr("attnscale.plot._multiples.multiplier_vs_length", keep)
    main(["laws", "--n", "512", "4096", *given, "--plot", str(tmp_path / "a.png")])
    capsys.readouterr()
    names = [name for panel in seen for name in panel]
    assert len(set(names)) == len(names) == (3 if given else len(names))
    assert len(seen) == (1 if given else 3)
    values = [value for panel in seen for value in panel.values()]
    np.testing.assert_array_less(np.diff(values), 1e-9)
    for panel in seen:
        assert 2 <= len(set(np.round(list(panel.values()), 9))) <= 7
    if not given:
        assert {"standard", "log_n", "mup", "swin_v2"} <= set(names)
