#!/bin/sh
# mlx-lm 0.32.2 and llama.cpp ignore the attention_factor of YaRN, each in its own way.
#
# transformers 5.24.0 multiplies query and key by attention_factor where config.json has it, and otherwise by
# 0.1 ln(factor) + 1. mlx-lm does not read the key. GGUF has two keys for it: llama.cpp's converter writes,
# for a Qwen, rope.scaling.yarn_attn_factor, which the loader does not read; the loader reads
# rope.scaling.attn_factor, and multiplies the default by it instead of replacing the default.
#
# Seen with a random Qwen2 of two layers, YaRN of factor 4 and attention_factor 1, 64 tokens; farthest
# log-probability from that of transformers:
#
#   mlx-lm                            1.2, same bits as without the key
#   llama.cpp, yarn_attn_factor = 1   1.2, same bits as without the key
#   llama.cpp, attn_factor = 1        1.2, same bits as without the key
#   llama.cpp, attn_factor = 0.87825  8.4e-06
#
# Hurt: models whose attention_factor is not the default, or that switch the factor off by 1: scores are
# multiplied by (0.1 ln 4 + 1)^2 = 1.2965. To do: write rope.scaling.attn_factor = attention_factor /
# (0.1 ln(factor) + 1) into the GGUF; for mlx-lm multiply the query weights.
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
import math
import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import torch
import transformers
import xllamacpp
from mlx_lm.utils import load_model
from transformers import AutoModelForCausalLM, Qwen2Config

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
FOLDER = Path(sys.argv[1])
VOCABULARY, LAYERS = 128, 2
TOKENS = [(7 * n * n + 3 * n) % 96 + 4 for n in range(64)]
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": LAYERS}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.25, "rope_theta": 1e6}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 131072}
FACTOR = 4.0
YARN = {"rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": 32768}
DEFAULT = 0.1 * math.log(FACTOR) + 1.0


def normal(logits):
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max()
    return logits - np.log(np.exp(logits).sum())


def made(**yarn):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(Qwen2Config(**SIZES, rope_scaling=YARN | yarn)).eval()


def by_transformers(model):
    with torch.no_grad():
        return normal(model(torch.tensor([TOKENS])).logits[0, -1].numpy())


def by_mlx(model, **yarn):
    model.save_pretrained(FOLDER / "model")
    file = FOLDER / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | SIZES | {"rope_scaling": YARN | yarn}))
    loaded, _ = load_model(FOLDER / "model")
    return normal(np.array(loaded(mx.array([TOKENS]))[0, -1]))


def write(model, keys):
    file = gguf.GGUFWriter(FOLDER / "model.gguf", "qwen2")
    file.add_block_count(LAYERS)
    file.add_context_length(131072)
    file.add_embedding_length(SIZES["hidden_size"])
    file.add_feed_forward_length(SIZES["intermediate_size"])
    file.add_head_count(SIZES["num_attention_heads"])
    file.add_head_count_kv(SIZES["num_key_value_heads"])
    file.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    file.add_rope_freq_base(SIZES["rope_theta"])
    file.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    file.add_rope_scaling_factor(FACTOR)
    file.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
    for name, value in keys.items():
        file.add_float32(f"qwen2.rope.scaling.{name}", value)
    file.add_tokenizer_model("llama")
    file.add_tokenizer_pre("default")
    file.add_token_list(["<unk>", "<s>", "</s>", *(f"<{n}>" for n in range(3, VOCABULARY))])
    file.add_token_scores([0.0] * VOCABULARY)
    file.add_token_types([2, 3, 3] + [4] * (VOCABULARY - 3))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, LAYERS)
    for name, tensor in model.state_dict().items():
        file.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), tensor.float().numpy())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def by_llama_cpp(model, **keys):
    write(model, keys)
    options = xllamacpp.CommonParams()
    options.model.path = str(FOLDER / "model.gguf")
    options.n_ctx, options.n_parallel, options.warmup, options.verbosity = 256, 1, False, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(options)
    ask = {"prompt": TOKENS, "n_predict": 1, "n_probs": VOCABULARY, "temperature": 0.0, "ignore_eos": True}
    first = server.handle_completions(ask)["choices"][0]["logprobs"]["content"][0]
    found = {each["id"]: each["logprob"] for each in first["top_logprobs"]}
    return np.array([found.get(token, np.nan) for token in range(VOCABULARY)])


usual, one = made(), made(attention_factor=1.0)
asked = by_transformers(one)
read = ~np.isnan(by_llama_cpp(usual))  # the end of text is forbidden, so it may be missing


def report(name, answer, without, unread):
    off, same = np.abs(answer - asked)[read].max(), (answer == without)[read].all()
    print(f"{name:33} {off:.2g}{', same bits as without the key' if same else ''}")
    assert same == unread
    assert off > 0.1 if unread else off < 1e-3


report("mlx-lm", by_mlx(one, attention_factor=1.0), by_mlx(usual), True)
plain = by_llama_cpp(usual)
assert np.abs(plain - by_transformers(usual))[read].max() < 1e-3
for key, value, unread in (
    ("yarn_attn_factor", 1.0, True),
    ("attn_factor", 1.0, True),
    ("attn_factor", 1.0 / DEFAULT, False),
):
    report(f"llama.cpp, {key} = {value:.5g}", by_llama_cpp(one, **{key: value}), plain, unread)
EOF
{ cat "$folder/log" >&2; exit 1; }
