# SPDX-License-Identifier: BSD-3-Clause
"""Alternatives to softmax over dot products from the literature, with the options of this package.

>>> import numpy as np, attnscale as at
>>> x = np.random.default_rng(0).standard_normal((100, 16))
>>> at.variants.kattention(x, np.eye(16), np.eye(16)).shape  # weights fall with the distance of Qx and Ky
(100, 16)
>>> q, k, v = np.random.default_rng(0).standard_normal((3, 8, 1000, 16))
>>> at.variants.efficient_attention(q, k, v, is_causal=True).shape  # in linear time and memory
(8, 1000, 16)
"""

from . import score_functions
from ._composed import differential_attention, hybrid, linformer_attention, local_global_attention
from ._efficient import (
    EfficientState,
    GlobalMaps,
    efficient_attention,
    efficient_attention_weights,
    global_maps,
)
from ._gradients import VariantGradients, gradients
from ._jacobian import attention_jacobian_norms
from ._kattention import kattention, kattention_heads, kattention_statistics
from ._linear import CosformerState, LinearState, SsdState, cosformer_attention, linear_attention, ssd
from ._linear_form import State
from ._performer import PerformerState, performer_attention, performer_projection, positive_features
from ._relay import RelayState, relay_attention, relay_energy, relay_energy_gradient, relay_message
from ._rotary import apply_rotary, rotary_bound, rotary_decay, rotary_frequencies, rotary_score

__all__ = [
    "CosformerState",
    "EfficientState",
    "GlobalMaps",
    "LinearState",
    "PerformerState",
    "RelayState",
    "SsdState",
    "State",
    "VariantGradients",
    "apply_rotary",
    "attention_jacobian_norms",
    "cosformer_attention",
    "differential_attention",
    "efficient_attention",
    "efficient_attention_weights",
    "global_maps",
    "gradients",
    "hybrid",
    "kattention",
    "kattention_heads",
    "kattention_statistics",
    "linear_attention",
    "linformer_attention",
    "local_global_attention",
    "performer_attention",
    "performer_projection",
    "positive_features",
    "relay_attention",
    "relay_energy",
    "relay_energy_gradient",
    "relay_message",
    "rotary_bound",
    "rotary_decay",
    "rotary_frequencies",
    "rotary_score",
    "score_functions",
    "ssd",
]
