// SPDX-License-Identifier: BSD-3-Clause
#include "xla_call.hpp"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <new>
#include <unordered_set>

#include "attnscale/normalizer_traits.hpp"
#include "attnscale/problem.hpp"
#include "xla_arrays.hpp"

namespace attnscale::bindings::xla {
namespace {

// ---- what both calls are given ------------------------------------------------------------------

/// The arrays of a call of attention.
struct call_arrays {
  explicit call_arrays(const call_reader& call)
      : swapped(call.integer("swapped") != 0),
        query(call.argument("query").matrix(swapped)),
        key(call.argument("key").matrix(swapped)),
        value(call.argument("value").matrix(swapped)),
        mask(call.argument("attn_mask").matrix()),
        scale(call.argument("scale")),
        sink(call.argument("sink")),
        bias(call.argument("bias")),
        factor(call.argument("factor")),
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
    head.numbers = {sink.at(index, shape), bias.at(index, shape), factor.at(index, shape)};
    return head;
  }

  bool swapped;
  strided_array query, key, value, mask;
  rows_of<double> scale, sink, bias, factor;
  rows_of<std::int64_t> begin, end;
  double one_scale;
  score_tables<strided_array> tables;
};

/// Everything of a problem but its heads and results.
void describe(const call_reader& call, const call_arrays& given, attention_problem& problem) {
  problem.compute = call.integer("wide") ? element_type::float64 : element_type::float32;
  problem.query = given.query.layout();
  problem.key = given.key.layout();
  problem.value = given.value.layout();
  problem.n_queries = given.query.extent(2);
  problem.n_keys = given.key.extent(2);
  problem.head_dim = given.query.extent(1);
  problem.value_dim = given.value ? given.value.extent(1) : 0;
  const array mask = call.argument("attn_mask");
  problem.mask_type = !mask                    ? mask_kind::none
                      : mask.type() == boolean ? mask_kind::boolean
                                               : mask_kind::additive;
  problem.attn_mask = given.mask.layout();
  problem.scale_row = given.scale.stride();
  problem.begin_row = given.begin.stride();
  problem.end_row = given.end.stride();
  problem.form = {.softcap = call.number("softcap")};
  problem.tables = {given.tables.distance_scale.layout(), given.tables.distance_bias.layout()};
  problem.rule = normalizer_named(call.text_option("normalizer"));
  problem.numbers = {call.number("alpha"), call.integer("k"), call.number("eps")};
  problem.number_row = given.sink.stride() + given.bias.stride() + given.factor.stride();
}

/// The axes before the core's: of arrays of rows one is the core's, of others two.
int n_inner(std::string_view name) {
  for (const std::string_view matrix :
       {"query", "key", "value", "attn_mask", "output", "grad_output"})
    if (name == matrix) return 2;
  return 1;
}

/// The shape (..., heads) of the call. An axis is 1 long where an array is the same for all of it,
/// and the query has at least as many heads as keys and values.
extents leading_shape(const call_reader& call, const call_arrays& given) {
  extents shape;
  for (int axis = 1; axis <= given.query.n_leading(); ++axis)
    shape.insert(shape.begin(), given.query.leading_extent(axis));
  const auto widen = [&](const auto& arrays) {
    for (const auto& [name, each] : arrays) {
      const int inner = n_inner(name);
      const strided_array seen =
          each.matrix(given.swapped && inner == 2 && name != "attn_mask").with_inner(inner);
      for (int axis = 1; axis <= seen.n_leading(); ++axis) {
        std::int64_t& here = shape[shape.size() - static_cast<std::size_t>(axis)];
        if (here == 1) here = seen.leading_extent(axis);
      }
    }
  };
  widen(call.arguments());
  widen(call.results());
  return shape;
}

// ---- checks that take the numbers, which are not known before the call runs ------------------------

void check_finite(const array& given, const std::string& message) {
  if (!given || (given.type() != float32 && given.type() != float64)) return;
  const element_type type = element_type_of(given.type());
  for (std::int64_t i = 0; i < given.count(); ++i)
    if (!std::isfinite(detail::number_at(given.data(), type, i)))
      throw std::invalid_argument(message);
}

void check_lengths(const array& given, std::int64_t n_keys) {
  if (!given) return;
  for (const std::int64_t length : rows_of<std::int64_t>(given).numbers())
    if (length < 0 || length > n_keys)
      throw std::invalid_argument("key_lengths must be between 0 and the number of keys, " +
                                  std::to_string(n_keys) + ", got " + std::to_string(length));
}

void check_documents(const array& given) {
  if (!given || given.count() == 0) return;
  const rows_of<std::int64_t> rows(given);
  const std::vector<std::int64_t>& ids = rows.numbers();
  const auto n_keys = static_cast<std::size_t>(given.shape().back());
  for (std::size_t start = 0; start < ids.size(); start += n_keys) {
    std::unordered_set<std::int64_t> seen;
    for (std::size_t i = start; i < start + n_keys; ++i)
      if ((i == start || ids[i] != ids[i - 1]) && !seen.insert(ids[i]).second)
        throw std::invalid_argument("each document must be one run of document_ids, got " +
                                    std::to_string(ids[i]) + " in more runs");
  }
}

void check_numbers(const call_reader& call, const call_arrays& given) {
  check_finite(call.argument("scale"), "scale must be finite, got an array with NaN or infinity");
  for (const char* table : {"distance_scale", "distance_bias"})
    check_finite(call.argument(table),
                 std::string(table) +
                     " must be finite, got NaN or infinity; attn_mask and window hide keys");
  check_lengths(call.argument("key_lengths"), given.key.extent(2));
  check_documents(call.argument("document_ids"));
}

// ---- forward ----------------------------------------------------------------------------------------

/// Counts that the caller wants narrower than the core writes them.
class narrow_counts {
 public:
  std::int64_t* place(const array& wanted) {
    wanted_.push_back(wanted);
    counts_.emplace_back(static_cast<std::size_t>(wanted.count()));
    return counts_.back().data();
  }
  void write() const {
    for (std::size_t i = 0; i < counts_.size(); ++i)
      std::copy(counts_[i].begin(), counts_[i].end(),
                static_cast<std::int32_t*>(wanted_[i].data()));
  }

