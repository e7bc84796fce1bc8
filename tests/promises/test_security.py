# SPDX-License-Identifier: BSD-3-Clause
"""The promise of SECURITY.md: reading a file runs no code from it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import attnscale
import numpy as np
import pytest
from attnscale._grid import store
from attnscale.cli import main

PACKAGE = Path(attnscale.__file__).parent


class Trap:
    """An object whose pickle creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


def calls() -> Iterator[tuple[str, str, dict[str, str]]]:
    """File, name and keyword arguments of every call in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                options = {each.arg: ast.unparse(each.value) for each in node.keywords if each.arg}
                yield path.relative_to(PACKAGE).as_posix(), name, options


def test_every_call_that_could_run_what_it_reads_is_told_not_to() -> None:
    required = {"np.load": ("allow_pickle", "False"), "torch.load": ("weights_only", "True")}
    seen, reads_pickles = set(), []
    for file, name, options in calls():
        if name.startswith(("pickle.load", "cloudpickle.load", "joblib.load")) or name in ("eval", "exec"):
            reads_pickles.append((file, name))
        key, value = required.get(name, ("trust_remote_code", "False"))
        if name in required or (name.endswith(".from_pretrained") and file.startswith("cli/")):
            assert options.get(key) == value, (file, name)
            seen.add(name)
    assert seen == {*required, "AutoTokenizer.from_pretrained", "AutoModel.from_pretrained"}
    own_workers = [("_grid/complete.py", "pickle.loads")] * 2  # of a sweep, and the process of an engine
    own_workers += [("conformance/_isolated.py", "pickle.load")]
    own_workers += [("conformance/_worker.py", name) for name in ("pickle.loads", "pickle.load")]
    assert reads_pickles == own_workers


def test_a_stored_case_with_a_pickle_is_a_damaged_one(tmp_path: Path) -> None:
    trap, case = tmp_path / "trap", tmp_path / "case.npz"
    about = json.dumps({"case": "c", "names": ["x"], "dims": [None], "attrs": [{}]})
    np.savez(case, about=np.array([about, ""]), array_0=np.array([Trap(trap)], dtype=object))
    assert store.from_bytes(case.read_bytes(), "c") is None
    assert not trap.exists()


@pytest.mark.torch
def test_the_state_of_a_training_with_a_pickle_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from attnscale.experiments._training import Checkpoints

    trap = tmp_path / "trap"
    torch.save({"model": Trap(trap)}, tmp_path / "unit-state.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        Checkpoints(tmp_path, "unit").read("state")
    assert not trap.exists()


@pytest.mark.torch
def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    trap, folder, text = tmp_path / "trap", tmp_path / "model", tmp_path / "text.txt"
    folder.mkdir()
    text.write_text("a few words")
    (folder / "code.py").write_text(f"open({str(trap)!r}, 'w').close()\n")
    own = dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "code.X")
    (folder / "config.json").write_text(json.dumps({"model_type": "unheard_of", "auto_map": own}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["code.X", None]}})
    )
    assert main(["diagnose", str(folder), "--text", str(text), "--n", "2"]) == 2
    assert f"MODEL {folder}: " in capsys.readouterr().err
    assert not trap.exists()
