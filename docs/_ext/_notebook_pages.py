# SPDX-License-Identifier: BSD-3-Clause
"""Notebooks on the site, with assertions folded below their cells."""

from __future__ import annotations

import ast
import json

FOLDED = "hide-input"


def notebook_page(text):
    """The text of an .ipynb file with assertions moved to separate cells, which the theme folds.

    Links to pages are relative to notebooks/ in the repository, and to tutorials/ on the site.
    """
    page = json.loads(text.replace("](../docs/", "](../"))
    page["cells"] = [part for cell in page["cells"] for part in _parts(cell)]
    return json.dumps(page, ensure_ascii=False)


def _parts(cell):
    if cell["cell_type"] != "code":
        return [cell]
    lines = "".join(cell["source"]).splitlines()
    checks = [line for line in ast.parse("\n".join(lines)).body if _checks(line)]
    apart = {row for each in checks for row in range(each.lineno - 1, each.end_lineno)}
    if not apart:
        return [cell]
    shown, folded = (
        "\n".join(line for row, line in enumerate(lines) if (row in apart) == kind).strip("\n")
        for kind in (False, True)
    )
    below = cell | {"source": folded, "outputs": [], "metadata": {"tags": [FOLDED]}}
    if "id" in cell:
        below["id"] = cell["id"] + "-checks"
    return [cell | {"source": shown}, below] if shown else [below | {"outputs": cell["outputs"]}]


def _checks(statement):
    """Whether a statement only checks."""
    if isinstance(statement, ast.For | ast.With | ast.If):
        return all(map(_checks, statement.body)) and not getattr(statement, "orelse", None)
    call = statement.value if isinstance(statement, ast.Expr) else None
    named = isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2].startswith("assert_")
    return named or isinstance(statement, ast.Assert)
