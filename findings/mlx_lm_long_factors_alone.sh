#!/bin/sh
# mlx-lm 0.32.2 turns Phi-3.5-mini and Phi-4-mini by long_factor of LongRoPE in short texts, too.
#
# LongRoPE has two lists of factors for the frequencies. transformers 5.24.0 takes short_factor up to
# original_max_position_embeddings, and long_factor in longer texts. mlx-lm accepts short_factor and does not
# use it. Beyond Phi the score differs as well: mlx-lm computes LongRoPE's own factor from
# max_position_embeddings, transformers from "factor" of the entry where it is given.
#
# Seen with random models of two layers and 64 tokens, farthest logit from transformers as asked, and with
# short_factor (and factor) as mlx-lm has them:
#
#   phi3    apart by 7.2; with short_factor of mlx-lm 6e-06
#   llama   apart by 6.6; with short_factor, factor of mlx-lm 1e-05
#
# Hurt: every prompt of up to 4096 tokens to these models: the channels turn otherwise than in training. To
# do: for short prompts copy short_factor into long_factor of config.json.
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
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.25}
SIZES |= {"rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
PHI = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
SHORT, LONG = [1.0 + 0.1 * n for n in range(8)], [1.0 + n * n for n in range(8)]
LISTS = {"short_factor": SHORT, "long_factor": LONG}
LONGROPE = {"type": "longrope", **LISTS}
OTHER = {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 4096, **LISTS}
FAMILIES = {
    "phi3": (PHI, LONGROPE, {"short_factor": LONG}),
    "llama": ({"max_position_embeddings": 8192}, OTHER, {"short_factor": LONG, "factor": 2.0}),
}


def made(family, extra, scaling):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SIZES, **extra, rope_scaling=dict(scaling))
    return AutoModelForCausalLM.from_config(config).eval()


def asked(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits[0, -1].numpy()


def answered(model, extra, scaling):
    model.save_pretrained(FOLDER)
    file = FOLDER / "config.json"
    saved = json.loads(file.read_text()) | SIZES | extra | {"rope_scaling": dict(scaling)}
    saved.pop("rope_parameters", None)
    file.write_text(json.dumps(saved))  # in the form of the public checkpoints
    loaded, _ = load_model(FOLDER)
    return np.array(loaded(mx.array(TOKENS))[0, -1])


for family, (extra, scaling, change) in FAMILIES.items():
    model = made(family, extra, scaling)
    theirs = answered(model, extra, scaling)
    apart = np.abs(asked(model) - theirs).max()
    told = np.abs(asked(made(family, extra, {**scaling, **change})) - theirs).max()
    print(f"{family:7} apart by {apart:.1f}; with {', '.join(change)} of mlx-lm {told:.0e}")
    assert told < 1e-2 < 0.1 < apart
EOF
