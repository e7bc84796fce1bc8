# SPDX-License-Identifier: BSD-3-Clause
"""Reports of folders of layers: parts, executors, stores, and layers that do not fit."""

from __future__ import annotations

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
