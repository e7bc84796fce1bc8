# SPDX-License-Identifier: BSD-3-Clause
"""The function ``sweep``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .._base.hints import hinted

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import xarray

    from .._grid.progress import Progress


@hinted
def sweep(
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
) -> xarray.Dataset:
    """Call a function at every point of a grid of parameters.

    Parameters
    ----------
    function : callable
        Called as ``function(**constants, **point)``. It returns a number, an array, a string, a
        tuple, mapping or dataclass of them, or something with ``to_xarray()``.
    grid : mapping of str to sequence
        Values of each parameter that varies. All combinations are computed.
    constants : mapping of str to object, optional
        Parameters that are the same everywhere.
    n_jobs : int, default 1
        Processes, by joblib: closures and functions of a notebook work. -1 is one for each core.
        The workers share the cores.
    executor : concurrent.futures.Executor, optional
        Runs the cases instead: ``ProcessPoolExecutor``, ``dask.distributed.Client.get_executor()``,
        those of mpi4py and ipyparallel, ...
    store : path, optional
        Directory that keeps each case as soon as it is finished. A sweep that finds its own cases
        there does not compute them again; a damaged file is computed again.
    part : str or pair of int, optional
        "k/N" or (k, N): compute only the k-th of N parts of the cases, counted from 1, for a store that the
        parts share. The result has the cases that the store then has, NaN where there is none: the part that
        ends last, and the same call without `part`, have all of them, bit for bit.
    progress : bool or callable, default True
        True: a bar, if standard error is a terminal and tqdm is installed. A callable gets
        ``progress(finished, total)``, at the start and after every case.
    rng : None, int, SeedSequence or Generator, optional
        Seed for a function that has a parameter ``rng``, which gets a ``numpy.random.Generator``.
        Each case has a stream of its own, found from its parameters: it depends neither on the other
        cases, nor on the order, nor on where it runs. With None and a store, a sweep that is resumed
        uses the seed that it began with.

    Returns
    -------
    xarray.Dataset
        The parameters of the grid are its first axes. A plain number or array is the variable
        ``value``; unnamed axes are ``dim_0``, ``dim_1``, .... Arrays of different extents are filled
        up with NaN. The attributes say what ran: function, constants, versions, seed; and how many cases
        are ``missing``.

    Raises
    ------
    TypeError, ValueError
        If the function cannot be called with these names, an argument is wrong, or the store holds
        something else: another function, grid, seed or version, or files of another program.
    SweepError
        After all other cases are finished, if some raised: its message names them.
    SweepInterrupted
        A KeyboardInterrupt that has the results so far, at Ctrl-C.
    ImportError
        If xarray, or joblib for ``n_jobs``, is not installed.

    Notes
    -----
    A store recognises its function by name, source, defaults and closure, arrays by their content,
    other objects by their repr. It does not see what the function reads from global variables or
    what functions it calls.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> data = at.datasets.minilm_qk()
    >>> def mean_entropy(n, scale):
    ...     return at.attention_entropy(data.query[:, :n], data.key[:, :n], scale=scale).mean()
    >>> table = at.sweep(mean_entropy, {"n": [128, 512], "scale": ["standard", "log_n"]})
    >>> table["value"].sel(scale="log_n").values.round(2)
    array([3.52, 4.3 ], dtype=float32)
    """
    from .plan import compute  # not at the top, so that ``import attnscale`` does not pay for it

    return compute(
        function,
        grid,
        constants=constants,
        n_jobs=n_jobs,
        executor=executor,
        store=store,
        part=part,
        progress=progress,
        rng=rng,
    )
