// SPDX-License-Identifier: BSD-3-Clause
#include "exact/forward_pass.hpp"

#include <algorithm>
#include <cstddef>

#include "attnscale/normalizer_traits.hpp"
#include "call/row_address.hpp"

namespace attnscale::detail {

forward_pass::forward_pass(const gradient_problem& problem, const execution& how) : p_(problem) {
  const bool lacks_output = needs_output() && !p_.heads[0].output;
  if (!lacks_output && !lacks_statistics()) return;
  attention_problem rest = p_;
  rest.statistics = {};
  if (lacks_output) {
    add_output(rest);
  } else {
    for (attention_head& head : rest.heads) head.output = nullptr;
    rest.value_dim = 0;
  }
  add_statistics(rest);
  run(rest, how);
}

bool forward_pass::needs_output() const { return p_.gradients[0].grad_output != nullptr; }

bool forward_pass::needs(statistic which) const {
  bool needed = which == statistic::lse && traits_of(p_.rule).is_exponential;
  for (const statistic_gradient& each : statistic_gradients)
    needed = needed || (p_.cotangents[each.which] && each.needs.contains(which));
  return needed;
}

bool forward_pass::lacks_statistics() const {
  for (std::size_t i = 0; i < statistic_names.size(); ++i)
    if (const auto which = static_cast<statistic>(i); !p_.statistics[which] && needs(which))
      return true;
  return false;
}

void forward_pass::add_statistics(attention_problem& rest) {
  const std::size_t rows = p_.heads.size() * static_cast<std::size_t>(p_.n_queries);
  for (std::size_t i = 0; i < statistic_names.size(); ++i) {
    const auto which = static_cast<statistic>(i);
    if (p_.statistics[which] || !needs(which)) continue;
    const std::size_t item = is_count(which) ? 8 : static_cast<std::size_t>(item_size(p_.compute));
    rest.statistics[which] = p_.statistics[which] = kept_.emplace_back(rows * item).data();
  }
}

void forward_pass::add_output(attention_problem& rest) {
  const std::int64_t elements = p_.n_queries * p_.value_dim;
  const auto head_bytes = static_cast<std::size_t>(elements * item_size(p_.compute));
  // One byte at least: null means no output.
  aligned_buffer& all = kept_.emplace_back(std::max<std::size_t>(1, p_.heads.size() * head_bytes));
  p_.output = rest.output = {p_.compute, static_cast<std::ptrdiff_t>(p_.value_dim), 1};
  for (std::size_t h = 0; h < p_.heads.size(); ++h)
    p_.heads[h].output = rest.heads[h].output = static_cast<char*>(all.data()) + h * head_bytes;
}

double forward_pass::read(const void* rows, std::int64_t row) const {
  if (!rows) return 0;
  return p_.compute == element_type::float64
             ? static_cast<const double*>(rows)[row]
             : static_cast<double>(static_cast<const float*>(rows)[row]);
}

row_statistics forward_pass::row(std::int64_t row) const {
  row_statistics found;
  for (const statistic_gradient& each : statistic_gradients) {
    const std::size_t place = place_of(each.which);
    found.value[place] = at(each.which, row);
    found.gradient[place] = read(p_.cotangents[each.which], row);
  }
  return found;
}

gradient_terms forward_pass::terms() const {
  gradient_terms most = gradient_terms::constant;
  for (const statistic_gradient& each : statistic_gradients)
    if (p_.cotangents[each.which]) most = std::max(most, each.terms);
  return most;
}

}  // namespace attnscale::detail
