// SPDX-License-Identifier: BSD-3-Clause
//
// 16-bit storage: conversions, exhaustively where possible, and attention on it.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attnscale/attention.hpp"
#include "compare.hpp"
#include "kernels/simd/float16.hpp"
#include "machine/dispatch.hpp"

namespace test_float16 {

using attnscale::element_type;
using namespace testing;

namespace {

/// The value of a format with 1 sign bit, exponent_bits and mantissa_bits, by its definition.
double by_definition(std::uint16_t h, int exponent_bits, int mantissa_bits) {
  const int exponent = (h >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = h & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = h & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  const double leading = exponent == 0 ? 0 : 1;
  return sign *
         std::ldexp(leading + std::ldexp(mantissa, -mantissa_bits), std::max(exponent, 1) - bias);
}

/// Nearest value of the format to x (a float), ties to even; the neighbours are all values of the
/// format, in order of their bits.
std::uint16_t nearest(float x, int exponent_bits, int mantissa_bits) {
  const double magnitude = std::abs(static_cast<double>(x));
  const auto infinity_bits =
      static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  std::uint16_t low = 0, high = infinity_bits;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (by_definition(middle, exponent_bits, mantissa_bits) <= magnitude ? low : high) = middle;
  }
  const double below = by_definition(low, exponent_bits, mantissa_bits);
  // Above the largest number the next one is taken as if the exponent continued.
  const double step = below - by_definition(low - 1, exponent_bits, mantissa_bits);
  const double above =
      high == infinity_bits ? below + step : by_definition(high, exponent_bits, mantissa_bits);
  const bool up = magnitude - below > above - magnitude ||
                  (magnitude - below == above - magnitude && (low & 1));
  return static_cast<std::uint16_t>((up ? high : low) | (std::signbit(x) ? 0x8000 : 0));
}

bool same_float(float x, double y) {
  return y != y ? x != x : x == y && std::signbit(x) == std::signbit(y);
}

/// Every boundary between two neighbours, the floats next to it, and the neighbours themselves.
template <class Narrow>
int wrong_roundings(int exponent_bits, int mantissa_bits, Narrow narrow) {
  int wrong = 0;
  const int infinity_bits = ((1 << exponent_bits) - 1) << mantissa_bits;
  for (int h = 1; h < infinity_bits; ++h) {
    const double here = by_definition(static_cast<std::uint16_t>(h), exponent_bits, mantissa_bits);
    const double before =
        by_definition(static_cast<std::uint16_t>(h - 1), exponent_bits, mantissa_bits);
    const auto tie = static_cast<float>(before + (here - before) / 2);
    for (const float x :
         {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e38f), static_cast<float>(here)})
      wrong += narrow(x) != nearest(x, exponent_bits, mantissa_bits) ||
               narrow(-x) != nearest(-x, exponent_bits, mantissa_bits);
  }
  return wrong;
}

using halves = std::vector<std::uint16_t>;

halves narrowed(const xt::xarray<float>& x, element_type type) {
  halves result;
  for (const float value : x)
    result.push_back(type == element_type::float16 ? float16_from_float(value)
                                                   : bfloat16_from_float(value));
  return result;
}

xt::xarray<float> widened(const halves& x, element_type type, const shape_type& shape) {
  xt::xarray<float> result = xt::xarray<float>::from_shape(shape);
  for (std::size_t i = 0; i < x.size(); ++i)
    result.flat(i) =
        type == element_type::float16 ? float_from_float16(x[i]) : float_from_bfloat16(x[i]);
  return result;
}

/// One head stored in 16 bits: query, key and value rows, a causal mask, output in the same type.
struct half_call {
  element_type type;
  std::size_t n_queries, n_keys, head_dim, value_dim;
  halves query, key, value, output;
  std::vector<float> entropy;

  half_call(const inputs<float>& in, element_type t)
      : type(t),
        n_queries(in.query.shape(0)),
        n_keys(in.key.shape(0)),
        head_dim(in.query.shape(1)),
        value_dim(in.value.shape(1)),
        query(narrowed(in.query, t)),
        key(narrowed(in.key, t)),
        value(narrowed(in.value, t)),
        output(n_queries * value_dim),
        entropy(n_queries) {}

