# SPDX-License-Identifier: BSD-3-Clause
"""Faults of the C++ core and of its binding."""

from __future__ import annotations

from .fault import Fault, asan, cpp, pytest

__all__ = ["CORE_FAULTS"]

_KERNELS = "cpp/src/kernels"

_ARITHMETIC = (
    Fault(
        "the last key of a tile has no weight",
        f"{_KERNELS}/softmax/online-inl.hpp",
        "    if (j < keys) {\n      const vec<T> weight[1] = {",
        "    if (j < keys - 1) {\n      const vec<T> weight[1] = {",
        cpp("test_attention", "numbers of queries around lanes and blocks"),
    ),
    Fault(
        "older weights of the concentration shrink by f and not by its square",
        f"{_KERNELS}/softmax/online-inl.hpp",
        "sums.squares[at] *= f * f;",
        "sums.squares[at] *= f;",
        cpp("test_attention", "scales: negative, zero, one a head, one a row"),
    ),
    Fault(
        "the entropy of split keys forgets how far the references of the parts lie apart",
        "cpp/src/exact/statistics.cpp",
        "first += factor * (s.first + shift * s.weight);",
        "first += factor * s.first;",
        cpp("test_attention", "few queries and many keys: the keys are split"),
    ),
    Fault(
        "a decoded row reads the values of hidden keys",
        f"{_KERNELS}/softmax/decode-inl.hpp",
        "(r, v, keys, ws_.score.scores, at.masked ? ws_.score.bias : nullptr);",
        "(r, v, keys, ws_.score.scores, nullptr);",
        cpp("test_numerics", "NaN and infinity under a boolean and an additive mask"),
    ),
    Fault(
        "decoding heads that share keys all have the scale of the first",
        "cpp/src/exact/heads_as_rows.hpp",
        "rows.scale_row = *scale;",
        "rows.scale_row = 0;",
        pytest("tests/attention/test_attention.py", k="shared_keys"),
    ),
    Fault(
        "the gradient of a score's variance adds the variance that it subtracts",
        "cpp/src/exact/statistic_gradients.hpp",
        "of * (h * h + 2 * h - row.at(statistic::score_variance))",
        "of * (h * h + 2 * h + row.at(statistic::score_variance))",
        pytest("tests/attention/test_gradients.py"),
    ),
    Fault(
        "top-k keeps every key that ties with the last one",
        f"{_KERNELS}/sparse/candidates-inl.hpp",
        "const bool equal = value == cut && equals > 0;",
        "const bool equal = value == cut && !exact;",
        pytest("tests/normalizers/test_normalizers_sparse.py", k="not package"),
    ),
    Fault(
        "sums of linear attention do not fade over the chunk that is merged",
        "cpp/src/variants/linear.cpp",
        "before.add(own[i].view(), own[i].count, fade(head, first_ + begin, first_ + end));",
        "before.add(own[i].view(), own[i].count, fade(head, first_ + begin, first_ + begin));",
        pytest("tests/variants/test_variants_threads.py"),
    ),
    Fault(
        "the law log_n forgets its floor",
        "cpp/src/scale/scale_law_formulas.hpp",
        "return std::log(std::max(n, law.floor)) / std::log(law.base);",
        "return std::log(n) / std::log(law.base);",
        pytest("tests/laws/test_laws.py"),
    ),
    Fault(
        "a dimension of Johnson and Lindenstrauss is rounded down",
        "cpp/src/experiments/johnson_lindenstrauss.cpp",
        "std::ceil(std::max(dimension, 1.0))",
        "std::floor(std::max(dimension, 1.0))",
        pytest("tests/theory/test_theory_rules.py"),
    ),
    Fault(
        "random numbers from within a group on are those of its beginning",
        "cpp/src/experiments/fill.cpp",
        "std::copy_n(group + skip, made, out);",
        "std::copy_n(group, made, out);",
        cpp("test_random", "the same bits for any number of threads and any split"),
    ),
)

