# SPDX-License-Identifier: BSD-3-Clause
"""Keys at the front that every query sees besides its interval: the core's calls against a boolean mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attnscale import _core
from numpy.typing import NDArray

NAMES = ("lse", "entropy", "max_score", "argmax", "score_variance", "n_visible")

# Queries, keys, leading keys, reach of the interval on both sides. Few queries are decoded, and a few of
# more than 16384 keys are split into ranges.
SHAPES = {
    "blocks": (300, 300, 5, 20),
    "wide": (130, 700, 260, 3),
    "everything leads": (40, 64, 64, 2),
    "no interval": (70, 500, 9, -1),
    "decoding": (2, 900, 7, 30),
    "split": (3, 17000, 8300, 50),
}


def intervals(n: int, keys: int, reach: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Neighbours of a position that moves through the keys; none for a reach of -1."""
    at = np.arange(n) * keys // n
    return np.maximum(at - reach, 0), np.minimum(at + reach + 1, keys)


def both(shape: str, dtype: Any) -> tuple[Any, Any, tuple[NDArray[Any], ...], NDArray[np.bool_]]:
    """A call with leading keys, the same with a mask, their values, and the mask."""
    n, keys, leading, reach = SHAPES[shape]
    rng = np.random.default_rng(3)
    q = rng.standard_normal((2, n, 16)).astype(dtype)
    k, v = rng.standard_normal((2, 2, keys, 16)).astype(dtype)
    begin, end = intervals(n, keys, reach)
    j = np.arange(keys)
    seen = ((j >= begin[:, None]) & (j < end[:, None])) | (j < leading)
    hidden = ~seen.any(0)
    k[:, hidden] = v[:, hidden] = np.nan  # nothing is read that nobody sees
    wide = dtype == np.float64
    call = _core.Call(q, k, None, begin, end, None, wide, 0)
    call.show_leading(leading)
    return call, _core.Call(q, k, seen, None, None, None, wide, 0), (v, np.empty_like(q)), seen


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_statistics_are_those_of_a_mask(shape: str, dtype: Any) -> None:
    call, masked, (v, out), _ = both(shape, dtype)
    expected = np.empty_like(out)
    found = dict(zip(NAMES, call.attend(v, out, NAMES, 0.25, None), strict=True))
    wanted = dict(zip(NAMES, masked.attend(v, expected, NAMES, 0.25, None), strict=True))
    atol = 1e-12 if dtype == np.float64 else 2e-6
    np.testing.assert_allclose(out, expected, atol=atol)
    assert np.isfinite(out).all()
    for name in NAMES:
        np.testing.assert_allclose(found[name], wanted[name], atol=4 * atol, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_keys_are_counted(shape: str) -> None:
    call, _, _, seen = both(shape, np.float32)
    np.testing.assert_array_equal(np.broadcast_to(call.count(), seen.shape[:1]), seen.sum(1))


def test_what_does_not_go_with_them_is_refused() -> None:
    q = np.zeros((1, 4, 8), np.float32)
    for mask, leading in ((np.ones((4, 4), bool), 1), (None, 5), (None, -1)):
        call = _core.Call(q, q, mask, None, None, None, False, 0)
        call.show_leading(leading)
        with pytest.raises(ValueError, match="leading_keys must be from 0 to n_keys, with neither a mask"):
            call.attend(q, np.empty_like(q), (), 1.0, None)
