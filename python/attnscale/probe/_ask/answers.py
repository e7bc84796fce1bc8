# SPDX-License-Identifier: BSD-3-Clause
"""File of answers: one JSON object a line, appended, so that asking can be interrupted and goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..._base.checks import InputError, shown
from .folder import Checkpoint


class Answers:
    """Answers on disk. A header names checkpoint and engine of the answers below it.

    A last line that was cut short is dropped when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._current: tuple[str, str] | None = None  # checkpoint and engine of the last header
        self._answered: dict[tuple[str, str], set[str]] = {}
        self._digests: dict[str, str] = {}  # of checkpoints, by name
        self._file: BinaryIO | None = None  # opened by the first answer
        self._whole = 0  # bytes of whole lines
        if path.exists() or not path.parent.is_dir():
            self._read()

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint of whose name the file has answers of another probe."""
        there = self._digests.get(checkpoint.name, checkpoint.digest)
        if there != checkpoint.digest:
            raise InputError(
                f"{self._path}: has answers of another {checkpoint.name}, {there}, and the folder has "
                f"{checkpoint.digest}: give another file"
            )

    def begin(self, checkpoint: Checkpoint, engine: str) -> set[str]:
        """Write a header, unless the last one is the same; returns the names of answered prompts."""
        section = checkpoint.digest, engine
        if section != self._current:
            self._append(
                {
                    "checkpoint": checkpoint.digest,
                    "name": checkpoint.name,
                    "engine": engine,
                    "expected": checkpoint.expected,
                }
            )
            self._current = section
            self._digests[checkpoint.name] = checkpoint.digest
        return self._answered.setdefault(section, set())

    def add(self, checkpoint: Checkpoint, prompt: str, found: Mapping[int, float]) -> None:
        """Append the answer to a prompt, below the header of its checkpoint."""
        logprobs = {str(token): value for token, value in found.items()}
        self._append({"checkpoint": checkpoint.digest, "prompt": prompt, "logprobs": logprobs})

    def _append(self, content: dict[str, Any]) -> None:
        if self._file is None:
            self._file = self._path.open("ab")
            self._file.truncate(self._whole)
        self._file.write(json.dumps(content).encode() + b"\n")
        self._file.flush()

    def _read(self) -> None:
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise InputError(f"{self._path}: {error.strerror or error}") from None
        self._whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[: self._whole].splitlines(), 1):
            try:
                self._note(json.loads(line))
            except (ValueError, TypeError, KeyError):
                told = shown(line.decode(errors="replace"))
                raise InputError(f"{self._path}: line {number} must be an answer, got {told}") from None
        if not b'{"checkpoint'.startswith(content[self._whole :][:12]):
            told = shown(content[self._whole :].decode(errors="replace"))
            raise InputError(f"{self._path}: the last line must be an answer, got {told}")

    def _note(self, content: dict[str, Any]) -> None:
        """Take notice of a line."""
        if "engine" in content:
            self._current = content["checkpoint"], content["engine"]
            self._digests[content["name"]] = content["checkpoint"]
            self._answered.setdefault(self._current, set())
        elif self._current is None or content["checkpoint"] != self._current[0]:
            raise ValueError("an answer without a header")
        else:
            self._answered[self._current].add(content["prompt"])
