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
from ._cases import CASES, Case
from ._check import Conformance, Outcome, check
from ._questions import QUESTIONS, Answer, ask

__all__ = [
    "CASES",
    "QUESTIONS",
    "Answer",
    "Case",
    "Conformance",
    "Outcome",
    "ask",
    "check",
    "engines",
]
