#!/bin/sh
# mlx-lm 0.32.2 drops rope_scaling whole for mixtral, qwen3_moe, starcoder2, gemma2 and cohere2.
#
# llama, qwen2 and qwen3 apply YaRN as transformers 5.24.0 does, to rounding. For these five families the same
# entry of config.json changes no bit of the logits, and nothing is printed: neither the frequencies are
# scaled, nor the score. Mixtral and qwen3_moe even declare the field; it is read by nobody.
#
# Seen with random models and YaRN of factor 4, 64 tokens, largest change in a logit by the entry:
#
#   qwen3       transformers 1.9, mlx-lm 1.9
#   qwen3_moe   transformers 3.4, mlx-lm 0.0
#   mixtral     transformers 4.7, mlx-lm 0.0
#
# Hurt: who follows the card of Qwen3-30B-A3B and adds YaRN for prompts beyond 32768 tokens: it works in the
# dense Qwen3 and does nothing in the one with experts. To do: stay within the trained length there.
#
# mlx 0.32.4 on the CPU, torch 2.13.0. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    mlx-lm==0.32.2 "mlx[cpu]==0.32.4" transformers==5.24.0 torch==2.13.0 numpy==2.4.1
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - "$folder" <<'EOF'
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
import transformers
from mlx_lm.utils import load_model
from transformers import AutoConfig, AutoModelForCausalLM

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
FOLDER = Path(sys.argv[1]) / "model"
TOKENS = [[(7 * n * n + 3 * n) % 96 + 1 for n in range(64)]]
SIZES = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
SIZES |= {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.25}
SIZES |= {"rope_theta": 1e6}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 131072}
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "mlp_only_layers": []}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
FAMILIES = {"llama": {}, "qwen2": {}, "qwen3": {}, "qwen3_moe": EXPERTS, "mixtral": {}, "starcoder2": {}}
FAMILIES |= {"gemma2": {}, "cohere2": {"num_hidden_layers": 4, "logit_scale": 4.0}}


def logits(family, extra, scaling):
    """The last logits of transformers and of mlx-lm, which load the same weights."""
    torch.manual_seed(0)
    given = SIZES | extra | ({"rope_scaling": dict(scaling)} if scaling else {})
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **given)).eval()
    model.save_pretrained(FOLDER)
    file = FOLDER / "config.json"
    saved = json.loads(file.read_text()) | given  # in the form of the public checkpoints
    del saved["rope_parameters"]
    file.write_text(json.dumps(saved))
    loaded, _ = load_model(FOLDER)
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits[0, -1].numpy(), np.array(loaded(mx.array(TOKENS))[0, -1])


def farthest(one, other):
    return np.abs(one - other).max()


for family, extra in FAMILIES.items():
    plain, scaled = (logits(family, extra, scaling) for scaling in ({}, YARN))
    asked, answered = (farthest(one, other) for one, other in zip(plain, scaled, strict=True))
    print(f"{family:11} transformers {asked:.1f}, mlx-lm {answered:.1f}")
    assert farthest(*plain) < 1e-2 < 0.1 < asked
    if family in ("llama", "qwen2", "qwen3"):
        assert farthest(*scaled) < 1e-2
    else:
        assert answered == 0.0
EOF
