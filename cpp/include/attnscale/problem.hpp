// SPDX-License-Identifier: BSD-3-Clause
//
// Raw description of an attention call: pointers, extents and strides of memory that the caller
// owns. The code above this header (xtensor front end, Python binding) fills these structs; the
// code below it computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "attnscale/detail/export.hpp"
#include "attnscale/statistic.hpp"
#include "attnscale/types.hpp"

namespace attnscale {

/// Row starts of one (batch, head). query, key and scale are required. value and output may be null
/// (no output), attn_mask is null for mask_kind::none.
struct attention_head {
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  void* output = nullptr;
  const void* attn_mask = nullptr;
  /// Multiplier of the raw dot product, one or one per row. No default: null is refused, except by
  /// run(curve_problem) and count_visible, which do not read it.
  const double* scale = nullptr;
  /// Query i may see keys [begin[i * begin_row], end[i * end_row]). Null: from the first key, to
  /// the last key.
  const std::int64_t* begin = nullptr;
  const std::int64_t* end = nullptr;
  score_tables<const void*> tables{};
  const double* number = nullptr;  ///< normalizer_traits::number: one, or one per row; null: none
};

/// Outputs per row, contiguous (heads, n_queries): std::int64_t where is_count(), else the compute
/// type, or double if `wide`. Null = unused.
class row_outputs {
 public:
  bool wide = false;  ///< for results only: a backward pass reads rows of the compute type

  void*& operator[](statistic which) { return places_[detail::place_of(which)]; }
  void* operator[](statistic which) const { return places_[detail::place_of(which)]; }

  bool any() const {
    for (const void* place : places_)
      if (place) return true;
    return false;
  }
  element_type type(element_type compute) const { return wide ? element_type::float64 : compute; }

