// SPDX-License-Identifier: BSD-3-Clause
//
// Options of linear-time attention, with the names and defaults of the Python API. is_causal,
// causal, causal_offset, enable_gqa, num_threads and interrupted are as in attention_options.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "attnscale/dense_array.hpp"
#include "attnscale/options.hpp"
#include "attnscale/types.hpp"

namespace attnscale {

/// Normalizations of efficient attention. scaling: query (key^T value) / n, where n is the number
/// of visible keys; its weights can be negative.
enum class efficient_normalization : std::uint8_t { softmax, scaling };

/// Non-negative features of a row: elu(x) + 1; max(x, 0); given: query and key are the features
/// themselves, (..., n, features).
enum class linear_feature_map : std::uint8_t { elu, relu, given };

/// Options of efficient_attention, its gradients and its state.
struct efficient_attention_options {
  efficient_normalization normalization = efficient_normalization::softmax;
  double scale = 1;  ///< multiplies query and key before their softmaxes; the paper has none
  bool is_causal = false;
  causal_alignment causal = causal_alignment::none;
  std::int64_t causal_offset = 0;
  bool enable_gqa = false;
  int num_threads = 0;
  std::function<bool()> interrupted{};
};

/// Options of linear_attention, its gradients and its state.
struct linear_attention_options {
  linear_feature_map feature_map = linear_feature_map::elu;
  bool is_causal = false;
  causal_alignment causal = causal_alignment::none;
  std::int64_t causal_offset = 0;
  bool enable_gqa = false;
  int num_threads = 0;
  std::function<bool()> interrupted{};
};

/// Options of cosformer_attention, its gradients and its state.
struct cosformer_attention_options {
  /// M, at least the number of positions; has to be given.
  std::int64_t max_length = 0;
  bool is_causal = false;
  causal_alignment causal = causal_alignment::none;  ///< also the positions of the queries
  std::int64_t causal_offset = 0;
  bool enable_gqa = false;
  int num_threads = 0;
  std::function<bool()> interrupted{};
};

/// Options of performer_attention, its gradients and its state.
struct performer_attention_options {
  std::int64_t features = 256;  ///< number of random directions; with a projection, 256 or its rows
  /// Directions (features, head_dim), as from performer_projection.
  std::optional<dense_array<double>> projection{};
  random_stream from{};           ///< for the directions, without a projection
  std::optional<double> scale{};  ///< positive; default 1 / sqrt(head_dim)
  bool is_causal = false;
  causal_alignment causal = causal_alignment::none;
  std::int64_t causal_offset = 0;
  bool enable_gqa = false;
  int num_threads = 0;
  std::function<bool()> interrupted{};
};

/// Options of state-space duality, which is causal: query i sees keys 0 ... i.
struct ssd_options {
  bool enable_gqa = false;
  int num_threads = 0;
  std::function<bool()> interrupted{};
};

}  // namespace attnscale
