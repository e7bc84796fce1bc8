# SPDX-License-Identifier: BSD-3-Clause
"""Rehearse what a first user types, in empty environments without network, from the files of a release alone.

    python packaging/rehearse.py dist                                # with the Python that runs this
    python packaging/rehearse.py dist --python python3.14 --cpp      # with another one, too, and in C++
    python packaging/rehearse.py dist --unpacked build/python3.15    # with Debian's Python in a chroot

Wheels of NumPy, SciPy and matplotlib are downloaded before. Then each command runs in namespaces of its own,
without network; where the system allows none, the network stays on and an unpacked Python does not run. The
last lines say what was run, and what was not, and why.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "rehearsal"
CHECK = ROOT / "tests" / "package" / "wheel_check.py"
README = ROOT / "README.md"
#: Words of a first user who has read nothing, their exit status, and a part of what they print.
FIRST_WORDS = (
    ("attnscale", 0, "usage: "),
    ("attnscale --help", 0, "exit status:"),
    ("attnscale --version", 0, "attnscale "),
    ("attnscale info", 0, "simd_level"),
    ("attnscale entropy --help", 0, "Mean entropy of each head"),
    ("attnscale demo", 0, "ln n/sqrt(d)"),
    ("attnscale demo --plot demo.png", 2, "pip install matplotlib"),
    ("attnscale no-such-command", 2, "COMMAND must be one of"),
    ("python -m attnscale", 0, "usage: "),
    ("python -c 'import attnscale as at; print(at.attention([[0.0]], [[1.0]], [[2.0]]))'", 0, "[[2.]]"),
    ("python -c 'import attnscale.torch'", 1, "pip install torch"),
)  # fmt: skip
#: Words for the shell of a mount namespace: a folder of a system gets what a process expects, and is entered.
ENTER = """
for each in proc dev; do mkdir -p "$1/$each"; mount --rbind "/$each" "$1/$each"; done
export HOME=/rehearsal TMPDIR=/rehearsal PYTHONPATH=/rehearsal/site-packages
exec chroot "$@"
"""


def main() -> None:
    """Rehearse; the first failure ends the run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dist", type=Path, help="folder with the files of the release")
    parser.add_argument("--python", action="append", default=[], help="another Python of this system")
    parser.add_argument("--unpacked", action="append", default=[], type=Path, help="from unpack-packages")
    parser.add_argument("--cpp", action="store_true", help="build and run the C++ examples, too")
    options = parser.parse_args()
    dist = options.dist.resolve()
    shutil.rmtree(WORK, ignore_errors=True)
    ran = look_at(dist)
    for number, python in enumerate((sys.executable, *options.python)):
        ran |= rehearse_here(Path(shutil.which(python) or python), dist, WORK / f"python-{number}")
    for root in options.unpacked if without_network() else ():
        ran |= rehearse_unpacked(root.resolve(), dist)
    if options.cpp:
        ran |= rehearse_cpp(dist)
    left = sorted({path.name for path in dist.glob("attnscale-*")} - set(ran))
    print(f"\nrun, {'without' if without_network() else 'for want of namespaces with'} network:")
    print(*(f"  {name}: {what}" for name, what in ran.items()), sep="\n")
    print("not run, for want of such a system, or not asked for:", *(f"  {name}" for name in left), sep="\n")


@functools.cache
def without_network() -> tuple[str, ...]:
    """The words before a command that runs without network, or none where there are no namespaces."""
    words = (shutil.which("unshare") or "unshare", "--map-root-user", "--net", "--mount")
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return words


