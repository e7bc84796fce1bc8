# SPDX-License-Identifier: BSD-3-Clause
"""Rows with values of their own: sums of the weights of keys that differ from row to row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._call.distance import PRODUCTS
from .._call.measures import cut_rows, keys_of_heads
from .._core import CoreCall

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._call.call import Call
    from ..normalizers._base import Rule


def attend_alone(call: Call, rule: Rule | None, cut: slice, value: NDArray[Any]) -> NDArray[Any]:
    """The output of some rows, (..., heads, rows, value_dim), each with values of its own.

    The values broadcast to (..., heads, rows, n_keys, value_dim). The core sees each row as a head with one
    query, and the heads as another batch axis.
    """
    form, scale = None, np.asarray(call.scale)
    if call.form is not PRODUCTS:
        tables = {
            name: _alone(getattr(call.form, name), cut, -2) for name in ("distance_scale", "distance_bias")
        }
        form = call.form._replace(**tables)
    core = CoreCall(
        call.inputs.query[..., cut, None, :],
        keys_of_heads(call.inputs)[..., None, :, :],
        _alone(call.mask, cut, -2),
        _alone(call.intervals.begin, cut, -1),
        _alone(call.intervals.end, cut, -1),
        form,
        call.inputs.dtype == np.float64,
        call.threads,
    )
    if rule is not None:
        of_rows = {name: getattr(rule, name) for name in ("sink", "bias", "factor")}
        rule = rule._replace(**{name: _alone(each, cut, -1) for name, each in of_rows.items()})
    rows = call.inputs.query[..., cut, :].shape[-2]
    found = np.empty((*call.inputs.leading, rows, 1, value.shape[-1]), value.dtype)
    core.attend(value, found, (), float(scale) if scale.ndim == 0 else _alone(scale, cut, -1), rule)
    return found[..., 0, :]


def _alone(array: Any, cut: slice, axis: int) -> Any:
    """Some rows of an array along its axis of rows, followed by an axis of one query."""
    if array is None or np.ndim(array) == 0:
        return array
    array = np.asarray(array)
    array = array.reshape((1,) * (-axis - array.ndim) + array.shape)
    return np.expand_dims(cut_rows(array, cut, axis), axis if axis == -1 else -2)
