# SPDX-License-Identifier: BSD-3-Clause
"""Stored runs, and their numbers as pages have them."""

from __future__ import annotations

from functools import cache

import numpy as np
from pages import ROOT
from scipy import stats
from studies import stored

EVIDENCE = "docs/explanation/training-evidence.md"


@cache
def run(name, which=None):
    return stored(name, which or "full")


@cache
def built():
    """The tables that the build of the site writes from stored runs, by file."""
    scope = {"__name__": "_run_tables"}
    exec((ROOT / "docs" / "_ext" / "_run_tables.py").read_text(encoding="utf-8"), scope)
    return scope["run_texts"]()


def there(values):
    values = np.asarray(values, float)
    return values[np.isfinite(values.reshape(len(values), -1)).all(-1)]


def cells(values, form):
    """Mean and standard error over the seeds, as tables have them."""
    values = there(values)
    mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))
    return [f"{m:{form}} ± {e:{form.lstrip('+')}}" for m, e in zip(mean, error, strict=True)]


def pair(value, error, form):
    """A number with its error, as sentences have them."""
    return f"{value:{form}} ± {error:{form.lstrip('+')}}"


def p_value(values):
    return stats.ttest_1samp(there(values), 0).pvalue
