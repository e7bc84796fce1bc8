# SPDX-License-Identifier: BSD-3-Clause
"""Cases that time our attention in turns with that of every other installed package."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._engines import ENGINES, Engine, Prepared
from ._rows import Row, Unit, skipped
from ._session import OURS, Measured, Session, random_heads

__all__ = ["beside", "checked"]

#: Tolerated difference of results, relative to our largest number.
_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}


def beside(session: Session, name: str, *, work: str, n: int, head_dim: int, dtype: str) -> list[Row]:
    """Share of the peak of each engine; missing engines and those with other results are not timed."""
    engines = ENGINES[work].engines
    what = f"{work} {dtype}, 8 x {n} x {head_dim}"
    try:
        kind = np.dtype(np.float32 if dtype == "float32" else import_module("ml_dtypes").bfloat16)
    except ImportError as error:
        return [skipped(name, what, Unit.SHARE, str(error))]
    wide = [*random_heads(8, n, head_dim)]
    if work == "step":
        wide.append(np.random.default_rng(1).standard_normal(wide[0].shape, np.float32))
    arrays = [array.astype(kind) for array in wide]
    ours = engines[OURS].prepare(*arrays, session.threads)
    expected = ours.read(ours.call())
    found = {
        engine: checked(of, arrays, session.threads, expected, _TOLERANCE[dtype])
        for engine, of in engines.items()
    }
    measured = session.measure({name: of.call for name, of in found.items() if isinstance(of, Prepared)})
    flops = ENGINES[work].flops * 8 * n * n * head_dim
    rows = []
    for engine, of in found.items():
        row, said = (name, what) if engine == OURS else (f"{name}_{engine}", f"  {engines[engine].title}")
        if not isinstance(of, Prepared):
            rows.append(skipped(row, said, Unit.SHARE, of))
            continue
        share = partial(Measured.share_of_peak, flops=flops, name=engine)
        rows.append(measured.row(row, said, Unit.SHARE, share, flops=flops, of=engine))
    return rows


def checked(
    engine: Engine, arrays: list[NDArray[Any]], threads: int, expected: NDArray[Any], tolerance: float
) -> Prepared | str:
    """The call of an engine whose result equals ours, or the reason why there is none."""
    try:
        prepared = engine.prepare(*arrays, threads)
        found = prepared.read(prepared.call())
    except ImportError:
        return f"{engine.package} is not installed"
    except Exception as error:  # any failure of another package belongs in the table
        return " ".join(str(error).split())[:120]
    if found.shape != expected.shape:
        return f"computes something else: of shape {found.shape}"
    apart = float(np.abs(found - expected).max() / np.abs(expected).max())
    return prepared if apart <= tolerance else f"computes something else: {apart:.1e} of the largest apart"
