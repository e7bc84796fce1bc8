# SPDX-License-Identifier: BSD-3-Clause
"""ScaledDotProductAttention of OpenVINO, on a CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ._calls import mask_of, one_number, sink_logits
from ._engine import Engine, refuse


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: Any = None,
    normalizer: Any = None,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    if len({x.shape[:2] for x in (query, key, value)}) > 1:
        raise NotImplementedError("heads and batches that agree")
    if not key.shape[2]:
        raise NotImplementedError("no call without keys")
    sinks = sink_logits(normalizer, query.shape[1], query.dtype)
    given = [query, key, value]
    if attn_mask is not None:
        given.append(mask_of(attn_mask, query.dtype))
    types = tuple((x.shape, x.dtype) for x in given)
    logits = None if sinks is None else tuple(sinks.tolist())
    return _model(types, one_number(scale), is_causal, logits)(given)[0]


@cache
def _model(types: Any, scale: float | None, is_causal: bool, sinks: Any) -> Any:
    """A compiled model for arrays of given shapes and types."""
    import openvino
    from openvino.utils.node_factory import NodeFactory

    ops: Any = openvino.opset13
    number = types[0][1]
    inputs = [ops.parameter(list(shape), dtype) for shape, dtype in types]
    taken = [*inputs, ops.constant(np.zeros((), number))][:4]
    if scale is None and sinks is not None:  # the sink's place is behind the scale's
        scale = types[0][0][-1] ** -0.5
    if scale is not None:
        taken.append(ops.constant(np.array(scale, number)))
    if sinks is not None:
        taken.append(ops.constant(np.array(sinks, number).reshape(1, -1, 1, 1)))
    node = NodeFactory("opset13").create("ScaledDotProductAttention", taken, {"causal": is_causal})
    how = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return openvino.Core().compile_model(openvino.Model([node], inputs), "CPU", how)


OPENVINO = Engine(
    name="openvino",
    call="ScaledDotProductAttention of opset 13",
    package="openvino",
    run_with="2026.4.1",
    attend=_attend,
    requirements=("openvino==2026.4.1",),
    notes="A model for each shape, with the precision hint f32; without it a CPU may round to bfloat16.",
)
