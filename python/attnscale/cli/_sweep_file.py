# SPDX-License-Identifier: BSD-3-Clause
"""The file of a sweep: TOML with a function, a grid and options."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import laws
from .._checks import meant, shown
from .._io import InputError, check_is_file
from ._spelling import read_law

# Key: (type, what it is called in a message).
_KEYS: dict[str, tuple[type, str]] = {
    "function": (str, "a string, 'module:function'"),
    "store": (str, "a string, the name of a directory"),
    "n_jobs": (int, "an integer"),
    "rng": (int, "an integer, the seed"),
    "grid": (dict, "a table: [grid]"),
    "constants": (dict, "a table: [constants]"),
}
#: Parameters whose text may be a law with parameters, as on the command line.
_LAW_PARAMETERS = ("law", "scale")


@dataclass(frozen=True)
class SweepFile:
    """Arguments of ``sweep`` as a file gives them; None and {} where the file does not give them."""

    function: str
    grid: dict[str, Any]
    constants: dict[str, Any]
    store: str | None
    n_jobs: int | None
    rng: int | None


def read_sweep_file(path: Path) -> SweepFile:
    """Read and check a file; InputError names the key, the rule and what was seen."""
    check_is_file(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable TOML file ({error})") from None
    for key, value in content.items():
        if key not in _KEYS:
            near = meant(key, [*_KEYS])
            raise InputError(f"{path}: {near}unknown key {key!r}; the keys: {', '.join(_KEYS)}")
        kind, rule = _KEYS[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{path}: {key} must be {rule}, got {shown(value)}")
    for key in ("function", "grid"):
        if key not in content:
            raise InputError(f"{path}: {key} is missing; it must be {_KEYS[key][1]}")
    return SweepFile(
        function=content["function"],
        grid={name: _with_laws(name, values) for name, values in content["grid"].items()},
        constants={name: _with_laws(name, value) for name, value in content.get("constants", {}).items()},
        store=content.get("store"),
        n_jobs=content.get("n_jobs"),
        rng=content.get("rng"),
    )


def _with_laws(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_with_laws(name, entry) for entry in value]
    return read_law(value) if name in _LAW_PARAMETERS and isinstance(value, str) and "(" in value else value


def check_laws(path: Path, wanted: SweepFile) -> None:
    """Refuse a name that is no law, before a store is claimed: it would be told of as another sweep.

    The user's own function, which is imported by now with the laws that it registers, may mean something
    else by a word. There a name is refused that is nearly a law's and stands beside those of laws.
    """
    ours = wanted.function.startswith("attnscale.")
    for name in _LAW_PARAMETERS:
        given = wanted.grid.get(name, wanted.constants.get(name))
        texts = [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)]
        unknown = {text: error for text in texts if (error := _no_law(text)) is not None}
        for text, error in unknown.items():
            if ours or (len(unknown) < len(texts) and meant(text, laws.names())):
                raise InputError(f"{path}: {error}") from None


def _no_law(text: str) -> InputError | None:
    try:
        read_law(text)
    except InputError as error:
        return error
    return None


@contextmanager
def resolve(path: Path, name: str) -> Iterator[Callable[..., Any]]:
    """The function called `name`, importable while this lasts; modules beside the file are found too."""
    directory = str(path.resolve().parent)
    sys.path.insert(0, directory)
    try:
        yield _import(path, name)
    finally:
        sys.path.remove(directory)


def _import(path: Path, name: str) -> Callable[..., Any]:
    """The function that is spelled ``module:function`` or ``module.function``, imported."""
    module, colon, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    problem = f"{path}: function must be an importable 'module:function', got {shown(name)}"
    if not (module and colon and attribute):
        raise InputError(problem)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{problem} ({error})") from None
    if not callable(found):
        raise InputError(f"{path}: function must be callable, got {shown(name)}, a {type(found).__name__}")
    function: Callable[..., Any] = found
    return function
