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
# # Efficient attention: two softmaxes in the place of one
#
# An article by LambdaClass explains the efficient attention of Shen et al. (2021, [arXiv
# 1812.01243](https://arxiv.org/abs/1812.01243)): a softmax over the channels of each query, one over the keys
# of each channel, and a product without an $n \times n$ matrix. This notebook checks its definitions, its
# example and its charts (claims **T25** and **T26**):
#
# - the implied weights are a distribution over the keys, and a mixture of at most $d$ maps;
# - operations and memory grow as $n$; for attention operations grow as $n^2$, and memory as $n^2$ if the
#   matrix is stored or $n$ if not;
# - the price is sharpness: on the heads of a real encoder the weights are nearly uniform, and hardly nearer
#   to those of softmax than equal weights are.
#
# Three things in the article are inconsistent, as shown below: its topics are not distributions, its listing
# leaves out the scale, and its chart is not exponential.
#
# The sharpness is measured on a model that was trained with softmax attention. A model trained with efficient
# attention has other queries and keys. The article does not claim that one can replace the other in a trained
# model.
#
# **摘要。** 本文按照 LambdaClass 的文章复现高效注意力 (Shen 等， 2021)：对查询的通道做一次 softmax，
# 对每个通道的键做一次 softmax，再利用矩阵乘法的结合律避免 $n\times n$ 矩阵。
# 隐含的权重每行之和为 1，且是至多 $d$ 个全局注意力图的混合，因此秩不超过 $d$。
# 时间与内存随 $n$ 线性增长，而点积注意力的时间随 $n^2$ 增长。代价是失去尖锐性：
# 在真实编码器的注意力头上，高效注意力的权重接近均匀分布。
#
# | English | 中文 | here |
# |---|---|---|
# | global attention map | 全局注意力图 | one channel's distribution over the keys |
# | template value | 全局主题向量 | $g_c$, the mean of the values under map $c$ |
# | sharpness | 尖锐性 | how much weight the largest has |
# | effective rank | 有效秩 | $e^H$ of the singular values' shares |
# | crossover | 交叉点 | the $n$ from which one is faster |

# %%
import time
from collections import namedtuple
from functools import partial

import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from attnscale.variants import (
    EfficientState,
    efficient_attention,
    efficient_attention_weights,
    global_maps,
)
from sklearn.datasets import load_digits

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

rng = np.random.default_rng(20251112)
BLUE, RED = at.plot.COLOURS[:2]
GREY = "#6E6E6E"


def softmax(x, axis):
    """Along an axis."""
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# %% [markdown]
# ## The definition (T25)
#
# $$E(Q, K, V) = \rho_{\text{row}}(Q)\,\bigl(\rho_{\text{col}}(K)^\top V\bigr),$$
#
# with $\rho_{\text{row}}$ the softmax over the $d$ channels of a query and $\rho_{\text{col}}$ the softmax
# over the $n$ keys of a channel. Multiplied from the right it costs $4 n d^2$ operations and keeps $d^2$
# numbers. Multiplied from the left it gives the weights, $A =
# \rho_{\text{row}}(Q)\,\rho_{\text{col}}(K)^\top$: They are not negative, and
#
# $$\sum_j A_{ij} = \sum_c \rho_{ic} \sum_j \rho_{jc} = \sum_c \rho_{ic} = 1.$$

# %%
n, d = 300, 16
q, k, v = rng.standard_normal((3, n, d))
by_hand = softmax(q, 1) @ (softmax(k, 0).T @ v)
weights = efficient_attention_weights(q, k)
print("largest difference to the formula:", abs(efficient_attention(q, k, v) - by_hand).max())
print(
    "rows sum to", weights.sum(1).min(), "...", weights.sum(1).max(), "  rank", np.linalg.matrix_rank(weights)
)
assert np.allclose(efficient_attention(q, k, v), by_hand, atol=1e-12)
assert np.allclose(weights @ v, by_hand, atol=1e-12)
assert np.allclose(weights.sum(1), 1)
assert weights.min() > 0
assert np.linalg.matrix_rank(weights) == d

# %% [markdown]
# ### The article's example
#
# One query and four keys; the third key equals the query.

