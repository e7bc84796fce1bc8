# SPDX-License-Identifier: BSD-3-Clause
"""Calls that are planned from shapes and types: refused like calls on arrays, and with the same results."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import random_inputs

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

pytestmark = [pytest.mark.torch, pytest.mark.jax]


def arrays(n_keys: int = 7) -> tuple[Any, ...]:
    made = random_inputs(1, batch=(2,), heads=4, n_queries=5, n_keys=n_keys, head_dim=8)
    return tuple(x.astype(np.float32) for x in made)


def by_torch(given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    tensors = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    return at.torch.attention(*map(torch.from_numpy, given), backend="torch", **tensors).numpy()


def by_jax(given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The output of a compiled call, whose arrays are all traced."""
    traced = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    fixed = {name: x for name, x in options.items() if name not in traced}
    attend = jax.jit(lambda given, traced: at.jax.attention(*given, **traced, **fixed))
    return np.asarray(attend(tuple(map(jax.numpy.asarray, given)), traced))


REFUSED: dict[str, dict[str, Any]] = {
    "layout": {"layout": "token"},
    "qk_norm": {"qk_norm": "l3"},
    "softcap": {"softcap": 0},
    "window": {"window": (-1, 0)},
    "key lengths": {"key_lengths": np.array([1, 2, 3])},
    "key lengths of floats": {"key_lengths": np.ones(2, np.float32)},
    "documents": {"document_ids": np.zeros(3, np.int32)},
    "mask": {"attn_mask": np.ones((3, 7), bool)},
    "integer mask": {"attn_mask": np.ones((5, 7), np.int32)},
    "scale": {"scale": np.ones(3, np.float32)},
    "scale a head": {"scale": np.ones(4, np.float32)},
    "table": {"distance_bias": np.ones(3, np.float32)},
    "heads of a table": {"distance_bias": np.ones((3, 7), np.float32)},
    "gqa": {"enable_gqa": 1},
}


def message_of(attend: Any, given: tuple[Any, ...], options: dict[str, Any]) -> str:
    with pytest.raises((TypeError, ValueError), match=" must ") as refused:
        attend(given, options)
    return f"{refused.type.__name__}: {refused.value}"


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_options_are_refused_as_on_arrays(options: dict[str, Any]) -> None:
    wanted = message_of(lambda given, options: at.attention(*given, **options), arrays(), options)
    assert message_of(by_torch, arrays(), options) == wanted.replace(".astype(bool)", ".bool()")
    own = wanted if "layout" not in options else wanted.replace(", got", " for arrays of JAX, got")
    assert message_of(by_jax, arrays(), options) == own


@pytest.mark.parametrize("cut", [(0, 0, 0), (..., slice(3)), (slice(None), slice(3))], ids=str)
def test_shapes_are_refused_as_on_arrays(cut: Any) -> None:
    query, key, value = arrays()
    given = query[cut], key, value
    wanted = message_of(lambda given, options: at.attention(*given), given, {})
    assert message_of(by_torch, given, {}) == message_of(by_jax, given, {}) == wanted


COUNTED: dict[str, dict[str, Any]] = {
    "lengths of a small type": {
        "key_lengths": np.array([100, 127], np.int8),
        "distance_bias": np.linspace(0, 1, 300, dtype=np.float32),
    },
    "documents": {"document_ids": np.repeat(np.arange(3), 100), "distance_scale": np.linspace(1, 2, 300)},
    "a mask that a law counts": {"attn_mask": np.arange(1500).reshape(5, 300) % 3 > 0, "scale": "log_n"},
    "a row size beside a mask": {"attn_mask": np.arange(1500).reshape(5, 300) % 3 > 0, "scale": "ssmax"},
}


@pytest.mark.parametrize("options", COUNTED.values(), ids=COUNTED)
def test_keys_are_counted_as_on_arrays(options: dict[str, Any]) -> None:
    given = arrays(n_keys=300)
    wanted = at.attention(*given, **options)
    np.testing.assert_allclose(by_torch(given, options), wanted, atol=1e-5)
    np.testing.assert_allclose(by_jax(given, options), wanted, atol=1e-5)


def test_a_normalizer_counts_the_keys_of_a_known_mask() -> None:
    given, mask = arrays(), np.arange(35).reshape(5, 7) % 3 > 0
    options: dict[str, Any] = {"normalizer": "relu", "attn_mask": mask, "is_causal": True}
    found = at.jax.attention(*map(jax.numpy.asarray, given), **options)
    np.testing.assert_allclose(found, at.attention(*given, **options), atol=1e-6)