 private:
  std::vector<array> wanted_;
  std::vector<std::vector<std::int64_t>> counts_;
};

void run_attention(const call_reader& call) {
  const call_arrays given(call);
  check_numbers(call, given);
  attention_problem problem;
  describe(call, given, problem);
  narrow_counts counts;
  for (const auto& [name, each] : call.results())
    if (name != "output")
      problem.statistics[statistic_named(name)] =
          each.type() == int32 ? counts.place(each) : each.data();
  const strided_array output = call.result("output").matrix(given.swapped);
  problem.output = output.layout();
  const extents shape = leading_shape(call, given);
  problem.heads.reserve(static_cast<std::size_t>(count_entries(shape)));
  for_each_index(shape, [&](const extents& index) {
    attention_head& head = problem.heads.emplace_back(given.head(index, shape));
    head.output = const_cast<void*>(output.at(index, shape));
  });
  run(problem, {static_cast<int>(call.integer("num_threads")), nullptr, nullptr});
  counts.write();
}

// ---- backward ---------------------------------------------------------------------------------------

/// Rows (..., heads, n_queries) of the type that the core reads, all of them written out.
class full_rows {
 public:
  const void* place(const array& given, const extents& shape, std::int64_t n_queries) {
    if (given.shape() == detail::joined(shape, {n_queries}) && given.type() != int32)
      return given.data();
    if (given.type() == int32 || given.type() == int64)
      return repeat(rows_of<std::int64_t>(given), shape, n_queries, integers_);
    if (given.type() == float64)
      return repeat(rows_of<double>(given), shape, n_queries, doubles_);
    return repeat(rows_of<double>(given), shape, n_queries, floats_);
  }

