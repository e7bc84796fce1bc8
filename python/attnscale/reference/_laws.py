# SPDX-License-Identifier: BSD-3-Clause
"""Formulas of all laws, of n, d = head_dim and their parameters, rearranged where digits would be lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .. import laws

Array = NDArray[Any]


def law_multiplier(law: laws.Law, n: Any, head_dim: int) -> Array:
    """The multiple of 1/sqrt(head_dim) at the law's n; with one number per head, (heads, 1) against n."""
    given = {name: value for name, value in asdict(cast(Any, law)).items() if name != "channels"}
    for name, value in given.items():
        if isinstance(value, tuple) and name != "coefficients":
            given[name] = np.array(value)[:, None]
    n = np.asarray(n, np.float64)
    return np.asarray(_FORMULAS[law.name](n, head_dim, **given) * np.ones_like(n))


def _g(s: float, a: float, slope: float = 0.1) -> float:
    return slope * a * math.log(s) + 1 if s > 1 else 1.0


def _yarn(
    n: Array, d: int, factor: float, attention_factor: Any, mscale: Any, mscale_all_dim: Any, slope: float
) -> float:
    if attention_factor is not None:
        return float(attention_factor**2)
    if mscale and mscale_all_dim:
        return (_g(factor, mscale, slope) / _g(factor, mscale_all_dim, slope)) ** 2
    return _g(factor, 1.0, slope) ** 2


def _longrope(n: Array, d: int, train_length: float, factor: float, attention_factor: Any) -> float:
    if attention_factor is not None:
        return float(attention_factor**2)
    return 1 + (math.log(factor) / math.log(train_length) if factor > 1 else 0.0)


def _inkling(n: Array, d: int, alpha: float, floor: float, over_head_dim: bool) -> Any:
    temperature = 1 + alpha * np.log(np.maximum(1.0, n / floor))
    return temperature / math.sqrt(d) if over_head_dim else temperature


def _root(squared: Any, least: float) -> Any:
    return np.maximum(np.sqrt(np.maximum(squared, 0.0)), least)


def _entropy_invariant(n: Array, d: int, n0: float, model: str, least: float) -> Any:
    from .. import theory

    beta = theory.invariant_beta(n, n0=n0, head_dim=d, model=model, on_infeasible="nan")
    return np.maximum(least, np.nan_to_num(beta))


def _sparsity_invariant(n: Array, d: int, n0: float, keys: float, least: float) -> Any:
    from scipy.special import ndtri

    return np.maximum(ndtri(np.minimum(keys / n, 0.5)) / ndtri(keys / n0), least)


def _retrieval(n: Array, d: int, gap: float, weight: float, least: float) -> Any:
    noise = np.log(n) + math.log(weight / (1 - weight))
    root = np.sqrt(np.maximum(gap**2 - 2 * noise, 0.0))
    return np.maximum(np.where(root > 0, 2 * noise / (gap + root), gap), least)


def _adaptive(n: Array, d: int, coefficients: tuple[float, ...], threshold: float) -> Any:
    powers = range(len(coefficients) - 1, -1, -1)
    polynomial = sum(c * n**power for c, power in zip(coefficients, powers, strict=True))
    return np.where(n > threshold, np.maximum(polynomial, 1), 1)


_FORMULAS: dict[str, Callable[..., Any]] = {
    "standard": lambda n, d: 1.0,
    "unscaled": lambda n, d: math.sqrt(d),
    "constant": lambda n, d, value: value * math.sqrt(d),
    "per_head": lambda n, d, values: values,
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
    "log_power": lambda n, d, power, base: (np.log(n) / math.log(base)) ** power,
    "nope_temperature": lambda n, d, slope, train_length: (
        1 + slope * np.where(n > train_length, np.log(np.maximum(n, 1)) - math.log(train_length), 0.0)
    ),
    "yarn": _yarn,
    "mla_yarn": lambda n, d, factor, mscale_all_dim: _g(factor, mscale_all_dim) ** 2,
    "longrope": _longrope,
    "info_scale": lambda n, d, train_length: np.sqrt(
        np.expm1(-2 / d * np.log(n)) / math.expm1(-2 / d * math.log(train_length))
    ),
    "annealed": lambda n, d, n0, least, variance: _root(1 + 2 * (np.log(n) - math.log(n0)) / variance, least),
    "entropy_invariant": _entropy_invariant,
    "sparsity_invariant": _sparsity_invariant,
    "variance_invariant": lambda n, d, n0, least: _root(1 + np.log(n) - math.log(n0), least),
    "retrieval": _retrieval,
    "scale_invariant": lambda n, d, tau: np.sqrt(1 + 2 * np.log1p(n / tau)),
    "adaptive_temperature": _adaptive,
    "critical_scale": lambda n, d: n,
    "norm_softmax": lambda n, d, gamma, least: gamma / np.maximum(n, least),
    "qk_norm_scale": lambda n, d, train_length: math.log2(train_length * (train_length - 1)) / math.sqrt(d),
    "swin_v2": lambda n, d, theta, most: np.exp(np.minimum(theta, math.log(most))) / math.sqrt(d),
    "lssa": lambda n, d: math.log(d) * np.log(n) / math.sqrt(d),
}
