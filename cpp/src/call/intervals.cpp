// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/detail/intervals.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/scale_law.hpp"
#include "call/row_arrays.hpp"

namespace attnscale {
namespace {

using detail::axes_of_rows;
using detail::broadcast;
using detail::combine;
using detail::count;
using detail::place;
using detail::refuse;
using detail::strides_in;
using detail::text_of;
using rows = key_intervals::rows;

/// Largest alignment and window side; up to these, sums do not overflow.
constexpr std::int64_t most_offset = std::int64_t{1} << 60, most_side = 2 * most_offset;

// ---- arrays of rows --------------------------------------------------------------------------

rows one(std::int64_t number) { return {{}, {number}}; }

/// Numbers first, first + step, ..., one per query or distance.
rows ascending(std::int64_t first, std::int64_t n, std::int64_t step = 1) {
  rows found{{n}, {}};
  found.numbers.resize(count(found.extents));
  for (std::int64_t& number : found.numbers) number = std::exchange(first, first + step);
  return found;
}

// ---- arrays of the caller --------------------------------------------------------------------

std::string text_of_integer(const integer_array& given, std::int64_t number) {
  return given.is_unsigned ? text_of(static_cast<std::uint64_t>(number)) : text_of(number);
}

/// A copy without leading axes of extent 1 that the shape does not have.
rows read(const char* name, const integer_array& given, const axes_of_rows& shape,
          const char* axes) {
  std::span<const std::int64_t> own = given.extents, strides = given.strides;
  for (; own.size() > shape.size() && own[0] == 1; own = own.subspan(1))
    strides = strides.subspan(1);
  bool fits = own.size() <= shape.size();
  for (std::size_t k = 1; fits && k <= own.size(); ++k)
    fits = own[own.size() - k] == 1 || own[own.size() - k] == shape[shape.size() - k];
  if (!fits)
    refuse(std::string(name) + " must broadcast to " + axes + " = " + text_of(shape) +
           ", got shape " + text_of(given.extents));
  rows found{{own.begin(), own.end()}, {}};
  found.numbers.resize(count(own));
  for (std::size_t i = 0; i < found.numbers.size(); ++i)
    found.numbers[i] = given.data[place(static_cast<std::int64_t>(i), own, strides, 0)];
  return found;
}

/// One number, or one per batch entry, shared by its heads and queries.
rows read_lengths(const interval_options& options) {
  if (!options.key_lengths) return one(options.n_keys);
  const integer_array& given = *options.key_lengths;
  rows lengths = read("key_lengths", given, {options.batch.begin(), options.batch.end()},
                      "the batch shape (query.shape[:-3])");
  const auto [least, most] = std::minmax_element(lengths.numbers.begin(), lengths.numbers.end());
  if (!lengths.numbers.empty()) {
    const std::int64_t seen = *least < 0 ? *least : *most;
    if (seen < 0 || seen > options.n_keys)
      refuse("key_lengths must be between 0 and the number of keys, " + text_of(options.n_keys) +
             ", got " + text_of_integer(given, seen));
  }
  if (!lengths.extents.empty()) lengths.extents.insert(lengths.extents.end(), {1, 1});
  return lengths;
}

/// For each key, the first key of its document and the one after its last.
struct documents {
  rows first, past;

  explicit documents(const interval_options& options) {
    const integer_array& given = *options.document_ids;
    const std::int64_t n_keys = options.n_keys;
    axes_of_rows shape(options.batch.begin(), options.batch.end());
    shape.push_back(n_keys);
    const rows ids = read("document_ids", given, shape, "(..., n_keys)");
    first.extents = ids.extents;
    if (first.extents.empty()) first.extents.push_back(1);
    const std::int64_t step = first.extents.back() == 1 ? 0 : 1;
    first.extents.back() = n_keys;
    first.numbers.resize(count(first.extents));
    past.numbers.resize(first.numbers.size());
    const std::int64_t* id = ids.numbers.data();
    for (std::size_t at = 0; at < first.numbers.size(); at += static_cast<std::size_t>(n_keys)) {
      read_runs(given, id, step, n_keys, first.numbers.data() + at, past.numbers.data() + at);
      id += step ? n_keys : 1;
    }
    if (first.extents.size() > 1) first.extents.insert(first.extents.end() - 1, 1);
    past.extents = first.extents;
  }

