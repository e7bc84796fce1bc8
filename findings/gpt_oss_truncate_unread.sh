#!/bin/sh
# llama.cpp and mlx-lm 0.32.2 turn gpt-oss by other rotary frequencies than its config.json asks for.
#
# YaRN divides the slow pairs by the factor, leaves the fast ones and blends between two bounds. Usually the
# bounds are rounded to whole pairs; the config.json of gpt-oss says "truncate": false, so its bounds are 8.09
# and 17.40. transformers 5.24.0 obeys, mlx-lm does not read the key, and GGUF has none: both round to 8 and
# 18. vLLM and SGLang had the same difference until pull requests 28244 and 14270 of theirs.
#
# Seen with the rotary settings of gpt-oss and random weights, 300 tokens, farthest log-probability:
#
#   mlx-lm     from transformers as asked 0.27, with "truncate": true 1e-05
#   llama.cpp  from transformers as asked 0.27, with "truncate": true 2e-05
#   frequency of the pairs 11, 14, 17, rounded bounds over asked ones: 1.02 1.09 1.76
#
# Hurt: who compares log-probabilities of gpt-oss between engines, or trains with one and samples with
# another. To do: expect a difference that grows with the distance of the keys; none of the two has a switch.
#
# xllamacpp 2026.10.11549 (llama.cpp of October 2026), gguf 0.19.0, mlx 0.32.4, torch 2.13.0, on the CPU.
# Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 \
    gguf==0.19.0 mlx-lm==0.32.2 "mlx[cpu]==0.32.4" transformers==5.24.0 torch==2.13.0 numpy==2.4.1
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - "$folder" 2>"$folder/log" <<'EOF' ||
import json
import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import torch
import transformers
import xllamacpp
from mlx_lm.utils import load_model
from safetensors.numpy import save_file
from transformers import GptOssConfig, GptOssForCausalLM

transformers.logging.set_verbosity_error()
FOLDER = Path(sys.argv[1])
VOCABULARY, WIDTH, HEAD, HEADS, LAYERS, EXPERTS, BASE = 128, 128, 64, 2, 2, 4, 150000.0
TOKENS = [(7 * n * n + 3 * n) % 96 + 4 for n in range(300)]
SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": WIDTH, "head_dim": HEAD}
SIZES |= {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 1}
SIZES |= {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "initializer_range": 0.2}
SIZES |= {"max_position_embeddings": 131072, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
YARN |= {"original_max_position_embeddings": 4096}


def normal(logits):
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max()
    return logits - np.log(np.exp(logits).sum())


def made(truncate):
    """A model of which only the attention speaks: experts and sinks are zero."""
    torch.manual_seed(0)
    rope = YARN | {"truncate": truncate, "rope_theta": BASE}
    model = GptOssForCausalLM(GptOssConfig(**SIZES, rope_parameters=rope)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if ".mlp." in name or "sinks" in name:
                tensor.zero_()
    return model


def by_transformers(model):
    with torch.no_grad():
        return normal(model(torch.tensor([TOKENS])).logits[0, -1].numpy())


def arrays(model):
    """The tensors under the names of mlx-lm, which splits the experts' gate and up."""
    found = {name: tensor.numpy() for name, tensor in model.state_dict().items() if ".experts." not in name}
    for layer in range(LAYERS):
        for name in ("gate_proj", "up_proj", "down_proj"):
            at = f"model.layers.{layer}.mlp.experts.{name}"
            found[at + ".weight"] = np.zeros((EXPERTS, WIDTH, WIDTH), np.float32)
            found[at + ".bias"] = np.zeros((EXPERTS, WIDTH), np.float32)
    return found


def by_mlx(model):
    folder = FOLDER / "model"
    folder.mkdir()
    save_file(arrays(model), folder / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict() | {"rope_theta": BASE, "rope_scaling": YARN | {"truncate": False}}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    loaded, _ = load_model(folder)
    return normal(np.array(loaded(mx.array([TOKENS]))[0, -1]))


def write(model):
    file = gguf.GGUFWriter(FOLDER / "model.gguf", "gpt-oss")
    file.add_block_count(LAYERS)
    file.add_context_length(131072)
    file.add_embedding_length(WIDTH)
    file.add_feed_forward_length(WIDTH)
    file.add_expert_feed_forward_length(WIDTH)
    file.add_expert_count(EXPERTS)
    file.add_expert_used_count(2)
    file.add_head_count(HEADS)
    file.add_head_count_kv(1)
    file.add_key_length(HEAD)
    file.add_value_length(HEAD)
    file.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    file.add_sliding_window(model.config.sliding_window)
    file.add_rope_freq_base(BASE)
    file.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    file.add_rope_scaling_factor(YARN["factor"])
    file.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
    file.add_rope_scaling_yarn_beta_fast(YARN["beta_fast"])
    file.add_rope_scaling_yarn_beta_slow(YARN["beta_slow"])
    file.add_tokenizer_model("llama")
    file.add_tokenizer_pre("default")
    file.add_token_list(["<unk>", "<s>", "</s>", *(f"<{n}>" for n in range(3, VOCABULARY))])
    file.add_token_scores([0.0] * VOCABULARY)
    file.add_token_types([2, 3, 3] + [4] * (VOCABULARY - 3))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, LAYERS)
    for name, array in arrays(model).items():
        name = name + ".weight" if name.endswith("sinks") else name
        file.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), array)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def by_llama_cpp(model):
    write(model)
    options = xllamacpp.CommonParams()
    options.model.path = str(FOLDER / "model.gguf")
    options.n_ctx, options.n_parallel, options.warmup, options.verbosity = 512, 1, False, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(options)
    ask = {"prompt": TOKENS, "n_predict": 1, "n_probs": VOCABULARY, "temperature": 0.0, "ignore_eos": True}
    first = server.handle_completions(ask)["choices"][0]["logprobs"]["content"][0]
    found = {each["id"]: each["logprob"] for each in first["top_logprobs"]}
    return np.array([found.get(token, np.nan) for token in range(VOCABULARY)])


models = [made(truncate) for truncate in (False, True)]
asked, rounded = map(by_transformers, models)
for name, answer in (("mlx-lm", by_mlx(models[0])), ("llama.cpp", by_llama_cpp(models[0]))):
    off, like = (np.nanmax(np.abs(answer - row)) for row in (asked, rounded))
    print(f'{name:10} from transformers as asked {off:.2f}, with "truncate": true {like:.0e}')
    assert off > 0.1
    assert like < 1e-3
pairs = [11, 14, 17]
exact, whole = (model.model.rotary_emb.inv_freq[pairs] for model in models)
print("frequency of the pairs 11, 14, 17, rounded bounds over asked ones:", end="")
print("".join(f" {ratio:.2f}" for ratio in (whole / exact).tolist()))
assert 1.7 < (whole / exact)[2] < 1.8
EOF
{ cat "$folder/log" >&2; exit 1; }