# %%
query = np.array([[2.0, 1, 3]])
keys = np.array([[1.0, 0, 1], [0, 1, 0], [2, 1, 3], [1, 1, 0]])
dot_product = at.attention(query, keys, np.eye(4))[0]
efficient = efficient_attention_weights(query, keys)[0]
print("dot product", dot_product.round(6))
print("efficient  ", efficient.round(6))
assert np.allclose(dot_product, [0.005495, 0.000546, 0.992228, 0.001732], atol=5e-7)
assert np.allclose(efficient, [0.130855, 0.071253, 0.696223, 0.101669], atol=5e-7)

# %% [markdown]
# These are the article's numbers, with $1/\sqrt 3$ in the dot products. Its PyTorch listing has no scale, and
# computes other weights:

# %%
listing = at.attention(query, keys, np.eye(4), scale=1.0)[0]
print("listing    ", [f"{weight:.6f}" for weight in listing])
assert np.allclose(listing, [0.000123, 0.000002, 0.999858, 0.000017], atol=5e-7)

# %% [markdown]
# The article uses the example to argue that efficient attention "smooths". Part of this is due to the scale:
# the query's softmax sees numbers of size 1, whatever $d$ is, and no factor compensates for that. A factor on
# both makes the weights sharper, but two softmaxes do not become a softmax of the products:

# %%
for scale in (1, 2, 4, 8):
    print(scale, efficient_attention_weights(query, keys, scale=scale)[0].round(4))
assert efficient_attention_weights(query, keys, scale=8)[0, 2] > 0.99

# %% [markdown]
# ## Global maps on a real sentence (T25)
#
# The rows of $\rho_{\text{col}}(K)^\top$ are $d$ distributions over the keys. They do not depend on the
# query. Each gives one vector $g_c = \sum_j \rho_{jc} v_j$, and a query only mixes the $g_c$. The article
# illustrates them with invented numbers on a sentence; here they come from a head of all-MiniLM-L6-v2, on the
# first tokens of its text.

# %%
data = at.datasets.minilm_qk()
words = 24
head = 14
real_q, real_k = (x[head, :words].astype(np.float64) for x in (data.query, data.key))
found = global_maps(real_q, real_k, np.eye(words))
order = np.argsort(-found.maps.max(1))  # the most concentrated channels first
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 4.0), width_ratios=(1, 1.2))
    for ax in (left, right):
        ax.grid(visible=False)
    left.imshow(found.coefficients[:, order], cmap="Blues", aspect="auto", vmin=0)
    left.set(title="Coefficients: query by channel", xlabel="channel, most concentrated first")
    left.set_yticks(range(words), data.tokens[:words], fontsize=7)
    right.imshow(found.maps[order], cmap="Blues", aspect="auto", vmin=0)
    right.set(title="Global maps: channel by key", ylabel="channel, most concentrated first")
    right.set_xticks(range(words), data.tokens[:words], rotation=90, fontsize=7)
    plt.show()
assert np.allclose(found.maps.sum(1), 1)
assert np.allclose(found.coefficients.sum(1), 1)
assert np.allclose(found.coefficients @ found.values, efficient_attention_weights(real_q, real_k))

# %% [markdown]
# Some maps select one or two tokens, most are spread out. None corresponds to a modifier or a cause; this
# model was not trained with them.
#
# ### The article's topics
#
# The article gives two maps of dot-product attention over the six words of a sentence, which sum to 1, and
# four topics over the same words. The topics are not such maps: they sum to about 2, not to 1 as a softmax
# over the keys does. So the weights that they imply for a token sum to 1.88 or 1.72 instead of 1: if all
# values were 1, the output would be 1.88. Divided by their sums they are maps.

# %%
topics = np.array(
    [
        [0.10, 0.85, 0.15, 0.10, 0.85, 0.20],  # modifiers
        [0.05, 0.10, 0.90, 0.05, 0.10, 0.88],  # cause and effect
        [0.20, 0.05, 0.10, 0.95, 0.05, 0.10],  # predicate
        [0.90, 0.15, 0.20, 0.15, 0.10, 0.10],  # parallels
    ]
)
own_maps = np.array([[0.08, 0.45, 0.15, 0.20, 0.05, 0.07], [0.05, 0.12, 0.38, 0.10, 0.08, 0.27]])
np.testing.assert_allclose(own_maps.sum(1), 1)  # of the tokens 3 and 4, by dot products
mixtures = np.array([[0.30, 0.20, 0.10, 0.40], [0.10, 0.25, 0.40, 0.25]])  # of the tokens 3 and 4
np.testing.assert_allclose(mixtures.sum(1), 1)  # these are distributions
np.testing.assert_allclose(topics.sum(1), [2.25, 2.08, 1.45, 1.60])  # these are not
implied = mixtures @ topics
print("topics sum to", topics.sum(1), "  implied weights to", implied.sum(1).round(3))
np.testing.assert_allclose(implied.sum(1), [1.876, 1.725], atol=5e-4)
maps = topics / topics.sum(1, keepdims=True)
np.testing.assert_allclose((mixtures @ maps).sum(1), 1)
print("with maps that sum to 1, token 3:", (mixtures[0] @ maps).round(3))

