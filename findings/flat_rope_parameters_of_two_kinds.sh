#!/bin/sh
# transformers 5.24.0 ignores flat rope_parameters in Gemma 3 and OLMo 3, YaRN included.
#
# Models whose layers are of two kinds keep two sets of rotary parameters. Given one flat set in config.json,
# as all other models take it, Gemma 3 and OLMo 3 fill in the default of each kind beside it and compute with
# those: base and scaling have no effect, and no warning is printed. OLMo 3 loses a part of the older form as
# well: "rope_theta" at the top level reaches only the layers without a window.
#
# Seen with random models of six layers, 64 tokens, largest change in a logit:
#
#   llama        YaRN as rope_parameters 4.36, as rope_scaling 4.36
#   gemma3_text  YaRN as rope_parameters 0.00, as rope_scaling 0.12
#   olmo3        YaRN as rope_parameters 0.00, as rope_scaling 0.55
#   olmo3        rope_theta 1000000: layers with a window turn by 500000, others by 1000000
#
# Hurt: who extends the context by an edit of config.json, since the model then runs past its length without
# YaRN. To do: give {"full_attention": {...}, "sliding_attention": {...}}, read model.config.rope_parameters
# back, and compare logits with those of the unedited file.
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
TOKENS = torch.tensor([[(7 * n * n + 3 * n) % 96 + 1 for n in range(64)]])
SIZES = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.25}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}


def logits(family, **rope):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **rope)).eval()
    with torch.no_grad():
        return model(TOKENS).logits


for family in ("llama", "gemma3_text", "olmo3"):
    base = AutoConfig.for_model(family).rope_parameters
    base = base.get("full_attention", base)["rope_theta"]
    plain = logits(family)
    new = (logits(family, rope_parameters={**YARN, "rope_theta": base}) - plain).abs().max()
    old = (logits(family, rope_scaling=dict(YARN), rope_theta=base) - plain).abs().max()
    print(f"{family:12} YaRN as rope_parameters {new:.2f}, as rope_scaling {old:.2f}")
    assert old > 0.05
    assert new > 0.05 if family == "llama" else new == 0.0
kinds = AutoConfig.for_model("olmo3", rope_theta=1e6).rope_parameters
bases = [kinds[name]["rope_theta"] for name in ("sliding_attention", "full_attention")]
print("olmo3        rope_theta 1000000: layers with a window turn by {:.0f}, others by {:.0f}".format(*bases))
assert bases == [5e5, 1e6]
EOF
