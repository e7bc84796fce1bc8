# SPDX-License-Identifier: BSD-3-Clause
"""tract_transformers_sdpa of tract, an operator of its models in NNEF."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ._calls import full_mask, heads_agree, mask_of, one_number
from ._engine import Engine, refuse

_TYPES = {"float32": "f32", "float16": "f16", "bool": "bool"}


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    causal: Any = None,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    heads_agree((query, key, value), enable_gqa)
    if not all(x.size for x in (query, key, value)):
        raise NotImplementedError("no arrays without numbers")
    if causal not in (None, "bottom_right") or (is_causal and query.shape[2] != key.shape[2]):
        raise NotImplementedError("no causal mask but that to the last key")
    given = [query, key, value]
    if attn_mask is not None:
        given.append(full_mask(mask_of(attn_mask, query.dtype), query, key))
    if {x.dtype.name for x in given} - set(_TYPES) or query.dtype == np.bool_:
        raise NotImplementedError("arrays and added masks of float32 and float16, boolean masks")
    types = tuple((x.shape, _TYPES[x.dtype.name]) for x in given)
    run = _model(types, one_number(scale), bool(is_causal or causal)).run
    return run([np.ascontiguousarray(x) for x in given])[0].to_numpy()


@cache
def _model(types: Any, scale: float | None, is_causal: bool) -> Any:
    """A model that runs the operator on arrays of given shapes and types."""
    import tract

    names = "qkvm"[: len(types)]
    lines = [
        f"{name} = tract_core_external(shape = {list(shape)}, datum_type = '{kind}');"
        for name, (shape, kind) in zip(names, types, strict=True)
    ]
    how = {"datum_type": f"'{types[0][1]}'", "acc_datum_type": "'f32'", "is_causal": str(is_causal).lower()}
    if scale is not None:
        how["scale"] = repr(scale)
    call = ", ".join([*names, *(f"{name} = {value}" for name, value in how.items())])
    lines.append(f"y = tract_transformers_sdpa({call});")
    extensions = "".join(f"extension tract_registry {x};\n" for x in ("tract_transformers", "tract_core"))
    graph = f"graph attention({', '.join(names)}) -> (y)\n{{\n" + "\n".join(lines) + "\n}\n"
    with TemporaryDirectory() as folder:
        (Path(folder) / "graph.nnef").write_text(f"version 1.0;\n{extensions}{graph}", encoding="utf-8")
        return tract.nnef().with_tract_transformers().load(folder).into_runnable()


TRACT = Engine(
    name="tract",
    call="tract_transformers_sdpa",
    package="tract",
    run_with="0.23.9",
    attend=_attend,
    requirements=("tract==0.23.9",),
    notes="A model for each shape, which adds up in float32; masks are full.",
)
