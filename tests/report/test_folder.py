# SPDX-License-Identifier: BSD-3-Clause
"""Reports of folders of layers: parts, executors, stores, and layers that do not fit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest

OPTIONS: dict[str, Any] = {"lengths": [16, 32], "laws": ["log_n"], "is_causal": True, "progress": False}
HEADS, KEY_HEADS = 4, 2


def write_layer(folder: Path, layer: int, **changes: Any) -> Path:
    """A layer of four query heads and two key heads of the shipped heads."""
    data = at.datasets.minilm_qk()
    arrays = {
        "query": data.query[layer : layer + HEADS, :32],
        "key": data.key[layer : layer + KEY_HEADS, :32],
    }
    path = folder / f"layer_{layer}.npz"
    np.savez(path, **{**arrays, **changes})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three layers; their numbers have gaps, and their order is not that of letters."""
    folder = tmp_path / "layers"
    folder.mkdir()
    for layer in (0, 2, 10):
        write_layer(folder, layer)
    return folder


def numbers(found: at.Report) -> dict[str, Any]:
    """All content of the page but the time at which it was made."""
    content = found.to_dict()
    del content["provenance"]
    return content


def test_a_folder_is_measured_as_its_layers_are(folder: Path) -> None:
    found = at.report_folder(folder, **OPTIONS)
    assert found.layers.tolist() == [0] * HEADS + [2] * HEADS + [10] * HEADS
    assert found.heads.tolist() == [*range(HEADS)] * 3
    assert found.about["model"] == "layers"
    assert found.about["note"] == "the folder has no layers 1, 3, 4, 5 and 4 more between 0 and 10"
    options = {name: value for name, value in OPTIONS.items() if name != "progress"}
    for place, layer in enumerate((0, 2, 10)):
        with np.load(folder / f"layer_{layer}.npz") as stored:
            alone = at.report(stored["query"], stored["key"], enable_gqa=True, **options)
        here = slice(HEADS * place, HEADS * (place + 1))
        for name in ("entropy", "curve", "received_curve", "histogram", "beta", "misses", "random_curve"):
            np.testing.assert_array_equal(getattr(found, name)[here], getattr(alone, name))


