# SPDX-License-Identifier: BSD-3-Clause
"""Bad calls on arrays of JAX: an error names the argument, the rule and what was seen.

It is raised where the call is traced if the reason is known there, else when the program runs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import attnscale as at
import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from attnscale.jax import _ffi  # noqa: E402

from tests.conformance.refusals import BAD, wanted  # noqa: E402

pytestmark = pytest.mark.jax

Q = np.ones((2, 4, 8), np.float32)
ROWS = {"query": Q, "key": Q, "value": Q}

#: Bad options of kinds that only JAX has, with the error and the message of attention.
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no value": ({"value": None}, TypeError, "value must be an array, got None; attention_statistics works"),
    "keys of random numbers": (
        {"key": jax.random.key(0)},
        TypeError,
        "key must be an array of numbers, got one of key<fry>",
    ),
    "text": ({"key": np.array(["a"])}, TypeError, "key must be an array of JAX or NumPy, got an array of"),
    "float8": (
        {"query": jnp.ones((2, 4, 8), jnp.float8_e5m2)},
        TypeError,
        "query must be float64, float32, float16 or bfloat16, got float8_e5m2",
    ),
    "scale": ({"scale": [1.0, 2.0]}, ValueError, "scale must broadcast to (..., heads, n_queries) = (2, 4)"),
    "scale of complex numbers": (
        {"scale": jnp.ones((2, 1), complex)},
        TypeError,
        "scale must be a number, an array of numbers, a law or its name",
    ),
    "sink": (
        {"normalizer": at.jax.Sink(jnp.ones(3))},
        ValueError,
        "logits must be one number or one a head, 2, got 3",
    ),
    "sink of a number": (
        {"normalizer": at.jax.Sink(1.0)},
        TypeError,
        "logits of attnscale.jax.Sink must be an array, got 1.0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_calls(name: str) -> None:
    given, error, message = WRONG[name]
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        at.jax.attention(**{**ROWS, **given})


@pytest.mark.parametrize("name", ["scale of complex numbers", "sink"])
def test_bad_shapes_and_types_of_traced_options(name: str) -> None:
    given, error, message = WRONG[name]
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        jax.jit(lambda given: at.jax.attention(**ROWS, **given))(given)


OF_SHAPES = [
    *(f"attn_mask: {word}" for word in ("turned", "wide", "empty", "of keys", "integers")),
    *("key_lengths: floats", "distance_bias: few", "distance_bias: heads", "scale: shape", "scale: wide"),
]


@pytest.mark.parametrize("traced", [False, True], ids=["an array of JAX", "traced"])
@pytest.mark.parametrize("name", OF_SHAPES)
def test_bad_arrays_of_jax_are_refused_like_numpy_arrays(name: str, traced: bool) -> None:
    """Messages differ in the width of numbers only, 32 bits here."""
    ((option, given),) = BAD[name].items()
    rows = {each: jnp.ones((2, 4, n, 8)) for each, n in (("query", 5), ("key", 7), ("value", 7))}
    call = lambda x: at.jax.attention(**rows, **{option: x})  # noqa: E731
    with pytest.raises((TypeError, ValueError)) as caught:
        (jax.jit(call) if traced else call)(jnp.asarray(given))
    said = f"{type(caught.value).__name__}: {caught.value}"
    assert said == str(wanted("JAX", name)).replace("int64", "int32").replace("float64", "float32")


#: Numbers given to a program, and its message when it runs.
NUMBERS: dict[str, tuple[str, Any, str]] = {
    "scale": (
        "scale",
        np.array([[1.0], [np.nan]], np.float32),
        "scale must be finite, got an array with NaN",
    ),
    "length": ("key_lengths", np.array(5), "key_lengths must be between 0 and the number of keys, 4, got 5"),
    "less": ("key_lengths", np.array(-1), "key_lengths must be between 0 and the number of keys, 4, got -1"),
    "documents": (
        "document_ids",
        np.array([1, 2, 1, 1]),
        "each document must be one run of document_ids, got 1 in 2 runs",
    ),
    "bias": (
        "distance_bias",
        np.array([1, np.inf, 1, 1], np.float32),
        "distance_bias must be finite, got NaN or infinity; attn_mask and window hide keys",
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_bad_numbers_of_traced_options(name: str) -> None:
    option, given, message = NUMBERS[name]
    call = jax.jit(lambda x: at.jax.attention(**ROWS, **{option: x}))
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(f"INVALID_ARGUMENT: {message}")):
        call(given).block_until_ready()


COUNTS: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "one law a head": (
        "key_lengths",
        np.array(3),
        {"scale": "ssmax(s=[1, 2])"},
        "scale='ssmax(s=[1, 2])' counts the keys",
    ),
    "a product": (
        "document_ids",
        np.array([1, 1, 2, 2]),
        {"scale": "2 * log_n"},
        "scale='2 * log_n' counts the keys",
    ),
    "normalizer": (
        "key_lengths",
        np.array(3),
        {"normalizer": "sigmoid"},
        "normalizer='sigmoid' counts the keys",
    ),
    "distances from one length": (
        "key_lengths",
        np.array(3),
        {"causal": "bottom_right", "distance_bias": np.ones(9, np.float32)},
        "tables and laws of the distance with causal='bottom_right' take the numbers of key_lengths",
    ),
    "distances": (
        "key_lengths",
        np.array([[3]])[0],
        {"causal": "bottom_right", "distance_bias": np.ones(9, np.float32)},
        "tables and laws of the distance with causal='bottom_right' take the numbers of key_lengths",
    ),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_traced_options(name: str) -> None:
    option, given, others, message = COUNTS[name]
    rows = {key: x[None] for key, x in ROWS.items()}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}.*traced array") as caught:
        jax.jit(lambda x: at.jax.attention(**rows, **others, **{option: x}))(given)
    assert option in str(caught.value)
    assert ("or the scale" in str(caught.value)) == ("scale" in others)


# ---- gradients ----------------------------------------------------------------------------------


def test_a_second_derivative() -> None:
    loss = lambda q: at.jax.attention(q, Q, Q).sum()  # noqa: E731
    with pytest.raises(
        RuntimeError, match=r"^attention of attnscale has first derivatives only, and cannot be"
    ):
        jax.grad(lambda q: jax.grad(loss)(q).sum())(Q)


@pytest.mark.parametrize(
    ("statistic", "normalizer", "message"),
    [
        ("sink_weight", "softmax_n", "sink_weight has no gradient, but one was requested"),
        ("min_score", "softmax", "min_score has no gradient, but one was requested"),
        (
            "max_score",
            "relu",
            "rows of 'relu' have the gradient of the output alone here, got that of max_score",
        ),
    ],
)
def test_statistics_without_a_gradient(statistic: str, normalizer: str, message: str) -> None:
    def loss(q: Any) -> Any:
        rows = at.jax.attention_statistics(q, Q, statistics=statistic, normalizer=normalizer)
        return getattr(rows, statistic).sum()

    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        jax.grad(loss)(Q)


# ---- platforms ----------------------------------------------------------------------------------


def test_a_program_for_another_platform() -> None:
    traced = jax.jit(lambda q: at.jax.attention(q, Q, Q)).trace(Q)
    message = (
        "^attnscale.jax runs on the CPU and cannot be compiled for cuda; jax.jit under jax.default_device"
    )
    with pytest.raises(ValueError, match=message):
        traced.lower(lowering_platforms=("cuda",))


def test_an_array_on_another_device() -> None:
    class Device:
        platform = "gpu"

        def __str__(self) -> str:
            return "cuda:0"

    class Array:
        def devices(self) -> set[Any]:
            return {Device()}

    message = "attnscale.jax runs on the CPU, got key on cuda:0; jax.device_put(key, jax.devices('cpu')[0])"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        _ffi.check_on_cpu("key", Array())


def test_a_jax_that_is_missing() -> None:
    """One that is too old is in tests/package/test_bounds.py."""
    script = (
        "import sys, attnscale\n"
        "sys.modules['jax'] = None\n"
        "try:\n    attnscale.jax\nexcept ImportError as error:\n    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    why = "import of jax halted; None in sys.modules"
    assert found.stdout.strip() == f"attnscale.jax needs jax ({why}): pip install 'jax>=0.8.2'"


def test_forward_mode_is_not_there() -> None:
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda q: at.jax.attention(q, q, q), (jnp.ones((1, 3, 4)),), (jnp.ones((1, 3, 4)),))
