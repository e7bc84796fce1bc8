# SPDX-License-Identifier: BSD-3-Clause
"""Tables of the experiments, written from what they declare, so that they cannot go stale."""

from __future__ import annotations

from attnscale.montecarlo._declaration import DECLARATIONS


def write_declared_tables(folder):
    """One file to include for each table."""
    folder.mkdir(exist_ok=True)
    path = folder / "montecarlo.md"
    text = "\n".join(
        ["| function | about | estimates | exact value |", "|---|---|---|---|", *map(_row, DECLARATIONS)]
    )
    if not path.exists() or path.read_text(encoding="utf-8") != text:  # keeps the builder's cache
        path.write_text(text, encoding="utf-8")


def _row(name):
    declared = DECLARATIONS[name]
    estimates = ", ".join(f"`{quantity}`" for quantity in declared.quantities)
    link = f"{{func}}`~attnscale.montecarlo.{name}`"
    return f"| {link} | {declared.subject} | {estimates} | {declared.known} |"
