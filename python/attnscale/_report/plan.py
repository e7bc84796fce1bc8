# SPDX-License-Identifier: BSD-3-Clause
"""Plan of a report of a folder: time, from a trial of one head, memory, and the size of the page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .._base.runtime import get_num_threads
from .._base.text import counted, duration, some_of, to_text
from .folder import Work, measure_part

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Pairs of a query and a key in the trial, over its lengths: seconds at most.
_TRIAL = 2**28
#: Samples of rows and numbers of machines that a plan compares.
_ROWS = (4096, 1024)
_MACHINES = (2, 8)
# Bytes of a page without heads, and of a number in it, with its comma.
_BARE_PAGE, _NUMBER = 73_000, 7.6
# Bytes of a process that measures nothing, and copies of a head's queries and keys while it is measured.
_BARE_PROCESS, _COPIES = 60_000_000, 4


class Plan(NamedTuple):
    """Time, memory and page of a report of a folder, as expected on this machine."""

    work: Work
    seconds: float  # of all heads
    numbers: int  # of a head in the page

    @property
    def cases(self) -> int:
        """Cases of the work."""
        return len(self.work.cases(stored=False))

    @property
    def heads(self) -> int:
        """Heads of all layers."""
        return self.work.n_heads

    @property
    def bytes_read(self) -> int:
        """Bytes of all files."""
        return sum(layer.nbytes for layer in self.work.layers)

    @property
    def memory(self) -> int:
        """Bytes of a process, roughly, without those of mapped files."""
        first = self.work.layers[0]
        size = 8 if first.dtype == "float64" else 4
        n, head_dim = self.work.lengths[-1], first.shape[0][-1]
        return _BARE_PROCESS + _COPIES * size * n * head_dim

    @property
    def page(self) -> int:
        """Bytes of the page, roughly."""
        return _BARE_PAGE + int(self.heads * self.numbers * _NUMBER)

    def choices(self) -> list[dict[str, Any]]:
        """Seconds with each sample of rows, on one machine and on several."""
        work = self.work
        wanted = {None, work.rows, *(rows for rows in _ROWS if rows < work.lengths[-1])}
        listed = sorted(wanted, key=lambda rows: -(rows or work.lengths[-1]))
        found: list[dict[str, Any]] = []
        for other in map(work.with_rows, listed):
            seconds, cases = self.seconds * other.pairs() / work.pairs(), len(other.cases(stored=False))
            found += (
                {"rows": other.rows, "machines": n, "seconds": seconds / min(n, cases)}
                for n in (1, *_MACHINES)
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON types."""
        work, (query, key) = self.work, self.work.layers[0].shape
        return {
            "folder": str(work.folder),
            "layers": len(work.layers),
            "heads": self.heads,
            "key_heads": sum(layer.shape[1][-3] for layer in work.layers),
            "tokens": key[-2],
            "head_dim": query[-1],
            "dtype": str(work.layers[0].dtype),
            "lengths": list(work.lengths),
            "laws": [law.spelling for law in work.laws],
            "rows": work.rows,
            "cases": self.cases,
            "bytes_read": self.bytes_read,
            "seconds": self.seconds,
            "memory_bytes": self.memory,
            "page_bytes": self.page,
            "choices": self.choices(),
        }

    def to_text(self) -> str:
        """The plan as a short table."""
        work, (query, key) = self.work, self.work.layers[0].shape
        shape = f"{counted(len(work.layers), 'layer')}, {counted(self.heads, 'head')}, {key[-2]} tokens"
        found = [
            f"{work.folder}: {shape}, head_dim {query[-1]}, {work.layers[0].dtype}, {_size(self.bytes_read)}",
            f"measured at {some_of([*map(str, work.lengths)])} tokens, in {counted(self.cases, 'case')}",
            f"a process takes about {_size(self.memory)}, the page {_size(self.page)}",
        ]
        by_rows: dict[Any, list[str]] = {}
        for each in self.choices():
            by_rows.setdefault(each["rows"], []).append(duration(each["seconds"]))
        header = ["--rows", "this machine", *(f"{n} such, --part K/{n}" for n in _MACHINES)]
        rows = [[str(rows or "all"), *cells] for rows, cells in by_rows.items()]
        note = (
            f"Times are extrapolated from a trial of one head, with {counted(get_num_threads(), 'thread')}."
        )
        return "\n".join([*found, "", to_text(header, rows), "", note])


def plan_of(work: Work) -> Plan:
    """The plan of a folder, after a trial with the first head of its first layer."""
    layer, lengths = work.layers[0], _trial(work)
    for _ in range(2):  # the first run does what all heads share
        start = time.perf_counter()
        found = measure_part((layer, work.heads_of(layer)[:1]), **{**work.options, "lengths": lengths})
        seconds = time.perf_counter() - start
    numbers = sum(each.size for each in found.values()) * len(work.lengths) // len(lengths)
    seconds *= work.pairs() / work.pairs(lengths)
    return Plan(work, seconds * work.n_heads, numbers)


def _trial(work: Work) -> Sequence[int]:
    """The lengths, halved until a head of them is short enough for a trial."""
    lengths = work.lengths
    while work.pairs(lengths) > _TRIAL and lengths[-1] > 64:
        lengths = tuple(dict.fromkeys(max(n // 2, 2) for n in lengths))
    return lengths


def _size(n_bytes: float) -> str:
    """Bytes as text.

    Examples
    --------
    >>> _size(48_318_382_080), _size(121_000)
    ('48.3 GB', '121 kB')
    """
    for size, name in ((1e9, "GB"), (1e6, "MB")):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {name}"
    return f"{n_bytes / 1e3:.0f} kB"
