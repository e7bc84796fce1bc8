# SPDX-License-Identifier: BSD-3-Clause
"""Monte Carlo experiments on attention, and the random numbers behind them.

Every experiment returns an :class:`ExperimentResult`: estimates with standard errors, for one value of
each parameter or a sequence of them. An integer as ``rng=`` gives the same numbers on every machine,
regardless of the number of threads and of how the work is divided.

>>> import attnscale as at
>>> result = at.montecarlo.entropy_vs_length([512, 4096], samples=2000, rng=0)
>>> result.axes, result.value.round(1)
({'n': (512, 4096)}, array([5.8, 7.8]))
"""

from ._arrays import laplace, normal, sphere, truncated_normal, uniform
from ._averaging import averaging_error
from ._dot_products import dot_product_variance, max_cosine
from ._length import entropy_vs_length, head_dimension, needle_dilution
from ._projection import jl_distortion
from ._result import Estimate, ExperimentResult
from ._run import RunOptions
from ._weights import rank_and_sparsity, softmax_saturation, sparsity

__all__ = [
    "Estimate",
    "ExperimentResult",
    "RunOptions",
    "averaging_error",
    "dot_product_variance",
    "entropy_vs_length",
    "head_dimension",
    "jl_distortion",
    "laplace",
    "max_cosine",
    "needle_dilution",
    "normal",
    "rank_and_sparsity",
    "softmax_saturation",
    "sparsity",
    "sphere",
    "truncated_normal",
    "uniform",
]
