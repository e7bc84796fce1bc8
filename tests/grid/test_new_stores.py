# SPDX-License-Identifier: BSD-3-Clause
"""Stores that several processes begin at once, and file systems that lack something."""

from __future__ import annotations

import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnscale._files.whole import write_new, write_whole
from attnscale._grid import fields as grid_fields
from attnscale._grid import store

Store, from_bytes, to_bytes, Field = store.Store, store.from_bytes, store.to_bytes, grid_fields.Field


def test_of_two_identities_at_the_same_moment_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both processes see a new folder before either writes."""
    first, second = (Store(tmp_path, "mc") for _ in range(2))
    identities = [{"experiment": "tiny", "seed": seed} for seed in (1, 2)]
    read = Store.read_manifest
    seen: list[Store] = []

    def blind(self: Any) -> Any:
        """The manifest, but nothing at the first look of each."""
        if self in seen:
            return read(self)
        seen.append(self)
        return None

    monkeypatch.setattr(Store, "read_manifest", blind)
    assert first.claim(identities[0]) == identities[0]
    with pytest.raises(ValueError, match="whose seed is 1 and not 2"):
        second.claim(identities[1])
    assert read(second)["seed"] == 1


def test_one_of_many_processes_writes_a_new_file(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / str(number)
        ready = threading.Barrier(4)

        def write(content: bytes, path: Path = path, ready: threading.Barrier = ready) -> tuple[bool, bytes]:
            ready.wait()
            return write_new(path, content), content

        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(write, (b"a", b"b", b"c", b"d")))
        assert [content for written, content in done if written] == [path.read_bytes()]
    assert len(list(tmp_path.iterdir())) == 20


def test_a_new_file_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    assert write_new(tmp_path / "a", b"one")
    assert not write_new(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_case_of_another_work_is_not_read(tmp_path: Path) -> None:
    fields = {"x": Field(np.arange(3.0))}
    content = to_bytes(fields, "case", "one work")
    assert from_bytes(content, "case", "one work") is not None
    assert from_bytes(content, "case") is not None
    assert from_bytes(content, "case", "another") is None
    assert from_bytes(to_bytes(fields, "case"), "case", "another") is not None  # written before it was told


def test_a_folder_that_cannot_be_put_on_disk_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    write_whole(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"