  void run(bool causal) {
    const auto rows = [&](std::size_t columns) {
      return attnscale::matrix_layout{type, static_cast<std::ptrdiff_t>(columns), 1};
    };
    attnscale::attention_problem p;
    p.n_queries = static_cast<std::int64_t>(n_queries);
    p.n_keys = static_cast<std::int64_t>(n_keys);
    p.head_dim = static_cast<std::int64_t>(head_dim);
    p.value_dim = static_cast<std::int64_t>(value_dim);
    p.query = p.key = rows(head_dim);
    p.value = p.output = rows(value_dim);
    p.end_row = 1;
    std::vector<std::int64_t> end(n_queries, p.n_keys);
    for (std::size_t i = 0; causal && i < n_queries; ++i)
      end[i] = std::min<std::int64_t>(static_cast<std::int64_t>(i) + 1, p.n_keys);
    p.statistics[attnscale::statistic::entropy] = entropy.data();
    const double scale = 0.3;
    attnscale::attention_head& head = p.heads.emplace_back();
    head.query = query.data();
    head.key = key.data();
    head.value = value.data();
    head.output = output.data();
    head.scale = &scale;
    head.end = end.data();
    attnscale::run(p);
  }

  /// This call on the numbers converted to float.
  attnscale::attention_statistics_result<float> as_float(bool causal) const {
    return attnscale::attention_statistics(
        widened(query, type, {n_queries, head_dim}), widened(key, type, {n_keys, head_dim}),
        widened(value, type, {n_keys, value_dim}), {.scale = 0.3, .is_causal = causal});
  }
};

}  // namespace

TEST_CASE("every float16 and bfloat16 widens to what its bits mean") {
  int wrong = 0;
  for (int h = 0; h < 65536; ++h) {
    const auto bits = static_cast<std::uint16_t>(h);
    wrong += !same_float(float_from_float16(bits), by_definition(bits, 5, 10));
    wrong += !same_float(float_from_bfloat16(bits), by_definition(bits, 8, 7));
  }
  CHECK(wrong == 0);
}

TEST_CASE("every float16 and bfloat16 survives the way to float and back") {
  int wrong = 0;
  for (int h = 0; h < 65536; ++h) {
    const auto bits = static_cast<std::uint16_t>(h);
    const float half = float_from_float16(bits), brain = float_from_bfloat16(bits);
    wrong += half == half ? float16_from_float(half) != bits
                          : !std::isnan(float_from_float16(float16_from_float(half)));
    wrong += brain == brain ? bfloat16_from_float(brain) != bits
                            : !std::isnan(float_from_bfloat16(bfloat16_from_float(brain)));
  }
  CHECK(wrong == 0);
}

TEST_CASE("narrowing rounds to nearest, ties to even, at every boundary") {
  CHECK(wrong_roundings(5, 10, float16_from_float) == 0);
  CHECK(wrong_roundings(8, 7, bfloat16_from_float) == 0);
  for (const float x : {65504.0f, 65519.0f, 65520.0f, 1e6f, 3.4e38f})
    CHECK(float16_from_float(x) == nearest(x, 5, 10));
  CHECK(bfloat16_from_float(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(std::isnan(float_from_float16(float16_from_float(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(float_from_bfloat16(bfloat16_from_float(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("16-bit storage is float32 arithmetic on the stored numbers") {
  const bool own = attnscale::detail::active_kernels().bfloat16 != nullptr;  // see test_bfloat16
  for (const element_type type : {element_type::float16, element_type::bfloat16})
    for (const std::size_t n_queries : {1, 2, 70}) {
      if (type == element_type::bfloat16 && own && n_queries > 8) continue;
      for (const std::size_t columns : {1, 7, 8, 15, 16, 17, 33})
        for (const bool causal : {false, true}) {
          CAPTURE(n_queries);
          CAPTURE(columns);
          half_call call(inputs<float>(n_queries, 200, columns, columns + 1), type);
          call.run(causal);
          const auto wanted = call.as_float(causal);
          CHECK(call.output == narrowed(*wanted.output, type));
          CHECK(call.entropy == std::vector<float>(wanted.entropy->begin(), wanted.entropy->end()));
        }
    }
}

TEST_CASE("16-bit storage: NaN and infinity reach the rows that see them") {
  const std::size_t bad_key = 50;
  for (const element_type type : {element_type::float16, element_type::bfloat16})
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
      for (const bool in_key : {false, true}) {
        half_call clean(inputs<float>(100, 200, 9, 5), type), changed = clean;
        halves& place = in_key ? changed.key : changed.value;
        const std::size_t columns = in_key ? 9 : 5;
        const std::uint16_t bits = narrowed(xt::xarray<float>(bad), type)[0];
        std::fill_n(place.begin() + static_cast<std::ptrdiff_t>(bad_key * columns), columns, bits);
        clean.run(true);
        changed.run(true);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < 100; ++i)
          for (std::size_t c = 0; c < 5; ++c) {
            const std::uint16_t seen = changed.output[i * 5 + c];
            const float x = widened({seen}, type, {1}).flat(0);
            wrong += i < bad_key ? seen != clean.output[i * 5 + c] : std::isfinite(x);
          }
        CHECK(wrong == 0);
      }
}

}  // namespace test_float16
