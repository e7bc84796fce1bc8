// SPDX-License-Identifier: BSD-3-Clause
#include "experiments/sparsity_rows.hpp"

#include <utility>

#include "attnscale/detail/refuse.hpp"
#include "attnscale/normalizer_traits.hpp"
#include "attnscale/problem.hpp"

namespace attnscale::detail {
namespace {

constexpr statistic reported[] = {statistic::support, statistic::entropy, statistic::concentration,
                                  statistic::max_weight};

/// Name of a normalizer with its numbers: entmax(alpha=1.5), softmax(sink=0).
std::string name_of(const normalizer_choice& choice) {
  const normalizer_traits& traits = traits_of(choice.rule);
  std::string name(traits.name);
  if (traits.solves_threshold) return name + "(alpha=" + text_of(choice.numbers.alpha) + ")";
  if (choice.rule == normalizer::top_k) return name + "(k=" + text_of(choice.numbers.k) + ")";
  if (choice.number)
    return name + "(" + std::string(attnscale::name_of(traits.number)) + "=" +
           text_of(choice.number.rows().numbers[0]) + ")";
  return name;
}

void check(const normalizer_choice& choice) {
  check_numbers(choice.numbers);
  const std::string name(traits_of(choice.rule).name);
  for (const statistic each : reported)
    if (!has_statistic(choice.rule, !choice.number, each))
      refuse("normalizer must give its rows support, entropy, concentration, max_weight; " + name +
             " has no " + std::string(attnscale::name_of(each)));
  if (!choice.number) return;
  const std::vector<double>& numbers = choice.number.rows().numbers;
  if (numbers.size() != 1)
    refuse("the numbers of the normalizer must be one number, got " + text_of(numbers.size()));
  check_finite("the number of the normalizer", numbers[0]);
}

/// Rows of `scores` as keys of one channel, one head per multiplier, with the number 1 as the
/// query.
attention_problem problem_of(const std::vector<double>& scores, const std::vector<double>& betas,
                             std::int64_t n, std::int64_t count) {
  static constexpr double one = 1;
  attention_problem problem;
  problem.compute = element_type::float64;
  problem.n_queries = 1;
  problem.n_keys = n;
  problem.head_dim = 1;
  problem.query = problem.key = {element_type::float64, 1, 1};
  for (std::int64_t i = 0; i < count; ++i)
    for (const double& beta : betas) {
      attention_head& head = problem.heads.emplace_back();
      head.query = &one;
      head.key = scores.data() + i * n;
      head.scale = &beta;
    }
  return problem;
}

}  // namespace

sparsity_rows::sparsity_rows(const random_scores_case& scores, std::vector<double> betas,
                             const std::vector<normalizer_choice>& normalizers)
    : scores_(scores), betas_(std::move(betas)), normalizers_(normalizers) {
  if (normalizers_.empty()) refuse("normalizer must have at least one value, got none");
  for (const normalizer_choice& each : normalizers_) {
    check(each);
    names_.push_back(name_of(each));
  }
}

void sparsity_rows::draw(std::uint64_t key, std::int64_t first, std::int64_t count, double* out,
                         const execution& how) const {
  std::vector<double> scores(static_cast<std::size_t>(count * scores_.n));
  draw_scores(scores_, key, first, count, scores.data(), how);
  attention_problem problem = problem_of(scores, betas_, scores_.n, count);
  const std::size_t heads = problem.heads.size();
  std::vector<std::int64_t> support(heads);
  std::vector<double> entropy(heads), concentration(heads), max_weight(heads);
  problem.statistics[statistic::support] = support.data();
  problem.statistics[statistic::entropy] = entropy.data();
  problem.statistics[statistic::concentration] = concentration.data();
  problem.statistics[statistic::max_weight] = max_weight.data();
  for (std::size_t k = 0; k < normalizers_.size(); ++k) {
    const normalizer_choice& choice = normalizers_[k];
    problem.rule = choice.rule;
    problem.numbers = choice.numbers;
    const double* const number = choice.number ? choice.number.rows().numbers.data() : nullptr;
    for (attention_head& head : problem.heads) head.number = number;
    run(problem, how);
    for (std::size_t i = 0; i < heads; ++i) {
      double* const row = out + (i * normalizers_.size() + k) * 4;
      row[0] = static_cast<double>(support[i]);
      row[1] = entropy[i];
      row[2] = concentration[i];
      row[3] = max_weight[i];
    }
  }
}

}  // namespace attnscale::detail
