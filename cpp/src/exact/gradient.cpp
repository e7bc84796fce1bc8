// SPDX-License-Identifier: BSD-3-Clause
//
// run(gradient_problem): completes the forward pass, splits the problem into tasks (head, block of
// queries) and lets them add to shared rows in a fixed order (block_order.hpp), so that results are
// the same for any number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "attnscale/normalizer_traits.hpp"
#include "attnscale/problem.hpp"
#include "exact/block_order.hpp"
#include "exact/blocks.hpp"
#include "exact/forward_pass.hpp"
#include "exact/query_rescaling.hpp"
#include "exact/row_supports.hpp"
#include "exact/statistic_gradients.hpp"
#include "exact/statistics.hpp"
#include "kernels/gradient/block.hpp"
#include "kernels/numbers.hpp"
#include "machine/dispatch.hpp"
#include "machine/scratch.hpp"
#include "machine/thread_cost.hpp"
#include "machine/thread_pool.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// Smallest size of a rounded lse (in base 2) that no longer determines the weights of its row; the
/// sums of such a row are computed again.
double largest_lse(element_type compute) {
  return compute == element_type::float64 ? 0x1p30 : 0x1p10;
}

class gradient_run {
 public:
  gradient_run(const gradient_problem& problem, const execution& how)
      : forward_(problem, how),
        p_(forward_.problem()),
        kernels_(gradient_kernels_for(p_)),
        attend_(attend_kernels_for(p_)),
        traits_(traits_of(p_.rule)),
        blocks_((p_.n_queries + kernels_.block_rows - 1) / kernels_.block_rows),
        turns_(p_, blocks_) {}

  void operator()(const execution& how) {
    const std::vector<block_turn> order = turns_.in_order(asked_threads(how));
    parallel_for(static_cast<std::int64_t>(order.size()), how,
                 [&](std::int64_t task, const stop_signal& stop) {
                   const block_turn& mine = order[static_cast<std::size_t>(task)];
                   differentiate(mine, turns_.head(mine), stop);
                 });
  }

 private:
  void differentiate(const block_turn& mine, std::int64_t head, const stop_signal& stop) {
    // Last queries first: they see the most keys under a causal mask.
    const std::int64_t block = blocks_ - 1 - mine.index % blocks_;
    const std::int64_t first = block * kernels_.block_rows;
    const query_block rows(p_, head, first, kernels_.block_rows);
    waiting_turn waiting{turns_, mine, stop};
    if (has_support()) return differentiate_supports(rows, waiting);
    gradient_rows given;
    set_rows(rows, given, stop);
    if (!stop.requested()) differentiate_rows(rows, given, nullptr, waiting.hooks(), stop);
  }

  /// Differentiates rows with listed supports, as many at once as fit in memory.
  void differentiate_supports(const query_block& all, waiting_turn& waiting) const {
    const stop_signal& stop = waiting.stop;
    gradient_rows given{};
    // Kept between calls: fresh memory pages take longer than writing to them.
    auto& supports = kept_by_thread<row_supports>();
    supports.start(p_.n_keys);
    const std::int64_t end = all.first + all.count;
    for (std::int64_t at = all.first; at < end && !stop.requested(); at += supports.rows()) {
      list_supports(all.head, at, end, supports, given, stop);
      if (stop.requested()) return;
      const query_block rows(p_, all.head, at, supports.rows());
      turn_hooks turns = waiting.hooks();
      // Only the last part passes the turn on.
      if (at + rows.count < end) turns.pass = [](void*, std::int64_t) noexcept {};
      differentiate_rows(rows, given, &supports, turns, stop);
    }
    supports.shrink();
  }

