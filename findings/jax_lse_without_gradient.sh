#!/bin/sh
# The log-sum-exp of jax.nn.dot_product_attention has a gradient of zero, without an error or a word of it.
#
# return_residual=True is the way to attend in parts, and to merge them by their log-sum-exps, as ring attention
# does. The merged output is right. JAX stops the gradient of the residual, and its documentation does not say
# so: the merged output's gradients of queries and keys lack the part that goes through the weights of the
# parts. A loss on the residual itself, such as one that keeps it small, trains nothing.
#
# Seen with 0.10.2, 8 keys in two halves: the output is off by 4e-07; its gradient in the query by 1.9, where the
# true one is 4.1 at most. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2 numpy==2.4.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import numpy as np

random = np.random.default_rng(0)
query, key, value, wanted = (random.standard_normal((1, 8, 2, 4), np.float32) for _ in range(4))


def whole(query, key):
    return jax.nn.dot_product_attention(query, key, value)


def merged(query, key):
    halves = [slice(0, 4), slice(4, 8)]
    parts = [
        jax.nn.dot_product_attention(query, key[:, half], value[:, half], return_residual=True)
        for half in halves
    ]
    outputs, residuals = (jnp.stack(each) for each in zip(*parts))
    return (jax.nn.softmax(residuals, axis=0)[..., None] * outputs).sum(0)


def own(query, key):
    return jax.nn.dot_product_attention(query, key, value, return_residual=True)[1].sum()


def formula(query, key):
    return jax.nn.logsumexp(jnp.einsum("bqhd,bkhd->bhqk", query, key) / 2, axis=-1).sum()


def gradients(function):
    return jax.grad(lambda *arrays: (function(*arrays) * wanted).sum(), (0, 1))(query, key)


off = jnp.abs(whole(query, key) - merged(query, key)).max()
print("jax", jax.__version__)
print(f"output of two merged halves: off by {off:.0e}")
assert off < 1e-5
for name, right, found in zip(("query", "key"), gradients(whole), gradients(merged)):
    print(f"gradient in the {name}: off by {jnp.abs(right - found).max():.1f}, of {jnp.abs(right).max():.1f}")
    assert jnp.abs(right - found).max() > 0.1
residual, right = jax.grad(own, (0, 1))(query, key), jax.grad(formula, (0, 1))(query, key)
print("gradient of the residual:", *(float(jnp.abs(each).max()) for each in residual))
assert not any(each.any() for each in residual)
assert all(jnp.abs(each).max() > 0.1 for each in right)
assert abs(own(query, key) - formula(query, key)) < 1e-4
EOF
