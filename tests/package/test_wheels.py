# SPDX-License-Identifier: BSD-3-Clause
"""The names of wheels for other systems, the bill of materials, and the CPU that a build is for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import attnscale as at
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import zig_targets  # noqa: E402


def test_a_wheel_has_the_names_by_which_pip_and_python_find_it() -> None:
    names = {each.platform_tag: each.ext_suffix((3, 11)) for each in zig_targets.WHEELS}
    assert names == {
        "manylinux_2_28_x86_64": ".cpython-311-x86_64-linux-gnu.so",
        "manylinux_2_28_aarch64": ".cpython-311-aarch64-linux-gnu.so",
        "musllinux_1_2_x86_64": ".cpython-311-x86_64-linux-musl.so",
    }
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
        '#include <cstdio>\n#include <string>\n#include "compiled_for.hpp"\n'
        "using namespace attnscale::detail;\n"
        'int main() { std::printf("%s", std::string(lacking(compiled_for)).c_str()); }\n'
    )
    compile_ = ["g++", "-std=c++20", f"-I{ROOT / 'cpp/src'}", "-c"]
    subprocess.run([*compile_, flag, main, "-o", tmp_path / "main.o"], check=True)
    others = [ROOT / "cpp/src" / name for name in ("compiled_for.cpp", "cpu_features.cpp")]
    program = tmp_path / "program"
    subprocess.run([*compile_[:-1], tmp_path / "main.o", *others, "-o", program], check=True)
    have = line[1].split()
    expected = {"-march=x86-64": "", "-mavx2": "" if "avx2" in have else "AVX2"}
    expected["-mavx512f"] = "" if "avx512f" in have else "AVX-512F"
    if flag != "-march=x86-64" and "avx2" not in have:
        pytest.skip("an instruction set before this one is lacking already")
    assert subprocess.run([program], capture_output=True, text=True, check=False).stdout == expected[flag]
