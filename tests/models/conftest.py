# SPDX-License-Identifier: BSD-3-Clause
"""A seed for PyTorch."""

from __future__ import annotations

import pytest


@pytest.fixture
def fixed_seed() -> None:
    """The random tensors of a test are the same in every run."""
    import torch

    torch.manual_seed(0)
