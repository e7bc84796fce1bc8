# SPDX-License-Identifier: BSD-3-Clause
"""Judgement of what engines return beside the output: lse, entropy, weights, scores, gradients."""

from .call import StatisticOutcome, judged_call
from .judge import judge_statistics

__all__ = ["StatisticOutcome", "judge_statistics", "judged_call"]
