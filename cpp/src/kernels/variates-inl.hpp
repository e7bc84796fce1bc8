// SPDX-License-Identifier: BSD-3-Clause
//
// From random bits to standard variates. Every level does the same correctly rounded operations
// (+ - * / sqrt) in the same order, so the numbers are the same everywhere; SSE2 has no fused
// multiply-add and could imitate one only with many operations, so no level uses it here.
#pragma once

namespace {

/// The unsigned integer as wide as T.
template <class T>
struct unsigned_of;
template <>
struct unsigned_of<float> {
  using type = uint32_t;
};
template <>
struct unsigned_of<double> {
  using type = uint64_t;
};
template <class T>
using bits_t = typename unsigned_of<T>::type;

template <class T, int N>
ATTNSCALE_INLINE vec<T> polynomial(vec<T> x, const T (&c)[N]) {
  vec<T> sum = broadcast(c[N - 1]);
#pragma GCC unroll 16
  for (int k = N - 2; k >= 0; --k) sum = sum * x + broadcast(c[k]);
  return sum;
}

/// Minimax polynomials (Remez in 60 digits; see docs/explanation/random.md):
///   log: (2 atanh(s) / s - 2) / s^2 in s^2, |s| <= 0.172; relative error of 2 atanh 8e-10, 1e-18
///   sine, cosine of t pi/4 for |t| <= 1: sin / t and (cos - 1) / t^2 in t^2; 3e-9, 3e-18
///   quarter: sin(t pi/2) / t in t^2; 5e-9
template <class T>
struct variate_terms;

template <>
struct variate_terms<float> {
  static constexpr float log[3] = {0x1.55557ap-1f, 0x1.995ed0p-2f, 0x1.31e0dep-2f};
  static constexpr float sine[4] = {0x1.921fb6p-1f, -0x1.4abbbap-4f, 0x1.465e92p-9f,
                                    -0x1.2d9302p-15f};
  static constexpr float cosine[4] = {-0x1.3bd3ccp-2f, 0x1.03c1dep-6f, -0x1.55c5e0p-12f,
                                      0x1.d9d57ep-19f};
  static constexpr float quarter[5] = {0x1.921fb6p+0f, -0x1.4abbc2p-1f, 0x1.4668b0p-4f,
                                       -0x1.324ccap-8f, 0x1.3daff6p-13f};
  static constexpr float unit = 0x1p-32f;      // of all bits, as a number in [0, 1)
  static constexpr int mantissa = 23;          // bits
  static constexpr uint32_t one = 0x3F800000;  // bits of 1
  static constexpr uint32_t root_half = 0x3F3504F3;
  static constexpr float magic = 0x1p23f;
  static constexpr float bias = 127;
};

template <>
struct variate_terms<double> {
  static constexpr double log[7] = {
      0x1.5555555555592p-1, 0x1.999999997fee9p-2, 0x1.24924941e0c27p-2, 0x1.c71c52164caacp-3,
      0x1.74663c53763f6p-3, 0x1.39a1fb9d939f5p-3, 0x1.2f02e5a4c4badp-3};
  static constexpr double sine[7] = {
      0x1.921fb54442d18p-1,  -0x1.4abbce625be41p-4,  0x1.466bc67758700p-9, -0x1.32d2cce2d5360p-15,
      0x1.50782fca38b8dp-22, -0x1.e30063a029a68p-30, 0x1.e3eed5ce53e68p-38};
  static constexpr double cosine[7] = {
      -0x1.3bd3cc9be45dep-2,  0x1.03c1f081b5aaep-6,  -0x1.55d3c7e3c9280p-12, 0x1.e1f5068367b1dp-19,
      -0x1.a6d1ec7e0b6bep-26, 0x1.f9cc40ac9a543p-34, -0x1.b263c34660ec1p-42};
  static constexpr double unit = 0x1p-64;
  static constexpr int mantissa = 52;
  static constexpr uint64_t one = 0x3FF0000000000000;
  static constexpr uint64_t root_half = 0x3FE6A09E667F3BCD;
  static constexpr double magic = 0x1p52;
  static constexpr double bias = 1023;
};

/// -log(y + rest) for y > 0 normal and |rest| below half a unit in the last place of y:
/// y = m 2^k with sqrt(1/2) <= m < sqrt(2), log m = 2 atanh(s), s = (m - 1) / (m + 1).
template <class T>
ATTNSCALE_INLINE vec<T> minus_log(vec<T> y, vec<T> rest) {
  using terms = variate_terms<T>;
  using bits = bits_t<T>;
  const vec<bits> y_bits = as_bits(y), one = broadcast(terms::one);
  const vec<bits> shifted = y_bits + broadcast(static_cast<bits>(terms::one - terms::root_half));
  const vec<bits> exponent = shifted >> terms::mantissa;
  const vec<T> m = from_bits(y_bits - (exponent << terms::mantissa) + one);
  const vec<T> magic = broadcast(terms::magic);
  const vec<T> k = from_bits(exponent | as_bits(magic)) - broadcast(terms::magic + terms::bias);
  const vec<T> f = (m - broadcast(T(1))) + rest;
  const vec<T> s = f / (f + broadcast(T(2)));
  const vec<T> w = s * s;
  const vec<T> log_m = s * (w * polynomial(w, terms::log) + broadcast(T(2)));
  return k * broadcast(T(-0.69314718055994530942)) - log_m;
}

/// A uniform number and what is lost when it is close to 1: value + rest.
template <class T>
struct open_unit {
  vec<T> value, rest;
};

/// U = (bits + 1/2) unit in (0, 1), where bits are read as signed and a negative number stands for
/// its distance from 1: both ends have the full precision of T.
template <class T>
ATTNSCALE_INLINE open_unit<T> uniform_of(vec<bits_t<T>> b, T half) {
  const vec<T> x = (signed_to_float(b) + broadcast(half)) * broadcast(variate_terms<T>::unit);
  const vec<T> end = pick(b, broadcast(T(0)), broadcast(T(1)));
  const vec<T> value = end + x;
  return {value, x - (value - end)};
}

/// A standard exponential variate, -log U.
template <class T>
ATTNSCALE_INLINE vec<T> exponential(vec<bits_t<T>> b, T half = T(0.5)) {
  const open_unit<T> u = uniform_of<T>(b, half);
  return minus_log(u.value, u.rest);
}

template <class T>
struct normal_pair {
  vec<T> x, y;
};

/// Box and Muller (1958): radius sqrt(-2 log U) from b, angle from c. The top bit of c is the sign
/// of both, the next one exchanges them, and the rest is an angle in (-pi/4, pi/4).
template <class T>
ATTNSCALE_INLINE normal_pair<T> standard_normals(vec<bits_t<T>> b, vec<bits_t<T>> c) {
  using terms = variate_terms<T>;
  using bits = bits_t<T>;
  const vec<T> half_square = exponential<T>(b);
  const vec<bits> sign = c & broadcast(static_cast<bits>(bits(1) << (8 * sizeof(T) - 1)));
  const vec<bits> radius = as_bits(xsimd::sqrt(half_square + half_square)) ^ sign;
  const vec<T> t = signed_to_float((c << 2) | broadcast(bits(2))) * broadcast(2 * terms::unit);
  const vec<T> z = t * t;
  const vec<T> sine = t * polynomial(z, terms::sine);
  const vec<T> cosine = z * polynomial(z, terms::cosine) + broadcast(T(1));
  const vec<bits> exchange = c << 1;
  const vec<T> r = from_bits(radius);
  return {r * pick(exchange, cosine, sine), r * pick(exchange, sine, cosine)};
}

/// Element vectors of a group: word w of 16 blocks for float, two words for double.
ATTNSCALE_INLINE vec<uint32_t> slot_bits(const uint32_t* words, int slot, int lane, float) {
  return load(words + group_blocks * slot + lane);
}
ATTNSCALE_INLINE vec<uint64_t> slot_bits(const uint32_t* words, int slot, int lane, double) {
  const uint32_t* const low = words + 2 * group_blocks * slot + lane;
  return load_widened(low) | (load_widened(low + group_blocks) << 32);
}

}  // namespace
