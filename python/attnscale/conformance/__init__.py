# SPDX-License-Identifier: BSD-3-Clause
"""A referee for other engines: calls with known answers, and names for typical differences.

>>> import attnscale as at
>>> def attend(query, key, value, *, is_causal=False, **options):
...     if options:
...         raise NotImplementedError  # what the engine has not is left out
...     rows = at.attention_statistics(query, key, value, is_causal=is_causal, scale=1.0)  # a slip
...     return rows.output, rows.lse
>>> report = at.conformance.check(attend)
>>> report.wrong["causal"].why
'the scale is not applied'
"""

from __future__ import annotations

from . import engines
from ._call import Case
from ._cases import CASES
from ._check import check
from ._drawn import draw_cases
from ._export import Exported, export
from ._questions import QUESTIONS, Answer, ask
from ._report import Conformance, Outcome
from ._statistics import StatisticOutcome

__all__ = [
    "CASES",
    "QUESTIONS",
    "Answer",
    "Case",
    "Conformance",
    "Exported",
    "Outcome",
    "StatisticOutcome",
    "ask",
    "check",
    "draw_cases",
    "engines",
    "export",
]
