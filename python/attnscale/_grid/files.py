# SPDX-License-Identifier: BSD-3-Clause
"""Files shared by processes: locks, and JSON files that name their kind."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from .._files.whole import write_whole

_FORMAT = 1  # of the JSON files of results


class _Held:
    """A lock that this process holds, as long as a thread refers to it."""

    def __init__(self, descriptor: int, *, shared: bool) -> None:
        self.descriptor, self.shared = descriptor, shared

    def __del__(self) -> None:
        os.close(self.descriptor)


#: Locks of this process by path. A record lock is the process's: it does not keep threads apart, and closing
#: any descriptor of the file releases it.
_held: WeakValueDictionary[str, _Held] = WeakValueDictionary()
_mutex = threading.Lock()
#: Seconds between two attempts to take a lock.
_PAUSE = 0.02


def _forget() -> None:
    """Forget the locks of the parent, which a forked process does not hold."""
    global _mutex
    _mutex = threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def locked(path: Path, *, wait: bool, shared: bool = False) -> Iterator[bool]:
    """Hold a file's lock, creating the file and its directory; False if another process or thread holds it.

    With `wait` it waits for the other one; the lock of a dead process is released. A `shared` lock excludes
    only locks that are not shared. It is a record lock: a forked worker that outlives its parent does not
    keep it. On a file system without locks every process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while (held := _take(path, shared=shared)) is None and wait:
        time.sleep(_PAUSE)
    try:
        yield held is not None
    finally:
        del held  # a traceback may keep this frame


def _take(path: Path, *, shared: bool) -> _Held | None:
    """Take a lock now; None if another process or thread holds it."""
    import fcntl  # POSIX only, as is the whole package

    key = os.path.realpath(path)
    with _mutex:
        if (held := _held.get(key)) is not None:
            return held if shared and held.shared else None
        held = _Held(os.open(key, os.O_RDWR | os.O_CREAT, 0o666), shared=shared)
        try:
            fcntl.lockf(held.descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return None
        except OSError:  # no locks here
            pass
        _held[key] = held
        return held


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
