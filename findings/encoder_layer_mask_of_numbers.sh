#!/bin/sh
# torch.nn.TransformerEncoderLayer in evaluation treats a float mask as a mask of hidden keys.
#
# The documentation of torch.nn.Transformer, to which the layer's refers, says that a float mask is added to
# the scores. That is true in training, and with gradients enabled. In evaluation without gradients the layer
# is one fused operator, which makes the mask boolean: every number except 0 hides the key. With ALiBi's
# distances each query sees only its own position. nn.MultiheadAttention avoids that path with such a mask
# (pull request 107641 of PyTorch); the layer does not.
#
# Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.1
"$folder/venv/bin/python" -W ignore - <<'EOF'
import torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
x, place = torch.randn(2, 6, 16), torch.arange(6.0)
distances = -0.25 * (place[:, None] - place).abs()


def farthest(one, other):
    return (one - other).abs().max().item()


with torch.no_grad():
    added = layer.train()(x, src_mask=distances)
    fused = layer.eval()(x, src_mask=distances)
    hidden = layer.eval()(x, src_mask=distances != 0)
    attention = layer.self_attn
    mine, _ = attention.eval()(x, x, x, attn_mask=distances)
    theirs, _ = attention.train()(x, x, x, attn_mask=distances)
print("torch", torch.__version__)
print(f"layer: training and evaluation differ by {farthest(added, fused):.2f}")
print(f"layer: evaluation and a mask that hides every other position differ by {farthest(fused, hidden):.1e}")
print(f"attention alone: training and evaluation differ by {farthest(mine, theirs):.1e}")
assert farthest(added, fused) > 0.1
assert farthest(fused, hidden) < 1e-5
assert farthest(mine, theirs) < 1e-5
EOF
