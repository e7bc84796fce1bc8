# SPDX-License-Identifier: BSD-3-Clause
"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Replace a file by bytes, or by pieces of bytes: after a crash it is the old file or the new one.

    A failed write leaves nothing beside it, and its OSError names the path. Processes of several machines may
    replace the same file at once: each first writes a temporary file of its own.
    """
    with _written(path, content) as temporary:
        temporary.replace(path)
    _sync_folder(path.parent)


def write_new(path: Path, content: bytes) -> bool:
    """Write a file unless there is one, and return whether it was written.

    Of processes that write the same file at once, one writes it.
    """
    with _written(path, content) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links: a reader may see the file before it is whole
            try:
                stream = path.open("xb")
            except FileExistsError:
                return False
            try:
                with stream:
                    stream.write(content)
            except OSError:  # a full disk
                path.unlink()
                raise
    _sync_folder(path.parent)
    return True


@contextmanager
def _written(path: Path, content: bytes | Iterable[bytes]) -> Iterator[Path]:
    """A temporary file beside the path, with the content on disk; it is gone in the end."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.writelines([content] if isinstance(content, bytes) else content)
            stream.flush()
            os.fsync(stream.fileno())
        yield temporary
    except OSError as error:
        error.filename = str(path)  # a full disk is reported without a file
        if error.filename2 is not None:
            del error.filename2
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Put the names of a folder on disk, where the file system can: a file's name is there only then."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    except OSError:  # some network file systems refuse: the content of the file is on disk nonetheless
        pass
    finally:
        os.close(directory)
