# SPDX-License-Identifier: BSD-3-Clause
"""Queries and keys of engines, written to files that ``attnscale compare`` reads; copy what you need."""

import re
import sys
from pathlib import Path

import numpy as np


def save(path, layers, scale=None):
    """Write (query, key, scale) of each layer, arrays of (heads, n, head_dim), to one .npz file.

    A file has no scale: queries are multiplied by theirs over `scale`, that of the other run; default:
    1 / sqrt(head_dim).
    """
    query = np.concatenate([q * (own / (scale or q.shape[-1] ** -0.5)) for q, _, own in layers])
    key = np.concatenate([k for _, k, _ in layers])
    count, heads = len(layers), len(layers[0][0])
    names = {"layers": np.repeat(np.arange(count), heads), "heads": np.tile(np.arange(heads), count)}
    np.savez(path, query=query, key=key, **names)


def heads_of(x, n, head_dim):
    """Heads (heads, n, head_dim) of the first n rows of a tensor of a server."""
    return x[:n].reshape(n, -1, head_dim).transpose(0, 1).float().cpu().numpy()


def from_mlx(checkpoint, tokens, path):
    """Run mlx-lm on token ids, with its attention wrapped."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    model, _ = load_model(Path(checkpoint))
    home = sys.modules[type(model).__module__]  # such as mlx_lm.models.qwen3_moe
    own, layers = home.scaled_dot_product_attention, []

    def kept(queries, keys, values, cache, scale, **options):
        layers.append((*(np.array(x[0].astype(mx.float32)) for x in (queries, keys)), scale))
        return own(queries, keys, values, cache=cache, scale=scale, **options)

    home.scaled_dot_product_attention = kept
    try:
        mx.eval(model(mx.array([tokens])))
    finally:
        home.scaled_dot_product_attention = own
    save(path, layers)


def from_llama_cpp(gguf, tokens, path, head_dim, scale):
    """Run llama-cpp-python on token ids, with llama.cpp's callback for tensors; `scale` is the model's."""
    import ctypes

    import llama_cpp.llama_cpp as llama

    lib, seen = llama._lib, {}
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    lib.ggml_get_name.restype, lib.ggml_get_name.argtypes = ctypes.c_char_p, [pointer]
    lib.ggml_nbytes.restype, lib.ggml_nbytes.argtypes = size, [pointer]
    lib.ggml_backend_tensor_get.argtypes = [pointer, pointer, size, size]

    @llama.ggml_backend_sched_eval_callback
    def keep(tensor, ask, _):
        name = lib.ggml_get_name(tensor).decode()
        wanted = re.fullmatch(r"[QK]cur-\d+", name) is not None
        if ask or not wanted:
            return wanted or not ask
        x = np.empty(lib.ggml_nbytes(tensor) // 4, np.float32)
        lib.ggml_backend_tensor_get(tensor, x.ctypes.data, 0, x.nbytes)
        seen[name] = x.reshape(len(tokens), -1, head_dim).swapaxes(0, 1)  # of a name the last is rotated
        return True

    model = llama.llama_model_load_from_file(gguf.encode(), llama.llama_model_default_params())
    options = llama.llama_context_default_params()
    options.cb_eval = keep
    options.n_ctx = options.n_batch = options.n_ubatch = len(tokens)
    context = llama.llama_init_from_model(model, options)
    seen.clear()  # what a run to warm up left
    given = (llama.llama_token * len(tokens))(*tokens)
    llama.llama_decode(context, llama.llama_batch_get_one(given, len(tokens)))
    save(path, [(seen[f"Qcur-{i}"], seen[f"Kcur-{i}"], scale) for i in range(len(seen) // 2)])


def from_vllm(checkpoint, tokens, path):
    """Run vLLM on token ids in this process, with hooks in front of its attention."""
    import os

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.model_executor.layers.attention import Attention

    n, layers = len(tokens), []

    def keep(module, args):
        if len(args[0]) >= n:  # the prompt, no later token
            layers.append((*(heads_of(x, n, module.head_size) for x in args[:2]), module.impl.scale))

    def hook(model):
        for module in model.modules():
            if isinstance(module, Attention):
                module.register_forward_pre_hook(keep)

    llm = LLM(checkpoint, enforce_eager=True, enable_prefix_caching=False)
    llm.apply_model(hook)
    llm.generate({"prompt_token_ids": tokens}, SamplingParams(max_tokens=1, temperature=0))
    save(path, layers)


def sglang_hook(config):
    """Make a hook for SGLang's --forward-hooks; config: n tokens, number of layers, path."""
    n, layers = config["n"], {}

    def keep(module, args, output):
        if len(args[0]) >= n:
            query_key = (heads_of(x, n, module.qk_head_dim) for x in args[:2])
            layers[module.layer_id] = (*query_key, module.scaling)
        if len(layers) == config["layers"]:
            save(config["path"], [*layers.values()])
            layers.clear()

    return keep
