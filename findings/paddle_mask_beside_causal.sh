#!/bin/sh
# scaled_dot_product_attention of PaddlePaddle drops attn_mask where is_causal is set, and reads scale 0 as none.
#
# PyTorch's function of the same name and arguments refuses a mask beside is_causal. Paddle's takes both on a CPU
# and reads the causal one alone: padding that the mask hides is seen, without an error. scale=0.0 gives the
# default scale in place of equal weights.
#
# Seen with 3.3.1. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check paddlepaddle==3.3.1 numpy==2.4.1
"$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'EOF' || { cat "$folder/log" >&2; exit 1; }
import numpy as np
import paddle
from paddle.nn.functional import scaled_dot_product_attention as attend

random = np.random.default_rng(0)
arrays = [paddle.to_tensor(random.standard_normal((1, 6, 2, 8), np.float32)) for _ in range(3)]
padding = paddle.to_tensor(np.array([0, 1, 1, 1, 1, 1], bool)[None, None, None])  # hides the first key
causal = paddle.to_tensor(np.tri(6, dtype=bool)[None, None])


def off(one, other):
    return float((one - other).abs()[:, 1:].max())  # the first query sees no key but the hidden one


both = attend(*arrays, padding, is_causal=True)
one_mask = attend(*arrays, paddle.logical_and(padding, causal))
causal_alone = attend(*arrays, is_causal=True)
print("paddle", paddle.__version__)
print(f"mask and is_causal: off by {off(both, one_mask):.1f} from one mask of both,")
print(f"    by {off(both, causal_alone):.0e} from is_causal alone")
assert off(both, one_mask) > 0.1
assert off(both, causal_alone) == 0
assert off(attend(*arrays, causal), causal_alone) < 1e-5

nought, default = attend(*arrays, scale=0.0), attend(*arrays)
print(f"scale 0: off by {off(nought, default):.0e} from the default scale")
assert off(nought, default) == 0
assert off(attend(*arrays, scale=1e-30), arrays[2].mean(1, keepdim=True)) < 1e-5
EOF