 private:
  void* places_[statistic_names.size()] = {};
};

/// Inputs of every kernel.
struct score_problem {
  element_type compute = element_type::float32;  ///< float32 or float64
  std::int64_t n_queries = 0;
  std::int64_t n_keys = 0;
  std::int64_t head_dim = 0;
  matrix_layout query{};
  matrix_layout key{};
  matrix_layout attn_mask{};  ///< mask_kind::boolean ignores the type: one byte per element
  mask_kind mask_type = mask_kind::none;
  /// Layouts of attention_head::tables: finite numbers of the compute type. A table of the distance
  /// alone is n_queries + n_keys - 1 numbers with strides -1 and 1.
  score_tables<matrix_layout> tables{};
  std::ptrdiff_t scale_row = 0;  ///< stride of attention_head::scale over queries; 0: one scale
  /// Strides over queries of attention_head::begin and end; 0: the same for all.
  std::ptrdiff_t begin_row = 0, end_row = 0;
  /// Every query also sees keys [0, leading_keys). Only without a mask and tables, and only in
  /// run(attention_problem) and count_visible.
  std::int64_t leading_keys = 0;
  score_form form{};
  std::vector<attention_head> heads{};
};

/// output = weights value, with row statistics from the same pass.
struct attention_problem : score_problem {
  normalizer rule = normalizer::softmax;
  normalizer_numbers numbers{};
  std::ptrdiff_t number_row = 0;  ///< stride of attention_head::number over queries
  std::int64_t value_dim = 0;
  matrix_layout value{};
  matrix_layout output{};  ///< any element type; rows are converted when written
  row_outputs statistics{};
};

/// Row starts of one head's gradients. Heads that share an array are summed in it.
struct gradient_head {
  const void* grad_output = nullptr;  ///< null: the loss does not depend on the output
  void* query = nullptr;
  void* key = nullptr;
  void* value = nullptr;  ///< null if grad_output is
  /// Null if unused: of an additive mask, and of tables of the distance alone.
  void* attn_mask = nullptr;
  score_tables<void*> tables{};
  received_weights received{};
};

/// Gradients of sum(grad_output * output) + sum(cotangent * statistic) for a softmax; of the output
/// only for other normalizers. attention_head::output and attention_problem::statistics are inputs
/// from the forward pass; null ones are computed where needed. With gradient_head::received nothing
/// else is computed.
struct gradient_problem : attention_problem {
  std::vector<gradient_head> gradients{};  ///< one per head
  matrix_layout grad_output{};             ///< any element type
  /// Gradients of the compute type, unit column stride, zero before: they are added to.
  matrix_layout d_query{}, d_key{}, d_value{};
  /// Compute type, zero before.
  matrix_layout d_attn_mask{};
  row_outputs cotangents{};  ///< inputs: of lse, entropy, ... as statistics; null = 0
  /// Contiguous (heads, n_queries); null = unused.
  double* d_scale = nullptr;   ///< by the scale of each row
  double* d_number = nullptr;  ///< by attention_head::number of each row, a sink or a bias
  double* d_alpha = nullptr;   ///< by normalizer_numbers::alpha: each row's contribution
};

/// Row statistics at many scales from one pass over q . k. attention_head::scale is not read.
struct curve_problem : score_problem {
  std::vector<double> scales{};
  /// Contiguous (heads, n_queries, scales), in the compute type; null = unused. mean and variance
  /// are of the raw q . k under the weights.
  void* entropy = nullptr;
  void* lse = nullptr;
  void* mean = nullptr;
  void* variance = nullptr;
};

/// Row statistics at scales by doubling, from one pass over q . k with one exponential for each of
/// n_bases: scale s of a row is attention_head::scale[row * scale_row + s % n_bases] times
/// 2^(s / n_bases), at most five from each base. Scores are scaled products: masks may only hide
/// keys, without soft-cap and tables.
struct ladder_problem : score_problem {
  std::int64_t n_bases = 0, n_scales = 0;
  /// Contiguous (heads, n_queries, n_scales), in the compute type; null = unused.
  void* entropy = nullptr;
  void* lse = nullptr;
  void* max_weight = nullptr;
  void* first_weight = nullptr;  ///< weight of key 0
  void* top = nullptr;           ///< (heads, n_queries): q . k of the largest weight at base 0
};

/// Sum of the weights that each key receives, at positive scales by doubling, the same for all
/// rows. Queries and keys are exchanged: the queries of this problem are keys, and its keys are
/// queries, with these results of the same scales.
struct received_ladder_problem : score_problem {
  std::int64_t n_bases = 0, n_scales = 0;
  const void* top = nullptr;         ///< ladder_problem::top
  const void* max_weight = nullptr;  ///< ladder_problem::max_weight
  double* received = nullptr;        ///< contiguous (heads, keys = n_queries, n_scales)
};

/// For each row the scale >= 0 at which its weights have a given entropy, in nats, taken from
/// attention_head::scale (with the stride scale_row). Soft-cap and finite bias are not allowed,
/// since the entropy need not fall with the scale.
struct solve_problem : score_problem {
  double tolerance = 0;  ///< of the entropy, in nats
  /// Contiguous (heads, n_queries). entropy is at the scale found, lowest and highest are its
  /// limits at scale infinity and 0; all three in the compute type.
  double* scale = nullptr;
  void* entropy = nullptr;
  void* lowest = nullptr;
  void* highest = nullptr;
  bool* converged = nullptr;
  bool* feasible = nullptr;
  std::int64_t* iterations = nullptr;
};

/// The k keys of each row with the largest scores. Scores are in double: compute is not read, and
/// tables may be float or double.
struct top_keys_problem : score_problem {
  std::int64_t k = 0;
  /// Contiguous (heads, n_queries, k), by decreasing score; of equal scores the lower key comes
  /// first. -1 and -infinity where a row sees fewer keys. A score that is NaN is not chosen.
  std::int64_t* index = nullptr;
  double* score = nullptr;
};

/// How to run. `interrupted` is called now and then on the calling thread only; if it returns true,
/// run() stops and throws attnscale::interrupted. An exception from it stops the work, too, and
/// run() rethrows it.
struct execution {
  int num_threads = 0;  ///< 0: attnscale::num_threads()
  bool (*interrupted)(void* context) = nullptr;
  void* context = nullptr;
};

/// Exception of a call that was stopped.
struct ATTNSCALE_EXPORT interrupted : std::runtime_error {
  interrupted() : std::runtime_error("interrupted") {}
};

/// Computes the non-null outputs. Preconditions (not checked here): extents >= 0, 0 <= begin, end
/// <= n_keys, neither decreases from a query to the next, strides within the arrays. Results are
/// bit-identical for any number of threads. Throws std::bad_alloc, attnscale::interrupted,
/// exceptions of execution::interrupted, and std::invalid_argument for a head without queries, keys
/// or a scale.
ATTNSCALE_EXPORT void run(const attention_problem& problem, const execution& how = {});
ATTNSCALE_EXPORT void run(const gradient_problem& problem, const execution& how = {});
ATTNSCALE_EXPORT void run(const curve_problem& problem, const execution& how = {});
ATTNSCALE_EXPORT void run(const ladder_problem& problem, const execution& how = {});
ATTNSCALE_EXPORT void run(const received_ladder_problem& problem, const execution& how = {});
ATTNSCALE_EXPORT void run(const solve_problem& problem, const execution& how = {});
ATTNSCALE_EXPORT void run(const top_keys_problem& problem, const execution& how = {});

/// Number of visible keys per row, contiguous (heads, n_queries). A key that an additive mask
/// hides, by -inf or by a number as low as attention_mask says, is not counted.
ATTNSCALE_EXPORT void count_visible(const score_problem& problem, std::int64_t* counts,
                                    const execution& how = {});

}  // namespace attnscale
