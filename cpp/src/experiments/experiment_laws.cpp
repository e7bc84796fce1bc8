// SPDX-License-Identifier: BSD-3-Clause
#include "experiments/experiment_laws.hpp"

#include <cmath>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/scale_law.hpp"

namespace attnscale::detail {
namespace {

/// The law's spelling; a table, which has none, is named by its multiplier.
std::string name_of(const scale_law& law, double beta) {
  if (std::holds_alternative<laws::table>(law.alternatives()))
    return "table(" + text_of(beta) + ")";
  return law.spelling();
}

double beta_of(const scale_law& law, std::int64_t n, std::int64_t head_dim) {
  require_one_scale_a_row(law);
  if (const auto* scale = std::get_if<laws::constant>(&law.alternatives()))
    if (scale->value < 0) refuse("law: a scale must be at least 0, got " + text_of(scale->value));
  const double beta = law.multiplier(law.n_of_position(n - 1), head_dim);
  if (!std::isfinite(beta) || beta < 0)
    refuse("law must give a finite scale of at least 0, got " + text_of(beta) + " from " +
           name_of(law, beta) + " at n = " + text_of(n));
  return beta;
}

}  // namespace

betas_of_laws read_laws(const std::vector<law_or_scale>& laws, std::int64_t n,
                        std::int64_t head_dim) {
  if (laws.empty()) refuse("law must have at least one value, got none");
  betas_of_laws found;
  for (const law_or_scale& each : laws) {
    found.betas.push_back(beta_of(each.law, n, head_dim));
    found.names.push_back(name_of(each.law, found.betas.back()));
  }
  return found;
}

}  // namespace attnscale::detail
