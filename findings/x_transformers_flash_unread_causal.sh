#!/bin/sh
# x-transformers with attn_flash=True does not read the argument causal of a call.
#
# The layers take causal in forward, to run an Encoder as a causal model or a Decoder as one that sees all,
# and the wrapper hands it on. It is not read where attn_flash=True: an Encoder called with causal=True sees
# the future, a Decoder with causal=False does not.
#
# Seen with random layers: what another last token changes at the first one.
#
#   attn_flash=False: Encoder with causal=True 0, Decoder with causal=False 0.13
#   attn_flash=True:  Encoder with causal=True 0.13, Decoder with causal=False 0
#
# x-transformers 2.31.10, torch 2.13.0. To do: choose Encoder or Decoder by what is meant.
#
# Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    x-transformers==2.31.10 torch==2.13.0 numpy==2.4.1
"$folder/venv/bin/python" -W ignore - <<'EOF'
from importlib.metadata import version

import torch
from x_transformers import Decoder, Encoder, TransformerWrapper

TOKENS, OTHER = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 9]])
print("x-transformers", version("x-transformers"), "torch", torch.__version__)
for flash in (False, True):
    changes = {}
    for kind, causal in ((Encoder, True), (Decoder, False)):
        torch.manual_seed(0)
        layers = kind(dim=16, depth=2, heads=2, attn_flash=flash)
        model = TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=layers).eval()
        with torch.no_grad():
            first, second = (model(each, causal=causal)[:, 0] for each in (TOKENS, OTHER))
        changes[kind] = (first - second).abs().max().item()
        print(f"attn_flash={flash}: {kind.__name__} with causal={causal}: {changes[kind]:.1e}")
    assert (changes[Encoder] > 1e-3) == flash
    assert (changes[Decoder] > 1e-3) != flash
EOF
