// SPDX-License-Identifier: BSD-3-Clause
//
// Simulated rows of attention: random scores, a tile at a time, into the streaming sums of a
// softmax at many multipliers. Sums run in 16 lanes with separate multiplications and additions, so
// that they have the same bits at every level.
#pragma once

#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/random/fill-inl.hpp"
#include "kernels/random/philox-inl.hpp"
#include "kernels/random/random.hpp"
#include "kernels/random/variates-inl.hpp"
#include "kernels/simd/exp-inl.hpp"
#include "kernels/simd/log-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/stop_signal.hpp"

namespace {

using attnscale::distribution;
using attnscale::detail::group_blocks;
using attnscale::detail::group_words;
using attnscale::detail::keys_of_group;
using attnscale::detail::purpose;
using attnscale::detail::random_source;
using attnscale::detail::score_kind;
using attnscale::detail::score_terms;
using attnscale::detail::simulated_row_block;
using attnscale::detail::simulated_sums;
using attnscale::detail::variate_block;

/// Keys per tile: a multiple of the keys of tile_groups groups.
constexpr int simulated_tile_keys = 512;

struct simulated_tile {
  float score[simulated_tile_keys];
  float value[simulated_tile_keys];
  int keys;
};

/// A coordinate of a uniform point on the unit sphere in d dimensions, from one block's two words.
/// Two coordinates have P(x^2 + y^2 > r^2) = (1 - r^2)^((d - 2) / 2), so r^2 = 1 - U^(2 / (d - 2)),
/// and their angle is uniform (compare Bailey 1994 for Student's t). The cosine of a uniform angle
/// is distributed as the sine of one in (-pi/2, pi/2).
ATTNSCALE_INLINE vec<float> sphere_coordinate(vec<uint32_t> b, vec<uint32_t> c, vec<float> power) {
  using terms = variate_terms<float>;
  const vec<float> t = clamp_exponent(-(exponential<float>(b) * power));
  const exp2_parts<float> e = split_exp2<two_roundings>(t);
  const vec<float> square = (broadcast(1.0f) - e.power) - e.power * (e.q * e.f);
  const vec<float> angle = signed_to_float(c | broadcast(1u)) * broadcast(2 * terms::unit);
  return xsimd::sqrt(square) * (angle * polynomial(angle * angle, terms::quarter));
}

/// Standard variates of `groups` groups.
inline void standard_scores(const uint32_t* words, int groups, const simulated_row_block& b,
                            float* out) {
  if (b.kind == score_kind::normal) {
    const variate_block standard{distribution::normal, 0, 1, 0, 0, 0, 0, 0};
    return normal_elements(words, groups, standard, out);
  }
  if (b.kind == score_kind::sign) {
    const vec<float> one = broadcast(1.0f);
    return map_elements(words, groups, out, [=](vec<uint32_t> w) { return pick(w, one, -one); });
  }
  const vec<float> power = broadcast(static_cast<float>(b.power));
  for (int pair = 0; pair < 2 * groups; ++pair, words += 2 * group_blocks, out += group_blocks)
    for (int lane = 0; lane < group_blocks; lane += width<float>)
      store(out + lane,
            sphere_coordinate(load(words + lane), load(words + group_blocks + lane), power));
}

class simulated_row_run {
 public:
  explicit simulated_row_run(simulated_row_block& block)
      : b_(block),
        keys_(block.source.from.key),
        lanes_(static_cast<double (*)[score_terms][group_blocks]>(block.scratch)) {}

  void run() {
    b_.most = -limits<float>::infinity;
    b_.least = limits<float>::infinity;
    for (int64_t k = 0; k < b_.n_factors; ++k) clear(k);
    for (int64_t at = 0; at < b_.keys && !b_.stop->requested(); at += simulated_tile_keys) {
      make_tile(at);
      find_extremes(at);
      for (int64_t k = 0; k < b_.n_factors; ++k) absorb_tile(k, at == 0);
    }
    for (int64_t k = 0; k < b_.n_factors; ++k) finish(k);
  }

 private:
  void clear(int64_t k) {
    for (auto& term : lanes_[k])
      for (double& lane : term) lane = 0;
    b_.sums[k] = {};
  }

