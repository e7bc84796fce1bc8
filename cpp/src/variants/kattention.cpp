// SPDX-License-Identifier: BSD-3-Clause
#include "attnscale/kattention.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

#include "attnscale/detail/refuse.hpp"

namespace attnscale {
namespace {

using detail::refuse;

void refuse_row_measures(const attention_options& options) {
  if (!options.scale.law()) return;
  const scale_law& law = *options.scale.law();
  const n_means meaning = law.meaning();
  if (meaning == n_means::row_entropy || meaning == n_means::row_gaps ||
      meaning == n_means::row_spread)
    refuse("scale='" + std::string(law.name()) +
           "' measures rows of dot products, and kattention's scores are others; pass a number, an "
           "array or a law of n");
}

/// Copies rows as T, with room for one more channel.
template <class T>
row_array<T> with_room(const strided_array& rows) {
  const extents leading = rows.leading();
  const std::int64_t dim = rows.extent(1);
  const matrix_layout layout = rows.layout();
  const extents shape = joined(leading, {rows.extent(2), dim + 1});
  row_array<T> wide{{shape.begin(), shape.end()}, {}};
  wide.numbers.resize(static_cast<std::size_t>(count_entries(shape)));
  T* out = wide.numbers.data();
  for_each_index(leading, [&](const extents& index) {
    const void* const head = rows.at(index, leading);
    for (std::int64_t i = 0; i < rows.extent(2); ++i, ++out)
      for (std::int64_t c = 0; c < dim; ++c)
        *out++ = static_cast<T>(
            detail::number_at(head, layout.type, i * layout.row + c * layout.column));
  });
  return wide;
}

/// Rows (q + b, 1).
template <class T>
row_array<T> with_one(const strided_array& query, const number_or_array<double>& bias) {
  row_array<T> wide = with_room<T>(query);
  const strided_array rows(wide, 2), steps(bias.rows(), 1);
  const extents leading = rows.leading();
  const std::int64_t dim = rows.extent(1) - 1;
  if (bias) check_broadcast("bias", steps, joined(leading, {dim}), "(..., heads, head_dim)");
  T* out = wide.numbers.data();
  for_each_index(leading, [&](const extents& index) {
    const auto* const step = static_cast<const double*>(steps.at(index, leading));
    for (std::int64_t i = 0; i < rows.extent(2); ++i, ++out) {
      for (std::int64_t c = 0; c < dim; ++c, ++out)
        if (bias) *out = static_cast<T>(static_cast<double>(*out) + step[c * steps.stride(1)]);
      *out = 1;
    }
  });
  return wide;
}

/// Rows (k, -|k|^2 / 2).
template <class T>
row_array<T> with_half_square(const strided_array& key) {
  row_array<T> wide = with_room<T>(key);
  const auto channels = static_cast<std::size_t>(wide.extents.back());
  for (std::size_t row = 0; row < wide.numbers.size(); row += channels) {
    T* const numbers = wide.numbers.data() + row;
    double square = 0;
    for (std::size_t c = 0; c + 1 < channels; ++c)
      square += static_cast<double>(numbers[c]) * static_cast<double>(numbers[c]);
    numbers[channels - 1] = static_cast<T>(-0.5 * square);
  }
  return wide;
}

}  // namespace

call_description kattention_call(const strided_array& query, const strided_array& key,
                                 const strided_array& value, const attention_options& options,
                                 const number_or_array<double>& bias) {
  refuse_row_measures(options);
  call_description call(query, key, value, options);
  const call_arrays& arrays = call.arrays();
  if (arrays.compute == element_type::float64)
    call.take_rows(with_one<double>(arrays.query, bias), with_half_square<double>(arrays.key));
  else
    call.take_rows(with_one<float>(arrays.query, bias), with_half_square<float>(arrays.key));
  return call;
}

}  // namespace attnscale
