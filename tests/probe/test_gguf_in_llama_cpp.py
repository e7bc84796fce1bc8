"""GGUF files in llama.cpp itself (the wheel xllamacpp): log-probabilities beside those of transformers."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_models import MODELS, config_of, gguf, parsed
from gguf_record import RECORD, record
from numpy.typing import NDArray

llama_cpp = pytest.importorskip("xllamacpp")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", exc_type=ImportError)

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_RNG = np.random.default_rng(11)
_PROMPTS = [[1, *map(int, _RNG.integers(3, 256, length))] for length in (1, 39, 39)]


@contextmanager
def server(path: Path) -> Iterator[Any]:
    """A server of llama.cpp: what it answers to a body posted to an address."""
    options = llama_cpp.CommonParams()
    options.model.path = str(path)
    options.n_ctx, options.n_parallel, options.verbosity = 64, 1, 0
    options.cache_prompt = options.warmup = False
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.flash_attn_type = llama_cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    options.cache_type_k = options.cache_type_v = llama_cpp.ggml_type.GGML_TYPE_F32
    running = llama_cpp.Server(options)

    def post(where: str, **body: Any) -> Any:
        address = running.listening_address + where
        request = urllib.request.Request(
            address, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    yield post


def answer(post: Any, prompt: Any) -> NDArray[Any]:
    """Log-probabilities of all tokens."""
    found = post("/completion", prompt=prompt, n_predict=1, n_probs=256, temperature=0.0, cache_prompt=False)
    listed = {each["id"]: each["logprob"] for each in found["completion_probabilities"][0]["top_logprobs"]}
    return np.array([listed[token] for token in range(256)])


def model_of(config: dict[str, Any], folder: Path) -> tuple[Any, dict[str, Any]]:
    """A model of random weights, and its tensors under the names of its checkpoint."""
    from safetensors.numpy import load_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(folder), attn_implementation="eager"
    ).float()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            size = 0.1 if parameter.ndim == 1 else 0.06
            parameter.mul_(0 if parameter.ndim > 1 or "bias" in name or "sinks" in name else 1)
            parameter.add_(torch.randn_like(parameter) * size)
            if config["model_type"].startswith("gemma") and "down_proj" in name:
                parameter.zero_()  # llama.cpp has a table of 16 bits for this activation, off by 1e-3
    made.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return made.eval(), load_file(folder / "model.safetensors")


@pytest.mark.parametrize("kind", MODELS)
def test_every_family_is_computed_as_in_transformers(tmp_path: Path, kind: str) -> None:
    config = config_of(kind)
    model, tensors = model_of(config, tmp_path / "model")
    expected = []
    with torch.no_grad():
        for prompt in _PROMPTS:
            logits = model(torch.tensor([prompt])).logits[0, -1].double()
            expected.append(torch.log_softmax(logits, -1).numpy())
    for stored, allowed in (("f32", 1e-4), ("q8_0", 0.5)):
        gguf.write_gguf(config, tensors, tmp_path / "x.gguf", stored)
        with server(tmp_path / "x.gguf") as post:
            for prompt, row in zip(_PROMPTS, expected, strict=True):
                np.testing.assert_allclose(answer(post, prompt), row, rtol=0, atol=allowed)


def test_words_are_the_ids_in_any_text(tmp_path: Path) -> None:
    _, tensors = model_of(config_of("llama"), tmp_path / "model")
    gguf.write_gguf(config_of("llama"), tensors, tmp_path / "x.gguf")
    with server(tmp_path / "x.gguf") as post:
        for text in ("<s><p12><p13><p200>", "<s> <p12> <p13> <p200>", "<s>\n<p12>  <p13>\n<p200> "):
            assert post("/tokenize", content=text)["tokens"] == [1, 12, 13, 200]
            np.testing.assert_array_equal(answer(post, text), answer(post, [1, 12, 13, 200]))
        assert post("/tokenize", content="<p12>", add_special=True)["tokens"] == [12]


_SOURCES = os.environ.get("LLAMA_CPP_SOURCES")


@pytest.mark.skipif(not _SOURCES, reason="LLAMA_CPP_SOURCES names no folder of llama.cpp")
class TestConverter:
    """llama.cpp's own converter, from a folder of its sources."""

    def test_the_record_of_its_keys_is_up_to_date(self) -> None:
        assert record(Path(str(_SOURCES))) == json.loads(RECORD.read_text())

    @pytest.mark.parametrize("kind", MODELS)
    def test_its_file_has_the_same_tensors(self, tmp_path: Path, kind: str) -> None:
        """Tensors are equal bit for bit, in the same types; llama.cpp reads the file."""
        _, tensors = model_of(config_of(kind), tmp_path / "model")
        converter = Path(str(_SOURCES)) / "convert_hf_to_gguf.py"
        stored = "q8_0" if kind in ("llama", "gpt_oss", "deepseek_v3") else "f32"
        gguf.write_gguf(config_of(kind), tensors, tmp_path / "ours.gguf", stored)
        gguf.convert(tmp_path / "model", tmp_path / "theirs.gguf", converter, stored)
        ours, theirs = parsed(tmp_path / "ours.gguf")[1], parsed(tmp_path / "theirs.gguf")[1]
        assert set(ours) == set(theirs)
        for name, (each, array) in ours.items():
            assert each == theirs[name][0]
            np.testing.assert_array_equal(array, theirs[name][1])
        with server(tmp_path / "theirs.gguf") as post:
            assert post("/tokenize", content="<s><p12><p13>")["tokens"] == [1, 12, 13]
