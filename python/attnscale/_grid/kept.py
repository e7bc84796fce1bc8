# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of pieces of work that a command keeps in a store, so that a second run computes the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .._base.text import counted
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
    #: Errors of pieces that could not be stored, as on a full disk.
    unstored: list[OSError] = field(default_factory=list)

    def get(self, describe: Callable[[], Mapping[str, Any]], compute: Callable[[], Arrays]) -> Arrays:
        """The stored arrays of a piece, known by its description in JSON; else computed, and stored."""
        if self.store is None:
            return compute()
        piece = describe()
        case = Case((), dict(piece), digest(piece))
        fields = self.store.read(case)
        if fields is None:
            fields = {name: Field(values) for name, values in compute().items()}
            try:
                self.store.write(case, fields)
            except OSError as error:
                self.unstored.append(error)
        return {name: each.values for name, each in fields.items()}

    @property
    def ends(self) -> OSError | None:
        """The error of results that could not be stored; None if all are."""
        if not self.unstored:
            return None
        said = f"{counted(len(self.unstored), 'result')} could not be stored: {self.unstored[0]}"
        return OSError(f"--store {self.store}: {said} (the answer has them)")


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
