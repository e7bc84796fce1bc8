# SPDX-License-Identifier: BSD-3-Clause
"""Merging of stores of the same work, written on machines without a common file system."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._base.checks import refusal
from .._files.whole import write_whole
from .errors import SweepError
from .fields import Fields
from .step import step_of
from .store import WRITERS, Store, difference, from_bytes


class Merged(NamedTuple):
    """Result of a merge: the number of merged cases, and damaged files that were left out."""

    cases: int
    damaged: list[Path]


def merge_stores(stores: Sequence[str | os.PathLike[str]], to: str | os.PathLike[str]) -> Merged:
    """Merge the cases of several stores of the same work; nothing is written before all are checked.

    Parameters
    ----------
    stores : sequence of path
        Stores of ``sweep``, of one experiment or of one study. They stay unchanged.
    to : path
        A new folder, or a store of the same work, which keeps its cases.

    Raises
    ------
    ValueError
        If a path is not a store, the stores differ in their work (function, grid, parameters, seed, version,
        ...), or two have different results for the same case.
    SweepError
        If a file cannot be written, as on a full disk; the cases written before are in place.
    """
    sources = [_open(each) for each in stores]
    if (writer := _writer(Path(to))) is not None:
        sources.insert(0, Store(to, writer))
    identities = [_identity(each) for each in sources]
    for source, identity in zip(sources[1:], identities[1:], strict=True):
        _check_alike(sources[0], identities[0], source, identity)
    target = Store(to, sources[0].writer)
    found, damaged = _gather(sources)
    with target.locked():
        target.claim(identities[0])
        states = _states(sources, {Path(name).stem for name in found})
        copies = [(path, target.directory / "cases" / path.name) for path in found.values()]
        copies += [(path, target.directory / "checkpoints" / path.name) for path in states]
        for done, (path, goal) in enumerate(copies):
            try:
                _copy(path, goal)
            except OSError as error:
                said = f"{done} of {len(copies)} files are merged, and the same merge goes on: {error}"
                raise SweepError(said, {str(goal): str(error)}, None) from error
    return Merged(len(found), [path for path in damaged if path.name not in found])


def _writer(directory: Path) -> str | None:
    return next((each for each in WRITERS if (directory / f"attnscale-{each}.json").is_file()), None)


def _open(directory: str | os.PathLike[str]) -> Store:
    writer = _writer(Path(directory))
    if writer is None:
        raise refusal(ValueError, "stores", f"must be stores, got {str(directory)!r}, which is not a store")
    return Store(directory, writer)


def _identity(store: Store) -> dict[str, Any]:
    manifest = store.read_manifest()
    assert manifest is not None
    return {key: value for key, value in manifest.items() if key not in ("kind", "format")}


def _check_alike(first: Store, wanted: dict[str, Any], other: Store, seen: dict[str, Any]) -> None:
    """Refuse stores of different work, and name the first difference."""
    said = difference("command", f"attnscale {other.writer}", f"attnscale {first.writer}")
    for key in {**wanted, **seen}:
        said = said or difference(key, seen.get(key), wanted.get(key))
    if said:
        rule = f"must be of the same work as {str(first)!r}, got {str(other)!r}, whose {said}"
        raise refusal(ValueError, "stores", rule)


def _gather(stores: Sequence[Store]) -> tuple[dict[str, Path], list[Path]]:
    """The file to keep of each case, by name, and the damaged files."""
    found: dict[str, Path] = {}
    damaged = []
    for path in (path for each in stores for path in _files(each)):
        fields = from_bytes(path.read_bytes(), path.stem)
        if fields is None:
            damaged.append(path)
        elif path.name not in found:
            found[path.name] = path
        else:
            kept = from_bytes(found[path.name].read_bytes(), path.stem)
            assert kept is not None
            if _better(kept, fields, found[path.name], path):
                found[path.name] = path
    return found, damaged


def _files(store: Store) -> Iterator[Path]:
    yield from sorted((store.directory / "cases").glob("*.npz"))


def _better(kept: Fields, other: Fields, *paths: Path) -> bool:
    """Whether the other result of a case replaces the kept one.

    A tally of the same seed with more rows continues the one with fewer. All other results must agree, except
    for the fields that tell where and when they were made, whose names begin with an underscore.
    """
    if set(kept) == set(other) == {"rows", "origin", "sums", "products"}:
        rows = (int(kept["rows"].values), int(other["rows"].values))
        if rows[0] != rows[1]:
            return rows[1] > rows[0]
    if _content(kept) != _content(other):
        raise refusal(
            ValueError,
            "stores",
            f"must have the same result for the same case, got different ones in "
            f"{' and '.join(repr(str(path)) for path in paths)}",
        )
    return False


def _content(fields: Fields) -> dict[str, Any]:
    return {
        name: (each.dims, each.attrs, each.values.dtype.str, each.values.shape, each.values.tobytes())
        for name, each in fields.items()
        if not name.startswith("_")
    }


def _states(stores: Sequence[Store], finished: set[str]) -> list[Path]:
    """States of unfinished trainings, of each the one at the latest step."""
    latest: dict[str, tuple[int, Path]] = {}
    for path in (path for each in stores for path in (each.directory / "checkpoints").glob("*.pt")):
        if path.name.partition("-")[0] in finished:
            continue
        step = step_of(path)
        if path.name not in latest or step > latest[path.name][0]:
            latest[path.name] = step, path
    return [path for _, path in latest.values()]


def _copy(source: Path, target: Path) -> None:
    if not (target.exists() and target.samefile(source)):
        target.parent.mkdir(exist_ok=True)
        write_whole(target, source.read_bytes())
