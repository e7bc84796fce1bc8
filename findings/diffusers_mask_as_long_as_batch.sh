#!/bin/sh
# diffusers takes a mask of queries and keys for padding where the batch is as long as the queries.
#
# dispatch_attention_fn, the attention of its newer models, hands masks to PyTorch, whose mask of two axes is
# (queries, keys). But one with as many rows as the batch is read as (batch, keys), padding of each text.
# Which it is depends on the batch alone: with another batch each query has its own row again.
#
# Seen with two queries, three keys and a mask that hides two keys of query 0: right for a batch of 1 and 3.
# For a batch of 2 both queries of text 0 lose the keys, and both of text 1 keep them. diffusers 0.42.1,
# torch 2.13.0. To do: give masks of four axes.
#
# Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    diffusers==0.42.1 torch==2.13.0 numpy==2.4.1
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - <<'EOF'
import diffusers
import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch.nn.functional import scaled_dot_product_attention

MASK = torch.tensor([[True, False, False], [True, True, True]])
print("diffusers", diffusers.__version__, "torch", torch.__version__)
for batch in (1, 2, 3):
    query, key = torch.zeros(batch, 2, 1, 2), torch.zeros(batch, 3, 1, 2)
    value = torch.eye(3).expand(batch, 3, 3)[:, :, None]
    found = dispatch_attention_fn(query, key, value, MASK)[:, :, 0, 0]
    heads_first = (x.transpose(1, 2) for x in (query, key, value))
    wanted = scaled_dot_product_attention(*heads_first, MASK)[:, 0, :, 0]
    print(f"batch {batch}: weight of key 0 by text and query: {found.double().numpy().round(2).tolist()}")
    assert torch.equal(wanted, torch.tensor([1, 1 / 3]).expand(batch, 2))
    assert torch.equal(found, wanted.T if batch == 2 else wanted)
EOF
