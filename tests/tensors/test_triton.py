# SPDX-License-Identifier: BSD-3-Clause
"""The kernels of Triton: beside the core in Triton's interpreter, and compiled for GPUs that are not here."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import attnscale as at  # noqa: E402
import triton_cases  # noqa: E402
from attnscale.torch._arguments import read_call  # noqa: E402
from attnscale.torch._triton._support import obstacle, supports  # noqa: E402

pytestmark = pytest.mark.torch

#: What runs a case by its name, in another process.
Runner = Callable[[str], None]


def runner(device: str) -> Iterator[Runner]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, triton_cases.start, (device,)) as pool:
        yield lambda name: pool.submit(triton_cases.run, name).result()


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Runner]:
    """One process for all cases: to import PyTorch takes as long as several of them."""
    with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
        yield from runner("cpu")


@pytest.fixture(scope="module")
def on_a_gpu() -> Iterator[Runner]:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    yield from runner("cuda")


@pytest.mark.parametrize("name", triton_cases.CASES)
def test_an_interpreted_kernel_agrees_with_the_core(name: str, interpreted: Runner) -> None:
    interpreted(name)


def test_a_case_that_fails_is_told(interpreted: Runner) -> None:
    with pytest.raises(KeyError, match="no such case"):
        interpreted("no such case")


@pytest.mark.maintainer
def test_the_cases_of_all_backends_in_the_interpreter() -> None:
    """Cases of tests/conformance with these kernels where they serve a call."""
    folder = Path(__file__).parents[1] / "conformance"
    tests = [str(folder / name) for name in ("test_values.py", "test_gradients.py")]
    quiet = ("-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning")  # of NumPy, for infinity
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *tests],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*triton_cases.CASES, *triton_cases.LARGE])
def test_a_compiled_kernel_agrees_with_the_core(name: str, on_a_gpu: Runner) -> None:
    on_a_gpu(name)


# ---- what is served -----------------------------------------------------------------------------


def call_of(dtype: Any = torch.float32, dim: int = 16, n_keys: int = 5, **options: Any) -> Any:
    query, key = torch.zeros(2, 3, dim, dtype=dtype), torch.zeros(2, n_keys, dim, dtype=dtype)
    return read_call(query, key, key, **options)


TABLE = torch.zeros(5)
SERVED: list[dict[str, Any]] = [
    {"dtype": torch.bfloat16, "dim": 256},
    {"normalizer": at.normalizers.Sink([0.0, 1.0]), "softcap": 3.0},
    {"normalizer": at.torch.Sink(TABLE[:2])},
    {"scale": at.torch.Learned("ssmax", s=TABLE[:2]), "is_causal": True},
    {"attn_mask": torch.zeros(3, 5).requires_grad_()},
    {"causal": -1, "window": (2, 0), "key_lengths": torch.tensor(3)},
]
NOT_SERVED: list[tuple[str, dict[str, Any]]] = [
    ("not all of one type of float16, bfloat16 and float32, but of torch.float64", {"dtype": torch.float64}),
    ("at most 256, not 257", {"dim": 257}),
    ("nothing to compute", {"n_keys": 0}),
    ("by distance are not in the kernels", {"distance_bias": TABLE}),
    ("a law of the distance", {"scale": "scale_invariant"}),
    ("qk_norm", {"qk_norm": "l2"}),
    ("num_threads is for the CPU", {"num_threads": 2}),
    ("one number for all keys has no gradient", {"attn_mask": torch.zeros(3, 1).requires_grad_()}),
    ("neither a softmax", {"normalizer": "sparsemax"}),
    ("neither a softmax", {"normalizer": at.torch.Entmax(torch.tensor(1.5))}),
]


@pytest.mark.parametrize("options", SERVED, ids=lambda options: " ".join(options))
def test_calls_that_the_kernels_serve(options: dict[str, Any]) -> None:
    assert supports(call_of(**options))


@pytest.mark.parametrize(("why", "options"), NOT_SERVED)
def test_calls_that_they_do_not_serve_have_a_reason(why: str, options: dict[str, Any]) -> None:
    found = obstacle(call_of(**options))
    assert found is not None
    assert why in found


def test_a_triton_that_is_missing_or_old_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnscale.torch._triton import _support

    monkeypatch.setattr(_support, "version", lambda _: "3.1.0")
    assert _support.missing.__wrapped__() == "Triton 3.1.0 is older than 3.4"
    monkeypatch.setattr(_support, "find_spec", lambda _: None)
    assert _support.missing.__wrapped__() == "Triton is not installed"


# ---- compiled for GPUs that are not here --------------------------------------------------------

KERNELS = ("attend_rows", "gradients_of_queries", "gradients_of_keys")
#: Head dimension, and by the pinned Triton the most loads and stores of the stack in a loop of several
#: hundred instructions; for gfx942 the registers of the whole kernel that did not fit, of which one
#: configuration has many.
COMPILED = {"80": (64, 8), "90": (128, 8), "100": (128, 0), "gfx942": (64, 258)}


@pytest.mark.maintainer  # a minute: three kernels in several configurations, for each architecture
@pytest.mark.parametrize("architecture", COMPILED)
def test_loops_of_full_tiles_keep_their_numbers_in_registers(architecture: str) -> None:
    head_dim, most = COMPILED[architecture]
    script = Path(__file__).parent / "triton_static.py"
    command = [sys.executable, str(script), architecture, str(head_dim)]
    compiling = os.environ | {"TRITON_INTERPRET": "0"}  # the process of the interpreted cases may still run
    text = subprocess.run(command, env=compiling, capture_output=True, text=True, check=True).stdout
    found = [json.loads(line) for line in text.splitlines()]
    assert {each["kernel"] for each in found} == {*KERNELS}
    for each in found:
        assert each["spills"] <= most, each
    best = {kernel: min(x["spills"] for x in found if x["kernel"] == kernel) for kernel in KERNELS}
    assert max(best.values()) <= 8, best
