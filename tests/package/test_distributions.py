# SPDX-License-Identifier: BSD-3-Clause
"""What sdist and wheel contain and say of themselves, and that the wheel works alone."""

from __future__ import annotations

import os
import re
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
