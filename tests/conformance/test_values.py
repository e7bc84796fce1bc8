# SPDX-License-Identifier: BSD-3-Clause
"""Output and statistics of every case through every backend, against the mathematics written out in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from . import truth
from .backends import Backend
from .cases import CASES, SIXTEEN_BITS
from .pairs import BACKENDS, pairs

pytestmark = [pytest.mark.levels, pytest.mark.filterwarnings("ignore:rows of the result are NaN")]

#: Relative and absolute errors; the sums of 16-bit types are in float32, their output is rounded.
TOLERANCES = {
    "float64": (1e-9, 1e-11),
    "float32": (2e-5, 1e-5),
    "float16": (2e-5, 1e-5),
    "bfloat16": (2e-5, 1e-5),
}
ROUNDED = {"float16": 2e-3, "bfloat16": 2e-2}
COUNTS = ("n_visible", "argmax", "support")


def check(backend: Backend, name: str, dtype: Any) -> None:
    case = CASES[name]
    want = {each: x for each, x in truth.values(name).items() if each not in backend.lacks}
    arrays = [None if x is None else x.astype(dtype) for x in case.arrays()]
    found = backend.values(arrays, case, tuple(each for each in want if each != "output"))
    assert found.keys() == want.keys()
    for each, exact in want.items():
        result = np.asarray(found[each])
        assert result.shape == exact.shape, each
        if each in COUNTS:
            assert result.dtype.kind == "i", each
            known = ~np.isnan(want["max_score"])  # nothing is said of the counts of a row that is NaN
            np.testing.assert_array_equal(result[known], exact[known], err_msg=each)
            continue
        rtol, atol = TOLERANCES[np.dtype(dtype).name]
        if each == "output":
            rtol = atol = ROUNDED.get(np.dtype(dtype).name, rtol)
        np.testing.assert_allclose(result.astype(np.float64), exact, rtol=rtol, atol=atol, err_msg=each)


@pytest.mark.parametrize(("backend", "name"), pairs("values", CASES))
def test_values(backend: str, name: str) -> None:
    for dtype in BACKENDS[backend].types:
        check(BACKENDS[backend], name, dtype)


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize(("backend", "name"), pairs("values", SIXTEEN_BITS))
def test_sixteen_bits_are_storage(backend: str, name: str, dtype: str) -> None:
    """Statistics are those of the given numbers to float32."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    check(BACKENDS[backend], name, getattr(ml_dtypes, dtype, dtype))
