# SPDX-License-Identifier: BSD-3-Clause
"""Contents and metadata of sdist and wheel; the wheel works alone; other wheels."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import files, version
from pathlib import Path

import attnscale as at
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "packaging"))

import pythons  # noqa: E402
import zig_targets  # noqa: E402

# Files that the sdist leaves out: settings of hosted services, which no check reads.
WORKFLOW = ".github/workflows/test.yml"
NOT_IN_THE_SDIST = (".ci/", ".github/")


def test_the_installed_version_is_that_of_the_header() -> None:
    header = (ROOT / "cpp/include/attnscale/version.hpp").read_text()
    assert f'"{at.__version__}"' in header
    assert version("attnscale") == at.__version__


def test_the_workflow_tests_the_declared_versions_of_python() -> None:
    workflow = ROOT / WORKFLOW
    if not workflow.exists():
        pytest.skip("the workflow is not in the sdist")
    tested = re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", workflow.read_text())[1])  # type: ignore[index]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    said = [line.rpartition(" ")[2] for line in settings["project"]["classifiers"] if "Python :: 3." in line]
    assert said == tested
    built = settings["tool"]["cibuildwheel"]["build"]
    free_threaded = re.findall(r"3\.\d+t", workflow.read_text())
    assert built == [f"cp{name.replace('.', '')}-*" for name in (*tested, *free_threaded)]


def built_by_cibuildwheel(platform: str, archs: str) -> set[str]:
    """Identifiers of the wheels that the release workflow builds with it."""
    program = Path(sys.executable).with_name("cibuildwheel")
    if not program.exists():
        pytest.skip("cibuildwheel is not installed")
    release = ROOT / ".github/workflows/release.yml"
    if release.exists():
        assert set(re.findall(r"cibuildwheel@\w+ # v(.*)", release.read_text())) == {version("cibuildwheel")}
    options = ("--print-build-identifiers", "--platform", platform, "--archs", archs)
    return set(run(program, *options, ROOT).split())


PYTHONS = ("cp311", "cp312", "cp313", "cp314", "cp314t", "cp315", "cp315t")


@pytest.mark.parametrize("target", zig_targets.WHEELS, ids=lambda target: target.platform_tag)
def test_a_linux_wheel_comes_from_make_wheels_or_from_cibuildwheel(target: zig_targets.Target) -> None:
    """One of the two builds it, for each Python; Debian has no headers of 3.12."""
    system = re.sub(r"linux_\d+_\d+_", "linux_", target.platform_tag or "")
    identifiers = [each.split("-") for each in built_by_cibuildwheel("linux", target.processor)]
    assert [tag for tag, of in identifiers if of == system] == ["cp312"]
    here = {f"cp{each.digits}" for each in pythons.PYTHONS}
    assert here | {"cp311"} == set(PYTHONS) - {"cp312"}


@pytest.mark.parametrize(
    ("platform", "archs", "expected"),
    [
        ("linux", "aarch64", {f"{each}-musllinux_aarch64" for each in PYTHONS} | {"cp312-manylinux_aarch64"}),
        ("macos", "arm64", {f"{each}-macosx_arm64" for each in PYTHONS}),
        ("pyodide", "auto", {"cp314-pyodide_wasm32"}),
    ],
)
def test_wheels_that_cibuildwheel_alone_builds(platform: str, archs: str, expected: set[str]) -> None:
    """The package index takes Pyodide's from 3.14 on; the Pyodide of 3.15 is an alpha."""
    assert built_by_cibuildwheel(platform, archs) == expected