  void differentiate_rows(const query_block& rows, const gradient_rows& given,
                          row_supports* supports, const turn_hooks& turns,
                          const stop_signal& stop) const {
    double d_scale[max_gradient_rows] = {}, product[max_gradient_rows] = {};
    double d_bias[max_gradient_rows] = {};
    const std::int64_t at = rows.head * p_.n_queries + rows.first;
    const bool of_bias = p_.d_number && traits_.number == row_number::bias;
    gradient_block b{
        scores_of(p_, rows, {0, p_.n_keys}, stop),
        scales_of(p_, rows),
        values_of(rows),
        {.rule = p_.rule,
         .alpha = traits_.solves_threshold ? p_.numbers.alpha : 1,
         .given = &given,
         .lists = supports ? supports->lists() : row_lists{},
         .terms = terms_,
         .centred = is_centred(rows.head),
         .at_top = p_.cotangents[statistic::max_score] || p_.cotangents[statistic::max_weight]},
        places_of(rows),
        {.d_scale = d_scale,
         .product = product,
         .d_bias = of_bias ? d_bias : nullptr,
         .d_alpha = p_.d_alpha ? p_.d_alpha + at : nullptr},
        turns};
    b.scratch = thread_scratch(kernels_.scratch(b));
    kernels_.run(b);
    if (of_bias) std::copy(d_bias, d_bias + rows.count, p_.d_number + at);
    if (p_.d_scale) std::copy(d_scale, d_scale + rows.count, p_.d_scale + at);
    if (p_.d_number && traits_.number == row_number::sink) write_sinks(rows, given, product);
  }

  gradient_values values_of(const query_block& rows) const {
    const attention_head& head = p_.heads[rows.head];
    const void* const grad = p_.gradients[rows.head].grad_output;
    gradient_values values{.value = {head.value, p_.value}};
    if (!grad) return values;
    values.output = {row_at(head.output, p_.output, rows.first), p_.output};
    values.grad_output = {row_at(grad, p_.grad_output, rows.first), p_.grad_output};
    values.value_dim = p_.value_dim;
    return values;
  }

  gradient_places places_of(const query_block& rows) const {
    const gradient_head& to = p_.gradients[rows.head];
    const auto at = [&](void* data, const matrix_layout& layout) -> gradient_place {
      return {row_at(data, layout, rows.first), layout.row, layout.column};
    };
    const auto table = [&](void* data) { return row_at(data, {p_.compute, -1, 1}, rows.first); };
    return {.d_query = at(to.query, p_.d_query),
            .d_key = {to.key, p_.d_key.row},
            .d_value = {to.value, p_.d_value.row},
            .shares_query = turns_.shares_query(rows.head),
            .d_attn_mask = at(to.attn_mask, p_.d_attn_mask),
            .d_distance_scale = table(to.tables.distance_scale),
            .d_distance_bias = table(to.tables.distance_bias),
            .received = to.received};
  }

  /// Whether the forward pass lists the keys with positive weight.
  bool has_support() const { return traits_.from_all_scores; }

  /// Whether the weights of a row are divided by their sum.
  bool is_centred(std::int64_t head) const {
    return traits_.divides && !(traits_.number == row_number::factor &&
                                p_.heads[static_cast<std::size_t>(head)].number);
  }

  /// Inputs of the kernel for each row: its lse and the terms of its statistics.
  void set_rows(const query_block& rows, gradient_rows& given, const stop_signal& stop) const {
    bool again = !traits_.is_exponential;
    for (int r = 0; r < rows.count; ++r) {
      const std::int64_t at = rows.head * p_.n_queries + rows.first + r;
      const double lse = forward_.at(statistic::lse, at) * log2e;
      set_reference(given, r, std::isinf(lse) ? 0 : lse);
      set_terms(at, given, r, std::isinf(lse));
      again = again || (std::isfinite(lse) && std::abs(lse) >= largest_lse(p_.compute));
    }
    if (again) sum_again(rows, given, stop);
  }

  void set_reference(gradient_rows& given, int r, double lse) const {
    given.reference[r] =
        p_.compute == element_type::float64 ? lse : static_cast<double>(static_cast<float>(lse));
    given.remainder[r] = lse - given.reference[r];
  }

  /// Terms of one row; empty: the row has no visible keys.
  void set_terms(std::int64_t at, gradient_rows& given, int r, bool empty) const {
    if (!forward_.has_cotangents()) {
      given.constant[r] = given.linear[r] = given.square[r] = given.weight[r] = 0;
      given.at_top[r] = 0;
      given.top[r] = -1;
      return;
    }
    row_statistics row = empty ? row_statistics{} : forward_.row(at);
    term_sums sum;
    for (const statistic_gradient& each : detail::statistic_gradients) each.add(row, sum);
    given.constant[r] = sum.constant;
    given.linear[r] = ln2 * sum.linear;  // the kernels have u in base 2
    given.square[r] = ln2 * ln2 * sum.square;
    given.weight[r] = sum.weight;
    given.at_top[r] = sum.at_top;
    given.top[r] = forward_.top(at);
  }

