// SPDX-License-Identifier: BSD-3-Clause
//
// Monte Carlo experiments on attention: estimates with standard errors, from a number of samples or
// until an error is reached. They can be resumed where they stopped:
//
//   const auto some = attnscale::entropy_vs_length({.n = 4096, .law = {attnscale::laws::log_n{}}},
//                                                  {.target_error = 0.01, .seed = 7});
//   some.value(), some.standard_error();  // entropy, in nats
//   some.at("concentration").value;       // others by name
//   const auto more = attnscale::entropy_vs_length({.n = 4096, .law = {attnscale::laws::log_n{}}},
//                                                  {.samples = 100'000, .resume = some.state});
//
// One call is one case of the experiment of that name in attnscale.montecarlo: under rng = seed
// Python computes the same numbers by the same functions. All laws, multipliers and normalizers of
// a call see the same rows. Results have the same bits for any number of threads, and for a run
// that was interrupted and resumed.
//
// Arguments that do not fit throw std::invalid_argument, which names the argument, the rule and
// what was seen.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "attnscale/detail/export.hpp"
#include "attnscale/montecarlo.hpp"
#include "attnscale/normalizer.hpp"
#include "attnscale/problem.hpp"
#include "attnscale/scale_law.hpp"
#include "attnscale/tally.hpp"

namespace attnscale {

/// State of a run, for resuming it: what it drew from, and the sums over its samples.
struct experiment_state {
  std::string experiment{};
  std::vector<std::pair<std::string, std::string>> parameters{};  ///< names and values, as text
  std::uint64_t seed = 0;
  tally rows{};
};

/// Number of samples to draw, and their random numbers.
struct run_options {
  /// Default: the experiment's own number. dot_product_variance rounds up to a multiple of 64.
  std::optional<std::int64_t> samples{};
  /// Instead of samples: draw until the standard error of the first quantity is at most this, for
  /// every law. Checked after every 256 rows.
  std::optional<double> target_error{};
  /// Maximum number of samples for a target error; the error may then be larger.
  std::int64_t max_samples = 1'000'000;
  std::optional<std::uint64_t> seed{};  ///< default: 0, or that of `resume`
  /// State of an earlier result of the same call, to go on from.
  std::optional<experiment_state> resume{};
  /// When `interrupted` returns true, the result covers the samples drawn before.
  execution how{};
};

/// A quantity with its standard error. NaN without samples; the error of a mean is NaN with one
/// sample, too. The error of a proportion is never 0, even where all rows agree.
struct estimate {
  double value, standard_error;
};

/// Estimates of one case.
struct ATTNSCALE_EXPORT experiment_result {
  std::vector<std::string_view> quantities{};  ///< the target error applies to the first
  std::vector<std::string> entries{};    ///< laws by their spelling, ...: all saw the same rows
  std::vector<estimate> estimates{};     ///< the quantities of each entry in turn
  std::int64_t samples = 0;              ///< number drawn, with those before resuming
  bool interrupted = false;              ///< stopped before all samples were drawn
  std::optional<bool> target_reached{};  ///< in every entry; empty without a target error
  experiment_state state{};              ///< for run_options::resume

  /// The quantity of that name. Refuses unknown names and entries.
  const estimate& at(std::string_view quantity, std::size_t entry = 0) const;

  /// Estimate and error of the first quantity.
  double value(std::size_t entry = 0) const;
  double standard_error(std::size_t entry = 0) const;
};

/// A law, or a number >= 0, which multiplies q . k directly. The law's n is that of the last of n
/// causal queries, which sees all keys.
struct law_or_scale {
  template <class N>
  requires(std::is_arithmetic_v<N> && !std::same_as<N, bool>) law_or_scale(N scale)
      : law(laws::constant{static_cast<double>(scale)}) {}

  template <class L>
  requires(!std::same_as<L, law_or_scale> && !std::is_arithmetic_v<L> &&
           std::constructible_from<scale_law, const L&>) law_or_scale(const L& rule)
      : law(rule) {}

  /// A law as scale_law::parse reads it: "log_n(base=512)".
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> law_or_scale(const Text& text)
      : law(scale_law::parse(text)) {}

