# SPDX-License-Identifier: BSD-3-Clause
"""The core's estimates from rows, against NumPy; its runs in C++, against those from Python."""

from __future__ import annotations

import base64
import pickle
import zlib
from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import montecarlo as mc
from cases import compiled as _core
from numpy.typing import NDArray

Array = NDArray[np.float64]
KEY = 0x243F6A8885A308D3
BLOCK = 64


# ---- sums over rows -------------------------------------------------------------------------------


def sequential(terms: Array) -> Array:
    """((t0 + t1) + t2) + ..., one addition after the other."""
    total = np.zeros(terms.shape[1:])
    for term in terms:
        total = total + term
    return total


def random_rows(count: int, *shape: int) -> Array:
    return 1e6 + np.random.default_rng(count).standard_normal((count, *shape))


@pytest.mark.parametrize("shape", [(1,), (4,), (3, 2), (2, 3, 5)])
def test_a_tally_is_the_sequential_sums_of_distances(shape: tuple[int, ...]) -> None:
    rows = random_rows(300, *shape)
    whole = mc._tally.Tally.empty(shape).add(rows)
    distance = rows - rows[0]
    np.testing.assert_array_equal(whole.origin, rows[0])
    np.testing.assert_array_equal(whole.sums, sequential(distance))
    outer = distance[..., :, None] * distance[..., None, :]
    np.testing.assert_array_equal(whole.products, sequential(outer))
    pieces = mc._tally.Tally.empty(shape)
    for part in np.split(rows, [1, 2, 100, 100, 257]):
        pieces = pieces.add(part)
    for name in ("rows", "origin", "sums", "products"):
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))


def test_moments_of_a_tally() -> None:
    rows = random_rows(500, 2, 3)
    tally = mc._tally.Tally.empty((2, 3)).add(rows)
    np.testing.assert_allclose(tally.mean, rows.mean(axis=0), rtol=1e-15)
    for entry in range(2):
        np.testing.assert_allclose(tally.covariance[entry], np.cov(rows[:, entry].T), rtol=1e-9)
    np.testing.assert_allclose(tally.standard_error, rows.std(axis=0, ddof=1) / np.sqrt(500), rtol=1e-9)
    one = mc._tally.Tally.empty((2, 3)).add(rows[:1])
    np.testing.assert_array_equal(one.mean, rows[0])
    assert np.isnan(one.covariance).all()
    assert np.isnan(one.standard_error).all()
    assert np.isnan(mc._tally.Tally.empty((2, 3)).mean).all()


def test_nan_stays_in_its_column() -> None:
    rows = np.array([[1.0, np.nan], [3.0, 2.0]])
    tally = mc._tally.Tally.empty((2,)).add(rows)
    np.testing.assert_array_equal(tally.mean, [2, np.nan])
    np.testing.assert_array_equal(tally.standard_error, [1, np.nan])


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows must have 6 numbers each, got \(5, 2\)"):
        mc._tally.Tally.empty((2, 3)).add(np.zeros((5, 2)))


# ---- rows, from simulated scores ------------------------------------------------------------------


def quantities(experiment: str, raw: Array, scales: Array) -> Array:
    """Definitions in NumPy, from (count, betas, multiples, columns of score_row)."""
    entropy, lse, squares, top, mean, variance, needle, is_top, value = np.moveaxis(raw, -1, 0)
    first = (slice(None), slice(None), 0)
    if experiment == "entropy_vs_length":
        found = [each[first] for each in (entropy, lse, squares, top, mean, variance)]
    elif experiment == "needle_dilution":
        found = [each[first] for each in (needle, is_top, entropy)]
    elif experiment == "head_dimension":
        found = [is_top[first], needle[first]]
    elif experiment == "averaging_error":
        found = [value[first] ** 2, squares[first]]
    else:
        p2, p3 = squares[first], top[..., 0] ** 3 / top[..., 2]
        root = np.sqrt(np.maximum(p2 - 2 * p3 + p2**2, 0))
        norm = np.minimum(np.maximum(root, top[first] * (1 - top[first])), 1 - p2)
        bound = np.minimum(0.5, 2 * top[first] * (1 - top[first]))
        found = [top[first] > 0.99, 1 - p2, norm, bound, scales * norm]
    return np.stack(found, axis=-1).astype(np.float64)