# %% [markdown]
# ## A causal form
#
# With a causal mask each channel's softmax runs over the keys so far. Its normaliser is then a running
# log-sum-exp. Decoding keeps $d$ maxima, $d$ sums and $d^2$ products in place of all keys and values.

# %%
state = EfficientState()
rows = [state.update(k[i : i + 1], v[i : i + 1]).read(q[i : i + 1])[0] for i in range(n)]
causal = efficient_attention(q, k, v, is_causal=True)
last = softmax(q[-1:], 1) @ (softmax(k, 0).T @ v)
print("decoding against the causal call:", abs(np.array(rows) - causal).max())
assert np.allclose(rows, causal, atol=1e-12)
assert np.allclose(causal[0], v[0])  # the first query sees one key
assert np.allclose(causal[-1:], last)  # the last query sees all of them
large = efficient_attention(1e4 * q, 1e4 * k, v, is_causal=True)
assert np.isfinite(large).all()

# %% [markdown]
# ## Cost (T26)
#
# Attention takes $4 n^2 d$ operations, efficient attention $4 n d^2$ and $2 n d$ exponentials. The article
# calls the growth of dot-product attention exponential. It is quadratic: on two logarithmic scales a power of
# $n$ is a straight line and its exponent the slope, whereas an exponential would bend upwards.
#
# Operations can be counted, with the same result on any machine. The next cell multiplies matrices by a
# function that counts multiplications and additions, and the numbers in the largest intermediate array.


# %%
class Counter:
    """A product of matrices that counts."""

    def __init__(self):
        self.operations, self.largest = 0, 0

    def __call__(self, a, b):
        self.operations += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        self.largest = max(self.largest, a.shape[0] * b.shape[1])
        return a @ b


def slopes_of(lengths, values):
    """Exponent of n between neighbouring lengths."""
    return np.diff(np.log(values)) / np.diff(np.log(lengths))


counted = [128, 512, 2048]
work = {"from the left, as attention": [], "from the right": []}
for n in counted:
    q, k, v = rng.standard_normal((3, n, 64))
    left, right = Counter(), Counter()
    dense = left(left(softmax(q, 1), softmax(k, 0).T), v)
    cheap = right(softmax(q, 1), right(softmax(k, 0).T, v))
    np.testing.assert_allclose(dense, cheap, atol=1e-12)
    assert (left.operations, right.operations) == (4 * n**2 * 64, 4 * n * 64**2)
    for name, counter in zip(work, (left, right), strict=True):
        work[name].append((counter.operations, counter.largest))
for name, counts in work.items():
    operations, largest = np.transpose(counts)
    print(f"{name:28} operations {operations}, largest array {largest}")
left, right = (np.transpose(counts) for counts in work.values())
np.testing.assert_allclose(slopes_of(counted, left[0]), 2)
np.testing.assert_allclose(slopes_of(counted, left[1]), 2)
np.testing.assert_allclose(slopes_of(counted, right[0]), 1)
np.testing.assert_allclose(slopes_of(counted, right[1]), 1)  # the output itself; the rest is 64 x 64

# %% [markdown]
# Times depend on the machine that ran this notebook. They are processor seconds of all threads together,
# which depend less on other load than wall-clock time. A linear cost has the slope 1 only where the growing
# part dominates. At a few thousand keys the fixed cost of a call, the start of threads and arrays that still
# fit into a cache change the slope, in wall-clock time more than here. So read the last slopes, of the
# longest rows. [Which variant when](../docs/explanation/which-variant.md) has times beside other variants,
# each measured in its own process, and names the machine; `benchmarks/variant_costs.py` measures them again.