  void make_tile(int64_t at) {
    const int64_t left = b_.keys - at;
    tile_.keys = left < simulated_tile_keys ? static_cast<int>(left) : simulated_tile_keys;
    make(b_.source.use, b_.first_group, at, keys_of_group(b_.kind), tile_.score,
         [this](const uint32_t* words, int groups, float* out) {
           standard_scores(words, groups, b_, out);
         });
    const vec<float> offset = broadcast(static_cast<float>(b_.offset));
    const vec<float> scale = broadcast(static_cast<float>(b_.scale));
    for (int i = 0; i < tile_.keys; i += width<float>)
      store(tile_.score + i, offset + scale * load(tile_.score + i));
    if (b_.n_factors == 0) return;
    const variate_block standard{distribution::normal, 0, 1, 0, 0, 0, 0, 0};
    make(purpose::values, b_.value_group, at, group_words, tile_.value,
         [&](const uint32_t* words, int groups, float* out) {
           normal_elements(words, groups, standard, out);
         });
  }

  /// Keys from index `at` of the tile, from groups of `size` keys; the last group is generated in
  /// full.
  template <class Make>
  void make(purpose use, uint64_t first_group, int64_t at, int size, float* out, Make&& from) {
    uint32_t words[tile_groups * group_words];
    const random_source source{b_.source.from, use};
    uint64_t group = first_group + static_cast<uint64_t>(at / size);
    int left = (tile_.keys + size - 1) / size;
    while (left > 0) {
      const int groups = left < tile_groups ? left : tile_groups;
      philox_words(source, keys_, group, groups, words);
      from(words, groups, out);
      out += groups * size;
      group += static_cast<uint64_t>(groups);
      left -= groups;
    }
  }

  /// Extremes of the random scores; then the needle replaces one. Scores up to the next multiple of
  /// 16 repeat one of the tile.
  void find_extremes(int64_t at) {
    const bool has_needle = at == 0 && b_.needle != nullptr;
    float* const s = tile_.score;
    if (has_needle && tile_.keys > 1) s[0] = s[1];
    for (int i = tile_.keys; i % group_blocks != 0; ++i) s[i] = s[0];
    top_ = b_.most, bottom_ = b_.least;
    if (!has_needle || tile_.keys > 1) widen_extremes();
    b_.most = top_, b_.least = bottom_;
    if (b_.needle != nullptr) {
      top_ = *b_.needle > top_ ? *b_.needle : top_;
      bottom_ = *b_.needle < bottom_ ? *b_.needle : bottom_;
    }
    if (has_needle) s[0] = *b_.needle;
  }

  void widen_extremes() {
    vec<float> most = load(tile_.score), least = most;
    for (int i = 0; i < tile_.keys; i += width<float>) {
      most = max_or(load(tile_.score + i), most);
      least = min_or(load(tile_.score + i), least);
    }
    float high[width<float>], low[width<float>];
    store(high, most);
    store(low, least);
    for (int r = 0; r < width<float>; ++r) {
      top_ = high[r] > top_ ? high[r] : top_;
      bottom_ = low[r] < bottom_ ? low[r] : bottom_;
    }
  }

  /// Next integer; a float of 2^23 or more (or NaN) is returned unchanged.
  static float round_up(float t) {
    if (!(t < 0x1p23f && t > -0x1p23f)) return t;
    const auto whole = static_cast<float>(static_cast<int32_t>(t));
    return whole < t ? whole + 1 : whole;
  }

  /// 2^n for an integer n <= 0.
  static double power_of_two(double n) {
    if (!(n >= -1022)) return 0;
    const uint64_t bits = static_cast<uint64_t>(1023 + static_cast<int64_t>(n)) << 52;
    double power;
    __builtin_memcpy(&power, &bits, sizeof power);
    return power;
  }

  void absorb_tile(int64_t k, bool first) {
    simulated_sums& sums = b_.sums[k];
    const float factor = b_.factors[k];
    const auto reference = static_cast<double>(round_up((factor < 0 ? bottom_ : top_) * factor));
    if (first || reference > sums.reference) {
      if (first)
        sums.reference = reference;
      else
        move_reference(k, reference);
      recenter(k);
    }
    add_scores(k);
  }

