# SPDX-License-Identifier: BSD-3-Clause
"""A message is one line, whatever was given: arrays and long values are described, not printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws, normalizers
from attnscale import montecarlo as mc
from attnscale import variants as V

Q = np.ones((2, 3, 4))
LONG = np.arange(60.0).reshape(3, 20)

CALLS: dict[str, Callable[[Any], Any]] = {
    "set_num_threads": at.set_num_threads,
    "num_threads": lambda x: at.attention(Q, Q, Q, num_threads=x),
    "num_threads of an experiment": lambda x: mc.max_cosine(8, 4, samples=2, num_threads=x),
    "is_causal": lambda x: at.attention(Q, Q, Q, is_causal=x),
    "is_causal and causal": lambda x: at.attention(Q, Q, Q, is_causal=True, causal=x),
    "layout": lambda x: at.attention_state(Q, Q, Q, layout=x),
    "normalizer": lambda x: at.attention(Q, Q, Q, normalizer=x),
    "softcap": lambda x: at.attention(Q, Q, Q, softcap=x),
    "window": lambda x: at.attention(Q, Q, Q, window=x),
    "normalizers.get": normalizers.get,
    "a parameter of a normalizer": lambda x: normalizers.get("entmax", alpha=x),
    "Sigmoid": normalizers.Sigmoid,
    "Entmax": normalizers.Entmax,
    "TopK": normalizers.TopK,
    "SoftmaxN": normalizers.SoftmaxN,
    "ReLU": normalizers.ReLU,
    "Softpick": normalizers.Softpick,
    "laws.get": laws.get,
    "radius": lambda x: V.local_global_attention(Q, Q, Q, radius=x),
    "no causal form": lambda x: V.linformer_attention(Q, Q, Q, np.ones((2, 3)), causal=x),
    "base": lambda x: V.apply_rotary(Q, base=x),
    "kinds": lambda x: V.hybrid(Q, Q, Q, x),
    "rows": lambda x: V.attention_jacobian_norms(Q, np.ones((4, 4)), np.ones((4, 4)), rows=x + 0.5),
    "dropout": lambda x: V.MultiHeadAttention(4, 2, dropout=x),
    "rng": lambda x: mc.max_cosine(8, 4, rng=x - 1.5, samples=2),
    "progress": lambda x: mc.max_cosine(8, 4, progress=x, samples=2),
    "progress of a sweep": lambda x: at.sweep(lambda n: n, {"n": [1]}, progress=x),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_array_in_the_wrong_place_is_described_in_one_line(name: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        CALLS[name](LONG)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    assert "truth value" not in text


@pytest.mark.parametrize("name", ["set_num_threads", "num_threads", "num_threads of an experiment"])
def test_more_threads_than_the_core_counts(name: str) -> None:
    for n in (2**31, 2**64, 10**300):
        with pytest.raises(ValueError, match=r"must be at most 2147483647, got \d{10,80}(\.\.\.)?$"):
            CALLS[name](n)


def test_messages_show_what_they_got_by_the_one_helper() -> None:
    """``got {x!r}`` prints pages where x is an array. Paths are shown whole: the end tells them apart."""
    places = [
        f"{path.name}: {found}"
        for path in Path(at.__file__).parent.rglob("*.py")
        for found in re.findall(r"got \{(?!str\()[^{}]*!r[^{}]*\}", path.read_text(encoding="utf-8"))
        if path.name != "as_framework.py"  # versions on record in the package itself
    ]
    assert places == []
