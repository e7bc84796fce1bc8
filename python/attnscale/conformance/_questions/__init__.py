# SPDX-License-Identifier: BSD-3-Clause
"""Questions to an engine that documents leave open, each a few tiny calls with arrays of a fixed seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..._base.checks import boolean, choose
from .. import engines
from .._isolated import NOTHING, isolated, untold
from . import _beside, _causal, _empty, _masks, _numbers
from ._asked import Answer, Asked, Question, answer

__all__ = ["QUESTIONS", "Answer", "Question", "ask"]

#: Every question by its name, in the order in which they are shown.
QUESTIONS: dict[str, Question] = {
    each.name: each
    for module in (_empty, _masks, _causal, _numbers, _beside)
    for each in vars(module).values()
    if isinstance(each, Question)
}
_DTYPES = ("float32", "float64", "float16", "bfloat16")


def ask(
    engine: str | Callable[..., Any],
    *,
    dtype: str = "float32",
    names: Sequence[str] | None = None,
    isolate: bool = False,
) -> dict[str, Answer]:
    """Ask an engine what it does where no answer is right.

    Parameters
    ----------
    engine : str or callable
        As for :func:`check`.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        Type of the arrays, but for questions about 16 bits, which choose their own; bfloat16 needs ml_dtypes.
    names : sequence of str, optional
        Names of questions; by default all of ``QUESTIONS``.
    isolate : bool, default False
        As for :func:`check`; the answer to a question whose calls end the process says so.

    Returns
    -------
    dict of str to Answer

    Raises
    ------
    TypeError
        If engine is neither a name nor a function, or cannot be sent to another process.
    ValueError
        If dtype, one of the names, or the name of the engine is unknown.

    Examples
    --------
    >>> import attnscale as at
    >>> found = at.conformance.ask(at.attention, names=["no_keys_boolean", "causal_fewer"])
    >>> found["no_keys_boolean"].says, found["causal_fewer"].says
    ('0', 'first keys')
    """
    attend = engines.read_engine(engine)
    choose("dtype", dtype, _DTYPES)
    chosen = tuple(choose("names", name, tuple(QUESTIONS)) for name in names or QUESTIONS)
    work = (Asked(attend, dtype), chosen)
    return isolated(_answers, chosen, *work) if boolean("isolate", isolate) else _answers(*work)


def _answers(
    asked: Asked,
    names: Sequence[str],
    *,
    begin: Callable[[str], None] = untold,
    lost: Mapping[str, str] = NOTHING,
) -> dict[str, Answer]:
    """The answers to these questions; `begin` and `lost` as in `_isolated`."""
    found = {}
    for name in names:
        asks = QUESTIONS[name]
        if name in lost:
            found[name] = Answer(asks.asks, lost[name], True, asks.rule)
        else:
            begin(name)
            found[name] = answer(asks, asked)
    return found
