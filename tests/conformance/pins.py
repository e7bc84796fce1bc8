# SPDX-License-Identifier: BSD-3-Clause
"""Bits of the results of every case, which changes of the package's structure must not change.

pins.json has for each case, and each SIMD level of the machine that wrote it, a short hash of output and
statistics in float32 and in float64. The core gives the same bits at one level on every machine, whatever the
number of threads; what NumPy's and C's functions compute before it (logarithms of laws and normalizers) may
differ by a rounding. The file has a fingerprint of these functions, and cases that depend on them are
compared only where it is the same.

`python -m tests.conformance.pins --write` writes pins.json and refusals.json by this package: after a change
that is meant to change them, and with a word on it in the commit.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
from attnscale.conformance import CASES, Case

from .backends import Backend
from .truth import statistics_of

_FILE = Path(__file__).with_name("pins.json")
_TYPES = ("float32", "float64")


def _digest(*arrays: Any) -> str:
    whole = hashlib.sha256()
    for x in arrays:
        # A processor may return any of the many bit patterns of NaN.
        plain = np.where(np.isnan(x), np.nan, x) if x.dtype.kind == "f" else x
        whole.update(repr((plain.dtype.str, plain.shape)).encode() + np.ascontiguousarray(plain).tobytes())
    return whole.hexdigest()[:7]


def fingerprint() -> str:
    """Hash of the functions of NumPy and C that laws and normalizers call."""
    x = np.linspace(0.01, 90, 997)
    of_c = [f(each) for f in (math.log, math.sqrt, math.exp) for each in x.tolist()]
    return _digest(np.log(x), np.exp(x), np.sqrt(x), x**0.3, np.array(of_c))


def depends_on_functions(case: Case) -> bool:
    """Whether a number of the call depends on functions outside the core."""
    is_law = isinstance(case.options.get("scale"), (str, at.laws.Law))
    return is_law or at.normalizers.get(case.options.get("normalizer", "softmax")).name in (
        "softmax_n",
        "sigmoid",
    )


def bits(name: str) -> str:
    """Hashes of a case at the level of this process, one for each type."""
    case = CASES[name]
    hashes = []
    for dtype in _TYPES:
        arrays = [None if x is None else x.astype(dtype) for x in case.arrays()]
        found = Backend().values(arrays, case, statistics_of(case))
        hashes.append(_digest(*(np.asarray(found[each]) for each in sorted(found))))
    return " ".join(hashes)


def pinned(level: str) -> dict[str, str] | None:
    """Hashes of a level that can be compared in this process; None for a level without hashes."""
    told = json.loads(_FILE.read_text(encoding="utf-8"))
    level = told["as"].get(level, level)
    if level not in told["levels"]:
        return None
    at_level = told["levels"].index(level)
    same = told["functions"] == fingerprint()
    found = {name: hashes.split(", ")[at_level] for name, hashes in told["bits"].items()}
    return {name: x for name, x in found.items() if same or not depends_on_functions(CASES[name])}


def _measure() -> dict[str, str]:
    warnings.simplefilter("ignore")
    return {name: bits(name) for name in CASES}


def _measure_at(level: str) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.conformance.pins"]
    environment = os.environ | {"ATTNSCALE_SIMD": level, "PYTHONPATH": "tests"}
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    measured: dict[str, str] = json.loads(found.stdout)
    return measured


def write() -> None:
    """Write pins.json for all levels of this machine."""
    found: dict[str, dict[str, str]] = {}
    same: dict[str, str] = {}
    for level in at.show_config()["available_simd_levels"]:
        measured = _measure_at(level)
        twin = next((each for each, x in found.items() if x == measured), None)
        if twin is None:
            found[level] = measured
        else:
            same[level] = twin
    told = {
        "functions": fingerprint(),
        "levels": [*found],
        "as": same,
        "bits": {name: ", ".join(x[name] for x in found.values()) for name in CASES},
    }
    _FILE.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv:
        from . import refusals

        write()
        refusals.write()
    else:
        print(json.dumps(_measure()))
