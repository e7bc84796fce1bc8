# SPDX-License-Identifier: BSD-3-Clause
"""Inputs, masks and error bounds that the tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
import pytest

from tools.fuzz import check_attend, oracle
from tools.fuzz.arrays import dtype_of as dtype_of
from tools.fuzz.compare import Findings

STATISTICS = (
    "lse",
    "entropy",
    "max_score",
    "mean_score",
    "score_variance",
    "concentration",
    "n_visible",
    "argmax",
    "max_weight",
    "renyi2",
    "min_score",
)

#: Those that have gradients.
SMOOTH = tuple(name for name in STATISTICS if name not in ("n_visible", "argmax", "min_score"))

# Around the lanes of a vector (4, 8, 16), a block of queries (32, 64) and a tile of keys.
EDGES = (0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200)

FLOAT_TYPES = ("float64", "float32", "float16", "bfloat16")

#: For tests whose rows are NaN on purpose: test_large_scores.py has the warnings of such rows.
rows_are_lost = pytest.mark.filterwarnings("ignore:rows of the result are NaN", "ignore:attn_mask holds NaN")


@contextmanager
def case(*names: Any) -> Iterator[None]:
    """One turn of a loop over cases: what fails in it is shown with their names."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {', '.join(map(str, names))}")
        raise


def entered(call: Callable[[], Any]) -> list[str]:
    """Names of the functions in C, among them the passes of the core, that a call enters."""
    names: list[str] = []

    def note(frame: Any, event: str, function: Any) -> None:
        names.extend([function.__name__] if event == "c_call" else [])

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


