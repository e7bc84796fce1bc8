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
    """Answers on disk. A header names the engine that has loaded a checkpoint; lines below it answer prompts.

    A last line that was cut short is dropped. Prompts that were refused are asked again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engines: dict[str, str] = {}  # by checkpoint
        self._digests: dict[str, str] = {}  # of checkpoints, by name
        self._answered: dict[str, set[str]] = {}  # names of prompts, by checkpoint
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
        """Write the header of a checkpoint if it has none; returns the names of its answered prompts."""
        digest = checkpoint.digest
        there = self._engines.setdefault(digest, engine)
        if there != engine:
            raise InputError(f"{self._path}: has answers of {there}: give another file to {engine}")
        if digest not in self._answered:
            head = {"checkpoint": digest, "name": checkpoint.name, "engine": engine}
            self._append({**head, "expected": checkpoint.expected})
        return self._answered.setdefault(digest, set())

    def add(self, checkpoint: Checkpoint, prompt: str, found: Mapping[int, float]) -> None:
        """Append the answer to a prompt."""
        logprobs = {str(token): value for token, value in found.items()}
        self._append({"checkpoint": checkpoint.digest, "prompt": prompt, "logprobs": logprobs})

    def refuse(self, checkpoint: Checkpoint, prompt: str, why: str) -> None:
        """Append that the engine refused a prompt."""
        self._append({"checkpoint": checkpoint.digest, "prompt": prompt, "refused": why})

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
        digest = content["checkpoint"]
        if "engine" in content:
            self._engines[digest] = content["engine"]
            self._digests[content["name"]] = digest
            self._answered.setdefault(digest, set())
        elif "refused" not in content:
            self._answered[digest].add(content["prompt"])
            if not isinstance(content["logprobs"], dict):
                raise TypeError