# %%
Cost = namedtuple("Cost", "variant n seconds")


def seconds(call, repeats):
    """Least time of several calls: other load on the machine only adds."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def attend(q, k, v):
    return at.attention(q, k, v)


def causally(q, k, v):
    return efficient_attention(q, k, v, is_causal=True)


runs = {
    "dot product": (attend, [1024, 4096, 16384]),
    "efficient": (efficient_attention, [1024, 4096, 16384, 65536, 262144]),
    "efficient, causal": (causally, [1024, 4096, 16384, 65536, 262144]),
}
costs = []
for name, (function, lengths) in runs.items():
    taken = []
    for length in lengths:
        a, b, c = rng.standard_normal((3, 1, length, 64), np.float32)
        taken.append(seconds(partial(function, a, b, c), 9 if length < 16384 else 3))
        costs.append(Cost(name, length, taken[-1]))
    between = ", ".join(f"{slope:.2f}" for slope in slopes_of(lengths, taken))
    print(f"{name:18}", *(f"{1e3 * t:8.2f} ms" for t in taken), f"  slopes {between}")

with at.plot.style():
    ax = plt.subplots()[1]
    for name in runs:
        points = [(cost.n, cost.seconds) for cost in costs if cost.variant == name]
        ax.loglog(*zip(*points, strict=True), marker="o", label=name)
    ax.set(title="One head, $d = 64$, float32", xlabel="queries and keys, $n$")
    ax.set_ylabel("processor time of one call (s)")
    ax.legend()
    plt.show()

# %% [markdown]
# ## What is lost: sharpness (T26)
#
# For the same heads and text, both kinds of weights: entropy, the weight of the key with the largest dot
# product, and the effective rank of the matrix.

# %%
short = (32, 64, 128, 256)


def effective_rank(matrices):
    """exp of the entropy of the singular values' shares."""
    share = np.linalg.svd(matrices, compute_uv=False)
    share /= share.sum(-1, keepdims=True)
    return np.exp(-(share * np.log(np.maximum(share, 1e-300))).sum(-1))


table = []
for length in short:
    a, b = (x[:, :length].astype(np.float64) for x in (data.query, data.key))
    units = np.broadcast_to(np.eye(length), (18, length, length))
    nearest = (a @ b.swapaxes(1, 2)).argmax(-1)[..., None]
    for name, p in (
        ("dot product", at.attention(a, b, units)),
        ("efficient", efficient_attention_weights(a, b)),
    ):
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1).mean() / np.log(length)
        needle = np.take_along_axis(p, nearest, -1).mean()
        table.append((length, name, entropy, needle, effective_rank(p).mean()))
for length, name, entropy, needle, rank in table:
    print(
        f"n = {length:3}  {name:12} entropy {entropy:.2f} ln n   nearest key {needle:.3f}   rank {rank:6.1f}"
    )

with at.plot.style():
    figure, axes = plt.subplots(1, 3, figsize=(8.6, 2.9))
    titles = ("Entropy / $\\ln n$", "Weight of the nearest key", "Effective rank")
    for column, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        for name, colour in (("dot product", BLUE), ("efficient", RED)):
            chosen = [row for row in table if row[1] == name]
            values = [row[2 + column] for row in chosen]
            ax.plot(short, values, "o-", color=colour, label=name)
        ax.set_xscale("log", base=2)
        ax.set_xticks(short, [str(n) for n in short])
        ax.minorticks_off()
        ax.set(ylim=(0, 1.05 * ax.get_ylim()[1]), xlabel="keys, $n$", title=title)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    plt.show()
exact, flat = ([row for row in table if row[1] == name] for name in ("dot product", "efficient"))
assert all(row[2] > 0.95 for row in flat)
assert all(row[2] < 0.75 for row in exact)
assert [f"{value:.3f}" for value in exact[1][2:4]] == ["0.620", "0.360"]  # at n = 64
assert [f"{value:.3f}" for value in flat[1][2:4]] == ["0.968", "0.042"]
assert all(e[3] > 5 * f[3] for e, f in zip(exact, flat, strict=True))
assert all(f[4] < 32 for f in flat)
assert exact[-1][4] > 4 * flat[-1][4]

