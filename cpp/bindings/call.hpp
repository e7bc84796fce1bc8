// SPDX-License-Identifier: BSD-3-Clause
//
// _core.CoreCall: one attention call, checked by Python, in the core's form. It is made once, and
// then computes outputs, statistics, curves and scales.
#pragma once

#include <cstdint>

#include "arrays.hpp"
#include "attnscale/problem.hpp"

namespace attnscale::bindings {

class call {
 public:
  /// query, key      (..., heads, n, head_dim)
  /// attn_mask       (..., heads, n_queries, n_keys), boolean or additive, or None
  /// begin, end      int64, (..., heads, n_queries): the keys of a query; None: all of them
  /// form            None for scaled products, or ScoreForm of _call/distance.py by its names:
  ///                 tables (..., heads, n_queries, n_keys) of the compute type or None
  /// wide            arithmetic in double; else in float
  /// num_threads     0: the default
  call(const py::array& query, const py::array& key, const py::object& attn_mask,
       const py::object& begin, const py::object& end, const py::object& form, bool wide,
       int num_threads);

  /// Writes `output` (None: no output) and returns the named statistics, in their order. scale is a
  /// float, or a float64 array that broadcasts to (..., heads, n_queries); weights are those of
  /// softmax (None) or attnscale.normalizers.Rule; wide_rows: statistics are float64.
  py::tuple attend(const py::object& value, const py::object& output, const py::tuple& statistics,
                   const py::object& scale, const py::object& weights, bool wide_rows);

  /// Whether the last call of attend gave NaN rows.
  bool has_lost_rows() const { return has_lost_rows_; }

  /// Adds gradients to `into`, a dict of arrays of the compute type, which broadcast like their
  /// arguments: "query", "key" and "value" with unit column stride, "attn_mask", and
  /// "distance_scale" and "distance_bias" with the strides of tables of the distance; "bias" and
  /// "alpha" of the normalizer are contiguous float64 (..., heads, n_queries). saved and cotangents
  /// are dicts of statistics (saved also has "output"): rows (..., heads, n_queries), contiguous,
  /// of the compute type; statistics missing in saved are computed. Instead of gradients,
  /// "received" and "most_received" are the sum and the largest of the weights that each key gets:
  /// contiguous float64 (..., heads, n_keys), zero before. Returns the gradients of the scale and
  /// of the sink of each row (None without a sink).
  py::tuple gradients(const py::object& value, const py::object& grad_output, const py::dict& into,
                      const py::dict& saved, const py::dict& cotangents, const py::object& scale,
                      const py::object& weights) const;

  /// Returns (entropy, lse, mean, variance), each (..., heads, n_queries, scales).
  py::tuple curve(const py::array_t<double>& scales) const;

  /// Returns (entropy, lse, max_weight, first_weight), each (..., heads, n_queries, n_scales), and
  /// top, (..., heads, n_queries); see ladder_problem. bases: contiguous float64 (n_bases,), the
  /// same for all rows, or (..., heads, n_queries, n_bases).
  py::tuple ladder(const py::array_t<double>& bases, std::int64_t n_scales) const;

  /// For a call with queries and keys exchanged, and the results of `ladder` of the call itself:
  /// the sum of the weights that each key receives, float64 (..., heads, keys, n_scales).
  py::array received_ladder(const py::array_t<double>& bases, std::int64_t n_scales,
                            const py::array& max_weight, const py::array& top) const;

  /// Returns (scale, entropy, lowest, highest, converged, feasible, iterations) of each row, for
  /// targets that broadcast to (..., heads, n_queries).
  py::tuple solve(const py::array& target, double tolerance) const;

  /// Returns (index, score), each (..., heads, n_queries, k): the keys of each row with the largest
  /// scores, and these scores in float64. scale as for attend.
  py::tuple top_keys(const py::object& scale, std::int64_t k) const;

  /// Number of visible keys of each row, over the leading axes of attn_mask and intervals only.
  py::array count() const;

  /// Lets every query also see the keys [0, count) from now on; only attend and count use this.
  void show_leading(std::int64_t count) { arrays_.leading_keys = count; }

 private:
  struct weighted;

  numpy_array query_, key_, attn_mask_, begin_, end_;
  score_tables<numpy_array> tables_;
  call_arrays arrays_;  // the arrays above, in the core's form
  int num_threads_;
  bool has_lost_rows_ = false;
};

}  // namespace attnscale::bindings
