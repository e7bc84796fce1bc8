# SPDX-License-Identifier: BSD-3-Clause
"""The fields of a result as JSON holds them: numbers to the last bit, NaN as null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._provenance import Provenance
from .._seeds import seed_from_json, seed_to_json
from ._tally import Tally


def as_stored(fields: dict[str, Any]) -> dict[str, Any]:
    """What a file keeps of the fields of an ExperimentResult."""
    return {
        **fields,
        "estimates": {
            name: {key: each if key == "unit" else _listed(each) for key, each in vars(estimate).items()}
            for name, estimate in fields["estimates"].items()
        },
        "samples": np.asarray(fields["samples"]).tolist(),
        "provenance": asdict(fields["provenance"]),
        "_betas": None if fields["_betas"] is None else _listed(fields["_betas"]),
        "_seed": seed_to_json(fields["_seed"]),
        "_tallies": [
            {name: _listed(each) for name, each in vars(tally).items()} for tally in fields["_tallies"]
        ],
    }


def from_stored(stored: dict[str, Any]) -> dict[str, Any]:
    """The fields that :func:`as_stored` wrote; estimates as dictionaries."""
    shape = tuple(map(len, stored["axes"].values()))
    made = stored["provenance"]
    seed = made["seed"]
    return {
        **stored,
        "estimates": {
            name: {key: each[key] if key == "unit" else _shaped(each[key], shape) for key in each}
            for name, each in stored["estimates"].items()
        },
        "axes": {name: tuple(labels) for name, labels in stored["axes"].items()},
        "samples": np.array(stored["samples"], np.int64) if shape else stored["samples"],
        "provenance": Provenance(
            **{
                **made,
                "seed": tuple(seed) if isinstance(seed, list) else seed,
                "spawn_key": tuple(made["spawn_key"]),
            }
        ),
        "_betas": None if stored["_betas"] is None else np.array(stored["_betas"], np.float64),
        "_seed": seed_from_json(stored["_seed"]),
        "_tallies": tuple(_tally(each) for each in stored["_tallies"]),
    }


def _tally(stored: dict[str, Any]) -> Tally:
    arrays = (np.array(stored[name], np.float64) for name in ("origin", "sums", "products"))
    return Tally(int(stored["rows"]), *arrays)


def _listed(values: Any) -> Any:
    """Numbers as nested lists; what is not finite as null."""
    array: NDArray[Any] = np.asarray(values)
    return np.where(np.isfinite(array), array.astype(object), np.array(None)).tolist()


def _shaped(stored: Any, shape: tuple[int, ...]) -> Any:
    array = np.array(stored, np.float64)
    return array if shape else float(array)
