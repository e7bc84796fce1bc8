# SPDX-License-Identifier: BSD-3-Clause
"""Write a probe: a folder of small checkpoints, one a kind of layer, with prompts and expected answers."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .._base.checks import InputError, refusal, shown
from .._base.hints import hinted
from .._files.gguf_writer import KINDS as GGUF_KINDS
from .._files.safetensors import write_safetensors
from . import _layout as lay
from ._ask import SCRIPT
from ._checkpoint import LONGEST, Checkpoint, checkpoints, listed
from ._gguf import convert, write_gguf
from ._tokenizer import tokenizer_files


@hinted
def write(
    config: Any,
    folder: str | os.PathLike[str],
    *,
    kinds: Iterable[str] | None = None,
    layer: int | None = None,
    longest: int = LONGEST,
    dtype: str = "float32",
    gguf: str | Iterable[str] | None = None,
    converter: str | os.PathLike[str] | None = None,
) -> Path:
    """Write small checkpoints whose log-probabilities reveal what an engine multiplies a score by.

    One checkpoint for each kind of layer, in folders ``layer-N`` after the layer that speaks: config.json,
    model.safetensors, a tokenizer whose words are the ids (``<p12>``), ``prompts.jsonl`` and
    ``expected.json``. Beside them lie ``probe.json`` and ``ask.py``, which asks without this package.

    Parameters
    ----------
    config : mapping, str, path or transformers config
        The config of a model, as :func:`attnscale.audit.resolve` takes it; of a composite one the language
        model. All its keys stay but sizes: head sizes, depth, kinds of layers and the quotient of width and
        heads are the model's, since engines infer scales from them. The audit of the small config must give
        the answer of the whole one.
    folder : path
        New, empty, or a probe, which is replaced as a whole.
    kinds : sequence of {"scale", "angles", "cap", "window", "sink", "temperature"}, optional
        What to ask; default: everything.
    layer : int, optional
        Ask this layer only, counted from 0.
    longest : int, default: 16640
        Largest number of words of a prompt. Windows and temperatures beyond it are not asked, and the reading
        says so.
    dtype : {"float32", "bfloat16", "float16"}
        The type that config.json names, for servers that follow it.
    gguf : str or sequence of str, optional
        Types of GGUF files to write as well: "f32", "f16", "bf16", "q8_0".
    converter : path, optional
        A convert_hf_to_gguf.py of llama.cpp to write them, since it is half of what is tested; default: keys
        and tensors as that program writes them.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ValueError
        If the config is not readable, its model type has no row in the table of families, no layer has an
        answer, or ``folder`` holds other files.

    Notes
    -----
    Word t has the embedding of one coordinate, so norms are known factors. One head of one layer speaks: a
    key of class c adds its weight to the coordinate of a word that is read. The logarithm of the quotient of
    two logits is then the score of that key, whatever norms and soft-caps follow.

    Examples
    --------
    >>> import attnscale as at, pathlib, tempfile
    >>> config = {"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28,
    ...           "num_key_value_heads": 4, "num_hidden_layers": 28, "rope_theta": 1000000.0}
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = at.probe.write(config, pathlib.Path(place) / "probe")
    ...     sorted(each.name for each in folder.iterdir())
    ['ask.py', 'layer-0', 'probe.json']
    """
    root = _free(folder)
    formats = listed("gguf", gguf, (), tuple(GGUF_KINDS))
    if converter is not None and not formats:
        raise refusal(InputError, "converter", "must come with gguf, the types of the files")
    made = checkpoints(config, kinds=kinds, layer=layer, longest=longest, dtype=dtype)
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as place:
        new = Path(place) / "probe"
        new.mkdir()
        for each in made:
            _write_checkpoint(each, new / each.name, formats, None if converter is None else Path(converter))
        about = {"format": lay.FORMAT, "checkpoints": [each.name for each in made]}
        (new / "probe.json").write_text(json.dumps(about) + "\n")
        shutil.copyfile(SCRIPT, new / "ask.py")
        if root.is_dir() and not any(root.iterdir()):  # it may be the folder that the caller works in
            for path in new.iterdir():
                path.rename(root / path.name)
        else:
            if root.exists():
                root.rename(Path(place) / "old")
            new.rename(root)
    return root


def _free(folder: Any) -> Path:
    """The whole path of a folder that is new, empty, or a probe without files of others."""
    try:
        root = Path(folder).resolve()
    except TypeError:
        raise refusal(TypeError, "folder", f"must be a path, got {shown(folder)}") from None
    if any(each.exists() and not each.is_dir() for each in (root, *root.parents)):
        raise refusal(InputError, "folder", f"must be a folder, got the file {root} or a place in one")
    if root.exists() and (names := {path.name for path in root.iterdir()}):
        own = _own_names(root / "probe.json")
        if others := sorted(names - own):
            raise refusal(InputError, "folder", f"must be new, empty or a probe, got {root} with {others[0]}")
    return root


def _own_names(file: Path) -> set[str]:
    """Names in a probe by its own file, or none for another file."""
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        found = {str(name) for name in about["checkpoints"]} | {"probe.json", "ask.py"}
        return found if about["format"] == lay.FORMAT else set()
    except (OSError, ValueError, TypeError, LookupError):
        return set()


def _write_checkpoint(made: Checkpoint, folder: Path, formats: Iterable[str], converter: Path | None) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(made.config, indent=1) + "\n")
    # Zeros are given in float16, and stored as bfloat16.
    zeros = {name: x.view(np.uint16) for name, x in made.tensors.items() if x.dtype == np.float16}
    write_safetensors(folder / "model.safetensors", {**made.tensors, **zeros})
    lines = [
        {"prompt": each.name, "ids": each.tokens, "text": lay.text_of(each.tokens)} for each in made.prompts
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "expected.json").write_text(json.dumps(made.expected) + "\n")
    for name, content in tokenizer_files(lay.words()).items():
        (folder / name).write_text(json.dumps(content) + "\n")
    for each in formats:
        if converter is None:
            write_gguf(made.config, made.tensors, folder / f"{each}.gguf", each)
        else:
            convert(folder, folder / f"{each}.gguf", converter, each)
