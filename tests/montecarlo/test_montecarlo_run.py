# SPDX-License-Identifier: BSD-3-Clause
"""Runs of experiments: seeds, pieces, stopping, Ctrl-C, resume; methods of results."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
import subprocess
import sys

import attnscale as at
import numpy as np
import pytest
from attnscale import montecarlo as mc
from attnscale.montecarlo import _dot_products, _run, _tally

# Small experiments, one for each engine; all take a sequence in `n` or `head_dim`.
EXPERIMENTS = {
    "entropy_vs_length": lambda **o: mc.entropy_vs_length([5, 40], law=["standard", 0.5], head_dim=8, **o),
    "gaussian": lambda **o: mc.entropy_vs_length(33, model="gaussian", **o),
    "correlated": lambda **o: mc.entropy_vs_length(33, model="correlated", head_dim=8, **o),
    "real heads": lambda **o: mc.entropy_vs_length([7, 20], model=HEADS, law=["standard", "unscaled"], **o),
    "dot_product_variance": lambda **o: mc.dot_product_variance(head_dim=[3, 8], **o),
    "dot products of arrays": lambda **o: mc.dot_product_variance(query=HEADS[0], key=HEADS[1], **o),
    "softmax_saturation": lambda **o: mc.softmax_saturation(head_dim=8, n=30, **o),
    "needle_dilution": lambda **o: mc.needle_dilution([8, 40], head_dim=8, cosine=0.7, **o),
    "averaging_error": lambda **o: mc.averaging_error([8, 40], head_dim=8, **o),
    "head_dimension": lambda **o: mc.head_dimension([4, 16], n=40, **o),
    "max_cosine": lambda **o: mc.max_cosine([8, 40], 8, **o),
    "jl_distortion": lambda **o: mc.jl_distortion(n=20, dim=30, k=[5, 16], eps=[0.2, 0.5], **o),
    "rank_and_sparsity": lambda **o: mc.rank_and_sparsity(12, head_dim=4, law=["standard", 2.0], **o),
    "sparsity": lambda **o: mc.sparsity(
        [5, 33], law=["standard", 2.0], normalizer=["sparsemax", "entmax15"], head_dim=4, model="sphere", **o
    ),
    "sparsity of normal scores": lambda **o: mc.sparsity(33, law="log_n", **o),
}
HEADS = tuple(np.random.default_rng(3).standard_normal((2, 2, 24, 8)).astype(np.float32))


def arrays(result):
    """All numbers of a result."""
    parts = [(each.value, each.standard_error) for each in result.estimates.values()]
    return np.array([np.ravel(part) for pair in parts for part in pair])


def assert_same(first, second):
    np.testing.assert_array_equal(arrays(first), arrays(second))
    np.testing.assert_array_equal(first.samples, second.samples)


@pytest.fixture
def small_pieces(monkeypatch):
    """Three rows at a time."""
    monkeypatch.setattr(_run, "_MOST_ROWS", 3)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_pieces_and_threads_do_not_change_a_bit(name, monkeypatch):
    run = EXPERIMENTS[name]
    whole = run(samples=20, rng=5, num_threads=1)
    if "dot" not in name:  # one block is not enough for the error of the kurtosis
        assert np.isfinite(arrays(whole)).all()
    monkeypatch.setattr(_run, "_MOST_ROWS", 3)
    assert_same(run(samples=20, rng=5, num_threads=2), whole)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_resume_continues_bit_for_bit(name):
    run = EXPERIMENTS[name]
    whole = run(samples=200, rng=5)
    part = run(samples=70, rng=5)
    assert_same(run(samples=200, resume=part), whole)
    # Another seed gives other numbers: the comparison above compares something.
    assert not np.array_equal(arrays(run(samples=200, rng=6)), arrays(whole))


@pytest.mark.parametrize(
    "name", ["entropy_vs_length", "gaussian", "correlated", "averaging_error", "sparsity"]
)
def test_the_standard_error_of_a_few_rows_is_unbiased(name):
    """The rows follow from the means of the first 1, 2, ... of them; a divisor n would show at once."""
    counts = range(1, 6)
    runs = [EXPERIMENTS[name](samples=count, rng=5) for count in counts]
    for each in runs[0].estimates:
        means = np.array([run[each].value for run in runs])
        sums = means * np.reshape(counts, (-1,) + (1,) * (means.ndim - 1))
        rows = np.diff(sums, axis=0, prepend=0)
        assert np.ptp(rows, axis=0).max() > 1e-3
        for count in counts[1:]:
            wanted = rows[:count].std(0, ddof=1) / np.sqrt(count)
            np.testing.assert_allclose(runs[count - 1][each].standard_error, wanted, rtol=1e-6, atol=1e-12)


def test_the_variance_of_one_block_is_unbiased():
    """Moments from the mean powers 1 ... 4 of the smallest run."""
    x = np.random.default_rng(8).exponential(size=_dot_products._BLOCK)
    powers = np.array([[(x**power).mean() for power in range(1, 5)]])
    (variance, scaled, mean, _), _ = _dot_products.mc_dot_product_moments(
        _tally.Tally.empty((4,)).add(powers), head_dim=8
    )
    np.testing.assert_allclose([variance, scaled, mean], [x.var(ddof=1), x.var(ddof=1) / 8, x.mean()])


def test_a_case_does_not_depend_on_the_grid_around_it():
    grid = mc.entropy_vs_length([8, 40], head_dim=[4, 8], law=["standard", "log_n"], samples=10, rng=1)
    alone = mc.entropy_vs_length(40, head_dim=8, law="log_n", samples=10, rng=1)
    assert alone.value == grid.value[1, 1, 1]
    assert type(alone.value) is float
    assert type(alone.samples) is int


def test_cases_and_experiments_have_numbers_of_their_own():
    # The scores of the Gaussian model do not look at head_dim: only the numbers can differ.
    by_dim = mc.entropy_vs_length(64, head_dim=[8, 9], model="gaussian", samples=20, rng=1)
    assert by_dim.value[0] != by_dim.value[1]
    first, second = mc.averaging_error(8, samples=5, rng=1), mc.entropy_vs_length(8, samples=5, rng=1)
    assert first["concentration"].value != second["concentration"].value


# ---- rng= -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rng", [7, [1, 2, 3], np.random.SeedSequence(7), np.int64(7)], ids=repr)
def test_a_seed_gives_the_same_numbers_every_time(rng):
    assert mc.max_cosine(8, 4, samples=3, rng=rng).value == mc.max_cosine(8, 4, samples=3, rng=rng).value


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.PCG64, np.random.MT19937])
def test_generators_move_on(make):
    rng = make(7)
    first, second = (mc.max_cosine(8, 4, samples=3, rng=rng).value for _ in range(2))
    assert first != second
    assert mc.max_cosine(8, 4, samples=3, rng=make(7)).value == first


def test_none_is_fresh():
    first, second = (mc.max_cosine(8, 4, samples=3) for _ in range(2))
    assert first.value != second.value
    again = mc.max_cosine(8, 4, samples=3, rng=first.provenance.seed)
    assert again.value == first.value


def test_an_integer_is_its_seed_sequence():
    assert mc.normal(1, rng=7) == mc.normal(1, rng=np.random.SeedSequence(7))
    assert mc.normal(1, rng=7) != mc.normal(1, rng=np.random.SeedSequence(7, spawn_key=(1,)))


# ---- stopping -------------------------------------------------------------------------------------


def test_target_error():
    result = mc.max_cosine([8, 512], 8, target_error=0.01, rng=0)
    assert (result.standard_error <= 0.01).all()
    assert (result.samples % 256 == 0).all()
    assert result.samples[0] > result.samples[1]  # the larger n has the smaller spread
    stricter = mc.max_cosine([8, 512], 8, target_error=0.005, resume=result)
    whole = mc.max_cosine([8, 512], 8, target_error=0.005, rng=0)
    assert_same(stricter, whole)
    # A resume from a count at which the error is not checked.
    few = mc.max_cosine([8, 512], 8, samples=100, rng=0)
    assert_same(mc.max_cosine([8, 512], 8, target_error=0.005, resume=few), whole)


def test_target_error_looks_at_fixed_places(small_pieces):
    result = mc.max_cosine(8, 8, target_error=0.02, rng=0)
    assert result.samples % 256 == 0


def test_max_samples_ends_a_target_that_is_out_of_reach():
    result = mc.max_cosine(8, 8, target_error=1e-9, max_samples=300, rng=0)
    assert result.samples == 300
    assert result.standard_error > 1e-9


def test_samples_are_rounded_up_to_blocks():
    assert mc.dot_product_variance(head_dim=4, samples=65, rng=0).samples == 128


@pytest.mark.parametrize(
    "name", ["entropy_vs_length", "dot_product_variance", "max_cosine", "averaging_error"]
)
def test_standard_errors_are_the_spread_over_seeds(name):
    runs = [EXPERIMENTS[name](samples=1280, rng=seed) for seed in range(150)]
    for quantity in runs[0].estimates:
        values = np.array([run[quantity].value for run in runs])
        errors = np.array([run[quantity].standard_error for run in runs])
        ratio = values.std(axis=0, ddof=1) / np.sqrt((errors**2).mean(axis=0))
        # The spread of 150 is known to 1/sqrt(2 * 149) = 5.8 %: 5 of these.
        assert (np.abs(ratio - 1) < 0.29).all(), (quantity, ratio)


# ---- progress and Ctrl-C --------------------------------------------------------------------------


def test_progress_counts_samples(small_pieces):
    seen = []
    mc.max_cosine([8, 9], 8, samples=7, rng=0, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 14), (3, 14), (6, 14), (7, 14), (10, 14), (13, 14), (14, 14)]
    seen.clear()
    before = mc.max_cosine([8, 9], 8, samples=5, rng=0)
    mc.max_cosine(
        [8, 9], 8, samples=7, resume=before, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(10, 14), (12, 14), (14, 14)]  # only what was missing
    seen.clear()
    mc.max_cosine(8, 8, target_error=0.1, rng=0, progress=lambda done, total: seen.append(total))
    assert set(seen) == {None}


def interrupt_at(count):
    """A progress function that presses Ctrl-C."""

    def progress(done, total):
        if done >= count:
            signal.raise_signal(signal.SIGINT)

    return progress


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_ctrl_c_returns_a_part_and_resume_finishes(name, small_pieces):
    run = EXPERIMENTS[name]
    cases = len(run(samples=1, rng=5)._tallies)
    block = 64 if "dot" in name else 1
    samples = 10 * block
    part = run(samples=samples, rng=5, progress=interrupt_at(samples * (cases - 1) + 1))
    assert part.interrupted
    assert 0 < np.sum([tally.rows for tally in part._tallies]) * block < samples * cases
    whole = run(samples=samples, rng=5)
    assert not whole.interrupted
    assert_same(run(samples=samples, resume=part), whole)


def test_cases_that_were_not_reached_are_nan(small_pieces):
    part = mc.max_cosine([8, 9], 8, samples=10, rng=5, progress=interrupt_at(4))
    assert np.isnan(part.value[1])
    assert np.isnan(part.standard_error[1])
    np.testing.assert_array_equal(part.samples, [6, 0])
    assert "interrupted; resume=result continues" in repr(part)


def test_a_running_case_is_kept_now_and_then(small_pieces, tmp_path, monkeypatch):
    """The part that a killed process leaves goes on with the same bits."""
    monkeypatch.setattr(_run, "_KEEP_SECONDS", 0.0)
    kept = []

    def look(done, total):
        files = list((tmp_path / "a" / "cases").glob("*.npz")) if (tmp_path / "a" / "cases").exists() else []
        if files and done < total and not kept:
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            kept.append(done)

    whole = mc.max_cosine(8, 8, samples=10, rng=5, store=tmp_path / "a", progress=look)
    assert kept
    again = mc.max_cosine(8, 8, samples=10, rng=5, store=tmp_path / "b", progress=False)
    assert again.value == whole.value
    assert again.standard_error == whole.standard_error


def test_ctrl_c_can_be_let_through(small_pieces):
    with pytest.raises(at.SweepInterrupted, match=r"^6 samples are drawn; the attribute partial") as raised:
        mc.max_cosine(8, 8, samples=10, rng=5, progress=interrupt_at(4), on_interrupt="raise")
    assert isinstance(raised.value, KeyboardInterrupt)
    whole = mc.max_cosine(8, 8, samples=10, resume=raised.value.partial)
    assert whole.value == mc.max_cosine(8, 8, samples=10, rng=5).value


def test_ctrl_c_inside_the_core(tmp_path):
    """A signal from outside, while the core computes minutes of work."""
    code = """