@pytest.mark.parametrize(
    "experiment",
    ["entropy_vs_length", "softmax_saturation", "needle_dilution", "averaging_error", "head_dimension"],
)
@pytest.mark.parametrize("model", ["sphere", "gaussian", "correlated"])
def test_rows_of_an_experiment_are_made_of_simulated_ones(experiment: str, model: str) -> None:
    betas = np.array([0.0, 1.0, 6.0])
    multiples = np.array([1.0, 2.0, 3.0] if experiment == "softmax_saturation" else [1.0])
    options: dict[str, Any] = {"model": model, "n": 50, "head_dim": 8, "key": KEY}
    options["correlation"] = 0.3 if model == "correlated" else 0.0
    raw = _core.mc_score_rows(
        **options, multipliers=np.outer(betas, multiples).ravel(), needle_cosine=0.6, first=7, count=40
    )
    found = _core.mc_experiment_rows(
        **options, experiment=experiment, betas=betas, cosine=0.6, first=7, count=40
    )
    wanted = quantities(experiment, raw.reshape(40, 3, len(multiples), 9), betas / np.sqrt(8))
    # A difference of small numbers under the root; the others are the same operations.
    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=1e-8 if "saturation" in experiment else 0)


@pytest.mark.parametrize("kind", ["normal", "uniform", "truncated_normal", "laplace"])
def test_rows_of_dot_products_are_means_of_powers(kind: str) -> None:
    mean, std = np.array([0.5, -1.0]), 2.0
    half = np.sqrt(3) * std
    parameters = {
        "uniform": lambda m: (m - half, m + half),
        "truncated_normal": lambda m: (m, std, -2.0, 2.0),
        "laplace": lambda m: (m, std / np.sqrt(2)),
    }.get(kind, lambda m: (m, std))
    x, y = ((kind, parameters(m)) for m in mean)
    sums = _core.mc_dot_products(head_dim=5, x=x, y=y, block=BLOCK, key=KEY, first=3 * BLOCK, count=9 * BLOCK)
    found = _core.mc_dot_product_rows(
        head_dim=5, distribution=kind, query_mean=0.5, key_mean=-1.0, std=std, key=KEY, first=3, count=9
    )
    np.testing.assert_array_equal(found, sums / BLOCK)


def test_rows_of_projections() -> None:
    eps = [0.2, 0.5]
    found = _core.mc_projection_rows(
        points=None, n=20, dim=30, k=6, kind="sign", eps=eps, key=KEY, first=4, count=3
    )
    for row, index in zip(found, range(4, 7), strict=True):
        points = np.empty((20, 30), np.float32)
        _core.mc_fill(points.reshape(-1), "normal", (0.0, 1.0), KEY, 2 * index)
        projected = _core.mc_project(points, 6, "sign", KEY, 2 * index + 1)
        low, high, mean, variance, outside = _core.pair_distances_ratio(points, projected, eps)
        for entry in range(2):
            share = outside[entry] / 190
            wanted = [max(high - 1, 1 - low), share, share == 0, mean, np.sqrt(variance)]
            np.testing.assert_array_equal(row[entry], wanted)
        again = _core.mc_projection_rows(
            points=points, n=20, dim=30, k=6, kind="sign", eps=eps, key=KEY, first=index, count=1
        )
        np.testing.assert_array_equal(again[0], row)


def test_random_scores() -> None:
    options: dict[str, Any] = {"n": 30, "head_dim": 9, "key": KEY, "first": 5, "count": 3}
    gaussian, sphere = (_core.mc_random_scores(model=model, **options) for model in ("gaussian", "sphere"))
    for i in range(3):
        scores, keys = np.empty(30), np.empty((30, 9))
        _core.mc_fill(scores, "normal", (0.0, 1.0), KEY, 5 + i)
        _core.mc_sphere(keys, 3.0, KEY, 5 + i)
        np.testing.assert_array_equal(gaussian[i], scores)
        np.testing.assert_array_equal(sphere[i], keys[:, 0])


# ---- estimates and stopping -----------------------------------------------------------------------


