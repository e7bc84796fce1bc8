// SPDX-License-Identifier: BSD-3-Clause
#include "xla_call.hpp"

#include <algorithm>
#include <cfenv>
#include <new>

#include "xla_problem.hpp"

namespace attnscale::bindings::xla {
namespace {

/// Counts that the caller wants in a narrower type than the core's.
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

error* failure(const call_frame& frame, const char* message, error_code code) {
  error_arguments given{sizeof(error_arguments), nullptr, message, code};
  return frame.api->create_error(&given);
}

/// Restores the usual floating-point mode: XLA runs foreign functions with denormal numbers flushed
/// to zero, but the core's results do not depend on the thread.
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

/// Answers with the caller's version: the fields that the handler reads are the same in all
/// versions. Callers of version 0.1 name no functions here.
void answer_metadata(const call_frame& frame) {
  metadata& answer = *reinterpret_cast<metadata_extension*>(frame.extensions)->answer;
  const bool is_later = frame.api && frame.api->version.major == 0;
  const int minor = is_later ? frame.api->version.minor : 1;
  answer.version = {sizeof(interface_version), nullptr, 0, minor};
  answer.traits = 0;
  if (minor >= 2) answer.state_type = 0;
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

void run_attention(const call_reader& call) {
  check_numbers(call);
  xla_call_arrays given(call);
  given.output = call.result("output").matrix(given.swapped);
  attention_problem problem;
  narrow_counts counts;
  for (const auto& [name, each] : call.results())
    if (name != "output")
      problem.statistics[statistic_named(name)] =
          each.type() == int32 ? counts.place(each) : each.data();
  given.fill(problem);
  run(problem, call.how());
  counts.write();
}

error* attend(call_frame* frame) { return answer(*frame, run_attention); }
error* gradients(call_frame* frame) { return answer(*frame, run_gradients); }

}  // namespace attnscale::bindings::xla
