# SPDX-License-Identifier: BSD-3-Clause
"""Inputs, masks and error bounds that the tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import _core as compiled  # noqa: F401 - other tests take it from here
from attnscale import reference

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

#: Statistics with gradients.
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


class _Kept:
    """The latest results of a function of the twin, by the identity of what it was given."""

    def __init__(self, function: Callable[..., Any], most: int) -> None:
        self._function, self._most = function, most
        self._results: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, *given: Any, **options: Any) -> Any:
        key = _identity((given, tuple(sorted(options.items()))))
        if key not in self._results:
            if len(self._results) == self._most:
                del self._results[next(iter(self._results))]
            # With what was given: no other array has its identity while it lives.
            self._results[key] = (given, options), self._function(*given, **options)
        return self._results[key][1]


def _identity(given: Any) -> Any:
    if isinstance(given, tuple):
        return tuple(map(_identity, given))
    return repr(given) if given is None or type(given) in (str, bool, int, float) else id(given)


@contextmanager
def remembering() -> Iterator[None]:
    """Inside, the twin does not compute again what it knows of the same arrays, which must not be written."""
    if isinstance(reference.scores, _Kept):
        yield
        return
    modules = (reference, reference._attention, reference._gradients, reference._solve)
    most = {"dot_products": 2, "visible": 4, "distances": 2, "score_parts": 1, "scores": 1}
    plain = {name: getattr(reference, name) for name in most}
    places = [(module, name) for module in modules for name in most if hasattr(module, name)]
    kept = {name: _Kept(function, most[name]) for name, function in plain.items()}
    _sizes.append(_Kept(_absolute_products, 1))
    try:
        for module, name in places:
            setattr(module, name, kept[name])
        yield
    finally:
        for module, name in places:
            setattr(module, name, plain[name])
        _sizes.pop()


def closed_schema(schema: Any) -> Any:
    """Copy of a JSON Schema that allows no further fields, so that a new field needs one."""
    if isinstance(schema, list):
        return [closed_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed_schema(value) for key, value in schema.items()}
    return {**found, "additionalProperties": False} if "properties" in schema else found


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


def same(found: Any, wanted: Any, names: Iterable[str], **tolerance: float) -> None:
    """Compare attributes of these names: to the last bit, or within a tolerance (rtol, atol)."""
    compare: Any = np.testing.assert_allclose if tolerance else np.testing.assert_array_equal
    for name in names:
        compare(getattr(found, name), getattr(wanted, name), **tolerance, err_msg=name)


def same_bits(one: Any, two: Any, names: Iterable[str] = ("query", "key", "value", "scale")) -> None:
    """Gradients of these names are the same to the last bit, signs of zeros included, or None in both."""
    for name in names:
        a, b = getattr(one, name), getattr(two, name)
        assert (a is None and b is None) or a.tobytes() == b.tobytes(), name


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's type of that name; bfloat16 is skipped where ml_dtypes is missing."""
    if name == "bfloat16":
        import pytest

        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


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
    """Machine epsilon of the arithmetic: float64 if any input is, else float32."""
    wide = any(array.dtype == np.float64 for array in arrays)
    return float(np.finfo(np.float64 if wide else np.float32).eps)


def weight_rounding(*arrays: np.ndarray | None) -> float:
    """What the rounding of a weight to bfloat16 is of it, where a level does so: all arrays are bfloat16."""
    own = at.simd_level().endswith("_bf16")
    return 2.0**-8 if own and all(x is None or x.dtype.name == "bfloat16" for x in arrays) else 0.0


def bounds(query: Any, key: Any, value: Any, truth: Any, **options: Any) -> SimpleNamespace:
    """Largest error that each result may have against the float64 twin `truth`.

    Rounding a score costs 2 eps (1 + sum |scale q k|), with bias and soft-cap likewise; call it d.
    What d does to each result follows from its derivatives, e.g. d entropy / d s_j = -p_j (ln p_j +
    entropy), whose absolute values sum to at most 2 entropy.
    """
    eps = machine_epsilon(query, key, *([] if value is None else [value]))
    return _bounds(eps, _score_sizes(query, key, **options), truth)


def _bounds(eps: float, size: np.ndarray, truth: Any) -> SimpleNamespace:
    d = np.where(truth.n_visible > 0, 2 * eps * (1 + size), 0)
    sd = np.sqrt(truth.score_variance)
    entropy_floor = 2e-6 if eps > 1e-10 else 1e-12
    return SimpleNamespace(
        lse=d + 2 * eps * np.abs(truth.lse) + 8 * eps,
        entropy=entropy_floor + 2 * truth.entropy * d + 2 * eps * truth.entropy,
        max_score=d + eps * np.abs(truth.max_score),
        mean_score=d * (1 + sd) + 2 * eps * np.abs(truth.mean_score) + 8 * eps * (1 + sd),
        score_variance=d * 2 * (sd + truth.score_variance) + 32 * eps * (1 + truth.score_variance),
        concentration=(4 * d + 16 * eps) * truth.concentration,
        max_weight=(2 * d + 16 * eps) * truth.max_weight,
        renyi2=4 * d + 16 * eps + 2 * eps * truth.renyi2,
        min_score=d + eps * np.abs(truth.min_score),
        relative_output=4 * eps + 2 * d,
    )


