// SPDX-License-Identifier: BSD-3-Clause
//
// Arguments of the kernels: a block of queries of one head against a range of keys.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attnscale/types.hpp"
#include "kernels/numbers.hpp"

namespace attnscale::detail {

struct stop_signal;

/// Maximum number of queries per block; see block_rows.
inline constexpr int max_block_rows = 128;

/// Maximum number of queries of a block that are read with the channels in the lanes (measured with
/// AVX-512 and keys in memory: 0.8 of the panels' time at 8 rows, 1.1 at 12).
inline constexpr int decode_rows = 8;

/// Start of a matrix (row 0 for the kernel) and its layout.
struct matrix {
  const void* data = nullptr;
  matrix_layout layout{};
};

/// Sums over visible keys, of N rows or of N lanes of one row. Scores are in base 2, t = score *
/// log2(e), with weights 2^(t - reference). for_each_sum() of softmax/online-inl.hpp lists them,
/// too.
template <int N>
struct weight_sums {
  double weight[N];   ///< sum of weights
  double first[N];    ///< sum of weight * (t - reference)
  double second[N];   ///< sum of weight * (t - reference)^2
  double squares[N];  ///< sum of weight^2
  double support[N];  ///< number of positive weights; not for exponentials
};

/// Streaming sums of up to max_block_rows rows.
struct row_sums : weight_sums<max_block_rows> {
  double reference[max_block_rows];   ///< within 8 of the largest t; lowest float without keys
  double top[max_block_rows];         ///< largest t
  double least[max_block_rows];       ///< smallest t with wanted_least, infinity without keys
  double top_weight[max_block_rows];  ///< weight of the largest t; not for exponentials
  int64_t argmax[max_block_rows];     ///< first key with the largest t, -1 without keys
};

/// Fields of the blocks of all kernels: the scores of some queries and a range of keys. Row 0 of
/// query, mask and output is the block's first query, row 0 of key and value is key 0.
struct score_block {
  matrix query{}, key{}, attn_mask{};
  score_tables<matrix> tables{};  ///< of the compute type
  score_form form{};
  double unit = log2e;  ///< score units per nat: 1 where weights are not powers of 2
  mask_kind mask_type = mask_kind::none;
  int rows = 0;
  int64_t head_dim = 0;
  int64_t key_begin = 0, key_end = 0;      ///< range of keys to process
  bool prefetches = true;                  ///< whether software prefetches pay on this CPU
  int64_t leading_keys = 0;                ///< all rows see the keys below; they are in no interval
  const int64_t* first_visible = nullptr;  ///< row r may see [first_visible[r], last_visible[r])
  const int64_t* last_visible = nullptr;
  void* scratch = nullptr;  ///< 64-byte aligned
  const stop_signal* stop = nullptr;
};

/// Scales of a block's rows.
struct block_scales {
  const double* scale = nullptr;  ///< of row 0
  ptrdiff_t scale_row = 0;
};

/// Statistics of finished weights, in nats, for normalizers that solve for a threshold.
struct row_report {
  double lse[max_block_rows];
  double entropy[max_block_rows];
  double top[max_block_rows];    ///< largest score; -inf without visible keys
  double least[max_block_rows];  ///< smallest score with wanted_least; infinity without keys
  double mean[max_block_rows];
  double variance[max_block_rows];
  double concentration[max_block_rows];
  double max_weight[max_block_rows];
  int64_t argmax[max_block_rows];
  int64_t support[max_block_rows];
};

/// Receiver of the supports of rows that solve for a threshold: keys from 0 on, ascending, with
/// their positive weights; empty for a NaN row. Rows come in any order.
struct support_taker {
  void (*take)(void* state, int row, const uint32_t* keys, const double* weights,
               int64_t count) noexcept;
  /// Memory for the weights of all keys for `lanes` rows from `row` on, [key][lane] of elements of
  /// `bytes` bytes: zeros. Each of these rows is also passed to take: as an empty list or, if its
  /// lane is left at zero, as a list of its own. Null: all rows are lists.
  void* (*panel)(void* state, int row, int lanes, size_t bytes) noexcept;
  void* state;
};

/// Bits of attend_block::wanted; weight and first are always summed.
enum wanted_sums : uint8_t {
  wanted_moments = 1,     ///< second and squares; not exponentials: first, squares and support
  wanted_argmax = 2,      ///< row_sums::argmax
  wanted_top_weight = 4,  ///< row_sums::top_weight
  wanted_panels = 8,      ///< sums of scores as panels of queries have them, also for few queries
  wanted_least = 16       ///< row_sums::least, or row_report::least
};

/// The normalizer of a block.
struct block_rule {
  normalizer rule = normalizer::softmax;
  normalizer_numbers numbers{};
  const double* number = nullptr;  ///< at row 0, see row_number; null: no number
  ptrdiff_t number_row = 0;        ///< stride of number
};

/// Values of a block, and its output.
struct block_values {
  matrix value{};
  int64_t value_dim = 0;
  void* output = nullptr;  ///< rows with output_layout; null: statistics only
  matrix_layout output_layout{};
};

/// Requested sums of a block's rows.
struct block_sums {
  int wanted = 0;  ///< bits of wanted_sums
  row_sums* sums = nullptr;
  row_report* report = nullptr;            ///< for entmax and top_k, which do not set sums
  const support_taker* support = nullptr;  ///< with report; null: no receiver
};

struct attend_block : score_block, block_scales, block_rule, block_values, block_sums {};

/// The strongest keys of one row, counted from the block's first key: by decreasing score (sorted),
/// or in the order of the keys.
struct key_list {
  const double* score;
  const uint32_t* key;
  int64_t count;
  bool sorted;
};

/// Number of keys wanted per row, and the lists found, one per row, in the block's scratch memory.
struct key_lists {
  int64_t k = 0;
  key_list* lists = nullptr;
};

struct top_keys_block : attend_block, key_lists {};

/// Streaming sums of a block at one scale. raw = q . k; its sums are centred on `center` to keep
/// their digits.
struct curve_sums {
  double reference[max_block_rows];
  double weight[max_block_rows];
  double first[max_block_rows];  ///< sum of weight * (t - reference)
  double center[max_block_rows];
  double raw_first[max_block_rows];   ///< sum of weight * (raw - center)
  double raw_second[max_block_rows];  ///< sum of weight * (raw - center)^2
};

/// Scales of a curve, the same for all rows.
struct curve_scales {
  const double* scales = nullptr;
  int64_t n_scales = 0;
  curve_sums* sums = nullptr;  ///< one per scale
};

struct curve_block : score_block, curve_scales {};

/// Scales by doubling: scale s is the base s % n_bases times 2^(s / n_bases).
struct ladder_of_scales {
  const double* scale = nullptr;  ///< n_bases numbers, of row 0
  ptrdiff_t scale_row = 0;        ///< stride of scale over the rows; 0: the same for all
  int64_t n_bases = 0, n_scales = 0;
};

/// Most scales that come from one base.
inline constexpr int ladder_rungs = 5;

/// Results of a block's rows, in double: [base][row] and [scale][row] of the kernels' block_rows
/// rows. Weights are 2^(t - t of edge), t = base * 2^(s / n_bases) * raw.
struct ladder_sums {
  double* base = nullptr;       ///< as the kernel rounds it, times log2(e)
  double* edge = nullptr;       ///< raw product
  double* top = nullptr;        ///< raw product of the largest weight; infinite without keys
  double* weight = nullptr;     ///< sum of weights; NaN if a product is not finite
  double* first = nullptr;      ///< sum of weight * (t - t of edge), t at the base
  double* first_key = nullptr;  ///< raw product of key 0; the lowest number if it is hidden
};

struct ladder_block : score_block, ladder_of_scales, ladder_sums {};

/// Weights that keys receive: rows of the block are keys, and its keys are queries. The scales are
/// positive, the same for all rows.
struct received_ladder_block : score_block, ladder_of_scales {
  const void* top = nullptr;    ///< largest product of each query, in the compute type
  const void* share = nullptr;  ///< weight of the key with that product, [query][scale]
  double* received = nullptr;   ///< [row][scale]
};

/// Data of a search for scales before the first evaluation. raw = q . k of the visible keys; bad is
/// NaN if one of them is not finite.
struct solve_rows {
  double top[max_block_rows];    ///< largest raw; -inf without visible keys
  double ties[max_block_rows];   ///< number of keys with that product
  double count[max_block_rows];  ///< number of visible keys
  double center[max_block_rows];
  double first[max_block_rows];   ///< sum of raw - center
  double second[max_block_rows];  ///< sum of (raw - center)^2
  double bad[max_block_rows];
};

/// Sums at the scales of a search. t = scale * log2(e) * (raw - top), weights 2^t, u = t - center.
struct solve_sums {
  double weight[max_block_rows];
  double first[max_block_rows];   ///< sum of weight * u
  double second[max_block_rows];  ///< sum of weight * u^2
  double third[max_block_rows];   ///< sum of weight * u^3
};

/// State of a search for scales.
struct solve_step {
  bool keep = false;               ///< keep the products; else each evaluation computes them again
  solve_rows* found = nullptr;     ///< written by gather
  const double* scale = nullptr;   ///< per row, 0 for a row that is not evaluated
  const double* center = nullptr;  ///< of u, per row: near the mean of t
  solve_sums* sums = nullptr;      ///< written by evaluate
};

/// One panel of rows whose scales are searched. The scratch memory lives from gather to the last
/// evaluation: it holds the packed queries and, with `keep`, all products.
struct solve_block : score_block, solve_step {};

}  // namespace attnscale::detail