  scale_law law;
};

/// Random queries and keys with independent components.
struct dot_product_options {
  std::int64_t head_dim = 0;  ///< at least 1; has to be given
  distribution components = distribution::normal;
  double query_mean = 0, key_mean = 0;  ///< at most 1e12, and 1e6 times std, in size
  /// From 1e-12 to 1e12. For truncated_normal: before the cut at two std, without rescaling.
  double std = 1;
};

/// Rows of n random keys, of a model of score_rows_problem, under laws.
struct entropy_options {
  std::int64_t n = 0;  ///< at least 1; has to be given; also the n of the laws
  std::vector<law_or_scale> law = {"standard"};
  std::int64_t head_dim = 64;  ///< at least 2 on the sphere
  score_model model = score_model::sphere;
  /// For the correlated model only: from 0 to 1, default 0.5.
  std::optional<double> correlation{};
};

/// Rows of n keys; queries and keys have standard normal components.
struct saturation_options {
  std::int64_t head_dim = 0;  ///< at least 1; has to be given
  std::int64_t n = 512;       ///< at least 1
  std::vector<law_or_scale> law = {"standard", "unscaled"};
};

/// Rows of n keys on the sphere, one of which has a given cosine with the query.
struct needle_options {
  std::int64_t n = 0;  ///< at least 1, the needle among them; has to be given
  std::vector<law_or_scale> law = {"standard"};
  std::int64_t head_dim = 64;                                ///< at least 2
  double cosine = std::numeric_limits<double>::quiet_NaN();  ///< from -1 to 1; has to be given
};

/// Rows of n keys on the sphere.
struct averaging_options {
  std::int64_t n = 0;  ///< at least 1; has to be given
  std::vector<law_or_scale> law = {"standard"};
  std::int64_t head_dim = 64;  ///< at least 2
};

/// Rows of n keys, one of which (the right key) has a given cosine with the query.
struct head_dimension_options {
  std::int64_t head_dim = 0;  ///< at least 2; has to be given
  std::int64_t n = 512;       ///< at least 1, the right key among them
  double cosine = 0.5;        ///< from -1 to 1
  std::vector<law_or_scale> law = {"standard"};
};

/// Rows of n keys under laws and normalizers; entry law * normalizers + normalizer of the result.
struct sparsity_options {
  std::int64_t n = 0;  ///< at least 1; has to be given
  std::vector<law_or_scale> law = {"standard"};
  /// Normalizers whose rows have a support and an entropy. A row number has to be a single number.
  std::vector<normalizer_choice> normalizer = {normalizers::sparsemax()};
  std::int64_t head_dim = 64;
  score_model model = score_model::gaussian;  ///< or sphere, with a head_dim of at least 2
};

/// One query and n keys, uniform on the sphere.
struct max_cosine_options {
  std::int64_t n = 0;          ///< at least 1; has to be given
  std::int64_t head_dim = 64;  ///< at least 2
};

/// Random projections of n points to k dimensions.
struct projection_options {
  /// (n, dim), contiguous: finite, no two equal; their mean is subtracted, as in jl_distortion of
  /// points. Null: standard normal coordinates, new for each projection.
  const float* points = nullptr;
  std::int64_t n = 0;    ///< at least 2; has to be given
  std::int64_t dim = 0;  ///< at least 1; has to be given
  std::int64_t k = 0;    ///< at least 1; has to be given
  projection_kind kind = projection_kind::gaussian;
  std::vector<double> eps = {0.5};  ///< in (0, 1); one entry each
};

namespace montecarlo {

/// Variance of q . k over random pairs: `variance`, `scaled_variance` (over head_dim), `mean` and
/// `kurtosis` (fourth central moment over squared variance). 102400 pairs by default. NaN where q .
/// k is so far from 0 that its powers lose all digits: the kurtosis and the errors beyond a mean of
/// 1e3 standard deviations, the variance beyond 1e5.
ATTNSCALE_EXPORT experiment_result dot_product_variance(const dot_product_options& options,
                                                        const run_options& how = {});

/// Entropy of rows of n random keys: `entropy` and `lse` (nats), `concentration` (sum p^2),
/// `max_weight`, `mean_score` and `score_variance`. 1000 rows by default.
ATTNSCALE_EXPORT experiment_result entropy_vs_length(const entropy_options& options,
                                                     const run_options& how = {});

/// Saturation of the softmax and its gradient. With the weights p and J = diag(p) - p p^T:
/// `saturated` (proportion of rows whose largest weight exceeds 0.99), `jacobian_trace`,
/// `jacobian_norm` (Frobenius), `spectral_bound` (min(1/2, 2 m (1 - m)), m the largest weight; J's
/// largest eigenvalue is at least half of it and at most it) and `gradient_norm` (scale times
/// jacobian_norm). 1000 rows by default.
ATTNSCALE_EXPORT experiment_result softmax_saturation(const saturation_options& options,
                                                      const run_options& how = {});

/// Weight that a needle keeps: `needle_weight`, `needle_is_top` (proportion of rows where no key
/// has a larger weight) and `entropy` (nats). 1000 rows by default.
ATTNSCALE_EXPORT experiment_result needle_dilution(const needle_options& options,
                                                   const run_options& how = {});

/// Variance of attention's estimate of a mean from n independent values of variance 1:
/// `error_variance`, and `concentration`, which it equals in expectation. 10000 rows by default.
ATTNSCALE_EXPORT experiment_result averaging_error(const averaging_options& options,
                                                   const run_options& how = {});

/// Proportion of rows where the right key has the largest weight: `accuracy`, with `needle_weight`.
/// 1000 rows by default.
ATTNSCALE_EXPORT experiment_result head_dimension(const head_dimension_options& options,
                                                  const run_options& how = {});

/// Number of keys with a positive weight: `support`, with `entropy` (nats), `concentration` and
/// `max_weight`. 1000 rows by default. Under a softmax, rows of 16384 keys or more are summed in
/// parts if fewer than 16 rows are drawn at once, so resuming may change their last digit.
ATTNSCALE_EXPORT experiment_result sparsity(const sparsity_options& options,
                                            const run_options& how = {});

/// Largest cosine of the query with a key: `max_cosine`. 1000 rows by default.
ATTNSCALE_EXPORT experiment_result max_cosine(const max_cosine_options& options,
                                              const run_options& how = {});

/// Results of jl_distortion as means over projections: `distortion` (the largest relative change of
/// a squared distance), `outside` (proportion of pairs that change by more than eps), `success`
/// (proportion of projections that keep all pairs), `mean_ratio` and `ratio_std` of the squared
/// distances after and before. 10 projections by default.
ATTNSCALE_EXPORT experiment_result jl_distortion(const projection_options& options,
                                                 const run_options& how = {});

}  // namespace montecarlo

// Aliases without the namespace.
using montecarlo::averaging_error;
using montecarlo::dot_product_variance;
using montecarlo::entropy_vs_length;
using montecarlo::head_dimension;
using montecarlo::jl_distortion;
using montecarlo::max_cosine;
using montecarlo::needle_dilution;
using montecarlo::softmax_saturation;
using montecarlo::sparsity;

}  // namespace attnscale