import attnscale as at, sys, threading, signal, os
begun = threading.Event()

def press():
    begun.wait()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press).start()
progress = lambda done, total: begun.set()
result = at.montecarlo.entropy_vs_length(65536, samples=10**7, rng=0, progress=progress)
print(result.interrupted, result.samples < 10**7)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == "True True\n"


# ---- results --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    return mc.needle_dilution([8, 40], law=["standard", "log_n"], head_dim=8, cosine=0.7, samples=20, rng=7)


def test_axes_and_parameters(result):
    assert result.axes == {"n": (8, 40), "law": ("standard", "log_n")}
    assert result.value.shape == result.standard_error.shape == result.samples.shape == (2, 2)
    assert result.parameters == {"n": [8, 40], "head_dim": 8, "law": ["standard", "log_n"], "cosine": 0.7}
    assert json.loads(json.dumps(result.parameters)) == result.parameters
    assert result.provenance.seed == 7
    assert result["entropy"].unit == "nat"
    np.testing.assert_array_equal(result["needle_weight"].value, result.value)
    with pytest.raises(KeyError, match="needle_dilution estimates needle_weight, needle_is_top, entropy"):
        result["weight"]


def test_rows(result):
    rows = result.rows()
    assert [(row["n"], row["law"]) for row in rows] == [
        *((8, "standard"), (8, "log_n"), (40, "standard"), (40, "log_n"))
    ]
    assert rows[2]["needle_weight"] == result.value[1, 0]
    assert rows[2]["entropy_standard_error"] == result["entropy"].standard_error[1, 0]