  /// Recomputes the reference and the sum of the weights of the forward pass, without rounding them
  /// to an lse.
  void sum_again(const query_block& rows, gradient_rows& given, const stop_signal& stop) const {
    for (int r = 0; r < rows.count && !stop.requested(); r += attend_.block_rows) {
      const auto most = static_cast<std::int64_t>(std::min(rows.count - r, attend_.block_rows));
      sum_rows_again({p_, rows.head, rows.first + r, most}, r, given, stop);
    }
  }

  void sum_rows_again(const query_block& rows, int at, gradient_rows& given,
                      const stop_signal& stop) const {
    row_sums sums;
    attend_block b = attend_again(rows, {.wanted = wanted_panels, .sums = &sums}, stop);
    b.scratch = thread_scratch(attend_.scratch(b));
    attend_.run(b);
    if (stop.requested()) return;
    if (!traits_.is_exponential) return kernels_.set_row_parameters(b, at, given);
    for (int r = 0; r < rows.count; ++r) set_exponential(rows, r, sums, at + r, given);
  }

  /// Lists the supports of at least one row from `first` on, and marks NaN rows.
  void list_supports(std::int64_t head, std::int64_t first, std::int64_t end,
                     row_supports& supports, gradient_rows& given, const stop_signal& stop) const {
    std::int64_t most = attend_.block_rows;
    supports.clear();
    while (first + supports.rows() < end && supports.most(most) > 0 && !stop.requested()) {
      const int before = supports.rows();
      const std::int64_t count = supports.most(std::min(most, end - first - before));
      const query_block rows(p_, head, first + before, count);
      row_report report;
      const support_taker taker = supports.taker();
      attend_block b =
          attend_again(rows, {.wanted = wanted_panels, .report = &report, .support = &taker}, stop);
      b.scratch = thread_scratch(attend_.scratch(b));
      supports.begin(rows.count);
      attend_.run(b);
      if (stop.requested()) return;
      const bool all = supports.end(rows.count);
      for (int r = before; r < supports.rows(); ++r)
        given.factor[r] = nan_or_one(report.top[r - before]);
      if (!all && supports.rows() > 0) return;
      if (!all) supports.clear(), most = std::max<std::int64_t>(1, rows.count / 2);
    }
  }

  /// NaN if the largest score of a row is NaN, else that score, which is -inf without keys.
  static double nan_or_one(double top) { return std::isnan(top) ? top : 1; }

  /// Forward pass of some rows, without output.
  attend_block attend_again(const query_block& rows, const block_sums& sums,
                            const stop_signal& stop) const {
    return attend_block_of(p_, rows, {0, p_.n_keys}, {}, sums, stop);
  }

  void set_exponential(const query_block& rows, int r, row_sums& sums, int at,
                       gradient_rows& given) const {
    if (!(sums.weight[r] > 0)) return;
    if (const double* sink = sink_of(p_, rows, r)) add_sink(sums, r, *sink);
    given.reference[at] = sums.reference[r];
    given.remainder[at] = std::log2(sums.weight[r]);
  }

  void write_sinks(const query_block& rows, const gradient_rows& given,
                   const double* product) const {
    for (int r = 0; r < rows.count; ++r) {
      const double u = *sink_of(p_, rows, r) * log2e - given.reference[r] - given.remainder[r];
      const double p = std::exp2(u);
      const double x = given.constant[r] - product[r] + given.linear[r] * u +
                       given.square[r] * u * u + given.weight[r] * p;
      p_.d_number[rows.head * p_.n_queries + rows.first + r] = p == 0 ? 0 : p * x;
    }
  }

  forward_pass forward_;
  const gradient_problem& p_;
  const gradient_kernels& kernels_;
  const attend_kernels& attend_;
  const normalizer_traits& traits_;
  std::int64_t blocks_;
  block_order turns_;
  gradient_terms terms_ = forward_.terms();
};

}  // namespace

void run(const gradient_problem& problem, const execution& how) {
  if (problem.heads.empty() || problem.n_queries == 0) return;
  check_scales(problem);
  // Five products, against two in the forward pass.
  const double nanoseconds = 2.5 * forward_nanoseconds(problem);
  query_rescaling rescaling(problem);
  if (!rescaling.needed()) return gradient_run(problem, how)(one_thread_if_short(how, nanoseconds));
  gradient_problem own = problem;
  rescaling.apply(own);
  gradient_run(own, how)(one_thread_if_short(how, nanoseconds));
  rescaling.undo(problem);
}

}  // namespace attnscale
