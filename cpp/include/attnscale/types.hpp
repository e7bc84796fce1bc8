// SPDX-License-Identifier: BSD-3-Clause
//
// Plain types that the kernels share with the public API. No standard containers: translation units
// compiled with AVX flags include this header.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/detail/compiler.hpp"
#include "attnscale/detail/linear_form.hpp"

namespace attnscale {

/// Element types of arrays. 16-bit types are storage: arithmetic on them is float32.
enum class element_type : uint8_t { float32, float64, float16, bfloat16 };

/// Element type and strides (in elements) of a matrix (rows, columns).
struct matrix_layout {
  element_type type = element_type::float32;
  ptrdiff_t row = 0;
  ptrdiff_t column = 1;
};

/// Rules that turn the scores of a row into weights; normalizer.hpp has the formulas.
enum class normalizer : uint8_t {
  softmax,
  sigmoid,
  relu,
  squared_relu,
  softpick,
  entmax,  ///< sparsemax is entmax with alpha = 2
  top_k
};

/// Parameters of the normalizers that hold for all rows; each reads its own.
struct normalizer_numbers {
  double alpha = 1.5;  ///< entmax
  int64_t k = 1;       ///< top_k
  double eps = 0;      ///< softpick
};

/// Meaning of a row's number for a normalizer.
enum class row_number : uint8_t {
  none,   ///< no number
  sink,   ///< the score of one more outcome, whose value is 0
  bias,   ///< added to the score
  factor  ///< multiplies the weights; without a factor the weights are divided by their sum
};

/// Steps from a scaled dot product to a score, for all rows of a call.
struct score_form {
  double softcap = 0;  ///< c: score = c * tanh(score / c); 0: no soft-cap
};

/// Tables over (query, key); absent ones are empty (null).
template <class Table>
struct score_tables {
  Table distance_scale{};  ///< multiplies the dot product
  Table distance_bias{};   ///< added to the score after soft-cap
};

/// Weights that each key receives from the queries: n_keys numbers, zero before.
struct received_weights {
  double* sum = nullptr;      ///< sum of the weights
  double* largest = nullptr;  ///< largest weight
};

/// Elements of a mask: true where a key takes part, or a term added to the score.
enum class mask_kind : uint8_t { none, boolean, additive };

namespace detail {

/// Half of the lowest finite number, by element_type: a number of an additive mask at or below this
/// hides the key, as -inf does. Not a function, because the kernels may not share code.
constexpr double hiding_number[] = {-0x1.fffffep+126, -0x1.fffffffffffffp+1022, -32752,
                                    -0x1.fep+126};

}  // namespace detail

/// One of 2^64 sequences under each of 2^64 keys. A number depends only on key, stream and its
/// index.
struct random_stream {
  uint64_t key = 0;
  uint64_t stream = 0;
};

/// Distributions of random numbers; variate of montecarlo.hpp has their parameters.
enum class distribution : uint8_t { uniform, normal, truncated_normal, laplace };

/// Entries of a random projection: standard normal, +-1, or +-1 / sqrt(density) with probability
/// `density` and else 0 (Achlioptas 2003).
enum class projection_kind : uint8_t { gaussian, sign, sparse };

/// Distributions of the scores of a simulated row; see score_rows_problem.
enum class score_model : uint8_t { sphere, gaussian, correlated };

}  // namespace attnscale
