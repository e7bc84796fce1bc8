# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# <!-- SPDX-License-Identifier: BSD-3-Clause -->
# # Which n?
#
# A scale law such as $\log_{512} n/\sqrt d$ is incomplete until it says what $n$ counts. Published programs
# count the keys that a query sees, the length of its row, its position, its position plus one, its position
# plus two, or the whole text. With a causal mask alone most of these are nearly the same number, so the
# difference is easily missed.
#
# This notebook takes one law and gives its $n$ five meanings. Then it shows common mistakes: blocks that
# begin one token early, packs whose documents share one $n$, chunks that count their own keys, and
# log-sum-exps in base 2 that are merged as if they were natural (claim **T6**). Links lead to public reports
# of such mistakes. Every statement with a number is asserted.
#
# **摘要。** 缩放规则 (如 $\log_{512} n/\sqrt d$) 必须说明 $n$ 数的是什么：
# 可见的键，行长，查询的位置，位置加一，位置加二，还是整段文本的长度。
# 在单纯的因果掩码下它们几乎相同，一旦有滑动窗口，打包的文档，分块计算，差别就显现出来。
# 本文用同一条缩放规则展示 $n$ 的五种含义，并逐一重现容易犯的错误：
# 差一错误，打包文档共用一个 $n$，分块各数各的键，以及把以 2 为底的 lse 当作自然对数来合并。
# 凡在公开代码中出现过的，文中附有链接。
#
# | English | 中文 | here |
# |---|---|---|
# | visible keys | 可见的键 | keys that are left after every mask |
# | row size | 行长 | keys up to the last one that the causal mask allows |
# | query position | 查询位置 | $i$, counted from 0 |
# | packed documents | 打包的文档 | several texts in one sequence that must not see each other |
# | log-sum-exp | 对数和指数 | $\mathrm{lse} = \ln \sum_j e^{s_j}$ |

# %%
import math

import attnscale as at
import matplotlib.pyplot as plt
import numpy as np

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

rng = np.random.default_rng(20220401)
print(f"attnscale {at.__version__}")

# %% [markdown]
# ## One law, five meanings of n
#
# `laws.register` registers one function under four meanings of $n$. The fifth, the whole text, is a number
# that we pass ourselves. A window of 256 keys and a mask that hides every third key make them differ.


# %%
def log_512(n, head_dim):
    """log_512(n) / sqrt(head_dim)"""
    return np.log(n) / np.log(512) / np.sqrt(head_dim)


meanings = {
    "visible": "visible keys",
    "row": "row size",
    "position + 1": "query position + 1",
    "position + 2": "query position + 2",
}


def law_of(name):
    """The name that it is registered under."""
    return "log_512_of_" + name.replace(" + ", "_plus_")


for name, meaning in meanings.items():
    at.laws.register(law_of(name), n_means=meaning)(log_512)
    print(f"{name:13} {at.laws.MEANINGS_OF_N[meaning]}")

# %% [markdown]
# To read the scale off a call, make every dot product 1: the largest score of a row is then its scale.

# %%
length, head_dim = 2048, 16
ones = np.full((length, head_dim), 1 / np.sqrt(head_dim))
every_third = np.arange(length) % 3 != 2
masks = {"is_causal": True, "window": (255, None), "attn_mask": every_third}


def scales_of(scale, **options):
    """The scale that each of the queries got."""
    rows = at.attention_statistics(ones, ones, scale=scale, statistics=("max_score",), **options)
    return rows.max_score


multiple = {name: scales_of(law_of(name), **masks) * np.sqrt(head_dim) for name in meanings}
multiple["whole text"] = np.full(length, np.log(length) / np.log(512))

