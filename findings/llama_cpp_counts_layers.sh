#!/bin/sh
# llama.cpp changes the attention of Gemma 2, Gemma 3 and EXAONE 4 with the number of layers.
#
# GGUF files of these families hold no multiplier of the score. llama.cpp knows the 27B models by their 46 or
# 62 layers and takes 1 / sqrt(width of the model / heads) there, at any other depth 1 / sqrt(head_dim); the
# key attention.scale, which other families read, is ignored. EXAONE 4 has its sliding window, and layers
# without rotation, at 64 layers only, although attention.sliding_window is in the file.
#
# Seen with random files, whose further layers add exactly zero; the log-probabilities of 60 tokens, the last
# of a prompt of 24, compared with those of a file that has one layer fewer:
#
#   gemma2    45 layers 0.00, 46 layers 0.34, 47 layers 0.34, 48 layers 0.00
#   gemma3    61 layers 0.00, 62 layers 0.82, 63 layers 0.82, 64 layers 0.00
#   exaone4   63 layers 0.00, 64 layers 4.78, 65 layers 4.78, 66 layers 0.00
#   gemma2    with attention.scale 0.01: the same numbers as without
#
# Hurt: who prunes, merges or grows a 27B or 32B model by layers: the score is multiplied by another number
# than in training, without a message. A Gemma with another query_pre_attn_scalar cannot be expressed; in
# transformers both come from config.json. To do: keep the depth, or put the ratio into the query weights.
#
# xllamacpp 2026.10.11549 (llama.cpp of October 2026) on the CPU, gguf 0.19.0. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.1
"$folder/venv/bin/python" - "$folder" 2>"$folder/log" <<'EOF' || { cat "$folder/log" >&2; exit 1; }
import sys
from pathlib import Path

import gguf
import numpy as np
import xllamacpp

FOLDER = Path(sys.argv[1])
VOCABULARY, WIDTH, HEADS, INNER = 64, 128, 2, 64
PROMPT = [(5 * n * n + 3 * n) % 60 + 4 for n in range(24)]
HEAD = {"gemma2": 32, "gemma3": 32, "exaone4": 64}


def write(family, layers, **more):
    """A GGUF file in which only the first four layers add something to the residual stream."""
    random = np.random.default_rng(0)
    head = HEAD[family]
    file = gguf.GGUFWriter(FOLDER / "model.gguf", family)
    file.add_block_count(layers)
    file.add_context_length(256)
    file.add_embedding_length(WIDTH)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(1)
    file.add_key_length(head)
    file.add_value_length(head)
    file.add_rope_dimension_count(head)
    file.add_rope_freq_base(10000.0)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_sliding_window(8)
    for name, value in more.items():
        file.add_float32(f"{family}.attention.{name}", value)
    file.add_tokenizer_model("llama")
    file.add_tokenizer_pre("default")
    file.add_token_list(["<unk>", "<s>", "</s>", *(f"<{n}>" for n in range(3, VOCABULARY))])
    file.add_token_scores([0.0] * VOCABULARY)
    file.add_token_types([2, 3, 3] + [4] * (VOCABULARY - 3))

    def put(name, *shape, size=None):
        array = np.full(shape, 1.0) if size is None else random.normal(size=shape) * size
        file.add_tensor(name + ".weight", array.astype(np.float32))

    put("token_embd", VOCABULARY, WIDTH, size=0.2)
    put("output_norm", WIDTH)
    for layer in range(layers):
        at = f"blk.{layer}."
        put(at + "attn_q", HEADS * head, WIDTH, size=0.4)
        put(at + "attn_k", head, WIDTH, size=0.4)
        put(at + "attn_v", head, WIDTH, size=0.1)
        put(at + "attn_output", WIDTH, HEADS * head, size=0.1)
        for name, *shape in (("gate", INNER, WIDTH), ("up", INNER, WIDTH), ("down", WIDTH, INNER)):
            put(at + f"ffn_{name}", *shape, size=0.1)
        if family != "gemma2":
            put(at + "attn_q_norm", head)
            put(at + "attn_k_norm", head)
        if family != "exaone4":
            put(at + "attn_norm", WIDTH)
            put(at + "ffn_norm", WIDTH)
        for name in ("post_attention_norm", "post_ffw_norm"):
            array = np.full(WIDTH, 1.0 if layer < 4 else 0.0, np.float32)
            file.add_tensor(f"{at}{name}.weight", array)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def answer(family, layers, **more):
    write(family, layers, **more)
    options = xllamacpp.CommonParams()
    options.model.path = str(FOLDER / "model.gguf")
    options.n_ctx, options.n_parallel, options.warmup, options.verbosity = 256, 1, False, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(options)
    ask = {"prompt": PROMPT, "n_predict": 1, "n_probs": VOCABULARY, "temperature": 0.0, "ignore_eos": True}
    first = server.handle_completions(ask)["choices"][0]["logprobs"]["content"][0]
    found = {each["id"]: each["logprob"] for each in first["top_logprobs"]}
    return np.array([found[token] for token in range(4, VOCABULARY)])


for family, known in {"gemma2": 46, "gemma3": 62, "exaone4": 64}.items():
    rows = [answer(family, layers) for layers in range(known - 2, known + 3)]
    steps = [np.abs(one - other).max() for one, other in zip(rows, rows[1:], strict=False)]
    print(f"{family:9}", ", ".join(f"{known - 1 + n} layers {step:.2f}" for n, step in enumerate(steps)))
    assert max(steps[0], steps[3]) < 1e-4 < 0.05 < min(steps[1], steps[2])
same = (answer("gemma2", 42) == answer("gemma2", 42, scale=0.01)).all()
print("gemma2    with attention.scale 0.01:", "the same numbers as without" if same else "read")
assert same
EOF
