// SPDX-License-Identifier: BSD-3-Clause
//
// attention_options::distance_scale and distance_bias, and laws of the distance: tables that the
// core reads as matrices over (query, key), and the gradients of these tables. A table of n_queries
// + n_keys - 1 numbers with strides -1 and 1 is such a matrix, so that no memory of size n_queries
// * n_keys is needed.
#pragma once

#include <cstdint>
#include <optional>

#include "attnscale/detail/call_arrays.hpp"
#include "attnscale/options.hpp"

namespace attnscale::detail {

/// The law of the options, if its n is the distance of query and key.
const scale_law* law_of_distance(const attention_options& options);

/// Numbers of each distance in the compute type, as a matrix over (query, key).
struct table_matrix {
  row_array<double> wide{};  ///< (..., n_distances); in use: wide or narrow
  row_array<float> narrow{};
  strided_array matrix{};  ///< (..., n_queries, n_keys); absent without a table or pairs

  row_array<double> numbers() const;
};

/// Tables of a call at each of its distances, and their form for the core.
class distance_form {
 public:
  distance_form() = default;                     ///< no tables
  distance_form(const distance_form&) = delete;  // its matrices refer to its tables
  distance_form& operator=(const distance_form&) = delete;

  /// Reads the tables for the arrays of the call, and adds them to these; head_dim is at least 1.
  void read(const attention_options& options, const key_intervals& intervals, std::int64_t head_dim,
            call_arrays& arrays);

  score_tables<strided_array> zeros(const score_tables<bool>& wanted);
  score_tables<row_array<double>> gradients(const attention_options& options) const;

 private:
  using table_values = std::optional<row_array<double>>;

  table_values read_table(const char* name, const distance_table& table,
                          const extents& leading) const;
  row_array<double> look_up(const strided_array& table) const;
  void add_law(const scale_law& law, std::int64_t head_dim, table_values& scale,
               table_values& bias);
  void set_matrix(table_matrix& table, const table_values& values) const;
  void set_zeros(table_matrix& into, const table_matrix& like) const;
  row_array<double> gradient_of(const distance_table& table, const table_matrix& of_distances,
                                bool is_scale) const;

  std::int64_t n_queries_ = 0, n_keys_ = 0, reach_ = -1;
  element_type compute_ = element_type::float32;
  row_array<std::int64_t> distances_;
  bool has_law_ = false;
  row_array<double> of_law_;
  score_tables<bool> wanted_;
  score_tables<table_matrix> tables_, of_tables_;
};

}  // namespace attnscale::detail
