# SPDX-License-Identifier: BSD-3-Clause
"""Sizes of tiles and numbers of warps for a call, by the width of its rows and its type.

Those for 16-bit types of up to 128 numbers a row were chosen by what Triton's compiler makes of them for
sm_80, sm_90 and sm_100: next to nothing of the loop of full tiles is spilled to memory, but for rows of 64 on
the latter two. None has been timed.
"""

from __future__ import annotations

import torch

from ._launch import Configuration, sizes_of
from ._problem import Problem

_Choices = tuple[Configuration, ...]

#: By kernel and by the padded width of rows, which is at most 64, 128 or 256. Queries, keys, warps, stages.
_OF_16_BITS: dict[str, dict[int, _Choices]] = {
    "forward": {
        64: (Configuration(128, 64, 4, 3), Configuration(128, 64, 8, 3)),
        128: (Configuration(128, 64, 8, 3), Configuration(128, 32, 8, 3)),
        256: (Configuration(64, 32, 8, 2),),
    },
    "query": {
        64: (Configuration(128, 64, 8, 2), Configuration(64, 64, 4, 2)),
        128: (Configuration(64, 64, 8, 2), Configuration(128, 64, 8, 2)),
        256: (Configuration(64, 32, 8, 1),),
    },
    "key": {
        64: (Configuration(64, 64, 4, 2), Configuration(64, 128, 8, 2)),
        128: (Configuration(64, 64, 8, 2), Configuration(32, 64, 4, 2)),
        256: (Configuration(32, 64, 8, 1),),
    },
    "mask": {
        64: (Configuration(64, 64, 4, 1),),
        128: (Configuration(64, 64, 8, 1),),
        256: (Configuration(32, 32, 8, 1),),
    },
}
#: Products of float32 are exact to its rounding, and so are no work for the units of 16-bit products.
_OF_32_BITS: dict[int, _Choices] = {
    64: (Configuration(64, 32, 4, 2), Configuration(32, 32, 4, 2)),
    128: (Configuration(32, 32, 4, 2),),
    256: (Configuration(32, 16, 4, 1),),
}


def configurations(kernel: str, problem: Problem) -> _Choices:
    """The configurations among which a call of a kernel, "forward", "query", "key" or "mask", chooses."""
    sizes = sizes_of(problem)
    width = max(64, sizes["PAD_D"], sizes["PAD_DV"])
    if problem.query.dtype == torch.float32:
        return _OF_32_BITS[width]
    return _OF_16_BITS[kernel][width]
