#!/bin/sh
# llama.cpp on a CPU adds up values in half precision for each generated token: a Q8_0 cache comes closer.
#
# By default flash attention is on and the cache is F16. A long prompt is then summed in float32, but fewer
# rows than a tile, as each generated token or what remains of a prompt whose beginning is reused, in 16 bits
# with a rounding at each key. The error grows with the number of keys; for a single row it falls with the
# number of threads, which share the keys. Caches of other types are summed in float32.
#
# Seen with random weights of two layers, farthest log-probability after a prompt from that of a float32 cache
# without flash attention, the prompt evaluated whole, or its last tokens after the others were cached:
#
#   keys  cache                    whole  last token  last five
#    500  F16, flash, 1 thread    0.0017      0.0194     0.0191
#   4000  F16, flash, 1 thread    0.0013      0.1616     0.1616
#   4000  F16, flash, 4 threads   0.0013      0.0302     0.1616
#   4000  F16, no flash           0.0016      0.0016     0.0016
#   4000  Q8_0, flash             0.0507      0.0507     0.0507
#
# Values of random signs cancel, so a trained model can have less. Hurt: who compares log-probabilities of
# generation with those of scoring, repeats a question (cache_prompt is on by default), changes the number of
# threads, or avoids a Q8_0 cache for accuracy. To do: --flash-attn off, or a BF16 cache.
#
# xllamacpp 2026.10.11549 (llama.cpp of October 2026) on x86, gguf 0.19.0. Fails if the behaviour changes.
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

PATH = Path(sys.argv[1]) / "model.gguf"
VOCABULARY, LAYERS, WIDTH, HEADS, HEAD = 128, 2, 256, 4, 64


def write():
    random = np.random.default_rng(0)
    file = gguf.GGUFWriter(PATH, "qwen2")
    file.add_block_count(LAYERS)
    file.add_context_length(4352)
    file.add_embedding_length(WIDTH)
    file.add_feed_forward_length(WIDTH)
    file.add_head_count(HEADS)
    file.add_head_count_kv(1)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_rope_freq_base(1e6)
    file.add_tokenizer_model("llama")
    file.add_tokenizer_pre("default")
    file.add_token_list(["<unk>", "<s>", "</s>", *(f"<{n}>" for n in range(3, VOCABULARY))])
    file.add_token_scores([0.0] * VOCABULARY)
    file.add_token_types([2, 3, 3] + [4] * (VOCABULARY - 3))

    def put(name, *shape, size):
        file.add_tensor(name, (random.normal(size=shape) * size).astype(np.float32))

    put("token_embd.weight", VOCABULARY, WIDTH, size=0.1)
    put("output.weight", VOCABULARY, WIDTH, size=0.1)
    file.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        for name, rows, size in (("q", HEADS * HEAD, 0.08), ("k", HEAD, 0.08), ("v", HEAD, 0.06)):
            put(f"{at}attn_{name}.weight", rows, WIDTH, size=size)
            put(f"{at}attn_{name}.bias", rows, size=0.1)
        put(at + "attn_output.weight", WIDTH, HEADS * HEAD, size=0.06)
        for name in ("gate", "up", "down"):
            put(f"{at}ffn_{name}.weight", WIDTH, WIDTH, size=0.05)
        file.add_tensor(at + "attn_norm.weight", np.ones(WIDTH, np.float32))
        file.add_tensor(at + "ffn_norm.weight", np.ones(WIDTH, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def served(flash, cache, threads):
    """Ask a prompt three times: whole, its last token after the others, its last five after the others."""
    options = xllamacpp.CommonParams()
    options.model.path = str(PATH)
    options.n_ctx, options.n_parallel, options.warmup, options.verbosity = 4352, 1, False, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    options.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, "LLAMA_FLASH_ATTN_TYPE_" + flash)
    options.cache_type_k = options.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + cache)
    server = xllamacpp.Server(options)

    def answer(prompt, reuse):
        ask = {"prompt": prompt, "n_predict": 1, "n_probs": VOCABULARY, "temperature": 0.0}
        ask |= {"ignore_eos": True, "cache_prompt": reuse}
        reply = server.handle_completions(ask)
        row = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        found = {each["id"]: each["logprob"] for each in row}
        return np.array([found[token] for token in range(3, VOCABULARY)])

    def ask(prompt):
        rows = [answer(prompt, reuse) for reuse in (False, True)]
        answer([*prompt[:-5], 3], False)
        return [*rows, answer(prompt, True)]

    return ask


write()
exact = served("DISABLED", "F32", 1)
servers = {"F16, flash, 1 thread": ("AUTO", "F16", 1), "F16, flash, 4 threads": ("AUTO", "F16", 4)}
servers |= {"F16, no flash": ("DISABLED", "F16", 1), "Q8_0, flash": ("ENABLED", "Q8_0", 1)}
servers = {name: served(*each) for name, each in servers.items()}
print("keys  cache                    whole  last token  last five")
for count in (500, 4000):
    prompt = [(7 * n * n + 3 * n) % 96 + 4 for n in range(count)]
    truth = exact(prompt)[0]
    found = {name: [np.abs(row - truth).max() for row in ask(prompt)] for name, ask in servers.items()}
    for name, errors in found.items():
        print(f"{count:4}  {name:22}{errors[0]:8.4f}{errors[1]:12.4f}{errors[2]:11.4f}")
    single, several, unfused, small = found.values()
    assert min(single[1], single[2], several[2]) > 5 * single[0]
    assert max(unfused) < 5 * single[0]
assert several[1] < 0.5 * single[1]
assert single[1] > 2 * max(small)
EOF
