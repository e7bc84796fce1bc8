# SPDX-License-Identifier: BSD-3-Clause
"""relax.op.nn.attention of Apache TVM, legalized and compiled with LLVM for each shape."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ._calls import heads_agree, mask_of, one_number, swap_heads
from ._engine import Engine, refuse


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    causal: Any = None,
    attn_mask: Any = None,
    scale: Any = None,
    layout: str = "bhsd",
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    given = [np.ascontiguousarray(x) for x in swap_heads((query, key, value), layout)]
    heads_agree(x.swapaxes(1, 2) for x in given)
    if not all(x.size for x in given):
        raise NotImplementedError("no arrays without numbers")
    if causal not in (None, "bottom_right"):
        raise NotImplementedError("causal masks from the first key or to the last one")
    if attn_mask is not None:
        given.append(_bias(attn_mask, query))
    import tvm

    alignment = "TopLeft" if is_causal else "BottomRight" if causal else None
    types = tuple((x.shape, x.dtype.name) for x in given)
    function = _compiled(types, one_number(scale), alignment)
    output = function(*map(tvm.runtime.tensor, given)).numpy()
    return swap_heads([output], layout)[0]


def _bias(attn_mask: Any, query: Any) -> Any:
    """A mask of four axes; the operator adds it."""
    mask = mask_of(attn_mask, query.dtype)
    if mask.dtype == np.bool_:
        raise NotImplementedError("no masks but those that are added")
    return np.ascontiguousarray(mask.reshape((1,) * (4 - mask.ndim) + mask.shape))


@cache
def _compiled(types: Any, scale: float | None, alignment: str | None) -> Any:
    """A compiled function of arrays of given shapes and types."""
    import tvm
    from tvm import relax

    inputs = [
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, (shape, dtype) in zip("qkvb", types, strict=False)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            bias = inputs[3] if len(inputs) > 3 else None
            result = relax.op.nn.attention(*inputs[:3], bias, scale, alignment)
            output = builder.emit_output(builder.emit(result))
        builder.emit_func_output(output)
    module = relax.transform.LegalizeOps()(builder.get())
    return relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())["main"]


TVM = Engine(
    name="tvm",
    call="tvm.relax.op.nn.attention",
    package="apache-tvm",
    run_with="0.27.0.post1",
    attend=_attend,
    requirements=("apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.15.post2"),
    notes="Arrays are transposed to (batch, n, heads, dim), and masks are given four axes.",
)
