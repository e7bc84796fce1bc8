# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of every case through every backend: of arrays and of learned options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attnscale.conformance import CASES

from . import truth
from .backends import Backend
from .pairs import BACKENDS, OF_PAIRS, pairs
from .truth import SIXTEEN_BITS

#: Errors as shares of the largest number of a gradient, or of 1.
TOLERANCES = {"float64": 1e-8, "float32": 4e-5, "float16": 4e-3, "bfloat16": 4e-2}
#: Cases with gradients: rows are finite, and sparse rows have a value.
DIFFERENTIATED = [name for name in CASES if " in a " not in name and name != "no value, entmax"]


def asked(backend: Backend, name: str) -> bool:
    return backend.is_thorough or name not in OF_PAIRS


def asked_of_sixteen_bits(backend: Backend, name: str) -> bool:
    return backend.is_thorough or name == "plain"


def check(backend: Backend, name: str, dtype: Any) -> None:
    case, want = CASES[name], truth.gradients(name, backend.lacks)
    arrays = [None if x is None else x.astype(dtype) for x in case.arrays()]
    found = backend.gradients(arrays, case, truth.cotangents(name, backend.lacks))
    share = backend.looseness * TOLERANCES[np.dtype(dtype).name]
    for each in ("query", "key", "value")[: 3 if case.value else 2]:
        result, exact = np.asarray(found[each]).astype(np.float64), want[each]
        assert result.shape == exact.shape, each
        np.testing.assert_allclose(result, exact, rtol=0, atol=share * size(exact), err_msg=each)
    for each, parameter in truth.parameters(case.options).items():
        if each in found:
            check_parameter(each, np.asarray(found[each]).astype(np.float64), parameter, want[each], share)


def check_parameter(name: str, found: Any, parameter: Any, slope: float, share: float) -> None:
    """Derivative along one direction by central differences, 0 where a mask hides a key."""
    assert found.shape == parameter.shape, name
    along = truth.direction(parameter)
    assert (found[along == 0] == 0).all() or (along != 0).all(), name
    near = max(share, 1e-7) * size(found) * np.sqrt(found.size)
    np.testing.assert_allclose((found * along).sum(), slope, rtol=0, atol=4 * near, err_msg=name)


def size(gradient: Any) -> float:
    return max(1.0, float(np.abs(gradient).max(initial=0)))


@pytest.mark.parametrize(("backend", "name"), pairs("gradients", DIFFERENTIATED, asked))
def test_gradients(backend: str, name: str) -> None:
    for dtype in BACKENDS[backend].types:
        check(BACKENDS[backend], name, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("backend", "name"), pairs("gradients", SIXTEEN_BITS, asked_of_sixteen_bits))
def test_gradients_of_sixteen_bits(backend: str, name: str, dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    check(BACKENDS[backend], name, getattr(ml_dtypes, dtype, dtype))
