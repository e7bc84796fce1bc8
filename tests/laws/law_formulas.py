# SPDX-License-Identifier: BSD-3-Clause
"""The multiplier of each law that the core evaluates, in NumPy: to the last digits, one number a head too.

`attnscale.reference.law_multiplier` has the formulas as their sources write them, which lose digits where
numbers cancel. d is head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from attnscale import laws
from scipy.special import ndtri

__all__ = ["FORMULAS", "multiplier"]


def _g(s, a, slope=0.1):
    return slope * a * math.log(s) + 1 if s > 1 else 1.0


def _yarn(n, d, factor, attention_factor, mscale, mscale_all_dim, slope):
    if attention_factor is not None:
        return attention_factor**2
    if mscale and mscale_all_dim:
        return (_g(factor, mscale, slope) / _g(factor, mscale_all_dim, slope)) ** 2
    return _g(factor, 1.0, slope) ** 2


def _longrope(n, d, train_length, factor, attention_factor):
    if attention_factor is not None:
        return attention_factor**2
    return 1 + (math.log(factor) / math.log(train_length) if factor > 1 else 0.0)


def _inkling(n, d, alpha, floor, over_head_dim):
    temperature = 1 + alpha * np.log(np.maximum(1.0, n / floor))
    return temperature / math.sqrt(d) if over_head_dim else temperature


def _info_scale(n, d, train_length):
    return np.sqrt(np.expm1(-2 / d * np.log(n)) / math.expm1(-2 / d * math.log(train_length)))


def _root(squared, least):
    return np.maximum(np.sqrt(np.maximum(squared, 0.0)), least)


def _sparsity_invariant(n, d, n0, keys, least):
    return np.maximum(ndtri(np.minimum(keys / n, 0.5)) / ndtri(keys / n0), least)


def _retrieval(n, d, gap, weight, least):
    noise = np.log(n) + math.log(weight / (1 - weight))
    root = np.sqrt(np.maximum(gap**2 - 2 * noise, 0.0))
    return np.maximum(np.where(root > 0, 2 * noise / (gap + root), gap), least)


#: By the name of the law: its multiplier of n, d and its parameters.
FORMULAS: dict[str, Callable[..., Any]] = {
    "standard": lambda n, d: 1.0,
    "unscaled": lambda n, d: math.sqrt(d),
    "constant": lambda n, d, value: value * math.sqrt(d),
    "mup": lambda n, d: 1 / math.sqrt(d),
    "layer_index": lambda n, d, layer: 1 / (layer + 1),
    "disentangled_scale": lambda n, d, terms: 1 / math.sqrt(terms),
    "latent_scale": lambda n, d, hidden, rank: math.sqrt(hidden / rank),
    "log_n": lambda n, d, base, floor: np.log(np.maximum(n, floor)) / math.log(base),
    "log_n_from_training": lambda n, d, train_length: np.maximum(1.0, np.log(n) / math.log(train_length)),
    "natural_log_n": lambda n, d: np.log(n),
    "kappa": lambda n, d, kappa: kappa * np.log(n) / math.sqrt(d),
    "qwen_log_n": lambda n, d, train_length: np.where(
        n > train_length, np.log(n) / math.log(train_length), 1.0
    ),
    "grok_temperature": lambda n, d, length: np.where(
        n > length, np.log2(np.maximum(n, 1)) / math.log2(length), 1.0
    ),
    "ssmax": lambda n, d, s, b, floor: s * np.log(np.maximum(n, floor)) + b,
    "asentmax": lambda n, d, delta, beta, gamma: delta + beta * np.log(n) ** gamma,
    "llama4_temperature": lambda n, d, a, floor: 1 + a * np.log1p(np.floor(n / floor)),
    "ministral_temperature": lambda n, d, beta, length: 1 + beta * np.log1p(np.floor(n / length)),
    "beam_temperature": lambda n, d, exponent, length: np.exp(exponent * np.log1p(n / length)),
    "inkling_temperature": _inkling,
    "selective_temperature": lambda n, d, strength: 1 + strength * np.log(n),
    "nope_temperature": lambda n, d, slope, train_length: (
        1 + slope * np.where(n > train_length, np.log(np.maximum(n, 1)) - math.log(train_length), 0.0)
    ),
    "yarn": _yarn,
    "mla_yarn": lambda n, d, factor, mscale_all_dim: _g(factor, mscale_all_dim) ** 2,
    "longrope": _longrope,
    "info_scale": _info_scale,
    "annealed": lambda n, d, n0, least, variance: _root(1 + 2 * (np.log(n) - math.log(n0)) / variance, least),
    "sparsity_invariant": _sparsity_invariant,
    "variance_invariant": lambda n, d, n0, least: _root(1 + np.log(n) - math.log(n0), least),
    "retrieval": _retrieval,
    "scale_invariant": lambda n, d, tau: np.sqrt(1 + 2 * np.log1p(n / tau)),
    "critical_scale": lambda n, d: n,
    "norm_softmax": lambda n, d, gamma, least: gamma / np.maximum(n, least),
    "qk_norm_scale": lambda n, d, train_length: math.log2(train_length * (train_length - 1)) / math.sqrt(d),
    "swin_v2": lambda n, d, theta, most: np.exp(np.minimum(theta, math.log(most))) / math.sqrt(d),
    "lssa": lambda n, d: math.log(d) * np.log(n) / math.sqrt(d),
}


def multiplier(law: laws.Law, n: Any, head_dim: int) -> Any:
    """Of the shape of n; with one number a head broadcast against (heads, 1)."""
    given = {name: value for name, value in asdict(law).items() if name != "channels"}  # type: ignore[call-overload]
    heads = {
        name: np.array(value)[:, None] if isinstance(value, tuple) else value for name, value in given.items()
    }
    n = np.asarray(n, np.float64)
    return FORMULAS[law.name](n, head_dim, **heads) * np.ones_like(n)
