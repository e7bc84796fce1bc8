#!/bin/sh
# JAX returns log-sum-exps of two bases: natural from jax.nn, base 2 from the kernel of Pallas.
#
# jax.nn.dot_product_attention(return_residual=True) gives the natural logarithm, axes (batch, n, heads).
# jax.experimental.pallas.ops.gpu.attention.mha(return_residuals=True), in the same package, gives that in base 2,
# axes (batch, heads, n). Neither documents its base. The outputs agree: code that merges parts, written for one and
# run with the other, is wrong without an error.
#
# Seen with 0.10.2 in the interpreter of Pallas. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2 numpy==2.4.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'EOF'
import jax
import numpy as np
from jax.experimental.pallas.ops.gpu.attention import mha

random = np.random.default_rng(0)
query, key, value = (random.standard_normal((1, 16, 2, 16), np.float32) for _ in range(3))
one, natural = jax.nn.dot_product_attention(query, key, value, return_residual=True)
other, base_2 = mha(query, key, value, None, sm_scale=16**-0.5, interpret=True, return_residuals=True)
scores = np.einsum("bqhd,bkhd->bqhk", query, key) / 4
truth = np.log(np.exp(scores).sum(-1))
print("jax", jax.__version__)
print(f"outputs: off by {np.abs(one - other).max():.0e}")
print("first rows, jax.nn:", np.asarray(natural)[0, :3, 0])
print("first rows, Pallas:", np.asarray(base_2)[0, 0, :3])
assert np.abs(one - other).max() < 1e-5
assert np.abs(natural - truth).max() < 1e-5
assert np.abs(base_2.swapaxes(1, 2) * np.log(2) - truth).max() < 1e-5
EOF