  /// Moves the center to the mean of the row so far, with this tile: the second moment keeps its
  /// digits. The tile is added for that and taken out again, a few times per row.
  void recenter(int64_t k) {
    simulated_sums& sums = b_.sums[k];
    auto& term = lanes_[k];
    double saved[score_terms][group_blocks];
    __builtin_memcpy(saved, term, sizeof saved);
    add_scores(k);
    finish(k);
    __builtin_memcpy(term, saved, sizeof saved);
    const double mean = sums.center + sums.score_first / sums.weight;
    const auto center = static_cast<double>(static_cast<float>(mean));
    const double step = center - sums.center;
    for (int i = 0; i < group_blocks; ++i) {
      term[5][i] += step * (step * term[0][i] - 2 * term[4][i]);
      term[4][i] -= step * term[0][i];
    }
    sums.center = center;
  }

  void move_reference(int64_t k, double reference) {
    const double shift = b_.sums[k].reference - reference, power = power_of_two(shift);
    b_.sums[k].reference = reference;
    auto& term = lanes_[k];
    for (int i = 0; i < group_blocks; ++i) term[1][i] += shift * term[0][i];
    for (int j = 0; j < score_terms; ++j)
      for (double& lane : term[j]) lane *= j == 2 ? power * power : power;
  }

  /// Adds terms in the order of simulated_sums: weight, first, squares, value, score_first,
  /// score_second.
  void add_scores(int64_t k) {
    constexpr int w = width<float>;
    float limit[group_blocks];
    const int whole = tile_.keys / group_blocks * group_blocks, rest = tile_.keys - whole;
    for (int i = 0; i < group_blocks; ++i)
      limit[i] = i < rest ? limits<float>::infinity : exp2_terms<float>::lowest;
    const vec<float> factor = broadcast(b_.factors[k]);
    const vec<float> reference = broadcast(static_cast<float>(b_.sums[k].reference));
    const vec<float> center = broadcast(static_cast<float>(b_.sums[k].center));
    for (int lane = 0; lane < group_blocks; lane += w) {
      vec<float> sum[score_terms];
      for (auto& each : sum) each = broadcast(0.0f);
      for (int i = lane; i < whole; i += group_blocks) {
        const vec<float> s = load(tile_.score + i);
        add_score(s * factor - reference, s - center, load(tile_.value + i), sum);
      }
      if (rest > 0) {
        const vec<float> s = load(tile_.score + whole + lane);
        const vec<float> t = min_or(s * factor - reference, load(limit + lane));
        add_score(t, s - center, load(tile_.value + whole + lane), sum);
      }
#pragma GCC unroll 6
      for (int j = 0; j < score_terms; ++j) add_to_double(lanes_[k][j] + lane, sum[j]);
    }
  }

  static ATTNSCALE_INLINE void add_score(vec<float> t, vec<float> x, vec<float> value,
                                         vec<float> (&sum)[score_terms]) {
    t = clamp_exponent(t);
    const vec<float> p = exp2<two_roundings>(t), px = p * x;
    sum[0] = sum[0] + p;
    sum[1] = sum[1] + p * t;
    sum[2] = sum[2] + p * p;
    sum[3] = sum[3] + p * value;
    sum[4] = sum[4] + px;
    sum[5] = sum[5] + px * x;
  }

  void finish(int64_t k) {
    double total[score_terms];
    for (int j = 0; j < score_terms; ++j) {
      total[j] = 0;
      for (const double lane : lanes_[k][j]) total[j] += lane;
    }
    simulated_sums& sums = b_.sums[k];
    sums.weight = total[0], sums.first = total[1], sums.squares = total[2];
    sums.value = total[3], sums.score_first = total[4], sums.score_second = total[5];
  }

  simulated_row_block& b_;
  philox_keys keys_;
  double (*lanes_)[score_terms][group_blocks];
  simulated_tile tile_;
  float top_, bottom_;
};

inline void simulate_row(simulated_row_block& block) noexcept { simulated_row_run(block).run(); }

}  // namespace
