# SPDX-License-Identifier: BSD-3-Clause
"""Attention on JAX arrays, on the CPU, under ``jit``, ``vmap`` and ``grad``. Needs jax.

>>> import attnscale as at, jax
>>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 20, 8))  # each (heads, n, head_dim)
>>> jax.jit(lambda q: at.jax.attention(q, k, v, is_causal=True))(q).shape
(2, 20, 8)
"""

try:
    from jax import __version__ as _version
except ImportError as error:
    raise ImportError(f"attnscale.jax needs jax ({error}): pip install 'jax>=0.8.2'") from error

from .._base.versions import too_old as _too_old

if _reason := _too_old("attnscale.jax", "jax", _version, "0.8.2"):
    raise ImportError(_reason)

from .._base.statistics import AttentionStatistics
from ._arguments import Sink
from ._functional import attention, attention_entropy, attention_statistics

__all__ = ["AttentionStatistics", "Sink", "attention", "attention_entropy", "attention_statistics"]


def __dir__() -> list[str]:
    return sorted(__all__)
