# SPDX-License-Identifier: BSD-3-Clause
"""How CMake finds or fetches its libraries, and with which flags it compiles."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import attnscale as at
import pytest

ROOT = Path(__file__).resolve().parents[2]
# Files in cpp/src/machine that say which levels there are.
TABLES = ("levels.cpp", "simd_level.cpp")
LIBRARIES = ("xsimd", "xtl", "xtensor")
# The version to stand for in a test archive, and a header by which each library is known.
HEADERS = {"xsimd": "xsimd/xsimd.hpp", "xtl": "xtl/xtl_config.hpp", "xtensor": "xtensor/xtensor.hpp"}

# The source of a project that uses the package.
USER = "#include <attnscale/dense_array.hpp>\nattnscale::dense_array<float> x;\n"

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
    command = next(entry["command"] for entry in commands if entry["file"].endswith(unit))
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
    assert "_deps/xsimd-src/include/xsimd/xsimd.hpp" in files_read(build, "units/softmax.cpp")
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
    assert f"{given}/xsimd/xsimd.hpp" in files_read(build, "units/softmax.cpp")
    shutil.rmtree(given)
    assert configure(build).returncode != 0


def run_cmake(*arguments: str | Path) -> str:
    """Output of a run of CMake, which must succeed."""
    done = subprocess.run(["cmake", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_cmake
@pytest.mark.parametrize(
    "takes_in",
    [
        f"add_subdirectory({ROOT} attnscale)",
        f"include(FetchContent)\nFetchContent_Declare(attnscale SOURCE_DIR {ROOT})\n"
        "FetchContent_MakeAvailable(attnscale)",
    ],
    ids=["add_subdirectory", "FetchContent"],
)
def test_a_parent_project_uses_the_target_and_keeps_its_build_type_and_its_prefix(
    takes_in: str, tmp_path: Path
) -> None:
    (tmp_path / "user.cpp").write_text(USER)
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.25)\nproject(parent LANGUAGES CXX)\n{takes_in}\n"
        "add_library(user OBJECT user.cpp)\ntarget_link_libraries(user PRIVATE attnscale::attnscale)\n"
    )
    build, prefix = tmp_path / "build", tmp_path / "prefix"
    run_cmake("-S", tmp_path, "-B", build, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    assert re.findall(r"^CMAKE_BUILD_TYPE:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M) == [""]
    (command,) = (
        each["command"]
        for each in json.loads((build / "compile_commands.json").read_text())
        if each["file"].endswith("user.cpp")
    )
    subprocess.run(f"{command} -fsyntax-only", shell=True, cwd=build, check=True)
    run_cmake("--install", build, "--prefix", prefix)
    assert not prefix.exists() or not any(prefix.rglob("*.*"))


@needs_cmake
def test_a_package_with_fetched_xtensor_brings_it_along(tmp_path: Path) -> None:
    """The consumer finds no xtensor of its own, and compiles attnscale's headers."""
    options = [option for name in ("xtl", "xtensor") for option in make_archive(name, tmp_path)]
    build, prefix, user = tmp_path / "build", tmp_path / "prefix", tmp_path / "user"
    assert configure(build, *hidden("xtl", "xtensor"), *options).returncode == 0
    (build / "libattnscale.a").write_bytes(b"!<arch>\n")  # compiling the library is not the subject
    run_cmake("--install", build, "--prefix", prefix)
    user.mkdir()
    (user / "user.cpp").write_text(USER)
    (user / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES CXX)\n"
        "find_package(attnscale REQUIRED)\nadd_library(user OBJECT user.cpp)\n"
        "target_link_libraries(user PRIVATE attnscale::attnscale)\n"
    )
    run_cmake("-S", user, "-B", user / "build", f"-DCMAKE_PREFIX_PATH={prefix}", *hidden("xtl", "xtensor"))
    command = run_cmake("--build", user / "build", "--verbose")
    assert f"-isystem {prefix}/include/attnscale/third_party" in command
    assert f"-isystem {prefix}/include/attnscale/third_party" in flags_of_package(prefix)


def flags_of_package(prefix: Path) -> str:
    """Flags in the installed file for pkg-config, read without pkg-config."""
    (file,) = prefix.rglob("attnscale.pc")
    values = {"pcfiledir": str(file.parent)}
    found = ""
    for line in file.read_text().splitlines():
        name, equals, value = line.partition("=") if ":" not in line else ("", "", "")
        line = re.sub(r"\$\{(\w+)\}", lambda each: values[each[1]], value if equals else line)
        if equals:
            values[name] = str(Path(line).resolve())
        elif line.startswith(("Cflags:", "Requires:")):
            found += line + "\n"
    return found


@needs_cmake
def test_a_package_with_installed_xtensor_asks_for_it(tmp_path: Path) -> None:
    build, prefix = tmp_path / "build", tmp_path / "prefix"
    assert configure(build).returncode == 0
    (build / "libattnscale.a").write_bytes(b"!<arch>\n")
    run_cmake("--install", build, "--prefix", prefix)
    if any(prefix.rglob("third_party")):
        pytest.skip("no CMake package of xtensor on this system")
    flags = flags_of_package(prefix)
    assert "Requires: xtensor\n" in flags
    assert f"-I{prefix}/include\n" in flags


