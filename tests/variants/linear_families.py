# SPDX-License-Identifier: BSD-3-Clause
"""The families of linear time for all tests of them: function, options, twin, gradients and state."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from attnscale import reference
from attnscale import variants as av
from cases import dtype_of, random_inputs

DIRECTIONS = av.performer_projection(24, 8, rng=3)


class Family(NamedTuple):
    """The name of a function, options for every call, and what keeps its sums."""

    name: str
    options: dict[str, Any]
    state_class: Any

    def call(self, *arrays: Any, **options: Any) -> Any:
        return getattr(av, self.name)(*arrays, **self.options, **options)

    def twin(self, *arrays: Any, **options: Any) -> Any:
        return getattr(reference, self.name)(*arrays, **self.options, **options)

    def state(self, **options: Any) -> Any:
        return self.state_class(**self.options, **options)

    def gradients(self, *arrays: Any, **options: Any) -> Any:
        return av.gradients(self.name, *arrays, **self.options, **options)

    def twin_gradients(self, *arrays: Any, **options: Any) -> dict[str, Any]:
        return twin(self.name, *arrays, **self.options, **options)


FAMILIES = {
    "efficient": Family("efficient_attention", {"scale": 0.7}, av.EfficientState),
    "scaling": Family("efficient_attention", {"normalization": "scaling", "scale": 1.3}, av.EfficientState),
    "elu": Family("linear_attention", {}, av.LinearState),
    "relu": Family("linear_attention", {"feature_map": "relu"}, av.LinearState),
    "squares": Family("linear_attention", {"feature_map": np.square}, av.LinearState),
    "cosformer": Family("cosformer_attention", {"max_length": 700}, av.CosformerState),
    "performer": Family("performer_attention", {"projection": DIRECTIONS}, av.PerformerState),
}
#: Families for positions beyond 700.
LONG = FAMILIES | {"cosformer": FAMILIES["cosformer"]._replace(options={"max_length": 9000})}
DIFFERENTIABLE = [name for name in FAMILIES if name != "squares"]
MASKS = ({}, {"is_causal": True}, {"causal": "bottom_right"}, {"causal": 3})
NAMES = ("query", "key", "value")


def wide(*arrays: Any) -> list[Any]:
    return [np.asarray(x, np.float64) for x in arrays]


def twin(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Gradients of the definition by name."""
    return vars(reference.gradients(*arguments, **options))


def gradient_of(shape: Any, dtype: str = "float64") -> Any:
    return np.random.default_rng(9).standard_normal(shape).astype(dtype_of(dtype))


def four_arrays(seed: int, *, dtype: str = "float32", head_dim: int = 8, **shapes: Any) -> list[Any]:
    """Query, key, value, and a gradient of the output."""
    arrays = random_inputs(seed, dtype=dtype, head_dim=head_dim, **shapes)
    return [*arrays, gradient_of((*arrays[0].shape[:-1], arrays[2].shape[-1]), dtype)]


def close(found: Any, expected: dict[str, Any], relative: float) -> None:
    """Gradients to a share of the largest entry of all three."""
    largest = max(abs(expected[name]).max(initial=0) for name in NAMES)
    for name in NAMES:
        want, limit = expected[name], relative * largest
        np.testing.assert_allclose(getattr(found, name), want, rtol=0, atol=limit, err_msg=name)


def same_bits(found: Any, wanted: Any, names: tuple[str, ...] = NAMES) -> None:
    for name in names:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