def run(command: Sequence[str | Path], folder: Path, path: str | Path, *, status: int = 0) -> str:
    """Run a command without network, with this PATH and a home of its own; return what it prints."""
    variables = {"PATH": str(path), "HOME": str(folder), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [*without_network(), *command], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    if done.returncode != status:
        line = shlex.join(map(str, command))
        sys.exit(f"{line}\nin {folder} ended with {done.returncode}, not {status}:\n{said[-4000:]}")
    return said


def type_line(line: str, folder: Path, programs: Path, *, status: int = 0) -> str:
    """Run a line as typed in an activated environment, and return what it prints."""
    print(f"  $ {line}", flush=True)
    name, *rest = shlex.split(line)
    return run([programs / name, *rest], folder, programs, status=status)


def look_at(dist: Path) -> dict[str, str]:
    """Compare the files with SHA256SUMS, and follow the links of the documentation's first page."""
    seen = {}
    sums = dist / "SHA256SUMS"
    for line in sums.read_text().splitlines() if sums.exists() else ():
        digest, name = line.split(maxsplit=1)
        if hashlib.sha256((dist / name).read_bytes()).hexdigest() != digest:
            sys.exit(f"{name} is not the file of {sums.name}")
        seen[sums.name] = "the files have these sums"
    for archive in dist.glob("*-docs.zip"):
        with zipfile.ZipFile(archive) as packed:
            names = set(packed.namelist())
            top = archive.stem
            links = re.findall(r'(?:href|src)="([^"#?:]+)["#?]', packed.read(f"{top}/index.html").decode())
        lost = sorted({link for link in links if f"{top}/{link}" not in names})
        if lost:
            sys.exit(f"{archive.name}: index.html links {lost}, which it has not")
        pages = sum(name.endswith(".html") for name in names)
        seen[archive.name] = f"{pages} pages, and all that the first one links"
    return seen


def download(python: Path, dist: Path, folder: Path, *choose: str) -> Path:
    """Download what attnscale[plot] needs, with options for another Python; the wheel that pip chose."""
    pip = [python, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--dest", folder]
    pip += ["--only-binary=:all:", *choose]
    subprocess.run([*pip, "--no-index", "--no-deps", "--find-links", dist, "attnscale"], check=True)
    (wheel,) = folder.glob("attnscale-*.whl")
    subprocess.run([*pip, f"{wheel}[plot]"], check=True)
    return wheel


def rehearse_here(python: Path, dist: Path, folder: Path) -> dict[str, str]:
    """README's lines and a first user's words with a Python of this system."""
    print(f"\n-- {python}", flush=True)
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    wheel = download(programs / "python", dist, folder / "wheels")
    wheels = shlex.quote(str(folder / "wheels"))
    install = f"pip install -q --disable-pip-version-check --no-index --find-links {wheels}"
    type_line(f"{install} attnscale", folder, programs)
    for line, status, expected in FIRST_WORDS:
        said = type_line(line, folder, programs, status=status)
        if expected not in said:
            sys.exit(f"{line} does not say {expected!r}:\n{said}")
    print(type_line(shlex.join(["python", str(CHECK), str(README)]), folder, programs), end="")
    type_line(f"{install} 'attnscale[plot]'", folder, programs)
    for line in command_lines(README):
        type_line(line, folder, programs)
    return {wheel.name: "a first user's words, README's sixty seconds and its command lines"}


def command_lines(page: Path) -> list[str]:
    """The command lines of README's sixty seconds."""
    text = page.read_text(encoding="utf-8").partition("## Sixty seconds")[2].partition("\n## ")[0]
    lines = re.findall(r"^    (attnscale .*)$", text, flags=re.MULTILINE)
    assert len(lines) >= 5, f"{page.name} has lost its command lines"
    return lines


def rehearse_unpacked(root: Path, dist: Path) -> dict[str, str]:
    """README's sixty seconds, info and demo with Debian's Python, in a chroot."""
    print(f"\n-- {root.name}, in a chroot", flush=True)
    version = root.name.removeprefix("python")
    choose = ["--python-version", version, "--implementation", "cp", "--abi", f"cp{version.replace('.', '')}"]
    for glibc in ("2_17", "2_27", "2_28"):  # pip takes no older one along
        choose += ["--platform", f"manylinux_{glibc}_x86_64"]
    choose += ["--platform", "manylinux2014_x86_64"]
    python = WORK / "python-0" / "venv" / "bin" / "python"  # Debian's own has no pip
    wheel = download(python, dist, WORK / root.name / "wheels", *choose)
    folder = root / "rehearsal"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for each in wheel.parent.glob("*.whl"):  # pip installs for its own Python
        with zipfile.ZipFile(each) as archive:
            archive.extractall(folder / "site-packages")
    for page in (CHECK, README):
        shutil.copy(page, folder)
    check = f"/rehearsal/{CHECK.name} /rehearsal/{README.name}"
    for line in (check, "-m attnscale info", "-m attnscale demo"):
        print(f"  $ {root.name} {line}", flush=True)
        entered = ["/bin/sh", "-ec", ENTER, "-", root, f"/usr/bin/{root.name}", *line.split()]
        run(entered, folder, "/usr/sbin:/usr/bin:/sbin:/bin")
    return {wheel.name: "README's sixty seconds, info, demo"}


def rehearse_cpp(dist: Path) -> dict[str, str]:
    """The C++ library from the source archive, installed, and the examples that use it."""
    (archive,) = dist.glob("attnscale-*.tar.gz")
    print(f"\n-- {archive.name}: cmake, and cpp/examples with the installed package", flush=True)
    folder = WORK / "cpp"
    with tarfile.open(archive) as tar:
        # Python 3.11 has the filter from 3.11.4 on; Debian 12 has 3.11.2.
        tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    source = folder / archive.name.removesuffix(".tar.gz")
    hidden = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("xsimd", "xtl", "xtensor")]
    path = ":".join(str(Path(shutil.which(name) or name).parent) for name in ("cmake", "make", "g++"))
    examples = ["-S", source / "cpp" / "examples", "-B", "examples"]
    for command in (
        ["cmake", "-S", source, "-B", "build", "-DATTNSCALE_BUILD_TESTS=OFF", *hidden],
        ["cmake", "--build", "build", "--parallel", "2"],
        ["cmake", "--install", "build", "--prefix", "prefix"],
        ["cmake", *examples, f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}"],
        ["cmake", "--build", "examples", "--parallel", "2"],
    ):
        print(f"  $ {shlex.join(map(str, command))}", flush=True)
        run(command, folder, f"{path}:/usr/bin:/bin")
    programs = sorted(path.stem for path in (source / "cpp" / "examples").glob("*.cpp"))
    for name in programs:
        print(f"  $ examples/{name}", flush=True)
        run([folder / "examples" / name], folder, "/usr/bin")
    return {archive.name: f"installed by CMake; {', '.join(programs)} run with it"}


if __name__ == "__main__":
    main()
