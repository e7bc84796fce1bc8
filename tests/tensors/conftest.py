# SPDX-License-Identifier: BSD-3-Clause
"""A seed for PyTorch, and the two ways from a tensor to the kernels."""

from __future__ import annotations

import pytest


@pytest.fixture
def fixed_seed() -> None:
    """The random tensors of a test are the same in every run."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(params=["eager", "operator"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A test runs twice: plain calls go to the kernels directly, or take the operator as others do."""
    if request.param == "operator":
        from attnscale.torch import _functional

        monkeypatch.setattr(_functional, "is_eager", lambda *_: False)
    return str(request.param)
