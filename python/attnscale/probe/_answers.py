# SPDX-License-Identifier: BSD-3-Clause
"""The answers of a file, by checkpoint and engine."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .._base.checks import InputError, shown
from . import _layout as lay


class Answered(NamedTuple):
    """The answers of an engine to one checkpoint: log-probabilities by token, by prompt."""

    engine: str
    expected: Mapping[str, Any]
    rows: dict[str, dict[int, float]]
    refused: dict[str, str]


def read_answers(path: str | os.PathLike[str]) -> list[Answered]:
    """Read answers.jsonl.

    Raises
    ------
    InputError
        If the file is not one of answers; the message names the line.
    """
    file = Path(path)
    if file.is_dir():
        raise InputError(f"answers must be a file, got the folder {shown(str(file))}: give its answers.jsonl")
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{file} must hold answers of a probe as lines of JSON, got other bytes") from None
    lines = [line for line in lines if line.strip()]
    found: dict[str, Answered] = {}
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or "checkpoint" not in entry:
                raise ValueError
            _add(found, entry)
        except (ValueError, TypeError, KeyError, AttributeError):
            if number == len(lines):  # cut short by a kill
                continue
            raise InputError(
                f"{file}, line {number}: must be an answer of a probe, got {shown(line)}"
            ) from None
    if not found:
        raise InputError(f"{file} must hold answers of a probe, but no line names a checkpoint")
    return list(found.values())


def _add(found: dict[str, Answered], entry: dict[str, Any]) -> None:
    digest = entry["checkpoint"]
    if "expected" in entry:
        about = entry["expected"]
        if about["checkpoint"] != digest or about["format"] != lay.FORMAT or "prompts" not in about:
            raise ValueError
        found[digest] = Answered(str(entry.get("engine", "")), entry["expected"], {}, {})
    elif "refused" in entry:
        if entry["prompt"] not in found[digest].rows:
            found[digest].refused[entry["prompt"]] = str(entry["refused"])
    else:
        found[digest].refused.pop(entry["prompt"], None)  # it was asked again
        row = {int(token): float(each) for token, each in entry["logprobs"].items()}
        if max(row.values(), default=0.0) > 1e-3:  # no logarithm of a probability
            raise ValueError
        found[digest].rows[entry["prompt"]] = {
            token: each for token, each in row.items() if math.isfinite(each)
        }
