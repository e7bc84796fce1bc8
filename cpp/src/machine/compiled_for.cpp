// SPDX-License-Identifier: BSD-3-Clause
#include "machine/compiled_for.hpp"

#include "machine/cpu_features.hpp"

namespace attnscale::detail {

std::string_view lacking(std::string_view names) {
  while (!names.empty()) {
    const std::string_view first = names.substr(0, names.find(' '));
    if (!cpu_has(first)) return first;
    names.remove_prefix(first.size() + 1);
  }
  return {};
}

}  // namespace attnscale::detail
