# SPDX-License-Identifier: BSD-3-Clause
"""Calls of an engine, twice each: other numbers in the same storage, and a watch over inputs and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import InputError, as_array
from ..exact.forward import attention_statistics
from ..exact.lse import LseConvention, identify_lse
from ._call import Case, numpy_type
from ._draft import Predicted
from ._drawn import numbers
from ._isolated import NOTHING, untold
from ._statistics import StatisticOutcome, judge_statistics, judged_call
from ._turn import Turn

Array = NDArray[Any]
_NAMES = ("query", "key", "value")
REFUSED = "it refuses a call that it served before"


@dataclass(frozen=True)
class Question:
    """How an engine is asked: its function, the type of numbers, the type of arrays, tolerance, seed."""

    attend: Callable[..., Any]
    dtype: str
    passed_as: str
    allowed: float
    seed: int


@dataclass
class Asked:
    """A case, and the engine's answers to it."""

    name: str
    case: Case
    #: Arrays that the engine was given; the second call finds other numbers in them.
    storage: list[Array] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    #: Judgement of what the first call returned beside the output, and conventions that fit its lse; None
    #: without an lse.
    statistics: Mapping[str, StatisticOutcome] = field(default_factory=dict)
    lse: tuple[LseConvention, ...] | None = None
    faults: list[str] = field(default_factory=list)
    #: Numbers of the arrays as the last call was given them.
    given: Mapping[str, Array] = field(default_factory=dict)
    #: The first error, a shape that is wrong, and whether the case is not served.
    error: str = ""
    shape: str = ""
    not_served: str | None = None


def ask_twice(
    of: Question,
    cases: Mapping[str, Case],
    *,
    begin: Callable[[str], None] = untold,
    lost: Mapping[str, str] = NOTHING,
) -> list[Asked]:
    """Ask every case, then every case again in another order; `begin` and `lost` as in `_isolated`."""
    asked = [Asked(name, case, error=lost.get(name, "")) for name, case in cases.items()]
    for turn in range(2):
        order = np.random.default_rng([of.seed, turn]).permutation(len(asked))
        for i in order:
            if asked[i].name not in lost:
                begin(asked[i].name)
                _ask(of, asked[i], turn)
    for each in asked:
        if len(each.turns) == 2:
            _note_late_writes(each)
        if len(each.turns) == 2 and not _is_kept(each):
            each.faults.append("a later call changes an earlier output")
    return asked


def _ask(of: Question, asked: Asked, turn: int) -> None:
    if asked.error or asked.shape or asked.not_served is not None:
        return
    arrays = asked.case.arrays(numbers(of.seed, asked.name, turn, numpy_type(of.dtype)))
    with np.errstate(over="ignore"):
        arrays = [x.astype(numpy_type(of.dtype)).astype(np.float64) for x in arrays]
    if asked.storage:
        _note_late_writes(asked)
        for place, x in zip(asked.storage, arrays, strict=True):
            place[...] = x
    else:
        asked.storage = [x.astype(numpy_type(of.passed_as)) for x in arrays]
    given = {**dict(zip(_NAMES, asked.storage, strict=True)), **asked.case.options}
    before = {name: x.copy() for name, x in given.items() if isinstance(x, np.ndarray)}
    try:
        answer = of.attend(*asked.storage, **asked.case.options)
        raw, beside = read_answer(answer)
    except NotImplementedError as error:
        asked.not_served = str(error)
        if turn:
            asked.faults.append(REFUSED)
        return
    except Exception as error:  # any failure of an engine is part of the report
        asked.error = said_by(error)
        return
    finally:
        _restore(asked, given, before)
    asked.given = {name: before[name] for name in _NAMES}
    asked.faults += [f"its output is a view of {n}" for n, x in given.items() if _shares(raw, x)]
    _take(of, asked, arrays, raw, beside)


def said_by(error: Exception) -> str:
    """The type and the message of an error, in one line."""
    try:
        message = " ".join(str(error).split())[:160]
    except Exception:
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _restore(asked: Asked, given: Mapping[str, Any], before: Mapping[str, Array]) -> None:
    """Note the arrays that the engine wrote into, and give them their numbers again."""
    for name, kept in before.items():
        if given[name].tobytes() != kept.tobytes():
            asked.faults.append(f"it writes into {name}")
            given[name][...] = kept


