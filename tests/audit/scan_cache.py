# SPDX-License-Identifier: BSD-3-Clause
"""Measurements of every model type, in files that a second run finds again."""

from __future__ import annotations

import contextlib
import io
import pickle
import time
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import Any

Measured = dict[str, tuple[dict[str, Any], Any]]  # by label: the config, and the heads or why there are none


def measured(folder: Path, kind: str) -> Measured | None:
    """What an earlier run found, or None."""
    file = folder / f"{kind}.pkl"
    if not file.exists():
        return None
    found: Measured = pickle.loads(file.read_bytes())
    return found


def fill(folder: Path, kinds: list[str], processes: int, seconds: float) -> None:
    """Measure what is not in the folder yet, until the time is over."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [kind for kind in kinds if not (folder / f"{kind}.pkl").exists()]
    end = time.monotonic() + seconds
    with get_context("spawn").Pool(processes) as pool:
        for _ in pool.imap_unordered(_fill_one, [(folder, kind, end) for kind in waiting]):
            pass


def _fill_one(task: tuple[Path, str, float]) -> None:
    folder, kind, end = task
    if time.monotonic() > end:
        return
    content = pickle.dumps(measure_all(kind))
    file = folder / f"{kind}.pkl"
    file.with_suffix(".part").write_bytes(content)
    file.with_suffix(".part").rename(file)


def measure_all(kind: str) -> Measured:
    """Every change of one type."""
    import scan_changes

    found: Measured = {}
    with quiet():
        try:
            for label, keys in scan_changes.changes(kind):
                found[label] = measure_one(kind, keys)
            for label, keys in scan_changes.saved_forms(kind):
                found[label] = measure_one(kind, keys)
        except Exception as error:
            found["none"] = ({}, f"{type(error).__name__}: {error}"[:300])
    return found


def measure_one(kind: str, keys: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The config and its heads, or the reason why there are none."""
    import scan_measure

    try:
        return scan_measure.measure(kind, keys)
    except Exception as error:
        return {"model_type": kind, **keys}, f"{type(error).__name__}: {error}"[:300]


@contextlib.contextmanager
def quiet() -> Any:
    """Configs and models say much while they are made."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity(50)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
