# SPDX-License-Identifier: BSD-3-Clause
"""The layer SDPA of ncnn, a batch at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._calls import added_mask, heads_agree, one_number
from ._engine import Engine, refuse


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    attn_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    heads_agree((query, key, value), enable_gqa)
    if query.dtype != np.float32:
        raise NotImplementedError("arrays of float32 only")
    if not all(x.size for x in (query, key, value)):
        raise NotImplementedError("no arrays without numbers")
    texts = [query, key, value]
    if attn_mask is not None:
        texts.append(added_mask(attn_mask, query, key, np.float32))
    factor = one_number(scale)
    return np.stack([_run(text, factor) for text in zip(*texts, strict=True)])


def _run(arrays: tuple[Any, ...], scale: float | None) -> Any:
    """The layer on arrays (heads, n, dim)."""
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = 1
    names = "qkvm"[: len(arrays)]
    parameters = [f"5={int(len(arrays) > 3)}", *([] if scale is None else [f"6={scale!r}"])]
    inputs = "\n".join(f"Input {name} 0 1 {name}" for name in names)
    layer = f"SDPA attention {len(names)} 1 {' '.join(names)} y {' '.join(parameters)}"
    net.load_param_mem(f"7767517\n{len(names) + 1} {len(names) + 1}\n{inputs}\n{layer}\n")
    net.load_model(ncnn.DataReaderFromEmpty())
    extractor = net.create_extractor()
    kept = [np.ascontiguousarray(x) for x in arrays]  # a Mat points at them until it is copied
    given = [ncnn.Mat(x).clone() for x in kept]
    for name, mat in zip(names, given, strict=True):
        extractor.input(name, mat)
    return np.array(extractor.extract("y")[1])


NCNN = Engine(
    name="ncnn",
    call="layer SDPA",
    package="ncnn",
    run_with="1.0.20261020",
    attend=_attend,
    requirements=("ncnn==1.0.20261020",),
    notes="A graph of one layer for each text of a batch; masks are made full.",
)