def test_repr_reads_well(result):
    lines = repr(result).splitlines()
    assert lines[0] == "needle_dilution(head_dim=8, cosine=0.7)"
    assert lines[1].split() == ["n", "law", "needle_weight", "standard", "error", "samples"]
    assert lines[2].split()[:2] == ["8", "standard"]
    assert lines[-1] == "  also: needle_is_top, entropy"
    long = mc.max_cosine(range(2, 40), 8, samples=2, rng=0)
    assert "  ... 18 more" in repr(long)


def test_results_can_be_pickled(result):
    again = pickle.loads(pickle.dumps(result))
    assert_same(again, result)
    assert repr(again) == repr(result)


def test_to_xarray(result):
    xarray = pytest.importorskip("xarray")
    data = result.to_xarray()
    assert isinstance(data, xarray.Dataset)
    assert data["value"].dims == ("n", "law")
    assert data["value"].attrs["long_name"] == "needle_weight"
    assert data["value"].sel(n=40, law="log_n") == result.value[1, 1]
    assert set(data) >= {"standard_error", "samples", "entropy", "entropy_standard_error"}
    assert json.loads(data.attrs["parameters"])["cosine"] == 0.7
    assert data.attrs["provenance_seed"] == "7"
    assert all(isinstance(value, (str, int)) for value in data.attrs.values())


