// SPDX-License-Identifier: BSD-3-Clause
//
// Check of the CPU against the compiler flags. Kernels are chosen at run time; all other code is
// compiled for one CPU. If the flags need more than every CPU of the architecture has
// (-march=native), a CPU without it gets an error before an illegal instruction.
#pragma once

#include <string_view>

namespace attnscale::detail {

/// Features that the including file is compiled for, beyond the baseline CPU: names separated by
/// blanks.
// An empty text, to which the names below are joined.
// NOLINTNEXTLINE(readability-redundant-string-init)
inline constexpr std::string_view compiled_for =
    ""
#if defined(__x86_64__)
#if defined(__SSE3__)
    "SSE3 "
#endif
#if defined(__SSSE3__)
    "SSSE3 "
#endif
#if defined(__SSE4_1__)
    "SSE4.1 "
#endif
#if defined(__SSE4_2__)
    "SSE4.2 "
#endif
#if defined(__POPCNT__)
    "POPCNT "
#endif
#if defined(__AVX__)
    "AVX "
#endif
#if defined(__AVX2__)
    "AVX2 "
#endif
#if defined(__FMA__)
    "FMA "
#endif
#if defined(__BMI__)
    "BMI1 "
#endif
#if defined(__BMI2__)
    "BMI2 "
#endif
#if defined(__AVX512F__)
    "AVX-512F "
#endif
#endif
    ;

/// The first of these names that this CPU lacks, or "".
std::string_view lacking(std::string_view names);

}  // namespace attnscale::detail
