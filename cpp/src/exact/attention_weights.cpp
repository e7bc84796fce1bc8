// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/attention_weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "attnscale/normalizer_traits.hpp"

namespace attnscale {
namespace {

using detail::text_of;

/// Keys written out at a time: a pair of query and key costs head_dim + this many multiply-adds,
/// and every tile costs a call.
constexpr std::int64_t weights_tile = 128;

/// The weights of a call, (..., heads, n_queries, n_keys).
template <class T>
class weights_of_call {
 public:
  explicit weights_of_call(const call_description& call)
      : call_(call), merges_(traits_of(call.arrays().rule).is_exponential) {
    call.fill(problem_);
    problem_.value.row = static_cast<std::ptrdiff_t>(std::min(n_keys(), weights_tile));
    problem_.value.type = detail::element_type_of<T>;
    problem_.output = {detail::element_type_of<T>, static_cast<std::ptrdiff_t>(n_keys()), 1};
  }

  void write_to(T* weights) {
    if (n_keys() == 0 || count_entries(call_.rows()) == 0) return;
    if (!merges_ || n_keys() <= weights_tile)
      at_once(weights);
    else
      by_tiles(weights);
  }

 private:
  std::int64_t n_keys() const { return call_.n_keys(); }

  void write(T* weights, const T* unit, std::int64_t width) {
    problem_.value_dim = width;
    for (attention_head& head : problem_.heads) {
      head.value = unit;
      head.output = weights;
      weights += call_.n_queries() * n_keys();
    }
    run(problem_, call_.how());
  }

  void at_once(T* weights) {
    std::vector<T> unit(static_cast<std::size_t>(std::max<std::int64_t>(n_keys() * n_keys(), 1)));
    for (std::int64_t j = 0; j < n_keys(); ++j)
      unit[static_cast<std::size_t>(j * n_keys() + j)] = 1;
    problem_.value.row = static_cast<std::ptrdiff_t>(n_keys());
    write(weights, unit.data(), n_keys());
  }

  /// A softmax over one tile of keys at a time; the exact lse gives each tile's weight in the row.
  void by_tiles(T* weights) {
    const std::int64_t n_tiles = (n_keys() + weights_tile - 1) / weights_tile;
    const std::size_t rows = problem_.heads.size() * static_cast<std::size_t>(call_.n_queries());
    std::vector<std::vector<double>> lse(static_cast<std::size_t>(n_tiles),
                                         std::vector<double>(rows));
    problem_.statistics.wide = true;
    // Unit vectors: rows n_keys - a ... select keys a, a + 1, ... and are zero for all others.
    std::vector<T> unit(static_cast<std::size_t>(2 * n_keys() * weights_tile));
    for (std::int64_t j = 0; j < weights_tile; ++j)
      unit[static_cast<std::size_t>((n_keys() + j) * weights_tile + j)] = 1;
    const std::vector<attention_head> whole = problem_.heads;
    const std::ptrdiff_t begin_row = problem_.begin_row, end_row = problem_.end_row;
    for (std::int64_t tile = 0; tile < n_tiles; ++tile) {
      const std::int64_t a = tile * weights_tile, b = std::min(a + weights_tile, n_keys());
      see_only(a, b, whole, begin_row, end_row);
      problem_.statistics[statistic::lse] = lse[static_cast<std::size_t>(tile)].data();
      write(weights + a, unit.data() + (n_keys() - a) * weights_tile, b - a);
    }
    for (std::size_t row = 0; row < rows; ++row)
      share(weights + static_cast<std::int64_t>(row) * n_keys(), row, lse, whole);
  }

  /// Limits every query to keys a ... b - 1; the kernel skips all others.
  void see_only(std::int64_t a, std::int64_t b, const std::vector<attention_head>& whole,
                std::ptrdiff_t begin_row, std::ptrdiff_t end_row) {
    const std::int64_t n = call_.n_queries();
    ends_.resize(2 * whole.size() * static_cast<std::size_t>(n));
    std::int64_t* at = ends_.data();
    for (std::size_t h = 0; h < whole.size(); ++h) {
      attention_head& head = problem_.heads[h];
      head.number = nullptr;
      head.begin = at;
      head.end = at + n;
      for (std::int64_t i = 0; i < n; ++i, ++at) {
        const std::int64_t first = whole[h].begin ? whole[h].begin[i * begin_row] : 0;
        const std::int64_t past = whole[h].end ? whole[h].end[i * end_row] : n_keys();
        at[n] = std::min(past, b);
        at[0] = std::min(std::max(first, a), at[n]);
      }
      at += n;
    }
    problem_.begin_row = problem_.end_row = 1;
  }

  /// Multiplies each tile of a row by its weight in the whole row. A weight below the type's range
  /// is 0.
  void share(T* row_weights, std::size_t row, const std::vector<std::vector<double>>& lse,
             const std::vector<attention_head>& whole) const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto n = static_cast<std::size_t>(call_.n_queries());
    const double* sink = whole[row / n].number;
    const double logit =
        sink ? sink[static_cast<std::ptrdiff_t>(row % n) * problem_.number_row] : -infinity;
    double top = logit, total = 0;
    for (const auto& part : lse)
      if (part[row] > top || std::isnan(part[row])) top = part[row];
    if (top == -infinity) top = 0;  // no keys
    for (const auto& part : lse) total += std::exp(part[row] - top);
    total += std::exp(logit - top);
    for (std::size_t tile = 0; tile < lse.size(); ++tile) {
      const auto part = static_cast<T>(std::exp(lse[tile][row] - top) / (total == 0 ? 1 : total));
      const std::int64_t a = static_cast<std::int64_t>(tile) * weights_tile;
      for (std::int64_t j = a; j < std::min(a + weights_tile, n_keys()); ++j)
        row_weights[j] *= part;
    }
  }

  const call_description& call_;
  bool merges_;  ///< softmax weights of parts of the keys can be merged
  attention_problem problem_;
  std::vector<std::int64_t> ends_;
};

/// Text such as "1.5 GiB".
std::string text_of_bytes(double count) {
  char text[32];
  const char* unit = "bytes";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (count < 1024) break;
    unit = next;
    count /= 1024;
  }
  std::snprintf(text, sizeof text, unit[0] == 'b' ? "%.4g %s" : "%.1f %s", count, unit);
  return text;
}

}  // namespace

void check_weights_fit(const call_description& call, double most) {
  const std::size_t item = call.arrays().compute == element_type::float64 ? 8 : 4;
  double heads = 1;
  for (const std::int64_t extent : call.leading()) heads *= static_cast<double>(extent);
  const double size = heads * static_cast<double>(call.n_queries()) *
                      static_cast<double>(call.n_keys()) * static_cast<double>(item);
  if (size <= most) return;
  throw weights_too_large("the weights of " + text_of(static_cast<std::int64_t>(heads)) +
                          (heads == 1 ? " head, " : " heads, ") + text_of(call.n_queries()) +
                          " queries and " + text_of(call.n_keys()) + " keys would take " +
                          text_of_bytes(size) + ", more than max_bytes, " + text_of_bytes(most) +
                          ". attention_statistics has their entropy without the matrix, and fewer "
                          "queries or heads make it smaller");
}

void write_weights(const call_description& call, void* weights) {
  if (call.arrays().compute == element_type::float64)
    weights_of_call<double>(call).write_to(static_cast<double*>(weights));
  else
    weights_of_call<float>(call).write_to(static_cast<float*>(weights));
}

}  // namespace attnscale
