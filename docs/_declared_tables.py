# SPDX-License-Identifier: BSD-3-Clause
"""Lists of the experiments, written from what they declare, so that they cannot go stale."""

from __future__ import annotations

from pathlib import Path

import attnscale
from attnscale.montecarlo._declaration import DECLARATIONS


def declared_texts():
    """The text of each file to include."""
    header = ["| function | about | estimates | exact value |", "|---|---|---|---|"]
    return {
        "montecarlo.md": "\n".join([*header, *map(_row, DECLARATIONS)]),
        "experiments.md": "\n".join(["```{eval-rst}", *map(_study, _studies()), "```"]),
    }


def _row(name):
    declared = DECLARATIONS[name]
    estimates = ", ".join(f"`{quantity}`" for quantity in declared.quantities)
    link = f"{{func}}`~attnscale.montecarlo.{name}`"
    return f"| {link} | {declared.subject} | {estimates} | {declared.known} |"


def _studies():
    """Names of the experiments that train, also where they cannot be imported: without PyTorch."""
    folder = Path(attnscale.__file__).parent / "experiments" / "_studies"
    return sorted(path.stem for path in folder.glob("[a-z]*.py"))


def _study(name):
    """The function of an experiment that trains, and its config."""
    config = f"{name.title().replace('_', '')}Config"
    return f".. autofunction:: {name}\n.. autoclass:: {config}\n   :members: reduced\n"