@needs_cmake
def test_flags_of_the_compilers(tmp_path: Path) -> None:
    """Kernels are optimised in debug builds too; nothing breaks NaN, inf or signed zeros."""
    build = tmp_path / "build"
    assert configure(build, "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-flto").returncode == 0
    commands = json.loads((build / "compile_commands.json").read_text())
    units = 0
    for entry in commands:
        words = entry["command"].split()
        assert "-ffp-contract=off" in words
        assert not {"-march=native", "-ffast-math", "-ffinite-math-only", "-Ofast"} & set(words)
        if "/units/" in entry["file"]:
            units += 1
            assert words.index("-g") < max(words.index(level) for level in ("-O2", "-O3") if level in words)
            assert words.index("-fno-lto") > words.index("-flto")
        elif "/src/" in entry["file"]:
            assert not any(word.startswith(("-mavx", "-mfma")) for word in words)
    assert units >= 7


def commands_of(build: Path) -> set[str]:
    """Commands that compile, wherever the build is, but those of the tables of levels."""
    listed = json.loads((build / "compile_commands.json").read_text().replace(f"{build}/", ""))
    return {entry["command"] for entry in listed if Path(entry["file"]).name not in TABLES}


@needs_cmake
def test_a_build_for_this_machine_has_its_level_and_all_levels_add_to_it(tmp_path: Path) -> None:
    """As `make demo` and `make test` build: the second compiles nothing again but the tables of levels."""
    build = tmp_path / "build"
    said = configure(build, "-DATTNSCALE_SIMD_LEVELS=native").stdout
    (levels,) = re.findall(r"SIMD levels of this machine: (.*)$", said, re.MULTILINE)
    code = "import attnscale; print(attnscale.simd_level())"
    given = {**os.environ, "ATTNSCALE_SIMD": ""}
    command = [sys.executable, "-c", code]
    chosen = subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout.strip()
    assert levels.split(", ")[-1] == chosen
    native = commands_of(build)
    named = {name for each in native for name in re.findall(r"kernels_(\w+)\.dir", each)}
    assert named == set(levels.split(", "))
    all_levels = ("-DATTNSCALE_SIMD_LEVELS=", "-DATTNSCALE_EMULATE_BFLOAT16=ON")
    assert configure(build, *all_levels).returncode == 0
    assert native < commands_of(build)
    # A build from scratch finds their objects in the compiler's cache.
    assert configure(tmp_path / "other", *all_levels).returncode == 0
    assert commands_of(tmp_path / "other") == commands_of(build)
    assert "ATTNSCALE_WITHOUT" not in (build / "compile_commands.json").read_text()


@pytest.mark.skipif(
    platform.machine() != "x86_64"
    or shutil.which("g++") is None
    or "amx_bf16" in at.show_config()["available_simd_levels"],
    reason="not x86-64, no g++, or a CPU with every level",
)
def test_a_cpu_without_the_levels_of_a_build_is_told_so(tmp_path: Path) -> None:
    """The tables of levels without kernels, of which only the last is left."""
    left_out = [f"-DATTNSCALE_WITHOUT_{name}" for name in ("BASELINE", "AVX2", "AVX512", "AVX512_BF16")]
    sources = [
        ROOT / "cmake/native_level.cpp",
        *(ROOT / "cpp/src/machine" / name for name in ("cpu_features.cpp", *TABLES)),
    ]
    include = [f"-I{ROOT}/cpp/include", f"-I{ROOT}/cpp/src"]
    program = tmp_path / "program"
    subprocess.run(["g++", "-std=c++20", *include, *left_out, *sources, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (
        "this CPU has none of the SIMD levels of this build (amx_bf16): "
        "build attnscale on this machine, or at all levels" in done.stderr
    )


@needs_cmake
def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    done = configure(tmp_path / "build", "-DATTNSCALE_SIMD_LEVELS=avx3")
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert "ATTNSCALE_SIMD_LEVELS must be native, or a list of " in message
    assert "got 'avx3'" in message


@needs_cmake
def test_both_layouts_of_xtensor_headers(tmp_path: Path) -> None:
    """xtensor 0.26 moved its headers; here the new names lead to the installed files."""
    flat = installed_headers("xtensor")
    if not (flat / "xtensor.hpp").exists():
        pytest.skip("this xtensor has the new layout itself: every build tests it")
    compat = ROOT / "cpp/include/attnscale/detail/xtensor_compat.hpp"
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


def test_where_the_module_is_missing_the_import_says_what_to_do(tmp_path: Path) -> None:
    """A folder of the sources without a build."""
    (tmp_path / "attnscale").mkdir()
    shutil.copy(ROOT / "python/attnscale/__init__.py", tmp_path / "attnscale")
    command = [sys.executable, "-S", "-c", "import attnscale"]  # -S: no installed package is found
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert said.startswith(
        f"ImportError: the compiled module attnscale._core is missing for {sys.platform}, "
    )
    assert sys.implementation.cache_tag in said
    assert said.endswith(": pip install attnscale, or in a checkout make demo")


@pytest.mark.skipif(shutil.which("nm") is None or sys.platform != "linux", reason="no nm, or no ELF")
def test_the_module_shows_no_symbol_of_a_library() -> None:
    """PyTorch would take the symbols of a libstdc++ inside it for its own."""
    command = [
        "nm",
        "--dynamic",
        "--defined-only",
        "--format=posix",
        str(find_spec("attnscale._core").origin),
    ]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    own = {f"attnscale_{name}" for name in ("get_num_threads", "set_num_threads", "get_version")}
    assert {line.split()[0] for line in listed.splitlines()} == {"PyInit__core", *own}