i = np.arange(length)
visible = (np.minimum(i + 1, 256) * 2 / 3).round()  # two keys of three, rounded
np.testing.assert_allclose(multiple["visible"][1:], np.log(visible[1:]) / np.log(512), atol=0.12)
np.testing.assert_allclose(multiple["row"], np.log(i + 1) / np.log(512), atol=1e-12)
np.testing.assert_array_equal(multiple["row"], multiple["position + 1"])  # the same under this mask ...
np.testing.assert_allclose(multiple["position + 2"], np.log(i + 2) / np.log(512), atol=1e-12)

prefix = {"is_causal": True, "causal": None, "key_lengths": 1000}
row, position = (scales_of(law_of(name), **prefix) for name in ("row", "position + 1"))
np.testing.assert_array_equal(row[:1000], position[:1000])  # ... but not beyond the last key of a padded text
assert (row[1000:] < position[1000:]).all()

last = {name: values[-1] for name, values in multiple.items()}
print("multiple of 1/sqrt(d) for the last query:", {name: f"{value:.3f}" for name, value in last.items()})
assert last["visible"] < 0.83
assert last["whole text"] > 1.22

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(5.6, 3.4))
    dashes = ("-", "-", (0, (4, 2)), (0, (1, 1.5)), "-")
    for (name, values), colour, dash in zip(multiple.items(), at.plot.COLOURS, dashes, strict=False):
        ax.plot(i + 1, values, color=colour, linestyle=dash, label=name)
    ax.set(xscale="log", xlim=(4, 2048), ylim=(0.2, 1.3))
    ax.set(xlabel="query, $i + 1$", ylabel=r"multiple of $1/\sqrt{d}$")
    ax.set_title(r"$\log_{512} n$, window 256, every third key hidden")
    ax.set_xticks([4, 16, 64, 256, 1024], ["4", "16", "64", "256", "1024"])
    ax.minorticks_off()
    ax.legend()
    plt.show()

# %% [markdown]
# Effect of the window on the weights: with it the row stops growing at 171 visible keys, and so does a law
# of visible keys. A law of positions keeps sharpening a row that no longer grows: by half at the end of this
# text (1.22 against 0.82), and without limit in longer ones.

# %%
query, key = rng.standard_normal((2, 1, length, head_dim))
entropy = {name: at.attention_entropy(query, key, scale=law_of(name), **masks)[0] for name in meanings}
late = {name: values[-512:].mean() for name, values in entropy.items()}
print("entropy of the last 512 rows:", {name: f"{value:.2f}" for name, value in late.items()})
assert late["visible"] - late["row"] > 0.3
assert late["row"] == late["position + 1"]

# %% [markdown]
# ## One token early
#
# Llama 4 sharpens its queries in blocks of $F$ tokens, $1 + 0.1 \ln(1 + \lfloor (i + 1)/F \rfloor)$.
# Ministral uses the same rule but counts $i$. So its blocks begin one token later, and a program that runs
# both models with one formula is wrong for one query in each block. llama.cpp added an offset for that
# ([ggml-org/llama.cpp 18025](https://github.com/ggml-org/llama.cpp/pull/18025)). Qwen and Grok also differ by
# one token.

# %%
block = 16
llama = at.laws.Llama4Temperature(floor=block)
ministral = at.laws.MinistralTemperature(length=block)
positions = np.arange(4 * block)
steps = {law.name: law.multiplier(1, 64, position=positions) for law in (llama, ministral)}
differ = np.flatnonzero(steps["llama4_temperature"] != steps["ministral_temperature"])
print("queries on which the two rules differ:", differ)
assert differ.tolist() == [15, 31, 47, 63]

qwen, grok = at.laws.QwenLogN(block), at.laws.GrokTemperature(block)
first = [
    int((law.multiplier(1, 64, position=positions) > 1).argmax()) for law in (qwen, grok, llama, ministral)
]
print("first query with more than the standard scale (Qwen, Grok, Llama 4, Ministral):", first)
assert first == [16, 17, 15, 16]

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(5.6, 2.9))
    for law, colour in zip((llama, ministral, qwen, grok), at.plot.COLOURS, strict=False):
        m = law.multiplier(1, 64, position=positions)
        ax.step(positions, m, where="mid", color=colour, linewidth=1.4, label=f"{law.name}: {law.n_means}")
    ax.set(xlim=(10, 36), ylim=(0.98, 1.32), xlabel="query position $i$", ylabel=r"multiple of $1/\sqrt{d}$")
    ax.set_title("Four rules with the same length 16")
    ax.legend()
    plt.show()

