# SPDX-License-Identifier: BSD-3-Clause
"""Output and statistics of every case through every backend, against NumPy."""

from __future__ import annotations

from inspect import signature
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.conformance import CASES, Case

from . import truth
from .backends import Backend
from .pairs import BACKENDS, OF_PAIRS, pairs
from .truth import SIXTEEN_BITS, statistics_of

pytestmark = pytest.mark.filterwarnings("ignore:rows of the result are NaN")

#: Tests of the core run at every SIMD level.
AT_LEVELS = (pytest.mark.levels,)

#: Relative and absolute errors; 16-bit types have sums in float32 and a rounded output.
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
            known = ~np.isnan(want["max_score"])  # counts of NaN rows are not specified
            np.testing.assert_array_equal(result[known], exact[known], err_msg=each)
            continue
        rtol, atol = TOLERANCES[np.dtype(dtype).name]
        if each == "output":
            rtol = atol = ROUNDED.get(np.dtype(dtype).name, rtol)
        np.testing.assert_allclose(result.astype(np.float64), exact, rtol=rtol, atol=atol, err_msg=each)


def check_bits(backend: Backend, name: str, dtype: Any) -> None:
    case = CASES[name]
    arrays = [None if x is None else x.astype(dtype) for x in case.arrays()]
    found, want = (each.values(arrays, case, statistics_of(case)) for each in (backend, Backend()))
    for each, exact in want.items():
        np.testing.assert_array_equal(found[each], exact, err_msg=each)


def test_cases_have_every_option() -> None:
    """Every option except those about threads, names of axes and the output array."""
    of_cases = {option for case in CASES.values() for option in case.options}
    options = {*signature(at.attention).parameters} - {"query", "key", "value"}
    assert options - of_cases == {"dims", "out", "num_threads"}
    assert of_cases <= options


def asked(backend: Backend, name: str) -> bool:
    return backend.values_are_thorough or name not in OF_PAIRS


@pytest.mark.parametrize(("backend", "name"), pairs("values", CASES, asked, of_the_core=AT_LEVELS))
def test_values(backend: str, name: str) -> None:
    for dtype in BACKENDS[backend].types:
        check(BACKENDS[backend], name, dtype)
        if BACKENDS[backend].has_bits(CASES[name]):
            check_bits(BACKENDS[backend], name, dtype)


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize(("backend", "name"), pairs("values", SIXTEEN_BITS, of_the_core=AT_LEVELS))
def test_sixteen_bits_are_storage(backend: str, name: str, dtype: str) -> None:
    """Statistics have the accuracy of float32."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    check(BACKENDS[backend], name, getattr(ml_dtypes, dtype, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("backend", "name"), pairs("values", ["mask"]))
def test_low_numbers_hide_as_infinity_does(backend: str, name: str, dtype: str) -> None:
    """Numbers down from half of the mask type's smallest give the bits of -inf; hidden keys are not read."""
    least = float(np.finfo(dtype).min)
    hidden = np.random.default_rng(26).random((2, 1, 7, 9)) < 0.3
    hidden[0, 0, 3], hidden[..., 2] = True, True
    edits = (("key", np.s_[..., 2, :], np.nan), ("value", np.s_[..., 2, :], np.nan))
    found = []
    for number in (-np.inf, least, least / 2):
        mask = np.where(hidden, number, 0.5).astype(dtype)
        case = Case({"attn_mask": mask, "scale": "log_n"}, edits=edits)
        arrays = [x.astype(BACKENDS[backend].types[0]) for x in case.arrays()]
        found.append(BACKENDS[backend].values(arrays, case, ("entropy", "n_visible", "lse")))
    for each, exact in found[0].items():
        for other in found[1:]:
            np.testing.assert_array_equal(other[each], exact, err_msg=each)
    assert (found[0]["n_visible"] == np.broadcast_to(~hidden, (2, 4, 7, 9)).sum(-1)).all()
