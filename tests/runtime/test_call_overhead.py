# SPDX-License-Identifier: BSD-3-Clause
"""Overhead of a call before any arithmetic, and of the import, as counts instead of times.

`make bench BENCH="overhead import"` has the times.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import functions_entered, random_inputs
from versions import written_for

CALLS: dict[str, Callable[..., Any]] = {
    "attention": lambda q, k, v: at.attention(q, k, v),
    "causal": lambda q, k, v: at.attention(q, k, v, is_causal=True, scale=0.25),
    "statistics": lambda q, k, v: at.attention_statistics(q, k, v),
    "entropy": lambda q, k, v: at.attention_entropy(q, k),
    "law": lambda q, k, v: at.attention(q, k, v, is_causal=True, scale="log_n"),
}
#: Functions of Python and C that one call enters; once 19, 37, 26, 17 and 98, in 5.4 us for the first.
MOST_FUNCTIONS = {"attention": 40, "causal": 50, "statistics": 48, "entropy": 40, "law": 220}


def tiny() -> tuple[Any, ...]:
    return random_inputs(1, batch=(1,), heads=1, n_queries=8, n_keys=8, head_dim=16)


@pytest.mark.parametrize("name", CALLS)
def test_a_tiny_call_enters_few_functions(name: str) -> None:
    arrays = tiny()
    entered = functions_entered(lambda: CALLS[name](*arrays), lambda _, event: event in ("call", "c_call"))
    assert entered - 1 <= MOST_FUNCTIONS[name]  # setprofile itself is one


#: Calls of heads of 8 queries and keys that the core reads itself, whatever their options.
OPTIONS: dict[str, dict[str, Any]] = {
    "a mask": {"attn_mask": np.tril(np.ones((8, 8), bool))},
    "a float mask": {"attn_mask": np.full((8, 8), -0.5)},
    "a mask and a law": {"attn_mask": np.tril(np.ones((8, 8), bool)), "scale": at.laws.LogN(base=16)},
    "a soft-cap": {"softcap": 30.0},
    "scales": {"scale": np.full((1, 1), 0.3)},
    "a sink": {"normalizer": at.normalizers.Sink([0.5])},
    "lengths": {"key_lengths": np.array([5]), "is_causal": True},
}


def is_of_the_package(frame: Any, event: str) -> bool:
    """Whether a Python function of the package is entered."""
    return event == "call" and frame.f_globals.get("__name__", "").startswith("attnscale.")


@pytest.mark.parametrize("name", OPTIONS)
def test_a_tiny_call_with_options_enters_few_functions(name: str) -> None:
    assert functions_entered(lambda: at.attention(*tiny(), **OPTIONS[name]), is_of_the_package) <= 3


@pytest.mark.torch
@pytest.mark.parametrize("name", OPTIONS)
def test_a_training_step_with_options_enters_few_functions(name: str) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch lends no tensors by DLPack")
    arrays = [torch.from_numpy(x).requires_grad_() for x in tiny()]
    options = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in OPTIONS[name].items()}

    def step() -> None:
        rows = at.torch.attention_statistics(*arrays, statistics=("entropy",), **options)
        (rows.output.sum() + rows.entropy.mean()).backward()

    assert functions_entered(step, is_of_the_package) <= 12


@pytest.mark.parametrize("name", CALLS)
def test_a_tiny_call_allocates_little(name: str) -> None:
    """A call allocates 1.2 to 2.9 kB, including the output's 512 bytes."""
    arrays = tiny()
    CALLS[name](*arrays)
    tracemalloc.start()
    try:
        CALLS[name](*arrays)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        CALLS[name](*arrays)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most - before < 5000


def imported() -> set[str]:
    """Modules that `import attnscale` adds to NumPy's."""
    code = "import sys, numpy; before = set(sys.modules); import attnscale; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


#: Modules that take longer to import than the package itself, or that few users need.
HEAVY = """scipy matplotlib xarray pandas dask distributed joblib cloudpickle tqdm torch transformers
    safetensors ml_dtypes asyncio multiprocessing concurrent subprocess argparse json tomllib email unittest
    attnscale.audit attnscale.cli attnscale.montecarlo attnscale.plot attnscale.reference attnscale.theory
    attnscale.torch attnscale.variants"""


def test_import_brings_no_heavy_module() -> None:
    heavy = set(HEAVY.split())
    found = imported()
    parents = {".".join(name.split(".")[: i + 1]) for name in found for i in range(name.count(".") + 1)}
    assert parents & heavy == set()


@pytest.mark.torch
def test_calls_on_tensors_import_no_compiler_and_no_triton() -> None:
    """PyTorch's compiler, for torch.compile, takes a second to import; Triton is for backend="triton"."""
    code = """
import sys, torch, attnscale as at, attnscale.torch
x = torch.ones(2, 3, 4, requires_grad=True)
at.torch.attention(x, x, x).sum().backward()
at.torch.attention(x, x, x, backend="torch").sum().backward()
at.torch.nn.MultiheadAttention(4, 2)
print({"torch._dynamo", "triton", "attnscale.torch._triton"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_calls_on_arrays_do_not_import_xarray() -> None:
    """Calls whose layout names the axes do not import xarray."""
    code = """
import sys, numpy as np, attnscale as at
x = np.ones((2, 3, 4))
at.attention(x, x, x)
at.attention_statistics(x, x, x, layout="n h d")
print("xarray" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@written_for("numpy>=2.4")  # NumPy 2.0 leaves more of the standard library to be imported
def test_import_brings_few_modules() -> None:
    """The import brings the modules of the first page only; laws, theory, torch and others are lazy."""
    found = imported()
    ours = {name for name in found if name.partition(".")[0] == "attnscale"}
    assert "attnscale.exact.forward" in ours
    assert len(ours) <= 36
    assert len(found - ours) <= 12
