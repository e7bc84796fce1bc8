# SPDX-License-Identifier: BSD-3-Clause
"""Rows whose weights are divided by a sum that has no inverse in the type.

Some normalizers give the same weights when all scores of a row are multiplied by one number: max(s, 0)^p over
its sum does, and max(e^s - 1, 0) over the sum of |e^s - 1| does while the scores are so small that e^s - 1
equals s. Neither do the gradients of query, key and value change then, and that of the row's scale is
multiplied by the number. So a power of two brings such a row to where its sum has an inverse. Where something
is added to the scores, a factor on the scale does not multiply them: such rows are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import FLOAT64
from .rows import shows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..normalizers import Normalizer
    from .call import Call

#: Where a row is brought to, as a power of two, by when a factor keeps its weights: its sum of |e^s - 1|, so
#: small that e^s - 1 is s in float64; its largest score, whose square and its inverse are numbers of float32.
_SUM, _LARGEST = -62, -40
_TARGETS = {"while small": _SUM, "always": _LARGEST, "never": None}
#: Rows within so many powers of two of that place are left alone.
_FAR = 10
#: A soft-cap that is so many powers of two larger than the brought scores changes no digit of them.
_BELOW_CAP = 31


def powers_of_small_sums(
    call: Call, normalizer: Normalizer | None, gradients: tuple[NDArray[Any], ...]
) -> NDArray[np.int64] | None:
    """The power of two for the scale of each row, 0 for most of them; None: no row needs one.

    Parameters
    ----------
    call : Call
    normalizer : Normalizer or None
    gradients : tuple of arrays
        Those of the scale of each row, of query, key and value, before any row was brought.
    """
    target = None if normalizer is None else _TARGETS[normalizer._keeps_weights]
    if normalizer is None or target is None or not _may_be_lost(normalizer, gradients):
        return None
    if 0 < call.form.softcap < 2.0 ** (target + _BELOW_CAP):
        return None
    rows = call.core.attend(None, None, ("max_score", "max_weight"), call.scale, normalizer._rule(call))
    top, weight = (np.asarray(each, np.float64) for each in rows)
    size = np.where(top > 0, top, 1.0)
    if target == _SUM:
        size = size / np.where(weight > 0, weight, 1.0)  # the sum of absolute values
    powers = np.where(np.isfinite(size), target - np.frexp(size)[1], 0)
    proportional = (
        call.form.softcap == 0 and target == _LARGEST
    )  # rows of very large scores are brought down in the same way
    far = (powers > _FAR) | (proportional & (powers < -2 * _FAR))
    powers = np.where((top > 0) & (weight > 0) & far, powers, 0)
    if target == _SUM:  # a row whose weights are all 0 keeps them under any factor
        no_weight = (top <= 0) & ~np.isfinite(gradients[0])
        powers = np.where(no_weight, 960 if call.inputs.dtype == FLOAT64 else 80, powers)
    powers = np.where(_added_to(call), 0, powers)
    return powers.astype(np.int64) if powers.any() else None


def _may_be_lost(normalizer: Normalizer, gradients: tuple[NDArray[Any], ...]) -> bool:
    """Whether a sum may have had no inverse: a gradient is not finite, or all of a row of squares is 0."""
    if not all(np.isfinite(each).all() for each in gradients):
        return True
    return normalizer.name == "squared_relu" and not bool(gradients[0].all())


def _added_to(call: Call) -> Any:
    """Whether something is added to the scores, row by row; for all rows at once where a table does it."""
    mask, table = call.mask, call.form.distance_bias
    if table is not None and ((table[..., 0, :] != 0).any() or (table[..., 0] != 0).any()):
        return True
    if mask is None or mask.dtype == np.bool_:
        return False
    return ((mask != 0) & shows(mask)).any(-1)
