# SPDX-License-Identifier: BSD-3-Clause
"""Names of the modules of a model, as its users know them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

#: Name under which a component of TransformerLens holds the module that it wraps.
_WRAPPED = "_original_component"


def named_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Modules of a model by name, in the usual order; a Bridge of TransformerLens by its own names.

    A component of a Bridge lists its parts by their names there in ``real_components``, and the module tree
    has them inside the wrapped module: ``blocks.0._original_component.self_attn`` is ``blocks.0.attn``. A
    part without a name there is named as if it were the component's own. Names that would not differ stay.
    """
    plain = dict(model.named_modules())
    if not any("real_components" in vars(module) for module in plain.values()):
        return plain
    own: dict[str, str] = {}  # by plain name
    of_parts: dict[torch.nn.Module, str] = {}
    for name, module in plain.items():
        parent, _, last = name.rpartition(".")
        above = own.get(parent, "").removesuffix(_WRAPPED).removesuffix(".")
        own[name] = of_parts.get(module, f"{above}.{last}" if above else last)
        for part, component in _parts(module):
            of_parts.setdefault(component, f"{own[name]}.{part}" if own[name] else part)
    found = {own[name]: module for name, module in plain.items()}
    return found if len(found) == len(plain) else plain


def _parts(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The components of a module by their names in TransformerLens."""
    found: Any = vars(module).get("real_components")
    for part, entry in (found if isinstance(found, dict) else {}).items():
        component = entry[-1] if isinstance(entry, tuple) and entry else entry
        if isinstance(part, str) and isinstance(component, torch.nn.Module):
            yield part, component
