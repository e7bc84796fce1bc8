# SPDX-License-Identifier: BSD-3-Clause
"""A GGUF file by a user's own converter of llama.cpp, as it is installed, in a process of its own.

The converter knows tokenizers by the hash of a text's tokens, and none with words for ids. So it is given a
copy of the folder with a tokenizer in the form of GPT-2's, and that one hash is answered with GPT-2's (for
Gemma 2, a list of words in place of a SentencePiece model). All else is the converter's own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..._base.checks import InputError, choose, shown
from ..._files.gguf_writer import KINDS
from ..._files.whole import write_whole
from .. import _layout as lay
from .._tokenizer import tokenizer_files

_SECONDS = 600

#: Words for tokens 0 and 2 that the converter of a family looks up.
_ENDS = {"glm4": ("<|user|>", "<|endoftext|>")}

#: Program before the converter, which answers for the tokenizer.
_PROGRAM = r"""
import hashlib, re, runpy, sys, types
from importlib.machinery import ModuleSpec
from pathlib import Path

class Known:
    def hexdigest(self):
        return "3ce83efda5659b07b1ad37ca97ca5797ea4285d9b9ab0dc679e4a720c9da7454"

def sha256(data=b"", _real=hashlib.sha256, **options):
    listed = isinstance(data, bytes) and re.fullmatch(rb"\[[\d, ]*\]", data)
    return Known() if listed else _real(data, **options)

class Words:
    def LoadFromFile(self, path): self.words = Path(path).read_text().split()
    def vocab_size(self): return len(self.words)
    def IdToPiece(self, number): return self.words[number]
    def GetScore(self, number): return 0.0
    def IsUnknown(self, number): return number == 0
    def IsControl(self, number): return number in (1, 2)
    def IsUnused(self, number): return False
    def IsByte(self, number): return False

hashlib.sha256 = sha256
sys.modules["sentencepiece"] = words = types.ModuleType("sentencepiece")
words.__spec__, words.SentencePieceProcessor = ModuleSpec("sentencepiece", None), Words
sys.argv.pop(0)
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def convert(folder: Path, out: Path, converter: Path, kind: str = "f32") -> None:
    """Write a checkpoint as GGUF by llama.cpp's own converter.

    Parameters
    ----------
    folder : Path
        A checkpoint of a probe.
    out : Path
        The file to write.
    converter : Path
        The user's ``convert_hf_to_gguf.py``; this Python must have what it needs, as torch and transformers.
    kind : {"f32", "f16", "bf16", "q8_0"}
        Type of the matrices.

    Raises
    ------
    InputError
        If the converter is not there, or ends with an error: its last line is told.
    """
    choose("kind", kind, tuple(KINDS))
    if not converter.is_file():
        raise InputError(f"converter must be convert_hf_to_gguf.py of llama.cpp, got {shown(str(converter))}")
    with tempfile.TemporaryDirectory() as place:
        copy, made = Path(place) / "checkpoint", Path(place) / "made.gguf"
        _copy(folder, copy)
        options = ["--outfile", str(made), "--outtype", kind, "--no-lazy"]
        command = [sys.executable, "-c", _PROGRAM, str(converter.resolve()), str(copy), *options]
        _run(command, converter)
        if not made.is_file():
            raise InputError(f"{converter} ended well and wrote no file")
        write_whole(out, made.read_bytes())


def _run(command: list[str], converter: Path) -> None:
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"{converter} took more than {_SECONDS} s") from None
    if found.returncode:
        lines = [line for line in found.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise InputError(f"{converter} ended with an error: {lines[-1].strip()}")


def _copy(folder: Path, copy: Path) -> None:
    """The checkpoint with a tokenizer that the converter accepts."""
    copy.mkdir()
    for name in ("config.json", "model.safetensors"):
        (copy / name).symlink_to((folder / name).resolve())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name, content in _tokenizer(config).items():
        (copy / name).write_text(content, encoding="utf-8")


def _tokenizer(config: dict[str, Any]) -> dict[str, str]:
    """Files of a tokenizer by name, with the words and classes that the converter of the family looks up."""
    kind, words = config["model_type"], lay.words(config["vocab_size"])
    words[lay.UNKNOWN], words[lay.EOS] = _ENDS.get(kind, (words[lay.UNKNOWN], words[lay.EOS]))
    files = tokenizer_files(words)
    about = files["tokenizer_config.json"]
    made = {"merges.txt": "a b\n"}  # without a merge the key is left out, and llama.cpp refuses the file
    if kind == "phi3":
        about["tokenizer_class"] = "GPT2Tokenizer"
    if kind == "gemma2":
        made["tokenizer.model"] = " ".join(words)
        added = [dict(each) for each in files["tokenizer.json"]["added_tokens"]]
        about["added_tokens_decoder"] = {str(each.pop("id")): each for each in added}
    return made | {name: json.dumps(content) for name, content in files.items()}
