# SPDX-License-Identifier: BSD-3-Clause
"""A seed for PyTorch, and the two ways from a tensor to the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest


@pytest.fixture
def fixed_seed() -> None:
    """The random tensors of a test are the same in every run."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(params=["eager", "operator"])
def either_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """A test runs twice: plain calls go to the kernels directly, or take the operator, as under a mode."""
    import torch

    with torch.device("cpu") if request.param == "operator" else nullcontext():
        yield request.param
