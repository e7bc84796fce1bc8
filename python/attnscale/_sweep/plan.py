# SPDX-License-Identifier: BSD-3-Clause
"""A sweep from its checked arguments to its Dataset."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.checks import refusal, shown
from .._base.provenance import provenance
from .._base.seeds import seed_from_json, seed_sequence, seed_to_json
from .._core import __version__
from .._grid.case import Axes, Case, as_json, describe_axes, labels, make_cases, short
from .._grid.complete import Outcome, Runner, choose_runner, complete, missing
from .._grid.describe import describe, function_name
from .._grid.errors import Failure
from .._grid.fields import Fields
from .._grid.part import Part
from .._grid.progress import Progress, check_progress
from .._grid.store import Store
from ..laws import FunctionLaw
from .dataset import assemble
from .task import FunctionTask, registered_laws

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import xarray


class Kept(NamedTuple):
    """Location of finished cases, worded for a sweep's errors; the command line has its own words."""

    without_store: str = "the attribute partial has them, and store=DIR keeps them"
    after_failure: str = ""  # follows that where cases failed
    in_store: str = "{!r} keeps them, and the same call computes the rest"


@dataclass(frozen=True)
class Plan:
    """A sweep ready to be computed."""

    function: Callable[..., Any]  # as given to ``sweep``
    constants: dict[str, Any]
    axes: Axes  # the grid
    cases: list[Case]  # the points of the grid
    laws: tuple[FunctionLaw, ...]  # registered laws that the grid or the constants name
    seed: np.random.SeedSequence | None  # None if the function takes no ``rng``
    identity: dict[str, Any]  # identity that a store must have; empty without a store
    seed_is_given: bool  # whether the seed is the user's; otherwise the store's seed is used

    def resume(self, store: Store, part: Part | None) -> Plan:
        """The plan with the store's seed, if it has one; a new store gets the sweep's identity."""
        any_seed = self.seed is not None and not self.seed_is_given
        identity = store.claim(self.identity, any_seed=any_seed, part=part)
        return replace(self, identity=identity, seed=self.seed and seed_from_json(identity["seed"]))

    def complete(
        self,
        run: Runner,
        wanted: list[Case],
        store: Store | None,
        progress: Progress,
        num_threads: int | None,
        kept: Kept,
    ) -> xarray.Dataset:
        """Compute the wanted cases that the store lacks; the Dataset of all cases then present."""
        task = FunctionTask(
            self.function, self.constants, self.seed, frozenset(self.axes), self.laws, num_threads
        )

        def accept(case: Case, fields: Fields, before: Mapping[Case, Fields]) -> Outcome:
            checked = _with_the_axes_of(before, fields)
            return checked if store is None or isinstance(checked, Failure) else store.keep(case, checked)

        finished = {} if store is None else store.finished(wanted)
        left = missing(wanted, finished)
        if store is not None:
            store.check_room_for(left)
        outcomes = run(task, left)
        done = complete(outcomes, wanted, finished, progress=progress, accept=accept)
        where = (kept.in_store.format(str(store)),) if store is not None else kept[:2]
        done.require(lambda: self._table(done.finished), "cases", *where)
        table = self._table(done.finished if store is None else store.with_others(done.finished, self.cases))
        assert table is not None
        return table

    def _table(self, finished: Mapping[Case, Fields]) -> xarray.Dataset | None:
        in_order = {case: finished[case] for case in self.cases if case in finished}
        constants = ", ".join(f"{name}={short(value)}" for name, value in self.constants.items())
        ran: dict[str, Any] = {"function": function_name(self.function), "constants": constants}
        ran["parameters"] = json.dumps({name: as_json(value) for name, value in self.constants.items()})
        ran["missing"] = len(self.cases) - len(in_order)
        return assemble(self.axes, in_order, ran | provenance(self.seed).to_dict())


def compute(
    function: Callable[..., Any],
    grid: Mapping[str, Iterable[Any]],
    *,
    constants: Mapping[str, Any] | None = None,
    n_jobs: int = 1,
    executor: Executor | None = None,
    store: str | os.PathLike[str] | None = None,
    part: str | tuple[int, int] | None = None,
    progress: Progress = True,
    rng: Any = None,
    kept: Kept = Kept(),  # noqa: B008 - it cannot change
) -> xarray.Dataset:
    """Compute a ``sweep``, with errors worded by `kept`."""
    try:
        import xarray  # noqa: F401
    except ImportError:
        raise ImportError('sweep needs xarray: pip install "attnscale[sweep]"') from None
    plan = make_plan(function, grid, constants, rng, stored=store is not None)
    run, num_threads = choose_runner(n_jobs, executor)
    check_progress(progress)
    chosen = Part.read(part, store)
    wanted = plan.cases if chosen is None else chosen.choose(plan.cases)
    if store is None:
        return plan.complete(run, wanted, None, progress, num_threads, kept)
    folder = Store(store)
    with folder.locked(chosen):
        return plan.resume(folder, chosen).complete(run, wanted, folder, progress, num_threads, kept)


