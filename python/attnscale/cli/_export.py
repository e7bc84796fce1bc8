# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale demo --export DIR``: files that the commands of the documentation read."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from .. import datasets

#: The shape of Mistral's Ministral 3 8B: a config as its config.json has it, with all that the audit reads.
CONFIG = {
    "model_type": "ministral3",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}

_NEXT = """Try there:
  attnscale entropy heads.npz --laws standard log_n
  attnscale calibrate heads.npz
  attnscale audit config.json --at 0 8192 131072"""


def export(folder: Path) -> str:
    """Write the files into the folder, which is made, and say which they are and which were replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "heads.npz": (_heads(), "queries and keys of 18 heads of all-MiniLM-L6-v2 (Apache-2.0)"),
        "config.json": (
            f"{json.dumps(CONFIG, indent=2)}\n".encode(),
            "the config of a model with YaRN and a temperature",
        ),
        "text.txt": (_text().encode(), "the text that the heads read (PSF-2.0)"),
    }
    lines = [f"Written to {folder}:"]
    for name, (content, meaning) in contents.items():
        path = folder / name
        said = f" (replaced: it had {path.stat().st_size} bytes)" if path.exists() else ""
        path.write_bytes(content)
        lines.append(f"  {name:12} {meaning}{said}")
    return "\n".join([*lines, _NEXT])


def _heads() -> bytes:
    """The package's own file of heads, which says the layers, the heads and where all of it comes from."""
    return (files("attnscale") / "data" / "minilm_qk.npz").read_bytes()


def _text() -> str:
    """The text of the shipped heads: word pieces put together again, in lower case as the model read them."""
    return " ".join(datasets.minilm_qk().tokens[1:-1]).replace(" ##", "") + "\n"
