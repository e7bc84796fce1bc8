# SPDX-License-Identifier: BSD-3-Clause
"""Inspect the wheels of build_wheels.py, and run what needs more than an environment (see rehearse.py).

    python packaging/check_wheels.py dist                        # all contents
    python packaging/check_wheels.py dist --arm64 build/arm64    # and the wheel for aarch64, under qemu-user
    python packaging/check_wheels.py dist --musl build/musl      # and the parts of the wheel for musl

packaging/unpack-packages makes both folders: a Python for aarch64, and the C library of musl. Neither Debian
nor an index has a Python for musl. So the symbols that the wheel needs are looked up in that C library, and
programs of cpp/examples are linked with the objects of the wheel, left by `make wheels` in build/wheels, and
run with it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from build_wheels import ROOT
from elftools.elf.elffile import ELFFile
from pythons import PYTHONS, RUNNING, Python
from zig_targets import WHEELS, Target

LARGEST = 4.5e6  # bytes, without the data sets of 2.6 MB
SYSTEM_LIBRARIES = {
    "gnu": {
        "libc.so.6",
        "libm.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    },
    "musl": {"libc.so"},
}
CHECK = ROOT / "tests" / "package" / "wheel_check.py"


def main() -> None:
    """Run all checks; the first failure ends the run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--arm64", type=Path, help="folder with a Python for aarch64")
    parser.add_argument("--musl", type=Path, help="folder with a libc.so of musl 1.2.0 to 1.2.3")
    options = parser.parse_args()
    dist, work = options.dist.resolve(), ROOT / "build" / "wheel-checks"
    musl = next(options.musl.resolve().rglob("libc.so")) if options.musl else None
    for target in WHEELS:
        for python in PYTHONS:
            (wheel,) = dist.glob(f"attnscale-*-{python.tag}-{target.platform_tag}.whl")
            look_at(wheel, python, target, work / target.triple, musl)
    if options.arm64:
        (wheel,) = dist.glob(f"attnscale-*-{RUNNING.tag}-manylinux*aarch64.whl")
        run_under_qemu(wheel, options.arm64.resolve(), work / "arm64")
    if musl:
        run_examples(next(each for each in WHEELS if each.triple.endswith("musl")), musl, work / "musl")


def expect(good: object, what: object) -> None:
    if not good:
        sys.exit(f"check_wheels: {what}")


