# SPDX-License-Identifier: BSD-3-Clause
"""Ready adapters of JAX's family and of runtimes: records, refusals, and the engines of JAX run."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.conformance.engines import engines, find_engine

#: Names, and the packages that they import.
NAMES = {
    **dict.fromkeys(("jax", "jax-pallas"), "jax"),
    **dict.fromkeys(("flax", "flax-dropout"), "flax"),
    "equinox": "equinox",
    "haiku": "haiku",
    "flash-attention-jax": "flash_attention_jax",
    "mlx": "mlx",
    "tinygrad": "tinygrad",
    "paddle": "paddle",
    "onnx-reference": "onnx",
    "openvino": "openvino",
    **dict.fromkeys(("onnxruntime", "onnxruntime-mha", "onnxruntime-gqa"), "onnxruntime"),
    "ncnn": "ncnn",
    "ggml": "pywhispercpp",
    "ggml-softmax": "pywhispercpp",
    "tvm": "tvm",
    "iree": "iree",
    "iree-online": "iree",
    "tract": "tract",
}


def arrays(n_queries: int = 5, n_keys: int = 5, heads: int = 2, key_heads: int = 2) -> list[Any]:
    rng = np.random.default_rng(3)
    shapes = ((2, heads, n_queries, 8), (2, key_heads, n_keys, 8), (2, key_heads, n_keys, 8))
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("name", NAMES)
def test_a_record_is_complete(name: str) -> None:
    engine = find_engine(name)
    assert engine.call
    assert engine.notes.endswith(".")
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", each) for each in engine.requirements)
    if engine.requirements:
        assert f"{engine.package}=={engine.run_with}" in engine.requirements
    else:
        assert engine.package == "jax"


def test_the_list_of_engines_imports_none_of_them() -> None:
    code = "import sys, attnscale.conformance.engines as e; e.engines(); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "attnscale.conformance.engines.jax_nn" in loaded
    assert not loaded & set(NAMES.values())


@pytest.mark.parametrize("name", NAMES)
def test_what_an_engine_lacks_is_refused_before_it_is_imported(name: str) -> None:
    engine = engines()[name]
    with pytest.raises(NotImplementedError, match="no distance_bias"):
        engine(*arrays(), distance_bias=np.ones(5))
    with pytest.raises(NotImplementedError, match="no qk_norm"):
        engine(*arrays(), qk_norm="l2")
    with pytest.raises(NotImplementedError, match="4 axes"):
        engine(*(x[0] for x in arrays()))


@pytest.mark.parametrize("name", ["ncnn", "ggml", "ggml-softmax", "onnxruntime-mha"])
@pytest.mark.parametrize("dtype", [np.bool_, np.int64])
def test_a_mask_of_another_kind_is_not_translated(name: str, dtype: Any) -> None:
    with pytest.raises(NotImplementedError, match="no masks but those that are added"):
        find_engine(name)(*arrays(), attn_mask=np.eye(5, dtype=dtype))


@pytest.mark.parametrize("name", ["openvino", "mlx", "ggml", "ggml-softmax"])
def test_normalizers_but_sinks_of_heads_are_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match="but the softmax and a sink"):
        find_engine(name)(*arrays(), normalizer="sparsemax")
    with pytest.raises(NotImplementedError, match="no sinks of rows"):
        find_engine(name)(*arrays(), normalizer=at.normalizers.Sink(np.zeros((2, 5))))


@pytest.mark.parametrize("name", ["jax", "jax-pallas", "flax", "flash-attention-jax"])
def test_values_of_another_width_are_refused(name: str) -> None:
    query, key, value = arrays()
    with pytest.raises(NotImplementedError, match="as wide as keys"):
        find_engine(name)(query, key, value[..., :5])


def test_a_causal_operator_refuses_the_rest() -> None:
    attend = find_engine("onnxruntime-gqa")
    calls: list[tuple[int, int, dict[str, Any]]] = [(5, 5, {}), (3, 5, {"is_causal": True})]
    calls += [(5, 3, {"causal": "bottom_right"}), (5, 5, {"causal": 1}), (1, 5, {"is_causal": True})]
    for n_queries, n_keys, options in calls:
        with pytest.raises(NotImplementedError, match="always causal"):
            attend(*arrays(n_queries, n_keys), **options)


@pytest.mark.parametrize("name", ["mlx", "ncnn", "ggml", "onnxruntime-mha", "tvm", "iree", "tract"])
def test_arrays_without_numbers_are_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match="without numbers"):
        find_engine(name)(*arrays(n_keys=0))


JAX_CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": -0.5},
    "window": {"window": (2, 1)},
    "lengths": {"key_lengths": np.array([3, 5])},
    "mask": {"attn_mask": np.tri(5, dtype=bool)},
    "bias": {"attn_mask": np.linspace(-1, 1, 25, dtype=np.float32).reshape(5, 5)},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.jax
@pytest.mark.parametrize("name", JAX_CALLS)
def test_dot_product_attention_of_jax(name: str) -> None:
    pytest.importorskip("jax")
    options = JAX_CALLS[name]
    given = arrays(heads=4, key_heads=2 if "enable_gqa" in options else 4)
    rows = at.attention_statistics(*given, statistics="lse", **options)
    found = find_engine("jax")(*given, **options)
    assert found["output"] == pytest.approx(rows.output, abs=2e-6)
    assert found["lse"].swapaxes(1, 2) == pytest.approx(rows.lse, abs=2e-6)


@pytest.mark.jax
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_gradients_of_jax(layout: str) -> None:
    pytest.importorskip("jax")
    options: dict[str, Any] = {"is_causal": True, "enable_gqa": True, "layout": layout}
    given = arrays(heads=4)
    if layout == "bshd":
        given = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in given]
    found = find_engine("jax")(*given, **options)
    assert found["output"] == pytest.approx(at.attention(*given, **options), abs=2e-6)
    grad = np.random.default_rng(4).standard_normal(found["output"].shape, np.float32)
    expected = at.attention_gradients(*given, grad, **options)
    for one, other in zip(
        found["gradients"](grad), (expected.query, expected.key, expected.value), strict=True
    ):
        assert one == pytest.approx(other, abs=5e-6)


@pytest.mark.jax
def test_a_window_of_jax_has_two_ends() -> None:
    pytest.importorskip("jax")
    given = arrays()
    found = find_engine("jax")(*given, window=(None, None))
    assert found["output"] == pytest.approx(at.attention(*given), abs=2e-6)
    with pytest.raises(NotImplementedError, match="open on one side"):
        find_engine("jax")(*given, window=(2, None))


@pytest.mark.jax
def test_the_lse_of_jax_has_no_gradient() -> None:
    pytest.importorskip("jax")
    given = arrays()
    found = find_engine("jax")(*given)
    grads = found["lse_gradients"](np.ones((2, 2, 5), np.float32))
    assert [x.shape for x in grads] == [given[0].shape, given[1].shape]
    assert not any(x.any() for x in grads)


@pytest.mark.jax
@pytest.mark.filterwarnings("ignore:jax.experimental.pallas.ops.gpu.attention is deprecated")  # JAX 0.12
def test_the_kernel_of_pallas_returns_an_lse_in_base_2() -> None:
    pytest.importorskip("jax")
    given = arrays()
    options = {"document_ids": np.array([0, 0, 1, 1, 1]), "is_causal": True}
    rows = at.attention_statistics(*given, statistics="lse", **options)
    found = find_engine("jax-pallas")(*given, **options)
    assert found["output"] == pytest.approx(rows.output, abs=2e-6)
    assert found["lse"] == pytest.approx(rows.lse / np.log(2), abs=2e-6)
