# SPDX-License-Identifier: BSD-3-Clause
"""The operator Attention of ONNX, opset 24, in ONNX Runtime and in ONNX's own evaluator.

A causal mask without key lengths begins at the first key; with them, the last query sees the last key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from ._calls import heads_agree, mask_of, one_number
from ._engine import Engine, refuse

#: Values of qk_matmul_output_mode: what the softmax reads, and what it gives.
_SCORES, _WEIGHTS = 2, 3


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    session: Callable[..., Any],
    modes: tuple[int, ...] = (_SCORES, _WEIGHTS),
    scale: Any = None,
    softcap: Any = None,
    is_causal: bool = False,
    causal: Any = None,
    layout: str = "bhsd",
    enable_gqa: bool = False,
    **options: Any,
) -> Any:
    masks = {name: options.pop(name, None) for name in ("attn_mask", "key_lengths")}
    refuse(options, query, key, value)
    if causal not in (None, "bottom_right") or (is_causal and masks["key_lengths"] is not None):
        raise NotImplementedError("no causal mask from the first key beside lengths, none from another")
    arrays = (query, key, value)
    heads_agree((x.swapaxes(1, 2) for x in arrays) if layout == "bshd" else arrays, enable_gqa)
    numbers = {"scale": one_number(scale), "softcap": softcap}
    attributes: dict[str, Any] = {name: float(x) for name, x in numbers.items() if x is not None}
    attributes["is_causal"] = int(is_causal or causal is not None)
    inputs = dict(zip("QKV", arrays, strict=True))
    if layout == "bshd":  # of three axes, the last of which has heads and channels
        attributes |= {"q_num_heads": query.shape[2], "kv_num_heads": key.shape[2]}
        inputs = {name: x.reshape(*x.shape[:2], -1) for name, x in inputs.items()}
    n_keys = key.shape[1 if layout == "bshd" else 2]
    inputs |= _masks(len(query), n_keys, query.dtype, causal=causal, **masks)
    output: Any = None
    found = {}
    for mode in modes:
        output, found[mode] = _run(session, inputs, attributes | {"qk_matmul_output_mode": mode})
    if layout == "bshd":
        output = np.reshape(output, (*query.shape[:3], -1))
    return {"output": output, "scores": found.get(_SCORES), "weights": found.get(_WEIGHTS)}


def _masks(
    batch: int, n_keys: int, dtype: Any, *, causal: Any, attn_mask: Any, key_lengths: Any
) -> dict[str, Any]:
    """The inputs of the operator that hide keys; lengths are needed for a causal mask at the last key."""
    inputs = {} if attn_mask is None else {"attn_mask": mask_of(attn_mask, dtype)}
    if key_lengths is not None or causal:
        inputs["lengths"] = np.full(batch, n_keys if key_lengths is None else key_lengths, np.int64)
    return inputs


def _run(session: Callable[..., Any], inputs: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """The output, and the scores of a mode."""
    names = tuple(name if name in inputs else "" for name in ("Q", "K", "V", "attn_mask", "", "", "lengths"))
    try:
        ready = one_node(session, "Attention", names, ("Y", "", "", "scores"), attributes, inputs)
        return ready.run(None, dict(inputs))
    except Exception as error:
        told = str(error).rpartition(" was false. ")
        if not told[1]:
            raise
        raise RuntimeError(told[2]) from None  # the reason is at the end of its messages


def one_node(
    session: Callable[..., Any],
    operator: str,
    names: tuple[str, ...],
    outputs: tuple[str, ...],
    attributes: Mapping[str, Any],
    inputs: Mapping[str, Any],
    domain: str = "",
) -> Any:
    """A session of a graph of one node, made once for its attributes and the types of its inputs."""
    types = tuple((name, x.dtype) for name, x in inputs.items())
    return _made(session, operator, names, outputs, tuple(attributes.items()), types, domain)


@cache
def _made(
    session: Callable[..., Any],
    operator: str,
    names: tuple[str, ...],
    outputs: tuple[str, ...],
    attributes: tuple[tuple[str, Any], ...],
    types: tuple[tuple[str, Any], ...],
    domain: str,
) -> Any:
    from onnx import helper

    node = helper.make_node(operator, names, outputs, domain=domain, **dict(attributes))
    kinds = {name: helper.np_dtype_to_tensor_dtype(dtype) for name, dtype in types}
    given = [helper.make_tensor_value_info(*each, None) for each in kinds.items()]
    first = next(iter(kinds.values()))
    returned = [helper.make_tensor_value_info(name, first, None) for name in outputs if name]
    opsets = [helper.make_opsetid("", 24), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(
        helper.make_graph([node], "attention", given, returned), opset_imports=opsets, ir_version=11
    )
    return session(model)


def runtime(model: Any) -> Any:
    """A session of ONNX Runtime with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _reference(model: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model)


REQUIREMENTS = ("onnx==1.23.2", "protobuf==7.36.2")
REQUIREMENTS_OF_RUNTIME = ("onnxruntime==1.32.0", "flatbuffers==25.12.19", "packaging==26.4", *REQUIREMENTS)

ONNXRUNTIME = Engine(
    name="onnxruntime",
    call="Attention of ONNX, opset 24, in ONNX Runtime",
    package="onnxruntime",
    run_with="1.32.0",
    attend=partial(_attend, session=runtime),
    requirements=REQUIREMENTS_OF_RUNTIME,
    notes="A graph of one node, run twice: for scores (mode 2) and for weights (mode 3).",
)

ONNX_REFERENCE = Engine(
    name="onnx-reference",
    call="Attention of ONNX, opset 24, in ReferenceEvaluator",
    package="onnx",
    run_with="1.23.2",
    attend=partial(_attend, session=_reference),
    requirements=REQUIREMENTS,
    notes="A graph of one node, run twice: for scores (mode 2) and for weights (mode 3).",
)