def test_workflows_name_actions_by_the_hash_of_a_commit() -> None:
    """A tag can be moved to other code; the comment says which release the commit is."""
    folder = (ROOT / WORKFLOW).parent
    if not folder.exists():
        pytest.skip("the workflows are not in the sdist")
    uses = re.findall(r"uses: *(.*)", "".join(path.read_text() for path in sorted(folder.glob("*.yml"))))
    assert len(uses) > 10
    assert [each for each in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_the_licences_of_what_is_compiled_in() -> None:
    notice = (ROOT / "LICENSE-THIRD-PARTY").read_text()
    required = re.findall(
        r"^attnscale_require\((\w+)", (ROOT / "cmake/dependencies.cmake").read_text(), re.MULTILINE
    )
    assert {"xsimd", "xtl", "xtensor"} <= set(required)
    for name in (*required, "pybind11"):
        assert re.search(rf"^{name} +Copyright \(c\)", notice, flags=re.MULTILINE), name


def test_the_notice_is_the_one_of_pybind11() -> None:
    pytest.importorskip("pybind11")
    (path,) = [path for path in files("pybind11") or () if path.name == "LICENSE"]
    theirs = " ".join(path.read_text().partition("Please also refer")[0].split())
    ours = " ".join((ROOT / "LICENSE-THIRD-PARTY").read_text().split())
    copyright_line, _, conditions = theirs.partition(" Redistribution and use")
    assert copyright_line in ours
    assert "Redistribution and use" + conditions in ours


def description_of(markdown: str) -> str:
    """As packaging/long_description.py makes it out of a README."""
    path = ROOT / "packaging" / "long_description.py"
    return str(runpy.run_path(str(path))["without_paths"](markdown))


def test_the_description_of_the_package_has_no_link_that_is_a_path() -> None:
    images = "![a\nplot](docs/a.png)\n\n[![a](docs/a.png)](docs/a.md)"
    text = (
        f"# A\n\n[中文](README.zh-CN.md)\n\n{images}\n\nSee [how\nto](docs/b.md), [x](https://example.org)."
    )
    assert description_of(text) == "# A\n\nSee how\nto, [x](https://example.org)."
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    description = description_of(readme)
    assert "](docs/" in readme
    assert re.findall(r"\]\((?!https?://)", description) == []
    assert len(description) > 0.8 * len(readme)


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """Output of the command, without the shell's PYTHONPATH."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    # Build in a copy: builds in this tree would take the header libraries for those of a source archive.
    folder, tree = tmp_path_factory.mktemp("sdist"), tmp_path_factory.mktemp("tree") / "attnscale"
    large = shutil.ignore_patterns("build", "dist", ".venv", ".git", "_build", "__pycache__")
    shutil.copytree(ROOT, tree, ignore=large, symlinks=True)
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, tree)
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as tar:
        # Python 3.11 has the filter from 3.11.4 on; Debian 12 has 3.11.2.
        tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, unpacked)
    faulthandler.cancel_dump_traceback_later()  # beside other work it takes longer than a test may
    if zig_targets.WASM_MODULE.exists():
        command += (f"-Ccmake.define.ATTNSCALE_WASM_MODULE={zig_targets.WASM_MODULE}",)
    run(*command, CCACHE_BASEDIR=str(unpacked / "cpp"))  # as the Makefile's, for its objects
    (archive,) = folder.glob("*.whl")
    return archive


def names_in(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}


@pytest.mark.maintainer
def test_the_sdist_holds_the_files_of_a_build_and_no_others(sdist: Path) -> None:
    names = names_in(sdist)
    for needed in ("pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md", "cmake/dependencies.cmake",
                   "cpp/src/units/softmax.cpp", "cpp/tests/main.cpp", "python/attnscale/py.typed", "Makefile",
                   "tests/package/test_build.py", "docs/_static/attnscale-demo.png"):  # fmt: skip
        assert needed in names
    junk = re.compile(r"(^|/)(build|\.venv|\.git|\.ci|__pycache__|\.\w+_cache)(/|$)|\.(so|o|pyc)$")
    assert [name for name in names if junk.search(name)] == []


@pytest.mark.maintainer
def test_the_sdist_is_the_repository(sdist: Path) -> None:
    """``make test`` passes from the sdist."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of git")
    tracked = {name for name in done.stdout.split("\0") if name and (ROOT / name).exists()}
    assert [name for name in tracked - names_in(sdist) if not name.startswith(NOT_IN_THE_SDIST)] == []
    more = {name for name in names_in(sdist) - tracked if not name.startswith("third_party/")}
    assert more == {"PKG-INFO"}


