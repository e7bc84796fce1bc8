# SPDX-License-Identifier: BSD-3-Clause
"""Question, answer, and an engine that is asked; truth is computed in float64."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..._base.checks import as_array
from .._call import numpy_type

#: Query, key and value.
Arrays = tuple[Any, Any, Any]
#: Largest difference of a recognised number, over 1 + abs(number), by the type of the arrays.
_ALLOWED = {"float64": 1e-2, "float32": 1e-2, "float16": 2e-2, "bfloat16": 4e-2}
#: Channels of a head; 8 is what every engine takes.
WIDTH = 8


@dataclass(frozen=True)
class Answer:
    """The answer of an engine to a question.

    Attributes
    ----------
    question : str
        The question in words.
    says : str
        The answer; "refused: ..." if the adapter raised NotImplementedError for every form of the question,
        "error: ..." with the engine's own first words.
    surprising : bool
        Whether it departs from the answer that most would expect.
    why : str
        For a surprising answer, the expectation and its reason.
    """

    question: str
    says: str
    surprising: bool = False
    why: str = ""


@dataclass(frozen=True)
class Question:
    """A question: `find` calls the engine and returns its answer in words.

    Attributes
    ----------
    name : str
    subject : str
        Subject whose questions are shown together.
    short : str
        Head of a column.
    asks : str
    usual : tuple of str
        Answers that do not surprise.
    rule : str
        Reason for expecting them.
    find : callable
    """

    name: str
    subject: str
    short: str
    asks: str
    usual: tuple[str, ...]
    rule: str
    find: Callable[[Asked], str]


def subject(title: str) -> Callable[..., Callable[[Callable[[Asked], str]], Question]]:
    """Decorator that makes a function, which finds an answer, a question of a subject."""

    def question(short: str, asks: str, *usual: str, rule: str) -> Callable[..., Question]:
        return lambda find: Question(find.__name__, title, short, asks, usual, rule, find)

    return question


class Asked:
    """An engine that is asked: arrays go in as `dtype`, replies come as float64 by name."""

    def __init__(self, attend: Callable[..., Any], dtype: str) -> None:
        self.attend, self.dtype = attend, dtype

    def __call__(self, *arrays: Any, dtype: str | None = None, **options: Any) -> dict[str, Any]:
        """The reply: "output", and what else the engine returns."""
        given = [cast(x, dtype or self.dtype) for x in arrays]
        reply = self.attend(*given, **options)
        if not isinstance(reply, Mapping):
            output, *rest = reply if isinstance(reply, (tuple, list)) else (reply,)
            reply = {"output": output, "lse": rest[0] if rest else None}
        found = {
            name: each if callable(each) else as_array(name, each).astype(np.float64)
            for name, each in reply.items()
            if each is not None
        }
        shape = (*arrays[0].shape[:-1], arrays[2].shape[-1])
        if found["output"].shape != shape:
            raise RuntimeError(f"the output has shape {found['output'].shape} in place of {shape}")
        return found

    def mask(self, seen: Any) -> Any:
        """A mask that shows these keys: boolean if the engine reads that, else 0 and -inf."""
        return np.array(seen) if self._reads_booleans else self.float_mask(seen, -np.inf)

    def float_mask(self, seen: Any, low: float) -> Any:
        """A mask of the type of the arrays with 0 for seen keys, and the number `low` for others."""
        return cast(np.where(seen, 0.0, low), self.dtype)

    @cached_property
    def _reads_booleans(self) -> bool:
        """Whether True in a boolean mask shows a key, and False hides it."""
        seen = np.broadcast_to(np.arange(4) < 1, (1, 1, 4, 4))
        query, key, value = np.zeros((3, 1, 1, 4, WIDTH))
        value[:, :, 0] = 1
        try:
            return is_near(self(query, key, value, attn_mask=np.array(seen))["output"], 1.0, 0.1)
        except Exception:  # any failure
            return False

    def as_type(self, dtype: str) -> Asked:
        """The engine with arrays of another type."""
        return Asked(self.attend, dtype)

    def first(self, *calls: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The reply to the first call that the adapter serves; the first refusal if it serves none."""
        refusal: NotImplementedError | None = None
        for call in calls:
            try:
                return call()
            except NotImplementedError as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    def causal(self, *arrays: Any, **options: Any) -> dict[str, Any]:
        """The reply to a causal call; of engines that align at the last keys alone, to that."""
        return self.first(
            lambda: self(*arrays, is_causal=True, **options),
            lambda: self(*arrays, causal="bottom_right", **options),
        )

    def nearest(self, found: Any, named: Mapping[str, Any], dtype: str | None = None) -> str:
        """The name of the first candidate that the numbers are, "NaN", or "other numbers"."""
        for name, truth in named.items():
            if is_near(found, truth, _ALLOWED[dtype or self.dtype]):
                return name
        if np.isnan(found).any():
            return "NaN" if np.isnan(found).all() else "NaN in part"
        return "other numbers"


