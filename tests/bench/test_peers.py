# SPDX-License-Identifier: BSD-3-Clause
"""Attention of other packages gives our results; `make peers` installs them and runs this file."""

from __future__ import annotations

from importlib.util import find_spec

import attnscale as at
import numpy as np
import pytest
from attnscale_bench import _peer_cases
from attnscale_bench._engines import ENGINES, Engine, Prepared
from attnscale_bench._session import Session, random_heads

#: Peers that PyTorch compiles for a third of a minute run only beside the other packages.
COMPILED = () if find_spec("onnxruntime") else ("flex",)
EACH = [(work, name) for work, of in ENGINES.items() for name in of.engines if name not in COMPILED]


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.filterwarnings("ignore")  # of PyTorch, which compiles by what it has deprecated
@pytest.mark.parametrize(("work", "name"), EACH, ids=lambda part: part)
def test_an_engine_computes_the_same(work, name):
    q, k, v = random_heads(2, 40, 16)
    rows, grad = at.attention_statistics(q, k, v), v[:, ::-1].copy()
    gradients = at.attention_gradients(q, k, v, grad)
    expected = {
        "forward": rows.output,
        "entropy": np.concatenate([rows.output, rows.entropy[..., None]], -1),
        "step": np.stack([gradients.query, gradients.key, gradients.value]),
    }[work]
    arrays = [q, k, v, grad] if work == "step" else [q, k, v]
    engine = ENGINES[work].engines[name]
    found = _peer_cases.checked(engine, arrays, 1, expected, 1e-5)
    if found == f"{engine.package} is not installed":
        pytest.skip(found)
    assert isinstance(found, Prepared), found
    slipped = _peer_cases.checked(engine, arrays, 1, 1.01 * expected, 1e-3)
    assert slipped == "computes something else: 9.9e-03 of the largest apart"


def test_what_cannot_be_timed_is_a_line(monkeypatch):
    def fails(*given):
        raise RuntimeError("no kernel\n  for this type")

    def absent(*given):
        raise ImportError

    ours = ENGINES["forward"].engines["attnscale"]
    halved = Prepared(lambda: 0.5, lambda found: np.full((8, 16, 64), found, np.float32))
    engines = {
        "attnscale": ours,
        "same": Engine("numpy", "same", ours.prepare),
        "other": Engine("other", "half", lambda *given: halved),
        "fails": Engine("fails", "raises", fails),
        "absent": Engine("absent", "is not here", absent),
    }
    monkeypatch.setitem(ENGINES, "forward", ENGINES["forward"]._replace(engines=engines))
    options = {"work": "forward", "n": 16, "head_dim": 64, "dtype": "float32"}
    rows = {row.name: row for row in _peer_cases.beside(Session(1, 2, quick=True), "x", **options)}
    missing = {name: row.estimate is None for name, row in rows.items()}
    assert missing == {"x": False, "x_same": False, "x_other": True, "x_fails": True, "x_absent": True}
    assert rows["x_other"].note.startswith("computes something else: ")
    assert rows["x_fails"].note == "no kernel for this type"
    assert rows["x_absent"].note == "absent is not installed"
    assert rows["x_same"].flops == 4 * 8 * 16 * 16 * 64
    assert set(rows["x"].samples) == {"peak", "attnscale", "same"}
