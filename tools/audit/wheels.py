# SPDX-License-Identifier: BSD-3-Clause
"""Single files of wheels on the package index, without the rest of the wheel."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable
from typing import Any

_BLOCK = 1 << 18  # bytes of one request
_PIP = (
    "install --dry-run --quiet --report - --no-deps --ignore-installed --ignore-requires-python "
    "--only-binary :all:"
)


def newest(package: str) -> tuple[str, str]:
    """The release and the address of the newest wheel on pip's index; only its metadata are loaded."""
    command = [sys.executable, "-m", "pip", *_PIP.split(), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{package}: pip found no wheel: {' '.join(done.stderr.split())[-300:]}")
    (found,) = json.loads(done.stdout)["install"]
    return found["metadata"]["version"], found["download_info"]["url"]


def opened(address: str) -> zipfile.ZipFile:
    """The wheel at an address, of which only the parts that are read are loaded, if the server has ranges."""
    with urllib.request.urlopen(urllib.request.Request(address, headers={"Range": "bytes=0-0"})) as answer:
        if answer.status != 206:  # it sends the whole file
            return zipfile.ZipFile(io.BytesIO(answer.read()))
        size = int(answer.headers["Content-Range"].rpartition("/")[2])

    def part(start: int, stop: int) -> bytes:
        wanted = urllib.request.Request(address, headers={"Range": f"bytes={start}-{stop - 1}"})
        with urllib.request.urlopen(wanted) as answer:
            content: bytes = answer.read()
        return content

    return zipfile.ZipFile(io.BufferedReader(Parts(size, part)))


class Parts(io.RawIOBase):
    """A file for reading, loaded block by block.

    Parameters
    ----------
    size : int
        Bytes of the file.
    part : callable
        Function from first byte and end to the bytes between.
    """

    def __init__(self, size: int, part: Callable[[int, int], bytes]) -> None:
        self._size, self._part, self._at = size, part, 0
        self._blocks: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        number, start = divmod(self._at, _BLOCK)
        if self._at >= self._size:
            return 0
        if number not in self._blocks:
            self._blocks[number] = self._part(number * _BLOCK, min((number + 1) * _BLOCK, self._size))
        found = self._blocks[number][start : start + len(buffer)]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)
