# SPDX-License-Identifier: BSD-3-Clause
"""The quick check of an installed wheel, which needs NumPy and SciPy alone: no pytest, no repository.

    python wheel_check.py [README.md]

At each SIMD level that the machine has, calls are compared with their NumPy twins; with a README its "Sixty
seconds" are run and compared. Prints a line for each level. An attnscale that is not installed is refused.
"""

from __future__ import annotations

import doctest
import os
import platform
import subprocess
import sys
from pathlib import Path

import attnscale as at
import numpy as np
from attnscale import _core, reference


def main() -> None:
    """All checks; an exception ends the run."""
    installed = Path(at.__file__).resolve()
    assert "site-packages" in installed.parts, f"attnscale is not installed: {installed}"
    check_attention()
    check_gradients()
    check_linear_attention()
    print(
        f"{at.simd_level()}: attention, gradients and linear attention are those of the NumPy twins",
        flush=True,
    )
    if "ATTNSCALE_SIMD" not in os.environ:
        check_levels()
        levels = [level for level in _core.available_simd_levels() if level != at.simd_level()]
        for level in levels:
            assert not level.startswith("emulated"), f"{level} is for tests alone"
            subprocess.run([sys.executable, __file__], env=os.environ | {"ATTNSCALE_SIMD": level}, check=True)
        check_errors()
        check_data()
        for readme in sys.argv[1:]:
            check_examples(Path(readme))


def check_levels() -> None:
    """Every level whose instructions Linux lists for this CPU can be chosen."""
    names = ("avx2 fma f16c", "avx512f avx512cd avx512dq avx512bw avx512vl", "avx512_bf16")
    cpu = Path("/proc/cpuinfo")
    have = set(cpu.read_text().split()) if cpu.exists() else set()
    for level, instructions in zip(("avx2", "avx512", "avx512_bf16"), names, strict=True):
        if have >= set(instructions.split()) and platform.machine() == "x86_64":
            assert level in _core.available_simd_levels(), (
                f"this CPU has {instructions}, and no {level} is seen"
            )


def arrays(dtype: type[np.floating]) -> np.ndarray:
    """Queries, keys and values (3, heads, n, head_dim); n and head_dim fill no vector."""
    return np.random.default_rng(0).standard_normal((3, 2, 67, 19)).astype(dtype)


def check_attention() -> None:
    """Masked rows of softmax and of sparsemax, and a law, in both types of arithmetic."""
    for dtype, tolerance in ((np.float32, 2e-5), (np.float64, 1e-12)):
        q, k, v = arrays(dtype)
        for options in ({"is_causal": True}, {"scale": "log_n"}, {"normalizer": "sparsemax"}):
            rows = at.attention_statistics(q, k, v, **options)
            twin = reference.attention_statistics(*map(np.float64, (q, k, v)), **options)
            for name in ("output", "entropy"):
                ours, theirs = getattr(rows, name), getattr(twin, name)
                np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=name)


def check_gradients() -> None:
    """Gradients of the output, by the threads of the pool too."""
    q, k, v = arrays(np.float64)
    ours = at.attention_gradients(q, k, v, grad_output=v, is_causal=True, num_threads=2)
    theirs = reference.attention_gradients(q, k, v, grad_output=v, is_causal=True)
    for name in ("query", "key", "value"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-10)


def check_linear_attention() -> None:
    """A family with its own kernels."""
    q, k, v = arrays(np.float32)
    ours = at.variants.linear_attention(q, k, v, is_causal=True)
    theirs = reference.linear_attention(*map(np.float64, (q, k, v)), is_causal=True)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def check_errors() -> None:
    """Exceptions of the core arrive in Python with their types."""
    try:
        _core.set_num_threads(0)
    except ValueError:
        return
    raise AssertionError("no number of threads was refused")


def check_data() -> None:
    """The data sets are in the wheel."""
    assert at.datasets.minilm_qk().query.shape == (18, 512, 32)


def check_examples(readme: Path) -> None:
    """Lines of "Sixty seconds" print the output shown."""
    text = readme.read_text(encoding="utf-8").partition("## Sixty seconds")[2].partition("\n## ")[0]
    test = doctest.DocTestParser().get_doctest(text, {}, readme.name, str(readme), 0)
    assert len(test.examples) >= 8, "README has lost its sixty seconds"
    result = doctest.DocTestRunner().run(test)
    assert result.failed == 0
    print(f"{readme.name}: {result.attempted} lines of its sixty seconds print what they say")


if __name__ == "__main__":
    main()
