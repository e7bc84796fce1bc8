# SPDX-License-Identifier: BSD-3-Clause
"""Variants against other packages: `benchmarks/variant_peers.py` at a small size."""

from __future__ import annotations

import numpy as np
import pytest
from variant_peers import PEERS, difference


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
        assert difference(ours(), theirs()) < peer.tolerance
        assert difference(np.ones_like(ours()), theirs()) > 10 * peer.tolerance
