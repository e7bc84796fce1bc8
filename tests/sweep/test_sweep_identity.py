# SPDX-License-Identifier: BSD-3-Clause
"""Identity of a store: stores of another sweep are refused, equal values are described equally."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
import sweep_functions
from attnscale._grid.describe import describe
from attnscale._sweep.task import registered_laws

pytest.importorskip("xarray")


def sweep(function: Any, grid: Any, **options: Any) -> Any:
    return at.sweep(function, grid, **{"progress": False, **options})


@dataclasses.dataclass(frozen=True)
class Law:
    base: float


def square(x: float, power: int = 2) -> float:
    """Square."""
    return x**power


def other_source(x: float, power: int = 2) -> float:
    return x ** (power + 0)


other_source.__qualname__ = "square"


@pytest.mark.parametrize(
    ("function", "grid", "options", "message"),
    [
        (
            other_source,
            {"x": [1, 2]},
            {},
            "square had another source when its cases were computed; choose another",
        ),
        (functools.partial(square, power=3), {"x": [1, 2]}, {}, "whose function has 'function' = "),
        (square, {"x": [1, 2, 3]}, {}, "whose grid has 'x' = [1, 2] and not [1, 2, 3]; choose another"),
        (square, {"x": [1, 2.0]}, {}, "whose grid has 'x' = [1, 2] and not [1, 2.0]"),
        (square, {"x": [1, 2.5]}, {}, "whose grid has 'x' = [1, 2] and not [1, 2.5]"),
        (square, {"power": [1, 2]}, {"constants": {"x": 1}}, "whose constants has 'x' = null and not 1"),
        (square, {"x": [1, 2]}, {"constants": {"power": 3}}, "whose constants has 'power' = null and not 3"),
    ],
)
def test_a_store_of_another_sweep_is_refused(
    function: Any, grid: Any, options: Any, message: str, tmp_path: Path
) -> None:
    sweep(square, {"x": [1, 2]}, store=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="store must be of this sweep") as raised:
        sweep(function, grid, store=tmp_path, **options)
    assert message in str(raised.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_comments_and_docstrings_do_not_count(tmp_path: Path) -> None:
    told = []
    for words in ("one", "two"):
        source = f"def f(x):\n    '''{words}'''\n    # {words}\n    return x\n"
        path = tmp_path / f"{words}.py"
        path.write_text(source)
        scope: dict[str, Any] = {"__name__": "m"}
        exec(compile(source, str(path), "exec"), scope)
        told.append(describe("f", scope["f"]))
    assert told[0] == told[1]


def test_another_law_of_the_same_name_is_refused(tmp_path: Path) -> None:
    grid = {"law": ["standard", "sweep_store_test"]}
    at.laws.register("sweep_store_test")(lambda n, head_dim: 0.25)
    sweep(sweep_functions.scale_of, grid, store=tmp_path)
    at.laws.register("sweep_store_test")(lambda n, head_dim: 0.5)
    with pytest.raises(ValueError, match="whose laws has 'sweep_store_test' = "):
        sweep(sweep_functions.scale_of, grid, store=tmp_path)


def test_another_seed_is_refused(tmp_path: Path) -> None:
    sweep(sweep_functions.draw, {"n": [1]}, store=tmp_path, rng=1)
    with pytest.raises(ValueError, match="whose seed has 'entropy' = 1 and not 2"):
        sweep(sweep_functions.draw, {"n": [1]}, store=tmp_path, rng=2)


def test_another_version_and_another_format_are_refused(tmp_path: Path) -> None:
    sweep(square, {"x": [1]}, store=tmp_path)
    path = tmp_path / "attnscale-sweep.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "attnscale": "0.0.9"}))
    with pytest.raises(ValueError, match=r'whose attnscale is "0\.0\.9" and not "'):
        sweep(square, {"x": [1]}, store=tmp_path)
    path.write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(ValueError, match=r"store must have format 1, got 99 in .* written by attnscale"):
        sweep(square, {"x": [1]}, store=tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "else"}', "\x00\x01"])
def test_a_manifest_of_another_program_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "attnscale-sweep.json").write_text(content)
    with pytest.raises(ValueError, match=r"store must be written by a sweep, got .* of another program"):
        sweep(square, {"x": [1]}, store=tmp_path)


def test_a_directory_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match=r"store must be a new or empty directory or one of a sweep, got "):
        sweep(square, {"x": [1]}, store=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_write_to_one_store(tmp_path: Path) -> None:
    code = (
        "import sys, time; from attnscale._grid.store import Store\n"
        "with Store(sys.argv[1]).locked(): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        with pytest.raises(ValueError, match="one sweep at a time, another process writes"):
            sweep(square, {"x": [1]}, store=tmp_path)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert sweep(square, {"x": [1]}, store=tmp_path)["value"].item() == 1


# ---- identity of a value -----------------------------------------------------------------------


def test_equal_values_are_described_equally_and_others_are_not() -> None:
    y, z = 1.0, 2.0
    groups = [
        [512, np.int64(512)],
        [512.0, np.float32(512)],
        ["512"],
        [True],
        [None],
        [(1, 2), [1, 2]],
        [np.array([1, 2])],
        [np.array([1.0, 2.0]), np.array([[1.0, 2.0]])[0]],
        [np.array([[1.0, 2.0]])],
        [Law(2), Law(2)],
        [Law(3)],
        [at.laws.LogN(), at.laws.get("log_n")],
        [at.laws.LogN(base=64)],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{1, 2}, {2, 1}],
        [Path("a/b")],
        [lambda x: x + y],
        [lambda x: x + z],
        [lambda x: x - y],
        [functools.partial(square, 2)],
        [square, square],
        [Law],
        [math_module()],
        [at.attention],
    ]
    seen: list[Any] = []
    for group in groups:
        told = [describe("x", value) for value in group]
        assert all(json.loads(json.dumps(each)) == told[0] for each in told)
        assert not any(repr(told[0]) == repr(other) for other in seen), group
        seen.append(told[0])


def math_module() -> Any:
    import math

    return math


def test_functions_that_call_themselves_are_described() -> None:
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert describe("f", factorial)["function"].endswith("factorial")


def test_methods_tell_their_object() -> None:
    class Shift:
        def __init__(self, by: float) -> None:
            self.by = by

        def __repr__(self) -> str:
            return f"Shift({self.by})"

        def add(self, x: float) -> float:
            return x + self.by

    assert describe("f", Shift(1).add) == describe("f", Shift(1).add)
    assert describe("f", Shift(1).add) != describe("f", Shift(2).add)


def test_a_registered_law_is_found_in_every_spelling() -> None:
    at.laws.register("sweep_spelled")(lambda n, head_dim, *, s=1: s)
    for text in ("sweep_spelled", "sweep_spelled(s=2)", "1.5 * sweep_spelled(s=2)"):
        (law,) = registered_laws([3, ["standard", "no law at all", text]])
        assert law.name == "sweep_spelled"
    assert registered_laws(["sweep_spelled(", "2 *", "log_n(base=3)"]) == ()
