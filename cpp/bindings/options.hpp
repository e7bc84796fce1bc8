// SPDX-License-Identifier: BSD-3-Clause
//
// What the calls share: masks, lengths, soft-cap and threads on their way into a problem.
#pragma once

#include "arrays.hpp"

namespace attnscale::bindings {

/// What every call shares besides its arrays: Visibility of _options.py, soft-cap and threads.
struct options {
  operand mask;         // (..., heads, n_queries, n_keys), boolean or additive
  operand key_lengths;  // (..., heads), int64
  visibility visible;
  double softcap;
  int num_threads;

  options(const py::object& mask_or_none, const py::object& lengths_or_none, std::int64_t left,
          std::int64_t right, bool bottom_right, double cap, int threads)
      : mask(mask_or_none, 2),
        key_lengths(lengths_or_none, 0),
        visible{left, right, bottom_right},
        softcap(cap),
        num_threads(threads) {}
};

inline mask_kind kind_of(const py::object& mask) {
  if (mask.is_none()) return mask_kind::none;
  const bool boolean = py::reinterpret_borrow<py::array>(mask).dtype().kind() == 'b';
  return boolean ? mask_kind::boolean : mask_kind::additive;
}

/// The parts of a problem that do not depend on the kind of call.
inline void describe(score_problem& problem, const options& how, mask_kind kind) {
  problem.mask_type = kind;
  if (kind == mask_kind::additive) problem.mask = how.mask.layout();
  if (kind == mask_kind::boolean)
    problem.mask = {element_type::float32, how.mask.stride(2), how.mask.stride(1)};
  problem.visible = how.visible;
  problem.softcap = how.softcap;
}

inline void describe(score_problem& problem, const operand& query, const operand& key) {
  problem.query = query.layout();
  problem.key = key.layout();
  problem.n_queries = query.extent(2);
  problem.n_keys = key.extent(2);
  problem.head_dim = query.extent(1);
}

/// Tables over (query, key) that all calls but a search for the scale take; of the compute type.
struct score_tables {
  operand factor, offset;  // (..., heads, n_queries, n_keys)

  score_tables(const py::object& factor_or_none, const py::object& offset_or_none)
      : factor(factor_or_none, 2), offset(offset_or_none, 2) {}

  void describe(score_problem& problem) const {
    problem.factor = factor.layout();
    problem.offset = offset.layout();
    for (const operand* each : {&factor, &offset})
      if (*each && each->layout().type != problem.compute)
        throw std::invalid_argument("a table of scores must have the type of the arithmetic");
  }
  void set(attention_head& head, const extents& index, const extents& shape) const {
    head.factor = factor.at(index, shape);
    head.offset = offset.at(index, shape);
  }
};

inline bool is_double(const operand& array) {
  return array && array.layout().type == element_type::float64;
}

inline std::int64_t key_length(const options& how, const extents& index, const extents& shape,
                               std::int64_t n_keys) {
  const auto* length = static_cast<const std::int64_t*>(how.key_lengths.at(index, shape));
  return length == nullptr ? n_keys : *length;
}

}  // namespace attnscale::bindings