def test_to_xarray_names_the_missing_package(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r'pip install "attnscale\[sweep\]"'):
        result.to_xarray()


def test_nothing_heavy_is_imported():
    heavy = {"scipy", "xarray", "matplotlib", "tqdm"}
    code = f"import sys, attnscale; attnscale.montecarlo; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_resume_refuses_another_experiment(result):
    with pytest.raises(ValueError, match="resume must be a result of max_cosine, got one of needle_dilution"):
        mc.max_cosine(8, 4, resume=result)
    with pytest.raises(ValueError, match=r"the same cosine, got 0\.6 here and 0\.7 there"):
        mc.needle_dilution([8, 40], law=["standard", "log_n"], head_dim=8, cosine=0.6, resume=result)
    with pytest.raises(ValueError, match="the seed of its result; rng must be None, got 3"):
        mc.max_cosine(8, 4, resume=mc.max_cosine(8, 4, samples=2, rng=0), rng=3)
    assert at.montecarlo is mc


@pytest.mark.parametrize(
    ("unknown", "meant"),
    [("lengths", "n"), ("laws", "law"), ("scale", "law"), ("seed", "rng"), ("sample", "samples")],
)
def test_an_option_of_another_function_is_answered_by_its_name_here(unknown, meant):
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{unknown}'; did you mean '{meant}'"):
        mc.entropy_vs_length(8, **{unknown: 1})
