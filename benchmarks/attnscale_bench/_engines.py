# SPDX-License-Identifier: BSD-3-Clause
"""Attention on CPUs in other packages, each as a function that prepares a call on given arrays.

Arrays are (heads, n, head_dim), of float32 or of bfloat16. Preparation is not timed: a model, a compiled
function, arrays in the engine's layout. OpenVINO and ncnn take float32 and round it to bfloat16 in the call.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from attnscale import attention, attention_gradients, attention_statistics
from numpy.typing import NDArray

from ._peers import Torch
from ._session import OURS
from ._timing import Action

__all__ = ["ENGINES", "Engine", "Prepared", "Work", "with_version"]

Array = NDArray[Any]

#: Names of packages that differ from those of their distributions.
_PACKAGES = {
    "torch": "PyTorch",
    "jax": "JAX",
    "numpy": "NumPy",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}


class Prepared(NamedTuple):
    """A call, and a function that makes one array of its result."""

    call: Action
    read: Callable[[Any], Array]


class Engine(NamedTuple):
    """A function of a package; `prepare` takes arrays and a number of threads."""

    package: str
    function: str
    prepare: Callable[..., Prepared]

    @property
    def title(self) -> str:
        """Package, version and function."""
        return f"{with_version(self.package)}, {self.function}"


def with_version(package: str) -> str:
    """The name of a package, with its version if installed."""
    name = _PACKAGES.get(package, package)
    try:
        return f"{name} {version(package).partition('+')[0]}"
    except PackageNotFoundError:  # or imported from a folder
        return name


class Work(NamedTuple):
    """Engines that compute the same; ours, the reference, is first."""

    #: Operations of the products for each head, query, key and channel.
    flops: float
    engines: Mapping[str, Engine]


def _is_narrow(array: Array) -> bool:
    return array.dtype.name == "bfloat16"


def _wide(*arrays: Array) -> list[Array]:
    return [np.asarray(x, np.float32) for x in arrays]


# ---- PyTorch, and oneDNN through it -------------------------------------------------------------


def _torch() -> Torch:
    return Torch(import_module("torch"))


def _from_torch(result: Any) -> Array:
    """The array of a batch of one, in float32."""
    return np.asarray(result[0].float())


def _torch_fused(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    return Prepared(_torch().attention(q, k, v), _from_torch)


@cache
def _compiled_flex() -> Any:
    flex: Any = import_module("torch.nn.attention.flex_attention")
    return _torch().module.compile(flex.flex_attention, dynamic=True)  # once for all lengths: no slower here


def _torch_flex(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    return Prepared(_torch().call(_compiled_flex(), q, k, v), _from_torch)


def _onednn(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    """The two products and the softmax as TorchScript, which PyTorch turns into one oneDNN graph."""
    torch, scale = _torch(), q.shape[-1] ** 0.5
    jit = torch.module.jit

    def formulas(query: Any, key: Any, value: Any) -> Any:
        return torch.module.softmax(query @ key.mT / scale, -1) @ value

    before = jit.onednn_fusion_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        jit.enable_onednn_fusion(True)
        call = torch.call(jit.trace(formulas, torch.tensors(q, k, v)), q, k, v)
        for _ in range(3):  # it first records types, then fuses
            call()
        graph = str(jit.last_executed_optimized_graph())
        jit.enable_onednn_fusion(before)
    if "oneDNNFusionGroup" not in graph:
        raise NotImplementedError("PyTorch makes no graph of oneDNN of it")
    return Prepared(call, _from_torch)


def _torch_step(q: Array, k: Array, v: Array, grad: Array, threads: int) -> Prepared:
    return Prepared(
        _torch().attention_step(q, k, v, grad), lambda found: np.stack([*map(_from_torch, found)])
    )


def _torch_formulas(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    return Prepared(_torch().output_and_entropy(q, k, v), _with_entropy)


def _torch_twice(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    """Output and lse from one call, the mean score of each row from a second one with the keys as values."""
    torch, scale = _torch(), q.shape[-1] ** -0.5
    fused = torch.module.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def both(query: Any, key: Any, value: Any) -> Any:
        output, lse = fused(query, key, value)
        return output[0], (lse - scale * (query * fused(query, key, key)[0]).sum(-1))[0]

    return Prepared(torch.call(both, q, k, v), _with_entropy)


def _with_entropy(result: Any) -> Array:
    """Output and entropy as one array (heads, n, head_dim + 1)."""
    output, entropy = (np.asarray(x) for x in result)
    return np.concatenate([output, entropy[..., None]], -1)


# ---- JAX ----------------------------------------------------------------------------------------

# JAX uses all CPUs of the process; its number of threads cannot be changed.


def _jax(function: Callable[..., Any], *arrays: Array) -> Action:
    """A compiled function of arrays (1, n, heads, dim), JAX's layout."""
    jax: Any = import_module("jax")
    given = [jax.numpy.asarray(array.swapaxes(0, 1)[None]) for array in arrays]
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*given))


