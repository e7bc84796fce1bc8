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
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from versions import written_for

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import attnscale as at  # noqa: E402
import triton_cases  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

pytestmark = [pytest.mark.torch, written_for("triton>=3.4")]

#: Runs a case by name in another process.
Runner = Callable[[str], None]


def runner(device: str) -> Iterator[Runner]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, triton_cases.start, (device,)) as pool:
        yield lambda name: pool.submit(triton_cases.run, name).result()


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Runner]:
    """A process for all cases: the import of PyTorch takes as long as several of them."""
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


def test_a_case_that_fails_is_reported(interpreted: Runner) -> None:
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


#: Reasons of the kernels, and the calls they do not serve, made where tensors claim to be on a GPU.
NOT_SERVED: list[tuple[str, Callable[[], dict[str, Any]]]] = [
    (
        "not all of one type of float16, bfloat16 and float32, but of torch.float64",
        lambda: {"query": torch.zeros(2, 3, 16).double(), "key": torch.zeros(2, 5, 16).double()},
    ),
    ("at most 256, not 257", lambda: {"query": torch.zeros(2, 3, 257), "key": torch.zeros(2, 5, 257)}),
    ("nothing to compute", lambda: {"key": torch.zeros(2, 0, 16)}),
    ("by distance are not in the kernels", lambda: {"distance_bias": torch.zeros(5)}),
    ("a law of the distance", lambda: {"scale": "scale_invariant"}),
    ("qk_norm", lambda: {"qk_norm": "l2"}),
    ("num_threads is for the CPU", lambda: {"num_threads": 2}),
    ("one number for all keys has no gradient", lambda: {"attn_mask": torch.zeros(3, 1).requires_grad_()}),
    ("neither a softmax", lambda: {"normalizer": "sparsemax"}),
    ("neither a softmax", lambda: {"normalizer": at.torch.Entmax(torch.zeros(()))}),
]


@pytest.mark.parametrize(("why", "make"), NOT_SERVED)
def test_calls_that_the_kernels_do_not_serve_have_a_reason(why: str, make: Callable[[], Any]) -> None:
    with FakeTensorMode(), torch.device("cuda"):
        given = {"query": torch.zeros(2, 3, 16), "key": torch.zeros(2, 5, 16), **make()}
        with pytest.raises(ValueError, match=rf"does not serve this call: .*{why}.*; backend='torch' does$"):
            at.torch.attention_statistics(**given, backend="triton")


# ---- compiled for GPUs that are not here --------------------------------------------------------

KERNELS = ("attend_rows", "gradients_of_queries", "gradients_of_keys")
HEAD_DIMS = {"80": 64, "90": 128, "100": 128, "gfx942": 64}
#: By the version of Triton, the most loads and stores of the stack in a loop of several hundred instructions,
#: in any configuration and in the best one of each kernel; for gfx942 the registers of the whole kernel that
#: did not fit.
SPILLS = {
    "3.7.1": {"80": (8, 8), "90": (8, 8), "100": (0, 0), "gfx942": (258, 8)},
    "3.9.0": {"80": (8, 4), "90": (15, 10), "100": (0, 0), "gfx942": (383, 0)},
}


@pytest.mark.maintainer  # a minute: three kernels in several configurations, for each architecture
@pytest.mark.parametrize("architecture", HEAD_DIMS)
def test_loops_of_full_tiles_keep_their_numbers_in_registers(architecture: str) -> None:
    if (found := version("triton")) not in SPILLS:
        pytest.skip(f"spills are known of Triton {' and '.join(SPILLS)}, not of {found}")
    most, most_of_best = SPILLS[found][architecture]
    script = Path(__file__).parent / "triton_static.py"
    strict = ("-W", "error:TRITON_DEFAULT_FP_FUSION")
    command = [sys.executable, *strict, str(script), architecture, str(HEAD_DIMS[architecture])]
    compiling = os.environ | {"TRITON_INTERPRET": "0"}  # the process of the interpreted cases may still run
    text = subprocess.run(command, env=compiling, capture_output=True, text=True, check=True).stdout
    lines = [json.loads(line) for line in text.splitlines()]
    assert {each["kernel"] for each in lines} == {*KERNELS}
    for each in lines:
        assert each["spills"] <= most, each
    best = {kernel: min(x["spills"] for x in lines if x["kernel"] == kernel) for kernel in KERNELS}
    assert max(best.values()) <= most_of_best, best
