# SPDX-License-Identifier: BSD-3-Clause
"""A sweep from its checked arguments to its Dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .._checks import shown
from .._provenance import provenance
from .._seeds import seed_sequence
from ..laws import FunctionLaw
from ._case_seeds import seed_from_json, seed_to_json
from ._dataset import assemble
from ._describe import describe, function_name
from ._errors import Failure, SweepError, SweepInterrupted
from ._grid import (
    Axes,
    GridCase,
    as_json,
    check_call,
    describe_axes,
    make_cases,
    read_constants,
    read_grid,
    short,
)
from ._laws import registered_laws
from ._progress import Progress
from ._results import Fields
from ._run import Runner, Task
from ._store import Store

if TYPE_CHECKING:
    import xarray

__all__ = ["IN_PARTIAL", "Plan", "make_plan"]

#: Where the results of a sweep without a store are; the command line says it in its own words.
IN_PARTIAL = "the attribute partial has them, and store=DIR keeps them"


@dataclass(frozen=True)
class Plan:
    """What is to be computed.

    Attributes
    ----------
    function, constants
        As given to ``sweep``.
    axes : dict of str to list
        The grid.
    cases : list of GridCase
        Its points.
    laws : tuple of FunctionLaw
        Registered laws that the grid or the constants name.
    seed : SeedSequence or None
        None if the function takes no ``rng``.
    identity : dict
        What a store must have been written for; empty without a store.
    seed_is_given : bool
        The seed is the user's; otherwise that of the store counts.
    """

    function: Callable[..., Any]
    constants: dict[str, Any]
    axes: Axes
    cases: list[GridCase]
    laws: tuple[FunctionLaw, ...]
    seed: np.random.SeedSequence | None
    identity: dict[str, Any]
    seed_is_given: bool

    def resume(self, store: Store) -> Plan:
        """This plan, with the seed of the store if there is one; a new store is told what it is of."""
        stored = store.read_manifest()
        if stored is None:
            store.write_manifest(self.identity)
            return self
        plan = self
        if self.seed is not None and not self.seed_is_given and stored.get("seed") is not None:
            plan = replace(
                self,
                seed=seed_from_json(stored["seed"]),
                identity={**self.identity, "seed": stored["seed"]},
            )
        store.check_manifest(stored, plan.identity)
        return plan

    def complete(
        self, run: Runner, store: Store | None, report: Progress, num_threads: int | None
    ) -> xarray.Dataset:
        """Compute what the store does not have."""
        finished = self._finished(store)
        failures: dict[GridCase, Failure] = {}
        reserved = frozenset(self.axes)
        task = Task(self.function, self.constants, self.seed, reserved, self.laws, num_threads)
        outcomes = run(task, [case for case in self.cases if case not in finished])
        report(len(finished), len(self.cases))
        try:
            for case, outcome in outcomes:
                outcome = _with_the_axes_of(finished, outcome)
                if isinstance(outcome, Failure):
                    failures[case] = outcome
                else:
                    if store is not None:
                        store.write(case, outcome)
                    finished[case] = outcome
                report(len(finished) + len(failures), len(self.cases))
        except KeyboardInterrupt:
            message = f"{len(finished)} of {len(self.cases)} cases are finished; {_where(store)}"
            raise SweepInterrupted(message, self._table(finished)) from None
        finally:
            outcomes.close()
        if failures:
            raise self._error(finished, failures, store)
        table = self._table(finished)
        assert table is not None
        return table

    def _finished(self, store: Store | None) -> dict[GridCase, Fields]:
        """The cases that the store has."""
        if store is None:
            return {}
        found = {case: store.read(case) for case in self.cases}
        return {case: fields for case, fields in found.items() if fields is not None}

    def _table(self, finished: Mapping[GridCase, Fields]) -> xarray.Dataset | None:
        in_order = {case: finished[case] for case in self.cases if case in finished}
        constants = ", ".join(f"{name}={short(value)}" for name, value in self.constants.items())
        ran = {"function": function_name(self.function), "constants": constants}
        ran["parameters"] = json.dumps({name: as_json(value) for name, value in self.constants.items()})
        return assemble(self.axes, in_order, ran | provenance(self.seed).to_dict())

    def _error(
        self, finished: Mapping[GridCase, Fields], failures: Mapping[GridCase, Failure], store: Store | None
    ) -> SweepError:
        """One error for all failures, that of the first case first."""
        listed = {case: failures[case] for case in self.cases if case in failures}
        case, first = next(iter(listed.items()))
        what = _one_line(first.message)
        error = SweepError(
            f"{len(listed)} of {len(self.cases)} cases failed, the first at {case}: {what} "
            f"({len(finished)} are finished; {_where(store)})",
            {str(each): failure.message for each, failure in listed.items()},
            self._table(finished),
        )
        error.__cause__ = first.exception
        if first.exception is None:
            error.add_note(f"In another process:\n{first.traceback}")
        return error


def make_plan(
    function: Callable[..., Any],
    grid: Mapping[str, Iterable[Any]],
    constants: Mapping[str, Any] | None,
    rng: Any,
    *,
    stored: bool,
) -> Plan:
    """Check the arguments of ``sweep``; say what identifies them if a store asks for it."""
    axes = read_grid(grid)
    fixed = read_constants(constants, axes)
    parameters = check_call(function, [*axes, *fixed])
    wants_rng = "rng" in parameters - axes.keys() - fixed.keys()
    if rng is not None and not wants_rng:
        reason = "is in the grid or the constants" if "rng" in {**axes, **fixed} else "is not its parameter"
        raise ValueError(
            f"rng must be None where 'rng' {reason}: {function_name(function)}, got {shown(rng)}"
        )
    seed = seed_sequence(rng) if wants_rng else None
    laws = registered_laws([*axes.values(), *fixed.values()])
    described = describe_axes(axes) if stored or seed is not None else None
    identity = {}
    if stored:
        identity = {
            "attnscale": _core.__version__,
            "function": describe("function", function),
            "constants": {name: describe(f"constants[{name!r}]", value) for name, value in fixed.items()},
            "grid": described,
            "laws": {law.name: describe(f"the law {law.name!r}", law) for law in laws},
            "seed": None if seed is None else seed_to_json(seed),
        }
    cases = make_cases(axes, described)
    return Plan(function, fixed, axes, cases, laws, seed, identity, seed_is_given=rng is not None)


def _with_the_axes_of(finished: Mapping[GridCase, Fields], outcome: Fields | Failure) -> Fields | Failure:
    """`outcome`, unless its axes are not those of the cases before it."""
    if isinstance(outcome, Failure) or not finished:
        return outcome
    case, fields = next(iter(finished.items()))
    for name in fields.keys() & outcome.keys():
        seen, wanted = (each[name].dims or each[name].values.ndim for each in (outcome, fields))
        if seen != wanted:
            message = f"results must have the same axes, got {seen} in {name!r}, and {wanted} at {case}"
            return Failure(f"ValueError: {message}", "")
    return outcome


def _one_line(message: str) -> str:
    """The beginning of a message; an exception may print whole arrays."""
    line = " ".join(message.split())
    return line if len(line) <= 300 else f"{line[:300]}..."


def _where(store: Store | None) -> str:
    if store is None:
        return IN_PARTIAL
    return f"{str(store)!r} keeps them, and the same call computes the rest"
