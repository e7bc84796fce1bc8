// SPDX-License-Identifier: BSD-3-Clause
//
// All of attnscale. Each of these headers can also be included alone.
#pragma once

#include "attnscale/attention.hpp"
#include "attnscale/attention_gradients.hpp"
#include "attnscale/attention_weights.hpp"
#include "attnscale/experiments.hpp"
#include "attnscale/float16.hpp"
#include "attnscale/johnson_lindenstrauss.hpp"
#include "attnscale/linear_attention.hpp"
#include "attnscale/merge_states.hpp"
#include "attnscale/montecarlo.hpp"
#include "attnscale/normalizer_traits.hpp"
#include "attnscale/scale_law.hpp"
#include "attnscale/simd_level.hpp"
#include "attnscale/solve_perplexity.hpp"
#include "attnscale/solve_scale.hpp"
#include "attnscale/tally.hpp"
#include "attnscale/threads.hpp"
#include "attnscale/version.hpp"
