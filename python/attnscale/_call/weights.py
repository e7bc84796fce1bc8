# SPDX-License-Identifier: BSD-3-Clause
"""normalizer= and qk_norm=, checked and converted to the core's form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import shown
from .._base.statistics import NAMES
from .._core import scale_rows
from .arrays import Inputs

if TYPE_CHECKING:
    from ..normalizers import Normalizer


def read_normalizer(normalizer: Any) -> Normalizer | None:
    """The normalizer, checked; None for the plain softmax."""
    if isinstance(normalizer, str) and normalizer == "softmax":
        return None
    from .. import normalizers

    found = normalizers.get(normalizer)
    return None if type(found) is normalizers.Softmax else found


def normalizer_of(options: Mapping[str, Any]) -> Normalizer | None:
    """The normalizer of a call with these options; None for the plain softmax."""
    return read_normalizer(options.get("normalizer", "softmax"))


def require_softmax(options: Mapping[str, Any], call: str, instead: str) -> None:
    """Refuse other normalizers where a result is derived for the softmax."""
    if normalizer_of(options) is not None:
        given = shown(options["normalizer"])
        raise ValueError(f"normalizer must be 'softmax' for {call}, got {given}; {instead}")


def read_sink(options: Mapping[str, Any], row_shape: tuple[int, ...], name: str, instead: str) -> Any:
    """Logits of a sink, which broadcast to (..., heads, n_queries); None for the softmax."""
    found = normalizer_of(options)
    if found is None:
        return None
    from ..normalizers import Sink, SoftmaxN

    if isinstance(found, SoftmaxN):
        return math.log(found.n)
    if isinstance(found, Sink):
        return found._per_row(row_shape)
    given = shown(options["normalizer"])
    raise ValueError(f"normalizer must be 'softmax', SoftmaxN or Sink for {name}, got {given}; {instead}")


def available(statistics: tuple[str, ...], found: Normalizer | None, *, leave_out: bool) -> tuple[str, ...]:
    """The statistics that the normalizer's rows have; others are omitted, or raise an error."""
    if found is None:
        return statistics
    missing = [name for name in NAMES if name in statistics and name not in found.statistics]
    if missing and not leave_out:
        raise ValueError(
            f"rows of {found!r} have the statistics {', '.join(found.statistics)}; got {shown(missing[0])}"
        )
    return tuple(name for name in statistics if name in found.statistics)


def normalize_rows(inputs: Inputs, qk_norm: str) -> Inputs:
    """Queries and keys of length 1 ("l2") or sqrt(head_dim) ("rms"); zero rows stay zero."""
    # In the type of the arithmetic, which a wider value may determine.
    wide = inputs.extents.wide == np.float64
    query, key = scale_rows(inputs.query, qk_norm, wide), scale_rows(inputs.key, qk_norm, wide)
    return inputs._replace(query=query, key=key)