_MASKS = (
    Fault(
        "a key that a float mask hides gets weight",
        f"{_KERNELS}/tile/mask-inl.hpp",
        "return x <= hiding ? masked_score<T> : t < lowest_bias<T> ? lowest_bias<T> : t;",
        "return t < lowest_bias<T> ? lowest_bias<T> : t;",
        cpp("test_masks", "additive masks: a bias, -inf hides the key"),
    ),
    Fault(
        "the smallest number of a mask's type hides no key",
        "cpp/include/attnscale/types.hpp",
        "-0x1.fffffep+126",
        "-__builtin_inf()",
        cpp("test_masks", "additive masks: half of the smallest number of their type hides the key"),
    ),
    Fault(
        "a bottom-right causal mask of the C++ calls ignores key lengths",
        "cpp/src/call/intervals.cpp",
        "offset_ = combine(lengths, one(n_queries_), std::minus<>());",
        "offset_ = one(n_keys_ - n_queries_);",
        cpp("test_masks", "key_lengths, also 0, with causal and window"),
    ),
)

_BFLOAT16 = (
    Fault(
        "the key behind the last one that a row sees has its weight, too",
        f"{_KERNELS}/tile/pairs-inl.hpp",
        "const vec<float> high = key + 1 < end ? load(weights + (key + 1) * lanes) : none;",
        "const vec<float> high = key + 1 < end ? load(weights + (key + 1) * lanes) : low;",
        cpp("test_bfloat16", "*every size, full and causal", level="emulated_avx512_bf16"),
    ),
    Fault(
        "the values of two keys change places in a pair",
        f"{_KERNELS}/tile/vector_pairs-inl.hpp",
        "store(out + c, interleaved_pair(low + c, high + c));",
        "store(out + c, interleaved_pair(high + c, low + c));",
        cpp("test_bfloat16", "*every size, full and causal", level="emulated_avx512_bf16"),
    ),
    Fault(
        "a tile register holds what was there before the first key that a row sees",
        f"{_KERNELS}/tile/amx_pairs-inl.hpp",
        "clear_rows(begin, none ? begin + steps * amx_rows : pairs.begin[i], lanes, own);",
        "clear_rows(begin, none ? begin + steps * amx_rows : begin, lanes, own);",
        cpp("test_bfloat16", "*masks, soft-caps and scales of any sign", level="emulated_amx_bf16"),
    ),
    Fault(
        "the gradients of keys leave out the last rows of a block",
        f"{_KERNELS}/gradient/bfloat16-inl.hpp",
        "return (b_.rows + 2 * w - 1) / (2 * w) * w;",
        "return b_.rows / (2 * w) * w;",
        cpp("test_bfloat16", "*gradients of every size*", level="emulated_avx512_bf16"),
    ),
)

_LEVELS = (
    Fault(
        "SSE2 adds the lower half of a vector twice to sums in double",
        f"{_KERNELS}/simd/sse2.hpp",
        "_mm_cvtps_pd(_mm_movehl_ps(x, x))",
        "_mm_cvtps_pd(_mm_movelh_ps(x, x))",
        cpp("test_attention", "numbers of keys around lanes and tiles", level="baseline"),
    ),
    Fault(
        "AVX2 passes over a score that is NaN",
        f"{_KERNELS}/simd/avx2.hpp",
        "max_or(vec<float> a, vec<float> b) { return _mm256_max_ps(a, b); }",
        "max_or(vec<float> a, vec<float> b) { return _mm256_max_ps(b, a); }",
        pytest("tests/attention/test_promises.py", level="avx2"),
        target="check",
    ),
    Fault(
        "lanes behind the last row read a scale that is not there",
        f"{_KERNELS}/softmax/attend-inl.hpp",
        "const double scale = r < b_.rows ? b_.scale[r * b_.scale_row] : 0.0;",
        "const double scale = b_.scale[r * b_.scale_row];",
        asan("test_attention", "scales: negative, zero, one a head, one a row"),
        target="check",
    ),
)

