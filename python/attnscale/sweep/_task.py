# SPDX-License-Identifier: BSD-3-Clause
"""The task of a sweep: what a process needs to run one of its cases."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._grid.case import Case
from .._grid.errors import Failure
from .._grid.fields import Reserved, to_fields
from .._grid.runners import Outcome
from .._runtime import get_num_threads, threads_within
from ..laws import FunctionLaw
from ._case_seeds import case_seed
from ._laws import make_known


@dataclass(frozen=True)
class FunctionTask:
    """All that a process needs to run a case of the sweep.

    Attributes
    ----------
    function : callable
    constants : dict
    seed : SeedSequence or None
        The seed of the whole sweep; None if the function takes no ``rng``.
    reserved : frozenset of str
        Names of the axes.
    laws : tuple of FunctionLaw
        Laws that the parameters name and that another process has not registered.
    num_threads : int or None
        The most threads of attention in another process.
    away : bool
        Whether the task was pickled, and so is in another process than the caller's.
    """

    function: Callable[..., Any]
    constants: dict[str, Any]
    seed: np.random.SeedSequence | None
    reserved: Reserved
    laws: tuple[FunctionLaw, ...] = ()
    num_threads: int | None = None
    away: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.function, self.constants, self.seed, self.reserved, self.laws, self.num_threads)
        return FunctionTask, (*parts, True)

    def __call__(self, case: Case) -> Outcome:
        """The result of a case; what went wrong, as text, if an exception did."""
        try:
            if self.away:
                make_known(self.laws)
            arguments = {**self.constants, **case.parameters}
            if self.seed is not None:
                arguments["rng"] = np.random.default_rng(case_seed(self.seed, case))
            with self._few_threads():
                result = self.function(**arguments)
            if getattr(result, "interrupted", False) is True:
                raise KeyboardInterrupt  # an experiment that returned what it had at Ctrl-C
            return to_fields(result, self.reserved)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            return Failure(f"{type(error).__name__}: {error}", trace, None if self.away else error)

    def _few_threads(self) -> AbstractContextManager[None]:
        """Give a worker its share of the threads, on which results do not depend."""
        if self.num_threads is None or not self.away:
            return nullcontext()
        return threads_within(min(get_num_threads(), self.num_threads))
