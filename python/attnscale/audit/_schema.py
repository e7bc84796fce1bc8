# SPDX-License-Identifier: BSD-3-Clause
"""What `attnscale audit --json` prints, as a JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: The "schema" of every report; fields may be added under this name, and are not changed or taken away.
SCHEMA = "attnscale.audit/1"


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what ``attnscale audit --json`` prints.

    Returns
    -------
    dict
        A file beside the package's code, ``attnscale/audit/schema.json``.

    Examples
    --------
    >>> import attnscale as at
    >>> at.audit.json_schema()["$defs"]["plan"]["properties"]["schema"]
    {'const': 'attnscale.audit/1'}
    """
    content: dict[str, Any] = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))
    return content
