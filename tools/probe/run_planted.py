# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.probe.run_planted: faults of planted engines that a probe names, and false alarms."""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import attnscale as at
import torch
from transformers.utils import logging

from .asked import Engine, read
from .configs import FAMILIES, cases
from .planted import PLANTED, QUICK, Planted

#: Words of the longest prompt: more than the windows and the temperatures of the configs.
LONGEST = 4200


class Outcome(NamedTuple):
    """The reading of one engine."""

    family: str
    scaling: str
    layer: str
    wanted: str
    slips: tuple[str, ...]
    wrong: bool

    @property
    def right(self) -> bool:
        """Whether the reading names the fault and no other, or finds none where there is none."""
        return self.slips == (self.wanted,) if self.wanted else not self.wrong


def planted(cases: Iterable[Planted], dtype: str) -> Iterator[Outcome]:
    """Read each engine with a fault."""
    for case in cases:
        with _written(case.config, layer=case.layer) as probe:
            found = read(probe, lambda folder, case=case: case.fault.engine(folder, dtype))  # type: ignore[misc]
        yield Outcome(case.family, case.scaling, str(case.layer), case.slip, found.slips, found.wrong)


def untouched(families: Iterable[str], scalings: Iterable[str], dtype: str) -> Iterator[Outcome]:
    """Read transformers as it is."""
    chosen = set(scalings)
    for family, scaling, config in cases(families):
        if not chosen or scaling in chosen:
            with _written(config) as probe:
                found = read(probe, lambda folder: Engine(folder, dtype))
            yield Outcome(family, scaling, "all", "", found.slips, found.wrong)


@contextmanager
def _written(config: dict[str, Any], **options: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield at.probe.write(config, Path(folder) / "probe", longest=LONGEST, **options)


def quick() -> tuple[Planted, ...]:
    """The first case of each pair of QUICK."""
    return tuple(next(case for case in PLANTED if (case.slip, case.family) == pair) for pair in QUICK)


def main() -> None:
    """Run all, and print what was not read right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a subset that a test runs")
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--family", nargs="*", default=[])
    parser.add_argument("--scaling", nargs="*", default=[], help="of untouched engines")
    parser.add_argument("--json", type=Path, help="file for all outcomes")
    args = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    families = args.family or list(FAMILIES)
    faults = [case for case in (quick() if args.quick else PLANTED) if case.family in families]
    kept, lost = {}, 0
    for dtype in args.dtype:
        named = list(_told(planted(faults, dtype), dtype))
        clean = list(_told(untouched(families, ["yarn"] if args.quick else args.scaling, dtype), dtype))
        kept[dtype] = {
            "planted": [each._asdict() for each in named],
            "untouched": [each._asdict() for each in clean],
        }
        false = sum(not each.right for each in clean)
        lost += false + sum(not each.right for each in named)
        print(f"{dtype}: {sum(each.right for each in named)} of {len(named)} faults named; ", end="")
        print(f"{false} false alarms in {len(clean)} untouched engines", flush=True)
    if args.json:
        args.json.write_text(json.dumps(kept, indent=1) + "\n")
    raise SystemExit(1 if lost else 0)


def _told(outcomes: Iterator[Outcome], dtype: str) -> Iterator[Outcome]:
    """Print outcomes that are not right as they come."""
    for each in outcomes:
        if not each.right:
            said = "; ".join(each.slips) or ("wrong, without a name" if each.wrong else "as asked")
            where = f"{dtype} {each.family} {each.scaling} layer {each.layer}"
            print(f"  {where}: {each.wanted or 'untouched'}: got {said}", flush=True)
        yield each


if __name__ == "__main__":
    main()
