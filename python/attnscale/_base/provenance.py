# SPDX-License-Identifier: BSD-3-Clause
"""The record of how a random result was made, from which it can be made again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from .._core import __version__, num_threads, simd_level


@dataclass(frozen=True)
class Provenance:
    """Versions, machine and seed behind a result.

    Attributes
    ----------
    attnscale, numpy : str
        Versions.
    simd_level : str
        Instruction set in use. Results do not depend on it; running times do.
    num_threads : int
        Default number of threads, on which results do not depend either.
    seed : int, tuple of int or None
        The ``rng=`` argument, or NumPy's fresh ``entropy`` (see :class:`numpy.random.SeedSequence`); None
        if nothing was random.
    spawn_key : tuple of int
        The seed's ``spawn_key``: ``SeedSequence(seed, spawn_key=spawn_key)`` makes the seed again.
    created : str
        UTC time, ISO 8601 to the second.
    """

    attnscale: str
    numpy: str
    simd_level: str
    num_threads: int
    seed: int | tuple[int, ...] | None
    spawn_key: tuple[int, ...]
    created: str

    def to_dict(self) -> dict[str, Any]:
        """The fields as flat strings and integers, for JSON and for attributes of a Dataset.

        The seed has up to 128 bits, too many for a number of either: it is written in decimal digits, the
        integers of a sequence separated by blanks.

        Examples
        --------
        >>> provenance(np.random.SeedSequence(7)).to_dict()["seed"]
        '7'
        """
        words = (self.seed,) if isinstance(self.seed, int) else self.seed or ()
        return {
            "attnscale": self.attnscale,
            "numpy": self.numpy,
            "simd_level": self.simd_level,
            "num_threads": self.num_threads,
            "seed": " ".join(map(str, words)),
            "spawn_key": " ".join(map(str, self.spawn_key)),
            "created": self.created,
        }


def provenance(seed: np.random.SeedSequence | None = None) -> Provenance:
    """Provenance of a result computed now from this seed; None if nothing is random.

    Examples
    --------
    >>> record = provenance(np.random.SeedSequence(7, spawn_key=(2,)))
    >>> record.seed, record.spawn_key
    (7, (2,))
    """
    entropy = None if seed is None else seed.entropy
    return Provenance(
        attnscale=__version__,
        numpy=np.__version__,
        simd_level=simd_level(),
        num_threads=num_threads(),
        seed=int(entropy) if isinstance(entropy, (int, np.integer)) else _words(entropy),
        spawn_key=() if seed is None else tuple(map(int, seed.spawn_key)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _words(entropy: Any) -> tuple[int, ...] | None:
    return None if entropy is None else tuple(map(int, np.ravel(entropy)))