# %% [markdown]
# ### Is it an approximation?
#
# The article calls efficient attention an approximation of $\mathrm{softmax}(QK^\top)$. The total variation
# $\frac12\sum_j \lvert p_j - a_j\rvert$ is the share of the weight that lies elsewhere: 0 for identical
# weights, 1 for disjoint ones. On these heads half of the weight lies elsewhere, and uniform weights, which
# ignore the query, are hardly further from softmax. It is another mechanism, not an approximation.

# %%
variation = {}
for length in (64, 512):
    a, b = (x[:, :length].astype(np.float64) for x in (data.query, data.key))
    wanted = at.attention_weights(a, b)
    found = {"efficient": efficient_attention_weights(a, b), "equal": np.full(wanted.shape, 1 / length)}
    variation[length] = [np.abs(wanted - each).sum(-1).mean() / 2 for each in found.values()]
    print(f"n = {length}: total variation to softmax, efficient and equal:", np.round(variation[length], 3))
np.testing.assert_allclose([variation[64], variation[512]], [[0.525, 0.600], [0.549, 0.609]], atol=5e-4)

# %% [markdown]
# On these heads efficient attention is within 5 % of the entropy of equal weights at every length, and its
# rank stays below $d = 32$ while that of softmax grows with $n$. That is one model, one text, lengths up to
# 256, and queries and keys trained for dot products. For the purposes, times and memory of the variants see
# [Which variant when](../docs/explanation/which-variant.md).

# %% [markdown]
# ## Pixels (T26)
#
# "For images the model can still perform well", the article says, where tokens are pixels and there are many.
# A small trial with scikit-learn's digits: 64 of them as one picture of 64 x 64 pixels, normal noise of 0.2,
# and for each of the 4096 pixels its 5 x 5 patch as query, key and value. A linear readout gets the patch and
# the output of attention; it is fitted on one picture and judged on another. The scale is the one that fits
# the first picture best. Eight draws of the noise give the errors.

# %%
images = load_digits().images / 16


def pixels(first, noise):
    """64 digits as one picture, flat, and the noisy patch around each pixel, less the mean."""
    picture = images[first : first + 64].reshape(8, 8, 8, 8).transpose(0, 2, 1, 3).reshape(64, 64)
    noisy = np.pad(picture + 0.2 * noise.standard_normal(picture.shape), 2, mode="reflect")
    patches = np.lib.stride_tricks.sliding_window_view(noisy, (5, 5)).reshape(-1, 25)
    return picture.ravel(), patches - patches.mean()


def rest(mechanism, scale, fit, judge):
    """Root mean square error of the readout, on both pictures."""
    inputs = []
    for _, patches in (fit, judge):
        p = patches[None]
        attended = mechanism(p, p, p, scale=scale)[0] if mechanism else patches[:, :0]
        inputs.append(np.concatenate([patches, attended, np.ones((4096, 1))], axis=1))
    readout = np.linalg.lstsq(inputs[0], fit[0], rcond=None)[0]
    return [np.sqrt(((x @ readout - y) ** 2).mean()) for x, (y, _) in zip(inputs, (fit, judge), strict=True)]


scales = {None: (1,), at.attention: (1, 2, 4), efficient_attention: (1, 4, 16)}
left_over = []
for seed in range(8):
    noise = np.random.default_rng(seed)
    pictures = pixels(0, noise), pixels(64, noise)
    left_over.append([min(rest(each, s, *pictures) for s in tried)[1] for each, tried in scales.items()])
left_over = np.array(left_over)  # (draws, mechanisms)
mean, error = left_over.mean(0), left_over.std(0, ddof=1) / np.sqrt(len(left_over))
for name, m, e in zip(("patch alone", "attention", "efficient_attention"), mean, error, strict=True):
    print(f"{name:20} error {m:.4f} +- {e:.4f}, of 0.2")
assert (abs(mean - [0.149, 0.1415, 0.154]) < 3 * error).all()
gain = left_over[:, :1] - left_over[:, 1:]  # of each mechanism over the patch alone, draw by draw
gained, of_gain = gain.mean(0), gain.std(0, ddof=1) / np.sqrt(len(gain))
print("attention and efficient attention take off:", gained.round(4), "+-", of_gain.round(4))
assert gained[0] > 4 * of_gain[0]
assert gained[1] < 2 * of_gain[1]  # efficient attention does not help