def _note_late_writes(asked: Asked) -> None:
    """Note arrays of an earlier call that hold other numbers now."""
    for name, x in zip(_NAMES, asked.storage, strict=True):
        if asked.given and x.tobytes() != asked.given[name].tobytes():
            asked.faults.append(f"a later call writes into an earlier {name}")


def _take(of: Question, asked: Asked, arrays: list[Any], raw: Array, beside: Mapping[str, Any]) -> None:
    """Keep an answer beside the truth."""
    truth = attention_statistics(*arrays, statistics="n_visible", **asked.case.options)
    assert truth.output is not None
    found = raw.astype(np.float64)
    if found.shape != truth.output.shape:
        asked.shape = f"the output has shape {found.shape} in place of {truth.output.shape}"
        return
    empty = np.broadcast_to(truth.n_visible == 0, truth.n_visible.shape)
    if asked.case.options.get("layout") == "bshd" and empty.ndim > 1:
        empty = empty.swapaxes(-1, -2)
    wanted = Predicted(truth.output, np.broadcast_to(empty, truth.output.shape[:-1]))
    made = Turn(asked.name, asked.case, arrays, of.dtype, found, wanted, of.allowed)
    if beside and not asked.turns:  # at once: functions of gradients may read the storage
        if made.is_right and not found[wanted.empty].any():  # those of another output follow from it
            asked.statistics = judge_statistics(asked.case, arrays, beside, of.allowed)
        asked.lse = conventions_of(made, beside.get("lse"))
    asked.turns.append(made)
    asked.answers.append(raw)


def conventions_of(turn: Turn, lse: Any) -> tuple[LseConvention, ...] | None:
    """The conventions that fit an lse, the simplest first; None where nothing can be told."""
    if lse is None or not turn.is_finite or not np.isfinite(turn.found[~turn.truth.empty]).any():
        return None
    call = judged_call(turn.case.options, turn.arrays, turn.allowed)
    try:
        found = identify_lse(call.query, call.key, lse, **call.options)
    except (ValueError, TypeError):  # another shape, or no numbers
        return ()
    if found.convention is None:
        return ()
    allows = (found.convention, *found.also)
    if turn.draft.sink is None:  # the rows do not show whether a sink would be counted
        allows += tuple(replace(of, sink=False) for of in allows)
    return allows


#: Names that a mapping may hold.
_RETURNED = {
    *("output", "lse", "max_score", "entropy", "weights", "scores", "n_visible", "gradients"),
    "lse_gradients",
}


def read_answer(answer: Any) -> tuple[Array, Mapping[str, Any]]:
    """The output as an array, and what else was returned by name."""
    output, beside = split(answer)
    raw = as_array("the output", output)
    # Types of ml_dtypes are named, such as bfloat16.
    if output is None or (raw.dtype.kind not in "iuf" and "float" not in raw.dtype.name):
        seen = "None" if output is None else raw.dtype
        raise InputError(f"the output must be real numbers, got {seen}")
    return raw, beside


def split(answer: Any) -> tuple[Any, Mapping[str, Any]]:
    """The output, and what else was returned by name."""
    if isinstance(answer, Mapping):
        unknown = sorted(set(map(str, answer)) - _RETURNED)
        if "output" not in answer or unknown:
            what = f"got {', '.join(map(repr, unknown))}" if unknown else "got none"
            rule = f"'output', and may have {', '.join(sorted(_RETURNED - {'output'}))}"
            raise InputError(f"the returned mapping must have {rule}; {what}")
        return answer["output"], {name: x for name, x in answer.items() if name != "output" and x is not None}
    if isinstance(answer, (tuple, list)) and not answer:
        raise InputError("the output must be real numbers, got an empty sequence")
    output, *rest = answer if isinstance(answer, (tuple, list)) else (answer,)
    return output, {"lse": rest[0]} if rest and rest[0] is not None else {}


def _shares(output: Array, given: Any) -> bool:
    return isinstance(given, np.ndarray) and output.size > 0 and np.may_share_memory(output, given)


def _is_kept(asked: Asked) -> bool:
    """Whether the first output still holds its numbers."""
    return np.array_equal(asked.answers[0].astype(np.float64), asked.turns[0].found, equal_nan=True)
