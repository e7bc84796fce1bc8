# SPDX-License-Identifier: BSD-3-Clause
"""One report from the finished cases of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.provenance import provenance
from .._base.text import some_of
from .make import sampled
from .measure import MULTIPLES
from .result import Report

if TYPE_CHECKING:
    from .._grid.case import Case
    from .._grid.fields import Fields
    from .folder import Work


def joined(work: Work, finished: Mapping[Case, Fields], about: Mapping[str, str]) -> Report | None:
    """The report of the heads whose cases are finished, layer by layer; None without any."""
    cases = sorted(finished, key=lambda case: case.index)
    if not cases:
        return None
    names = finished[cases[0]]
    arrays: dict[str, Any] = {
        name: np.concatenate([finished[case][name].values for case in cases]) for name in names
    }
    places = [(place, head) for place, *heads in (case.index for case in cases) for head in heads]
    layers = [work.layers[place] for place, _ in places]
    n_heads = work.n_heads
    told = {
        "model": work.folder.resolve().name,
        **{str(name): str(text) for name, text in about.items()},
        "tokens": str(work.layers[0].shape[1][-2]),
        "causal": "yes" if work.is_causal else "no",
        **sampled(work.rows, arrays["entropy_error"]),
        **({} if len(places) == n_heads else {"heads": f"{len(places)} of {n_heads}"}),
        **_gaps([each.layer for each in work.layers]),
    }
    return Report(
        layers=np.array([each.layer for each in layers], np.int64),
        heads=np.array([head for _, head in places], np.int64),
        lengths=np.array(work.lengths, np.int64),
        laws=work.laws,
        multiples=MULTIPLES,
        about=told,
        plan="",
        provenance=provenance(),
        modules=("",) * len(places),
        groups=("",) * len(places),
        **arrays,
    )


def _gaps(numbers: list[int]) -> dict[str, str]:
    """A note about layers that are not in the folder, between those that are."""
    lost = sorted(set(range(min(numbers), max(numbers))) - set(numbers))
    if not lost:
        return {}
    word = "layer" if len(lost) == 1 else "layers"
    ends = f"between {min(numbers)} and {max(numbers)}"
    return {"note": f"the folder has no {word} {some_of([*map(str, lost)])} {ends}"}
