# SPDX-License-Identifier: BSD-3-Clause
"""A run of an engine through calls with known answers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._base.checks import boolean, choose, number, shown
from ._ask import Question, ask_twice
from ._call import Case, read_cases
from ._drawn import draw_cases
from ._isolated import isolated
from ._report import Conformance
from ._verdict import outcomes
from .engines import Engine, read_engine

#: Largest allowed error of an output, in units of the row's mass.
TOLERANCES = {"float64": 1e-9, "float32": 5e-5, "float16": 4e-3, "bfloat16": 3e-2}


def check(
    engine: str | Callable[..., Any],
    *,
    cases: Mapping[str, Case] | None = None,
    dtype: str = "float32",
    tolerance: float | None = None,
    seed: int | None = None,
    passed_as: str | None = None,
    isolate: bool = False,
) -> Conformance:
    """Run another attention through calls with known answers, and report its differences.

    Parameters
    ----------
    engine : str or callable
        The name of a ready adapter (:func:`attnscale.conformance.engines.engines`), or a function
        ``attend(query, key, value, **options)`` of arrays (batch, heads, n, dim), some with fewer axes, and
        options of :func:`attnscale.attention`. It returns the output, or (output, lse), or a mapping with
        "output" and any of "lse", "max_score", "entropy", "weights", "scores", "n_visible", "gradients" and
        "lse_gradients", as arrays that NumPy reads, and raises NotImplementedError for unsupported options.
    cases : mapping of str to Case, optional
        Default: calls with a softmax with or without a sink and no law, of sizes and options drawn by the
        seed, and calls in which engines have slipped.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default "float32"
        Type whose numbers are passed; bfloat16 needs ml_dtypes.
    tolerance : float, optional
        The largest error of a right output, in units of the row's mass: its weights times abs(value).
        Default: 5e-5 for float32, 1e-9 for float64, 4e-3 for float16, 3e-2 for bfloat16.
    seed : int, optional
        Seed of sizes, numbers and order. Default: a fresh one, which the report tells.
    passed_as : {"float32", "float64", "float16", "bfloat16"}, optional
        Type of the arrays, where an engine cannot read those of `dtype`. Default: `dtype`.
    isolate : bool, default False
        Whether the engine runs in a process of its own: a call that ends the process, or that takes more than
        two minutes, is then an error of its case alone, and the other cases are asked in another process. A
        function must be one that pickle can send, or cloudpickle where it is installed.

    Returns
    -------
    Conformance

    Raises
    ------
    TypeError
        If engine is neither a name nor a function, or cannot be sent to another process, or cases do not map
        names to Case.
    ValueError
        If a name or a type is unknown, tolerance is not greater than 0, seed is negative, or a case has no
        value.

    Notes
    -----
    The truth is the same call in float64. Every call is made twice, with other numbers in the same storage
    and in another order, so that an answer that was kept or known before is wrong; inputs must not change,
    and an output is no view of them. Wrong outputs are explained by the fewest slips that give all of an
    engine's answers, such as a doubled scale, a window off by one, key heads in another order, or by those
    of each answer. Rows without keys, and those that a NaN reaches, are judged apart.

    Examples
    --------
    >>> import attnscale as at
    >>> print(at.conformance.check(lambda q, k, v, **options: at.attention(q, k, v, **options), seed=0))
    232 right, 0 wrong, 0 errors, 0 not served (tolerance 5e-05, seed 0)
      lse: none returned
    """
    attend = read_engine(engine)
    if isinstance(attend, Engine):
        attend.need()
    for name, given in (("dtype", dtype), ("passed_as", passed_as or dtype)):
        choose(name, given, tuple(TOLERANCES))
    allowed = TOLERANCES[dtype] if tolerance is None else number("tolerance", tolerance)
    if allowed <= 0:
        raise ValueError(f"tolerance must be greater than 0, got {shown(tolerance)}")
    drawn = _read_seed(seed)
    chosen = draw_cases(drawn) if cases is None else _with_values(read_cases(cases))
    of = Question(attend, dtype, passed_as or dtype, allowed, drawn)
    apart = boolean("isolate", isolate)
    asked = isolated(ask_twice, tuple(chosen), of, chosen) if apart else ask_twice(of, chosen)
    label = f"{attend.name} {attend.installed}" if isinstance(attend, Engine) else ""
    return Conformance(outcomes(asked), allowed, drawn, chosen, label)


def _with_values(cases: dict[str, Case]) -> dict[str, Case]:
    for name, case in cases.items():
        if case.value is None:
            raise ValueError(f"cases must have a value each, got none in {name!r}")
    return cases


def _read_seed(seed: Any) -> int:
    if seed is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be an integer or None, got {shown(seed)}")
    if operator.index(seed) < 0:
        raise ValueError(f"seed must be 0 or greater, got {shown(seed)}")
    return operator.index(seed)
