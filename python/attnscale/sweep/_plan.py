# SPDX-License-Identifier: BSD-3-Clause
"""A sweep from its checked arguments to its Dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import shown
from .._core import __version__
from .._grid.case import Axes, Case, as_json, describe_axes, make_cases, short
from .._grid.complete import complete
from .._grid.describe import describe, function_name
from .._grid.errors import Failure
from .._grid.fields import Fields
from .._grid.progress import Progress
from .._grid.runners import Outcome, Runner
from .._grid.store import Store
from .._provenance import provenance
from .._seeds import seed_from_json, seed_sequence, seed_to_json
from ..laws import FunctionLaw
from ._arguments import check_call, read_constants, read_grid
from ._dataset import assemble
from ._laws import registered_laws
from ._task import FunctionTask

if TYPE_CHECKING:
    import xarray

#: Where the results of a sweep without a store are; the command line says it in its own words.
IN_STORE = "the same call computes the rest"
IN_PARTIAL = "the attribute partial has them, and store=DIR keeps them"


@dataclass(frozen=True)
class Plan:
    """A sweep that is ready to be computed.

    Attributes
    ----------
    function, constants
        As given to ``sweep``.
    axes : dict of str to list
        The grid.
    cases : list of Case
        The points of the grid.
    laws : tuple of FunctionLaw
        Registered laws that the grid or the constants name.
    seed : SeedSequence or None
        None if the function takes no ``rng``.
    identity : dict
        The sweep that a store must have been written for; empty without a store.
    seed_is_given : bool
        Whether the seed is the user's; otherwise that of the store counts.
    """

    function: Callable[..., Any]
    constants: dict[str, Any]
    axes: Axes
    cases: list[Case]
    laws: tuple[FunctionLaw, ...]
    seed: np.random.SeedSequence | None
    identity: dict[str, Any]
    seed_is_given: bool

    def resume(self, store: Store) -> Plan:
        """The plan with the seed of the store, if it has one; a new store gets the identity of the sweep."""
        identity = store.claim(self.identity, any_seed=self.seed is not None and not self.seed_is_given)
        return replace(self, identity=identity, seed=self.seed and seed_from_json(identity["seed"]))

    def complete(
        self, run: Runner, store: Store | None, progress: Progress, num_threads: int | None
    ) -> xarray.Dataset:
        """Compute the cases that the store does not have; the Dataset of all cases."""
        task = FunctionTask(
            self.function, self.constants, self.seed, frozenset(self.axes), self.laws, num_threads
        )

        def accept(case: Case, outcome: Outcome, before: Mapping[Case, Fields]) -> Outcome:
            outcome = _with_the_axes_of(before, outcome)
            if store is not None and not isinstance(outcome, Failure):
                store.write(case, outcome)
            return outcome

        finished = {} if store is None else store.finished(self.cases)
        done = complete(partial(run, task), self.cases, finished, progress=progress, accept=accept)
        done.require(lambda: self._table(done.finished), "cases", _where(store))
        table = self._table(done.finished)
        assert table is not None
        return table

    def _table(self, finished: Mapping[Case, Fields]) -> xarray.Dataset | None:
        in_order = {case: finished[case] for case in self.cases if case in finished}
        constants = ", ".join(f"{name}={short(value)}" for name, value in self.constants.items())
        ran = {"function": function_name(self.function), "constants": constants}
        ran["parameters"] = json.dumps({name: as_json(value) for name, value in self.constants.items()})
        return assemble(self.axes, in_order, ran | provenance(self.seed).to_dict())


def make_plan(
    function: Callable[..., Any],
    grid: Mapping[str, Iterable[Any]],
    constants: Mapping[str, Any] | None,
    rng: Any,
    *,
    stored: bool,
) -> Plan:
    """Check the arguments of ``sweep``, and find what identifies the sweep if there is a store."""
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
            "attnscale": __version__,
            "function": describe("function", function),
            "constants": {name: describe(f"constants[{name!r}]", value) for name, value in fixed.items()},
            "grid": described,
            "laws": {law.name: describe(f"the law {law.name!r}", law) for law in laws},
            "seed": None if seed is None else seed_to_json(seed),
        }
    cases = make_cases(axes, described)
    return Plan(function, fixed, axes, cases, laws, seed, identity, seed_is_given=rng is not None)


def _with_the_axes_of(finished: Mapping[Case, Fields], outcome: Fields | Failure) -> Fields | Failure:
    """`outcome`; a failure if its axes are not those of the cases before."""
    if isinstance(outcome, Failure) or not finished:
        return outcome
    case, fields = next(iter(finished.items()))
    for name in fields.keys() & outcome.keys():
        seen, wanted = (each[name].dims or each[name].values.ndim for each in (outcome, fields))
        if seen != wanted:
            message = f"results must have the same axes, got {seen} in {name!r}, and {wanted} at {case}"
            return Failure(f"ValueError: {message}", "")
    return outcome


def _where(store: Store | None) -> str:
    if store is None:
        return IN_PARTIAL
    return f"{str(store)!r} keeps them, and {IN_STORE}"
