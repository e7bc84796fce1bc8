# SPDX-License-Identifier: BSD-3-Clause
"""Names in the standard library's source and their kinds: a task for taggers.

The text of a name is hidden, so its kind follows only from its surroundings. One token before it identifies
an attribute or a definition: ``.``, ``def`` or ``class``. Parameters, keywords of calls and other names
depend on brackets that may be far away.
"""

from __future__ import annotations

import ast
import hashlib
import io
import keyword
import tokenize
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TAGS = ("attribute", "definition", "name", "parameter", "keyword")
#: The tag of a token that is not a name.
OTHER = -100

#: Single-file modules that every supported Python has.
_MODULES = (
    *("argparse", "ast", "bdb", "calendar", "cmd", "codecs", "configparser", "contextlib", "copy", "csv"),
    *("dataclasses", "difflib", "dis", "doctest", "enum", "filecmp", "ftplib", "functools", "gzip", "heapq"),
    *("inspect", "ipaddress", "mailbox", "optparse", "pickle", "pkgutil", "plistlib", "pprint", "queue"),
    *("random", "selectors", "shutil", "smtplib", "socket", "statistics", "string", "subprocess", "tarfile"),
    *("tempfile", "textwrap", "threading", "traceback", "types", "uuid", "weakref", "zipfile"),
)
_HELD_OUT = 6  # every sixth module is held out

_SYMBOLS = tuple("()[]{}:,;.+-*/|&<>=%~^@!")
_LONG = ("==", "!=", "<=", ">=", "<<", ">>", "**", "//", "->", "...", ":=")
_KINDS = ("NAME", "NUMBER", "STRING", "NEWLINE", "INDENT", "DEDENT", "OP", "AUGMENTED")
_VOCABULARY = {text: i for i, text in enumerate((*_KINDS, *_SYMBOLS, *_LONG, *keyword.kwlist))}


class Tagged(NamedTuple):
    """Concatenated tokens of all files, their tags, and the place of each token's file in the facts."""

    tokens: NDArray[np.int64]
    tags: NDArray[np.int64]
    vocabulary: int
    facts: dict[str, Any]
    files: NDArray[np.int64]


@lru_cache(maxsize=2)
def tagged(held_out: bool) -> Tagged:
    """Tokens and tags of the modules to train on, or of those to test on."""
    names = [name for i, name in enumerate(_MODULES) if (i % _HELD_OUT == _HELD_OUT - 1) == held_out]
    found = [(name, source) for name in names if (source := _source(name)) is not None]
    parts = [tokens_of(source) for _, source in found]
    tokens, tags = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    text = "".join(source for _, source in found).encode()
    split = "test" if held_out else "train"
    facts = {
        f"{split}_modules": [name for name, _ in found],
        f"{split}_tokens": int(tokens.size),
        f"{split}_sha256": hashlib.sha256(text).hexdigest(),
    }
    files = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
    return Tagged(tokens, tags, len(_VOCABULARY), facts, files)


def _source(module: str) -> str | None:
    """Text of a module; None if it is a package, missing, or not ASCII."""
    path = Path(ast.__file__).with_name(f"{module}.py")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text if text and text.isascii() else None


def tokens_of(source: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens and tags of one file.

    Examples
    --------
    >>> _, tags = tokens_of("def f(x):\\n    return g(x.real, key=x)\\n")
    >>> [TAGS[tag] for tag in tags if tag != OTHER]
    ['definition', 'parameter', 'name', 'name', 'attribute', 'keyword', 'name']
    """
    places = _places(source)
    tokens: list[int] = []
    tags: list[int] = []
    before, strings = "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        strings += (kind == "FSTRING_START") - (kind == "FSTRING_END")
        if strings or kind in ("COMMENT", "NL", "ENDMARKER", "ENCODING"):
            continue  # Python 3.12 tokenizes the inside of an f-string, older ones do not
        text = token.string
        is_name = kind == "NAME" and not keyword.iskeyword(text)
        tokens.append(_code("STRING" if kind == "FSTRING_END" else kind, text, is_name=is_name))
        tags.append(_tag(before, places.get(token.start, "name")) if is_name else OTHER)
        before = text
    return np.array(tokens, np.int64), np.array(tags, np.int64)


def _places(source: str) -> dict[tuple[int, int], str]:
    """The kind of name ("parameter" or "keyword" of a call) at each (line, column)."""
    tree = list(ast.walk(ast.parse(source)))
    found = {(node.lineno, node.col_offset): "parameter" for node in tree if isinstance(node, ast.arg)}
    named = [node for node in tree if isinstance(node, ast.keyword) and node.arg is not None]
    return found | {(node.lineno, node.col_offset): "keyword" for node in named}


def _tag(before: str, place: str) -> int:
    if before in ("def", "class"):
        return TAGS.index("definition")
    return TAGS.index("attribute" if before == "." else place)


def _code(kind: str, text: str, *, is_name: bool) -> int:
    if is_name or kind in ("NUMBER", "STRING", "NEWLINE", "INDENT", "DEDENT"):
        return _VOCABULARY["NAME" if is_name else kind]
    return _VOCABULARY.get(text, _VOCABULARY["AUGMENTED" if text.endswith("=") else "OP"])
