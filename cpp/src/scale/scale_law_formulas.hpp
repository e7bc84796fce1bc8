// SPDX-License-Identifier: BSD-3-Clause
//
// Definition of each law: its name, the meaning of its n, its parameters with their rules, and
// beta, the multiple of 1 / sqrt(head_dim). d is head_dim.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "attnscale/scale_law.hpp"
#include "scale/scale_law_parameters.hpp"

namespace attnscale::detail {

/// Name, meaning of n and parameters of a law; specialised for each.
template <class L>
struct law_of;

template <class... Each>
constexpr std::array<law_parameter, sizeof...(Each)> listed(Each... each) {
  return {each...};
}

#define ATTNSCALE_LAW(L, N_MEANS, ...)                      \
  template <>                                               \
  struct law_of<laws::L> {                                  \
    using law = laws::L;                                    \
    static constexpr std::string_view name = #L;            \
    static constexpr n_means meaning = n_means::N_MEANS;    \
    static constexpr auto parameters = listed(__VA_ARGS__); \
  }
#define ATTNSCALE_NUMBER(NAME, HOW, BOUND) \
  law_parameter { #NAME, offsetof(law, NAME), rule::HOW, BOUND }

ATTNSCALE_LAW(standard, not_used);
ATTNSCALE_LAW(unscaled, not_used);
ATTNSCALE_LAW(constant, not_used, ATTNSCALE_NUMBER(value, finite, 0));
ATTNSCALE_LAW(mup, not_used);
ATTNSCALE_LAW(layer_index, not_used, ATTNSCALE_NUMBER(layer, whole, 0));
ATTNSCALE_LAW(disentangled_scale, not_used, ATTNSCALE_NUMBER(terms, whole, 1));
ATTNSCALE_LAW(latent_scale, not_used, ATTNSCALE_NUMBER(hidden, above, 0),
              ATTNSCALE_NUMBER(rank, above, 0));
ATTNSCALE_LAW(log_n, visible_keys, ATTNSCALE_NUMBER(base, above, 1),
              ATTNSCALE_NUMBER(floor, at_least, 1));
ATTNSCALE_LAW(log_power, visible_keys, ATTNSCALE_NUMBER(power, at_least, 0),
              ATTNSCALE_NUMBER(base, above, 1));
ATTNSCALE_LAW(log_n_from_training, query_position_plus_1, ATTNSCALE_NUMBER(train_length, above, 1));
ATTNSCALE_LAW(natural_log_n, row_size);
ATTNSCALE_LAW(kappa, visible_keys, ATTNSCALE_NUMBER(kappa, finite, 0));
ATTNSCALE_LAW(qwen_log_n, query_position_plus_1, ATTNSCALE_NUMBER(train_length, above, 1));
ATTNSCALE_LAW(grok_temperature, query_position, ATTNSCALE_NUMBER(length, above, 1));
ATTNSCALE_LAW(ssmax, row_size, ATTNSCALE_NUMBER(s, finite, 0), ATTNSCALE_NUMBER(b, finite, 0),
              ATTNSCALE_NUMBER(floor, at_least, 1));
ATTNSCALE_LAW(asentmax, query_position_plus_2, ATTNSCALE_NUMBER(delta, finite, 0),
              ATTNSCALE_NUMBER(beta, finite, 0), ATTNSCALE_NUMBER(gamma, finite, 0));
ATTNSCALE_LAW(llama4_temperature, query_position_plus_1, ATTNSCALE_NUMBER(a, finite, 0),
              ATTNSCALE_NUMBER(floor, above, 0));
ATTNSCALE_LAW(ministral_temperature, query_position, ATTNSCALE_NUMBER(beta, finite, 0),
              ATTNSCALE_NUMBER(length, above, 0));
ATTNSCALE_LAW(beam_temperature, query_position_plus_1, ATTNSCALE_NUMBER(exponent, finite, 0),
              ATTNSCALE_NUMBER(length, above, 0));
ATTNSCALE_LAW(inkling_temperature, query_position_plus_1, ATTNSCALE_NUMBER(alpha, finite, 0),
              ATTNSCALE_NUMBER(floor, above, 0), ATTNSCALE_NUMBER(over_head_dim, flag, 0));
ATTNSCALE_LAW(selective_temperature, query_position_plus_1, ATTNSCALE_NUMBER(strength, finite, 0));
ATTNSCALE_LAW(nope_temperature, query_position, ATTNSCALE_NUMBER(slope, finite, 0),
              ATTNSCALE_NUMBER(train_length, above, 0));
ATTNSCALE_LAW(yarn, not_used, ATTNSCALE_NUMBER(factor, above, 0),
              ATTNSCALE_NUMBER(attention_factor, given_at_least, 0),
              ATTNSCALE_NUMBER(mscale, given_at_least, 0),
              ATTNSCALE_NUMBER(mscale_all_dim, given_at_least, 0),
              ATTNSCALE_NUMBER(slope, at_least, 0));
ATTNSCALE_LAW(mla_yarn, not_used, ATTNSCALE_NUMBER(factor, above, 0),
              ATTNSCALE_NUMBER(mscale_all_dim, at_least, 0));
ATTNSCALE_LAW(longrope, not_used, ATTNSCALE_NUMBER(train_length, above, 1),
              ATTNSCALE_NUMBER(factor, above, 0),
              ATTNSCALE_NUMBER(attention_factor, given_at_least, 0));
ATTNSCALE_LAW(info_scale, visible_keys, ATTNSCALE_NUMBER(train_length, above, 1));
ATTNSCALE_LAW(annealed, visible_keys, ATTNSCALE_NUMBER(n0, at_least, 1),
              ATTNSCALE_NUMBER(least, at_least, 0), ATTNSCALE_NUMBER(variance, above, 0));
ATTNSCALE_LAW(sparsity_invariant, visible_keys, ATTNSCALE_NUMBER(n0, finite, 0),
              ATTNSCALE_NUMBER(keys, above, 0), ATTNSCALE_NUMBER(least, at_least, 0));
ATTNSCALE_LAW(variance_invariant, visible_keys, ATTNSCALE_NUMBER(n0, at_least, 1),
              ATTNSCALE_NUMBER(least, at_least, 0));
ATTNSCALE_LAW(retrieval, visible_keys, ATTNSCALE_NUMBER(gap, above, 0),
              ATTNSCALE_NUMBER(weight, between, 0), ATTNSCALE_NUMBER(least, at_least, 0));
ATTNSCALE_LAW(scale_invariant, query_key_distance, ATTNSCALE_NUMBER(tau, above, 0));
ATTNSCALE_LAW(critical_scale, row_gaps);
ATTNSCALE_LAW(norm_softmax, row_spread, ATTNSCALE_NUMBER(gamma, finite, 0),
              ATTNSCALE_NUMBER(least, above, 0));
ATTNSCALE_LAW(qk_norm_scale, not_used, ATTNSCALE_NUMBER(train_length, at_least, 2));
ATTNSCALE_LAW(swin_v2, not_used, ATTNSCALE_NUMBER(theta, finite, 0),
              ATTNSCALE_NUMBER(most, above, 0));
ATTNSCALE_LAW(lssa, query_position_plus_1);
ATTNSCALE_LAW(table, not_used);
#undef ATTNSCALE_NUMBER
#undef ATTNSCALE_LAW

/// isf(p) = -Phi^-1(p) for p in [0, 1/2]: the value that a standard normal number exceeds with
/// probability p.
double normal_isf(double p);

inline double yarn_scale(double factor, double weight, double slope) {
  return factor <= 1 ? 1 : slope * weight * std::log(factor) + 1;
}

inline double beta(const laws::standard&, double, double) { return 1; }
inline double beta(const laws::unscaled&, double, double d) { return std::sqrt(d); }
inline double beta(const laws::constant& law, double, double d) { return law.value * std::sqrt(d); }
inline double beta(const laws::mup&, double, double d) { return 1 / std::sqrt(d); }
inline double beta(const laws::layer_index& law, double, double) { return 1 / (law.layer + 1); }
inline double beta(const laws::disentangled_scale& law, double, double) {
  return 1 / std::sqrt(law.terms);
}
inline double beta(const laws::latent_scale& law, double, double) {
  return std::sqrt(law.hidden / law.rank);
}
inline double beta(const laws::log_n& law, double n, double) {
  return std::log(std::max(n, law.floor)) / std::log(law.base);
}
inline double beta(const laws::log_power& law, double n, double) {
  return std::pow(std::log(n) / std::log(law.base), law.power);
}
inline double beta(const laws::log_n_from_training& law, double n, double) {
  return std::max(1.0, std::log(n) / std::log(law.train_length));
}
inline double beta(const laws::natural_log_n&, double n, double) { return std::log(n); }
inline double beta(const laws::kappa& law, double n, double d) {
  return law.kappa * std::log(n) / std::sqrt(d);
}
inline double beta(const laws::qwen_log_n& law, double n, double) {
  return n > law.train_length ? std::log(n) / std::log(law.train_length) : 1;
}
inline double beta(const laws::grok_temperature& law, double n, double) {
  return n > law.length ? std::log2(n) / std::log2(law.length) : 1;
}
inline double beta(const laws::ssmax& law, double n, double) {
  return law.s * std::log(std::max(n, law.floor)) + law.b;
}
inline double beta(const laws::asentmax& law, double n, double) {
  return law.delta + law.beta * std::pow(std::log(n), law.gamma);
}
inline double beta(const laws::llama4_temperature& law, double n, double) {
  return 1 + law.a * std::log1p(std::floor(n / law.floor));
}
inline double beta(const laws::ministral_temperature& law, double n, double) {
  return 1 + law.beta * std::log1p(std::floor(n / law.length));
}
inline double beta(const laws::beam_temperature& law, double n, double) {
  return std::exp(law.exponent * std::log1p(n / law.length));
}
inline double beta(const laws::inkling_temperature& law, double n, double d) {
  const double temperature = 1 + law.alpha * std::log(std::max(1.0, n / law.floor));
  return law.over_head_dim ? temperature / std::sqrt(d) : temperature;
}
inline double beta(const laws::selective_temperature& law, double n, double) {
  return 1 + law.strength * std::log(n);
}
inline double beta(const laws::nope_temperature& law, double n, double) {
  return 1 + law.slope * std::log(std::max(1.0, n / law.train_length));
}
inline double beta(const laws::yarn& law, double, double) {
  double m = yarn_scale(law.factor, 1, law.slope);
  if (!std::isnan(law.attention_factor))
    m = law.attention_factor;
  else if (law.mscale > 0 && law.mscale_all_dim > 0)
    m = yarn_scale(law.factor, law.mscale, law.slope) /
        yarn_scale(law.factor, law.mscale_all_dim, law.slope);
  return m * m;
}
inline double beta(const laws::mla_yarn& law, double, double) {
  const double m = yarn_scale(law.factor, law.mscale_all_dim, 0.1);
  return m * m;
}
inline double beta(const laws::longrope& law, double, double) {
  if (!std::isnan(law.attention_factor)) return law.attention_factor * law.attention_factor;
  return law.factor > 1 ? 1 + std::log(law.factor) / std::log(law.train_length) : 1;
}
inline double beta(const laws::info_scale& law, double n, double d) {
  // -expm1(-x) is 1 - exp(-x) without the loss of digits at a large head_dim.
  return std::sqrt(std::expm1(-2 / d * std::log(n)) /
                   std::expm1(-2 / d * std::log(law.train_length)));
}
inline double beta(const laws::annealed& law, double n, double) {
  const double squared = 1 + 2 * (std::log(n) - std::log(law.n0)) / law.variance;
  return std::max(std::sqrt(std::max(squared, 0.0)), law.least);
}
inline double beta(const laws::sparsity_invariant& law, double n, double) {
  return std::max(normal_isf(std::min(law.keys / n, 0.5)) / normal_isf(law.keys / law.n0),
                  law.least);
}
inline double beta(const laws::variance_invariant& law, double n, double) {
  const double squared = 1 + std::log(n) - std::log(law.n0);
  return std::max(std::sqrt(std::max(squared, 0.0)), law.least);
}
inline double beta(const laws::retrieval& law, double n, double) {
  const double noise = std::log(n) + std::log(law.weight / (1 - law.weight));
  const double root = std::sqrt(std::max(law.gap * law.gap - 2 * noise, 0.0));
  // gap - root without cancellation, if there is a root.
  return std::max(root > 0 ? 2 * noise / (law.gap + root) : law.gap, law.least);
}
inline double beta(const laws::scale_invariant& law, double n, double) {
  return std::sqrt(1 + 2 * std::log1p(n / law.tau));
}
inline double beta(const laws::critical_scale&, double n, double) { return n; }
inline double beta(const laws::norm_softmax& law, double n, double) {
  return law.gamma / std::max(n, law.least);
}
inline double beta(const laws::qk_norm_scale& law, double, double d) {
  return std::log2(law.train_length * (law.train_length - 1)) / std::sqrt(d);
}
inline double beta(const laws::swin_v2& law, double, double d) {
  return std::exp(std::min(law.theta, std::log(law.most))) / std::sqrt(d);
}
inline double beta(const laws::lssa&, double n, double d) {
  return std::log(d) * std::log(n) / std::sqrt(d);
}
inline double beta(const laws::table& law, double n, double) {
  return law.multipliers[static_cast<std::size_t>(n)];  // checked by scale_law::check
}

}  // namespace attnscale::detail