def look_at(wheel: Path, python: Python, target: Target, folder: Path, musl: Path | None) -> None:
    """Check size, tag, names, bill of materials, and the module's requirements."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        size = sum(each.compress_size for each in archive.infolist() if not each.filename.endswith(".npz"))
        expect(
            size < LARGEST, f"{wheel.name} has {size} bytes besides the data sets, more than {LARGEST:.0f}"
        )
        modules = [name for name in names if name.endswith(".so")]
        module = f"attnscale/_core{target.ext_suffix(python.digits)}"
        expect(modules == [module], f"{wheel.name} has {modules} and not {module} alone")
        boms = [name for name in names if ".dist-info/sboms/" in name]
        expect(len(boms) == 1, f"{wheel.name} has {boms} as bills of materials")
        parts = {part["name"] for part in json.loads(archive.read(boms[0]))["components"]}
        expect({"xsimd", "pybind11", "libcxx"} <= parts, f"{boms[0]} lists {parts}")
        path = Path(archive.extract(module, folder))
    look_at_module(path, target, musl)
    said = json.loads(auditwheel(wheel))
    megabytes = f"{wheel.stat().st_size / 1e6:.2f} MB, {size / 1e6:.2f} without the data sets"
    print(f"{wheel.name}: {megabytes}; auditwheel finds {said['overall_tag']}")
    if target.triple.endswith("musl"):
        # auditwheel knows musl by Alpine's name, and has no tag for this one. musl takes both names, and
        # every library whose name begins with "libc.", as itself (ldso/dynlink.c, load_library).
        expect(set(said["external_libs"]) == {"libc.so"}, said)
    else:
        expect(target.platform_tag in (said["overall_tag"], *compatible(said["overall_tag"])), said)


def compatible(tag: str) -> tuple[str, ...]:
    """Tags that a wheel may have: from the glibc version that it needs (`tag`) up to 2.28."""
    found = re.fullmatch(r"(manylinux_2)_(\d+)_(\w+)", tag)
    expect(found, f"auditwheel finds {tag}")
    assert found is not None
    return tuple(f"{found[1]}_{each}_{found[3]}" for each in range(int(found[2]), 29))


def auditwheel(wheel: Path) -> str:
    command = (sys.executable, "-m", "auditwheel", "show", "--json", wheel)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def look_at_module(path: Path, target: Target, musl: Path | None) -> None:
    """Check that the module is for the target's machine, stripped, and needs only the C library."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[target.processor]
        expect(elf["e_machine"] == machine, f"{path} is for {elf['e_machine']}")
        extra = [name for name in (".symtab", ".debug_info") if elf.get_section_by_name(name)]
        expect(not extra, f"{path} is not stripped: {extra}")
        tags = list(elf.get_section_by_name(".dynamic").iter_tags())
        needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
        libc = "musl" if target.triple.endswith("musl") else "gnu"
        expect(needed <= SYSTEM_LIBRARIES[libc], f"{path} needs {needed}")
        expect(not any(tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH") for tag in tags), f"{path} has a path")
        undefined, defined = symbols(elf)
        unversioned = {name.partition("@")[0] for name in undefined}
    expect(
        "PyInit__core" in defined and not [s for s in defined if s.startswith("_Z")],
        f"{path} shows {defined}",
    )
    if libc == "musl" and musl:
        with musl.open("rb") as file:
            there = symbols(ELFFile(file))[1]
        lacking = {name for name in unversioned if not name.startswith(("Py", "_Py"))} - there
        expect(not lacking, f"musl has no {lacking}")
        print(f"{path.name}: all of its {len(unversioned)} symbols are Python's or of {musl.name}")


def symbols(elf: ELFFile) -> tuple[set[str], set[str]]:
    """Undefined names, and exported names; weak undefined names are left out."""
    table = list(elf.get_section_by_name(".dynsym").iter_symbols())
    outside = [each for each in table if each["st_shndx"] == "SHN_UNDEF" and each.name]
    needed = {each.name for each in outside if each["st_info"]["bind"] != "STB_WEAK"}
    return needed, {each.name for each in table if each["st_shndx"] != "SHN_UNDEF" and each.name}


def run(command: Sequence[str | Path], folder: Path, **variables: str) -> None:
    """Run a command outside the repository, without the caller's Python settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ATTNSCALE"))}
    subprocess.run(command, cwd=folder, env=kept | variables, check=True)


def run_under_qemu(wheel: Path, root: Path, folder: Path) -> None:
    """Check with Debian's Python for aarch64; pip chooses the wheels as it would there."""
    site = folder / "site-packages"
    folder.mkdir(parents=True, exist_ok=True)
    choose = [
        "--platform",
        "manylinux_2_28_aarch64",
        "--platform",
        "manylinux2014_aarch64",
        "--python-version",
        RUNNING.version,
    ]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--upgrade",
        "--target",
        site,
    ]
    run([*command, "--only-binary=:all:", *choose, wheel], folder)
    interpreter = root / "usr" / "bin" / f"python{RUNNING.version}"
    emulated = ["qemu-aarch64", "-L", root, "-E", f"PYTHONPATH={site}", interpreter]
    # README's example is too slow: 8 x 4096 x 4096 scores take more than five minutes under emulation.
    for arguments in ([CHECK], ["-m", "attnscale", "info"]):
        run([*emulated, *arguments], folder)


def run_examples(target: Target, libc: Path, folder: Path) -> None:
    """Run programs of cpp/examples, linked with the wheel's library, with this C library.

    They start threads, whose stacks are smaller under musl than under glibc, and end with an error if their
    numbers differ from the expected ones.
    """
    compiler = ROOT / "build" / "zig" / f"c++-{target.triple}"
    built = ROOT / "build" / "wheels"
    library = built / target.triple / "libattnscale.a"
    expect(library.exists(), f"there is no {library.relative_to(ROOT)}: run make wheels")
    (source,) = (built / "source").glob("attnscale-*")
    include = [f"-I{source / 'cpp' / 'include'}", "-isystem", source / "third_party" / "include"]
    folder.mkdir(parents=True, exist_ok=True)
    cache = {"ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig" / "cache")}
    for name in ("entropy", "linear_attention", "gradients"):
        example = source / "cpp" / "examples" / f"{name}.cpp"
        command = [compiler, "-std=c++20", "-O1", "-dynamic", *include, example, library]
        run([*command, "-o", folder / name], folder, **cache)
        for variables in ({}, {"ATTNSCALE_SIMD": "baseline"}):
            run([libc, folder / name], folder, **variables)


if __name__ == "__main__":
    main()
