"""Record of the metadata that llama.cpp's own converter writes: python tests/probe/gguf_record.py LLAMA_CPP

LLAMA_CPP is a folder of its sources. The record is gguf_keys.json: all keys of a plain config, and those that
differ with other rotary parameters, or the error.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from gguf_models import MODELS, VARIANTS, config_of

RECORD = Path(__file__).with_name("gguf_keys.json")


def keys_of(sources: Path, config: dict[str, Any]) -> dict[str, Any] | str:
    """Metadata of the converter for a config, without that of files and tokenizers; or its error."""
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    try:
        gguf, conversion = importlib.import_module("gguf"), importlib.import_module("conversion")
    finally:
        del sys.path[:2]
    with tempfile.TemporaryDirectory() as place:
        Path(place, "config.json").write_text(json.dumps(config))
        chosen = conversion.get_model_class(config["architectures"][0])
        try:
            made = chosen(Path(place), gguf.LlamaFileType.ALL_F32, Path(place, "x.gguf"), eager=True)
            made = getattr(made, "impl", made)
            list(made.generate_extra_tensors())
            made.set_gguf_parameters()
        except (AssertionError, ValueError) as error:
            return f"refused: {error}".replace(str(place), "FOLDER")
    written = made.gguf_writer.kv_data[0].items()
    return {name: each.value for name, each in written if not name.startswith(("general.", "tokenizer."))}


def record(sources: Path) -> dict[str, Any]:
    logging.disable(logging.WARNING)
    found: dict[str, Any] = {}
    for kind in MODELS:
        plain = keys_of(sources, config_of(kind))
        assert isinstance(plain, dict), plain
        found[kind] = {"plain": plain}
        for variant in list(VARIANTS)[1:]:
            keys = keys_of(sources, config_of(kind, variant))
            if isinstance(keys, dict):
                assert set(plain) <= set(keys)
                keys = {name: value for name, value in keys.items() if plain.get(name) != value}
            found[kind][variant] = keys
    return found


if __name__ == "__main__":
    lines = [
        f' "{kind}": {{\n'
        + ",\n".join(f'  "{name}": {json.dumps(keys)}' for name, keys in each.items())
        + "\n }"
        for kind, each in record(Path(sys.argv[1])).items()
    ]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
