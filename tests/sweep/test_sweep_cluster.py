# SPDX-License-Identifier: BSD-3-Clause
"""The page on clusters, on a cluster of two processes; and attention to keys that lie in parts."""

from __future__ import annotations

import re
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("dask.distributed")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "cluster.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def block(word: str) -> str:
    """The one block of the page that has this word."""
    (found,) = [text for text in BLOCKS if word in text]
    return str(found)


LAW = at.laws.get("log_n")
N, HEAD_DIM = 4096, 16


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of the scheduler of two worker processes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dask's own
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster:
            yield cluster.scheduler_address


@pytest.fixture
def arrays() -> Any:
    rng = np.random.default_rng(8)
    query = rng.standard_normal((2, 3, HEAD_DIM))
    return query, *rng.standard_normal((2, 2, N, HEAD_DIM))


def merged(arrays: Any, scale: Any, chunk: int = N // 8) -> at.AttentionState:
    query, key, value = arrays
    parts = [slice(start, start + chunk) for start in range(0, N, chunk)]
    return at.merge_states(
        at.attention_state(query, key[:, part], value[:, part], scale=scale) for part in parts
    )


@pytest.mark.slow
def test_cases_on_a_cluster(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(block("tcp://").replace("tcp://scheduler:8786", address), names)
    assert (tmp_path / "runs" / "cluster").is_dir()
    here = at.sweep(names["mean_entropy"], names["grid"], rng=0, progress=False)
    assert here["value"].identical(names["table"]["value"])
    # dask-jobqueue starts a cluster of dask: one of two processes stands for it.
    asked: dict[str, Any] = {}

    def cluster(**options: Any) -> Any:
        asked.update(options)
        return distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)

    monkeypatch.setitem(sys.modules, "dask_jobqueue", types.SimpleNamespace(SLURMCluster=cluster))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(block("SLURMCluster"), names)
    assert asked["n_workers"] == 8
    assert here["value"].identical(names["table"]["value"])


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 300_000])
def test_large_constants_go_to_dask_once(address: str, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    sent: list[int] = []
    scatter = distributed.Client.scatter

    def counted(self: Any, content: Any, **options: Any) -> Any:
        sent.append(len(content))
        return scatter(self, content, **options)

    monkeypatch.setattr(distributed.Client, "scatter", counted)

    def changes(n: int, values: Any, rng: Any) -> Any:
        values[n] += 1  # no other case sees this
        return values.sum() + rng.standard_normal()

    given: dict[str, Any] = {"constants": {"values": np.zeros(size)}, "rng": 4, "progress": False}
    with distributed.Client(address) as client:
        table = at.sweep(changes, {"n": [*range(6)]}, executor=client.get_executor(), **given)
    expected = at.sweep(lambda n, values, rng: 1 + rng.standard_normal(), {"n": [*range(6)]}, **given)
    np.testing.assert_array_equal(table["value"], expected["value"])
    assert len(sent) == (size > 10)
    assert sum(sent) < 8 * size + 10_000


def test_parts_of_an_experiment_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block("part=(k, 2)"), names)
    whole = at.montecarlo.averaging_error([512, 4096], samples=500, rng=7)
    np.testing.assert_array_equal(names["curve"].value, whole.value)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [7, 1000, N])
def test_a_long_sequence_on_a_cluster(address: str, arrays: Any, chunks: int) -> None:
    query, key, value = arrays if chunks > 7 else (arrays[0], *(each[:, :40] for each in arrays[1:]))
    keys, values = (da.from_array(each, chunks=(2, chunks, HEAD_DIM)) for each in (key, value))
    names = {"query": query, "keys": keys, "values": values}
    with distributed.Client(address):
        exec(block("da.reduction"), names)
    state: Any = names["state"]
    whole = at.attention_statistics(query, key, value, scale=LAW.scale(key.shape[1], HEAD_DIM))
    np.testing.assert_allclose(state.entropy, whole.entropy, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state.output, whole.output, rtol=0, atol=1e-12)


def test_a_law_of_the_total_length_is_evaluated_before_the_split(arrays: Any) -> None:
    query, key, _ = arrays
    right = at.attention_entropy(query, key, scale=LAW)
    np.testing.assert_allclose(merged(arrays, LAW.scale(N, HEAD_DIM)).entropy, right, rtol=0, atol=1e-12)
    naive = merged(arrays, LAW).entropy
    short = at.attention_entropy(query, key, scale=LAW.scale(N // 8, HEAD_DIM))
    np.testing.assert_allclose(naive, short, rtol=0, atol=1e-12)  # plausible: the scale of a short sequence
    assert (naive - right).min() > 0.05
    assert (naive - right).mean() == pytest.approx(0.4, abs=0.05)  # as the page says


@pytest.mark.parametrize("n", [37, 64])
def test_causal_rows_over_parts(n: int) -> None:
    """The columns of the mask that belong to a part are the part's mask."""
    query, key, value = np.random.default_rng(2).standard_normal((3, 2, n, 8))
    seen = np.tri(n, dtype=bool)
    states = [
        at.attention_state(query, key[:, i : i + 16], value[:, i : i + 16], attn_mask=seen[:, i : i + 16])
        for i in range(0, n, 16)
    ]
    whole = at.attention_statistics(query, key, value, is_causal=True)
    np.testing.assert_allclose(at.merge_states(states).entropy, whole.entropy, rtol=0, atol=1e-12)
    np.testing.assert_allclose(at.merge_states(states).output, whole.output, rtol=0, atol=1e-12)
