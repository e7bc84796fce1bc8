# SPDX-License-Identifier: BSD-3-Clause
"""Tables of the model types of transformers, from the table with which the tests compare ``record``."""

from __future__ import annotations

import json
from pathlib import Path

_TABLE = Path(__file__).parents[2] / "tools" / "models" / "expectations.json"
_TITLES = {
    "right": "Every attention is recorded, and its entropies are those of the model's own weights",
    "no attention": "No softmax over products of queries and keys: refused in one line behind the pass",
    "wrong": "A difference remains",
    "refused": "Refused",
    "not measured": "Not measured: too long or too large for the scan",
    "not buildable": "No small random model was built or fed on its own",
}


def model_texts():
    """The text of each file to include."""
    known = json.loads(_TABLE.read_text(encoding="utf-8"))
    by_state = {state: {k: v for k, v in known.items() if v["state"] == state} for state in _TITLES}
    counts = [f"| {title} | {len(by_state[state])} |" for state, title in _TITLES.items() if by_state[state]]
    return {
        "models.md": "\n".join(["| model types of transformers | number |", "|---|---|", *counts]),
        "models-right.md": _listed(by_state["right"]),
        "models-none.md": _listed(by_state["no attention"]),
        "models-differ.md": _reasons(by_state["wrong"] | by_state["refused"]),
        "models-unbuilt.md": _listed(by_state["not buildable"] | by_state["not measured"]),
    }


def _listed(kinds):
    return ", ".join(f"`{kind}`" for kind in sorted(kinds)) + "\n"


def _reasons(kinds):
    rows = (f"| `{kind}` | {each['reason'].replace('|', ', ')} |" for kind, each in sorted(kinds.items()))
    return "\n".join(["| model type | difference |", "|---|---|", *rows])