def moments(rows: Array, head_dim: int) -> tuple[Array, Array]:
    """Variance, variance over head_dim, mean and kurtosis with their errors, in NumPy."""
    m1, m2, m3, m4 = rows.mean(axis=0)
    count = len(rows) * BLOCK
    mu2 = m2 - m1**2
    mu4 = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    variance = mu2 * count / (count - 1)
    error = np.sqrt((mu4 - mu2**2 * (count - 3) / (count - 1)) / count)
    d_mu2 = np.array([-2 * m1, 1, 0, 0])
    d_mu4 = np.array([-4 * m3 + 12 * m1 * m2 - 12 * m1**3, 6 * m1**2, -4 * m1, 1])
    slope = d_mu4 / mu2**2 - 2 * mu4 / mu2**3 * d_mu2
    kurtosis_error = np.sqrt(slope @ np.cov(rows.T) @ slope / len(rows))
    values = np.array([variance, variance / head_dim, m1, mu4 / mu2**2])
    return values, np.array([error, error / head_dim, np.sqrt(mu2 / count), kurtosis_error])


def test_moments_of_dot_products() -> None:
    x = np.random.default_rng(5).exponential(size=(200, BLOCK))
    rows = np.stack([(x**power).mean(axis=1) for power in range(1, 5)], axis=1)
    found = _core.mc_dot_product_moments(mc._tally.Tally.empty((4,)).add(rows), 16)
    for seen, wanted in zip(found, moments(rows, 16), strict=True):
        np.testing.assert_allclose(seen, wanted, rtol=1e-8)
    assert np.isnan(_core.mc_dot_product_moments(mc._tally.Tally.empty((4,)), 16)).all()


def share_error(share: float, rows: int) -> float:
    mean = (share * rows + 1) / (rows + 2)
    return float(np.sqrt(mean * (1 - mean) / (rows + 3) + (mean - share) ** 2))


def test_shares_and_means() -> None:
    rows = np.zeros((100, 2, 3))
    rows[:30, 0, 0] = 1
    rows[:, 1, 1] = np.linspace(0, 1, 100)
    rows[:, :, 2] = np.arange(100)[:, None]
    value, error = _core.mc_means_and_shares(mc._tally.Tally.empty((2, 3)).add(rows), [0], [1])
    np.testing.assert_allclose(value, rows.mean(axis=0))
    usual = rows.std(axis=0, ddof=1) / 10
    none = share_error(0, 100)
    wanted = [[share_error(0.3, 100), none, usual[0, 2]], [none, usual[1, 1], usual[1, 2]]]
    np.testing.assert_allclose(error, wanted, rtol=1e-12)
    assert np.isnan(_core.mc_means_and_shares(mc._tally.Tally.empty((2, 3)), [0], [1])[1]).all()


@pytest.mark.parametrize(
    ("rows", "most", "target", "errors", "wanted"),
    [
        (0, 700, None, [np.nan], 700),
        (900, 700, None, [0.1], 700),
        (0, 700, 0.5, [np.nan], 256),
        (100, 700, 0.5, [0.1], 256),  # not at a place where it is looked at
        (256, 700, 0.5, [0.1, 0.5], 256),
        (256, 700, 0.5, [0.1, 0.6], 512),
        (256, 700, 0.5, [0.1, np.nan], 512),
        (512, 700, 0.5, [0.6], 700),
        (700, 700, 0.5, [0.6], 700),
    ],
)
def test_when_there_are_enough_rows(
    rows: int, most: int, target: float | None, errors: list[float], wanted: int
) -> None:
    assert _core.mc_rows_wanted(rows, most, target, errors) == wanted


# ---- the calls of C++ -----------------------------------------------------------------------------

LAWS = ["standard", "unscaled", 0.3]
RULES = [at.normalizers.Sparsemax(), at.normalizers.SoftmaxN(2.0), at.normalizers.TopK(3)]

