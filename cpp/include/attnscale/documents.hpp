// SPDX-License-Identifier: BSD-3-Clause
//
// attention_options::document_ids: which run of keys each query's document is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attnscale/refuse.hpp"

namespace attnscale::detail {

/// For each key the first one of its document, and the one past its last.
struct document_runs {
  std::vector<std::int64_t> first, past;

  document_runs() = default;  ///< no keys

  /// ids: of each key, `stride` numbers apart.
  document_runs(const std::int64_t* ids, std::ptrdiff_t stride, std::int64_t n_keys) {
    std::map<std::int64_t, int> runs;
    for (std::int64_t key = 0; key < n_keys;) {
      const std::int64_t id = ids[key * stride];
      std::int64_t end = key + 1;
      while (end < n_keys && ids[end * stride] == id) ++end;
      first.insert(first.end(), static_cast<std::size_t>(end - key), key);
      past.insert(past.end(), static_cast<std::size_t>(end - key), end);
      ++runs[id];
      key = end;
    }
    refuse_several(runs);
  }

 private:
  static void refuse_several(const std::map<std::int64_t, int>& runs) {
    int most = 0;
    for (const auto& [id, count] : runs) most = std::max(most, count);
    for (const auto& [id, count] : runs)
      if (count > 1)
        refuse("each document must be one run of document_ids, got " + text_of(id) + " in " +
               text_of(most) + " runs");
  }
};

/// Every query is of the document of a key, so there has to be one.
inline void check_document_queries(std::int64_t n_queries, std::int64_t offset,
                                   std::int64_t n_keys) {
  if (n_queries <= n_keys - std::max<std::int64_t>(offset, 0)) return;
  const std::string from =
      n_queries <= n_keys ? " queries from key " + text_of(offset) + " on and " : " queries and ";
  refuse("document_ids needs a key for each query, whose document the query is of, got " +
         text_of(n_queries) + from + text_of(n_keys) + " keys");
}

}  // namespace attnscale::detail
