# SPDX-License-Identifier: BSD-3-Clause
"""dot_product_attention of Keras on three backends, and its layer MultiHeadAttention."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import numpy as np

from ._engine import Engine, mask_of_axes, refuse


def _load(backend: str) -> Any:
    """Keras on a backend, which it chooses once in a process."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = backend
    import keras

    if keras.backend.backend() != backend:
        raise RuntimeError(f"Keras runs on {keras.backend.backend()} here: one process a backend")
    return keras


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
    layout: str | None = None,
    backend: str,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    if layout not in (None, "bshd") or np.ndim(scale):
        raise NotImplementedError("one scale")
    if layout is None:
        query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    if query.shape[2] != key.shape[2] and not enable_gqa:
        raise NotImplementedError("fewer heads of keys only when they are shared")
    if backend == "jax" and (value.shape != key.shape or 0 in query.shape):
        raise NotImplementedError("values as wide as keys, and no empty arrays")
    options: dict[str, Any] = {"is_causal": is_causal, "scale": None if scale is None else float(scale)}
    if attn_mask is not None:
        is_float = np.asarray(attn_mask).dtype.kind not in "biu"
        options["bias" if is_float else "mask"] = np.asarray(attn_mask)
    keras = _load(backend)
    output = keras.ops.convert_to_numpy(keras.ops.dot_product_attention(query, key, value, **options))
    return output.swapaxes(1, 2) if layout is None else output


def _attend_layer(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    key_lengths: Any = None,
    weights: bool = True,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    batch, heads, n_queries, width = query.shape
    if query.shape[:2] != key.shape[:2] or key.shape[:3] != value.shape[:3]:
        raise NotImplementedError("one batch and one number of heads")
    options: dict[str, Any] = {"use_causal_mask": is_causal, "return_attention_scores": weights}
    if attn_mask is not None:
        mask = mask_of_axes(attn_mask, 4)
        if mask.shape[1] != 1:
            raise NotImplementedError("masks for all heads")
        options["attention_mask"] = mask[:, 0]
    if key_lengths is not None:
        lengths = np.broadcast_to(key_lengths, (batch,))
        options["key_mask"] = np.arange(key.shape[2]) < lengths[:, None]
    keras = _load(os.environ.get("KERAS_BACKEND", "numpy"))
    sizes = {"num_heads": heads, "key_dim": width, "value_dim": value.shape[3]}
    sizes["output_shape"] = heads * value.shape[3]
    layer = keras.layers.MultiHeadAttention(**sizes, use_bias=False, dtype=query.dtype.name)
    rows = [x.swapaxes(1, 2).reshape(batch, x.shape[2], heads * x.shape[3]) for x in (query, value, key)]
    layer.build(*(x.shape for x in rows))
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense):
        dense.kernel.assign(np.eye(max(dense.kernel.shape)).reshape(dense.kernel.shape))
    found = layer(*rows, training=False, **options)
    output = keras.ops.convert_to_numpy(found[0] if weights else found)
    output = output.reshape(batch, n_queries, heads, value.shape[3]).swapaxes(1, 2)
    return {"output": output, "weights": keras.ops.convert_to_numpy(found[1])} if weights else output


_REQUIREMENTS = (
    "keras==3.15.1",
    "h5py==3.16.0",
    "optree==0.20.0",
    "namex==0.1.0",
    "absl-py==2.5.1",
)


def _engine(name: str, backend: str) -> Engine:
    return Engine(
        name=name,
        call=f"keras.ops.dot_product_attention on {backend}",
        package="keras",
        run_with="3.15.1",
        attend=partial(_attend, backend=backend),
        requirements=_REQUIREMENTS,
        notes="Float masks are its bias. One process a backend.",
    )


NUMPY = _engine("keras", "numpy")
JAX = _engine("keras-jax", "jax")
TORCH = _engine("keras-torch", "torch")


def _engine_of_layer(name: str, weights: bool) -> Engine:
    return Engine(
        name=name,
        call=f"keras.layers.MultiHeadAttention, return_attention_scores={weights}",
        package="keras",
        run_with="3.15.1",
        attend=partial(_attend_layer, weights=weights),
        requirements=_REQUIREMENTS,
        notes="Projections are identities. On the backend of KERAS_BACKEND, by default NumPy.",
    )


LAYER = _engine_of_layer("keras-mha", weights=True)
LAYER_FUSED = _engine_of_layer("keras-mha-fused", weights=False)