# %% [markdown]
# ## Packed documents
#
# Training packs short texts into one sequence. `document_ids` hides other texts and lets a law count within
# each text. Counted over the pack, the last of eight texts of 256 tokens would be treated as 2048 tokens
# long: sharper by a factor that depends on where the text happened to be. For programs, finding the position
# within a text is not trivial ([NVIDIA/TensorRT-LLM 836](https://github.com/NVIDIA/TensorRT-LLM/issues/836)).

# %%
texts = 8
ids = np.repeat(np.arange(texts), length // texts)
within = scales_of(law_of("row"), is_causal=True, document_ids=ids) * np.sqrt(head_dim)
across = scales_of(law_of("row"), is_causal=True) * np.sqrt(head_dim)
np.testing.assert_allclose(within, np.tile(across[:256], texts), atol=1e-12)

value = rng.standard_normal((1, length, 8))
packed = at.attention(query, key, value, scale=law_of("row"), is_causal=True, document_ids=ids)
alone = at.attention(query[:, -256:], key[:, -256:], value[:, -256:], scale=law_of("row"), is_causal=True)
np.testing.assert_array_equal(packed[:, -256:], alone)

with at.plot.style():
    figure, ax = plt.subplots(figsize=(5.6, 2.6))
    ax.plot(i, across, color=at.plot.COLOURS[1], label="counted over the pack")
    ax.plot(i, within, color=at.plot.COLOURS[0], linewidth=1.2, label="counted within each text")
    ax.set(xlabel="query in the pack", ylabel=r"multiple of $1/\sqrt{d}$", ylim=(0, 1.7))
    ax.set_title("Eight texts of 256 tokens in one sequence")
    ax.legend(loc="upper left", ncols=2)
    plt.show()

# %% [markdown]
# ## Chunks that count for themselves
#
# Long rows are computed in chunks of keys, and their states merge exactly. The scale must be fixed before the
# split: a chunk that evaluates the law on its own keys uses the wrong $n$.

# %%
law = at.laws.LogN()
chunks = [slice(start, start + 256) for start in range(0, length, 256)]
whole = at.attention_entropy(query, key, scale=law)
right = at.merge_states(
    [at.attention_state(query, key[:, c], value[:, c], scale=law.scale(length, head_dim)) for c in chunks]
)
wrong = at.merge_states([at.attention_state(query, key[:, c], value[:, c], scale=law) for c in chunks])
np.testing.assert_allclose(right.entropy, whole, atol=1e-11)
off = wrong.entropy.mean() - whole.mean()
print(
    f"mean entropy: whole {whole.mean():.3f}, merged {right.entropy.mean():.3f}, chunk-local n {off:+.3f} nat"
)
assert off > 0.2

# %% [markdown]
# ## States merge only with natural logarithms (T6)
#
# Two parts of a row with $\mathrm{lse}_A$ and $\mathrm{lse}_B$ merge with the weight $w = 1/(1 +
# e^{\mathrm{lse}_B - \mathrm{lse}_A})$. GPU kernels often work in base 2, because `exp2` is one instruction,
# and some return $\mathrm{lse}_2 = \mathrm{lse}/\ln 2$. Merged as if natural, the parts are weighted by
# $Z_A^{1.4427} : Z_B^{1.4427}$. Nothing crashes and equal parts are merged correctly, but the larger part
# always gets too much. It was reported as two libraries that disagree ([flashinfer-ai/flashinfer
# 2113](https://github.com/flashinfer-ai/flashinfer/issues/2113)), as an output that is 12 % off after a
# cached prefix ([sgl-project/sglang 40903](https://github.com/sgl-project/sglang/issues/40903)), and as text
# that repeats itself ([vllm-project/vllm 52796](https://github.com/vllm-project/vllm/pull/52796)).

# %%
share = np.linspace(0.02, 0.98, 97)
as_natural = 1 / (1 + ((1 - share) / share) ** (1 / math.log(2)))
error = as_natural - share
print(f"largest error of the weight: {abs(error).max():.3f} at a share of {share[error.argmax()]:.2f}")
assert abs(error[48]) < 1e-12
assert 0.08 < abs(error).max() < 0.10

keys = 1000
q, k, v = np.ones((1, 1, 4)), np.zeros((1, keys, 4)), np.zeros((1, keys, 1))
v[0, 250:] = 1  # equal weights: the output is the share of the second part
parts = [at.attention_state(q, k[:, c], v[:, c]) for c in (slice(0, 250), slice(250, keys))]
base2 = [at.AttentionState(part.output, part.lse / math.log(2), part.mean_score) for part in parts]
print("output 0.75 in natural logarithms, and in base 2:", at.merge_states(base2).output.item())
np.testing.assert_allclose(at.merge_states(parts).output, 0.75, atol=1e-12)
np.testing.assert_allclose(at.merge_states(base2).output, 1 / (1 + 3 ** (-1 / math.log(2))), atol=1e-12)
converted = [at.AttentionState(p.output, p.lse * math.log(2), p.mean_score) for p in base2]
np.testing.assert_allclose(at.merge_states(converted).output, 0.75, atol=1e-12)

# The entropy of the merged row needs the natural lse as well: ln 1000, not log2 1000.
np.testing.assert_allclose(at.merge_states(parts).entropy, math.log(keys), atol=1e-12)
assert at.merge_states(base2).entropy.item() > math.log(keys) + 2

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.6, 3.1))
    ax.plot(share, share, color="#6E6E6E", linestyle=(0, (4, 2)), linewidth=1.2, label="natural: right")
    ax.plot(share, as_natural, color=at.plot.COLOURS[1], label=r"$\log_2$ taken for $\ln$")
    ax.set(xlabel="true weight of a part", ylabel="weight it gets", title="Merging states of base 2")
    ax.legend()
    plt.show()