@pytest.mark.maintainer
def test_the_sdist_carries_the_header_libraries_with_their_licences(sdist: Path) -> None:
    carried = {name for name in names_in(sdist) if name.startswith("third_party/")}
    for library in ("xsimd", "xtl", "xtensor"):
        assert f"third_party/licenses/{library}.txt" in carried
        assert any(name.startswith(f"third_party/include/{library}/") for name in carried)
    assert {name.split("/")[1] for name in carried} == {"include", "licenses"}
    assert {name.rpartition(".")[2] for name in carried} == {"hpp", "txt"}


@pytest.mark.maintainer
@pytest.mark.slow
def test_the_wheel_holds_the_package_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"attnscale-{at.__version__}.dist-info/METADATA").decode()
    assert {name.split("/")[0] for name in names} == {"attnscale", f"attnscale-{at.__version__}.dist-info"}
    tops = [name for name in names if name.startswith("attnscale/_core") and name.endswith(".so")]
    assert len(tops) == 1
    assert "attnscale/py.typed" in names
    assert {"attnscale/_wasm/attnscale.mjs", "attnscale/_wasm/attnscale.d.mts"} <= set(names)
    assert ("attnscale/_wasm/attnscale.wasm.gz" in names) == zig_targets.WASM_MODULE.exists()
    for licence in ("LICENSE", "LICENSE-THIRD-PARTY", "python/attnscale/data/licenses/Apache-2.0.txt"):
        assert f"attnscale-{at.__version__}.dist-info/licenses/{licence}" in names
        assert f"\nLicense-File: {licence}\n" in metadata
    assert [name for name in names if name.endswith((".hpp", ".cpp", ".a", ".pyc", ".cmake"))] == []
    required = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert required == ["Requires-Dist: numpy>=2", "Requires-Dist: scipy>=1.13"]
    # The extension module of all levels takes 2.9 MB, the two data sets 2.6.
    assert wheel.stat().st_size < 7e6


SMOKE = """
import numpy as np, attnscale as at
q = np.random.default_rng(0).standard_normal((2, 64, 16))
rows = at.attention_statistics(q, q, q, scale="log_n", is_causal=True)
assert rows.output.shape == q.shape and rows.entropy[0, 0] == 0
assert at.datasets.minilm_qk() is not None
print(at.simd_level())
"""


@pytest.mark.maintainer
@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    run(binaries / "pip", "install", "-q", "--disable-pip-version-check", wheel)
    installed = run(binaries / "pip", "list", "--format=freeze", "--disable-pip-version-check")
    names = {line.split("==")[0] for line in installed.split()}
    assert names == {"attnscale", "numpy", "scipy", "pip", "setuptools"}
    assert run(binaries / "python", "-c", SMOKE, cwd=tmp_path).strip() == at.simd_level()
    assert run(binaries / "attnscale", "--version", cwd=tmp_path).split()[-1] == at.__version__
    assert at.simd_level() in run(binaries / "attnscale", "info", cwd=tmp_path)
    assert "log" in run(binaries / "attnscale", "demo", cwd=tmp_path)
    # The PATH leads to no compiler, no make and no header.
    check = ROOT / "tests" / "package" / "wheel_check.py"
    said = run(binaries / "python", check, ROOT / "README.md", cwd=tmp_path, PATH=str(binaries))
    assert f"{at.simd_level()}: attention" in said
    assert "README.md: 10 lines" in said


# ---- wheels for other systems, the bill of materials, and the CPU that a build is for -----------------