def make_plan(
    function: Callable[..., Any],
    grid: Mapping[str, Iterable[Any]],
    constants: Mapping[str, Any] | None,
    rng: Any,
    *,
    stored: bool,
) -> Plan:
    """Check the arguments of ``sweep``, and identify the sweep if there is a store."""
    axes = read_grid(grid)
    fixed = read_constants(constants, axes)
    parameters = check_call(function, [*axes, *fixed])
    wants_rng = "rng" in parameters - axes.keys() - fixed.keys()
    if rng is not None and not wants_rng:
        reason = "is in the grid or the constants" if "rng" in {**axes, **fixed} else "is not its parameter"
        rule = f"must be None where 'rng' {reason}: {function_name(function)}, got {shown(rng)}"
        raise refusal(ValueError, "rng", rule)
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


def _with_the_axes_of(finished: Mapping[Case, Fields], fields: Fields) -> Fields | Failure:
    """`fields`, or a failure if their axes differ from those of earlier cases."""
    if not finished:
        return fields
    case, first = next(iter(finished.items()))
    for name in first.keys() & fields.keys():
        seen, wanted = (each[name].dims or each[name].values.ndim for each in (fields, first))
        if seen != wanted:
            message = f"results must have the same axes, got {seen} in {name!r}, and {wanted} at {case}"
            return Failure(f"ValueError: {message}", "")
    return fields


def read_grid(grid: Any) -> Axes:
    """The grid as lists, checked."""
    if not isinstance(grid, Mapping):
        raise TypeError(f"grid must map parameter names to their values, got {type(grid).__name__}")
    if not grid:
        raise ValueError("grid must have at least one parameter, got none")
    axes: Axes = {}
    for name, values in grid.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise TypeError(f"grid must have names of parameters as keys, got {shown(name)}")
        where = f"grid[{name!r}]"
        if not _is_sequence(values):
            raise TypeError(
                f"{where} must be a sequence of values, got {short(values)}; "
                "one value for all cases goes into constants="
            )
        axes[name] = list(values)
        if not axes[name]:
            raise ValueError(f"{where} must have at least one value, got none")
        _check_distinct(where, axes[name])
    return axes


def read_constants(constants: Any, axes: Axes) -> dict[str, Any]:
    """The parameters that all cases share, checked."""
    if constants is None:
        return {}
    if not isinstance(constants, Mapping):
        raise TypeError(f"constants must map parameter names to values, got {type(constants).__name__}")
    for name in constants:
        if not isinstance(name, str):
            raise TypeError(f"constants must have names of parameters as keys, got {shown(name)}")
        if name in axes:
            raise ValueError(f"constants must not repeat a parameter of the grid, got {shown(name)} in both")
    return dict(constants)


def check_call(function: Any, names: Iterable[str]) -> frozenset[str]:
    """Check that `function` accepts these keywords and ``rng``; returns the names of its parameters."""
    if not callable(function):
        raise TypeError(f"function must be callable, got {shown(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a compiled function without a text signature
        return frozenset()
    try:
        signature.bind(**dict.fromkeys([*names, *{"rng"}.intersection(signature.parameters)]))
    except TypeError as error:
        called = f"{function_name(function)}{signature}"
        raise TypeError(
            f"function must take the parameters of grid and constants by name, got {called}: {error}"
        ) from None
    return frozenset(signature.parameters)


def _is_sequence(values: Any) -> bool:
    one = isinstance(values, (str, bytes, Mapping)) or getattr(values, "ndim", 1) == 0
    return not one and isinstance(values, Iterable)


def _check_distinct(where: str, values: list[Any]) -> None:
    """Refuse equal values, or values with the same label: the result could not tell them apart."""
    seen: set[Any] = set()
    for value, label in zip(values, labels(values).tolist(), strict=True):
        if label in seen:
            raise ValueError(f"{where} must have distinct values, got {short(value)} twice")
        seen.add(label)
