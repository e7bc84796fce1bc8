# SPDX-License-Identifier: BSD-3-Clause
"""What the literature puts in the place of softmax over dot products, in the vocabulary of this package.

>>> import numpy as np, attnscale as at
>>> x = np.random.default_rng(0).standard_normal((100, 16))
>>> at.variants.kattention(x, np.eye(16), np.eye(16)).shape  # weights fall with the distance of Qx and Ky
(100, 16)
"""

from . import score_functions
from .kattention import kattention, kattention_heads, kattention_statistics

__all__ = [
    "kattention",
    "kattention_heads",
    "kattention_statistics",
    "score_functions",
]
