# SPDX-License-Identifier: BSD-3-Clause
"""Calls that the kernels in Triton support. Triton is imported only after it was found."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from ..._base.versions import is_older
from .._base.arguments import Arguments
from .._plain.plan import of_distance
from .._plain.scores import key_count

#: Oldest Triton that compiles the kernels, whose arguments are tuples of addresses and strides.
_OLDEST = "3.4"
_TYPES = (torch.float16, torch.bfloat16, torch.float32)
#: Statistics that the kernels lack.
_NOT_HERE = ("renyi2", "min_score")
_LARGEST = 256  # limit of head_dim and value_dim


def obstacle(call: Arguments, asked: Iterable[str] = ()) -> str | None:
    """Reason by types, shapes and options why the kernels do not support a call, or None."""
    if why_not := _of_tensors(call) or _of_options(call):
        return why_not
    if other := [name for name in asked if name in _NOT_HERE]:
        return f"{other[0]} is not in the kernels"
    return None if call.is_softmax() else "the normalizer is neither a softmax nor one with a sink"


@cache
def check_installed() -> None:
    """Refuse a Triton that is absent, or too old for the kernels."""
    found = "none"
    if find_spec("triton") is not None:
        try:
            found = version("triton")
        except PackageNotFoundError:  # a build under another name, such as pytorch-triton-rocm
            return
        if not is_older(found, _OLDEST):
            return
    raise ImportError(
        f"backend='triton' needs Triton {_OLDEST} or later, found {found}: pip install \"attnscale[triton]\""
    )


def _of_tensors(call: Arguments) -> str | None:
    given = [x for x in call[:3] if x is not None]
    if {x.dtype for x in given} - {given[0].dtype} or given[0].dtype not in _TYPES:
        types = ", ".join(sorted({str(x.dtype) for x in given}))
        return (
            f"query, key and value are not all of one type of float16, bfloat16 and float32, but of {types}"
        )
    widths = [x.shape[-1] for x in given]
    if max(widths) > _LARGEST:
        return f"head_dim and value_dim are at most {_LARGEST}, not {max(widths)}"
    if 0 in (*call.row_extents()[0], key_count(call), *widths):
        return "there is nothing to compute"
    return None


def _of_options(call: Arguments) -> str | None:
    mask = call.attn_mask
    if call.distance_scale is not None or call.distance_bias is not None:
        return "factors and biases by distance are not in the kernels"
    if call.law and of_distance(call.law, *call.learned)[0]:
        return "a law of the distance is not in the kernels"
    if call.qk_norm:
        return "qk_norm is not in the kernels"
    if call.num_threads is not None:
        return "num_threads is for the CPU"
    if mask is not None and mask.requires_grad and (not mask.ndim or mask.shape[-1] != key_count(call)):
        return "a mask of one number for all keys has no gradient in the kernels"
    return None