def _from_jax(result: Any) -> Array:
    return np.asarray(result[0], np.float32).swapaxes(0, 1)


def _jax_fused(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    return Prepared(_jax(import_module("jax").nn.dot_product_attention, q, k, v), _from_jax)


def _jax_step(q: Array, k: Array, v: Array, grad: Array, threads: int) -> Prepared:
    jax: Any = import_module("jax")

    def gradients(query: Any, key: Any, value: Any, wanted: Any) -> Any:
        return jax.vjp(jax.nn.dot_product_attention, query, key, value)[1](wanted)

    return Prepared(_jax(gradients, q, k, v, grad), lambda found: np.stack([*map(_from_jax, found)]))


def _jax_twice(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    """Like `_torch_twice`, in JAX."""
    jax: Any = import_module("jax")
    scale, attend = q.shape[-1] ** -0.5, jax.nn.dot_product_attention

    def both(query: Any, key: Any, value: Any) -> Any:
        output, lse = attend(query, key, value, return_residual=True)
        return output, lse - scale * (query * attend(query, key, key)).sum(-1)

    return Prepared(_jax(both, q, k, v), lambda found: _with_entropy(map(_from_jax, found)))


# ---- engines for inference ----------------------------------------------------------------------


def _onnx_session(
    node: Any, inputs: Mapping[str, int], output: int, opsets: Mapping[str, int], threads: int
) -> Any:
    """A session of ONNX Runtime for a graph of one node: `inputs` and `output` are element types of ONNX."""
    onnx, runtime = import_module("onnx"), import_module("onnxruntime")
    helper = onnx.helper
    ends = (inputs, dict.fromkeys(node.output, output))
    values = ([helper.make_tensor_value_info(*each, None) for each in end.items()] for end in ends)
    versions = [helper.make_opsetid(*each) for each in opsets.items()]
    model = helper.make_model(helper.make_graph([node], "attention", *values), opset_imports=versions)
    model.ir_version = 11
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _onnx(q: Array, k: Array, v: Array, threads: int, *, microsoft: bool = False) -> Prepared:
    onnx, runtime = import_module("onnx"), import_module("onnxruntime")
    heads, n, _ = q.shape
    kind = onnx.TensorProto.BFLOAT16 if _is_narrow(q) else onnx.TensorProto.FLOAT
    arrays = {"q": q[None], "k": k[None], "v": v[None]}
    name, own, opsets = "Attention", {}, {"": 23}
    if microsoft:  # its layout has the heads of a query side by side
        arrays["q"] = np.ascontiguousarray(q.swapaxes(0, 1)).reshape(1, n, -1)
        name, own = "MultiHeadAttention", {"domain": "com.microsoft", "num_heads": heads}
        opsets["com.microsoft"] = 1
    node = onnx.helper.make_node(name, list(arrays), ["y"], **own)
    session = _onnx_session(node, dict.fromkeys(arrays, kind), kind, opsets, threads)
    values = {each: runtime.OrtValue.ortvalue_from_numpy(array) for each, array in arrays.items()}

    def read(result: Any) -> Array:
        found = np.asarray(result[0].numpy(), np.float32)
        return found.reshape(n, heads, -1).swapaxes(0, 1) if microsoft else found[0]

    return Prepared(lambda: session.run_with_ort_values(None, values), read)


def _openvino(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    ov: Any = import_module("openvino")
    inputs = [ov.opset13.parameter([1, *array.shape], np.float32) for array in (q, k, v)]
    model = ov.Model([ov.opset13.scaled_dot_product_attention(*inputs)], inputs)
    how = {"INFERENCE_PRECISION_HINT": "bf16" if _is_narrow(q) else "f32", "INFERENCE_NUM_THREADS": threads}
    request = ov.Core().compile_model(model, "CPU", how).create_infer_request()
    for place, array in enumerate(_wide(q, k, v)):
        request.set_input_tensor(place, ov.Tensor(array[None]))
    return Prepared(lambda: request.infer(share_outputs=True), lambda result: result[0][0])


def _ncnn(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    ncnn: Any = import_module("ncnn")
    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_bf16_storage = _is_narrow(q)
    inputs = "\n".join(f"Input {name} 0 1 {name}" for name in "qkv")
    net.load_param_mem(f"7767517\n4 4\n{inputs}\nSDPA attention 3 1 q k v y\n")
    net.load_model(ncnn.DataReaderFromEmpty())
    given = {name: ncnn.Mat(array).clone() for name, array in zip("qkv", _wide(q, k, v), strict=True)}

    def call() -> object:
        extractor = net.create_extractor()
        for name, array in given.items():
            extractor.input(name, array)
        return extractor.extract("y")[1]

    return Prepared(call, np.asarray)


def _ggml(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    """ggml keeps queries and the output in float32."""
    ggml: Any = import_module("ggml")
    heads, n, dim = q.shape
    size = ggml.ggml_init_params(mem_size=32 * q.size + 2**24, mem_buffer=None, no_alloc=False)
    context = ggml.ggml_init(size)

    def tensor(array: Array) -> Any:
        kind = ggml.GGML_TYPE_BF16 if _is_narrow(array) else ggml.GGML_TYPE_F32
        made = ggml.ggml_new_tensor_4d(context, kind, dim, n, heads, 1)
        ctypes.memmove(ggml.ggml_get_data(made), array.ctypes.data, array.nbytes)
        return made

    given = tensor(_wide(q)[0]), tensor(k), tensor(v)
    result = ggml.ggml_flash_attn_ext(context, *given, None, dim**-0.5, 0.0, 0.0)
    graph, backend = ggml.ggml_new_graph(context), ggml.ggml_backend_cpu_init()
    ggml.ggml_build_forward_expand(graph, result)
    ggml.ggml_backend_cpu_set_n_threads(backend, threads)

    def read(_: Any) -> Array:
        numbers = ctypes.cast(ggml.ggml_get_data(result), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(numbers, (n, heads, dim)).swapaxes(0, 1)

    prepared = Prepared(lambda: ggml.ggml_backend_graph_compute(backend, graph), read)
    finalize(prepared.call, ggml.ggml_free, context)
    finalize(prepared.call, ggml.ggml_backend_free, backend)
    return prepared


# ---- ours ---------------------------------------------------------------------------------------


def _ours(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    return Prepared(lambda: attention(q, k, v), lambda result: np.asarray(result, np.float32))


def _our_entropy(q: Array, k: Array, v: Array, threads: int) -> Prepared:
    return Prepared(
        lambda: attention_statistics(q, k, v), lambda rows: _with_entropy([rows.output, rows.entropy])
    )


def _our_step(q: Array, k: Array, v: Array, grad: Array, threads: int) -> Prepared:
    def step() -> Any:
        rows = attention_statistics(q, k, v, statistics="lse")
        return attention_gradients(q, k, v, grad, forward=rows)

    return Prepared(step, lambda found: np.stack(_wide(found.query, found.key, found.value)))


_FUSED = "scaled_dot_product_attention"

ENGINES = {
    "forward": Work(
        4.0,
        {
            OURS: Engine("attnscale", "attention", _ours),
            "torch": Engine("torch", _FUSED, _torch_fused),
            "flex": Engine("torch", "flex_attention, compiled", _torch_flex),
            "onednn": Engine("torch", "oneDNN graph of TorchScript", _onednn),
            "onnx": Engine("onnxruntime", "Attention", _onnx),
            "onnx_mha": Engine("onnxruntime", "MultiHeadAttention", partial(_onnx, microsoft=True)),
            "openvino": Engine("openvino", "ScaledDotProductAttention", _openvino),
            "ncnn": Engine("ncnn", "SDPA", _ncnn),
            "ggml": Engine("ggml-python", "flash_attn_ext", _ggml),
            "jax": Engine("jax", "dot_product_attention", _jax_fused),
        },
    ),
    "step": Work(
        14.0,
        {
            OURS: Engine("attnscale", "attention_gradients", _our_step),
            "torch": Engine("torch", _FUSED, _torch_step),
            "jax": Engine("jax", "dot_product_attention", _jax_step),
        },
    ),
    "entropy": Work(
        4.0,
        {
            OURS: Engine("attnscale", "attention_statistics", _our_entropy),
            "torch_twice": Engine("torch", "lse, and a second call", _torch_twice),
            "torch": Engine("torch", "formulas", _torch_formulas),
            "jax_twice": Engine("jax", "lse, and a second call", _jax_twice),
        },
    ),
}
