#!/bin/sh
# tract's attention is NaN from the first row whose first 32 keys are all hidden by -inf: windows, packed texts.
#
# tract_transformers_sdpa on a CPU runs over blocks of 32 queries and 32 keys. A block of keys that is hidden
# from all its queries is left out. One that is hidden from some of them begins their running maximum at -inf,
# and exp(-inf - (-inf)) makes the row NaN for good, though its later keys are visible. A causal mask alone
# never does that, a window does from 48 tokens on, and so does a second text that begins within a block. With
# -65504 or -10000 in place of -inf all rows are right, as they are where values are not as wide as keys:
# there tract takes another way.
#
# Seen with 0.23.9, a window of 16 keys: 32 tokens no row, 48 tokens the row 47, 64 tokens the rows 47 to 63.
# Texts of 40 and 24 tokens: the rows of the second. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check tract==0.23.9 numpy==2.4.1
"$folder/venv/bin/python" - "$folder" <<'EOF'
import sys
from pathlib import Path

import numpy as np
import tract

WIDTH = 8
random = np.random.default_rng(0)


def attend(query, key, value, mask):
    shapes = {"q": query, "k": key, "v": value, "m": mask}
    inputs = "\n".join(
        f"{name} = tract_core_external(shape = {list(x.shape)}, datum_type = 'f32');"
        for name, x in shapes.items()
    )
    call = "tract_transformers_sdpa(q, k, v, m, datum_type = 'f32', acc_datum_type = 'f32', is_causal = false)"
    extensions = "extension tract_registry tract_transformers;\nextension tract_registry tract_core;"
    path = Path(sys.argv[1]) / "model"
    path.mkdir(exist_ok=True)
    (path / "graph.nnef").write_text(
        f"version 1.0;\n{extensions}\ngraph a(q, k, v, m) -> (y)\n{{\n{inputs}\ny = {call};\n}}\n"
    )
    model = tract.nnef().with_tract_transformers().load(path).into_runnable()
    return model.run([query, key, value, mask])[0].to_numpy()[0, 0]


def truth(query, key, value, mask):
    scores = query[0, 0] @ key[0, 0].T * WIDTH**-0.5 + mask[0, 0]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value[0, 0]


def rows_of_nan(visible, low, width=WIDTH):
    """The rows that hold NaN; the others are right."""
    n = len(visible)
    arrays = [random.standard_normal((1, 1, n, w), np.float32) for w in (WIDTH, WIDTH, width)]
    mask = np.where(visible, 0, low).astype(np.float32)[None, None]
    found = attend(*arrays, mask)
    wrong = np.isnan(found).any(-1)
    assert np.abs(found - truth(*arrays, mask))[~wrong].max() < 1e-5
    return np.flatnonzero(wrong).tolist()


def window(n):
    i = np.arange(n)
    return (i[:, None] >= i) & (i[:, None] - i < 16)


texts = np.repeat([0, 1], [40, 24])
packed = (texts[:, None] == texts) & np.tri(64, dtype=bool)
masks = {f"window of 16, {n} tokens": window(n) for n in (32, 48, 64)} | {"texts of 40 and 24": packed}
found = {name: rows_of_nan(mask, -np.inf) for name, mask in masks.items()}
for name, rows in found.items():
    print(f"{name}: rows of NaN {rows}")
assert list(found.values()) == [[], [47], list(range(47, 64)), list(range(40, 64))]
for low in (-65504, -10000):
    assert not any(rows_of_nan(mask, low) for mask in masks.values())
assert not rows_of_nan(window(64), -np.inf, width=5)
assert not rows_of_nan(np.tri(64, dtype=bool), -np.inf)
EOF