 private:
  static void read_runs(const integer_array& given, const std::int64_t* ids, std::int64_t step,
                        std::int64_t n_keys, std::int64_t* first, std::int64_t* past) {
    std::vector<std::int64_t> runs;
    for (std::int64_t key = 0; key < n_keys;) {
      const std::int64_t id = ids[key * step];
      std::int64_t end = key + 1;
      while (end < n_keys && ids[end * step] == id) ++end;
      std::fill(first + key, first + end, key);
      std::fill(past + key, past + end, end);
      // Flipping the top bit keeps the order of unsigned numbers.
      runs.push_back(given.is_unsigned ? id ^ std::numeric_limits<std::int64_t>::min() : id);
      key = end;
    }
    if (std::adjacent_find(runs.begin(), runs.end(), std::greater_equal<>()) != runs.end())
      refuse_several(given, runs);
  }

  static void refuse_several(const integer_array& given, std::vector<std::int64_t>& runs) {
    std::sort(runs.begin(), runs.end());
    std::optional<std::int64_t> several;
    std::ptrdiff_t most = 1;
    for (auto run = runs.begin(); run != runs.end();) {
      const auto end = std::upper_bound(run, runs.end(), *run);
      if (end - run > 1 && !several) several = *run;
      most = std::max(most, end - run);
      run = end;
    }
    if (!several) return;
    const std::int64_t id =
        given.is_unsigned ? *several ^ std::numeric_limits<std::int64_t>::min() : *several;
    refuse("each document must be one run of document_ids, got " + text_of_integer(given, id) +
           " in " + text_of(most) + " runs");
  }
};

/// Numbers of keys, looked up at the key that each query is aligned with; 0 before the first key.
rows of_aligned(const rows& keys, const rows& aligned) {
  axes_of_rows lead = keys.extents;
  lead.back() = 1;
  rows found{broadcast(std::move(lead), aligned.extents), {}};
  const axes_of_rows& shape = found.extents;
  found.numbers.resize(count(shape));
  const axes_of_rows of_keys = strides_in(shape, keys.extents),
                     of_aligned = strides_in(shape, aligned.extents);
  const std::int64_t n = shape.back();
  std::int64_t* to = found.numbers.data();
  for (std::int64_t outer = 0; to != found.numbers.data() + found.numbers.size(); ++outer) {
    const std::int64_t* from = keys.numbers.data() + place(outer, shape, of_keys, 1);
    const std::int64_t* at = aligned.numbers.data() + place(outer, shape, of_aligned, 1);
    for (std::int64_t i = 0; i < n; ++i) *to++ = at[i] < 0 ? 0 : from[at[i]];
  }
  return found;
}

/// Refuses queries that are aligned with no key, and so have no document.
void check_document_queries(std::int64_t n_queries, std::int64_t offset, std::int64_t n_keys) {
  if (n_queries <= n_keys - std::max<std::int64_t>(offset, 0)) return;
  const std::string from =
      n_queries <= n_keys ? " queries from key " + text_of(offset) + " on and " : " queries and ";
  refuse("document_ids needs a key for each query, whose document the query is of, got " +
         text_of(n_queries) + from + text_of(n_keys) + " keys");
}

std::optional<std::int64_t> read_side(const char* name, std::int64_t extent) {
  if (extent < 0)
    refuse(std::string("window.") + name + " must be at least 0, or unbounded, got " +
           text_of(extent));
  // Larger than any number of keys.
  return extent > most_side ? std::nullopt : std::optional(extent);
}

}  // namespace

causal_alignment alignment_of(bool is_causal, causal_alignment causal, std::int64_t offset) {
  detail::check_enumerator("causal", causal, causal_alignment::offset);
  if (is_causal && causal == causal_alignment::bottom_right)
    refuse("is_causal means causal = top_left, got also causal = bottom_right");
  if (is_causal && causal == causal_alignment::offset)
    refuse("is_causal means causal = top_left, got also causal = offset");
  if (offset < -most_offset || offset > most_offset)
    refuse("causal_offset must be between -2^60 and 2^60, got " + text_of(offset));
  if (offset != 0 && causal != causal_alignment::offset)
    refuse("causal_offset goes with causal = offset, got " + text_of(offset) + " without it");
  return is_causal ? causal_alignment::top_left : causal;
}

key_intervals::key_intervals(const interval_options& options)
    : n_queries_(options.n_queries), n_keys_(options.n_keys) {
  const rows lengths = read_lengths(options);
  const causal_alignment causal = alignment_of(false, options.causal, options.causal_offset);
  const auto left = read_side("left", options.window.left);
  auto right = read_side("right", options.window.right);
  if (causal != causal_alignment::none) right = 0;
  if (causal == causal_alignment::bottom_right)
    offset_ = combine(lengths, one(n_queries_), std::minus<>());
  else
    offset_ = one(options.causal_offset);
  if (options.key_lengths) end_ = lengths;
  if (!left && !right && !options.document_ids) return;
  if (options.document_ids) {
    const std::int64_t last =
        causal == causal_alignment::bottom_right ? n_keys_ - n_queries_ : options.causal_offset;
    check_document_queries(n_queries_, last, n_keys_);
  }
  const rows own = aligned();
  const auto clamped = [](std::int64_t key, std::int64_t length) {
    return std::min(std::max<std::int64_t>(key, 0), length);
  };
  if (right)
    end_ = combine(own, lengths, [&](auto at, auto n) { return clamped(at + *right + 1, n); });
  if (left) begin_ = combine(own, lengths, [&](auto at, auto n) { return clamped(at - *left, n); });
  if (!options.document_ids) return;
  const documents keys(options);
  origin_ = of_aligned(keys.first, own);
  const auto larger = [](auto a, auto b) { return std::max(a, b); };
  const auto smaller = [](auto a, auto b) { return std::min(a, b); };
  begin_ = begin_ ? combine(*begin_, *origin_, larger) : *origin_;
  end_ = combine(of_aligned(keys.past, own), end_ ? *end_ : lengths, smaller);
}

rows key_intervals::aligned() const {
  return combine(offset_, ascending(0, n_queries_), std::plus<>());
}

rows key_intervals::positions() const {
  const rows own = aligned();
  return origin_ ? combine(own, *origin_, std::minus<>()) : own;
}

rows key_intervals::row_sizes() const {
  rows last = end_ ? *end_ : one(n_keys_);
  if (!origin_) return last;
  return combine(last, *origin_, [](auto a, auto b) { return std::max<std::int64_t>(a - b, 0); });
}

rows key_intervals::visible_keys() const {
  if (!begin_) return row_sizes();
  return combine(end_ ? *end_ : one(n_keys_), *begin_,
                 [](auto a, auto b) { return std::max<std::int64_t>(a - b, 0); });
}

rows key_intervals::distances() const {
  for (const std::int64_t n : {n_queries_, n_keys_}) count({&n, 1});  // so that the sum is right
  rows steps = ascending(0, std::max<std::int64_t>(n_queries_ + n_keys_ - 1, 0), -1);
  if (n_queries_ == 0) return steps;
  return combine(offset_, steps, [&](auto at, auto step) { return at + n_queries_ - 1 + step; });
}

std::int64_t key_intervals::reach() const {
  rows farthest;
  if (origin_) {
    const rows own = aligned();
    const rows left = combine(own, *begin_, std::minus<>());
    const rows right = combine(*end_, own, [](auto end, auto at) { return end - 1 - at; });
    farthest = combine(left, right, [](auto a, auto b) { return a + b < 0 ? -1 : std::max(a, b); });
  } else {
    farthest = distances();
    for (std::int64_t& each : farthest.numbers) each = each < 0 ? -each : each;
  }
  std::int64_t most = -1;
  for (const std::int64_t each : farthest.numbers) most = std::max(most, each);
  return most;
}

row_array<double> law_scales(const scale_law& law, const key_intervals& intervals,
                             const row_array<std::int64_t>* visible_keys, std::int64_t head_dim) {
  const std::int64_t least = law.least_n();
  const auto counts = [&]() -> rows {
    switch (law.meaning()) {
      case n_means::visible_keys:
        return visible_keys ? *visible_keys : intervals.visible_keys();
      case n_means::row_size:
        return intervals.row_sizes();
      case n_means::query_position:
      case n_means::query_position_plus_1:
      case n_means::query_position_plus_2:
        return combine(intervals.positions(), one(least), std::plus<>());
      default:
        return one(least);
    }
  }();
  // A row without keys has no meaningful scale: the least n keeps logarithms finite there.
  row_array<double> scales{counts.extents, {}};
  for (const std::int64_t n : counts.numbers)
    scales.numbers.push_back(static_cast<double>(std::max(n, least)));
  law.scales(scales.numbers, head_dim, scales.numbers);
  return scales;
}

}  // namespace attnscale
