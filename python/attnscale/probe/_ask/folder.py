# SPDX-License-Identifier: BSD-3-Clause
"""Folder of a probe: its checkpoints, and the prompts of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..._base.checks import InputError, shown
from .. import _layout as lay


class Prompt(NamedTuple):
    """A prompt, as token ids and as a text whose words are the ids."""

    name: str
    ids: Sequence[int]
    text: str


class Checkpoint(NamedTuple):
    """A checkpoint of a probe with its prompts; `digest` tells it from others of the same name."""

    name: str
    path: Path
    digest: str
    expected: dict[str, Any]
    prompts: tuple[Prompt, ...]

    @property
    def longest(self) -> int:
        """Number of tokens of the longest prompt."""
        return max(len(prompt.ids) for prompt in self.prompts)


def read_folder(folder: Path) -> tuple[Checkpoint, ...]:
    """All checkpoints of a probe, or the one of its folder."""
    if (folder / "prompts.jsonl").is_file():
        return (_checkpoint(folder),)
    index = folder / "probe.json"
    if not index.is_file():
        raise InputError(f"{folder}: must be the folder of a probe, and has no probe.json")
    content = _json(index)
    names = content.get("checkpoints")
    if content.get("format") != lay.FORMAT or not isinstance(names, list) or not names:
        raise InputError(f"{index}: must be a probe of format {lay.FORMAT}, got {shown(content)}")
    return tuple(_checkpoint(folder / str(name)) for name in names)


def _checkpoint(path: Path) -> Checkpoint:
    expected = _json(path / "expected.json")
    digest = expected.get("checkpoint")
    if not isinstance(digest, str):
        raise InputError(f"{path / 'expected.json'}: checkpoint must be a digest, got {shown(digest)}")
    prompts = _prompts(path / "prompts.jsonl")
    # Asked twice: answers that differ come from a sampler.
    first = prompts[0]
    return Checkpoint(
        path.resolve().name, path, digest, expected, (*prompts, first._replace(name=f"{first.name} again"))
    )


def _prompts(path: Path) -> list[Prompt]:
    prompts = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            content = json.loads(line)
            prompts.append(Prompt(content["prompt"], [*map(int, content["ids"])], content["text"]))
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{path}: line {number} must be a prompt, got {shown(line)}") from None
    if not prompts:
        raise InputError(f"{path}: must have prompts, and is empty")
    return prompts


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(path))
    except ValueError as error:
        raise InputError(f"{path}: not a readable JSON file ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: must be a JSON object, got {shown(content)}")
    return content


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