# %% [markdown]
# ## Three more, in one figure
#
# - *A polynomial read backwards.* Adaptive temperature multiplies by $\max(1, P(H))$ with coefficients that
#   the paper lists highest power first. Read lowest first, $P(3) = -31.6$ instead of $2.25$, clamped to 1;
#   only rows from 0.92 to 2.15 nats get a correction, and the wrong one. Even read correctly, $P$ drops below
#   1 beyond 5.94 nats: long, diffuse rows are not corrected.
# - *An epsilon in the logarithm.* $-\sum p \ln(p + 10^{-6})$ is off by $-0.72$ nat on a uniform row of
#   $2^{20}$ keys, which has 13.86.
# - *A shift.* $e^{x - s \ln n}$ was documented as scalable softmax. A shift of a whole row cancels, so it
#   does nothing.

# %%
adaptive = at.laws.AdaptiveTemperature()
backwards = at.laws.AdaptiveTemperature(coefficients=adaptive.coefficients[::-1])
h = np.linspace(0, 9, 361)
reached = h[backwards.multiplier(h, 64) > 1]
assert 0.9 < reached.min() < reached.max() < 2.2
np.testing.assert_allclose(adaptive.multiplier(3.0, 64), 2.25, atol=1e-12)
corrected = h[adaptive.multiplier(h, 64) > 1]
print(f"adaptive temperature acts from {corrected.min():.2f} to {corrected.max():.2f} nats")
assert 5.90 < corrected.max() < 5.95

