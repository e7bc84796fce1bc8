# SPDX-License-Identifier: BSD-3-Clause
"""Linear-time families on several threads: the same bits, the maps of the core, errors that end all."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from attnscale import variants as av
from attnscale.variants import _products, _run
from cases import random_inputs
from test_variants_linear import FAMILIES, MASKS

pytestmark = [pytest.mark.levels, pytest.mark.alone]


@pytest.fixture
def small_blocks(monkeypatch):
    """Many blocks of short sequences, divided all the same."""
    for name, value in (("ROWS", 32), ("_FEW_ROWS", 64), ("_LEAST_SHARED", 0), ("_LEAST_DIVIDED", 0)):
        monkeypatch.setattr(_run, name, value)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("size", [(690, 690), (300, 650), (650, 300)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_same_bits_on_any_number_of_threads(name, mask, size, dtype, small_blocks):
    q, k, v = random_inputs(
        1, heads=2, n_queries=size[0], n_keys=size[1], head_dim=8, value_dim=5, dtype=dtype, spread=3
    )
    one = FAMILIES[name].call(q, k, v, **mask, num_threads=1)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(FAMILIES[name].call(q, k, v, **mask, num_threads=threads), one)
    exact = FAMILIES[name].twin(*(x.astype(np.float64) for x in (q, k, v)), **mask)
    eps = 2e-5 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(one.astype(np.float64), exact, atol=eps * abs(exact).max())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_long_heads_that_share_keys(name, mask, small_blocks):
    q, k, v = random_inputs(4, batch=(2,), heads=4, kv_heads=2, n_queries=200, n_keys=230, head_dim=8)
    repeated = FAMILIES[name].call(q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1), **mask)
    for threads in (1, 3, 8):
        found = FAMILIES[name].call(q, k, v, **mask, enable_gqa=True, num_threads=threads)
        np.testing.assert_array_equal(found, repeated)
    one_key = FAMILIES[name].call(q, k[:1, :1], v[:1, :1], **mask)
    np.testing.assert_array_equal(one_key[1, 3], FAMILIES[name].call(q[1, 3], k[0, 0], v[0, 0], **mask))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_same_bits_with_a_bad_value(name, bad, small_blocks):
    q, k, v = random_inputs(2, heads=1, n_queries=300, n_keys=300, head_dim=8)
    v[0, 130, 2] = bad
    one, two = (FAMILIES[name].call(q, k, v, is_causal=True, num_threads=t) for t in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert np.isfinite(one[0, :130]).all()


@pytest.mark.parametrize("causal", [False, True])
def test_one_head_is_divided(causal):
    """The first thread waits for a second one to arrive."""
    seen, arrived = set(), threading.Event()

    def squares(x):
        seen.add(threading.get_ident())
        if len(seen) > 1:
            arrived.set()
        arrived.wait(20)
        return x**2

    x = np.random.default_rng(0).standard_normal((1 << 18, 4), np.float32)
    av.linear_attention(x, x, x, feature_map=squares, is_causal=causal, num_threads=2)
    assert len(seen) > 1


def test_a_short_call_stays_on_its_thread():
    seen = set()

    def squares(x):
        seen.add(threading.get_ident())
        return x**2

    x = np.ones((8, 1024, 4), np.float32)
    av.linear_attention(x, x, x, feature_map=squares, num_threads=4)
    assert seen == {threading.get_ident()}


FORK = """
import os, warnings
import numpy as np
import attnscale as at
warnings.simplefilter("ignore")  # Python advises against fork() beside threads
x = np.random.default_rng(0).standard_normal((8, 4096, 16), np.float32)
here = at.variants.linear_attention(x, x, x, num_threads=2)
child = os.fork()
if child == 0:
    os._exit(0 if (at.variants.linear_attention(x, x, x, num_threads=2) == here).all() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (at.variants.linear_attention(x, x, x, num_threads=2) == here).all()
"""


def test_a_forked_process_has_threads_of_its_own():
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("causal", [False, True])
def test_an_error_in_one_block_ends_the_call(causal):
    calls = []

    def fails(x):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the third block")
        time.sleep(0.01)  # the caller has time to say stop
        return x**2

    x = np.ones((1 << 18, 4), np.float32)
    with pytest.raises(RuntimeError, match="the third block"):
        av.linear_attention(x, x, x, feature_map=fails, is_causal=causal, num_threads=2)
    assert len(calls) < 100  # of at least 256


@pytest.mark.parametrize("columns", [1, 3, 16, 21, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_maps_of_the_core(columns, dtype):
    rng = np.random.default_rng(columns)
    q, k = (4 * rng.standard_normal((2, 70, columns))).astype(dtype)
    v = rng.standard_normal((70, 5)).astype(dtype)
    shift, reference = rng.standard_normal((2, columns)).astype(dtype)
    tolerance = 3e-6 if dtype == np.float32 else 1e-14
    moved = (q + shift).astype(np.float64)
    of_key = np.exp((k - reference).astype(np.float64))
    exponentials = np.exp(moved - moved.max(-1, keepdims=True))
    wanted = {
        "elu": [np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0).astype(np.float64))) for x in (q, k)],
        "relu": [np.maximum(x, 0).astype(np.float64) for x in (q, k)],
        "exponential": [exponentials, of_key],
    }
    for name, (phi_q, phi_k) in wanted.items():
        how = _products.Rows(name, shift, reference, divide=True)
        found, weights, _ = _products.step(q, k, v, None, how)
        pairs = np.tril(phi_q @ phi_k.T)
        total = pairs.sum(-1)
        size = np.maximum(pairs.max(), 1)
        np.testing.assert_allclose(weights, total, rtol=tolerance * 10, atol=tolerance * size)
        expected = pairs @ v / np.where(total == 0, 1, total)[:, None]
        np.testing.assert_allclose(found, expected, rtol=tolerance * 10, atol=tolerance * 30)
    how = _products.Rows("exponential", None, reference, per_channel=True, divide=True)
    found = _products.step(q, k, v, None, how)[0]
    of_query = np.exp(q.astype(np.float64) - q.max(-1, keepdims=True))
    pairs = np.tril((of_query / np.cumsum(of_key, 0)) @ of_key.T)
    expected = pairs @ v / of_query.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=tolerance * 10, atol=tolerance * 30)


def test_a_merged_state_leaves_its_parts_alone():
    q, k, v = random_inputs(3, n_queries=5, n_keys=40, head_dim=8, dtype="float64")
    for make in (av.LinearState, av.EfficientState):
        part = make().update(k[:, :20], v[:, :20])
        before = part.read(q)
        part.merge(make()).update(k[:, 20:], v[:, 20:])
        np.testing.assert_array_equal(part.read(q), before)
