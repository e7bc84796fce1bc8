#!/bin/sh
# The Forgetting Transformer of flash-linear-attention trains without its window and decodes with it.
#
# ForgettingAttention takes window_size, as the config does, and its operator could apply it. The layer does not
# hand it over: over a whole text, in training and for a prompt, every query sees all keys before it. Only the
# cache is cut to window_size keys, so that later tokens see fewer than any token did in training. WallAttention,
# its sibling, hands the window over. Set window_size, and a model is trained at the cost of full attention,
# and decodes otherwise, without a message. The operator of Triton is replaced by the package's own reference
# in PyTorch here, which takes the same arguments: it needs no GPU.
#
# Seen with 0.6.0, a text of 16 tokens, window_size 4: the output of the layer is bit for bit that without a
# window, and 0.09 off the reference with one; the cache keeps 4 of 16 keys. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.1 triton==3.7.1 \
    flash-linear-attention==0.6.0 fla-core==0.6.0 transformers==5.24.0
"$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'EOF' || { cat "$folder/log" >&2; exit 1; }
import fla.layers.forgetting_attn as layers
import torch
from fla.models.utils import Cache
from fla.ops.forgetting_attn.naive import naive_forgetting_attn

N, WINDOW = 16, 4
handed = []


def attend(q, k, v, g, scale=None, window_size=None, cu_seqlens=None):
    handed.append(window_size)
    return naive_forgetting_attn(q, k, v, g, scale, always or window_size)


layers.parallel_forgetting_attn = attend
x = torch.randn(1, N, 32, generator=torch.Generator().manual_seed(1))


def run(window, cache=None):
    torch.manual_seed(0)
    layer = layers.ForgettingAttention(hidden_size=32, num_heads=2, window_size=window, layer_idx=0)
    with torch.no_grad():
        return layer(x, past_key_values=cache)[0]


always = None
without, with_window = run(None), run(WINDOW)
cache = Cache()
run(WINDOW, cache)
kept = cache[0]["attn_state"][0].shape[1]
always = WINDOW
reference = run(None)
off = (with_window - reference).abs().max().item()
print("window_size handed to the operator:", handed[:2])
print("layers with and without a window are equal:", torch.equal(without, with_window))
print(f"off the reference with a window: {off:.2f}; keys kept in the cache: {kept} of {N}")
assert handed[:2] == [None, None]
assert torch.equal(without, with_window)
assert off > 0.01
assert kept == WINDOW
EOF
