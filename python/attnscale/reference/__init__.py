# SPDX-License-Identifier: BSD-3-Clause
"""The mathematics in plain NumPy: float64, every matrix written out.

One twin of each numeric function of the package, with its arguments, short enough to be read at once:
the oracle of the tests, and the definition in case of doubt. Inputs are NumPy arrays and are not
checked; memory grows with n_queries * n_keys.
"""

from ._attention import (
    attention,
    attention_entropy,
    attention_state,
    attention_statistics,
    attention_weights,
    distances,
    dot_products,
    entropy_curve,
    merge_states,
    n_of_law,
    score_parts,
    scores,
    visible,
)
from ._comparison import attention_divergence, attention_received
from ._efficient import (
    efficient_attention,
    efficient_attention_weights,
    global_maps,
    linformer_attention,
    local_global_attention,
    relay_attention,
)
from ._gradients import attention_gradients, score_gradient
from ._jacobian import attention_jacobian_norms
from ._kattention import kattention, kattention_heads, kattention_scores
from ._laws import law_multiplier
from ._linear import cosformer_attention, linear_attention, performer_attention, selective_scan, ssd
from ._linear_gradients import gradients
from ._montecarlo import (
    projection_ratios,
    random_cosines,
    random_rows,
    random_scores,
    row_measures,
    weight_ranks,
)
from ._multihead import multi_head_attention
from ._normalizers import alpha_gradient, pull_back, weigh, with_length
from ._rotary import apply_rotary, rotary_score
from ._solve import calibrate, held_out_error, solve_perplexity, solve_scale
from ._support import (
    expected_support,
    sparsity_beta,
    support_distance_bound,
    support_invariant_beta,
    support_limit,
    support_probabilities,
)
from ._targets import (
    averaging_excess_bound,
    needle_weight_bound,
    retrieval_beta,
    retrieval_length,
    retrieval_trade_off,
    shared_excess_bound,
    variance_invariant_beta,
)
from ._theory import (
    critical_limit_beta,
    critical_limit_entropy,
    expected_max_cosine,
    expected_statistics,
    sphere_entropy_deficit,
)
from ._tokens import (
    critical_gamma,
    critical_scale_tail,
    cumulant_beta,
    expected_overlap,
    fold_scale,
    least_entropy,
    propagated_correlation,
    scale_update_residual,
    score_cumulants,
    score_spectrum,
    self_weight,
    sink_entropy,
    sink_weight,
    softcap_for_entropy,
    spectrum_entropy,
    token_correlation,
    top_gap_probability,
)

__all__ = [
    "alpha_gradient",
    "apply_rotary",
    "attention",
    "attention_divergence",
    "attention_entropy",
    "attention_gradients",
    "attention_jacobian_norms",
    "attention_received",
    "attention_state",
    "attention_statistics",
    "attention_weights",
    "averaging_excess_bound",
    "calibrate",
    "cosformer_attention",
    "critical_gamma",
    "critical_limit_beta",
    "critical_limit_entropy",
    "critical_scale_tail",
    "cumulant_beta",
    "distances",
    "dot_products",
    "efficient_attention",
    "efficient_attention_weights",
    "entropy_curve",
    "expected_max_cosine",
    "expected_overlap",
    "expected_statistics",
    "expected_support",
    "fold_scale",
    "global_maps",
    "gradients",
    "held_out_error",
    "kattention",
    "kattention_heads",
    "kattention_scores",
    "law_multiplier",
    "least_entropy",
    "linear_attention",
    "linformer_attention",
    "local_global_attention",
    "merge_states",
    "multi_head_attention",
    "n_of_law",
    "needle_weight_bound",
    "performer_attention",
    "projection_ratios",
    "propagated_correlation",
    "pull_back",
    "random_cosines",
    "random_rows",
    "random_scores",
    "relay_attention",
    "retrieval_beta",
    "retrieval_length",
    "retrieval_trade_off",
    "rotary_score",
    "row_measures",
    "scale_update_residual",
    "score_cumulants",
    "score_gradient",
    "score_parts",
    "score_spectrum",
    "scores",
    "selective_scan",
    "self_weight",
    "shared_excess_bound",
    "sink_entropy",
    "sink_weight",
    "softcap_for_entropy",
    "solve_perplexity",
    "solve_scale",
    "sparsity_beta",
    "spectrum_entropy",
    "sphere_entropy_deficit",
    "ssd",
    "support_distance_bound",
    "support_invariant_beta",
    "support_limit",
    "support_probabilities",
    "token_correlation",
    "top_gap_probability",
    "variance_invariant_beta",
    "visible",
    "weigh",
    "weight_ranks",
    "with_length",
]