 private:
  template <class From, class To>
  static const void* repeat(const rows_of<From>& rows, const extents& shape, std::int64_t n_queries,
                            std::vector<std::vector<To>>& into) {
    std::vector<To>& all = into.emplace_back();
    for_each_index(shape, [&](const extents& index) {
      const From* first = rows.at(index, shape);
      for (std::int64_t i = 0; i < n_queries; ++i)
        all.push_back(static_cast<To>(first[i * rows.stride()]));
    });
    return all.data();
  }

  std::vector<std::vector<std::int64_t>> integers_;
  std::vector<std::vector<double>> doubles_;
  std::vector<std::vector<float>> floats_;
};

/// Gradients of the numbers of rows; the caller's array has their sums over what it is the same for.
class row_gradient {
 public:
  row_gradient(const array& wanted, const extents& shape, std::int64_t n_queries)
      : wanted_(wanted), shape_(shape), n_queries_(n_queries) {
    numbers_.resize(static_cast<std::size_t>(count_entries(detail::joined(shape, {n_queries}))));
  }
  std::vector<double>& numbers() { return numbers_; }
  double* data() { return numbers_.data(); }

  void write() const {
    if (!wanted_) return;
    std::vector<double> sums(static_cast<std::size_t>(wanted_.count()));
    const extents sizes = wanted_.shape();
    const strided_array rows(sums.data(), element_type::float64, sizeof(double), sizes,
                             array::row_major(sizes), 1);
    std::size_t from = 0;
    for_each_index(shape_, [&](const extents& index) {
      auto* first = static_cast<double*>(const_cast<void*>(rows.at(index, shape_)));
      for (std::int64_t i = 0; i < n_queries_; ++i) first[i * rows.stride(1)] += numbers_[from++];
    });
    if (wanted_.type() == float64)
      std::copy(sums.begin(), sums.end(), static_cast<double*>(wanted_.data()));
    else
      std::transform(sums.begin(), sums.end(), static_cast<float*>(wanted_.data()),
                     [](double sum) { return static_cast<float>(sum); });
  }

 private:
  array wanted_;
  const extents& shape_;
  std::int64_t n_queries_;
  std::vector<double> numbers_;
};

/// The arrays that gradients are added to, zero at first.
struct gradient_arrays {
  explicit gradient_arrays(const call_reader& call, const call_arrays& given)
      : query(zeros(call, "query").matrix(given.swapped)),
        key(zeros(call, "key").matrix(given.swapped)),
        value(zeros(call, "value").matrix(given.swapped)),
        mask(zeros(call, "attn_mask").matrix()) {
    const std::int64_t n_queries = given.query.extent(2), n_keys = given.key.extent(2);
    tables = {zeros(call, "distance_scale").matrix_of_distances(n_queries, n_keys),
              zeros(call, "distance_bias").matrix_of_distances(n_queries, n_keys)};
  }

  gradient_head head(const void* grad_output, const extents& index, const extents& shape) const {
    const auto at = [&](const strided_array& each) {
      return const_cast<void*>(each.at(index, shape));
    };
    return {grad_output,
            at(query),
            at(key),
            at(value),
            at(mask),
            {at(tables.distance_scale), at(tables.distance_bias)}};
  }

  strided_array query, key, value, mask;
  score_tables<strided_array> tables;