n = 2.0 ** np.arange(0, 21)
with_epsilon = -np.log(1 / n + 1e-6)
exact = at.attention_entropy(np.ones((1, 1)), np.zeros((2**20, 1)))[0]
np.testing.assert_allclose(exact, math.log(2**20), atol=1e-10)
np.testing.assert_allclose(with_epsilon[-1] - exact, -0.717, atol=1e-3)

x = rng.standard_normal((1, 500, 1))
shifted = np.full((1, 500), -0.43 * math.log(500))
np.testing.assert_allclose(
    at.attention_entropy(np.ones((1, 1, 1)), x, attn_mask=shifted),
    at.attention_entropy(np.ones((1, 1, 1)), x),
    atol=1e-12,
)

with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 2.9))
    left.plot(h, adaptive.multiplier(h, 64), color=at.plot.COLOURS[0], label="highest power first")
    left.plot(h, backwards.multiplier(h, 64), color=at.plot.COLOURS[1], label="lowest first")
    left.set(xlabel="entropy of the row (nats)", ylabel=r"multiple of $1/\sqrt{d}$")
    left.set_title("Adaptive temperature")
    left.legend()
    right.plot(n, np.log(n), color=at.plot.COLOURS[0], label=r"$\ln n$")
    right.plot(n, with_epsilon, color=at.plot.COLOURS[1], label=r"with $\epsilon = 10^{-6}$")
    right.set(xscale="log", xlabel="$n$", ylabel="nats", title="Entropy of equal weights")
    right.legend()
    plt.show()

# %% [markdown]
# ## On causal heads
#
# The effect on trained heads: `log_n` with the keys that a query sees, and with the length of the text for
# every query. The first leaves early rows flat, the second gives all rows one scale; at the end of the text
# both agree.

# %%
causal = at.datasets.causal_qk()
seen = at.attention_entropy(causal.query, causal.key, scale="log_n", is_causal=True)
whole = at.laws.get("log_n").scale(2048, 32)
text = at.attention_entropy(causal.query, causal.key, scale=whole, is_causal=True)
print("rows        log_n(visible)   log_n(2048)")
for last in (64, 256, 1024, 2048):
    part = slice(last - last // 8, last)
    print(f"to {last:5d}   {seen[:, part].mean():10.3f} {text[:, part].mean():14.3f}")
np.testing.assert_allclose(seen[:, -1], text[:, -1], atol=1e-4)
assert (seen[:, 56:64].mean(-1) > text[:, 56:64].mean(-1)).all()
np.testing.assert_allclose([seen[:, 56:64].mean(), text[:, 56:64].mean()], [3.125, 2.195], atol=0.01)
# %% [markdown]
# ## What to write down
#
# A law is its formula *and* its $n$. `attnscale explain NAME` prints both, and the repr of a law rebuilds it.

# %%
print(at.laws.explain("ministral_temperature"))
for name in ("standard", "log_n", "annealed", "scale_invariant", "critical_scale"):
    assert f"\n  n        {at.laws.get(name).n_means}: " in at.laws.explain(name)
assert eval(repr(ministral), vars(at.laws)) == ministral
assert at.laws.from_json(ministral.to_json()) == ministral

# %% [markdown]
# ## What was shown
#
# - One formula under four meanings of $n$ gives the last query of the same text multiples from 0.82 to
#   1.22.
# - Rules that differ by one token differ in one query of each block: Llama 4 and Ministral at 15, 31, 47,
#   ...
# - A pack needs its own count for each document, a chunk the count of the whole row. States merge exactly,
#   and only with natural logarithms: in base 2 a part's weight is off by up to 0.1 (T6).
#
# ## Exercises
#
# 1. Add `window=(63, None)` to the pack of documents. Under which of the four meanings does the multiple
#    change, and from which query on? Write the answer down before you run it.
# 2. Register a law with `n_means="query position"` whose $n$ starts at 0. What must its formula do at the
#    first query?
