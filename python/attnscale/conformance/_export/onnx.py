# SPDX-License-Identifier: BSD-3-Clause
"""Tests of ONNX nodes: a folder for each case, with the operator Attention, its inputs and its output.

The meaning of the operator is that of its text for opset 24 in onnx 1.23, and for 25 if there is a window.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._base.checks import InputError, refusal
from .._check import TOLERANCES
from .plain import PlainCall, slug

_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")


def write(folder: Path, calls: Mapping[str, PlainCall]) -> dict[str, str]:
    """Write calls as tests of a node, and return why some are left out."""
    try:
        onnx: Any = import_module("onnx")
    except ImportError:
        rule = "'onnx' needs the package onnx (pip install onnx)"
        raise refusal(InputError, "form", rule) from None
    left_out = {}
    for name, call in calls.items():
        try:
            inputs, attributes = _node(call)
        except NotImplementedError as error:
            left_out[name] = str(error)
        else:
            _write_test(onnx, folder / f"test_{slug(name)}", call, inputs, attributes)
    return left_out


def _node(call: PlainCall) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Inputs and attributes of the operator; NotImplementedError where it has none that mean the same."""
    if call.documents is not None or call.sink is not None:
        raise NotImplementedError("no documents, no sink")
    if not all(np.isfinite(x.astype(np.float64)).all() for x in (call.query, call.key, call.value)):
        raise NotImplementedError("the operator adds its mask, so a NaN reaches every row")
    if call.scale is not None and call.scale < 0:
        raise NotImplementedError("a negative scale has no square root")
    if call.mask is not None and (call.mask.ndim == 0 or call.mask.shape[-1] != call.sizes["keys"]):
        raise NotImplementedError("a mask of fewer keys is filled up, not broadcast")
    inputs = {"Q": call.query, "K": call.key, "V": call.value}
    attributes: dict[str, Any] = {}
    if call.mask is not None:
        inputs["attn_mask"] = call.mask
    for name in ("scale", "softcap"):
        if (given := getattr(call, name)) is not None:
            attributes[name] = given
    if call.window is not None:
        attributes |= dict(zip(("left_window_size", "right_window_size"), call.window, strict=True))
    if call.causal:
        attributes["is_causal"] = 1
    inputs |= _alignment(call)
    if call.bshd:
        inputs |= {name: inputs[name].reshape(*inputs[name].shape[:2], -1) for name in ("Q", "K", "V")}
        attributes |= {"q_num_heads": call.sizes["heads"], "kv_num_heads": call.sizes["key_heads"]}
    return inputs, attributes


def _alignment(call: PlainCall) -> dict[str, NDArray[Any]]:
    """Inputs that move the queries: lengths align them at the last key, past keys before the others."""
    keys = call.sizes["keys"]
    if call.lengths is not None:
        if call.causal != "bottom_right" and (call.causal or call.window):
            raise NotImplementedError("with lengths the queries are the last positions")
        return {"nonpad_kv_seqlen": call.lengths}
    if call.causal == "bottom_right":
        return {"nonpad_kv_seqlen": np.full(call.sizes["batch"], keys)}
    if call.causal != "offset":
        return {}
    if not 0 < call.offset < keys or call.bshd:
        raise NotImplementedError("past keys are some, not all, on four axes")
    past = {"past_key": call.key, "past_value": call.value}
    now = {"K": call.key, "V": call.value}
    return {name: x[:, :, : call.offset] for name, x in past.items()} | {
        name: x[:, :, call.offset :] for name, x in now.items()
    }


def _write_test(
    onnx: Any,
    folder: Path,
    call: PlainCall,
    inputs: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, Any],
) -> None:
    output = call.output.reshape(*call.output.shape[:2], -1) if call.bshd else call.output
    outputs = {"Y": output}
    if "past_key" in inputs:  # the standard asks for both or neither
        outputs |= {"present_key": call.key, "present_value": call.value}
    given = [name if name in inputs else "" for name in _INPUTS]
    while not given[-1]:
        given.pop()
    helper = onnx.helper
    node = helper.make_node("Attention", given, list(outputs), **attributes)
    ordered = {name: inputs[name] for name in given if name}
    graph = helper.make_graph(
        [node], folder.name, *([_typed(helper, *each) for each in x.items()] for x in (ordered, outputs))
    )
    opset = helper.make_opsetid("", 24 if call.window is None else 25)
    model = helper.make_model(
        graph,
        opset_imports=[opset],
        ir_version=helper.find_min_ir_version_for([opset]),
        producer_name="attnscale",
    )
    onnx.checker.check_model(model, full_check=True)
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    allowed = TOLERANCES[call.query.dtype.name]
    about = {"model_name": folder.name, "rtol": allowed, "atol": allowed}
    (folder / "data.json").write_text(json.dumps(about, sort_keys=True), encoding="utf-8")
    for kind, arrays in (("input", ordered), ("output", outputs)):
        for i, (name, array) in enumerate(arrays.items()):
            stored = onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
            (data / f"{kind}_{i}.pb").write_bytes(stored.SerializeToString())


def _typed(helper: Any, name: str, array: NDArray[Any]) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