def answer(asked: Question, engine: Asked) -> Answer:
    """Ask; every failure of the engine is an answer."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            says = asked.find(engine)
    except NotImplementedError as error:
        return Answer(asked.asks, f"refused: {_words(error)}".removesuffix(": "))
    except Exception as error:  # any failure of an engine is an answer
        return Answer(asked.asks, f"error: {type(error).__name__}: {_words(error)}".removesuffix(": "))
    surprising = says not in asked.usual and says != "none"
    return Answer(asked.asks, says, surprising, asked.rule if surprising else "")


def _words(error: Exception) -> str:
    """The first words of an error, without addresses, folders and names of temporary files."""
    text = re.sub(r"0x[0-9a-fA-F]+", "0x...", " ".join(str(error).split()))
    text = re.sub(r"\btmp\w{8}\b", "tmp", text)
    return re.sub(r"(?<![\w.])(/[\w.+-]+)+/", "", text)[:100].rstrip()


def cast(array: Any, dtype: str) -> Any:
    """The array in another type; numbers beyond it become infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(array).astype(numpy_type(dtype))


def is_near(found: Any, truth: Any, allowed: float) -> bool:
    """Whether all numbers are, up to `allowed` over 1 + abs(truth); NaN is near to nothing."""
    return bool((np.abs(found - truth) <= allowed * (1 + np.abs(truth))).all())


# ---------------------------------------------------------------- calls and their truth


def draw(n_queries: int = 4, n_keys: int = 4, heads: tuple[int, int] = (1, 1)) -> Arrays:
    """Query, key and value of one batch; multiples of 1/8 up to 2, exact in every type."""
    rng = np.random.default_rng([64, n_queries, n_keys, *heads])
    shapes = ((heads[0], n_queries), (heads[1], n_keys), (heads[1], n_keys))
    query, key, value = (rng.integers(-16, 17, (1, *shape, WIDTH)) / 8 for shape in shapes)
    return query, key, value


def scores(query: Any, key: Any, scale: float | None = None) -> Any:
    """Scaled products in float64; 1 over the root of the width by default."""
    factor = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    return query @ key.swapaxes(-1, -2) * factor


def softmax(logits: Any, seen: Any = True) -> Any:
    """Weights of the seen keys; 0 in rows without any."""
    shifted = np.where(seen, logits, -np.inf)
    top = shifted.max(axis=-1, keepdims=True)
    weights = np.exp(shifted - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)


def attended(query: Any, key: Any, value: Any, seen: Any = True, scale: float | None = None) -> Any:
    """The output of the call in float64."""
    return softmax(scores(query, key, scale), seen) @ value


def mean(value: Any, seen: Any = True) -> Any:
    """Mean of the values that a row sees; of all by default."""
    n = value.shape[-2]
    return softmax(np.zeros((1, 1, n)), np.broadcast_to(seen, (*np.shape(seen)[:-1], n))) @ value