#: The experiment's call in Python, and the options of that in C++.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "entropy_vs_length": (mc.entropy_vs_length, {"n": 40, "head_dim": 8, "law": LAWS, "model": "sphere"}),
    "entropy_vs_length, correlated": (
        mc.entropy_vs_length,
        {"n": 40, "head_dim": 8, "law": LAWS, "model": "correlated", "correlation": 0.3},
    ),
    "softmax_saturation": (mc.softmax_saturation, {"n": 30, "head_dim": 8, "law": LAWS}),
    "needle_dilution": (mc.needle_dilution, {"n": 30, "head_dim": 8, "law": LAWS, "cosine": 0.7}),
    "averaging_error": (mc.averaging_error, {"n": 30, "head_dim": 8, "law": LAWS}),
    "head_dimension": (mc.head_dimension, {"n": 30, "head_dim": 8, "law": LAWS, "cosine": 0.5}),
    "max_cosine": (mc.max_cosine, {"n": 30, "head_dim": 8}),
    "sparsity": (
        mc.sparsity,
        {"n": 33, "head_dim": 4, "law": LAWS, "model": "gaussian", "normalizer": RULES},
    ),
    "sparsity, sphere": (
        mc.sparsity,
        {"n": 33, "head_dim": 4, "law": LAWS, "model": "sphere", "normalizer": RULES},
    ),
    "dot_product_variance": (mc.dot_product_variance, {"head_dim": 12, "distribution": "laplace"}),
    "jl_distortion": (mc.jl_distortion, {"n": 12, "dim": 20, "k": 8, "kind": "sign", "eps": [0.3, 0.6]}),
}


def in_core(name: str, options: dict[str, Any], **run: Any) -> Any:
    given = dict(options)
    if "normalizer" in given:
        given["normalizer"] = [rule._rule(None) for rule in given["normalizer"]]
    return _core.mc_experiment(name.split(",")[0], given, run)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seed", [0, 2**40 + 5])
def test_cpp_and_python_draw_the_same_numbers(name: str, seed: int) -> None:
    """Names, values, errors and counts agree bit for bit under one seed."""
    call, options = CALLS[name]
    wanted = call(**options, samples=150, rng=seed)
    names, value, error, samples = in_core(name, options, samples=150, seed=seed, num_threads=2)
    assert names == list(wanted.estimates)
    assert samples == np.ravel(wanted.samples)[0]
    for column, each in enumerate(wanted.estimates.values()):
        np.testing.assert_array_equal(value[:, column], np.ravel(each.value))
        np.testing.assert_array_equal(error[:, column], np.ravel(each.standard_error))


def test_cpp_and_python_stop_at_the_same_sample() -> None:
    wanted = mc.softmax_saturation(
        n=16, head_dim=4, law=["unscaled", "standard"], target_error=0.003, rng=2, max_samples=5000
    )
    options = {"n": 16, "head_dim": 4, "law": ["unscaled", "standard"]}
    run = {"target_error": 0.003, "seed": 2, "max_samples": 5000}
    _, value, error, samples = in_core("softmax_saturation", options, **run)
    assert samples == wanted.samples[0] > 256
    np.testing.assert_array_equal(value[:, 0], wanted.value)
    np.testing.assert_array_equal(error[:, 0], wanted.standard_error)


#: An experiment, and changes of the options of CALLS or of the run.
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("needle_dilution", {"samples": 0}),
    ("needle_dilution", {"samples": 2**53 + 1}),
    ("needle_dilution", {"samples": 5, "target_error": 0.1}),
    ("needle_dilution", {"target_error": 0}),
    ("needle_dilution", {"target_error": float("nan")}),
    ("needle_dilution", {"target_error": 0.1, "max_samples": 0}),
    ("needle_dilution", {"n": 0}),
    ("needle_dilution", {"n": 2**53 + 1}),
    ("needle_dilution", {"head_dim": 1}),
    ("needle_dilution", {"cosine": 1.5}),
    ("needle_dilution", {"cosine": float("inf")}),
    ("needle_dilution", {"law": []}),
    ("needle_dilution", {"law": [-0.5]}),
    ("needle_dilution", {"law": ["ssmax(s=-3)"]}),
    ("entropy_vs_length", {"correlation": 0.5}),
    ("entropy_vs_length, correlated", {"correlation": 2.0}),
    ("dot_product_variance", {"std": -1.0}),
    ("dot_product_variance", {"std": float("nan")}),
    ("dot_product_variance", {"head_dim": 0}),
    ("jl_distortion", {"eps": [0.5, 1.0]}),
    ("jl_distortion", {"eps": []}),
    ("jl_distortion", {"n": 1}),
    ("sparsity", {"normalizer": []}),
    ("sparsity", {"model": "correlated"}),
    ("sparsity, sphere", {"head_dim": 1}),
]
RUN = ("samples", "target_error", "max_samples")


