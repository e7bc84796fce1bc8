# SPDX-License-Identifier: BSD-3-Clause
"""The formulas of all laws in one place, as their sources write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import laws

Array = NDArray[Any]


def law_multiplier(law: laws.Law, n: Any, head_dim: int) -> Array:
    """The multiple of 1/sqrt(head_dim) of a law without a value for each head, at its n."""
    return np.asarray(
        _FORMULAS[law.name](law, np.asarray(n, np.float64), float(head_dim)) + 0 * np.asarray(n)
    )


def _yarn(s: float, a: float) -> float:
    return 0.1 * a * np.log(s) + 1 if s > 1 else 1.0


def _yarn_factor(law: Any) -> float:
    if law.attention_factor is not None:
        return float(law.attention_factor)
    if law.mscale and law.mscale_all_dim:
        return _yarn(law.factor, law.mscale) / _yarn(law.factor, law.mscale_all_dim)
    return _yarn(law.factor, 1)


def _adaptive(law: Any, n: Array, d: float) -> Array:
    polynomial = -0.037 * n**4 + 0.481 * n**3 - 2.3 * n**2 + 4.917 * n - 1.791
    return np.where(n > 0.5, np.maximum(polynomial, 1), 1)


def _longrope(law: Any, n: Array, d: float) -> Any:
    if law.attention_factor is not None:
        return law.attention_factor**2
    return np.log(max(1, law.factor) * law.train_length) / np.log(law.train_length)


def _entropy_invariant(law: Any, n: Array, d: float) -> Any:
    from .. import theory

    beta = theory.invariant_beta(n, n0=law.n0, head_dim=int(d), model=law.model, on_infeasible="nan")
    return np.maximum(law.least, np.nan_to_num(beta))


def _sparsity_invariant(law: Any, n: Array, d: float) -> Any:
    from scipy.stats import norm

    return np.maximum(law.least, norm.isf(np.minimum(law.keys / n, 0.5)) / norm.isf(law.keys / law.n0))


def _retrieval(law: Any, n: Array, d: float) -> Any:
    noise = np.log(n * law.weight / (1 - law.weight))
    return np.maximum(law.least, law.gap - np.sqrt(np.maximum(0, law.gap**2 - 2 * noise)))


# law, n, head_dim -> multiplier.
_FORMULAS: dict[str, Callable[[Any, Array, float], Any]] = {
    "standard": lambda law, n, d: 1.0,
    "unscaled": lambda law, n, d: d**0.5,
    "constant": lambda law, n, d: law.value * d**0.5,
    "per_head": lambda law, n, d: law.values,
    "mup": lambda law, n, d: d**0.5 / d,
    "layer_index": lambda law, n, d: 1 / (law.layer + 1),
    "disentangled_scale": lambda law, n, d: law.terms**-0.5,
    "latent_scale": lambda law, n, d: (law.hidden / law.rank) ** 0.5,
    "log_n": lambda law, n, d: np.log(np.maximum(n, law.floor)) / np.log(law.base),
    "log_n_from_training": lambda law, n, d: np.maximum(1, np.log(n) / np.log(law.train_length)),
    "natural_log_n": lambda law, n, d: np.log(n),
    "kappa": lambda law, n, d: law.kappa * np.log(n) / d**0.5,
    "qwen_log_n": lambda law, n, d: np.where(n > law.train_length, np.log(n) / np.log(law.train_length), 1),
    "grok_temperature": lambda law, n, d: np.where(
        n > law.length, np.log2(np.maximum(n, 1)) / np.log2(law.length), 1
    ),
    "ssmax": lambda law, n, d: law.s * np.log(np.maximum(n, law.floor)) + law.b,
    "asentmax": lambda law, n, d: law.delta + law.beta * np.log(n) ** law.gamma,
    "llama4_temperature": lambda law, n, d: np.log(np.floor(n / law.floor) + 1) * law.a + 1,
    "ministral_temperature": lambda law, n, d: 1 + law.beta * np.log(1 + np.floor(n / law.length)),
    "beam_temperature": lambda law, n, d: (1 + n / law.length) ** law.exponent,
    "inkling_temperature": lambda law, n, d: (
        (1 + law.alpha * np.log(np.maximum(n / law.floor, 1))) / (d**0.5 if law.over_head_dim else 1)
    ),
    "selective_temperature": lambda law, n, d: 1 + law.strength * np.log(n),
    "nope_temperature": lambda law, n, d: np.where(
        n >= law.train_length, law.slope * np.log(np.maximum(n, 1) / law.train_length) + 1, 1
    ),
    "yarn": lambda law, n, d: _yarn_factor(law) ** 2,
    "mla_yarn": lambda law, n, d: _yarn(law.factor, law.mscale_all_dim) ** 2,
    "longrope": _longrope,
    "info_scale": lambda law, n, d: np.sqrt((1 - n ** (-2 / d)) / (1 - law.train_length ** (-2 / d))),
    "annealed": lambda law, n, d: np.maximum(
        law.least, np.sqrt(np.maximum(0, 1 + 2 * np.log(n / law.n0) / law.variance))
    ),
    "entropy_invariant": _entropy_invariant,
    "sparsity_invariant": _sparsity_invariant,
    "variance_invariant": lambda law, n, d: np.maximum(
        law.least, np.sqrt(np.maximum(0, 1 + np.log(n / law.n0)))
    ),
    "retrieval": _retrieval,
    "scale_invariant": lambda law, n, d: np.sqrt(2 * (np.log(n / law.tau + 1) - 0.5 + 1)),
    "adaptive_temperature": _adaptive,
    "critical_scale": lambda law, n, d: n,
    "norm_softmax": lambda law, n, d: law.gamma / np.maximum(n, law.least),
    "qk_norm_scale": lambda law, n, d: np.log2(law.train_length**2 - law.train_length) / d**0.5,
    "swin_v2": lambda law, n, d: np.exp(np.minimum(law.theta, np.log(law.most))) / d**0.5,
    "lssa": lambda law, n, d: np.log(d) * np.log(n) / d**0.5,
}
