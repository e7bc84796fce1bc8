#!/bin/sh
# transformers reads one attention_mask of four axes in three ways, by attn_implementation.
#
# A mask of (batch, heads or 1, queries, keys) is handed to the attention function as it is.
# - "sdpa", the default: a boolean one hides where it is False, a float one is added.
# - "eager", which output_attentions and several models need: a boolean one is added as 0 and 1. Nothing is
#   hidden, and the model sees the future.
# - "flex_attention": a boolean one is added as well, and of a float one with an entry for each head, as for
#   ALiBi, head 0's is added in all heads.
# No warning is given.
#
# Seen with a random Llama of two layers and a boolean causal mask: another last token changes the logits at
# the first token by 3.2 with "eager", by 0 with "sdpa". transformers 5.24.0, torch 2.13.0 (flex_attention not
# compiled; compiled it is the same). To do: give a float mask, 0 and the lowest number, and no mask of heads
# to flex_attention.
#
# Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    transformers==5.24.0 torch==2.13.0 numpy==2.4.1
HF_HUB_OFFLINE=1 TORCHDYNAMO_DISABLE=1 "$folder/venv/bin/python" -W ignore - <<'EOF'
from types import SimpleNamespace

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

transformers.logging.set_verbosity_error()
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.3}
SEEN = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
ADDED = torch.where(SEEN, 0.0, torch.finfo(torch.float32).min)
TOKENS = torch.tensor([[5, 9, 2, 7, 4, 1]])
OTHER = torch.tensor([[5, 9, 2, 7, 4, 33]])
print("transformers", transformers.__version__, "torch", torch.__version__)


def farthest(one, other):
    return (one - other).abs().max().item()


leaks = {}
for implementation in ("sdpa", "eager"):
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(LlamaConfig(**SIZES), attn_implementation=implementation).eval()
    with torch.no_grad():
        plain, added = model(TOKENS).logits, model(TOKENS, attention_mask=ADDED).logits
        first, second = (model(each, attention_mask=SEEN).logits[:, 0] for each in (TOKENS, OTHER))
    leaks[implementation] = farthest(first, second)
    print(f"{implementation}: another last token changes the first logits by {leaks[implementation]:.1f}")
    assert farthest(plain, added) < 1e-5
assert leaks["sdpa"] == 0
assert leaks["eager"] > 1

module = SimpleNamespace(num_key_value_groups=1, training=False, is_causal=False)
query, key = torch.zeros(2, 1, 2, 4, 16)
value = torch.eye(4, 16).expand(1, 2, 4, 16)
mask = torch.zeros(1, 2, 4, 4)
mask[:, 1, :, 1:] = -1e9  # head 1 sees key 0 alone
weights = {}
for name in ("sdpa", "flex_attention"):
    with torch.no_grad():
        weights[name] = ALL_ATTENTION_FUNCTIONS[name](module, query, key, value, mask)[0][0, 0, :, 0]
    print(f"{name}: weight of key 0 in heads 0 and 1: {weights[name].tolist()}")
assert weights["sdpa"].tolist() == [0.25, 1.0]
assert weights["flex_attention"].tolist() == [0.25, 0.25]

hidden = (torch.arange(4) > 0).expand(1, 1, 4, 4)  # key 0 is hidden
with torch.no_grad():
    found = ALL_ATTENTION_FUNCTIONS["flex_attention"](module, query, key, value, hidden)[0][0, 0, 0, 0].item()
print(f"flex_attention: weight of a key that a boolean mask hides: {found:.3f}")
assert abs(found - 1 / (1 + 3 * torch.e)) < 1e-5
EOF
