# SPDX-License-Identifier: BSD-3-Clause
"""Check that a release can be made, and make the files that go beside its wheels.

    python packaging/release.py check                # version, changes, citation, clean tree: for a rehearsal
    python packaging/release.py check --tag v0.1.0   # and dated: for the release of that tag
    python packaging/release.py beside dist          # the documentation as one archive, the bill of materials

Zenodo takes its metadata from CITATION.cff, and only as long as there is no .zenodo.json beside it
(https://help.zenodo.org/docs/github/describe-software/citation-file).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_TIME_OF_EVERY_FILE = (2026, 1, 1, 0, 0, 0)


def main() -> None:
    """Check, or write files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    check = steps.add_parser("check", help="whether a release can be made of this commit")
    check.add_argument("--final", action="store_true", help="refuse what only a rehearsal may leave open")
    check.add_argument("--tag", default="", help="the tag of the release; includes --final")
    beside = steps.add_parser("beside", help="write the files beside the wheels")
    beside.add_argument("dist", type=Path, help="folder with the wheels")
    options = parser.parse_args()
    if options.step == "beside":
        write_beside(options.dist)
        return
    found = problems(ROOT, final=options.final or bool(options.tag), tag=options.tag) + unclean(ROOT)
    if found:
        sys.exit("not ready for a release:\n  " + "\n  ".join(found))
    print(f"attnscale {version_of(ROOT)} ({heading_of(ROOT)[1]}): version, changes and citation agree")


def version_of(root: Path) -> str:
    """The version, from the only place where it is written by hand for the code."""
    text = (root / "cpp/include/attnscale/version.hpp").read_text(encoding="utf-8")
    return re.findall(r'define ATTNSCALE_VERSION "(.+)"', text)[0]


def heading_of(root: Path) -> tuple[str, str]:
    """Version and date of the first section of CHANGELOG.md."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(r"^## (.*)$", text, flags=re.MULTILINE)
    version, _, date = (found[1] if found else "").partition(" ")
    return version, date.strip("()")


def problems(root: Path, *, final: bool, tag: str = "") -> list[str]:
    """List places that differ from the version, a line each; a final release is dated, too."""
    version, (changed, date) = version_of(root), heading_of(root)
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    recipe = (root / "packaging/conda/recipe.yaml").read_text(encoding="utf-8")
    numbers = re.findall(
        r"define ATTNSCALE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)",
        (root / "cpp/include/attnscale/version.hpp").read_text(encoding="utf-8"),
    )
    dated = re.findall(r"^date-released: (.*)$", citation, flags=re.MULTILINE)
    said = {
        "version.hpp, numbers": ".".join(numbers),
        "CHANGELOG.md, first section": changed,
        "conda/recipe.yaml": re.findall(r"^  version: (.*)$", recipe, flags=re.MULTILINE)[0],
        "tag": tag.removeprefix("v") or version,
    }
    cited = re.findall(r"^ *version: (.*)$", citation, flags=re.MULTILINE)
    said |= {f"CITATION.cff, version {i + 1}": each for i, each in enumerate(cited)}
    found = [
        f"{name} is {each!r}, the version is {version!r}" for name, each in said.items() if each != version
    ]
    if dated != ([] if date == "unreleased" else [date]):
        found.append(f"CHANGELOG.md says {date!r}, date-released in CITATION.cff {dated}")
    if final and not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        found.append(f"CHANGELOG.md says {date!r}: a release has a date")
    if (root / ".zenodo.json").exists():
        found.append("Zenodo would read .zenodo.json in place of CITATION.cff")
    return found


def unclean(root: Path) -> list[str]:
    """Files that are not those of the commit."""
    command = ("git", "status", "--porcelain")
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return [f"git status: {done.stderr.strip()}"]
    return [f"not committed: {line}" for line in done.stdout.splitlines()]


def write_beside(dist: Path) -> None:
    """Write the documentation and the bill of materials of the wheels into their folder."""
    version = version_of(ROOT)
    archive = dist / f"attnscale-{version}-docs.zip"
    pack(ROOT / "docs" / "_build" / "html", archive, f"attnscale-{version}-docs")
    (dist / f"attnscale-{version}.cdx.json").write_bytes(bill_of(sorted(dist.glob("attnscale-*.whl"))))
    print(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB")


def pack(html: Path, archive: Path, top: str) -> None:
    """Pack the pages into one folder of an archive; the same pages give the same bytes."""
    pages = sorted(path for path in html.rglob("*") if path.is_file())
    pages = [path for path in pages if not {".doctrees", ".buildinfo"} & set(path.relative_to(html).parts)]
    if html / "index.html" not in pages:
        sys.exit(f"there is no {html / 'index.html'}: run make docs")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in pages:
            name = f"{top}/{path.relative_to(html).as_posix()}"
            entry = zipfile.ZipInfo(name, _TIME_OF_EVERY_FILE)
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def bill_of(wheels: list[Path]) -> bytes:
    """The bill of materials of these wheels, which all have the same one."""
    bills = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
            bills[wheel.name] = archive.read(name)
    if len(set(bills.values())) != 1:
        sys.exit(f"not one bill of materials for {', '.join(bills) or 'no wheel'}")
    return bills[wheels[0].name]


if __name__ == "__main__":
    main()
