# SPDX-License-Identifier: BSD-3-Clause
"""The environment of an end: its packages, and attnscale built in a copy of the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.mutants.tree import ROOT, make_tree

from .interpreter import header_options, newest_python, program, unpack_newest

__all__ = ["Environment", "installed", "make_environment", "requirements", "tools_of_tests"]

#: Extras of a free-threaded Python: PyTorch and JAX are left out.
_WITHOUT_TENSORS = ("test",)
#: transformers 5.4.0 builds no config of Cohere 2 or OLMo 2 beside huggingface_hub 1.33.
_BESIDE_THE_OLDEST = ("huggingface-hub==1.8.0",)
_PINNED = ("cibuildwheel==",)
_SEEN = """import json, importlib.metadata as m, platform, sys, sysconfig, attnscale
config = attnscale.show_config()
print(json.dumps({
    "python": platform.python_version() + "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "packages": {d.name.lower().replace("_", "-"): d.version for d in m.distributions()}
    | {name: config[name] for name in ("xsimd", "xtensor", "pybind11")},
    "imports": {name: each[0] for name, each in m.packages_distributions().items()},
}))"""


class Environment(NamedTuple):
    """An environment and the copy of the repository that is installed in it.

    Attributes
    ----------
    python : Path
        The interpreter.
    tree : Path
        The copy.
    variables : dict
        Environment variables of its processes.
    """

    python: Path
    tree: Path
    variables: dict[str, str]


def requirements(project: dict[str, Any], extras: Iterable[str]) -> Iterator[str]:
    """Packages that ours needs with these extras, and to be built; extras of its own are opened."""
    yield from project["build-system"]["requires"]
    yield from project["project"]["dependencies"]
    for extra in extras:
        for line in project["project"]["optional-dependencies"][extra]:
            own = re.fullmatch(r"attnscale\[(.*)\]", line)
            yield from requirements(project, own[1].split(",")) if own else [line]


def tools_of_tests(text: str) -> tuple[list[str], list[str]]:
    """Packages that mk/tools.mk installs for tests: those with their requirements, and those without."""
    text = text.replace("\\\n", " ")
    (tools,) = re.findall(r"'\.\[test,lint,docs\]' (.*)", text)
    alone = re.findall(r"^(?:VARIANT_PEERS|TRITON|MINILM) := (.*)", text, re.MULTILINE)
    return tools.split(), " ".join(alone).split()


def _bare(names: Sequence[str]) -> list[str]:
    """Names without versions, other than those whose version a workflow has, too."""
    return [name if name.startswith(_PINNED) else name.partition("==")[0] for name in names]


def _resolve(end: str, place: Path, python: Path, free_threaded: bool) -> Path:
    """The file of exact versions; one that is there is kept while the same packages are asked for."""
    lock, part, direct = (place / name for name in ("lock.txt", "lock.part", "direct.txt"))
    asked = {place / name: text for name, text in _asked(end, free_threaded).items()}
    if lock.exists() and all(path.exists() and path.read_text() == text for path, text in asked.items()):
        return lock
    for old in (lock, part, direct):  # uv prefers versions of the file that it is to write
        old.unlink(missing_ok=True)
    for path, text in asked.items():
        path.write_text(text)
    wheels = () if free_threaded else ("--only-binary", ":all:")  # some have no wheel for it yet
    compile = (program("uv"), "pip", "compile", "-q", "--python", python, "--no-annotate", *wheels)
    order = "lowest-direct" if end == "yesterday" else "highest"
    subprocess.run((*compile, "--resolution", order, place / "direct.in", "-o", direct), check=True)
    # The tools of tests come second: the lowest versions of them are nobody's promise.
    subprocess.run((*compile, direct, place / "tools.in", "-o", part), check=True)
    part.rename(lock)
    return lock


def _asked(end: str, free_threaded: bool) -> dict[str, str]:
    """Packages of pyproject.toml, and tools of tests: the lines of a file for each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = _WITHOUT_TENSORS if free_threaded else tuple(project["project"]["optional-dependencies"])
    if end == "yesterday":  # the kernels need a Triton that is newer than that of the oldest PyTorch
        extras = tuple(extra for extra in extras if extra != "triton")
    wanted = dict.fromkeys(requirements(project, extras))
    if end == "yesterday":
        wanted |= dict.fromkeys(_BESIDE_THE_OLDEST)
    tools, _ = tools_of_tests((ROOT / "mk" / "tools.mk").read_text("utf-8"))
    tools = [] if free_threaded else _bare(tools)
    files = {"direct.in": wanted, "tools.in": ("pip", "build", *tools)}
    return {name: "".join(f"{line}\n" for line in lines) for name, lines in files.items()}


