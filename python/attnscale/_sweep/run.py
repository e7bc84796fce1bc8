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
        tuple, mapping or dataclass of them, or an object with ``to_xarray()``.
    grid : mapping of str to sequence
        Values of each parameter that varies. All combinations are computed.
    constants : mapping of str to object, optional
        Parameters that are the same everywhere.
    n_jobs : int, default 1
        Number of joblib processes, which share the cores; closures and functions of a notebook work. -1 is
        one for each core.
    executor : concurrent.futures.Executor, optional
        Runs the cases in place of joblib: ``ProcessPoolExecutor``,
        ``dask.distributed.Client.get_executor()``, those of mpi4py and ipyparallel, ...
    store : path, optional
        Directory that keeps each finished case. Cases found there are not computed again, except damaged
        ones.
    part : str or pair of int, optional
        "k/N" or (k, N): compute only the k-th of N parts of the cases, counted from 1, for a store that the
        parts share. The result has the cases then stored, NaN elsewhere: the part that ends last, and the
        same call without `part`, have all of them, bit for bit.
    progress : bool or callable, default True
        True: a bar, if standard error is a terminal and tqdm is installed. A callable gets
        ``progress(finished, total)``, at the start and after every case.
    rng : None, int, SeedSequence or Generator, optional
        Seed for a function with a parameter ``rng``, which receives a ``numpy.random.Generator``. Each case
        has its own stream, derived from its parameters: independent of other cases, of the order and of the
        machine. With None and a store, a resumed sweep uses its first seed.

    Returns
    -------
    xarray.Dataset
        The parameters of the grid are its first axes. A plain number or array is the variable ``value``;
        unnamed axes are ``dim_0``, ``dim_1``, .... Shorter arrays are padded with NaN. The attributes record
        the function, constants, versions and seed, and the number of ``missing`` cases.

    Raises
    ------
    TypeError, ValueError
        If the function cannot be called with these names, an argument is wrong, or the store belongs to
        another function, grid, seed, version or program.
    SweepError
        If some cases raised, after all others are finished; the message names them.
    SweepInterrupted
        On Ctrl-C: a KeyboardInterrupt with the results so far.
    ImportError
        If xarray, or joblib for ``n_jobs``, is not installed.

    Notes
    -----
    A store identifies the function by name, source, defaults and closure, arrays by content, other objects by
    repr. It does not see global variables that the function reads, or functions that it calls.

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
