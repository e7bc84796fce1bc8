// SPDX-License-Identifier: BSD-3-Clause
//
// Plain types that the kernels share with the public API. No standard containers here: the
// translation units that are compiled with AVX flags include this header.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/detail/compiler.hpp"
#include "attnscale/detail/linear_form.hpp"

namespace attnscale {

/// What an array holds. 16-bit types are storage: arithmetic on them is float32.
enum class element_type : uint8_t { float32, float64, float16, bfloat16 };

/// Element type and strides (in elements) of a matrix (rows, columns).
struct matrix_layout {
  element_type type = element_type::float32;
  ptrdiff_t row = 0;
  ptrdiff_t column = 1;
};

/// How the scores of a row become its weights; normalizer.hpp has the formulas.
enum class normalizer : uint8_t {
  softmax,
  sigmoid,
  relu,
  squared_relu,
  softpick,
  entmax,  ///< sparsemax is entmax with alpha = 2
  top_k
};

/// Numbers of the normalizers that hold for all rows; each reads its own.
struct normalizer_numbers {
  double alpha = 1.5;  ///< entmax
  int64_t k = 1;       ///< top_k
  double eps = 0;      ///< softpick
};

/// What a normalizer does with the number that a row may have.
enum class row_number : uint8_t {
  none,   ///< it has none
  sink,   ///< the score of one more outcome, whose value is 0
  bias,   ///< added to the score
  factor  ///< multiplies the weights; a row without a factor has them divided by their sum
};

/// What makes a score of a scaled dot product, for all rows of a call.
struct score_form {
  double softcap = 0;  ///< c: score = c * tanh(score / c); 0: none
};

/// Tables over (query, key); those that are absent are empty (null).
template <class Table>
struct score_tables {
  Table distance_scale{};  ///< multiplies the dot product
  Table distance_bias{};   ///< is added to the score after soft-cap
};

/// What each key gets from the queries: n_keys numbers, zero before.
struct received_weights {
  double* sum = nullptr;      ///< of its weights
  double* largest = nullptr;  ///< of them
};

/// What a mask holds: true where a key takes part, or what is added to the score.
enum class mask_kind : uint8_t { none, boolean, additive };

namespace detail {

/// By element_type, half of the smallest finite number: a number of an additive mask that is at or
/// below this hides the key, as -inf does. No function: the kernels may not share code.
constexpr double hiding_number[] = {-0x1.fffffep+126, -0x1.fffffffffffffp+1022, -32752,
                                    -0x1.fep+126};

}  // namespace detail

/// One of 2^64 sequences under each of 2^64 keys. A number is a function of key, stream and its
/// index alone.
struct random_stream {
  uint64_t key = 0;
  uint64_t stream = 0;
};

/// Distributions of random numbers; variate of montecarlo.hpp has their parameters.
enum class distribution : uint8_t { uniform, normal, truncated_normal, laplace };

/// Entries of a random projection: standard normal, +-1, or +-1 / sqrt(density) with probability
/// `density` and else 0 (Achlioptas 2003).
enum class projection_kind : uint8_t { gaussian, sign, sparse };

/// Where the scores of a simulated row come from; see score_rows_problem.
enum class score_model : uint8_t { sphere, gaussian, correlated };

}  // namespace attnscale
