// SPDX-License-Identifier: BSD-3-Clause
//
// run(top_keys_problem): the strongest keys of each row against sorted rows of scores.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "attnscale/problem.hpp"

namespace test_top_keys {

using attnscale::element_type;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class T>
constexpr element_type type_of = sizeof(T) == 8 ? element_type::float64 : element_type::float32;

/// One head of small whole numbers, whose products are exact: many scores are equal.
template <class T>
struct whole_numbers {
  std::int64_t queries, keys, dim;
  std::vector<T> query, key;
  std::vector<std::int64_t> end;  ///< keys that each row sees; empty: all
  double scale = 0.5;

  whole_numbers(std::int64_t n_queries, std::int64_t n_keys, std::int64_t head_dim, int largest)
      : queries(n_queries), keys(n_keys), dim(head_dim) {
    std::mt19937 engine(static_cast<unsigned>(n_keys + 7 * n_queries));
    std::uniform_int_distribution<int> number(-largest, largest);
    for (std::int64_t i = 0; i < n_queries * dim; ++i)
      query.push_back(static_cast<T>(number(engine)));
    for (std::int64_t i = 0; i < n_keys * dim; ++i) key.push_back(static_cast<T>(number(engine)));
  }

  double score(std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t c = 0; c < dim; ++c)
      sum += static_cast<double>(query[static_cast<std::size_t>(i * dim + c)]) *
             static_cast<double>(key[static_cast<std::size_t>(j * dim + c)]);
    return sum * scale;
  }

  /// The strongest keys of a row, of equal ones the lower first.
  std::vector<std::int64_t> strongest(std::int64_t i) const {
    const std::int64_t seen = end.empty() ? keys : end[static_cast<std::size_t>(i)];
    std::vector<std::int64_t> order(static_cast<std::size_t>(seen));
    std::iota(order.begin(), order.end(), 0);
    std::vector<double> scores;
    for (std::int64_t j = 0; j < seen; ++j) scores.push_back(score(i, j));
    std::sort(order.begin(), order.end(), [&](auto a, auto b) {
      const double x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
      return x > y || (x == y && a < b);
    });
    return order;
  }

  attnscale::top_keys_problem problem() const {
    attnscale::top_keys_problem p;
    p.n_queries = queries;
    p.n_keys = keys;
    p.head_dim = dim;
    p.query = p.key = {type_of<T>, static_cast<std::ptrdiff_t>(dim), 1};
    attnscale::attention_head head;
    head.query = query.data();
    head.key = key.data();
    head.scale = &scale;
    if (!end.empty()) head.end = end.data(), p.end_row = 1;
    p.heads.push_back(head);
    return p;
  }
};

/// Results of a call.
struct found {
  std::vector<std::int64_t> index;
  std::vector<double> score;

  template <class T>
  found(const whole_numbers<T>& in, std::int64_t k, const attnscale::execution& how = {})
      : index(static_cast<std::size_t>(in.queries * k), -7), score(index.size(), 7) {
    attnscale::top_keys_problem p = in.problem();
    p.k = k;
    p.index = index.data();
    p.score = score.data();
    attnscale::run(p, how);
  }
};

template <class T>
void check(const whole_numbers<T>& in, std::int64_t k) {
  CAPTURE(sizeof(T));
  CAPTURE(in.queries);
  CAPTURE(in.keys);
  CAPTURE(k);
  const found all(in, k);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < in.queries; ++i) {
    const std::vector<std::int64_t> wanted = in.strongest(i);
    for (std::int64_t n = 0; n < k; ++n) {
      const bool there = n < static_cast<std::int64_t>(wanted.size());
      const std::int64_t key = there ? wanted[static_cast<std::size_t>(n)] : -1;
      const double score = there ? in.score(i, key) : -infinity;
      const auto at = static_cast<std::size_t>(i * k + n);
      wrong += all.index[at] != key || all.score[at] != score;
    }
  }
  CHECK(wrong == 0);
  const found alone(in, k, {.num_threads = 1});
  CHECK(alone.index == all.index);
  CHECK(alone.score == all.score);
}

}  // namespace

TEST_CASE("top_keys: few and many rows, keys and places") {
  for (const std::int64_t queries : {1, 8, 9, 33, 70})
    for (const std::int64_t keys : {1, 5, 31, 192, 241, 1000})
      for (const std::int64_t k : {1, 3, 64, 130, 400}) {
        check(whole_numbers<float>(queries, keys, 5, 3), k);
        check(whole_numbers<double>(queries, keys, 17, 3), k);
      }
}

TEST_CASE("top_keys: of equal scores the lower key, with zero keys and scales of every sign") {
  for (const std::int64_t queries : {2, 40}) {
    check(whole_numbers<float>(queries, 3000, 8, 0), 70);
    for (const double scale : {-0.25, 0.0}) {
      whole_numbers<float> in(queries, 1500, 8, 1);
      in.scale = scale;
      check(in, 70);
    }
  }
}

TEST_CASE("top_keys: rows that see part of the keys, and none") {
  for (const std::int64_t queries : {6, 70}) {
    whole_numbers<float> in(queries, 700, 8, 4);
    for (std::int64_t i = 0; i < queries; ++i) in.end.push_back(i * 700 / queries);
    check(in, 20);
  }
}

TEST_CASE("top_keys: ranges of keys are merged") {
  check(whole_numbers<float>(3, 70000, 4, 2), 50);
  check(whole_numbers<float>(1, 40000, 4, 40), 9000);
}

TEST_CASE("top_keys: a call can be interrupted") {
  const whole_numbers<float> in(64, 1, 16, 3);
  std::vector<std::int64_t> index(64 * 8);
  std::vector<double> score(64 * 8);
  attnscale::top_keys_problem p = in.problem();
  p.key.row = 0;  // one key many times: minutes of work
  p.n_keys = std::int64_t{1} << 31;
  p.k = 8;
  p.index = index.data();
  p.score = score.data();
  CHECK_THROWS_AS(attnscale::run(p, {.interrupted = [](void*) { return true; }}),
                  attnscale::interrupted);
}

}  // namespace test_top_keys
