# SPDX-License-Identifier: BSD-3-Clause
"""The directory of a sweep: a file that identifies the sweep, and one file for each finished case.

    DIR/attnscale-sweep.json    function, grid, constants, seed and versions (-train.json of an experiment)
    DIR/lock                    held while a sweep writes here; parts of a sweep share it,
    DIR/lock-2-of-8             and each holds its own
    DIR/cases/DIGEST.npz        the arrays of one case, how they are named, and their digest

A file appears under its name when it is complete and on disk, so a process may be killed at any time: a
case is stored as a whole or not at all. A store in a place without write access is read, and locks nothing.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .._base.checks import refusal, shown
from .._base.text import counted
from .._files.whole import write_new, write_whole
from .case import Case
from .describe import digest
from .errors import Unstored, unstored
from .fields import Field, Fields
from .files import locked
from .part import Part

#: The format of the files; stores of other formats are refused.
FORMAT = 1
_LOCK = "lock"
#: Programs that write stores, and what messages call their work.
WRITERS = {
    "sweep": "sweep",
    "mc": "experiment",
    "train": "training",
    "entropy": "measurement",
    "calibrate": "calibration",
    "report": "report",
}
#: Errors of a place without write access.
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class Store:
    """Finished cases of a sweep in a directory, created if needed; only the command `writer` uses it."""

    def __init__(self, directory: str | os.PathLike[str], writer: str = "sweep") -> None:
        self.writer = writer
        self._what = WRITERS[writer]
        try:
            self.directory = Path(directory)
        except TypeError:
            raise refusal(TypeError, "store", f"must be a directory, got {shown(directory)}") from None
        if self.directory.exists() and not self.directory.is_dir():
            raise refusal(ValueError, "store", f"must be a directory, got the file {str(directory)!r}")
        self._read_only = ""  # why nothing can be written here, in words

    def __str__(self) -> str:
        return str(self.directory)

    @property
    def _manifest(self) -> Path:
        return self.directory / f"attnscale-{self.writer}.json"

    @property
    def _mark(self) -> str:
        return f"attnscale {self.writer}"

    @contextmanager
    def locked(self, part: Part | None = None, *, wait: bool = False) -> Iterator[None]:
        """Keep other processes from writing here, or `wait` for them; a dead process releases its lock.

        Other parts may write at the same time; the same `part` may not in another process or thread. A store
        without write access is not locked.
        """
        self._refuse_other_programs()
        with ExitStack() as stack:
            held = True
            try:
                lock = self.directory / _LOCK
                held = stack.enter_context(locked(lock, wait=wait, shared=part is not None))
                if held and part is not None:
                    own = lock.with_name(f"{_LOCK}-{part.number}-of-{part.of}")
                    held = stack.enter_context(locked(own, wait=wait))
            except OSError as error:
                why = error.strerror or str(error)
                if error.errno not in _READ_ONLY or not self._manifest.exists():
                    rule = f"must be a folder that can be made and written, got {str(self)!r} ({why})"
                    raise refusal(ValueError, "store", rule) from None
                self._read_only = why
            if not held:
                one = self._what if part is None else f"process for part {part}, or for the whole,"
                rule = f"must be used by one {one} at a time, another process writes {str(self)!r}"
                raise refusal(ValueError, "store", rule)
            yield

    def read_manifest(self) -> dict[str, Any] | None:
        """The identity of the directory's sweep; None if the directory is new."""
        path = self._manifest
        if not path.exists():
            return None
        try:
            manifest = json.loads(path.read_bytes())
        except ValueError:
            manifest = None
        if not isinstance(manifest, dict) or manifest.get("kind") != self._mark:
            rule = f"must be written by a {self._what}, got {str(path)!r} of another program"
            raise refusal(ValueError, "store", rule)
        if manifest.get("format") != FORMAT:
            raise refusal(
                ValueError,
                "store",
                f"must have format {FORMAT}, got {manifest.get('format')} in {str(path)!r}: it was "
                f"written by attnscale {manifest.get('attnscale')}",
            )
        return manifest

    def write_manifest(self, identity: dict[str, Any]) -> None:
        """Write the identity of the directory's sweep, unless another process has written one."""
        text = json.dumps({"kind": self._mark, "format": FORMAT, **identity}, indent=2) + "\n"
        write_new(self._manifest, text.encode())

    def claim(
        self, identity: dict[str, Any], *, any_seed: bool = False, part: Part | None = None
    ) -> dict[str, Any]:
        """Write the identity into a new directory, or check that a used directory has the same one.

        Returns the identity with the seed to use: with `any_seed` that of a used store. Parts may begin at
        the same moment, and must have the same seed.
        """
        stored = self.read_manifest()
        if stored is None:
            if any_seed and part is not None:
                rule = f"must come with a seed, rng, where the store has none: all parts use it, got {part}"
                raise refusal(ValueError, "part", rule)
            self.write_manifest(identity)
            stored = self.read_manifest()  # another part may have been faster
            assert stored is not None
        self.__dict__.pop("_work", None)
        if any_seed and stored.get("seed") is not None:
            identity = {**identity, "seed": stored["seed"]}
        self.check_manifest(stored, identity)
        return identity

    def check_manifest(self, stored: dict[str, Any], identity: dict[str, Any]) -> None:
        """Refuse results of another sweep."""
        for key, wanted in identity.items():
            seen = stored.get(key)
            if said := difference(key, seen, wanted):
                raise refusal(
                    ValueError,
                    "store",
                    f"must be of this {self._what}, got {str(self)!r}, whose "
                    f"{said}; choose another directory, or delete this one",
                )

    @cached_property
    def _work(self) -> str:
        """Digest of the identity, which every case carries; "" before there is one."""
        manifest = self.read_manifest()
        return "" if manifest is None else digest(manifest)

    def finished(self, cases: Iterable[Case]) -> dict[Case, Fields]:
        """Stored results of the cases."""
        found = {case: self.read(case) for case in cases}
        return {case: fields for case, fields in found.items() if fields is not None}

    def with_others(self, there: Mapping[Case, Fields], cases: Iterable[Case]) -> dict[Case, Fields]:
        """The results `there`, and results of other cases that other processes stored meanwhile."""
        return {**there, **self.finished(case for case in cases if case not in there)}

    def read(self, case: Case) -> Fields | None:
        """The result of a case; None if its file is missing, damaged or of another sweep."""
        try:
            content = self._path(case).read_bytes()
        except FileNotFoundError:
            return None
        return from_bytes(content, case.digest, self._work)

    def write(self, case: Case, fields: Fields) -> None:
        """Store the result of a case; it is on disk when this method returns."""
        path = self._path(case)
        path.parent.mkdir(exist_ok=True)
        write_whole(path, to_bytes(fields, case.digest, self._work))

    def keep(self, case: Case, fields: Fields) -> Fields | Unstored:
        """Store the result of a case; returns it, with the reason if it could not be stored."""
        try:
            self.write(case, fields)
        except OSError as error:
            return unstored(fields, error)
        return fields

    def check_room_for(self, missing: Sequence[Case]) -> None:
        """Refuse to compute missing cases where their results cannot be stored."""
        places = (self.directory, self.directory / "cases")
        closed = any(each.exists() and not os.access(each, os.W_OK | os.X_OK) for each in places)
        if missing and (self._read_only or closed):
            why = self._read_only or os.strerror(errno.EACCES)
            rule = f"must be writable while cases are missing, got {str(self)!r} ({why}), which lacks"
            raise refusal(ValueError, "store", f"{rule} {counted(len(missing), 'case')}")

    def _path(self, case: Case) -> Path:
        return self.directory / "cases" / f"{case.digest[:32]}.npz"

    def _refuse_other_programs(self) -> None:
        if not self.directory.exists():
            return
        # A sweep killed at its start, or other parts that start now, may have left these files.
        own = (_LOCK, f"{self._manifest.name}.")
        foreign = sorted(each.name for each in self.directory.iterdir() if not each.name.startswith(own))
        # The manifest is checked last: another part may write it, and then cases, at this moment.
        if foreign and not self._manifest.exists():
            raise refusal(
                ValueError,
                "store",
                f"must be a new or empty directory or one of a {self._what}, got {str(self)!r} with "
                f"{foreign[0]!r} in it",
            )


