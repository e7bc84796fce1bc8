# SPDX-License-Identifier: BSD-3-Clause
"""Entropies on axes in nats or bits: the points, the reference, the other scale and the label agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import plot

plt = pytest.importorskip("matplotlib.pyplot")
pytest.importorskip("xarray")

LN2 = np.log(2)


@pytest.fixture(autouse=True)
def no_figures_left() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def result() -> at.montecarlo.ExperimentResult:
    return at.montecarlo.entropy_vs_length([16, 64, 256], law=["standard", "log_n"], samples=64, rng=0)


def drawn(ax: Any) -> list[np.ndarray]:
    """Values of the lines of a figure, points and bars included."""
    return [np.asarray(line.get_ydata(), np.float64) for line in ax.lines]


def check_scaled(nats: Any, bits: Any) -> None:
    pairs = list(zip(drawn(nats), drawn(bits), strict=True))
    assert pairs
    for a, b in pairs:
        np.testing.assert_allclose(b, a / LN2, rtol=1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("uniform", [True, [4.0, 5.0]])
def test_entropy_against_length(is_causal: bool, uniform: Any) -> None:
    given = {"a": [3.0, 3.6], "b": [[3.2, 2.0], [3.6, 1.0]]}
    options: dict[str, Any] = {"is_causal": is_causal, "uniform": uniform}
    nats, bits = (plot.entropy_vs_length(given, [128, 256], unit=u, **options) for u in ("nats", "bits"))
    check_scaled(nats, bits)
    assert (nats.get_ylabel(), bits.get_ylabel()) == ("mean entropy (nats)", "mean entropy (bits)")
    shade = bits.collections[0].get_paths()[0].vertices[:, 1]
    assert shade.max() == pytest.approx((3.6 + 1.0) / 2 / LN2 + 0.65 / LN2)  # the upper quartile of two heads
    if uniform is True and not is_causal:
        assert bits.lines[0].get_ydata()[[0, -1]].tolist() == pytest.approx([7, 8])
        assert bits.lines[0].get_label() == r"uniform, $\log_2 n$"


def test_a_result_its_dataset_and_a_dataset_in_bits_are_one_figure(result: Any) -> None:
    data = result.to_xarray(), result.to_xarray(unit="bits")
    for draw in (plot.entropy_vs_length, plot.sweep, plot.experiment):
        nats, bits = draw(data[0]), draw(data[0], unit="bits")
        check_scaled(nats, bits)
        check_scaled(draw(data[1]), draw(data[1], unit="bits"))
        for a, b in zip(drawn(bits), drawn(draw(data[1], unit="bits")), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        assert (nats.get_ylabel(), bits.get_ylabel()) == ("mean entropy (nats)", "mean entropy (bits)")
    check_scaled(result.plot(), result.plot(unit="bits"))
    truth = at.theory.expected_entropy(256, 1.0) / LN2
    assert any(line[-1] == pytest.approx(truth, rel=1e-9) for line in drawn(result.plot(unit="bits")))


@pytest.mark.parametrize("quantity", ["lse", "concentration"])
def test_other_quantities_of_a_row(result: Any, quantity: str) -> None:
    nats, bits = (plot.experiment(result, quantity=quantity, unit=u) for u in ("nats", "bits"))
    if quantity == "lse":
        check_scaled(nats, bits)
        assert bits.get_ylabel() == "lse (bits)"
    else:  # a plain number
        for a, b in zip(drawn(nats), drawn(bits), strict=True):
            np.testing.assert_array_equal(a, b)
        assert bits.get_ylabel() == r"$\sum p^2$"


def test_the_entropy_beside_a_needle() -> None:
    result = at.montecarlo.needle_dilution([64, 512], cosine=0.6, samples=64, rng=0)
    nats, bits = (plot.needle(result, quantity="entropy", unit=u) for u in ("nats", "bits"))
    check_scaled(nats, bits)
    assert bits.get_ylabel() == "mean entropy (bits)"
    assert plot.experiment(result, unit="bits").get_ylabel() == "weight of the needle"


def test_heads_with_both_scales() -> None:
    entropy = {"a": [0.2, 4.5, 5.8], "b": [1.2, 4.0, 5.0]}
    ax = plot.entropy_by_head(entropy, n_keys=512, unit="bits")
    for marks, values in zip(ax.collections[1:], entropy.values(), strict=True):
        np.testing.assert_allclose(marks.get_offsets()[:, 0], np.divide(values, LN2))
    (limit,) = ax.lines
    assert limit.get_xdata()[0] == pytest.approx(9)
    assert [text.get_text().strip() for text in ax.texts] == [r"$\log_2 512$"]
    assert ax.get_xlabel() == "mean entropy (bits)"
    top = ax.child_axes[0]
    assert top.get_xlabel() == "effective keys, $2^H$"
    ax.figure.canvas.draw()
    assert top.get_xlim()[1] == pytest.approx(2 ** ax.get_xlim()[1])
    causal = plot.entropy_by_head(entropy, n_keys=512, is_causal=True, unit="bits")
    assert causal.lines[0].get_xdata()[0] == pytest.approx(np.log2(np.arange(1, 513)).mean())


def test_a_map_of_heads() -> None:
    values = np.array([[0.2, 4.5], [3.0, 2.2]])
    ax = plot.head_map(values, n_keys=512, unit="bits")
    (image,) = ax.get_images()
    np.testing.assert_allclose(image.get_array(), values / LN2)
    assert image.get_clim() == pytest.approx((0, 9))
    assert [each.get_ylabel() for each in ax.figure.axes[1:]] == ["mean entropy (bits)"]
    ends = plot.head_map(values, low=LN2, high=4 * LN2, unit="bits").get_images()[0].get_clim()
    assert ends == pytest.approx((1, 4))
    named = plot.head_map(values, label="largest weight")
    assert [each.get_ylabel() for each in named.figure.axes[1:]] == ["largest weight"]


BAD: dict[str, Callable[[Any, Any], Any]] = {
    "entropy_vs_length": lambda result, unit: plot.entropy_vs_length(result, unit=unit),
    "entropy_vs_length of a mapping": lambda _, unit: plot.entropy_vs_length({"a": [1]}, [8], unit=unit),
    "entropy_by_head": lambda _, unit: plot.entropy_by_head({"a": [1, 2]}, unit=unit),
    "head_map": lambda _, unit: plot.head_map([[1.0]], unit=unit),
    "experiment": lambda result, unit: plot.experiment(result, unit=unit),
    "experiment of numbers": lambda result, unit: plot.experiment(
        result, quantity="concentration", unit=unit
    ),
    "needle": lambda result, unit: plot.needle(result, unit=unit),
    "sweep": lambda result, unit: plot.sweep(result.to_xarray(), unit=unit),
    "plot": lambda result, unit: result.plot(unit=unit),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("unit", ["bit", None, 2])
def test_another_unit_is_one_error_and_leaves_no_figure(name: str, unit: Any, result: Any) -> None:
    meant = "did you mean 'bits'\\? " if unit == "bit" else ""
    with pytest.raises(ValueError, match=f"^{meant}unit must be one of 'nats', 'bits', got {unit!r}$"):
        BAD[name](result, unit)
    assert plt.get_fignums() == []
