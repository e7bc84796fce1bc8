# SPDX-License-Identifier: BSD-3-Clause
"""Three chunked attentions of noflash-attention, of which it takes the first that memory allows."""

from __future__ import annotations

import contextlib
import io
from functools import partial
from typing import Any

import numpy as np

from ._engine import Engine, refuse
from ._torch import mask_to_torch, run


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
    function: str,
    **rest: Any,
) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):  # it tells that it is not active
        from noflash_attention import patch

    refuse(rest, query, key, value)
    heads, kv_heads = query.shape[1], key.shape[1]
    if value.shape[3] != query.shape[3]:
        raise NotImplementedError("values as wide as queries")
    if np.ndim(scale) or (heads != kv_heads and not (enable_gqa and kv_heads and heads % kv_heads == 0)):
        raise NotImplementedError("one scale, and fewer heads of keys only when they are shared")
    mask = mask_to_torch(attn_mask, query)
    options = {"scale": None if scale is None else float(scale), "attn_mask": mask, "is_causal": is_causal}
    chunked = getattr(patch, function)
    differentiated = ["output"] if function == "chunked_sdpa" else []  # the others write in place
    return run(lambda q, k, v: chunked(q, k, v, **options), query, key, value, differentiated=differentiated)


def _engine(name: str, function: str) -> Engine:
    return Engine(
        name=name,
        call=f"noflash_attention.patch.{function}",
        package="noflash-attention",
        run_with="1.0.1",
        attend=partial(_attend, function=function),
        requirements=("noflash-attention==1.0.1",),
        notes="Called directly, since the package takes these on a GPU alone.",
    )


CHUNKED = _engine("noflash", "chunked_sdpa")
ONLINE = _engine("noflash-online", "chunked_sdpa_online")
IN_PLACE = _engine("noflash-inplace", "chunked_sdpa_inplace")
