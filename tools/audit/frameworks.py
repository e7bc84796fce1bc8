# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.audit.frameworks: whether the record of frameworks is behind their newest packages.

``make audit-frameworks`` runs it. places.json has, by package, the code that the record rests on: the file,
the name in it, a digest, and keys that it has or lacks. Of a wheel only these files are loaded; nothing of it
is run. The exit status is 1 if a release is newer than the record, or a place has changed. Who has read the
changes and brought frameworks.json up to date stores the new digests by ``--write``.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import textwrap
import tokenize
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from attnscale.audit._releases import release_of

from .wheels import newest, opened

PLACES = Path(__file__).with_name("places.json")
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Place = dict[str, Any]


class Finding(NamedTuple):
    """One place, and what became of it.

    Attributes
    ----------
    place : str
        The file and the name in it.
    state : {"same", "changed", "gone", "back"}
        "back" is code that was absent.
    keys : tuple of str
        Keys that the code has or lacks otherwise than before.
    """

    place: str
    state: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.state:9}{self.place}{': ' if self.keys else ''}{', '.join(self.keys)}"


def findings(wheel: zipfile.ZipFile, places: list[Place]) -> Iterator[Finding]:
    """The state of each place in a wheel; one without a digest was absent."""
    for place in places:
        code = code_of(wheel, place)
        said = f"{place['file']} {place.get('name', '')}".rstrip()
        if code is None or "digest" not in place:
            states = {(True, False): "gone", (False, True): "back"}
            yield Finding(said, states.get(("digest" in place, code is not None), "same"))
            continue
        keys = [f"now with {key}" for key in place.get("lacks", ()) if has(code, key)]
        keys += [f"now without {key}" for key in place.get("has", ()) if not has(code, key)]
        yield Finding(said, "same" if digest(code) == place["digest"] else "changed", tuple(keys))


def code_of(wheel: zipfile.ZipFile, place: Place) -> str | None:
    """The code of a function or class, named as "Class.function", or of a file; None if it is absent."""
    if place["file"] not in wheel.namelist():
        return None
    code = wheel.read(place["file"]).decode()
    body, node = ast.parse(code).body, None
    for part in filter(None, place.get("name", "").split(".")):
        node = next((each for each in body if isinstance(each, _NAMED) and each.name == part), None)
        if node is None:
            return None
        body = node.body
    return code if node is None else ast.get_source_segment(code, node, padded=True)


def digest(code: str) -> str:
    """A digest that changes with the code, and not with comments or layout."""
    return hashlib.sha256("\n".join(_tokens(code)).encode()).hexdigest()[:16]


def has(code: str, key: str) -> bool:
    """Whether the code has a key, as a name, a number or a text; a key in double quotes is a text alone."""
    tokens = {f'"{each[1:-1]}"' if each[0] in "\"'" else each for each in _tokens(code)}
    return key in tokens or f'"{key}"' in tokens


def _tokens(code: str) -> list[str]:
    lines = io.StringIO(textwrap.dedent(code)).readline
    return [each.string for each in tokenize.generate_tokens(lines) if each.type not in _LAYOUT]


def report(release: str, known: dict[str, Any], wheel: zipfile.ZipFile) -> tuple[list[str], bool]:
    """Lines about a package, and whether the record is behind it."""
    is_newer = release_of(known["release"]).is_before(release_of(release))
    found = [each for each in findings(wheel, known["places"]) if each.state != "same" or each.keys]
    lines = [f"release {release} is newer than {known['release']}, the last on record"] if is_newer else []
    lines += map(str, found)
    return lines or [f"release {release}: as on record"], is_newer or bool(found)


def main() -> None:
    """Look at every package, and store digests if that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", nargs="*", help="packages, default: all that are on record")
    parser.add_argument("--write", action="store_true", help="store the release and the digests of today")
    args = parser.parse_args()
    stored = json.loads(PLACES.read_text(encoding="utf-8"))
    is_behind = False
    for package in args.package or stored:
        release, address = newest(package)
        wheel = opened(address)
        lines, behind = report(release, stored[package], wheel)
        print(package, *lines, sep="\n  ", flush=True)
        is_behind |= behind
        if args.write:
            stored[package] = {
                "release": release,
                "places": [_stored(wheel, x) for x in stored[package]["places"]],
            }
    if args.write:
        PLACES.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(int(is_behind and not args.write))


def _stored(wheel: zipfile.ZipFile, place: Place) -> Place:
    """The place as it is in this wheel; keys that it has or lacks are the reader's to write."""
    left = {key: value for key, value in place.items() if key != "digest"}
    code = code_of(wheel, place)
    return left if code is None else {**left, "digest": digest(code)}


if __name__ == "__main__":
    main()
