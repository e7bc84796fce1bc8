// SPDX-License-Identifier: BSD-3-Clause
//
// Contents of an XLA call in the core's form: arrays by name, and options by name.
#pragma once

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnscale/detail/strided_array.hpp"
#include "attnscale/problem.hpp"
#include "xla_abi.hpp"

namespace attnscale::bindings::xla {

inline element_type element_type_of(int type) {
  switch (type) {
    case float64:
      return element_type::float64;
    case float16:
      return element_type::float16;
    case bfloat16:
      return element_type::bfloat16;
    default:
      return element_type::float32;  // masks and counts, whose type the reader knows
  }
}

inline std::ptrdiff_t size_of(int type) {
  switch (type) {
    case boolean:
      return 1;
    case float16:
    case bfloat16:
      return 2;
    case int64:
    case float64:
      return 8;
    case int32:
    case uint32:
    case float32:
      return 4;
    default:
      throw std::invalid_argument("attnscale has no arrays of XLA's type " + std::to_string(type));
  }
}

/// The caller's array in row-major order, possibly absent.
class array {
 public:
  array() = default;
  explicit array(const buffer& given) : given_(&given) {}

  explicit operator bool() const { return given_ != nullptr; }
  int type() const { return given_->type; }
  void* data() const { return given_->data; }
  extents shape() const { return {given_->extents, given_->extents + given_->rank}; }
  std::int64_t count() const { return count_entries(shape()); }

  /// In the core's form; `swapped`: with axes (..., n, heads, dim) instead of (..., heads, n, dim).
  strided_array matrix(bool swapped = false) const {
    if (!given_) return {};
    extents sizes = shape(), strides = row_major(sizes);
    if (swapped && sizes.size() > 2) {
      const std::size_t n = sizes.size();
      std::swap(sizes[n - 3], sizes[n - 2]);
      std::swap(strides[n - 3], strides[n - 2]);
    }
    return {data(), element_type_of(type()), size_of(type()), sizes, strides, 2};
  }

  /// One number per distance, n_queries - 1 - i + j, as a matrix of (i, j).
  strided_array matrix_of_distances(std::int64_t n_queries, std::int64_t n_keys) const {
    if (!given_) return {};
    extents sizes = shape(), strides = row_major(sizes);
    sizes.back() = n_queries;
    sizes.push_back(n_keys);
    strides.back() = -1;
    strides.push_back(1);
    const auto* first = static_cast<const char*>(data()) + (n_queries - 1) * size_of(type());
    return {first, element_type_of(type()), size_of(type()), sizes, strides, 2};
  }

 private:
  const buffer* given_ = nullptr;
};

/// One number per row, (..., heads, n_queries or 1), as 64-bit numbers for the core. JAX has 64-bit
/// numbers only if configured, so they may also be narrower, or given as their bits: pairs of
/// uint32, with the last axis twice as long.
template <class Number>
class rows_of {
 public:
  rows_of() = default;

  explicit rows_of(const array& given) { read(given); }
  void read(const array& given) {
    if (!given) return;
    extents shape = given.shape();
    if (given.type() == uint32) shape.back() /= 2;
    numbers_.resize(static_cast<std::size_t>(count_entries(shape)));
    if (given.type() == uint32 || size_of(given.type()) == sizeof(Number)) {
      if (!numbers_.empty())
        std::memcpy(numbers_.data(), given.data(), numbers_.size() * sizeof(Number));
    } else {
      widen(given);
    }
    rows_ = {numbers_.data(), element_type::float64, sizeof(Number), shape, row_major(shape), 1};
  }

  rows_of(const rows_of&) = delete;
  rows_of& operator=(const rows_of&) = delete;

  explicit operator bool() const { return static_cast<bool>(rows_); }
  const std::vector<Number>& numbers() const { return numbers_; }
  const strided_array& rows() const { return rows_; }
  std::ptrdiff_t stride() const { return rows_.stride(1); }
  const Number* at(const extents& index, const extents& shape) const {
    return static_cast<const Number*>(rows_.at(index, shape));
  }

 private:
  void widen(const array& given) {
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      if (given.type() == int32)
        numbers_[i] = static_cast<Number>(static_cast<const std::int32_t*>(given.data())[i]);
      else
        numbers_[i] = static_cast<Number>(static_cast<const float*>(given.data())[i]);
    }
  }

  std::vector<Number> numbers_;
  strided_array rows_;
};

/// Arguments and results by name, and the options of a call.
class call_reader {
 public:
  explicit call_reader(const call_frame& frame) : options_(frame.options) {
    read_names("arguments", frame.arguments, arguments_);
    read_names("results", frame.results, results_);
  }

  array argument(std::string_view name) const { return find(arguments_, name); }
  array result(std::string_view name) const { return find(results_, name); }
  const std::map<std::string, array, std::less<>>& arguments() const { return arguments_; }
  const std::map<std::string, array, std::less<>>& results() const { return results_; }

  std::string text_option(std::string_view name) const {
    const auto* found = static_cast<const text*>(option(name, string_attribute));
    return {found->data, found->length};
  }
  double number(std::string_view name) const {
    return *static_cast<const double*>(scalar_option(name, float64));
  }
  std::int64_t integer(std::string_view name) const {
    return *static_cast<const std::int64_t*>(scalar_option(name, int64));
  }
  execution how() const { return {static_cast<int>(integer("num_threads")), nullptr, nullptr}; }

 private:
  using arrays = std::map<std::string, array, std::less<>>;

  static array find(const arrays& given, std::string_view name) {
    const auto found = given.find(name);
    return found == given.end() ? array() : found->second;
  }

  void read_names(std::string_view option_name, const buffers& given, arrays& into) const {
    const std::string names = text_option(option_name);
    std::size_t start = 0;
    for (std::int64_t i = 0; i < given.count; ++i) {
      const std::size_t end = std::min(names.find(' ', start), names.size());
      into.emplace(names.substr(start, end - start), *static_cast<const buffer*>(given.items[i]));
      start = end + 1;
    }
  }

  const void* scalar_option(std::string_view name, int type) const {
    const auto* found = static_cast<const scalar*>(option(name, scalar_attribute));
    if (found->type != type)
      throw std::invalid_argument("option " + std::string(name) + " of the call has another type");
    return found->value;
  }

  const void* option(std::string_view name, int kind) const {
    for (std::int64_t i = 0; i < options_.count; ++i) {
      const text& found = *options_.names[i];
      if (std::string_view(found.data, found.length) == name && options_.kinds[i] == kind)
        return options_.values[i];
    }
    throw std::invalid_argument("the call has no option " + std::string(name));
  }

  const attributes& options_;
  arrays arguments_, results_;
};

}  // namespace attnscale::bindings::xla
