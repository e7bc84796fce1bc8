// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/relay_energy.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "attnscale/detail/product_problem.hpp"
#include "attnscale/detail/refuse.hpp"

namespace attnscale {
namespace {

using detail::refuse;
using detail::text_of;

void check_nodes(const strided_array& nodes) {
  if (nodes.dimension() < 2)
    refuse("nodes must have at least 2 axes (..., K, dim), got shape " + text_of(nodes.shape()));
}

void check_columns(const char* name, const strided_array& matrix, const strided_array& nodes) {
  if (matrix.extent(1) != nodes.extent(2))
    refuse(std::string(name) + " must have one column for each of the " + text_of(nodes.extent(2)) +
           " nodes, got " + text_of(matrix.shape()));
}

void check_interaction(const strided_array& weight, const strided_array& nodes) {
  if (weight.dimension() != 2 || weight.extent(1) != weight.extent(2))
    refuse("weight must be a matrix (K, K), got shape " + text_of(weight.shape()));
  check_columns("weight", weight, nodes);
}

/// Products a b of every head, in double.
row_array<double> product(const strided_array& a, const strided_array& b, const extents& leading,
                          const execution& how = {}) {
  const extents shape = joined(leading, {a.extent(2), b.extent(1)});
  row_array<double> out{{shape.begin(), shape.end()}, {}};
  out.numbers.resize(static_cast<std::size_t>(count_entries(shape)));
  detail::multiply(element_type::float64, a, b, leading, out.numbers.data(), how);
  return out;
}

/// Numbers of an array of any type and strides.
row_array<double> numbers_of(const strided_array& array) {
  const strided_array each = array.with_inner(0);
  row_array<double> numbers{{array.shape().begin(), array.shape().end()}, {}};
  for_each_index(each.shape(), [&](const extents& index) {
    numbers.numbers.push_back(
        detail::number_at(each.at(index, each.shape()), each.layout().type, 0));
  });
  return numbers;
}

/// W^T B - B.
row_array<double> residual_of(const strided_array& weight, const row_array<double>& b) {
  row_array<double> rest = product(weight.transposed(), {b, 2}, strided_array(b, 2).leading());
  std::transform(rest.numbers.begin(), rest.numbers.end(), b.numbers.begin(), rest.numbers.begin(),
                 std::minus<>());
  return rest;
}

/// Sum over the last two axes of a b.
row_array<double> sum_of_products(const row_array<double>& a, const row_array<double>& b) {
  const extents leading = strided_array(a, 2).leading();
  row_array<double> sums{{leading.begin(), leading.end()}, {}};
  sums.numbers.resize(static_cast<std::size_t>(count_entries(leading)));
  const std::size_t size = sums.numbers.empty() ? 0 : a.numbers.size() / sums.numbers.size();
  std::size_t at = 0;
  for (double& each : sums.numbers)
    for (std::size_t i = 0; i < size; ++i, ++at) each += a.numbers[at] * b.numbers[at];
  return sums;
}

}  // namespace

row_array<double> relay_energy_of(const strided_array& nodes, const strided_array& weight,
                                  relay_energy_kind kind) {
  check_nodes(nodes);
  check_interaction(weight, nodes);
  const row_array<double> b = numbers_of(nodes);
  if (kind == relay_energy_kind::bilinear)
    return sum_of_products(b, product(weight, {b, 2}, nodes.leading()));
  const row_array<double> rest = residual_of(weight, b);
  row_array<double> energy = sum_of_products(rest, rest);
  for (double& each : energy.numbers) each = -each;
  return energy;
}

row_array<double> relay_energy_gradient_of(const strided_array& nodes, const strided_array& weight,
                                           relay_energy_kind kind) {
  check_nodes(nodes);
  check_interaction(weight, nodes);
  const row_array<double> b = numbers_of(nodes);
  const bool bilinear = kind == relay_energy_kind::bilinear;
  const row_array<double> rest = bilinear ? b : residual_of(weight, b);
  row_array<double> found = product(weight, {rest, 2}, nodes.leading());
  const row_array<double> other =
      bilinear ? product(weight.transposed(), {b, 2}, nodes.leading()) : rest;
  for (std::size_t i = 0; i < found.numbers.size(); ++i) {
    double& each = found.numbers[i];
    each = bilinear ? each + other.numbers[i] : -2 * (each - other.numbers[i]);
  }
  return found;
}

row_array<double> relay_energy_gradient_of(const strided_array& nodes, const strided_array& left,
                                           const strided_array& right) {
  check_nodes(nodes);
  if (left.dimension() != 2 || left.shape() != right.shape())
    refuse("L and R must have the same shape (D, K), got " + text_of(left.shape()) + " and " +
           text_of(right.shape()));
  check_columns("L", left, nodes);
  const row_array<double> read = product(right, nodes, nodes.leading());
  return product(left.transposed(), {read, 2}, nodes.leading());
}

row_array<double> relay_message_of(const strided_array& x, const strided_array& centres,
                                   const strided_array& gradient, const strided_array& nodes,
                                   const double* lse, const execution& how) {
  if (gradient.shape() != nodes.shape())
    refuse("gradient must have the shape of the nodes, " + text_of(nodes.shape()) + ", got " +
           text_of(gradient.shape()));
  const extents leading = nodes.leading();
  row_array<double> weights = product(x, centres.transposed(), leading, how);
  row_array<double> along = product(x, gradient.transposed(), leading, how);
  const auto n_nodes = static_cast<std::size_t>(nodes.extent(2));
  const auto n = static_cast<std::size_t>(x.extent(2));
  const auto dim = static_cast<std::size_t>(nodes.extent(1));
  const auto* g = static_cast<const double*>(gradient.at({}, {}));
  const auto* b = static_cast<const double*>(nodes.at({}, {}));
  std::vector<double> at_nodes(static_cast<std::size_t>(count_entries(leading)) * n_nodes, 0.0);
  for (std::size_t k = 0; k < at_nodes.size(); ++k)  // G_k . B_k
    for (std::size_t c = k * dim; c < (k + 1) * dim; ++c) at_nodes[k] += g[c] * b[c];
  for (std::size_t i = 0; i < weights.numbers.size(); ++i) {
    const std::size_t node = i / (n * n_nodes) * n_nodes + i % n_nodes;
    const double weight = std::exp(weights.numbers[i] - lse[node]);
    along.numbers[i] = weight * (along.numbers[i] - at_nodes[node]);
    weights.numbers[i] = weight;
  }
  row_array<double> message = product({weights, 2}, gradient, leading, how);
  const row_array<double> turned = product({along, 2}, centres, leading, how);
  std::transform(message.numbers.begin(), message.numbers.end(), turned.numbers.begin(),
                 message.numbers.begin(), std::plus<>());
  return message;
}

}  // namespace attnscale
