# SPDX-License-Identifier: BSD-3-Clause
"""The source of Python's standard library as training text, split by file, in tokens learned from it."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Special tokens: the end of a file, and the replacement of a masked token.
FILE, MASK = 0, 1
_SPECIAL = ("<file>", "<mask>")
#: Folders that are not always installed, or that are not part of the standard library.
_NOT_THERE = frozenset({"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "ensurepip"})
#: Folders of generated tables, with hundreds of equal lines in many files.
_GENERATED = frozenset({"encodings", "pydoc_data"})
_LEFT_OUT = _NOT_THERE | _GENERATED
_HELD_OUT = 10  # one file in ten is never trained on


@dataclass(frozen=True)
class Corpus:
    """Tokens of the training files and of the held-out files.

    Attributes
    ----------
    train, held_out : ndarray of int64
        Concatenated tokens of the files, with a FILE token after each.
    vocabulary : int
        Number of different tokens.
    facts : dict
        Files, bytes, tokens and SHA-256 of both parts, and the names of the held-out files.
    """

    train: NDArray[np.int64]
    held_out: NDArray[np.int64]
    vocabulary: int
    facts: dict[str, Any]


def library_source(vocabulary: int, most_bytes: int | None = None) -> Corpus:
    """The standard library's source in tokens of a byte-level BPE, trained on the training part.

    Parameters
    ----------
    vocabulary : int
        Number of tokens, at least 258: the 256 bytes and two special tokens.
    most_bytes : int, optional
        Take only the first files, in the order of the hashes of their names, up to this many bytes.

    Raises
    ------
    ImportError
        The package tokenizers is not installed.
    """
    return split_and_encode(source_files(most_bytes), vocabulary)


def package_of(name: str) -> str:
    """The package of Python's library, or of Debian, to which a file belongs.

    Examples
    --------
    >>> package_of("json/decoder.py"), package_of("usr/share/doc/mh-book/html/xmh/senmai.html")
    ('json', 'mh-book')
    """
    return name.removeprefix("usr/share/").removeprefix("doc/").split("/")[0]


def split_and_encode(
    files: Sequence[tuple[str, bytes]], vocabulary: int, packages: Sequence[str] = ()
) -> Corpus:
    """Hold out every tenth file, and encode all files in tokens learned from the others.

    Parameters
    ----------
    files : sequence of (str, bytes)
        Names and texts of the files, in an order independent of their subjects.
    vocabulary : int
        See :func:`library_source`.
    packages : sequence of str
        Packages that are held out whole, in place of every tenth file.

    Raises
    ------
    ImportError
        The package tokenizers is not installed.
    """
    held_out = [
        package_of(name) in packages if packages else i % _HELD_OUT == 0 for i, (name, _) in enumerate(files)
    ]
    parts = {
        name: [each for each, out in zip(files, held_out, strict=True) if out == (name == "held_out")]
        for name in ("held_out", "train")
    }
    texts = {name: [each.decode("utf-8", "replace") for _, each in part] for name, part in parts.items()}
    tokenizer = _train_bpe(texts["train"], vocabulary)
    tokens = {name: _encode(tokenizer, part) for name, part in texts.items()}
    facts = {
        name: {
            "files": len(part),
            **({"names": [each for each, _ in part]} if name == "held_out" else {}),
            "bytes": sum(len(content) for _, content in part),
            "tokens": int(tokens[name].size),
            "sha256": _digest(part),
        }
        for name, part in parts.items()
    }
    size = tokenizer.get_vocab_size()
    return Corpus(tokens["train"], tokens["held_out"], size, {**facts, "vocabulary": size})


def source_files(most_bytes: int | None) -> list[tuple[str, bytes]]:
    """The library's files by name, shuffled by the hash of the name so that packages are mixed."""
    root = Path(sysconfig.get_paths()["stdlib"])
    names = []
    for folder, below, inside in os.walk(root):
        below[:] = [name for name in below if name not in _LEFT_OUT]  # site-packages has most of the files
        place = Path(folder).relative_to(root)
        names += [(place / name).as_posix() for name in inside if name.endswith(".py")]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    files: list[tuple[str, bytes]] = []
    total = 0
    for name in names:
        if not (root / name).exists():  # Debian's sitecustomize.py is a link into /etc
            continue
        content = (root / name).read_bytes()
        if most_bytes is not None and total + len(content) > most_bytes and files:
            break
        if content:
            files.append((name, content))
            total += len(content)
    return files


def _train_bpe(texts: Iterable[str], vocabulary: int) -> Any:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise ImportError("this experiment needs the package tokenizers: pip install tokenizers") from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.encode_special_tokens = True  # a "<file>" in the text of a file is not its end
    return tokenizer


def _encode(tokenizer: Any, texts: Sequence[str]) -> NDArray[np.int64]:
    parts = [np.array([*each.ids, FILE], np.int64) for each in tokenizer.encode_batch(list(texts))]
    return np.concatenate(parts)


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    total = hashlib.sha256()
    for name, content in files:
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()
