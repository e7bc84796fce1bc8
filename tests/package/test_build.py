# SPDX-License-Identifier: BSD-3-Clause
"""How CMake finds or fetches its libraries, and what sdist and wheel contain."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import attnscale as at
import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("xsimd", "xtl", "xtensor")
# The version to stand for in a test archive, and a header by which each library is known.
HEADERS = {"xsimd": "xsimd/xsimd.hpp", "xtl": "xtl/xtl_config.hpp", "xtensor": "xtensor/xtensor.hpp"}

needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")


def configure(build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Configures the C++ library alone, with no installed library but those the options allow."""
    command = ["cmake", "-S", ROOT, "-B", build, "-DATTNSCALE_BUILD_TESTS=OFF", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def hidden(*names: str) -> list[str]:
    return [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in names]


def installed_headers(name: str) -> Path:
    for prefix in ("/usr", "/usr/local", sys.prefix, "/opt/homebrew"):
        if (Path(prefix) / "include" / HEADERS[name]).exists():
            return Path(prefix) / "include" / name
    pytest.skip(f"{name} is not installed on this system")


def make_archive(name: str, folder: Path) -> list[str]:
    """An archive laid out as a release of the library; the CMake options that point to it."""
    archive = folder / f"{name}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(installed_headers(name), f"{name}-1.0/include/{name}")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    upper = name.upper()
    return [f"-DATTNSCALE_{upper}_URL={archive.as_uri()}", f"-DATTNSCALE_{upper}_SHA256={digest}"]


def files_read(build: Path, unit: str) -> str:
    """Every header that the unit includes, by the compiler's own account."""
    commands = json.loads((build / "compile_commands.json").read_text())
    (command,) = [entry["command"] for entry in commands if entry["file"].endswith(unit)]
    command = re.sub(r" -o \S+", " ", command)
    return subprocess.run(
        f"{command} -M", shell=True, cwd=build, capture_output=True, text=True, check=True
    ).stdout


@needs_cmake
def test_libraries_are_fetched_where_they_are_not_installed(tmp_path: Path) -> None:
    options = [option for name in LIBRARIES for option in make_archive(name, tmp_path)]
    build = tmp_path / "build"
    done = configure(build, *hidden(*LIBRARIES), *options)
    assert done.returncode == 0, done.stderr
    assert "_deps/xsimd-src/include/xsimd/xsimd.hpp" in files_read(build, "isa/avx2.cpp")
    for name in LIBRARIES:
        assert f"{name}: " in done.stdout
        assert (build / "_deps" / f"{name}-src" / "include" / HEADERS[name]).exists()


@needs_cmake
def test_an_archive_with_another_checksum_is_refused(tmp_path: Path) -> None:
    url, _ = make_archive("xsimd", tmp_path)
    done = configure(tmp_path / "build", *hidden("xsimd"), url)
    assert done.returncode != 0
    assert "8da77b66214e73565f6111ba494322c853552b7b40cff69779b42e2100eed16f" in done.stderr


@needs_cmake
@pytest.mark.parametrize(
    "how",
    [["-DATTNSCALE_XSIMD_URL=file:///nowhere/xsimd.tar.gz"], ["-DFETCHCONTENT_FULLY_DISCONNECTED=ON"]],
    ids=["unreachable", "disconnected"],
)
def test_a_missing_library_is_a_clear_error(tmp_path: Path, how: list[str]) -> None:
    done = configure(tmp_path / "build", *hidden("xsimd"), *how)
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert "attnscale needs xsimd >= 8.1: not installed, and not fetched from" in message
    assert (
        "Install libxsimd-dev (Debian), xsimd (conda-forge), xsimd (Homebrew), "
        "or pass -DATTNSCALE_XSIMD_INCLUDE_DIR=DIRECTORY." in message
    )


@needs_cmake
def test_a_given_directory_comes_first_and_must_hold_the_library(tmp_path: Path) -> None:
    given = tmp_path / "given"
    shutil.copytree(installed_headers("xsimd"), given / "xsimd")
    build = tmp_path / "build"
    done = configure(build, f"-DATTNSCALE_XSIMD_INCLUDE_DIR={given}")
    assert done.returncode == 0, done.stderr
    assert f"{given}/xsimd/xsimd.hpp" in files_read(build, "isa/avx2.cpp")
    shutil.rmtree(given)
    assert configure(build).returncode != 0


@needs_cmake
def test_flags_of_the_compilers(tmp_path: Path) -> None:
    """Kernels are optimised in debug builds too; nothing breaks NaN, inf or signed zeros."""
    build = tmp_path / "build"
    assert configure(build, "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-flto").returncode == 0
    commands = json.loads((build / "compile_commands.json").read_text())
    assert len(commands) > 5
    for entry in commands:
        words = entry["command"].split()
        assert "-ffp-contract=off" in words
        assert not {"-march=native", "-ffast-math", "-ffinite-math-only", "-Ofast"} & set(words)
        if "/isa/" in entry["file"]:
            assert words.index("-O3") > words.index("-g")
            assert words.index("-fno-lto") > words.index("-flto")
        elif "/src/" in entry["file"]:
            assert not any(word.startswith(("-mavx", "-mfma")) for word in words)


@needs_cmake
def test_both_layouts_of_xtensor_headers(tmp_path: Path) -> None:
    """xtensor 0.26 moved its headers; here the new names lead to the installed files."""
    flat = installed_headers("xtensor")
    if not (flat / "xtensor.hpp").exists():
        pytest.skip("this xtensor has the new layout itself: every build tests it")
    compat = ROOT / "cpp/include/attnscale/xtensor_compat.hpp"
    moved = re.findall(r"<xtensor/(\w+/\w+\.hpp)>", compat.read_text())
    assert len(moved) > 5
    for name in moved:
        target = tmp_path / "xtensor" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"#pragma once\n#include <xtensor/{target.name}>\n")
    listed = subprocess.run(
        ["g++", "-std=c++20", f"-I{tmp_path}", f"-I{ROOT}/cpp/include", "-x", "c++", "-M", compat],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in moved:
        assert str(tmp_path / "xtensor" / name) in listed
        assert str(flat / Path(name).name) in listed


# ---- version, sdist, wheel ---------------------------------------------------------------------


def test_the_version_is_the_same_everywhere() -> None:
    header = (ROOT / "cpp/include/attnscale/version.hpp").read_text()
    assert f'"{at.__version__}"' in header
    assert version("attnscale") == at.__version__
    assert f"\nversion: {at.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """What the command prints; the shell's PYTHONPATH stays out of it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_the_sdist_holds_what_a_build_needs_and_no_more(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[0]) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    for needed in ("pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md", "cmake/dependencies.cmake",
                   "cpp/src/isa/neon.cpp", "cpp/tests/main.cpp", "python/attnscale/py.typed",
                   "tests/package/test_build.py", "docs/_static/attnscale-demo.png"):  # fmt: skip
        assert needed in names
    junk = re.compile(r"(^|/)(build|\.venv|\.git|\.ci|__pycache__|\.\w+_cache)(/|$)|\.(so|o|pyc)$")
    assert [name for name in names if junk.search(name)] == []


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(f"attnscale-{at.__version__}.dist-info/METADATA").decode()
    assert {name.split("/")[0] for name in names} == {"attnscale", f"attnscale-{at.__version__}.dist-info"}
    tops = [name for name in names if name.startswith("attnscale/_core") and name.endswith(".so")]
    assert len(tops) == 1
    assert "attnscale/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert [name for name in names if name.endswith((".hpp", ".cpp", ".a", ".pyc", ".cmake"))] == []
    required = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert required == ["Requires-Dist: numpy>=2", "Requires-Dist: scipy>=1.13"]
    assert distributions[1].stat().st_size < 4e6


SMOKE = """
import numpy as np, attnscale as at
q = np.random.default_rng(0).standard_normal((2, 64, 16))
rows = at.attention_statistics(q, q, q, scale="log_n", is_causal=True)
assert rows.output.shape == q.shape and rows.entropy[0, 0] == 0
assert at.datasets.minilm_qk() is not None
print(at.simd_level())
"""


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    run(binaries / "pip", "install", "-q", "--disable-pip-version-check", distributions[1])
    installed = run(binaries / "pip", "list", "--format=freeze", "--disable-pip-version-check")
    names = {line.split("==")[0] for line in installed.split()}
    assert names == {"attnscale", "numpy", "scipy", "pip", "setuptools"}
    assert run(binaries / "python", "-c", SMOKE, cwd=tmp_path).strip() == at.simd_level()
    assert run(binaries / "attnscale", "--version", cwd=tmp_path).split()[-1] == at.__version__
    assert at.simd_level() in run(binaries / "attnscale", "info", cwd=tmp_path)
    assert "log" in run(binaries / "attnscale", "demo", cwd=tmp_path)
