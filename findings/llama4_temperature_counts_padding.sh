#!/bin/sh
# transformers 5.24.0: Llama 4's temperature counts padding and ignores position_ids; Ministral 3's does not.
#
# Both multiply queries by 1 + s ln(1 + floor(position / length)). Ministral 3 takes the position from position_ids.
# Llama 4's layers without rotation count the words in the row and in the cache: a prompt that is padded on the left,
# as in a batch of several lengths, is sharpened as if it stood further back, with right position_ids and mask.
#
# Seen with random models of four layers whose temperature steps every 16 words; the last logit of 48 words, alone and
# behind 16 words of padding:
#
#   llama        largest difference 0.0000
#   ministral3   largest difference 0.0000
#   llama4_text  largest difference 0.0141
#
# With Llama 4's own step of 8192 words a batch changes only where its longest row is beyond that.
# Hurt: who serves or evaluates long prompts of several lengths in one padded batch, or packs texts into one row.
# To do: pad on the right, or a batch of equal lengths.
#
# torch 2.13.0 on the CPU. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    transformers==5.24.0 torch==2.13.0 numpy==2.4.1
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - <<'EOF'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

transformers.logging.set_verbosity_error()
SIZES = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.25}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
TOKENS = torch.tensor([[(7 * n * n + 3 * n) % 96 + 1 for n in range(48)]])
ROPE = {"rope_type": "default", "rope_theta": 1e4}
STEPS = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}
OWN = {
    "llama": {},
    "ministral3": {"rope_parameters": {**ROPE, **STEPS}},
    "llama4_text": {
        **{"floor_scale": 16, "attn_scale": 0.1, "attention_chunk_size": 4096},
        **{"num_local_experts": 2, "intermediate_size_mlp": 64},
    },
}
padded = torch.cat([torch.zeros(1, 16, dtype=torch.long), TOKENS], 1)
mask = (torch.arange(64) >= 16)[None].long()
positions = (mask.cumsum(-1) - 1).clamp(min=0)
found = {}
for family, keys in OWN.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **keys)).eval()
    with torch.no_grad():
        alone = model(TOKENS).logits[:, -1]
        behind = model(padded, attention_mask=mask, position_ids=positions).logits[:, -1]
    found[family] = float((alone - behind).abs().max())
    print(f"{family:12} largest difference {found[family]:.4f}")
assert found["llama"] < 1e-4 and found["ministral3"] < 1e-4
assert found["llama4_text"] > 1e-3
EOF
