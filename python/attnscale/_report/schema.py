# SPDX-License-Identifier: BSD-3-Clause
"""The JSON Schema of reports."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def json_schema() -> dict[str, Any]:
    """The file ``schema.json`` beside this module."""
    content: dict[str, Any] = json.loads((files(__package__) / "schema.json").read_text(encoding="utf-8"))
    return content
