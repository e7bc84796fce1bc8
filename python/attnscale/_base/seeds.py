# SPDX-License-Identifier: BSD-3-Clause
"""64-bit keys of the random generator from an `rng=` argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .checks import refusal, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

RNG: TypeAlias = "int | Sequence[int] | np.random.SeedSequence | np.random.BitGenerator | np.random.Generator"


def seed_sequence(rng: Any) -> np.random.SeedSequence:
    """The SeedSequence of an `rng=` argument (Scientific Python SPEC 7).

    None is fresh entropy; an integer or a sequence of integers gives the same seed every time. A Generator
    or BitGenerator gives 128 bits, so the next call with it gets other numbers.

    Raises
    ------
    TypeError, ValueError
        If it is anything else, or a negative integer.

    Examples
    --------
    >>> seed_sequence(7).entropy
    7
    """
    if isinstance(rng, np.random.SeedSequence):
        return rng
    if isinstance(rng, np.random.BitGenerator):
        rng = np.random.Generator(rng)
    if isinstance(rng, np.random.Generator):
        return np.random.SeedSequence(rng.integers(0, 2**32, 4, np.uint32).tolist())
    rule = "must be None, an integer of at least 0, integers, a SeedSequence or a Generator"
    if isinstance(rng, (bool, np.bool_, str, bytes)):
        raise refusal(TypeError, "rng", f"{rule}, got {shown(rng)}")
    try:
        return np.random.SeedSequence(rng)
    except TypeError:
        raise refusal(TypeError, "rng", f"{rule}, got {shown(rng)}") from None
    except ValueError:
        raise refusal(ValueError, "rng", f"{rule}, got {shown(rng)}") from None


def philox_key(seed: np.random.SeedSequence) -> int:
    """64 bits of the seed: the key of Philox4x32-10."""
    return int(seed.generate_state(1, np.uint64)[0])


def case_key(seed: np.random.SeedSequence, identity: tuple[int, ...]) -> int:
    """The key of the case with these numbers, such as its n and head_dim.

    It depends on the case alone: n = 512 has the same numbers with or without n = 4096 beside it, and the
    two are independent.
    """
    return philox_key(child_seed(seed, identity))


def child_seed(seed: np.random.SeedSequence, identity: tuple[int, ...]) -> np.random.SeedSequence:
    """The child of a seed for these numbers, independent of other children."""
    spawn_key = (*seed.spawn_key, *identity)
    return np.random.SeedSequence(seed.entropy, spawn_key=spawn_key, pool_size=seed.pool_size)


def seed_to_json(seed: np.random.SeedSequence) -> dict[str, Any]:
    """Numbers from which :func:`seed_from_json` makes the same seed."""
    entropy = np.asarray(seed.entropy, object)
    return {
        "entropy": [int(word) for word in entropy.ravel()] if entropy.ndim else int(entropy.item()),
        "spawn_key": [int(word) for word in seed.spawn_key],
        "pool_size": seed.pool_size,
    }


def seed_from_json(stored: dict[str, Any]) -> np.random.SeedSequence:
    """The seed that :func:`seed_to_json` wrote."""
    return np.random.SeedSequence(
        stored["entropy"], spawn_key=tuple(stored["spawn_key"]), pool_size=stored["pool_size"]
    )
