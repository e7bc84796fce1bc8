#!/bin/sh
# mlx-lm 0.32.2 does not read the rotary base of checkpoints that transformers 5 saved, for six families.
#
# transformers 5.24.0 writes the base of the rotary frequencies, and their scaling, into "rope_parameters" of
# config.json alone; "rope_theta" and "rope_scaling" at the top level are gone. mlx-lm reads the new key for
# qwen3, but not for llama, mistral, qwen2, mixtral, phi3 and starcoder2. There it takes the default of
# its own class, from 10000 to 1000000, without a warning. A Llama 3 (base 500000) that was fine-tuned and
# saved with transformers 5 is rotated as a Llama 2. Its "llama3" scaling is lost in the same way.
#
# Seen with random models of two layers, all saved with base 500000, 64 tokens:
#
#   llama       off by 5.1 in a logit; from transformers with base 10000 by 6e-06
#   qwen2       off by 3.7 in a logit; from transformers with base 1000000 by 6e-06
#   qwen3       off by 7e-06
#   llama with "llama3" scaling: the same bits as without
#
# Hurt: who converts a fine-tuned model with mlx_lm.convert, or loads the folder as it is. Short prompts still
# look plausible. To do: copy rope_theta, and rope_parameters as rope_scaling, to the top of config.json.
#
# mlx 0.32.4 on the CPU, torch 2.13.0. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    mlx-lm==0.32.2 "mlx[cpu]==0.32.4" transformers==5.24.0 torch==2.13.0 numpy==2.4.1
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - "$folder" <<'EOF'
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
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.25}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


def made(family, base, **scaling):
    torch.manual_seed(0)
    rope = {"rope_type": "default", **scaling, "rope_theta": base}
    config = AutoConfig.for_model(family, rope_parameters=rope, max_position_embeddings=65536, **SIZES)
    return AutoModelForCausalLM.from_config(config).eval()


def asked(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits[0, -1].numpy()


def answered(model):
    model.save_pretrained(FOLDER)
    loaded, _ = load_model(FOLDER)
    return np.array(loaded(mx.array(TOKENS))[0, -1])


def farthest(one, other):
    return np.abs(one - other).max()


defaults = {"llama": 1e4, "mistral": 1e4, "qwen2": 1e6, "mixtral": 1e6, "phi3": 1e4, "starcoder2": 1e5}
for family, default in defaults.items():
    model = made(family, 500000.0)
    answer = answered(model)
    off, like = farthest(answer, asked(model)), farthest(answer, asked(made(family, default)))
    print(f"{family:11} off by {off:.1f} in a logit; from transformers with base {default:.0f} by {like:.0e}")
    assert off > 1.0
    assert like < 1e-2
model = made("qwen3", 500000.0)
off = farthest(answered(model), asked(model))
print(f"qwen3       off by {off:.0e}")
assert off < 1e-3
scaled, plain = (answered(made("llama", 500000.0, **scaling)) for scaling in (LLAMA3, {}))
print(f'llama with "llama3" scaling: {"the same bits as without" if (scaled == plain).all() else "read"}')
assert (scaled == plain).all()
EOF
