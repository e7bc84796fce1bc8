// SPDX-License-Identifier: BSD-3-Clause
//
// Exports of the WebAssembly module, called by python/attnscale/_wasm/attnscale.mjs, which
// documents the arguments. Counts, addresses and flags of a call are doubles, which JavaScript
// writes as one Float64Array. The caller gives the memory for results. A refused argument ends the
// call in a trap; attnscale_status and attnscale_text then give the reason, and the instance must
// not be used again.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "attnscale/attention.hpp"
#include "attnscale/attention_weights.hpp"
#include "attnscale/experiments.hpp"
#include "attnscale/johnson_lindenstrauss.hpp"
#include "attnscale/scale_law.hpp"
#include "attnscale/solve_scale.hpp"
#include "attnscale/version.hpp"
#include "expected_rows.hpp"
#include "refusals.hpp"

#define ATTNSCALE_EXPORTED(name) __attribute__((export_name(#name))) name

namespace attnscale {
namespace {

int status = 0;
std::string text;

/// Stores a text and returns a pointer to it, the result of functions that return a text.
const char* answer(std::string with) {
  text = std::move(with);
  return text.c_str();
}

std::string joined(const auto& words) {
  std::string all;
  for (const auto& word : words) all.append(all.empty() ? "" : "\n").append(word);
  return all;
}

template <class T>
T* at(double address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

/// A count from JavaScript, which may be any number.
std::int64_t count_of(const char* name, double number) {
  if (!(number >= 0 && number <= 0x1p53 && number == std::floor(number)))
    detail::refuse(std::string(name) + " must be an integer of at least 0, got " +
                   detail::text_of(number));
  return static_cast<std::int64_t>(number);
}

/// A call, row-major: query (heads, query_rows, head_dim), of which the first n_queries rows of
/// each head are used; key and value (kv_heads, key_rows, ...) in the same way. NaN and address 0:
/// absent.
struct call {
  double is_double, heads, kv_heads, n_queries, n_keys, head_dim, value_dim, query_rows, key_rows;
  double query, key, value;     // addresses
  double alignment;             // as causal_alignment counts
  double left, right, softcap;  // NaN: open window on this side, no soft-cap
  double scale, scales, law;    // a number; address of one per row; address of a text

  strided_array matrix(double data, double n_heads, double rows, double stored, double dim) const {
    const element_type type = is_double ? element_type::float64 : element_type::float32;
    const std::int64_t h = count_of("heads", n_heads), n = count_of("n", rows),
                       all = count_of("rows", stored), d = count_of("dim", dim);
    return {at<void>(data), type, is_double ? 8 : 4, {h, n, d}, {all * d, d, 1}, 2};
  }

  attention_options options() const {
    attention_options found;
    found.causal = static_cast<causal_alignment>(alignment);
    if (!std::isnan(left)) found.window.left = count_of("window", left);
    if (!std::isnan(right)) found.window.right = count_of("window", right);
    found.enable_gqa = heads != kv_heads;
    if (!std::isnan(softcap)) found.softcap = softcap;
    if (!std::isnan(scale)) found.scale = scale;
    if (law) found.scale = at<const char>(law);
    if (scales) found.scale = of_rows(at<const double>(scales));
    return found;
  }

  dense_array<double> of_rows(const double* data) const {
    auto rows = dense_array<double>::from_shape({std::size_t(heads), std::size_t(n_queries)});
    std::copy_n(data, rows.size(), rows.data());
    return rows;
  }

  call_description description(const attention_options& options, bool with_value = true) const {
    strided_array values;
    if (value && with_value) values = matrix(value, kv_heads, n_keys, key_rows, value_dim);
    return {matrix(query, heads, n_queries, query_rows, head_dim),
            matrix(key, kv_heads, n_keys, key_rows, head_dim), values, options};
  }
};

/// Sums over the queries of weights (heads, n_queries, n_keys).
template <class T>
void add_received(const T* weights, const call_description& made, std::int64_t heads,
                  double* received) {
  const std::int64_t n = made.n_keys();
  for (std::int64_t head = 0; head < heads; ++head, received += n) {
    std::fill_n(received, n, 0.0);
    for (std::int64_t row = 0; row < made.n_queries(); ++row, weights += n)
      for (std::int64_t key = 0; key < n; ++key) received[key] += weights[key];
  }
}

run_options run_of(double samples, double seed) {
  return {.samples = count_of("samples", samples),
          .seed = static_cast<std::uint64_t>(count_of("seed", seed))};
}

std::vector<law_or_scale> laws_of(const char* lines) {
  std::vector<law_or_scale> found;
  for (std::string_view rest = lines; !rest.empty();) {
    const std::string_view first = rest.substr(0, rest.find('\n'));
    found.emplace_back(first);
    rest.remove_prefix(std::min(first.size() + 1, rest.size()));
  }
  return found;
}

/// Writes value and standard error of each entry's quantities, and returns their names.
const char* write(const experiment_result& found, double* out) {
  for (const estimate& each : found.estimates) *out++ = each.value, *out++ = each.standard_error;
  return answer(joined(found.quantities));
}

}  // namespace

void wasm::refused(int why, const char* what) {
  status = why;
  text = why == 2 ? "memory is short" : what;
  __builtin_trap();
}

extern "C" {

/// Returns an empty environment: the C library would ask the host for it, and end the program if
/// there is none.
char* getenv(const char*) { return nullptr; }

const char* ATTNSCALE_EXPORTED(attnscale_version)() { return ATTNSCALE_VERSION; }
int ATTNSCALE_EXPORTED(attnscale_status)() { return status; }
const char* ATTNSCALE_EXPORTED(attnscale_text)() { return text.c_str(); }
void* ATTNSCALE_EXPORTED(attnscale_allocate)(std::size_t bytes) { return operator new(bytes); }
void ATTNSCALE_EXPORTED(attnscale_free)(void* memory) { operator delete(memory); }

/// Names of the statistics in their order: a bit of `wanted` and an element of `rows` each.
const char* ATTNSCALE_EXPORTED(attnscale_statistics)() { return answer(joined(statistic_names)); }

/// Writes output, statistics (counts are int64), weights and the received weights of each key,
/// where their pointers are not null; received weights are summed from the weights.
void ATTNSCALE_EXPORTED(attnscale_attend)(const call* given, void* output, void* const* rows,
                                          void* weights, double* received) {
  const attention_options options = given->options();
  call_description made = given->description(options);
  if (output)
    made.set_output(given->matrix(reinterpret_cast<std::uintptr_t>(output), given->heads,
                                  given->n_queries, given->n_queries, given->value_dim));
  row_outputs into;
  statistic_set wanted{};
  for (const statistic_traits& each : statistic_table)
    if (void* const place = rows[detail::place_of(each.which)]) {
      into[each.which] = place;
      wanted = wanted | statistic_set{each.which};
    }
  if (output || into.any()) made.attend(into, wanted);
  if (!weights) return;
  write_weights(given->description(options, false), weights);  // values of unit vectors
  if (!received) return;
  const auto heads = static_cast<std::int64_t>(given->heads);
  if (given->is_double)
    add_received(static_cast<const double*>(weights), made, heads, received);
  else
    add_received(static_cast<const float*>(weights), made, heads, received);
}

/// Writes arrays (heads, n_queries, count) of the call's type.
void ATTNSCALE_EXPORTED(attnscale_entropy_curve)(const call* given, const double* scales, int count,
                                                 void* entropy, void* lse, void* mean,
                                                 void* variance) {
  const attention_options options = given->options();
  const call_description made = given->description(options);
  curve_problem problem;
  made.fill(problem);
  problem.scales.assign(scales, scales + count);
  for (const double scale : problem.scales) detail::check_finite("scales", scale);
  problem.entropy = entropy;
  problem.lse = lse;
  problem.mean = mean;
  problem.variance = variance;
  run(problem, made.how());
}

/// `sharing` 0: one scale per row, 1: per head, 2: for all rows. `target` has one entropy, or one
/// per result. `numbers` points to scale, entropy, lowest and highest, all in double; `flags` to
/// converged and feasible.
void ATTNSCALE_EXPORTED(attnscale_solve_scale)(const call* given, const double* target,
                                               int one_target, int sharing, double tolerance,
                                               double* const* numbers, bool* const* flags) {
  const attention_options options = given->options();
  const call_description made = given->description(options);
  const std::size_t n =
      std::size_t(sharing == 2 ? 1 : given->heads) * std::size_t(sharing ? 1 : given->n_queries);
  number_or_array<double> wanted(*target);
  if (!one_target) {
    auto each = dense_array<double>::from_shape({n});
    std::copy_n(target, n, each.data());
    if (sharing == 0) each.reshape({std::size_t(given->heads), std::size_t(given->n_queries)});
    wanted = number_or_array<double>(each);
  }
  solve_request request{wanted, tolerance};
  if (sharing) request.per = sharing == 1 ? scale_per::head : scale_per::all;
  check_solve(made, request);
  const bool narrow = !sharing && !given->is_double;
  std::vector<float> rows(narrow ? 3 * n : 0);
  std::vector<std::int64_t> iterations(n);
  solve_problem into;
  into.scale = numbers[0];
  void** const places[] = {&into.entropy, &into.lowest, &into.highest};
  for (std::size_t i = 0; i < 3; ++i)
    *places[i] = narrow ? static_cast<void*>(rows.data() + i * n) : numbers[i + 1];
  into.converged = flags[0];
  into.feasible = flags[1];
  into.iterations = iterations.data();
  run_solve(made, request, into);
  for (std::size_t i = 0; i < rows.size(); ++i) numbers[1 + i / n][i % n] = rows[i];
}

const char* ATTNSCALE_EXPORTED(attnscale_laws)() { return answer(joined(scale_law::names())); }

/// Returns the law's name, its spelling and the meaning of its n, one per line.
const char* ATTNSCALE_EXPORTED(attnscale_law)(const char* law) {
  const scale_law found = scale_law::parse(law);
  return answer(joined(std::vector<std::string>{std::string(found.name()), found.spelling(),
                                                std::string(name_of(found.meaning()))}));
}

void ATTNSCALE_EXPORTED(attnscale_law_scales)(const char* law, double* n, int count,
                                              double head_dim) {
  const std::span<double> all(n, std::size_t(count));
  scale_law::parse(law).scales(all, count_of("head_dim", head_dim), all);
}

/// Writes lse, entropy and concentration; head_dim 0: normal scores instead of keys on a sphere.
void ATTNSCALE_EXPORTED(attnscale_expected)(double n, double beta, double head_dim, double* out) {
  const wasm::row_averages found =
      wasm::expected_rows(n, beta, static_cast<int>(count_of("head_dim", head_dim)));
  out[0] = found.lse;
  out[1] = found.entropy;
  out[2] = found.concentration;
}

double ATTNSCALE_EXPORTED(attnscale_jl_min_dim)(double n, double eps, double failure, int chi) {
  const jl_tail tail = chi ? jl_tail::chi_square : jl_tail::relaxed;
  return static_cast<double>(jl_min_dim(n, {eps, failure, tail}));
}
double ATTNSCALE_EXPORTED(attnscale_jl_rule_of_thumb)(double n, double constant) {
  return jl_rule_of_thumb(n, constant);
}

/// Writes least, most, mean, variance and distortion of the ratios of squared distances, and for
/// each eps the fraction outside and its bound.
void ATTNSCALE_EXPORTED(attnscale_jl_distortion)(const float* points, double n, double dim,
                                                 double k, int kind, double seed, const double* eps,
                                                 int count, double* out) {
  jl_distortion_options options;
  options.k = count_of("k", k);
  options.matrix.kind = static_cast<projection_kind>(kind);
  options.matrix.from.key = static_cast<std::uint64_t>(count_of("seed", seed));
  options.eps.assign(eps, eps + count);
  const jl_distortion_result found =
      jl_distortion(points, count_of("n", n), count_of("dim", dim), options);
  for (const double each : {found.least, found.most, found.mean, found.variance, found.distortion})
    *out++ = each;
  for (const jl_share& each : found.shares) *out++ = each.outside, *out++ = each.outside_bound;
}

/// One law per line; `out` has room for value and error of each law's quantities, whose names are
/// returned. At most 8 quantities per law.
const char* ATTNSCALE_EXPORTED(attnscale_entropy_vs_length)(double n, double head_dim, int model,
                                                            const char* laws, double samples,
                                                            double seed, double* out) {
  entropy_options options;
  options.n = count_of("n", n);
  options.head_dim = count_of("head_dim", head_dim);
  options.model = static_cast<score_model>(model);
  options.law = laws_of(laws);
  return write(entropy_vs_length(options, run_of(samples, seed)), out);
}

const char* ATTNSCALE_EXPORTED(attnscale_dot_product_variance)(double head_dim, int components,
                                                               double query_mean, double key_mean,
                                                               double std, double samples,
                                                               double seed, double* out) {
  dot_product_options options;
  options.head_dim = count_of("head_dim", head_dim);
  options.components = static_cast<distribution>(components);
  options.query_mean = query_mean;
  options.key_mean = key_mean;
  options.std = std;
  return write(dot_product_variance(options, run_of(samples, seed)), out);
}
}

}  // namespace attnscale