def difference(key: str, seen: Any, wanted: Any) -> str:
    """One difference between two identities in words, with the values if they are short; empty if none."""
    if digest(seen) == digest(wanted):  # distinguishes 1, 1.0 and True, and NaN equals itself
        return ""
    if isinstance(seen, dict) and isinstance(wanted, dict):
        for name in {**seen, **wanted}:
            if (key, name) == ("function", "source") and digest(seen.get(name)) != digest(wanted.get(name)):
                return f"function {wanted['function']} had another source when its cases were computed"
            if digest(seen.get(name)) != digest(wanted.get(name)):
                return f"{key} has {name!r} = {_shown(seen.get(name))} and not {_shown(wanted.get(name))}"
    return f"{key} is {_shown(seen)} and not {_shown(wanted)}"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:70]}..."


def to_bytes(fields: Fields, case: str, work: str = "") -> bytes:
    """The arrays as an .npz file; its entry "about" has the case, its sweep, the axes and a checksum."""
    names = list(fields)
    about = {
        "case": case,
        "work": work,
        "names": names,
        "dims": [fields[name].dims for name in names],
        "attrs": [fields[name].attrs for name in names],
    }
    arrays = {f"array_{i}": fields[name].values for i, name in enumerate(names)}
    text = json.dumps(about)
    buffer = io.BytesIO()
    try:
        np.savez(buffer, about=np.array([text, _checksum(text, arrays)]), **arrays)  # type: ignore[arg-type]
    except ValueError as error:  # zipfile's, in place of a Ctrl-C that came meanwhile
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
    return buffer.getvalue()


def from_bytes(content: bytes, case: str, work: str = "") -> Fields | None:
    """The content from :func:`to_bytes` for this case, or one whose name begins with it; None if damaged.

    None, too, if it is of another sweep than `work`, where both are known.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            text, checksum = stored["about"].tolist()
            about = json.loads(text)
            arrays = {f"array_{i}": stored[f"array_{i}"] for i in range(len(about["names"]))}
    except Exception:  # a damaged archive fails in many ways, such as NotImplementedError and zlib.error
        return None
    if checksum != _checksum(text, arrays) or not about["case"].startswith(case):
        return None
    if work and about.get("work") not in (None, "", work):
        return None
    return {
        name: Field(arrays[f"array_{i}"], None if dims is None else tuple(dims), attrs)
        for i, (name, dims, attrs) in enumerate(
            zip(about["names"], about["dims"], about["attrs"], strict=True)
        )
    }


def _checksum(text: str, arrays: dict[str, Any]) -> str:
    total = hashlib.sha256(text.encode())
    for array in arrays.values():
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
