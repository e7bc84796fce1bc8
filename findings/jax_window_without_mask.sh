#!/bin/sh
# jax.nn.dot_product_attention of JAX 0.8.1 leaves local_window_size out, without a word of it, where no other
# argument hides a key.
#
# The window alone, or beside a bias, gives the numbers of a call without one: each query sees every key. Beside
# is_causal, a mask or lengths the window is kept. 0.8.0 is the same; 0.8.2 keeps the window in every call. So a
# local layer that is not causal computed full attention, and a model moved to 0.8.2 computes something else.
#
# Seen with 0.8.1 and a window of 2 keys before and 1 after, of 5: the output is off by 1.5, and equal to that of
# full attention to the last bit. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.8.1 jaxlib==0.8.1 numpy==2.3.5
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import numpy as np

random = np.random.default_rng(0)
arrays = [random.standard_normal((2, 5, 4, 8), np.float32) for _ in range(3)]
place = np.arange(5)
distance = place - place[:, None]
band = ((distance >= -2) & (distance <= 1))[None, None]
everything = np.ones_like(band)
calls = {
    "alone": {},
    "bias": {"bias": np.zeros((1, 1, 5, 5), np.float32)},
    "is_causal": {"is_causal": True},
    "mask": {"mask": everything},
    "lengths": {"key_value_seq_lengths": np.array([3, 5])},
}

print("jax", jax.__version__)
dropped = []
for name, options in calls.items():
    found = jax.nn.dot_product_attention(*arrays, local_window_size=(2, 1), **options)
    full = jax.nn.dot_product_attention(*arrays, **options)
    wanted = jax.nn.dot_product_attention(*arrays, **options | {"mask": band})
    off = float(jnp.abs(found - wanted).max())
    print(f"{name}: off by {off:.0e}, from full attention by {float(jnp.abs(found - full).max()):.0e}")
    assert (off > 0.1) == bool((found == full).all())
    if off > 0.1:
        dropped.append(name)
assert dropped == ["alone", "bias"], dropped
EOF
