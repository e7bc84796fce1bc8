#!/bin/sh
# ring_flash_attn with more keys than queries has the gradients of another causal mask.
#
# Queries behind a cache: its output aligns the causal mask at the last keys, as default_attention of the same
# package does. Its gradients align it at the first keys. The newest keys and values, which every output
# depends on, have gradient 0. With as many keys as queries both are right.
#
# And keys beyond one bucket (bucket_size=1024) are hidden from such queries in the output, too: one query
# sees all of 1024 keys, and of 1030 not the last six.
#
# ring-attention-pytorch 0.5.20 on one machine, torch 2.13.0. To do: use default_attention for such calls.
#
# Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    ring-attention-pytorch==0.5.20 torch==2.13.0 numpy==2.4.1
"$folder/venv/bin/python" -W ignore - <<'EOF'
from importlib.metadata import version

import torch
from ring_attention_pytorch import default_attention, ring_flash_attn

print("ring-attention-pytorch", version("ring-attention-pytorch"), "torch", torch.__version__)


def run(attend, arrays, grad):
    """The output and the three gradients of a causal call."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    output = attend(*leaves, causal=True)
    output.backward(grad)
    return [output.detach(), *(x.grad for x in leaves)]


torch.manual_seed(0)
for n_queries, n_keys in ((5, 5), (3, 5), (1, 5)):
    arrays = [torch.randn(1, n, 1, 4) for n in (n_queries, n_keys, n_keys)]
    grad = torch.randn(1, n_queries, 1, 4)
    plain, ring = (run(attend, arrays, grad) for attend in (default_attention, ring_flash_attn))
    apart = [(one - other).abs().max().item() for one, other in zip(plain, ring)]
    newest = [found[3][0, -1].abs().max().item() for found in (plain, ring)]
    print(f"{n_queries} queries, {n_keys} keys: outputs apart by {apart[0]:.0e}, ", end="")
    print(f"gradients by {max(apart[1:]):.0e}; of the newest value {newest[0]:.2f} and {newest[1]:.2f}")
    assert apart[0] < 1e-5
    assert newest[0] > 0.01
    if n_queries == n_keys:
        assert max(apart[1:]) < 1e-5
    else:
        assert min(apart[1:]) > 0.1
        assert newest[1] == 0

for n_keys in (1024, 1030):
    query, key, value = torch.zeros(1, 1, 1, 4), torch.zeros(1, n_keys, 1, 4), torch.zeros(1, n_keys, 1, 4)
    value[0, -1, 0, 0] = value[0, -7, 0, 1] = 1
    last, seventh = ring_flash_attn(query, key, value, causal=True)[0, 0, 0, :2].tolist()
    print(f"{n_keys} keys: weight of the last key {last:.5f}, of the last but six {seventh:.5f}")
    assert (last > 0) == (n_keys == 1024)
    assert seventh > 0
EOF
