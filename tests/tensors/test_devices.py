# SPDX-License-Identifier: BSD-3-Clause
"""Modules and models follow the device of their tensors; refusals are one line."""

from __future__ import annotations

import importlib
import sys
import types
from contextlib import suppress
from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attnscale.torch._base import device as _device  # noqa: E402
from other_device import NAME, full_masks, there  # noqa: E402, F401
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

_SUPPORT = "attnscale.torch._triton._support"


@pytest.mark.parametrize(
    "options",
    [
        {"law": "log_n", "statistics": ["entropy"], "rotary_base": 1e4},
        {"law": "log_n", "dropout": 0.2, "learnable_scale": "head"},
        {"law": "scale_invariant", "dropout": 0.2},
        {"dropout": 0.2, "normalizer": "sparsemax", "add_zero_attn": True, "add_bias_kv": True},
    ],
    ids=["statistics", "dropout", "dropout and a law of the distance", "dropout and sparsemax"],
)
def test_a_module_runs_where_it_is(options: dict[str, Any]) -> None:
    """With dropout, the same seed drops the same weights."""
    torch.manual_seed(0)
    module = at.torch.nn.MultiheadAttention(16, 4, batch_first=True, **options)
    x = torch.randn(2, 10, 16, requires_grad=True)
    found = []
    for place in (lambda x: x, there):
        module = module.to(place(torch.zeros(1)).device)
        torch.manual_seed(1)
        given = place(x)
        mask = place(torch.zeros(10, 10, dtype=torch.bool))
        output, weights = module(given, given, given, attn_mask=mask, is_causal=True)
        (gradient,) = torch.autograd.grad(output.sin().sum() + weights.square().sum(), given)
        found.append([each.detach().cpu() for each in (output, weights, gradient)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("full_masks")
def test_a_model_is_recorded_where_it_is_and_in_its_type() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    model = transformers.LlamaModel(transformers.LlamaConfig(**sizes, vocab_size=20, intermediate_size=8))
    logs = []
    for device, dtype in (("cpu", torch.float32), (NAME, torch.float32), (NAME, torch.bfloat16)):
        model = model.eval().to(device, dtype)
        with torch.no_grad(), at.torch.record(model, laws=["log_n"], keep_heads=True) as log:
            model(torch.arange(12)[None].to(device))
        logs.append(log)
    for name in ("entropy", "lse", "max_score", "entropy under log_n"):
        assert logs[2][name].dtype == np.float32
        np.testing.assert_allclose(logs[1][name], logs[0][name], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(logs[2][name], logs[0][name], rtol=0.05, atol=0.05)
    assert logs[1].report().entropy.shape == logs[0].report().entropy.shape


def test_composed_functions() -> None:
    torch.manual_seed(0)
    x, y, lam = torch.randn(2, 6, 4), torch.randn(2, 5, 4), torch.rand(2, 1)
    nodes = at.torch.relay_attention(there(x), there(y))
    torch.testing.assert_close(nodes.output.cpu(), at.torch.relay_attention(x, y).output)
    found = at.torch.differential_attention(*map(there, (x, y, x, y, y)), lam=there(lam))
    torch.testing.assert_close(found.cpu(), at.torch.differential_attention(x, y, x, y, y, lam=lam))


def test_the_kernels_for_the_cpu_refuse_other_devices() -> None:
    x = there(torch.ones(2, 5, 4))
    message = "backend='core' takes tensors on the CPU, got tensors on elsewhere:0"
    with pytest.raises(ValueError, match=message):
        at.torch.attention(x, x, x, backend="core")


def test_a_default_device_changes_nothing() -> None:
    q, k, v = torch.randn(3, 2, 5, 4)
    want = at.torch.attention(q, k, v, scale="log_n", is_causal=True, backend="torch")
    with torch.device("meta"):
        found = at.torch.attention(q, k, v, scale="log_n", is_causal=True, backend="torch")
    assert torch.equal(found, want)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere", "got 'nowhere', which is not a device of PyTorch"),
        (3.5, "got 3.5, which is not a device of PyTorch"),
        ("meta", "got 'meta', whose tensors have no numbers"),
        ("cuda:99", r"got 'cuda:99' \("),
    ],
)
def test_a_device_that_is_not_here(name: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"device must be one that PyTorch sees here, {said}") as error:
        _device.device_named(name)
    assert "\n" not in str(error.value)


def test_types_by_name() -> None:
    assert _device.device_named("cpu").type == "cpu"
    assert _device.dtype_named("bfloat16") is torch.bfloat16
    message = "dtype must be one of 'float64', 'float32', 'float16', 'bfloat16', got"
    with pytest.raises(ValueError, match=message):
        _device.dtype_named("int8")


# ---- the kernel for CUDA ------------------------------------------------------------------------


@pytest.fixture
def on_cuda() -> Any:
    """A tensor that says that it is on CUDA, and has no numbers."""
    with FakeTensorMode():
        yield torch.empty(1, 2, 3, 4, device="cuda")


def call_on(x: Any, backend: str | None, statistics: str = "lse") -> Any:
    return at.torch.attention_statistics(x, x, x, statistics=statistics, backend=backend)


@pytest.mark.parametrize(("found", "said"), [(None, "none"), ("3.1.0", "3.1.0")])
def test_a_call_without_a_triton_of_today_names_the_extra(
    on_cuda: Any, monkeypatch: pytest.MonkeyPatch, found: str | None, said: str
) -> None:
    support = importlib.import_module(_SUPPORT)
    support.check_installed.cache_clear()
    monkeypatch.setattr(support, "find_spec", lambda _: found)
    monkeypatch.setattr(support, "version", lambda _: found)
    with pytest.raises(ImportError) as error:
        call_on(on_cuda, "triton")
    install = 'pip install "attnscale[triton]"'
    assert str(error.value) == f"backend='triton' needs Triton 3.4 or later, found {said}: {install}"


def test_the_kernels_for_cuda_serve_the_calls_that_ask_for_them(
    on_cuda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels run only on request: no GPU has run them."""
    registered: list[str] = []
    operator = types.ModuleType("attnscale.torch._triton._operator")
    operator.register = registered.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, operator.__name__, operator)
    monkeypatch.setattr(f"{_SUPPORT}.check_installed", lambda: None)
    for backend in (None, "auto", "torch"):
        with suppress(RuntimeError):  # of a PyTorch without CUDA
            call_on(on_cuda, backend)
    assert not registered
    assert call_on(on_cuda, "triton").output.device.type == "cuda"
    with pytest.raises(ValueError, match="does not serve this call: min_score is not in the kernels"):
        call_on(on_cuda, "triton", "min_score")
    assert registered == ["cuda"]
