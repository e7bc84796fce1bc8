# SPDX-License-Identifier: BSD-3-Clause
"""The exact theory of scale and entropy: closed forms, finite rows, bounds.

Two models of a row are used. "sphere": keys uniform on a sphere, so that a score is sqrt(head_dim) times a
random cosine (Su 2021, kexue.fm/8823). "gaussian": independent normal scores, Derrida's random energy model,
the limit of the sphere for large head_dim. ``beta`` is always the multiple of the standard scale,
``scale = beta / sqrt(head_dim)``.

Arguments broadcast; scalars give a float. TypeError: an argument is not a number. ValueError: one is not
finite or out of its range, or shapes do not broadcast.

>>> import numpy as np, attnscale as at
>>> n = np.array([512, 4096, 32768])
>>> at.theory.expected_entropy(n, 1).round(3)  # 1/sqrt(d): grows nearly like ln n
array([5.752, 7.829, 9.908])
>>> at.theory.expected_entropy(n, at.theory.invariant_beta(n)).round(3)
array([5.752, 5.752, 5.752])
"""

from ._bounds import (
    entropy_lower_bound,
    jacobian_norm,
    jacobian_trace,
    least_entropy,
    smooth_maximum,
    smooth_maximum_bounds,
    softcap_for_entropy,
    spectral_entropy_bound,
    weight_bounds,
)
from ._dimensions import (
    dot_product_kurtosis,
    dot_product_variance,
    equivalent_head_dim,
    expected_max_cosine,
    jl_min_dim,
    jl_rule_of_thumb,
    max_cosine,
    truncated_normal_variance,
)
from ._expected import (
    ExpectedStatistics,
    annealed_beta,
    expected_concentration,
    expected_entropy,
    expected_jacobian_trace,
    expected_lse,
    expected_statistics,
    invariant_beta,
    variance_invariant_beta,
)
from ._heads import (
    cumulant_beta,
    fold_scale,
    scale_update_residual,
    score_cumulants,
    score_spectrum,
    sink_entropy,
    sink_weight,
    spectrum_entropy,
)
from ._kattention import kattention_log_normalizer
from ._phases import (
    annealed_entropy,
    condensed_concentration,
    condensed_entropy,
    critical_beta,
    critical_limit_beta,
    critical_limit_entropy,
    critical_scale_tail,
    top_gap_probability,
)
from ._retrieval import (
    RetrievalTradeOff,
    averaging_excess_bound,
    needle_beta,
    needle_weight,
    needle_weight_bound,
    retrieval_beta,
    retrieval_length,
    retrieval_trade_off,
    shared_excess_bound,
)
from ._sphere import (
    GOLDEN_DEFICIT,
    GOLDEN_DIMENSION,
    sphere_entropy_deficit,
    sphere_entropy_deficit_rate,
    sphere_log_mgf,
    sphere_mean_cosine,
)
from ._support import (
    expected_support,
    sparsity_beta,
    support_distance_bound,
    support_invariant_beta,
    support_limit,
    support_probabilities,
)
from ._tokens import critical_gamma, expected_overlap, propagated_correlation, self_weight, token_correlation

__all__ = [
    "GOLDEN_DEFICIT",
    "GOLDEN_DIMENSION",
    "ExpectedStatistics",
    "RetrievalTradeOff",
    "annealed_beta",
    "annealed_entropy",
    "averaging_excess_bound",
    "condensed_concentration",
    "condensed_entropy",
    "critical_beta",
    "critical_gamma",
    "critical_limit_beta",
    "critical_limit_entropy",
    "critical_scale_tail",
    "cumulant_beta",
    "dot_product_kurtosis",
    "dot_product_variance",
    "entropy_lower_bound",
    "equivalent_head_dim",
    "expected_concentration",
    "expected_entropy",
    "expected_jacobian_trace",
    "expected_lse",
    "expected_max_cosine",
    "expected_overlap",
    "expected_statistics",
    "expected_support",
    "fold_scale",
    "invariant_beta",
    "jacobian_norm",
    "jacobian_trace",
    "jl_min_dim",
    "jl_rule_of_thumb",
    "kattention_log_normalizer",
    "least_entropy",
    "max_cosine",
    "needle_beta",
    "needle_weight",
    "needle_weight_bound",
    "propagated_correlation",
    "retrieval_beta",
    "retrieval_length",
    "retrieval_trade_off",
    "scale_update_residual",
    "score_cumulants",
    "score_spectrum",
    "self_weight",
    "shared_excess_bound",
    "sink_entropy",
    "sink_weight",
    "smooth_maximum",
    "smooth_maximum_bounds",
    "softcap_for_entropy",
    "sparsity_beta",
    "spectral_entropy_bound",
    "spectrum_entropy",
    "sphere_entropy_deficit",
    "sphere_entropy_deficit_rate",
    "sphere_log_mgf",
    "sphere_mean_cosine",
    "support_distance_bound",
    "support_invariant_beta",
    "support_limit",
    "support_probabilities",
    "token_correlation",
    "top_gap_probability",
    "truncated_normal_variance",
    "variance_invariant_beta",
    "weight_bounds",
]
