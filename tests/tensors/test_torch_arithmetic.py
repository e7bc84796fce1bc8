# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch may take denormal numbers for zero: all threads of a call then do as the calling one does."""

from __future__ import annotations

from collections.abc import Iterator

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DENORMAL = np.float32(1e-40)


@pytest.fixture
def flushed() -> Iterator[None]:
    """The calling thread takes denormal numbers for zero."""
    if not torch.set_flush_denormal(True):
        pytest.skip("PyTorch cannot make this CPU flush denormal numbers")
    yield
    torch.set_flush_denormal(False)


def outputs(num_threads: int) -> np.ndarray:
    """Means of equal denormal values, over more rows than one thread is given at a time."""
    query = np.zeros((64, 256, 16), np.float32)
    return at.attention(query, query, np.full_like(query, DENORMAL), num_threads=num_threads)


def test_two_threads_flush_what_one_flushes(flushed: None) -> None:
    assert (outputs(1) == 0).all()
    assert (outputs(2) == 0).all()


def test_threads_that_began_under_flushing_compute_as_others_do(flushed: None) -> None:
    outputs(2)
    torch.set_flush_denormal(False)
    assert (outputs(1) > 0).all()
    assert (outputs(2) > 0).all()