def test_parts_give_the_page_of_one_process(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = at.report_folder(folder, store=store, part="1/2", **OPTIONS)
    assert first.about["heads"] == "8 of 12"
    assert sorted(set(first.layers.tolist())) == [0, 10]
    second = at.report_folder(folder, store=store, part=(2, 2), **OPTIONS)
    whole = at.report_folder(folder, **OPTIONS)
    assert numbers(second) == numbers(whole) == numbers(at.report_folder(folder, store=store, **OPTIONS))


@pytest.mark.parametrize(
    "pool",
    [lambda: ThreadPoolExecutor(2), lambda: ProcessPoolExecutor(2, mp_context=get_context("spawn"))],
    ids=["threads", "processes"],
)
def test_executors_give_the_page_of_one_process(folder: Path, pool: Callable[[], Any]) -> None:
    with pool() as executor:
        found = at.report_folder(folder, executor=executor, **OPTIONS)
    assert numbers(found) == numbers(at.report_folder(folder, **OPTIONS))


def stopped_after(cases: int) -> Callable[[int, Any], None]:
    """A progress function that ends the run as Ctrl-C does."""

    def progress(done: int, total: Any) -> None:
        if done == cases:
            raise KeyboardInterrupt

    return progress


def test_a_run_that_is_ended_goes_on_from_its_store(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    options = {**OPTIONS, "store": store}
    with pytest.raises(
        at.SweepInterrupted, match=r"^1 of 3 layers are finished; '.*store' keeps them"
    ) as info:
        at.report_folder(folder, **{**options, "progress": stopped_after(1)})
    assert info.value.partial.layers.tolist() == [0] * HEADS
    done: list[int] = []
    found = at.report_folder(folder, **{**options, "progress": lambda count, total: done.append(count)})
    assert done == [1, 2, 3]
    assert numbers(found) == numbers(at.report_folder(folder, **OPTIONS))


def test_a_killed_run_goes_on_from_its_store(folder: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "store": str(tmp_path / "store")}
    code = (
        "import os, attnscale as at\n"
        f"options = {options | {'progress': None}!r}\n"
        "options['progress'] = lambda done, total: os._exit(9) if done == 2 else None\n"
        f"at.report_folder({str(folder)!r}, **options)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    done: list[int] = []
    found = at.report_folder(folder, **{**options, "progress": lambda count, total: done.append(count)})
    assert done == [2, 3]
    assert numbers(found) == numbers(at.report_folder(folder, **OPTIONS))


def test_a_damaged_layer_costs_no_other(folder: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "store": tmp_path / "store"}
    bad = np.full((HEADS, 32, 32), np.nan, np.float32)
    path = write_layer(folder, 2, query=bad)
    with pytest.raises(at.SweepError) as info:
        at.report_folder(folder, **options)
    said = "1 of 3 layers failed, the first at layer='layer_2': InputError: "
    assert str(info.value).startswith(f"{said}{path}: query holds 1024 NaN or infinite values, the first at")
    assert sorted(set(info.value.partial.layers.tolist())) == [0, 10]
    write_layer(folder, 2)
    done: list[int] = []
    found = at.report_folder(folder, **{**options, "progress": lambda count, total: done.append(count)})
    assert done == [2, 3]
    assert numbers(found) == numbers(at.report_folder(folder, **OPTIONS))


def test_a_store_measures_a_replaced_file_again(folder: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "store": tmp_path / "store"}
    before = at.report_folder(folder, **options)
    data = at.datasets.minilm_qk()
    write_layer(folder, 0, query=data.query[8 : 8 + HEADS, :32])
    after = at.report_folder(folder, **options)
    assert (before.entropy[:HEADS] != after.entropy[:HEADS]).any()
    np.testing.assert_array_equal(before.entropy[HEADS:], after.entropy[HEADS:])


def test_a_store_of_other_lengths_is_refused(folder: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "store": tmp_path / "store"}
    at.report_folder(folder, **options)
    with pytest.raises(
        ValueError, match=r"^store must be of this report, got .*, whose lengths is \[16, 32\] and"
    ):
        at.report_folder(folder, **{**options, "lengths": [32]})


def test_a_batch_of_one_text_is_a_layer(folder: Path, tmp_path: Path) -> None:
    batch = tmp_path / "other" / folder.name
    batch.mkdir(parents=True)
    for path in folder.iterdir():
        with np.load(path) as stored:
            np.savez(batch / path.name, query=stored["query"][None], key=stored["key"][None])
    assert numbers(at.report_folder(batch, **OPTIONS)) == numbers(at.report_folder(folder, **OPTIONS))


def test_layers_that_do_not_fit_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    x = np.ones((HEADS, 16, 32), np.float32)
    refused = {
        "tokens": (
            {"query": x, "key": x},
            "layer_2: all layers must have the same tokens and head_dim, got 16",
        ),
        "keys": (
            {"query": x, "key": x[:, :8]},
            "layer_2: a report needs as many queries as keys, got 16 and 8",
        ),
        "batch": ({"query": np.stack([x, x]), "key": np.stack([x, x])}, "layer_2: query must have the axes"),
    }
    for changes, said in refused.values():
        write_layer(folder, 2, **changes)
        with pytest.raises(ValueError, match=f"^{said}"):
            at.report_folder(folder, **OPTIONS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: there is no file of queries and keys here"):
        at.report_folder(tmp_path / "empty", **OPTIONS)


def test_a_long_layer_is_several_cases(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = at.report_folder(folder, **OPTIONS)
    monkeypatch.setattr("attnscale._report.folder._MOST_PAIRS", 3 * (16 * 10 + 32 * 20))
    done: list[Any] = []
    store = tmp_path / "store"
    options = {**OPTIONS, "store": store, "progress": lambda count, total: done.append((count, total))}
    assert numbers(at.report_folder(folder, **options)) == numbers(whole)
    assert done[-1] == (6, 6)
    with pytest.raises(ValueError, match=r"^part must be one of at most 6 parts, one a case, got 1/7"):
        at.report_folder(folder, **options, part="1/7")


def test_some_heads_of_each_layer(folder: Path, tmp_path: Path) -> None:
    whole = at.report_folder(folder, **OPTIONS)
    store = tmp_path / "store"
    some = at.report_folder(folder, heads=[3, 1], store=store, **OPTIONS)
    assert some.heads.tolist() == [1, 3] * 3
    np.testing.assert_array_equal(some.curve, whole.curve[whole.heads % 2 == 1])
    assert numbers(at.report_folder(folder, store=store, **OPTIONS)) == numbers(whole)
    with pytest.raises(TypeError, match="folder must be a path, got 3"):
        at.report_folder(3)  # type: ignore[arg-type]
    for wrong, kind in (([0.5], TypeError), ([HEADS], ValueError), ([], ValueError)):
        with pytest.raises(kind, match=r"^heads must be "):
            at.report_folder(folder, heads=wrong, **OPTIONS)
