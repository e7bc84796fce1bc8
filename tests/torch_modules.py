# SPDX-License-Identifier: BSD-3-Clause
"""What tests of the drop-in module share: sizes, masks and a comparison."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

N, LENGTH, WIDTH, HEADS = 2, 5, 16, 4


def close(found: Any, want: Any, **tolerance: float) -> None:
    """Equal, to the rounding of float32."""
    torch.testing.assert_close(found, want, **{"rtol": 1e-5, "atol": 2e-6, **tolerance})


def padding() -> Any:
    """The last two keys of the second text are padding."""
    hidden = torch.zeros(N, LENGTH, dtype=torch.bool)
    hidden[1, 3:] = True
    return hidden


def future(n: int = LENGTH) -> Any:
    """A mask that hides later keys."""
    return torch.ones(n, n, dtype=torch.bool).triu(1)
