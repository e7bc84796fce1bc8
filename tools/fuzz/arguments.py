# SPDX-License-Identifier: BSD-3-Clause
"""Arguments that may be anything: only documented exceptions, each with a text of one line."""

from __future__ import annotations

import inspect
import warnings
from operator import attrgetter
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
    """An array that raises when its numbers are read."""

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise ValueError("no numbers here")


def _array(rng: np.random.Generator) -> Any:
    shapes = [(), (0,), (1,), (3,), (2, 3), (3, 4), (4, 3), (2, 3, 4), (1, 2, 3, 4), (0, 4), (3, 0), (1,) * 5]
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


#: Values by their kinds, of which each is drawn as often; the arrays more often.
_KINDS: tuple[tuple[Any, ...], ...] = (
    (None,),
    (False, True),
    (0, 1, -1, 2, 7, 2**31, -(2**31)),
    (2**63, -(2**63) - 1, 2**64, 10**30, -(10**30)),
    (0.0, -0.0, 1.5, -1.0, 1e308, 5e-324),
    (np.nan, np.inf, -np.inf),
    ("", "softmax", "bshd", "top_left", "é", "log_n", "x" * 300, "row", "l2", "elu"),
    (b"x", 1j, object(), _Strange(), _Strange, abs, range(3), {1: 2}, {1}, slice(None), ...),
    ([], [1], [1, 2], (1, 2), (None, 3), (-1, 2), (1.5, 2), ("a", "b"), [[1], [1, 2]], (2**70, 1), [None]),
    (_Raising(),),
    (np.float64(1.5), np.int64(3), np.bool_(True), np.str_("head"), np.float32("nan")),
    (at.laws.Standard(), at.normalizers.TopK(3), at.normalizers.Sink([1.0, 2.0, 3.0, 4.0, 5.0])),
    *((),) * 4,
)


def _q(r: np.random.Generator) -> Any:
    return r.standard_normal((2, 3, 4))


def _x(r: np.random.Generator) -> Any:
    return r.standard_normal((5, 4))


def _m(r: np.random.Generator) -> Any:
    return r.standard_normal((4, 4))


def _row(r: np.random.Generator) -> Any:
    return r.standard_normal(4)


# Functions by their names, and what is right for each of their positions; options are in their signatures.
_CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("attention", "attention_statistics", "attention_state"), (_q, _q, _q)),
    **dict.fromkeys(("attention_entropy", "attention_weights", "attention_received"), (_q, _q)),
    "attention_divergence": (_q, _q, _q, _q),
    "entropy_curve": (_q, _q, lambda r: [0.5, 1.0]),
    "solve_scale": (_q, _q, lambda r: 0.5),
    "merge_states": (lambda r: [],),
    **{
        f"variants.{name}_attention": (_q, _q, _q)
        for name in ("linear", "efficient", "performer", "cosformer", "local_global")
    },
    "variants.linformer_attention": (_q, _q, _q, lambda r: r.standard_normal((2, 3))),
    "variants.ssd": (_q, _q, _q, lambda r: -np.ones(3)),
    "variants.kattention": (_x, _m, _m),
    "variants.kattention_heads": (_q, _q, _q),
    "variants.differential_attention": (_q, _q, _q, _q, _q),
    "variants.hybrid": (_q, _q, _q, lambda r: ["exact", "linear"]),
    "variants.relay_attention": (_x, _m),
    "variants.apply_rotary": (_x,),
    "variants.rotary_score": (_row, _row, lambda r: np.arange(3)),
    "variants.attention_jacobian_norms": (_x, _m, _m),
    "variants.positive_features": (_x, _m),
    "normalizers.Sink": (lambda r: 1.0,),
    "normalizers.SoftmaxN": (lambda r: 1.0,),
    "normalizers.Entmax": (lambda r: 1.5,),
    "normalizers.TopK": (lambda r: 2,),
    "normalizers.Sigmoid": (lambda r: 1.0,),
    "normalizers.ReLU": (lambda r: "n",),
    "normalizers.Softpick": (lambda r: 0.0,),
    "normalizers.get": (lambda r: "softmax",),
    "laws.get": (lambda r: "log_n",),
    "set_num_threads": (lambda r: 2,),
}
_REQUIRED = {
    "variants.cosformer_attention": {"max_length": 64},
    "variants.differential_attention": {"lam": 0.5},
    "variants.local_global_attention": {"radius": 1},
}
# Numbers of rows, blocks or threads: a huge one is legal, and is the caller's own memory and time.
_COSTLY = {"features", "num_threads", "block"}


def draw(d: Draw) -> Case:
    name = d.pick(tuple(_CALLS))
    positions = _CALLS[name]
    parameters = list(inspect.signature(attrgetter(name)(at)).parameters.values())[len(positions) :]
    options = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    wrong = [i for i in range(len(positions)) if d.chance(0.25)]
    chosen = [option for option in options if d.chance(min(0.2, 2 / (len(options) + 1)))]
    if not wrong and not chosen:
        wrong = [d.integer(0, len(positions) - 1)]
    return {"function": name, "wrong": wrong, "options": chosen}


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    positions = enumerate(_CALLS[case["function"]])
    given = [_value(rng) if i in case["wrong"] else right(rng) for i, right in positions]
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
            attrgetter(case["function"])(at)(*given, **options)
    except (TypeError, ValueError, MemoryError) as error:
        _check_text(error, given, options, findings)
    finally:
        if case["function"] == "set_num_threads":
            at.set_num_threads(threads)
    if [x.tobytes() for x in arrays if x is not options.get("out")] != before:
        findings.fault("an argument was written")


def _value(rng: np.random.Generator) -> Any:
    kind = _KINDS[int(rng.integers(len(_KINDS)))]
    return kind[int(rng.integers(len(kind)))] if kind else _array(rng)


def _check_text(error: BaseException, given: Any, options: Any, findings: Findings) -> None:
    """Check for a single line of this package, without text of NumPy or pybind11."""
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


# Messages of NumPy, Python and pybind11 where a check of this package is missing.
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
