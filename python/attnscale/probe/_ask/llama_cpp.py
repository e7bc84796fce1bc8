# SPDX-License-Identifier: BSD-3-Clause
"""Asking llama.cpp in this process, by its server in the package xllamacpp."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from ..._base.checks import InputError, choose
from .engine import KEPT, Engine, RefusedError, not_loaded
from .folder import Prompt
from .script import log_probabilities

_CACHES = ("f32", "f16", "bf16", "q8_0")


@contextmanager
def loaded(file: Path, longest: int, *, cache: str = "f32", flash: bool = False) -> Iterator[Engine]:
    """A GGUF file as llama.cpp loads it, for prompts of up to `longest` tokens."""
    try:
        import xllamacpp
    except ImportError:
        raise InputError("llama_cpp needs xllamacpp: pip install xllamacpp") from None
    kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{choose('cache', cache, _CACHES).upper()}")
    options = xllamacpp.CommonParams()
    options.model.path = str(file)
    options.n_ctx = longest + 64
    options.n_batch = options.n_ubatch = 512
    options.n_parallel = 1
    # Matrices of a probe are so small that several threads only wait for each other.
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.cache_prompt = options.warmup = False
    options.verbosity = 1
    options.cache_type_k = options.cache_type_v = kind
    way = "ENABLED" if flash else "DISABLED"
    options.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{way}")
    number = version("xllamacpp")
    try:
        server = xllamacpp.Server(options)
    except Exception as error:  # whatever a loader of another package raises
        raise not_loaded(f"{file}: llama.cpp (xllamacpp {number})", error) from error

    def answer(prompt: Prompt) -> dict[int, float]:
        body = {"prompt": list(prompt.ids), "n_predict": 1, "n_probs": KEPT, "temperature": 0.0}
        reply = server.handle_completions({**body, "cache_prompt": False})
        found = log_probabilities(reply)
        if not found:
            raise RefusedError(f"{file}: {reply.get('error', reply)}")
        return found

    named = f"{file.name}, {cache} cache{', flash attention' if flash else ''}"
    yield Engine(f"llama.cpp (xllamacpp {number}), {named}", answer)
