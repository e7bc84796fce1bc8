# SPDX-License-Identifier: BSD-3-Clause
"""A provenance holds the entropy of the seed, and where and when it was made."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import attnscale as at
import numpy as np
import pytest
from attnscale._base.provenance import provenance

SEEDS = [7, 2**127 + 5, [3, 1, 4], np.array([3, 1, 4], np.uint32), None]


@pytest.mark.parametrize("entropy", SEEDS, ids=str)
def test_the_seed_can_be_made_again(entropy):
    seed = np.random.SeedSequence(entropy, spawn_key=(4, 0))
    record = provenance(seed)
    again = np.random.SeedSequence(record.seed, spawn_key=record.spawn_key)
    np.testing.assert_array_equal(again.generate_state(4), seed.generate_state(4))
    words = [int(word) for word in record.to_dict()["seed"].split()]
    again = np.random.SeedSequence(words[0] if len(words) == 1 else words, spawn_key=(4, 0))
    np.testing.assert_array_equal(again.generate_state(4), seed.generate_state(4))


def test_it_says_where_and_when():
    record = provenance()
    assert (record.attnscale, record.numpy) == (at.__version__, np.__version__)
    assert (record.simd_level, record.num_threads) == (at.simd_level(), at.get_num_threads())
    assert (record.seed, record.spawn_key) == (None, ())
    age = datetime.now(UTC) - datetime.fromisoformat(record.created)
    assert -5 < age.total_seconds() < 3600


def test_its_dictionary_is_flat_and_json():
    flat = provenance(np.random.SeedSequence([1, 2], spawn_key=(3,))).to_dict()
    assert json.loads(json.dumps(flat)) == flat
    assert (flat["seed"], flat["spawn_key"]) == ("1 2", "3")
    assert all(isinstance(value, (str, int)) for value in flat.values())
