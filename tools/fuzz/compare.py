# SPDX-License-Identifier: BSD-3-Clause
"""Findings of one call: what differs, and the largest error in units of its bound."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["Findings"]

Array = np.ndarray[Any, Any]


class Findings:
    """Faults of a call as text, and the largest error over its bound by name."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.ratios: dict[str, float] = {}

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def same(self, name: str, seen: Any, wanted: Any) -> None:
        """Equal in type and bits, those of a NaN apart: its sign says nothing."""
        a, b = np.asarray(seen), np.asarray(wanted)
        if a.shape == b.shape and a.dtype == b.dtype:
            numbers, others = (~np.isnan(x.astype(np.float64)) for x in (a, b))
            if np.array_equal(numbers, others) and a[numbers].tobytes() == b[others].tobytes():
                return
        self.fault(f"{name}: not the same bits")

    def shaped(self, name: str, seen: Any, shape: tuple[int, ...], dtype: Any) -> bool:
        """Whether the result has this shape and type."""
        if not isinstance(seen, np.ndarray | np.generic):
            self.fault(f"{name} is a {type(seen).__name__}, no array")
            return False
        if seen.shape != shape or seen.dtype != dtype:
            self.fault(f"{name} is {seen.dtype}{seen.shape}, want {dtype}{shape}")
            return False
        return True

    def close(
        self,
        name: str,
        seen: Array,
        wanted: Array,
        limit: Any,
        *,
        broken: Any = False,
        free: Any = False,
        may_break: Any = False,
    ) -> None:
        """|seen - wanted| <= limit; not finite exactly where broken; anything where free.

        Numbers whose type is narrower than the arithmetic's may round by half a unit of theirs and overflow.
        """
        if not seen.size:
            return
        info = ml_dtypes.finfo(seen.dtype.newbyteorder("="))
        # A rounding to the type of the result, most of the error for 16 bits.
        x = seen.astype(np.longdouble if wanted.dtype == np.longdouble else np.float64)
        ends = np.isinf(wanted)
        target = np.where(np.isfinite(wanted), wanted, 0)
        size = np.abs(target).astype(np.float64)
        limit = np.asarray(limit, np.float64) + float(info.eps) / 2 * size + float(info.smallest_subnormal)
        finite = np.isfinite(x)
        difference = np.abs(np.where(finite, x, 0) - target).astype(np.float64)
        overflow = ~finite & (size + limit > float(info.max) * (1 - float(info.eps)))
        right = np.where(ends, x == wanted, (difference <= limit) & finite | overflow)
        right = np.where(broken, ~finite, right) | free | (may_break & ~finite)
        if not right.all():
            at = tuple(int(i) for i in np.argwhere(~right)[0])
            shown = "not finite" if np.broadcast_to(broken, right.shape)[at] else f"{float(wanted[at]):.12g}"
            bound = float(np.broadcast_to(limit, right.shape)[at])
            self.fault(
                f"{name}{list(at)}: got {float(x[at]):.12g}, want {shown}, off by "
                f"{float(difference[at]):.3g}, limit {bound:.3g}; {int((~right).sum())} of {right.size}"
            )
            return
        counted = finite & ~ends & ~np.asarray(free) & ~np.asarray(broken)
        if counted.any():
            ratio = float(np.max(np.where(counted, difference / np.where(limit > 0, limit, 1), 0)))
            self.ratios[name] = max(self.ratios.get(name, 0.0), ratio)
