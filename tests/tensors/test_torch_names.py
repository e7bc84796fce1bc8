# SPDX-License-Identifier: BSD-3-Clause
"""Names of modules in recordings: a stand-in with the structure of a TransformerLens Bridge (4.3)."""

from __future__ import annotations

from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch


class Component(nn.Module):
    """A wrapper that keeps its parts inside the wrapped module, and lists them by its own names."""

    def __init__(self, wrapped: Any, **parts: str) -> None:
        super().__init__()
        self._original_component = wrapped
        self.real_components = {name: (path, getattr(wrapped, path)) for name, path in parts.items()}

    def forward(self, x: Any) -> Any:
        return self._original_component(x)


def attend(x: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


class Attention(nn.Module):
    def forward(self, x: Any) -> Any:
        return attend(x)


class Computing(Component):
    """A wrapper that computes attention in place of the module that it wraps."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())

    def forward(self, x: Any) -> Any:
        return attend(x)


class Outer(nn.Module):
    """Attention one module deeper, as in BERT; its wrapper has no name for that module."""

    def __init__(self) -> None:
        super().__init__()
        self.self = Attention()

    def forward(self, x: Any) -> Any:
        return self.self(x)


class Layer(nn.Module):
    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.self_attn = attention if isinstance(attention, Component) else Component(attention)

    def forward(self, x: Any) -> Any:
        return self.self_attn(x)


class Bridge(nn.Module):
    def __init__(self, attention: Any, **parts: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Component(Layer(attention()), **parts) for _ in range(2))
        self.real_components = {"blocks": ("model.layers", self.blocks)}

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


def recorded(model: Any) -> list[str]:
    with torch.no_grad(), at.torch.record(model) as log:
        model(torch.randn(1, 2, 5, 4))
    return list(log.calls)


@pytest.mark.parametrize(
    ("attention", "parts", "expected"),
    [
        (Computing, {"attn": "self_attn"}, "blocks.{}.attn"),
        (Attention, {"attn": "self_attn"}, "blocks.{}.attn._original_component"),
        (Outer, {"attn": "self_attn"}, "blocks.{}.attn.self"),
        (Attention, {}, "blocks.{}.self_attn._original_component"),  # no name in the wrapper
    ],
)
def test_a_bridge_has_its_own_names(attention: Any, parts: dict[str, str], expected: str) -> None:
    model = Bridge(attention, **parts)
    assert recorded(model) == [expected.format(number) for number in range(2)]


def test_names_that_would_not_differ_stay() -> None:
    model = Bridge(Attention, attn="self_attn")
    model.blocks[0].attn = nn.Identity()  # takes the name blocks.0.attn
    assert recorded(model)[0] == "blocks.0._original_component.self_attn._original_component"


def test_a_monitor_and_a_choice_by_these_names() -> None:
    model, names = Bridge(Outer, attn="self_attn"), ["blocks.0.attn.self", "blocks.1.attn.self"]
    monitor = at.torch.Monitor(model)
    with monitor.step(0):
        model(torch.randn(1, 2, 5, 4))
    assert list(monitor.modules) == names
    assert monitor.layers == (0, 1)
    with torch.no_grad(), at.torch.record(model) as log:
        model(torch.randn(1, 2, 5, 4))
    assert len(log.select(modules="blocks.1.attn*").calls) == 1  # of two


def test_other_models_keep_their_names() -> None:
    assert recorded(nn.Sequential(Attention(), Outer())) == ["0", "1.self"]