def test_a_wheel_has_the_names_by_which_pip_and_python_find_it() -> None:
    names = {each.platform_tag: each.ext_suffix("311") for each in zig_targets.WHEELS}
    assert names == {
        "manylinux_2_28_x86_64": ".cpython-311-x86_64-linux-gnu.so",
        "manylinux_2_28_aarch64": ".cpython-311-aarch64-linux-gnu.so",
        "musllinux_1_2_x86_64": ".cpython-311-x86_64-linux-musl.so",
    }
    free = pythons.Python("3.14", free_threaded=True)
    assert (free.name, free.tag, free.digits) == ("3.14t", "cp314-cp314t", "314t")
    assert pythons.Python("3.15").tag == "cp315-cp315"
    for each in zig_targets.WHEELS:
        glibc = re.search(r"gnu\.(\d+)\.(\d+)$", each.triple)
        assert each.platform_tag is not None
        assert glibc is None or "manylinux_{}_{}_".format(*glibc.groups()) in each.platform_tag


def test_the_compiler_of_a_target_is_one_program_that_names_its_version(tmp_path: Path) -> None:
    zig = tmp_path / "a folder" / "zig"
    zig.parent.mkdir()
    zig.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    zig.chmod(0o755)
    target = zig_targets.WHEELS[0]
    program = zig_targets.write_compiler(target, zig, "9.9.9", tmp_path)
    assert "# ziglang 9.9.9\n" in program.read_text()
    said = subprocess.run([program, "-c", "a b.cpp"], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"c++|-target|{target.triple}|-fno-sanitize=undefined|")
    assert said.endswith("|-c|a b.cpp|")
    written = program.stat().st_mtime_ns
    zig_targets.write_compiler(target, zig, "9.9.9", tmp_path)
    assert program.stat().st_mtime_ns == written  # or ccache would compile everything again


def test_the_bill_of_materials_lists_what_is_compiled_in() -> None:
    (path,) = [path for path in files("attnscale") or () if path.parts[-2:-1] == ("sboms",)]
    bill = json.loads(path.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == at.__version__
    assert "timestamp" not in bill["metadata"]  # the same sources give the same file
    versions = {part["name"]: part["version"] for part in bill["components"]}
    built_with = at.show_config()
    for name in ("xsimd", "xtensor", "pybind11"):
        assert versions[name] == built_with[name]
    assert re.fullmatch(r"\d+\.\d+\.\d+", versions["xtl"])
    assert bill["dependencies"] == [{"ref": "attnscale", "dependsOn": list(versions)}]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize("flag", ["-march=x86-64", "-mavx2", "-mavx512f"])
def test_what_is_compiled_for_another_cpu_names_what_this_one_lacks(flag: str, tmp_path: Path) -> None:
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists() or not (line := re.search(r"^flags\s*:(.*)$", cpu.read_text(), re.MULTILINE)):
        pytest.skip("Linux on x86-64 alone lists what the CPU has")
    main = tmp_path / "main.cpp"
    main.write_text(
        '#include <cstdio>\n#include <string>\n#include "machine/compiled_for.hpp"\n'
        "using namespace attnscale::detail;\n"
        'int main() { std::printf("%s", std::string(lacking(compiled_for)).c_str()); }\n'
    )
    compile_ = ["g++", "-std=c++20", f"-I{ROOT / 'cpp/src'}", "-c"]
    subprocess.run([*compile_, flag, main, "-o", tmp_path / "main.o"], check=True)
    others = [ROOT / "cpp/src/machine" / name for name in ("compiled_for.cpp", "cpu_features.cpp")]
    program = tmp_path / "program"
    subprocess.run([*compile_[:-1], tmp_path / "main.o", *others, "-o", program], check=True)
    have = line[1].split()
    expected = {"-march=x86-64": "", "-mavx2": "" if "avx2" in have else "AVX2"}
    expected["-mavx512f"] = "" if "avx512f" in have else "AVX-512F"
    if flag != "-march=x86-64" and "avx2" not in have:
        pytest.skip("an instruction set before this one is lacking already")
    assert subprocess.run([program], capture_output=True, text=True, check=False).stdout == expected[flag]
