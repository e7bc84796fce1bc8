# SPDX-License-Identifier: BSD-3-Clause
"""Faults planted into the package: the fuzzer must find each within a few hundred calls of its subject."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import attnscale as at
import numpy as np
from attnscale._call.rows import shows

__all__ = ["MUTANTS", "Mutant"]

Array = Any


class Mutant(NamedTuple):
    """A function that is replaced, by one made of the right one, and the subject whose calls must show it."""

    name: str
    place: Any
    attribute: str
    change: Callable[[Any], Any]
    subject: str
    calls: int = 400


def _of_result(change: Callable[..., Any]) -> Callable[[Any], Any]:
    """change(result, arguments, options) in place of the result; an `out` keeps being the result."""

    def make(right: Any) -> Any:
        def wrong(*given: Any, **options: Any) -> Any:
            result = change(right(*given, **options), given, options)
            out = options.get("out")
            if out is not None and isinstance(result, np.ndarray):
                out[...] = result
                return out
            return result

        return wrong

    return make


def _of_options(change: Callable[[Any, dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """change(arguments, options) before the call; returns the arguments."""

    def make(right: Any) -> Any:
        def wrong(*given: Any, **options: Any) -> Any:
            given = change(list(given), options) or given
            return right(*given, **options)

        return wrong

    return make


def _row(name: str, change: Callable[[Array, Any, Any], Array]) -> Callable[[Any], Any]:
    """A result with one field changed."""

    def changed(result: Any, given: Any, options: Any) -> Any:
        seen = getattr(result, name, None)
        if seen is None:
            return result
        changes = {name: change(seen, given, options)}
        # Rows of statistics have the fields that were asked for, and dataclasses.replace wants all.
        is_rows = isinstance(result, at.AttentionStatistics)
        return result._replace(**changes) if is_rows else dataclasses.replace(result, **changes)

    return _of_result(changed)


def _beyond(x: Array, given: Any, options: Any) -> Array:
    """Off by 6400 roundings, 100 times the bound for any data."""
    double = any(np.asarray(a).dtype.itemsize == 8 for a in given)
    return x * x.dtype.type(1 + 6400 * (2.0**-52 if double else 2.0**-23))


def _neighbour(x: Array, given: Any, options: Any) -> Array:
    """NaN spreads to the row below."""
    found = np.array(x)
    if found.shape[-2] > 1:
        found[..., 1:, :] = np.where(np.isnan(found[..., :-1, :]), found[..., :-1, :], found[..., 1:, :])
    return found


def _last_of_equal(x: Array, given: Any, options: Any) -> Array:
    """The last of equal keys instead of the first."""
    key = np.asarray(given[1])
    if key.shape[-2] < 2 or options.get("layout") == "bshd" or options.get("enable_gqa") or not x.size:
        return x
    same = (key[..., :, None, :] == key[..., None, :, :]).all(-1)
    last = key.shape[-2] - 1 - same[..., ::-1].argmax(-1)
    last = np.broadcast_to(last, (*x.shape[:-1], last.shape[-1]))
    return np.where(x >= 0, np.take_along_axis(last, np.maximum(x, 0), -1), x)


def _other_bits(result: Any, given: Any, options: Any) -> Any:
    if options.get("num_threads") != 2 or not result.size:
        return result
    found = np.array(result)
    found.reshape(-1)[0] += found.dtype.type(1e-3)
    return found


def _write(given: list[Any], options: dict[str, Any]) -> None:
    x = given[0]
    if isinstance(x, np.ndarray) and x.flags.writeable and x.size:
        x[(0,) * x.ndim] += x.dtype.type(1)


def _without(*names: str) -> Callable[[Any], Any]:
    def change(given: list[Any], options: dict[str, Any]) -> None:
        for name in names:
            options.pop(name, None)

    return _of_options(change)


def _one_more(given: list[Any], options: dict[str, Any]) -> None:
    """Causal rows see the key after their own."""
    if options.get("is_causal") and "window" not in options:
        options.update(is_causal=False, window=(None, 1))


def _one_less(given: list[Any], options: dict[str, Any]) -> None:
    """The last key is not counted."""
    axis = -3 if options.get("layout") == "bshd" and given[1].ndim > 2 else -2
    if given[1].shape[axis] > 1 and "key_lengths" not in options and "causal" not in options:
        options["key_lengths"] = given[1].shape[axis] - 1


def _other_heads(given: list[Any], options: dict[str, Any]) -> list[Any]:
    axis = -2 if options.get("layout") == "bshd" else -3
    if options.get("enable_gqa") and given[1].ndim > 2:
        given[1:] = [np.roll(x, 1, axis) if i < 2 else x for i, x in enumerate(given[1:])]
    return given


def _coarse_scale(given: list[Any], options: dict[str, Any]) -> None:
    if isinstance(options.get("scale"), np.ndarray):
        options["scale"] = options["scale"].astype(np.float16).astype(np.float64)


def _unmeasured(given: list[Any], options: dict[str, Any]) -> None:
    if options.get("scale") == "adaptive_temperature":
        del options["scale"]


def _no_far_keys(x: Array, given: Any, options: Any) -> Array:
    """The output of sums that have all vanished."""
    norms = np.square(np.asarray(given[1]).astype(np.float64)).sum(-1)
    return np.zeros_like(x) if norms.size and norms.max() > 1e4 else x


def _plain_softmax(right: Any) -> Any:
    """Entropy without the sink."""

    def wrong(*given: Any, **options: Any) -> Any:
        rows = right(*given, **options)
        rule = at.normalizers.get(options.get("normalizer", "softmax"))
        if not isinstance(rule, at.normalizers.Sink) or not hasattr(rows, "entropy"):
            return rows
        plain = right(*given, **{**options, "normalizer": "softmax", "statistics": ("entropy",), "out": None})
        return rows._replace(entropy=plain.entropy)

    return wrong


def _unweighted(right: Any) -> Any:
    """States merge with equal weights."""

    def wrong(states: Any) -> Any:
        states = list(states)
        merged = right(states)
        mean = sum(s.output.astype(np.float64) for s in states) / len(states)
        return dataclasses.replace(merged, output=mean.astype(merged.output.dtype))

    return wrong


def _forgetful(right: Any) -> Any:
    """A second update is lost."""

    def wrong(self: Any, *given: Any) -> Any:
        return self if self.n_keys else right(self, *given)

    return wrong


def _no_text(right: Any) -> Any:
    def wrong(*given: Any, **options: Any) -> Any:
        try:
            return right(*given, **options)
        except ValueError:
            raise ValueError("") from None

    return wrong


def _other_kind(right: Any) -> Any:
    def wrong(*given: Any, **options: Any) -> Any:
        try:
            return right(*given, **options)
        except TypeError as error:
            raise KeyError(str(error)) from None

    return wrong


def _heads_not_summed(x: Array, given: Any, options: Any) -> Array:
    """Half the gradients of shared key heads, as if query heads were left out."""
    shares = options.get("enable_gqa") and given[0].shape != given[1].shape
    return x * x.dtype.type(0.5) if shares else x


def _hidden_too(x: Array, given: Any, options: Any) -> Array:
    """A gradient of a float mask where it hides the key."""
    hides = ~shows(options["attn_mask"])
    return np.where(hides, x.dtype.type(1e-3), x)


def _one_further(x: Array, given: Any, options: Any) -> Array:
    return np.roll(x, 1, axis=-1)


def _doubled(result: Any, given: Any, options: Any) -> Any:
    """Parameters of laws."""
    if not result.law:
        return result
    return dataclasses.replace(result, law={name: 2 * x + 1e-3 for name, x in result.law.items()})


def _one_more_kept(given: list[Any], options: dict[str, Any]) -> None:
    rule = options.get("normalizer")
    if isinstance(rule, at.normalizers.TopK):
        options["normalizer"] = at.normalizers.TopK(rule.k + 1)


_V = at.variants
_G = (at, "attention_gradients")
MUTANTS = (
    Mutant("errors 100 times the bound", at, "attention", _of_result(_beyond), "attend"),
    Mutant("NaN in the row below", at, "attention", _of_result(_neighbour), "attend", 800),
    Mutant(
        "NaN becomes 0",
        at,
        "attention",
        _of_result(lambda x, g, o: np.where(np.isnan(x), x.dtype.type(0), x)),
        "attend",
    ),
    Mutant(
        "argmax is the last of equal keys",
        at,
        "attention_statistics",
        _row("argmax", _last_of_equal),
        "attend",
        800,
    ),
    Mutant("other bits with two threads", at, "attention", _of_result(_other_bits), "attend"),
    Mutant("an input is written", at, "attention", _of_options(_write), "attend"),
    Mutant("causal sees one key more", at, "attention", _of_options(_one_more), "attend"),
    Mutant("the last key is missed", at, "attention", _of_options(_one_less), "attend"),
    Mutant("key_lengths are ignored", at, "attention", _without("key_lengths"), "attend"),
    Mutant("windows are ignored", at, "attention_statistics", _without("window"), "attend"),
    Mutant("documents are ignored", at, "attention", _without("document_ids"), "attend"),
    Mutant("softcap is ignored", at, "attention", _without("softcap"), "attend"),
    Mutant("a table of distances is ignored", at, "attention", _without("distance_bias"), "attend"),
    Mutant("groups of heads are mixed up", at, "attention", _of_options(_other_heads), "attend"),
    Mutant("an array of scales is rounded to 16 bits", at, "attention", _of_options(_coarse_scale), "attend"),
    Mutant("the entropy leaves out the sink", at, "attention_statistics", _plain_softmax, "attend", 800),
    Mutant(
        "another type comes back",
        at,
        "attention_entropy",
        _of_result(lambda x, g, o: x.astype(np.float16)),
        "attend",
    ),
    Mutant(
        "one key too many is counted",
        at,
        "attention_statistics",
        _row("n_visible", lambda n, g, o: n + (n > 7)),
        "attend",
    ),
    Mutant(
        "a key without weight is supported",
        at,
        "attention_statistics",
        _row("support", lambda n, g, o: n + (n == 3)),
        "attend",
        800,
    ),
    Mutant("a law that measures rows is ignored", at, "attention", _of_options(_unmeasured), "attend", 800),
    Mutant(
        "lse is off by 1e-3",
        at,
        "attention_statistics",
        _row("lse", lambda x, g, o: x + x.dtype.type(1e-3)),
        "attend",
    ),
    Mutant(
        "the variance is not centred",
        at,
        "entropy_curve",
        lambda right: (
            lambda *g, **o: (lambda c: dataclasses.replace(c, variance=c.variance + c.mean**2))(
                right(*g, **o)
            )
        ),
        "curve",
    ),
    Mutant(
        "the mean of a curve is off by 6400 roundings", at, "entropy_curve", _row("mean", _beyond), "curve"
    ),
    Mutant("the curve leaves out the bias", at, "entropy_curve", _without("distance_bias"), "curve"),
    Mutant(
        "the scale that is found is off by 0.1 %",
        at,
        "solve_scale",
        _row("scale", lambda x, g, o: x * 1.001),
        "solve",
    ),
    Mutant(
        "nothing converges", at, "solve_scale", _row("converged", lambda x, g, o: np.zeros_like(x)), "solve"
    ),
    Mutant("states merge without weights", at, "merge_states", _unweighted, "state"),
    Mutant("linear attention is not causal", _V, "linear_attention", _without("is_causal"), "linear"),
    Mutant(
        "keys of large norms have no weight", _V, "performer_attention", _of_result(_no_far_keys), "linear"
    ),
    Mutant("a state loses its second update", _V.State, "update", _forgetful, "linear"),
    Mutant(
        "cosFormer is aligned at the top",
        _V,
        "cosformer_attention",
        _of_options(lambda g, o: o.update(causal="top_left") if "causal" in o else None),
        "linear",
    ),
    Mutant(
        "ssd without its decay",
        _V,
        "ssd",
        lambda right: lambda q, k, v, a, **o: right(q, k, v, 0 * a, **o),
        "ssd",
    ),
    Mutant("kattention without its bias", _V, "kattention_heads", _without("bias"), "kattention"),
    Mutant(
        "the radius is one less",
        _V,
        "local_global_attention",
        _of_options(lambda g, o: o.update(radius=max(o["radius"] - 1, 0))),
        "family",
        800,
    ),
    Mutant("gradients 100 times the bound", *_G, _row("key", _beyond), "gradients"),
    Mutant("gradients without that of the entropy", *_G, _without("grad_entropy"), "gradients"),
    Mutant("gradients without the soft-cap", *_G, _without("softcap"), "gradients", 800),
    Mutant("gradients without the norm of rows", *_G, _without("qk_norm"), "gradients", 800),
    Mutant("shared heads are not summed", *_G, _row("value", _heads_not_summed), "gradients"),
    Mutant("a hidden key gets a gradient", *_G, _row("attn_mask", _hidden_too), "gradients"),
    Mutant("a table's gradient is one off", *_G, _row("distance_bias", _one_further), "gradients", 800),
    Mutant("the sink's gradient has the other sign", *_G, _row("sink", lambda x, g, o: -x), "gradients"),
    Mutant("the bias's gradient is 1 % off", *_G, _row("bias", lambda x, g, o: 1.01 * x), "gradients"),
    Mutant("alpha's gradient is 1 % off", *_G, _row("alpha", lambda x, g, o: 1.01 * x), "gradients"),
    Mutant("top-k keeps one key more", *_G, _of_options(_one_more_kept), "gradients"),
    Mutant("a law's parameter gets twice its gradient", *_G, _of_result(_doubled), "gradients"),
    Mutant(
        "the variance's gradient is that of the mean",
        *_G,
        lambda right: (
            lambda *g, **o: right(*g, **(o | {"grad_mean_score": o.pop("grad_score_variance", None)}))
        ),
        "gradients",
        800,
    ),
    Mutant(
        "NaN becomes a gradient of 0",
        *_G,
        _row("query", lambda x, g, o: np.where(np.isnan(x), x.dtype.type(0), x)),
        "gradients",
        800,
    ),
    Mutant(
        "gradients of another type", *_G, _row("scale", lambda x, g, o: x.astype(np.float32)), "gradients"
    ),
    Mutant("refusals say nothing", at, "attention", _no_text, "arguments", 800),
    Mutant("refusals are KeyErrors", at, "attention", _other_kind, "arguments", 800),
)
