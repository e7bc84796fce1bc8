# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers for experiments on attention.

The same integer as ``rng=`` gives the same numbers for any number of threads, any SIMD level and any
division of the work.

>>> import attnscale as at
>>> at.montecarlo.normal((2, 3), rng=7).shape
(2, 3)
"""

from .arrays import laplace, normal, sphere, truncated_normal, uniform

__all__ = ["laplace", "normal", "sphere", "truncated_normal", "uniform"]