def random_inputs(
    seed: int,
    *,
    batch: tuple[int, ...] = (),
    heads: int | None = 2,
    kv_heads: int | None = None,
    n_queries: int = 17,
    n_keys: int = 33,
    head_dim: int = 16,
    value_dim: int | None = None,
    dtype: str = "float32",
    spread: float = 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard normal query (times spread), key and value; heads=None makes 2-D arrays."""
    rng = np.random.default_rng(seed)
    value_dim = head_dim if value_dim is None else value_dim
    q_lead = (*batch, *(() if heads is None else (heads,)))
    kv_lead = q_lead if kv_heads is None else (*batch, kv_heads)
    shapes = ((*q_lead, n_queries, head_dim), (*kv_lead, n_keys, head_dim), (*kv_lead, n_keys, value_dim))
    q, k, v = (rng.standard_normal(shape).astype(dtype_of(dtype)) for shape in shapes)
    return (q * dtype_of(dtype).type(spread)).astype(dtype_of(dtype)), k, v


def mask_cases(batch: int, heads: int, n_queries: int, n_keys: int) -> dict[str, dict[str, Any]]:
    """Options of every kind of mask, alone and combined, for inputs (batch, heads, n, d)."""
    rng = np.random.default_rng(7)
    boolean = rng.random((batch, heads, n_queries, n_keys)) < 0.6
    bias = rng.standard_normal((heads, n_queries, n_keys)).astype(np.float32)
    bias[rng.random(bias.shape) < 0.3] = -np.inf
    lengths = rng.integers(0, n_keys + 1, batch)
    lengths[0] = n_keys // 2
    return {
        "none": {},
        "is_causal": {"is_causal": True},
        "bottom_right": {"causal": "bottom_right"},
        "from key 3": {"causal": 3},
        "from before": {"causal": -2, "window": (4, 0)},
        "window": {"window": (3, 2)},
        "window open left": {"window": (None, 1)},
        "window open right": {"window": (2, None)},
        "window causal": {"window": (5, 9), "causal": "bottom_right"},
        "boolean": {"attn_mask": boolean},
        "boolean keys": {"attn_mask": rng.random(n_keys) < 0.5},
        "boolean rows": {"attn_mask": rng.random((n_queries, 1)) < 0.5},
        "boolean one": {"attn_mask": np.array(True)},
        "bias": {"attn_mask": bias},
        "bias float16 keys": {"attn_mask": rng.standard_normal(n_keys).astype(np.float16)},
        "bias float64 heads": {"attn_mask": rng.standard_normal((batch, 1, n_queries, n_keys))},
        "bias strided": {"attn_mask": np.asfortranarray(bias[:, ::-1, ::-1])},
        "lengths": {"key_lengths": lengths},
        "lengths bottom_right": {"key_lengths": lengths, "causal": "bottom_right", "window": (8, None)},
        "softcap": {"softcap": 1.5},
        "softcap bias": {"softcap": 0.7, "attn_mask": bias, "is_causal": True},
        "everything": {
            "causal": "bottom_right",
            "window": (20, None),
            "attn_mask": boolean[:, :1],
            "key_lengths": lengths,
            "softcap": 3.0,
            "scale": "log_n",
        },
    }


def machine_epsilon(*arrays: np.ndarray) -> float:
    """Of the arithmetic: float64 if any input is, else float32."""
    return float(oracle.arithmetic(*arrays).eps)


def expected(
    query: Any, key: Any, value: Any = None, names: Any = (), *, random: bool = True, **options: Any
) -> SimpleNamespace:
    """What the oracle of the fuzzer gives for a call, in extended precision, and the bound of each error.

    Sums over data that are `random` keep within 4 eps of their absolute terms, others within 64 eps.
    """
    drawn = {"arrays": {"query": {"profile": "normal" if random else "whole"}}}
    with np.errstate(all="ignore"):
        found = check_attend.expected({"q": query, "k": key}, value, options, names, drawn)
        if random and "score_variance" in found.numbers:
            _as_sharp_as_scores(found)
    return found


def _as_sharp_as_scores(found: SimpleNamespace) -> None:
    """Moments of scores around their own mean: the oracle allows for sums around the largest one."""
    (mean, of_mean), (variance, of_variance) = (
        found.numbers[name] for name in ("mean_score", "score_variance")
    )
    d, eps, sd = found.scores.d.max(-1, initial=0), found.form.eps, np.sqrt(variance)
    own = 2 * d * (1 + sd) + 2 * eps * np.abs(mean) + 8 * eps * (1 + sd)
    found.numbers["mean_score"] = mean, np.minimum(of_mean, own)
    own = 4 * d * (sd + variance) + 32 * eps * (1 + variance)
    found.numbers["score_variance"] = variance, np.minimum(of_variance, own)


def close(seen: np.ndarray, wanted: np.ndarray, limit: Any, name: str) -> None:
    """|seen - wanted| <= limit where both are finite; elsewhere they must be the same."""
    seen = np.asarray(seen).astype(np.float64)
    finite = np.isfinite(wanted)
    assert seen.shape == finite.shape, name
    if not finite.all():
        np.testing.assert_array_equal(seen[~finite], wanted[~finite], err_msg=name)
    with np.errstate(invalid="ignore"):
        excess = np.where(finite, np.abs(seen - wanted) - limit, 0)
    assert (excess <= 0).all(), (
        f"{name}: {int((~(excess <= 0)).sum())} of {seen.size} outside, by up to {np.nanmax(excess)}"
    )


def check(query: Any, key: Any, value: Any, *, random: bool = True, **options: Any) -> Any:
    """All public results for these inputs, within what `expected` allows; returns the AttentionStatistics."""
    names = at.normalizers.get(options.get("normalizer", "softmax")).statistics
    used, findings = [query, key, value], Findings()
    rows = at.attention_statistics(*used, statistics=names, **options)
    alone = at.attention_statistics(query, key, statistics=names, **options)
    truth = of_alone = expected(*used, names, random=random, **options)
    if machine_epsilon(query, key) != machine_epsilon(
        *used
    ):  # those without the value are computed in float32
        of_alone = expected(query, key, None, names, random=random, **options)
    found = [(name, getattr(rows, name), truth) for name in names]
    found += [(name, getattr(alone, name), of_alone) for name in names]
    if "entropy" in names:
        found.append(("entropy", at.attention_entropy(query, key, **options), of_alone))
    with np.errstate(all="ignore"):
        for name, seen, wanted in found:
            check_attend.check_statistic(name, seen, wanted, key, options, findings)
        for output in (rows.output, at.attention(*used, **options)):
            check_attend.check_output(truth, output, used, options, findings)
    assert findings.faults == []
    return rows
