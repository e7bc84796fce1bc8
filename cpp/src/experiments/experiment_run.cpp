// SPDX-License-Identifier: BSD-3-Clause
#include "experiments/experiment_run.hpp"

#include <algorithm>

#include "attnscale/detail/refuse.hpp"
#include "experiments/case_key.hpp"

namespace attnscale {
namespace {

using namespace detail;

/// Operations per piece of work: a fraction of a second, the most that an interrupt can lose.
constexpr double piece_operations = 4e8;
constexpr double most_rows_of_piece = 1 << 15;

/// Quoted names for messages: 'entropy', 'lse', ...
template <class Names>
std::string quoted(const Names& names) {
  std::string text;
  for (const auto& each : names) text += (text.empty() ? "'" : ", '") + std::string(each) + "'";
  return text;
}

/// The first quantity, which every result has.
std::string_view first_of(const std::vector<std::string_view>& quantities) {
  return quantities.empty() ? std::string_view{} : quantities.front();
}

struct stopping {
  std::int64_t most_rows;
  std::optional<double> target_error;
};

stopping read_stopping(const experiment_case& what, const run_options& how) {
  const auto rows_of = [&](std::int64_t samples) {
    return samples / what.block + (samples % what.block != 0);
  };
  if (!how.target_error) {
    const std::int64_t samples = how.samples.value_or(what.usual_samples);
    check_count("samples", samples);
    return {rows_of(samples), {}};
  }
  const double target = *how.target_error;
  if (how.samples)
    refuse("samples and target_error exclude each other, got " + text_of(*how.samples) + " and " +
           text_of(target));
  check_greater("target_error", target, 0);
  check_count("max_samples", how.max_samples);
  return {rows_of(how.max_samples), target};
}

/// Refuses a state with other parameters.
void check_parameters(const experiment_case& what, const experiment_state& state) {
  for (const auto& [name, here] : what.parameters) {
    std::string there = "none";
    for (const auto& [other, value] : state.parameters)
      if (other == name) there = value;
    if (here == there) continue;
    std::string message = "resume must have the same ";
    message.append(name).append(", got ").append(here).append(" here and ").append(there);
    refuse(message.append(" there"));
  }
}

experiment_state start(const experiment_case& what, const run_options& how) {
  const auto entries = static_cast<std::int64_t>(what.entries.size());
  const auto columns = static_cast<std::int64_t>(what.quantities.size());
  if (!how.resume)
    return {std::string(what.name), what.parameters, how.seed.value_or(0), tally(columns, entries)};
  const experiment_state& before = *how.resume;
  if (how.seed)
    refuse("resume goes on with the seed of its result; seed must not be given, got " +
           text_of(*how.seed));
  if (before.experiment != what.name)
    refuse("resume must be a result of " + std::string(what.name) + ", got one of " +
           before.experiment);
  check_parameters(what, before);
  if (before.rows.entries() != entries || before.rows.columns() != columns)
    refuse("resume must have rows of " + text_of(entries) + " x " + text_of(columns) +
           " numbers, got " + text_of(before.rows.entries()) + " x " +
           text_of(before.rows.columns()));
  return before;
}

values_and_errors estimates_of(const experiment_case& what, const tally& rows) {
  if (what.estimate) return what.estimate(rows);
  std::vector<column_kind> kinds;
  for (const quantity& each : what.quantities) kinds.push_back(each.kind);
  return means_and_shares(rows, kinds);
}

/// Errors of the first quantity, one per entry.
std::vector<double> first_errors(const experiment_case& what, const tally& rows) {
  const std::vector<double> all = estimates_of(what, rows).error;
  std::vector<double> found;
  for (std::size_t i = 0; i < all.size(); i += what.quantities.size()) found.push_back(all[i]);
  return found;
}

bool stopped(const execution& how) { return how.interrupted && how.interrupted(how.context); }

/// Draws until there are enough rows. Returns true if interrupted before.
bool draw(const experiment_case& what, const stopping& until, const execution& how,
          experiment_state& state) {
  const std::uint64_t key = case_key(state.seed, what.name, what.identity);
  const auto piece =
      static_cast<std::int64_t>(std::clamp(piece_operations / what.cost, 1.0, most_rows_of_piece));
  std::vector<double> made;
  for (;;) {
    const std::int64_t done = state.rows.rows();
    const std::int64_t goal =
        rows_wanted(done, until.most_rows, until.target_error, first_errors(what, state.rows));
    if (goal <= done) return false;
    while (state.rows.rows() < goal) {
      if (stopped(how)) return true;
      const std::int64_t first = state.rows.rows(), count = std::min(piece, goal - first);
      made.resize(static_cast<std::size_t>(count * state.rows.entries() * state.rows.columns()));
      try {
        what.draw(key, first, count, made.data(), how);
      } catch (const interrupted&) {
        return true;
      }
      state.rows.add(made.data(), count);
    }
  }
}

}  // namespace

void detail::check_count(const char* name, std::int64_t number, std::int64_t least) {
  check_at_least(name, number, least);
  if (number > std::int64_t{1} << 53)
    refuse(std::string(name) + " must be at most 2^53, beyond which float64 skips integers, got " +
           text_of(number));
}

experiment_result detail::run_case(const experiment_case& what, const run_options& how) {
  const stopping until = read_stopping(what, how);
  experiment_result result;
  result.state = start(what, how);
  result.interrupted = draw(what, until, how.how, result.state);
  const values_and_errors found = estimates_of(what, result.state.rows);
  for (std::size_t i = 0; i < found.value.size(); ++i)
    result.estimates.push_back({found.value[i], found.error[i]});
  for (const quantity& each : what.quantities) result.quantities.push_back(each.name);
  result.entries = what.entries;
  result.samples = result.state.rows.rows() * what.block;
  if (until.target_error) {
    const std::vector<double> errors = first_errors(what, result.state.rows);
    result.target_reached = std::all_of(errors.begin(), errors.end(),
                                        [&](double error) { return error <= *until.target_error; });
  }
  return result;
}

const estimate& experiment_result::at(std::string_view quantity, std::size_t entry) const {
  const auto found = std::find(quantities.begin(), quantities.end(), quantity);
  if (found == quantities.end())
    refuse("quantity must be one of " + quoted(quantities) + ", got '" + std::string(quantity) +
           "'");
  if (entry >= entries.size())
    refuse("entry must be below " + text_of(entries.size()) + ", got " + text_of(entry));
  return estimates[entry * quantities.size() +
                   static_cast<std::size_t>(found - quantities.begin())];
}

double experiment_result::value(std::size_t entry) const {
  return at(first_of(quantities), entry).value;
}

double experiment_result::standard_error(std::size_t entry) const {
  return at(first_of(quantities), entry).standard_error;
}

}  // namespace attnscale
