# SPDX-License-Identifier: BSD-3-Clause
"""Files as a store recognizes them: by their sizes and a sample of their bytes, also copied ones too."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

# Pieces of a file, and their bytes.
_PIECES, _PIECE = 64, 4096


def fingerprint(files: Iterable[Path]) -> str:
    """SHA-256 of files: of their sizes, and of pieces at equal distances with both ends."""
    total = hashlib.sha256()
    for path in files:
        if path.is_dir():  # an array of zarr: its files, and the start of some of them
            inside = sorted(each for each in path.rglob("*") if each.is_file())
            sizes = [(str(each.relative_to(path)), each.stat().st_size) for each in inside]
            total.update(repr(sizes).encode())
            for place in _spread(len(inside) - 1):
                total.update(_pieces(inside[place], 1))
        else:
            total.update(f"{path.stat().st_size} ".encode())
            total.update(_pieces(path))
    return total.hexdigest()


def _pieces(path: Path, most: int = _PIECES) -> bytes:
    """Pieces of a file at equal distances, the first ones."""
    with path.open("rb") as stream:
        last = max(path.stat().st_size - _PIECE, 0)
        return b"".join(os.pread(stream.fileno(), _PIECE, start) for start in _spread(last)[:most])


def _spread(last: int) -> list[int]:
    """Numbers from 0 to the last one at equal distances."""
    return sorted({last * place // (_PIECES - 1) for place in range(_PIECES)})
