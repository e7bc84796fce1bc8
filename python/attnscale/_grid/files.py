# SPDX-License-Identifier: BSD-3-Clause
"""Files shared by processes: locks, and JSON files that name their kind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._files.whole import write_whole

_FORMAT = 1  # of the JSON files of results


@contextmanager
def locked(path: Path, *, wait: bool, shared: bool = False) -> Iterator[bool]:
    """Hold a file's lock, creating the file and its directory; False if another process holds it.

    With `wait` it waits for the other process; the lock of a dead process is released. A `shared` lock
    excludes only locks that are not shared. It is a record lock: a forked worker that outlives its parent
    does not keep it. On a file system without locks every process holds it.
    """
    import fcntl  # POSIX only, as is the whole package

    path.parent.mkdir(parents=True, exist_ok=True)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with path.open("a+") as stream:
        held = True
        try:
            fcntl.lockf(stream, kind | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            held = not isinstance(error, (BlockingIOError, PermissionError))
        yield held


def write_json(path: str | os.PathLike[str], kind: str, content: dict[str, Any]) -> None:
    """Write a result as a JSON file that names its kind."""
    text = json.dumps({"format": _FORMAT, "kind": kind, **content}, separators=(",", ":"))
    write_whole(Path(path), f"{text}\n".encode())


def read_json(path: str | os.PathLike[str], kind: str, *, usual: str = "") -> dict[str, Any]:
    """The content that :func:`write_json` wrote as `kind`; a file without a kind is of the `usual` one."""
    try:
        stored = json.loads(Path(path).read_bytes())
    except ValueError:
        stored = None
    except OSError as error:
        why = error.strerror or str(error)
        raise type(error)(f"path must be a file to read, got {str(path)!r}: {why}") from None
    seen = (stored.pop("format", None), stored.pop("kind", usual)) if isinstance(stored, dict) else None
    if stored is None or seen != (_FORMAT, kind):
        raise ValueError(f"path must be a file that {kind!r} wrote, format {_FORMAT}, got {str(path)!r}")
    found: dict[str, Any] = stored
    return found
