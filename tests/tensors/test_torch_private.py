# SPDX-License-Identifier: BSD-3-Clause
"""Private names of PyTorch: one module has all of them, and PyTorch has what it names."""

from __future__ import annotations

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PACKAGE = Path(__file__).parents[2] / "python" / "attnscale"
MODULE = PACKAGE / "torch" / "_base" / "private.py"
NAME = re.compile(r"(?<![.\w])torch(?:\.\w+)*\._(?!_)\w+(?:\.\w+)*|\bforward_ad\._\w+")
IMPORT = re.compile(r"from (torch[\w.]*) import \(?([\w, ]+)")


def private_names(source: str) -> set[str]:
    """Dotted private names of PyTorch, those that are imported too."""
    imported = (
        f"{module}.{name.split(' as ')[0].strip()}"
        for module, names in IMPORT.findall(source)
        for name in names.split(",")
    )
    found = {name.replace("forward_ad.", "torch.autograd.forward_ad.") for name in NAME.findall(source)}
    return found | {name for name in imported if "._" in name}


def has(name: str) -> bool:
    """Whether PyTorch has the name, an attribute of the module with the longest name that there is."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:n]))
        except ImportError:
            continue
        try:
            return attrgetter(".".join(parts[n:]))(found) is not None if n < len(parts) else True
        except AttributeError:
            return False
    return False


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(private_names(MODULE.read_text(encoding="utf-8"))))
def test_pytorch_has_the_private_name(name: str) -> None:
    assert has(name), f"PyTorch {torch.__version__} has no {name}, which {MODULE.name} needs"


def test_a_name_that_is_gone_is_seen() -> None:
    assert not has("torch._C._is_no_such_name")
    assert not has("torch._no_such_module.name")


def test_no_other_module_has_private_names() -> None:
    """Adapters of engines call what they judge, private or not; files of torch.save have names of PyTorch."""
    engines, names_in_files = PACKAGE / "conformance" / "engines", PACKAGE / "_files" / "torch_zip.py"
    left_out = (MODULE, names_in_files)
    every = (path for path in PACKAGE.rglob("*.py") if path not in left_out and path.parent != engines)
    sources = {path: path.read_text(encoding="utf-8") for path in every}
    found = {str(path.relative_to(PACKAGE)): private_names(source) for path, source in sources.items()}
    assert {path: names for path, names in found.items() if names} == {}
