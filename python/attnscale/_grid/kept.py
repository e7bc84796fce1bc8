# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of pieces of work that a command keeps in a store, so that a second run computes the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .case import Case
from .describe import digest
from .fields import Field
from .store import Store

#: Named arrays of a piece.
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class KeptArrays:
    """Arrays of pieces in a store, or of none."""

    store: Store | None

    def get(self, piece: Mapping[str, Any], compute: Callable[[], Arrays]) -> Arrays:
        """The stored arrays of the piece, known by its description in JSON; else computed, and stored."""
        if self.store is None:
            return compute()
        case = Case((), dict(piece), digest(piece))
        fields = self.store.read(case)
        if fields is None:
            fields = {name: Field(values) for name, values in compute().items()}
            self.store.write(case, fields)
        return {name: each.values for name, each in fields.items()}


@contextmanager
def kept_arrays(store: Path | None, writer: str, identity: dict[str, Any]) -> Iterator[KeptArrays]:
    """The store of the command `writer` in a folder, locked; no folder keeps nothing."""
    if store is None:
        yield KeptArrays(None)
        return
    folder = Store(store, writer)
    with folder.locked():
        folder.claim(identity)
        yield KeptArrays(folder)
