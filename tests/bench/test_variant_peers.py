# SPDX-License-Identifier: BSD-3-Clause
"""Packages of others compute what the variants compute: `benchmarks/variants_peers.py` at a small size."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "variants_peers.py"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("variants_peers", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PEERS = script().PEERS


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # of the packages, which are older than PyTorch
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.package} {peer.what}")
def test_a_package_computes_the_same(peer):
    torch = pytest.importorskip("torch")
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 512, 16), np.float32)
    try:
        ours, theirs = peer.prepare(q, k, v)
    except ImportError as error:
        pytest.skip(str(error))
    with torch.inference_mode():
        assert script().difference(ours(), theirs()) < peer.tolerance
        assert script().difference(np.ones_like(ours()), theirs()) > 10 * peer.tolerance