_THREADS = (
    Fault(
        "a child that is forked inside a loop waits for threads that it does not have",
        "cpp/src/machine/thread_pool.cpp",
        "  while (!forked()) {",
        "  while (true) {",
        cpp("test_fork", "a fork inside a loop*"),
    ),
    Fault(
        "a call uses one thread fewer than it is given",
        "cpp/src/machine/thread_pool.cpp",
        "const int helpers = static_cast<int>(std::min(asked, loop.n_tasks)) - 1;",
        "const int helpers = static_cast<int>(std::min(asked - 1, loop.n_tasks)) - 1;",
        pytest("tests/promises/test_interrupt.py", k="starts_the_threads"),
    ),
    Fault(
        "long calls keep the lock of the interpreter",
        "cpp/bindings/arrays.hpp",
        "<= 0x1p14;",
        "> 0x1p14;",
        pytest("tests/promises/test_interrupt.py", k="other_threads_run"),
    ),
    Fault(
        "whatever a signal handler raises becomes KeyboardInterrupt",
        "cpp/bindings/arrays.hpp",
        "    throw py::error_already_set();",
        "    PyErr_SetNone(PyExc_KeyboardInterrupt);\n    throw py::error_already_set();",
        pytest("tests/promises/test_interrupt.py", k="what_a_signal_handler_raises"),
    ),
)

_CALLS = (
    Fault(
        "the share of failures that Johnson and Lindenstrauss allow forgets the number of pairs",
        "cpp/src/experiments/johnson_lindenstrauss.cpp",
        "std::min(1.0, std::exp(log_pairs(count) + exponent))",
        "std::min(1.0, std::exp(exponent))",
        cpp("test_johnson_lindenstrauss"),
    ),
    Fault(
        "the error of a Monte Carlo mean does not shrink with the number of rows",
        "cpp/src/experiments/tally.cpp",
        "std::sqrt((variance < 0 ? 0 : variance) / count)",
        "std::sqrt((variance < 0 ? 0 : variance) / (0 * count + 1))",
        cpp("test_experiments"),
    ),
    Fault(
        "a run with a target error stops before it looks at it",
        "cpp/src/experiments/estimates.cpp",
        "if (rows > 0 && rows % rows_between_looks == 0 && reached) return rows;",
        "if (rows > 0 && rows % rows_between_looks == 0 && (reached || rows > 0)) return rows;",
        cpp("test_experiments", "a target error ends a run at a multiple of 256 rows"),
    ),
    Fault(
        "what is added to a state of linear attention begins at position 0 again",
        "cpp/include/attnscale/linear_state.hpp",
        "         .first_key = sums_.n_keys});",
        "         .first_key = 0});",
        cpp("test_linear_state"),
    ),
    Fault(
        "rows that see global keys get too much of their neighbours",
        "cpp/src/variants/local_global_attention.cpp",
        "const T weighted = row[c] * mine;",
        "const T weighted = row[c] * (mine + theirs);",
        cpp("test_composed_attention", "local and global attention is a mask"),
    ),
    Fault(
        "the gradient of lambda in differential attention has the wrong sign",
        "cpp/include/attnscale/differential_attention.hpp",
        "by_lam.numbers[row] = -sum;",
        "by_lam.numbers[row] = sum;",
        cpp("test_composed_attention", "gradients of differential attention*"),
    ),
    Fault(
        "a key of kattention is moved away by its whole square",
        "cpp/src/variants/kattention.cpp",
        "static_cast<T>(-0.5 * square)",
        "static_cast<T>(-square)",
        cpp("test_kattention", "kattention of given queries and keys is a Gaussian kernel"),
    ),
    Fault(
        "an output may begin within what a call reads",
        "cpp/src/exact/attention_into.cpp",
        "if (last_ <= other.first_ || other.last_ <= first_) return true;",
        "if (last_ <= other.first_ || other.first_ <= first_) return true;",
        cpp("test_ownership", "outputs share no memory with what is read*"),
    ),
    Fault(
        "the gradient of softpick forgets eps",
        "cpp/src/kernels/softmax/normalizers-inl.hpp",
        "row.sum + row.eps / __builtin_exp2(row.reference)",
        "row.sum + 0 * row.eps / __builtin_exp2(row.reference)",
        pytest("tests/attention/test_gradients_parameters.py"),
    ),
    Fault(
        "the gradient of a table of the distance forgets the law beside it",
        "cpp/src/call/distance_form.cpp",
        "to[t] += factor ? *from * factor[k] : *from;",
        "to[t] += factor ? *from : *from;",
        cpp("test_option_gradients", "gradients: of what a function of the distance returned*"),
    ),
)

CORE_FAULTS = (*_ARITHMETIC, *_MASKS, *_BFLOAT16, *_LEVELS, *_THREADS, *_CALLS)