 private:
  static array zeros(const call_reader& call, std::string_view name) {
    const array found = call.result(name);
    if (found)
      std::memset(found.data(), 0, static_cast<std::size_t>(found.count() * size_of(found.type())));
    return found;
  }
};

/// 0 for a query that holds a NaN and sees no key.
void clear_rows_without_keys(const gradient_problem& problem, std::vector<double>& gradient,
                             const execution& how) {
  if (std::all_of(gradient.begin(), gradient.end(), [](double x) { return std::isfinite(x); }))
    return;
  std::vector<std::int64_t> counts(gradient.size());
  count_visible(problem, counts.data(), how);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    if (counts[i] == 0) gradient[i] = 0;
}

/// Points the problem at what was saved of the forward pass, and at the gradients of statistics.
void read_rows(const call_reader& call, const extents& shape, full_rows& rows,
               gradient_problem& problem) {
  for (const std::string_view name : statistic_names) {
    const std::string text(name);
    const auto place = [&](const array& given) -> void* {
      return given ? const_cast<void*>(rows.place(given, shape, problem.n_queries)) : nullptr;
    };
    problem.statistics[statistic_named(name)] = place(call.argument("saved_" + text));
    problem.cotangents[statistic_named(name)] = place(call.argument("grad_" + text));
  }
}

void run_gradients(const call_reader& call) {
  const call_arrays given(call);
  const gradient_arrays into(call, given);
  const strided_array output = call.argument("output").matrix(given.swapped);
  const strided_array grad_output = call.argument("grad_output").matrix(given.swapped);
  gradient_problem problem;
  describe(call, given, problem);
  problem.output = output.layout();
  problem.grad_output = grad_output.layout();
  problem.d_query = into.query.layout();
  problem.d_key = into.key.layout();
  problem.d_value = into.value.layout();
  problem.d_attn_mask = into.mask.layout();
  const extents shape = leading_shape(call, given);
  full_rows rows;
  read_rows(call, shape, rows, problem);
  row_gradient scale(call.result("scale"), shape, problem.n_queries);
  row_gradient sink(call.result("sink"), shape, problem.n_queries);
  problem.d_scale = scale.data();
  if (given.sink) problem.d_sink = sink.data();
  for_each_index(shape, [&](const extents& index) {
    attention_head& head = problem.heads.emplace_back(given.head(index, shape));
    head.output = const_cast<void*>(output.at(index, shape));
    problem.gradients.push_back(into.head(grad_output.at(index, shape), index, shape));
  });
  const execution how{static_cast<int>(call.integer("num_threads")), nullptr, nullptr};
  run(problem, how);
  clear_rows_without_keys(problem, scale.numbers(), how);
  scale.write();
  sink.write();
}

// ---- the frame --------------------------------------------------------------------------------------

error* failure(const call_frame& frame, const char* message, error_code code) {
  error_arguments given{sizeof(error_arguments), nullptr, message, code};
  return frame.api->create_error(&given);
}

/// XLA runs foreign functions with denormal numbers taken for zero; the core's results do not depend
/// on the thread that they are computed on.
class usual_arithmetic {
 public:
  usual_arithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~usual_arithmetic() { std::fesetenv(&before_); }
  usual_arithmetic(const usual_arithmetic&) = delete;
  usual_arithmetic& operator=(const usual_arithmetic&) = delete;

 private:
  std::fenv_t before_;
};

/// Says that the handler is of the caller's version: what it reads of a frame is in all of them.
void answer_metadata(const call_frame& frame) {
  metadata& answer = *reinterpret_cast<metadata_extension*>(frame.extensions)->answer;
  const interface_version& version = frame.api->version;
  const bool is_known = version.major == 0;
  answer.version = {sizeof(interface_version), nullptr, 0, is_known ? version.minor : 1};
  answer.traits = 0;
  if (is_known && version.minor >= 2) answer.state_type = 0;
}

error* answer(const call_frame& frame, void (*work)(const call_reader&)) {
  if (frame.extensions && frame.extensions->kind == metadata_kind) {
    answer_metadata(frame);
    return nullptr;
  }
  try {
    if (frame.stage != execute_stage)
      return failure(frame, "attnscale is called to execute only", invalid_argument);
    const usual_arithmetic arithmetic;
    work(call_reader(frame));
    return nullptr;
  } catch (const std::bad_alloc&) {
    return failure(frame, "attnscale has not enough memory for this call", resource_exhausted);
  } catch (const std::invalid_argument& wrong) {
    return failure(frame, wrong.what(), invalid_argument);
  } catch (const std::exception& other) {
    return failure(frame, other.what(), internal_error);
  }
}

}  // namespace

error* attend(call_frame* frame) { return answer(*frame, run_attention); }
error* gradients(call_frame* frame) { return answer(*frame, run_gradients); }

}  // namespace attnscale::bindings::xla
