#!/bin/sh
# The attention layers of PyTorch and Keras give another output when they are asked for the weights.
#
# A text that is padding alone is an example. torch.nn.MultiheadAttention gives it NaN with need_weights=True,
# the default, and 0 with need_weights=False. keras.layers.MultiHeadAttention gives it 0 with
# return_attention_scores=True, and the mean of the values of hidden keys with False, the default. One option
# chooses between two computations that disagree on rows without keys.
#
# torch 2.13.0, keras 3.15.1 on PyTorch. To do: leave no row without a key.
#
# Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    keras==3.15.1 torch==2.13.0 numpy==2.4.1
KERAS_BACKEND=torch "$folder/venv/bin/python" -W ignore - <<'EOF'
import keras
import torch

print("torch", torch.__version__, "keras", keras.__version__)
torch.manual_seed(0)
texts = torch.randn(2, 3, 4)
padding = torch.tensor([[False] * 3, [True] * 3])
layer = torch.nn.MultiheadAttention(4, 1, bias=False, batch_first=True).eval()
with torch.no_grad():
    given = {"key_padding_mask": padding}
    outputs = {asked: layer(*[texts] * 3, need_weights=asked, **given)[0] for asked in (True, False)}
for asked, output in outputs.items():
    print(f"torch, need_weights={asked}: {output[1, 0].tolist()}")
assert (outputs[True][0] - outputs[False][0]).abs().max() < 1e-6
assert outputs[True][1].isnan().all()
assert (outputs[False][1] == 0).all()

layer = keras.layers.MultiHeadAttention(1, 4, use_bias=False)
layer.build(texts.shape, texts.shape)
with torch.no_grad():
    seen = {"key_mask": ~padding, "value_mask": ~padding}
    watched, _ = layer(texts, texts, return_attention_scores=True, **seen)
    alone = layer(texts, texts, **seen)
print(f"keras, return_attention_scores=True: {watched[1, 0].tolist()}")
print(f"keras, return_attention_scores=False: {[round(x, 3) for x in alone[1, 0].tolist()]}")
assert (watched[0] - alone[0]).abs().max() < 1e-6
assert (watched[1] == 0).all()
assert (alone[1] - alone[1, 0]).abs().max() < 1e-6
assert alone[1].abs().min() > 1e-4
EOF
