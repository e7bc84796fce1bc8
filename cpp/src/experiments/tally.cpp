// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/tally.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "attnscale/detail/refuse.hpp"

namespace attnscale {
namespace {

using namespace detail;

constexpr double none = std::numeric_limits<double>::quiet_NaN();

/// Number of elements of an array of that shape. Refuses sizes that memory cannot hold.
std::size_t size_of(std::int64_t entries, std::int64_t columns, std::int64_t depth) {
  constexpr auto most = std::int64_t{1} << 40;
  if (columns > most / entries / depth)
    refuse("columns must be few enough for their products to fit memory, got " + text_of(columns) +
           " in each of " + text_of(entries) + " entries");
  return static_cast<std::size_t>(entries * columns * depth);
}

void check_size(const char* name, const std::vector<double>& numbers, std::size_t size) {
  if (numbers.size() != size)
    refuse(std::string(name) + " must have " + text_of(size) + " numbers, got " +
           text_of(numbers.size()));
}

/// sums += distance, and products += the outer product of each entry's columns with themselves.
void add_distance(const double* distance, std::int64_t entries, std::int64_t columns,
                  double* __restrict sums, double* __restrict products) {
  for (std::int64_t i = 0; i < entries * columns; ++i) sums[i] += distance[i];
  for (std::int64_t entry = 0; entry < entries; ++entry, distance += columns)
    for (std::int64_t a = 0; a < columns; ++a, products += columns)
      for (std::int64_t b = 0; b < columns; ++b) products[b] += distance[a] * distance[b];
}

}  // namespace

tally::tally(std::int64_t columns, std::int64_t entries) : columns_(columns), entries_(entries) {
  check_at_least("columns", columns, 1);
  check_at_least("entries", entries, 1);
  kept_.products.resize(size_of(entries, columns, columns));
  kept_.origin.resize(width());
  kept_.sums.resize(width());
}

tally::tally(std::int64_t columns, std::int64_t entries, tally_sums kept)
    : columns_(columns), entries_(entries), kept_(std::move(kept)) {
  check_at_least("columns", columns, 1);
  check_at_least("entries", entries, 1);
  check_at_least("rows", kept_.rows, 0);
  check_size("products", kept_.products, size_of(entries, columns, columns));
  check_size("origin", kept_.origin, width());
  check_size("sums", kept_.sums, width());
}

void tally::add(const double* rows, std::int64_t count) {
  check_at_least("count", count, 0);
  check_memory("rows", rows, count);
  if (count == 0) return;
  if (kept_.rows == 0) kept_.origin.assign(rows, rows + width());
  std::vector<double> distance(width());
  for (std::int64_t i = 0; i < count; ++i, rows += width()) {
    for (std::size_t k = 0; k < width(); ++k) distance[k] = rows[k] - kept_.origin[k];
    add_distance(distance.data(), entries_, columns_, kept_.sums.data(), kept_.products.data());
  }
  kept_.rows += count;
}

std::vector<double> tally::mean() const {
  std::vector<double> found(width(), none);
  const auto count = static_cast<double>(kept_.rows);
  for (std::size_t k = 0; kept_.rows > 0 && k < width(); ++k)
    found[k] = kept_.origin[k] + kept_.sums[k] / count;
  return found;
}

std::vector<double> tally::covariance() const {
  std::vector<double> found(kept_.products.size(), none);
  if (kept_.rows < 2) return found;
  const auto count = static_cast<double>(kept_.rows);
  const auto columns = static_cast<std::size_t>(columns_);
  for (std::size_t at = 0; at < found.size(); ++at) {
    const std::size_t row = at / columns, entry = row / columns;
    const double outer = kept_.sums[row] * kept_.sums[entry * columns + at % columns] / count;
    found[at] = (kept_.products[at] - outer) / (count - 1);
  }
  return found;
}

std::vector<double> tally::standard_error() const {
  const std::vector<double> squares = covariance();
  const auto columns = static_cast<std::size_t>(columns_);
  const auto count = static_cast<double>(std::max<std::int64_t>(kept_.rows, 1));
  std::vector<double> found(width());
  for (std::size_t k = 0; k < width(); ++k) {
    const double variance = squares[k * columns + k % columns];
    // Rounding may leave a variance of 0 slightly negative; NaN is kept.
    found[k] = std::sqrt((variance < 0 ? 0 : variance) / count);
  }
  return found;
}

}  // namespace attnscale
