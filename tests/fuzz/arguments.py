# SPDX-License-Identifier: BSD-3-Clause
"""Arguments that may be anything: only documented exceptions, each with a text of one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np

from .compare import Findings
from .draw import Case, Draw, generator

__all__ = ["check", "draw"]


class _Strange:
    """Supports nothing."""

    def __repr__(self) -> str:
        return "<strange>"


class _Raising:
    """An array that raises when it is asked for its numbers."""

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise ValueError("no numbers here")


def _array(rng: np.random.Generator) -> Any:
    shapes = [
        (),
        (0,),
        (1,),
        (3,),
        (2, 3),
        (3, 4),
        (4, 3),
        (2, 3, 4),
        (1, 2, 3, 4),
        (0, 4),
        (3, 0),
        (1, 1, 1, 1, 1),
    ]
    dtypes = ["f8", "f4", "f2", "i8", "u1", "?", "c16", "U3", "O", "M8[s]", ">f8", "V8"]
    shape = shapes[int(rng.integers(len(shapes)))]
    dtype = np.dtype(dtypes[int(rng.integers(len(dtypes)))])
    found = np.zeros(shape, dtype)
    if dtype.kind == "f":
        found = rng.standard_normal(shape).astype(dtype)
        if rng.random() < 0.3 and found.size:
            found = np.where(
                rng.random(shape) < 0.3, np.array([np.nan, np.inf, -np.inf])[rng.integers(3)], found
            ).astype(dtype)
    return found


_VALUES: tuple[Callable[[np.random.Generator], Any], ...] = (
    lambda r: None,
    lambda r: bool(r.integers(2)),
    lambda r: int(r.choice([0, 1, -1, 2, 7, 2**31, -(2**31)])),
    lambda r: [2**63, -(2**63) - 1, 2**64, 10**30, -(10**30)][int(r.integers(5))],
    lambda r: float(r.choice([0.0, -0.0, 1.5, -1.0, 1e308, 5e-324])),
    lambda r: float(r.choice([np.nan, np.inf, -np.inf])),
    lambda r: ["", "softmax", "bshd", "top_left", "é", "log_n", "x" * 300, "row", "l2", "elu"][
        int(r.integers(10))
    ],
    lambda r: [
        b"x",
        1j,
        object(),
        _Strange(),
        _Strange,
        lambda x: x,
        range(3),
        {1: 2},
        {1},
        slice(None),
        ...,
    ][int(r.integers(11))],
    lambda r: [
        [],
        [1],
        [1, 2],
        (1, 2),
        (None, 3),
        (-1, 2),
        (1.5, 2),
        ("a", "b"),
        [[1], [1, 2]],
        (2**70, 1),
        [None],
    ][int(r.integers(11))],
    lambda r: _Raising(),
    lambda r: [np.float64(1.5), np.int64(3), np.bool_(True), np.str_("head"), np.float32("nan")][
        int(r.integers(5))
    ],
    lambda r: [at.laws.Standard(), at.normalizers.TopK(3), at.normalizers.Sink([1.0, 2.0, 3.0, 4.0, 5.0])][
        int(r.integers(3))
    ],
    _array,
    _array,
    _array,
    _array,
)

_ATTENTION = (
    *("scale", "is_causal", "causal", "attn_mask", "window", "key_lengths", "document_ids", "distance_scale"),
    *("distance_bias", "enable_gqa", "softcap", "normalizer", "qk_norm", "layout", "dims", "num_threads"),
)
_FAMILY = ("is_causal", "causal", "enable_gqa", "layout", "num_threads")


def _q(r: np.random.Generator) -> Any:
    return r.standard_normal((2, 3, 4))


def _x(r: np.random.Generator) -> Any:
    return r.standard_normal((5, 4))


def _m(r: np.random.Generator) -> Any:
    return r.standard_normal((4, 4))


# Function, what is right for each of its positions, options.
_CALLS: dict[str, tuple[Any, tuple[Any, ...], tuple[str, ...]]] = {
    "attention": (lambda: at.attention, (_q, _q, _q), (*_ATTENTION, "out")),
    "attention_statistics": (
        lambda: at.attention_statistics,
        (_q, _q, _q),
        (*_ATTENTION, "out", "statistics"),
    ),
    "attention_entropy": (lambda: at.attention_entropy, (_q, _q), _ATTENTION),
    "attention_weights": (lambda: at.attention_weights, (_q, _q), (*_ATTENTION, "max_bytes")),
    "entropy_curve": (lambda: at.entropy_curve, (_q, _q, lambda r: [0.5, 1.0]), _ATTENTION[1:]),
    "solve_scale": (
        lambda: at.solve_scale,
        (_q, _q, lambda r: 0.5),
        (
            "per",
            "tolerance",
            "is_causal",
            "causal",
            "attn_mask",
            "window",
            "key_lengths",
            "document_ids",
            "enable_gqa",
            "softcap",
            "normalizer",
            "layout",
            "dims",
            "num_threads",
            "on_infeasible",
        ),
    ),
    "attention_state": (
        lambda: at.attention_state,
        (_q, _q, _q),
        tuple(n for n in _ATTENTION if not n.startswith("distance")),
    ),
    "merge_states": (lambda: at.merge_states, (lambda r: [],), ()),
    "linear_attention": (lambda: at.variants.linear_attention, (_q, _q, _q), ("feature_map", *_FAMILY)),
    "efficient_attention": (
        lambda: at.variants.efficient_attention,
        (_q, _q, _q),
        ("normalization", "scale", *_FAMILY),
    ),
    "performer_attention": (
        lambda: at.variants.performer_attention,
        (_q, _q, _q),
        ("features", "projection", "rng", "scale", *_FAMILY),
    ),
    "cosformer_attention": (lambda: at.variants.cosformer_attention, (_q, _q, _q), ("max_length", *_FAMILY)),
    "linformer_attention": (
        lambda: at.variants.linformer_attention,
        (_q, _q, _q, lambda r: r.standard_normal((2, 3))),
        ("value_projection", "scale", *_FAMILY),
    ),
    "local_global_attention": (
        lambda: at.variants.local_global_attention,
        (_q, _q, _q),
        ("radius", "global_tokens", "scale", *_FAMILY),
    ),
    "ssd": (lambda: at.variants.ssd, (_q, _q, _q, lambda r: -np.ones(3)), ("enable_gqa", "layout")),
    "kattention": (lambda: at.variants.kattention, (_x, _m, _m), ("bias", "beta", "normalizer", "attn_mask")),
    "kattention_heads": (
        lambda: at.variants.kattention_heads,
        (_q, _q, _q),
        ("bias", "scale", "normalizer", "qk_norm"),
    ),
    "differential_attention": (
        lambda: at.variants.differential_attention,
        (_q, _q, _q, _q, _q),
        ("lam", "scale", "layout"),
    ),
    "hybrid": (
        lambda: at.variants.hybrid,
        (_q, _q, _q, lambda r: ["exact", "linear"]),
        ("is_causal", "causal", "enable_gqa", "layout"),
    ),
    "relay_attention": (lambda: at.variants.relay_attention, (_x, _m), ("value", "num_threads")),
    "apply_rotary": (
        lambda: at.variants.apply_rotary,
        (_x,),
        ("positions", "base", "frequencies", "rotary_dim", "interleaved"),
    ),
    "rotary_score": (
        lambda: at.variants.rotary_score,
        (lambda r: r.standard_normal(4), lambda r: r.standard_normal(4), lambda r: np.arange(3)),
        ("base", "frequencies", "rotary_dim", "interleaved"),
    ),
    "attention_jacobian_norms": (
        lambda: at.variants.attention_jacobian_norms,
        (_x, _m, _m),
        ("v_weight", "scale", "is_causal", "attn_mask", "rows", "block"),
    ),
    "positive_features": (lambda: at.variants.positive_features, (_x, _m), ("scale",)),
    "Sink": (lambda: at.normalizers.Sink, (lambda r: 1.0,), ()),
    "SoftmaxN": (lambda: at.normalizers.SoftmaxN, (lambda r: 1.0,), ()),
    "Entmax": (lambda: at.normalizers.Entmax, (lambda r: 1.5,), ()),
    "TopK": (lambda: at.normalizers.TopK, (lambda r: 2,), ()),
    "Sigmoid": (lambda: at.normalizers.Sigmoid, (lambda r: 1.0,), ()),
    "ReLU": (lambda: at.normalizers.ReLU, (lambda r: "n",), ()),
    "Softpick": (lambda: at.normalizers.Softpick, (lambda r: 0.0,), ()),
    "normalizers.get": (lambda: at.normalizers.get, (lambda r: "softmax",), ()),
    "laws.get": (lambda: at.laws.get, (lambda r: "log_n",), ()),
    "set_num_threads": (lambda: at.set_num_threads, (lambda r: 2,), ()),
}
_REQUIRED = {
    "cosformer_attention": {"max_length": 64},
    "differential_attention": {"lam": 0.5},
    "local_global_attention": {"radius": 1},
}
# Numbers of rows, blocks or threads: a huge one is legal, and is the caller's own memory and time.
_COSTLY = {"features", "num_threads", "block"}


def draw(d: Draw) -> Case:
    name = d.pick(tuple(_CALLS))
    _, positions, options = _CALLS[name]
    wrong = [i for i in range(len(positions)) if d.chance(0.25)]
    chosen = [option for option in options if d.chance(min(0.2, 2 / (len(options) + 1)))]
    if not wrong and not chosen:
        wrong = [d.integer(0, len(positions) - 1)]
    return {"function": name, "wrong": wrong, "options": chosen}


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    get, positions, _ = _CALLS[case["function"]]
    given = [_value(rng) if i in case["wrong"] else right(rng) for i, right in enumerate(positions)]
    options = {**_REQUIRED.get(case["function"], {})}
    for name in case["options"]:
        value = _value(rng)
        if name in _COSTLY and isinstance(value, int | np.integer) and abs(int(value)) > 8:
            value = 3
        options[name] = value
    arrays = [x for x in (*given, *options.values()) if isinstance(x, np.ndarray) and x.dtype != object]
    before = [x.tobytes() for x in arrays if x is not options.get("out")]
    threads = at.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            expected = ("attn_mask is float and holds 0 and 1", "no scale gives", "rows of the result are")
            warnings.filterwarnings("ignore", "|".join(expected), UserWarning)
            get()(*given, **options)
    except (TypeError, ValueError, MemoryError) as error:
        _check_text(error, given, options, findings)
    finally:
        if case["function"] == "set_num_threads":
            at.set_num_threads(threads)
    if [x.tobytes() for x in arrays if x is not options.get("out")] != before:
        findings.fault("an argument was written")


def _value(rng: np.random.Generator) -> Any:
    return _VALUES[int(rng.integers(len(_VALUES)))](rng)


def _check_text(error: BaseException, given: Any, options: Any, findings: Findings) -> None:
    """One line that says something, and that is of this package: no text of NumPy's or pybind11's inside."""
    text = str(error)
    arguments = f"{[_short(x) for x in given]} { ({n: _short(x) for n, x in options.items()}) }"
    if "no numbers here" in text or "cannot be read as an array" in text:
        return  # what the argument itself, or NumPy about a named argument, has to say
    if not text.strip():
        findings.fault(f"{type(error).__name__} without a text for {arguments}")
    elif "\n" in text.strip():
        findings.fault(f"{type(error).__name__} of several lines for {arguments}: {text[:200]!r}")
    elif len(text) > 1000:
        findings.fault(f"{type(error).__name__} of {len(text)} characters for {arguments}")
    else:
        for inner in _INNER:
            if inner in text:
                findings.fault(f"{type(error).__name__} from inside for {arguments}: {text[:200]!r}")
                return


# What NumPy, Python and pybind11 say where a check of this package did not speak first.
_INNER = (
    "incompatible function arguments", "could not be broadcast together", "ufunc '", "axis remapping",
    "cannot reshape", "zero-size array to reduction", "object is not subscriptable", "object is not iterable",
    "not supported between instances", "unsupported operand", "truth value of an array",
    "matmul: Input operand",
    "setting an array element", "has no attribute", "Cannot interpret", "only 0-dimensional",
    "only length-1 arrays", "_core", "missing 1 required",
)  # fmt: skip


def _short(x: Any) -> str:
    if isinstance(x, np.ndarray):
        return f"<{x.dtype}{x.shape}>"
    return repr(x)[:80]