with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.6, 2.4))
    ax.plot(left_over.T, "o-", color=GREY, linewidth=0.8, markersize=3)
    ax.errorbar(range(3), mean, error, fmt="D", color=BLUE, capsize=3)
    ax.set_xticks(range(3), ["patch alone", "attention", "efficient"])
    ax.set(xlim=(-0.4, 2.4), ylabel="error, noise 0.2", title="Eight draws of the noise")
    plt.show()

# %% [markdown]
# Grey lines are draws, bars one standard error. Dot products find pixels that look alike and average them:
# the error falls in each draw, from 0.149 ± 0.001 to 0.141 ± 0.001. Efficient attention adds nothing (0.154 ±
# 0.002, with a scale that fits the other picture): 25 maps shared by all pixels are too coarse for this task.
# Queries and keys were not learned here, and denoising needs individual pixels; a trained model may still do
# well where the gist of a picture is enough.
#
# ## Hybrids, and Mamba
#
# The article ends with related models: cosFormer and Linformer (both in `variants`), models with heads of
# both kinds (`variants.hybrid`; [notebook 14](14_hybrids.ipynb) trains some), and Mamba. Mamba's *selective
# scan* has no softmax. Each channel $c$ of the input has its own state, and each number $s$ of the state
# decays at its own rate:
#
# $$h_t = e^{\Delta_{tc} A_{cs}}\, h_{t-1} + \Delta_{tc} B_{ts}\, x_{tc}, \qquad
#   y_{tc} = \sum_s C_{ts}\, h_t.$$
#
# This is a matrix of weights for every channel. If all channels and states share one decay, it is one matrix
# for the head, $C B^\top$ times the decays: the state-space duality of Mamba-2, `variants.ssd`.
# `reference.selective_scan` is the plain recurrence in NumPy, for comparison; the core has no kernel for it.

# %%
n, channels, states = 40, 3, 5
x = rng.standard_normal((n, channels))
step = np.logaddexp(0, rng.standard_normal((n, channels)))  # positive
b, c = rng.standard_normal((2, n, states))
rates = -np.exp(rng.standard_normal((channels, states)))
scanned = at.reference.selective_scan(x, step, rates, b, c)
past = np.cumsum(step, axis=0)
for channel in range(channels):
    since = past[:, None, channel] - past[None, :, channel]  # sum of the steps from j + 1 to i
    decayed = np.exp(rates[channel] * np.maximum(since, 0)[..., None])
    weights = np.tril(np.einsum("is,js,ijs->ij", c, b, decayed) * step[:, channel])
    np.testing.assert_allclose(weights @ x[:, channel], scanned[:, channel], atol=1e-12)

one_step, one_rate = step[:, :1], -0.7
every = np.repeat(one_step, channels, 1), np.full((channels, states), one_rate)
same = at.reference.selective_scan(x, *every, b, c)
np.testing.assert_allclose(at.variants.ssd(c, b, one_step * x, one_rate * one_step[:, 0]), same, atol=1e-12)
print(f"selective scan: {channels} matrices; with one decay one, of rank {np.linalg.matrix_rank(c @ b.T)}")

# %% [markdown]
# ## What was shown
#
# - Efficient attention gives each query a distribution over the keys, a mixture of at most $d$ maps that do
#   not depend on the query (T25). Its causal form is a running log-sum-exp; decoding step by step gives the
#   same result.
# - The counted operations and the largest array grow as $n$, those of dot products as $n^2$. Times follow if
#   $n$ is large enough (T26).
# - The price is sharpness: on 18 real heads the entropy is within 5 % of that of equal weights, and softmax's
#   weights are about as far from it as from equal weights (0.525 and 0.600 at 64 tokens). Without training,
#   dot products denoise the pixels of digits and efficient attention does not (T26).
# - The article's topics sum to 2.25, 2.08, 1.45 and 1.60, and its listing has no $1/\sqrt d$ (T25).
# - Mamba's selective scan is a matrix of weights per channel; with one decay it is `variants.ssd`.
#
# ## Exercises
#
# 1. Give `efficient_attention_weights` the scale 2, 4 and 8 on the real heads. How far does the entropy fall,
#    and does the nearest key regain its weight?
# 2. From which $n$ is it faster than exact attention with $d = 128$ on your machine? The counts say 128; what
#    do times say?
