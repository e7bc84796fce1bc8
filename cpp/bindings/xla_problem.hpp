// SPDX-License-Identifier: BSD-3-Clause
//
// A call of attention as XLA carries it, in the core's form.
#pragma once

#include "attnscale/normalizer_traits.hpp"
#include "attnscale/problem.hpp"
#include "xla_arrays.hpp"

namespace attnscale::bindings::xla {

/// The arrays of a call of attention.
struct call_arrays {
  explicit call_arrays(const call_reader& call)
      : swapped(call.integer("swapped") != 0),
        query(call.argument("query").matrix(swapped)),
        key(call.argument("key").matrix(swapped)),
        value(call.argument("value").matrix(swapped)),
        mask(call.argument("attn_mask").matrix()),
        scale(call.argument("scale")),
        rule(normalizer_named(call.text_option("normalizer"))),
        number(call.argument(name_of(traits_of(rule).number))),
        begin(call.argument("begin")),
        end(call.argument("end")),
        one_scale(call.number("scale")) {
    const std::int64_t n_queries = query.extent(2), n_keys = key.extent(2);
    tables = {call.argument("distance_scale").matrix_of_distances(n_queries, n_keys),
              call.argument("distance_bias").matrix_of_distances(n_queries, n_keys)};
  }

  attention_head head(const extents& index, const extents& shape) const {
    attention_head head;
    head.query = query.at(index, shape);
    head.key = key.at(index, shape);
    head.value = value.at(index, shape);
    head.attn_mask = mask.at(index, shape);
    head.scale = scale ? scale.at(index, shape) : &one_scale;
    head.begin = begin.at(index, shape);
    head.end = end.at(index, shape);
    head.tables = {tables.distance_scale.at(index, shape), tables.distance_bias.at(index, shape)};
    head.number = number.at(index, shape);
    return head;
  }

  bool swapped;
  strided_array query, key, value, mask;
  rows_of<double> scale;
  normalizer rule;
  rows_of<double> number;
  rows_of<std::int64_t> begin, end;
  double one_scale;
  score_tables<strided_array> tables;
};

/// Everything of a problem but its heads and results.
void describe(const call_reader& call, const call_arrays& given, attention_problem& problem);

/// The shape (..., heads) of the call. An axis is 1 long where an array is the same for all of it,
/// and the query has at least as many heads as keys and values.
extents leading_shape(const call_reader& call, const call_arrays& given);

/// Refuses numbers that the caller could not look at before the call runs.
void check_numbers(const call_reader& call, const call_arrays& given);

/// Computes what xla_call.hpp says of attend() and gradients().
void run_attention(const call_reader& call);
void run_gradients(const call_reader& call);

}  // namespace attnscale::bindings::xla
