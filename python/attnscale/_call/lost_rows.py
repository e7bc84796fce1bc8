# SPDX-License-Identifier: BSD-3-Clause
"""Rows that are NaN although no number of the call is: a warning with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.checks import as_array, warn


def warn_of_lost_rows(query: Any, key: Any, value: Any = None, mask: Any = None) -> None:
    """Warn that rows of a result are NaN, unless a NaN or infinity of query, key or value explains them.

    Called only if there are such rows, which the core reports at no cost.
    """
    if mask is not None and mask.dtype != np.bool_ and not (mask < np.inf).all():
        warn("attn_mask holds NaN or +inf, and rows that see such an entry are NaN; -inf hides a key")
        return
    arrays = [
        as_array(name, x) for name, x in (("query", query), ("key", key), ("value", value)) if x is not None
    ]
    if all(np.isfinite(x).all() for x in arrays):
        numbers = "float64" if arrays[0].dtype == np.float64 else "float32"
        wider = "" if numbers == "float64" else ", or float64"
        warn(
            "rows of the result are NaN: query, key and value are finite, and scores or sums of them exceed "
            f"the largest number of {numbers}, {np.finfo(numbers).max:.2g}; smaller arrays{wider} keep them "
            "finite"
        )
