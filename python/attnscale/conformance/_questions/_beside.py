# SPDX-License-Identifier: BSD-3-Clause
"""Questions about results beside the output: log-sum-exp, scores, weights, statistics; and sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...exact.lse import identify_lse
from ._asked import Arrays, Asked, draw, scores, softmax, subject
from ._empty import ROW, SEEN

question = subject("Results beside the output, sinks")
_MASK = np.broadcast_to(np.tri(4, dtype=np.bool_), (1, 1, 4, 4))


def _with_mask(asked: Asked, name: str, mask: Any = _MASK) -> tuple[Arrays, Any, Any]:
    """Arrays, the keys that are seen, and the result of the first call that returns it; None if none does."""
    arrays = draw()
    calls: list[tuple[Any, Callable[[], dict[str, Any]]]] = [
        (mask, lambda: asked(*arrays, attn_mask=asked.mask(mask)))
    ]
    if mask is _MASK:
        full = np.ones_like(mask)
        calls += [(mask, lambda: asked.causal(*arrays)), (full, lambda: asked(*arrays))]
    failure: Exception | None = None
    served = False
    for seen, call in calls:
        try:
            found = call()
        except Exception as error:  # any failure of the engine
            failure = failure or error
        else:
            if name in found:
                return arrays, seen, found[name]
            served = True
    if failure is not None and not served:
        raise failure
    return arrays, mask, None


@question(
    "lse",
    "Convention of the log-sum-exp",
    "natural, scaled",
    rule="ln of the sum of exp of the scaled scores",
)
def lse_holds(asked: Asked) -> str:
    (query, key, _), seen, lse = _with_mask(asked, "lse")
    if lse is None:
        return "none"
    found = identify_lse(query, key, lse, attn_mask=seen).convention
    if found is None:
        return "no known convention"
    parts = ["natural" if found.base == "e" else "base 2", "scaled" if found.scaled else "unscaled"]
    parts += ["negated"] if found.negated else []
    parts += ["largest score subtracted"] if found.less_max else []
    return ", ".join(parts)


@question(
    "lse, no keys",
    "The log-sum-exp of a row without keys",
    "-inf",
    rule="the logarithm of an empty sum",
)
def lse_no_keys(asked: Asked) -> str:
    _, _, lse = _with_mask(asked, "lse", SEEN)
    if lse is None:
        return "none"
    found = lse.reshape(-1)[ROW]
    return f"{found:.3g}" if lse.size == 4 else f"an array of {lse.size} numbers for 4 rows"


@question(
    "largest score",
    "The largest score of a row that is returned",
    "scaled",
    rule="the largest number that softmax sees",
)
def max_holds(asked: Asked) -> str:
    (query, key, _), seen, found = _with_mask(asked, "max_score")
    if found is None:
        return "none"
    s = np.where(seen, scores(query, key), -np.inf).max(axis=-1)
    named = {"scaled": s, "scaled, base 2": s / np.log(2), "unscaled": s * np.sqrt(query.shape[-1])}
    return asked.nearest(found.reshape(s.shape), named)


@question(
    "scores",
    "Scores that are returned, and those of hidden keys",
    "scaled, hidden -inf",
    rule="what softmax sees",
)
def scores_hold(asked: Asked) -> str:
    (query, key, _), seen, found = _with_mask(asked, "scores")
    if found is None:
        return "none"
    s, seen = scores(query, key), np.broadcast_to(seen, found.shape)
    named = {"scaled": s, "unscaled": s * np.sqrt(query.shape[-1]), "scaled, base 2": s / np.log(2)}
    says = asked.nearest(
        found[seen], {name: np.broadcast_to(x, found.shape)[seen] for name, x in named.items()}
    )
    if seen.all():
        return says
    hidden = found[~seen]
    if asked.nearest(hidden, {"plain": np.broadcast_to(s, found.shape)[~seen]}) == "plain":
        return f"{says}, hidden not marked"
    equal = np.ptp(hidden) == 0 or (hidden == hidden[0]).all()
    return f"{says}, hidden {hidden[0]:.3g}" if equal else f"{says}, hidden below {hidden.max():.1g}"


def _weights(asked: Asked, mask: Any) -> tuple[Any, Any] | None:
    (query, key, _), seen, found = _with_mask(asked, "weights", mask)
    return None if found is None else (found, softmax(scores(query, key), seen))


@question(
    "weights",
    "Weights that are returned",
    "right",
    rule="the weights that multiply the values",
)
def weights_hold(asked: Asked) -> str:
    found = _weights(asked, _MASK)
    if found is None:
        return "none"
    given, truth = found
    if given.size != truth.size:
        return f"shape {given.shape[1:]} for {truth.shape[1:]}"
    return asked.nearest(given.reshape(truth.shape), {"right": truth})


@question(
    "weights, no keys",
    "Weights of a row without keys",
    "0",
    rule="no key, no weight",
)
def weights_no_keys(asked: Asked) -> str:
    found = _weights(asked, SEEN)
    if found is None:
        return "none"
    given = found[0].reshape(found[1].shape)[:, :, ROW]
    plain = softmax(scores(*draw()[:2]))[:, :, ROW]
    return asked.nearest(given, {"0": 0 * plain, "equal": 0 * plain + 0.25, "unmasked": plain})


@question(
    "entropy",
    "Unit of an entropy that is returned",
    "nats",
    rule="the natural logarithm",
)
def entropy_holds(asked: Asked) -> str:
    (query, key, _), seen, found = _with_mask(asked, "entropy")
    if found is None:
        return "none"
    weights = softmax(scores(query, key), seen)
    nats = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=-1)
    n = np.maximum(np.broadcast_to(seen, weights.shape).sum(axis=-1), 2)
    named = {"nats": nats, "bits": nats / np.log(2), "over ln of the keys": nats / np.log(n)}
    named["over ln of all keys"] = nats / np.log(4)
    return asked.nearest(found.reshape(nats.shape), named)


@question(
    "sink",
    "A sink of the logit 3 beside four scores of 2",
    "a logit",
    rule="exp of the sink, unscaled, in the sum of softmax",
)
def sink_holds(asked: Asked) -> str:
    arrays = [np.full((1, 1, 4, 8), x) for x in (1.0, 2 / np.sqrt(8), 1.0)]
    found = asked(*arrays, normalizer="sink(logits=[3.0])")["output"]
    four, scaled = 4 * np.exp(2), np.exp(3 / np.sqrt(8))
    named = {
        "a logit": four / (four + np.exp(3)),
        "scaled": four / (four + scaled),
        "not shifted": 4 / (4 + np.exp(3)),
        "not read": 1.0,
    }
    return asked.nearest(found, named)
