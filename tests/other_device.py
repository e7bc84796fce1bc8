# SPDX-License-Identifier: BSD-3-Clause
"""A device of PyTorch called "elsewhere", with numbers: the CPU's memory, behind the rules of another device.

No operation takes a tensor of the CPU together with one of this device, unless it is a copy or the tensor has
no axes; NumPy cannot read its tensors. Whatever a program makes on the CPU by mistake is an error here, as it
is on a GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

try:
    from torch.utils.backend_registration import (
        _DummyBackendModule,
        _setup_privateuseone_for_python_backend,
    )

    IS_THERE = True
except ImportError:
    _DummyBackendModule, IS_THERE = object, False

__all__ = ["IS_THERE", "NAME", "full_masks", "need", "there"]

NAME = "elsewhere"
_COPIES = ("aten::_to_copy", "aten::copy_")


class _Elsewhere(torch.Tensor):
    """A tensor whose numbers are those of a tensor of the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> _Elsewhere:
        found = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=f"{NAME}:0"
        )
        found.inner = inner
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation on the tensors of the CPU."""
        kwargs = dict(kwargs or {})
        if func.namespace not in ("aten", "prim"):
            raise NotImplementedError(f"{func} has no kernel for {NAME!r}")
        if func._schema.name not in _COPIES:
            _refuse_the_cpu(func, args, kwargs)
        asked = kwargs.get("device")
        leaves = asked is not None and torch.device(asked).type != NAME
        if asked is not None and not leaves:
            kwargs["device"] = torch.device("cpu")
        found = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        if leaves:
            return found
        first = func._schema.arguments[0].alias_info
        if first is not None and first.is_write:
            return args[0]
        if "out" in kwargs:
            return kwargs["out"]
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, found)


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, _Elsewhere) else x


def _refuse_the_cpu(func: Any, args: Any, kwargs: Any) -> None:
    for x in tree_flatten((args, kwargs))[0]:
        if isinstance(x, torch.Tensor) and not isinstance(x, _Elsewhere) and x.ndim:
            raise RuntimeError(f"{func} mixes a tensor of the CPU, {tuple(x.shape)}, with one of {NAME!r}")


class _Module(_DummyBackendModule):  # type: ignore[misc]
    """What PyTorch asks of each device that it knows, also where the device has no part in a call."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """There are no random numbers of this device."""


def _register() -> Any:
    """Make the device known to PyTorch."""
    _setup_privateuseone_for_python_backend(NAME, _Module())
    library = torch.library.Library("aten", "IMPL")

    def empty(size: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
        return _Elsewhere(torch.empty(size, dtype=dtype, device="cpu"))

    def empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
        return _Elsewhere(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

    def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
        _inner(target).copy_(_inner(source))
        return target

    library.impl("_copy_from", copy_from, "PrivateUse1")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    return library


#: Here and not in a test: the first backward pass of a process settles which devices have a backward pass.
_LIBRARY = _register() if IS_THERE else None


def need() -> None:
    """Skip the test where PyTorch is too old to have the device."""
    if not IS_THERE:
        pytest.skip(f"needs a device that is written in Python, which torch {torch.__version__} has not")


@pytest.fixture
def full_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of models on this device are written out: a tensor has but one class, and this is another's."""
    need()
    from attnscale.torch._models.interface import PatternMask

    of = PatternMask.of
    monkeypatch.setattr(
        PatternMask,
        "of",
        lambda pattern, full, at: full() if str(at).startswith(NAME) else of(pattern, full, at),
    )


def there(x: Any) -> Any:
    """A copy of a tensor on the device, a leaf that requires grad if the tensor does."""
    need()
    return x.detach().to(NAME).requires_grad_(x.requires_grad)