@pytest.mark.parametrize(("name", "changed"), WRONG, ids=str)
def test_cpp_and_python_refuse_in_the_same_words(name: str, changed: dict[str, Any]) -> None:
    call, usual = CALLS[name]
    run = {key: value for key, value in changed.items() if key in RUN}
    options = {**usual, **{key: value for key, value in changed.items() if key not in RUN}}
    with pytest.raises(ValueError, match=r" must | exclude | goes ") as of_python:
        call(**options, **run)
    with pytest.raises(ValueError, match=r" must | exclude | goes ") as of_core:
        in_core(name, options, **run)
    assert str(of_core.value) == str(of_python.value)


# ---- results of before ----------------------------------------------------------------------------

#: max_cosine([8, 512], 8, target_error=0.01, rng=0), pickled when tallies and estimates were NumPy's.
STORED = (
    "c-n<iK}Zx)7@l2s*VQCUOfVy(lTr=4t1cnIN)bVWTVw?tVtBjz^bO9u8Q*)OyGEf<mhlILFNmO!D1r_hg07X&A)-t7K)Q6uI"
    "(F$`y_pe}T5S$9%>VxH|GxLW@69CcbtJX$fxSow%FD>cy5mxT%ZS;oZZgb$TS#a<QS~sh98AU8sI(w^XXO>y1I>7SNkX%Os%"
    "F{c7R3_M6F#EC5;aLu(1f|L93(JTD3T%?q))6>HfAL!k?kvF2lXAVrmIOz=}~kRVhq(Jv?xVomvX`Ua-ac{VW)&fT8UZ~q@i"
    "7x$73aVL!OmAM$Cv`m!u7n6;bm7Du|CBk@GjB)dq+imBnK5)Nl2KFGCZuG=IExamnMWi_3+NukKF0xxZ47sth~1Kmk$3#EiL"
    "2l3k=dpd%fd$@VGuk55-duhOf9cehp_U0TKwJmFJI9g-&f5{Cq;hGzjWDvk887N3(G8aZ-2Th;4N?t-|rNj&MUD_x66rfRY1"
    "6LL3uh#?0H%mUILqF+)I0$L1df>Fh+SdP-+!wyT?&zSECT#@t8A`lzHVr|1G3)iN<oP5!KS<PeaB&LX#m0!Cz(qnF}H=o(~S"
    "vR?9y;<3p(X)Cc^e3nH>v;v?mQyipJc(@yDKuFf$mS&MP&S)_FeQ{rBMu3Ul{!O%ChnmrYL4TY?1jd%Y6xUQXD*Y=AI@eE=l"
    "ag&vV(p7gW2rCOlB~XQD+Y+vxEiWvIt2t90Yr!z%k{n>*ys*m}8h?hJ@NPbeX1CtC~Lbtn#>x%@G9|!4p1?wnavu<*(AI1CP"
    "Ho6eE{3L;KgvL}aGl|6em3SB6&egZa}BwU@<b(+}PUW*Uj!z|yoSkZoHkEzni}`UdOjawN}%-*pEP%$?#=c@HU<Sz{Kh6Sr6"
    "t<n+^_CoiA3Ew2Tb`wrix`C|8-&gzF<Lt%4TC846OX<dL3n~Nal7j^#Y=b;edmk5a@lJQ|JM(nMbK6fW(7H)qJWf8u0U&FEC"
    "owE=2y$$=Ow-d6o|H5m3;A<fgGN*E){{hbd`!E"
)


def test_a_stored_result_still_loads_and_goes_on() -> None:
    before = pickle.loads(zlib.decompress(base64.b85decode(STORED)))
    again = mc.max_cosine([8, 512], 8, target_error=0.01, rng=0)
    np.testing.assert_array_equal(again.value, before.value)
    np.testing.assert_array_equal(again.standard_error, before.standard_error)
    further = mc.max_cosine([8, 512], 8, target_error=0.007, resume=before)
    whole = mc.max_cosine([8, 512], 8, target_error=0.007, rng=0)
    np.testing.assert_array_equal(further.value, whole.value)
    np.testing.assert_array_equal(further.standard_error, whole.standard_error)