def check_statistics(result: Any, truth: Any, limits: Any) -> None:
    """Every statistic of `result` within its bound; NaN, infinities and counts exactly."""
    for name in STATISTICS:
        seen, wanted = getattr(result, name, None), getattr(truth, name)
        if seen is None:
            continue
        assert seen.shape == wanted.shape, name
        if name in ("n_visible", "argmax"):
            assert seen.dtype == np.int64, name
            if name == "n_visible":
                np.testing.assert_array_equal(seen, wanted, err_msg=name)
            continue
        close(seen, wanted, getattr(limits, name), name)


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


def check(query: Any, key: Any, value: Any, *, data_factor: float = 1.0, **options: Any) -> Any:
    """All public results for these inputs against the twin; returns the AttentionStatistics.

    `data_factor` multiplies the 4 eps of section "error" for data that is not random.
    """
    call = {name: each for name, each in options.items() if name != "num_threads"}
    eps, eps_alone = machine_epsilon(query, key, value), machine_epsilon(query, key)
    rows = at.attention_statistics(query, key, value, statistics=STATISTICS, **options)
    with remembering():
        truth = reference.attention_statistics(query, key, value, **call)
        size = _score_sizes(query, key, **call)
        limits = _bounds(eps, size, truth)
        check_statistics(rows, truth, limits)
        _check_argmax(rows, query, key, limits, **call)
    alone = at.attention_statistics(query, key, statistics=STATISTICS, **options)
    limits_alone = limits if eps_alone == eps else _bounds(eps_alone, size, truth)
    check_statistics(alone, truth, limits_alone)
    close(
        at.attention_entropy(query, key, **options), truth.entropy, limits_alone.entropy, "attention_entropy"
    )
    share = limits.relative_output + (data_factor - 1) * 4 * eps + weight_rounding(query, key, value)
    limit = share[..., None] * _absolute_output(truth.p, query, value, **call)
    rounding = 0.5 * float(finfo(rows.output.dtype).eps) if rows.output.dtype.itemsize == 2 else 0.0
    if options.get("layout") == "bshd" and query.ndim > 2:
        limit = limit.swapaxes(-3, -2)
    limit = limit + rounding * np.abs(truth.output) + float(finfo(rows.output.dtype).smallest_subnormal)
    close(rows.output, truth.output, limit, "output")
    close(at.attention(query, key, value, **options), truth.output, limit, "attention")
    return rows


def finfo(dtype: np.dtype[Any]) -> Any:
    """np.finfo, for bfloat16 too."""
    if dtype.name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.finfo(dtype)
    return np.finfo(dtype)


def _score_sizes(query: Any, key: Any, **options: Any) -> np.ndarray:
    """max_j of sum_c |scale q_c k_c| + |bias| + softcap over the visible keys of each row."""
    form = {name: options[name] for name in ("enable_gqa", "layout") if name in options}
    products = (_sizes[-1] if _sizes else _absolute_products)(query, key, **form)
    masks = {
        name: options[name]
        for name in ("is_causal", "causal", "attn_mask", "window", "key_lengths", "document_ids")
        if name in options
    }
    seen = reference.visible(products.shape, **masks)
    scale = np.abs(reference._attention._row_scale(options.get("scale"), query.shape[-1], seen, masks))
    size = scale * products
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != bool:
        size = size + np.abs(np.where(np.isneginf(mask), 0, mask.astype(np.float64)))
    size = np.where(seen & np.isfinite(size), size, 0).max(-1, initial=0)
    return size + (options.get("softcap") or 0)


def _absolute_products(query: Any, key: Any, **form: Any) -> np.ndarray:
    """sum_c |q_c k_c| of every pair."""
    return reference.dot_products(np.abs(query), np.abs(key), **form)


_sizes: list[_Kept] = []  # one while `remembering`


def _absolute_output(
    p: np.ndarray, query: Any, value: Any, *, enable_gqa: bool = False, layout: str = "bhsd", **_: Any
) -> np.ndarray:
    """sum p |v| of each element, in the order (..., heads, n_queries, value_dim).

    Values that are not finite count 0: where they are seen the output is not finite, and has no limit.
    """
    size = np.abs(reference._attention._heads_first(value, layout))
    size = np.where(np.isfinite(size), size, 0)
    return p @ reference._attention._repeat_heads(
        size, reference._attention._heads_first(query, layout), enable_gqa=enable_gqa
    )


def _check_argmax(rows: Any, query: Any, key: Any, limits: Any, **options: Any) -> None:
    """The score at argmax is the largest one, to rounding; -1 in rows without keys."""
    score, _ = reference.scores(query, key, **options)
    empty = rows.n_visible == 0
    np.testing.assert_array_equal(rows.argmax[empty], -1)
    usable = ~empty & np.isfinite(rows.max_score.astype(np.float64))
    assert ((rows.argmax >= 0) & (rows.argmax < max(score.shape[-1], 1)))[usable].all()
    if score.shape[-1]:
        there = np.take_along_axis(score, np.maximum(rows.argmax, 0)[..., None], -1)[..., 0]
        top = score.max(-1)
        assert (there[usable] >= (top - 2 * limits.max_score)[usable]).all()


def functions_entered(call: Callable[[], Any], counted: Callable[[Any, str], bool]) -> int:
    """Number of profiled events that count, in a call after one that has imported its modules."""
    entered = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal entered
        entered += counted(frame, event)

    call()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered
