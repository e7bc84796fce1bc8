# SPDX-License-Identifier: BSD-3-Clause
"""attention and online_attention of IREE's dialect linalg_ext, compiled for a CPU at each call."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from ._calls import full_mask, heads_agree, mask_of, one_number
from ._engine import Engine, refuse

_TYPES = {"float32": "f32", "float16": "f16", "bool": "i1"}
_MAPS = {"q": "(b, m, k)", "k": "(b, n, k)", "v": "(b, n, d)", "s": "()", "mask": "(b, m, n)"}
_RESULTS = {"acc": "(b, m, d)", "max": "(b, m)", "sum": "(b, m)"}


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    online: bool,
    attn_mask: Any = None,
    scale: Any = None,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    heads_agree((query, key, value))
    given = {"q": query, "k": key, "v": value}
    if not all(x.size for x in given.values()):
        raise NotImplementedError("no arrays without numbers")
    if attn_mask is not None:
        given["mask"] = full_mask(mask_of(attn_mask, query.dtype), query, key)
    if {x.dtype.name for x in given.values()} - set(_TYPES) or query.dtype.name == "bool":
        raise NotImplementedError("arrays and added masks of float32 and float16, boolean masks")
    factor = one_number(scale)
    if factor is None:
        factor = query.shape[-1] ** -0.5
    arrays = {name: np.ascontiguousarray(x).reshape(-1, *x.shape[2:]) for name, x in given.items()}
    types = {name: _tensor(x.shape, x.dtype) for name, x in arrays.items()}
    types |= {"s": _TYPES[query.dtype.name]}
    number = f"0x{np.array(factor, query.dtype).view(f'u{query.dtype.itemsize}'):X}"
    results = _results(arrays, online)
    function = _compiled(_text(types, results, number))
    found = function(*arrays.values())
    if not online:
        return np.array(found).reshape(*query.shape[:3], -1)
    output, highest, total = (np.array(x).reshape(*query.shape[:3], -1) for x in found)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"output": output / total, "max_score": highest[..., 0]}


def _tensor(shape: tuple[int, ...], dtype: Any) -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{_TYPES[dtype.name]}>"


def _results(arrays: dict[str, Any], online: bool) -> dict[str, str]:
    """Types of what the operator returns; the online one's are of float32."""
    rows = arrays["q"].shape[:2]
    dtype = np.dtype(np.float32) if online else arrays["q"].dtype
    shapes = {"acc": (*rows, arrays["v"].shape[2]), "max": rows, "sum": rows}
    return {name: _tensor(shape, dtype) for name, shape in shapes.items() if online or name == "acc"}


def _text(types: dict[str, str], results: dict[str, str], scale: str) -> str:
    """A module of one function around the operator."""
    order = [name for name in _MAPS if name in types]
    maps = [_MAPS[name] for name in order] + [_RESULTS[name] for name in results]
    online = len(results) > 1
    ends = {"acc": "0.0", "max": "0xFF7FFFFF", "sum": "0.0"}
    lines = [f"  %scale = arith.constant {scale} : {types['s']}"]
    for name, kind in results.items():
        lines.append(f"  %{name}_empty = tensor.empty() : {kind}")
        if online:
            lines.append(f"  %{name}_first = arith.constant {ends[name]} : f32")
            filled = f"linalg.fill ins(%{name}_first : f32) outs(%{name}_empty : {kind}) -> {kind}"
            lines.append(f"  %{name}_filled = {filled}")
    outs = ", ".join(f"%{name}_{'filled' if online else 'empty'}" for name in results)
    given = ", ".join("%scale" if name == "s" else f"%{name}" for name in order)
    kinds = ", ".join(results.values())
    maps_of = ", ".join(f"affine_map<(b, m, k, n, d) -> {each}>" for each in maps)
    values = ", ".join(f"%found#{i}" for i in range(len(results))) if online else "%found"
    return "\n".join(
        [
            f"func.func @attend({', '.join(f'%{x}: {types[x]}' for x in types if x != 's')}) -> ({kinds}) {{",
            *lines,
            f"  %found{f':{len(results)}' if online else ''} = iree_linalg_ext.{'online_' * online}attention",
            f"    <{{indexing_maps = [{maps_of}]}}>",
            f"    ins({given} : {', '.join(types[name] for name in order)}) outs({outs} : {kinds}) {{",
            "    ^bb0(%score: f32):",
            "      iree_linalg_ext.yield %score : f32",
            f"    }} -> {kinds}",
            f"  return {values} : {kinds}",
            "}",
        ]
    )


@cache
def _compiled(text: str) -> Any:
    """The compiled function of a module."""
    import iree.compiler
    import iree.runtime

    flags = ["--iree-llvmcpu-target-cpu=host"]
    binary = iree.compiler.compile_str(text, target_backends=["llvm-cpu"], extra_args=flags)
    return iree.runtime.load_vm_flatbuffer(binary, driver="local-sync")["attend"]


_REQUIREMENTS = ("iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0")

IREE = Engine(
    name="iree",
    call="iree_linalg_ext.attention",
    package="iree-base-runtime",
    run_with="3.13.0",
    attend=partial(_attend, online=False),
    requirements=_REQUIREMENTS,
    notes="Batches and heads are one axis, masks full; the scale, which must be given, is 1 / sqrt(width).",
)

IREE_ONLINE = Engine(
    name="iree-online",
    call="iree_linalg_ext.online_attention",
    package="iree-base-runtime",
    run_with="3.13.0",
    attend=partial(_attend, online=True),
    requirements=_REQUIREMENTS,
    notes="As iree. The output is the accumulator over the sum of exponentials.",
)