def _variables(venv: Path, tree: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ATTNSCALE"))}
    return {
        **kept,
        "PATH": f"{kept['PATH']}{os.pathsep}{venv / 'bin'}",
        "VIRTUAL_ENV": str(venv),
        # Settings of ccache as in the Makefile, to share what both compile.
        "CMAKE_CXX_COMPILER_LAUNCHER": shutil.which("ccache") or "",
        "CCACHE_BASEDIR": str(tree / "cpp"),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_DEPEND": "1",
        "SKBUILD_CMAKE_DEFINE": "",  # make sets it for the usual build
    }


def make_environment(
    end: str, place: Path, python: Path | None = None, free_threaded: bool = False
) -> Environment:
    """Bring the environment of an end up to date below `place`; packages that are there are kept."""
    place.mkdir(parents=True, exist_ok=True)
    usr = unpack_newest(place / "debian") if end == "tomorrow" else None
    if python is None and end == "yesterday":
        python = Path(sys.executable)
    if python is None:
        if usr is None:
            raise SystemExit("no Debian with apt here to take the newest Python from: pass --python PATH")
        python = newest_python(usr)
    venv, tree = place / "venv", place / "tree"
    if not (venv / "bin" / "python").exists():
        subprocess.run((program("uv"), "venv", "-q", "--python", python, venv), check=True)
    environment = Environment(venv / "bin" / "python", tree, _variables(venv, tree))
    lock = _resolve(end, place, environment.python, free_threaded)
    install = (program("uv"), "pip", "install", "--python", environment.python)
    subprocess.run((*install, "-r", lock), check=True)
    _, alone = tools_of_tests((ROOT / "mk" / "tools.mk").read_text("utf-8"))
    if not free_threaded:
        peers = alone if end == "yesterday" else _bare(alone)
        subprocess.run((*install, "--no-deps", *_not_locked(peers, lock)), check=True)
    make_tree(None, tree)
    _build(environment, header_options(usr) if usr else [])
    return environment


def _build(environment: Environment, headers: Sequence[str]) -> None:
    """Build and install the copy with the kernels of all levels, as the Makefile does."""
    defines = ("ATTNSCALE_SIMD_LEVELS=", "ATTNSCALE_EMULATE_BFLOAT16=ON", *headers)
    settings = [word for each in defines for word in ("-C", f"cmake.define.{each}")]
    install = (program("uv"), "pip", "install", "--python", environment.python, "--no-deps")
    build: tuple[str | Path, ...] = (
        *install,
        "--no-build-isolation",
        "--reinstall-package",
        "attnscale",
        *settings,
    )
    subprocess.run((*build, "-e", environment.tree), check=True, env=environment.variables)


def _not_locked(names: Sequence[str], lock: Path) -> list[str]:
    """Packages that the file of versions does not name."""
    locked = set(re.findall(r"^([\w.-]+)==", lock.read_text("utf-8"), re.MULTILINE))
    return [name for name in names if name.partition("==")[0] not in locked]


def installed(python: Path, folder: Path) -> dict[str, Any]:
    """Version of an interpreter, its packages by name, and the package of each import."""
    done = subprocess.run((python, "-c", _SEEN), cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{python} does not say what is installed beside attnscale:\n{done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
