# SPDX-License-Identifier: BSD-3-Clause
"""What the literature puts in the place of softmax over dot products, in the vocabulary of this package.

>>> import numpy as np, attnscale as at
>>> x = np.random.default_rng(0).standard_normal((100, 16))
>>> at.variants.kattention(x, np.eye(16), np.eye(16)).shape  # weights fall with the distance of Qx and Ky
(100, 16)
"""

from . import score_functions
from .jacobian import attention_jacobian_norms
from .kattention import kattention, kattention_heads, kattention_statistics
from .multihead import MultiHeadAttention
from .rotary import apply_rotary, rotary_bound, rotary_decay, rotary_frequencies, rotary_score

__all__ = [
    "MultiHeadAttention",
    "apply_rotary",
    "attention_jacobian_norms",
    "kattention",
    "kattention_heads",
    "kattention_statistics",
    "rotary_bound",
    "rotary_decay",
    "rotary_frequencies",
    "rotary_score",
    "score_functions",
]
