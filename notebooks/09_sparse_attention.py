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
# # Sparse attention, and how many keys it uses at length n
#
# Softmax gives every key a weight; sparsemax and entmax give most keys the weight 0. In the comments to an
# article on the dimensions of attention a reader proposes sparsemax. The author answers that the question is
# no longer how to be sparse, but *sparsity invariance*: a sparsity that does not change with the length. This
# notebook measures it (claims **T22** to **T24**):
#
# - under the usual scale the number of keys with a positive weight grows with $n$, under $\log_{512} n$ it
#   shrinks, slowly in both cases;
# - for normal scores a scale $\propto \sqrt{\ln n}$ keeps it constant in the limit. The limit is approached
#   so slowly that at the lengths in use exponents of $\ln n$ between 1/2 and 1 do better;
# - sparse weights are not of low rank: a matrix with two keys per row can have nearly full rank;
# - masking the diagonal, as another reader tries, removes the token's own weight and nothing else;
# - in a layer that selects the top $k$ keys, $n$ is the number of keys to choose from, and the scale needs to
#   grow only slowly.
#
# This is about independent random scores and 18 heads of one small model.
#
# **摘要。** Softmax 使每个键都得到正的权重，而 sparsemax 与 entmax 使大部分键的权重严格为零。
# 原文评论区指出，现在的问题不是如何实现稀疏，而是稀疏性不应随长度变化 (sparsity 不变性)。
# 本文在随机打分的模型中测量支撑集大小与长度 $n$ 的关系：标准缩放下支撑集缓慢增长，$\log_{512} n$ 下缓慢缩小，
# 而与 $\sqrt{\ln n}$ 成正比的缩放使其在极限下趋于常数 (极值理论)，但收敛很慢，
# 在常用长度上介于 1/2 与 1 之间的指数更好。稀疏矩阵也不等于低秩矩阵。
#
# | English | 中文 | here |
# |---|---|---|
# | support | 支撑集 | the keys with a positive weight |
# | threshold | 阈值 | the $\tau$ below which a score has no weight |
# | sparsity invariance | 稀疏性不变 | the support does not depend on $n$ |
# | extreme values | 极值 | the largest of $n$ random numbers |
# | effective rank | 有效秩 | $e^H$ of the singular values' shares |

# %%
import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm, poisson

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

rng = np.random.default_rng(20210923)
RULES = {"softmax": "softmax", "entmax-1.5": "entmax15", "sparsemax": "sparsemax"}


def weights(scores, normalizer):
    """Weights of given scores, by keys of one channel and the identity as values."""
    scores = np.atleast_2d(scores)
    one = np.ones((len(scores), 1, 1))
    values = np.eye(scores.shape[-1])[None]
    return at.attention(one, scores[..., None], values, scale=1.0, normalizer=normalizer)[:, 0]


# %% [markdown]
# ## Two maps with a threshold (T22)
#
# Sparsemax is the point of the simplex that is nearest to the scores, and entmax a family between it and
# softmax:
#
# $$p_j = \max(s_j - \tau,\, 0), \qquad
#   p_j = \max\left((\alpha - 1) s_j - \tau,\, 0\right)^{1/(\alpha - 1)}, \qquad \textstyle\sum_j p_j = 1.$$
#
# $\alpha = 2$ is sparsemax, $\alpha \to 1$ softmax. Since no $p_j$ is above 1, a score more than $1/(\alpha -
# 1)$ below the largest has no weight, so a kernel can stream the scores and keep only a few candidates. The
# derivatives are simple, with $u = p^{2 - \alpha}$ on the support and 0 elsewhere:
#
# $$\frac{\partial p}{\partial s} = \mathrm{diag}(u) - \frac{u u^\top}{\sum_j u_j}.$$

# %%
z = np.array([-2.0, 0.0, 0.5])
for label, rule in RULES.items():
    print(f"{label:11}", weights(z, rule)[0].round(6))
np.testing.assert_allclose(weights(z, "softmax")[0], [0.0486, 0.3592, 0.5922], atol=5e-5)
np.testing.assert_allclose(weights(z, "sparsemax")[0], [0, 0.25, 0.75], atol=1e-12)
np.testing.assert_allclose(weights(z, "entmax15")[0], [0, 0.3260073637, 0.6739926363], atol=1e-9)

scores = 2 * rng.standard_normal(12)
for alpha in (1.5, 2.0, 3.0):
    rule = at.normalizers.Entmax(alpha)
    p = weights(scores, rule)[0]
    assert (p[scores < scores.max() - 1 / (alpha - 1)] == 0).all()
    u = np.where(p > 0, np.where(p > 0, p, 1) ** (2 - alpha), 0)
    jacobian = np.diag(u) - np.outer(u, u) / u.sum()
    steps = 1e-5 * np.eye(12)
    slopes = (weights(scores + steps, rule) - weights(scores - steps, rule)) / 2e-5
    np.testing.assert_allclose(slopes.T, jacobian, atol=1e-5)
    print(f"alpha = {alpha}: {np.count_nonzero(p)} of 12 keys")

gap = np.linspace(-3, 3, 241)
with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.6, 2.9))
    for (label, rule), colour in zip(RULES.items(), at.plot.COLOURS, strict=False):
        ax.plot(gap, weights(np.stack([gap, 0 * gap], -1), rule)[:, 0], color=colour, label=label)
    ax.set(xlabel="score of one key, the other's is 0", ylabel="its weight", title="Two keys")
    ax.legend()
    plt.show()

# %% [markdown]
# ## The support against n (T23)
#
# Standard normal scores are multiplied by $\beta$, which is 1, $\log_{512} n$ or $\ln n$. Under each law the
# support of both maps depends on $n$: from 64 to 16384 keys, 256 times as many, no support changes by a
# factor of 3, but none is constant.

# %%
LENGTHS = [64, 256, 1024, 4096, 16384]
LAWS = ["standard", "log_n", "natural_log_n"]
NAMES = [r"$1/\sqrt{d}$", r"$\log_{512} n/\sqrt{d}$", r"$\ln n/\sqrt{d}$"]
result = at.montecarlo.sparsity(LENGTHS, law=LAWS, normalizer=["sparsemax", "entmax15"], samples=1000, rng=23)
claimed = {
    "sparsemax": [[3.24, 4.26, 1.56], [4.86, 3.51, 1.41]],
    "entmax15": [[10.06, 16.30, 2.43], [27.95, 14.02, 2.01]],
}
for i, (name, numbers) in enumerate(claimed.items()):
    ends, errors = result.value[[0, -1], :, i], result.standard_error[[0, -1], :, i]
    print(name, *(f"{a:.2f} -> {b:.2f}" for a, b in ends.T), sep="   ")
    assert (np.abs(ends - numbers) < 5 * errors + 0.005).all()
assert (np.diff(result.value[:, 0, :], axis=0) > 0).all()  # 1/sqrt(d): grows at every step
assert (result.value[-1, 1:, :] < result.value[0, 1:, :]).all()  # the logarithms: shrinks

# %% [markdown]
# ## A law that keeps it (T23)
#
# Near the largest of $n$ normal numbers the others form a Poisson process: with $b = \sqrt{2 \ln n}$ the
# numbers $b\,(g_{(1)} - g_{(k)})$ tend to the gaps of $-\ln \Gamma_k$, where $\Gamma_1 < \Gamma_2 < \dots$
# are the arrivals of a process of rate 1. Only the gaps to the largest score matter for sparsemax. So if
# $\beta$ grows in proportion to $b$, the weights themselves have a limit:
#
# $$\beta(n) = \sqrt{\ln n/\ln n_0} \quad\Longrightarrow\quad
#   \text{support} \to \text{that of the scores } -c \ln \Gamma_k, \quad c = 1/\sqrt{2 \ln n_0}.$$
#
# This is sparsity invariance, but only in the limit: the corrections fall like $\ln\ln n/\ln n$. The largest
# score is below $b$ by the factor $1 - (\ln\ln n + \ln 4\pi)/(4\ln n)$. At 16384 keys that is 12 %, which
# explains the 11 % by which sparsemax misses its limit there. ASEntmax (2025) learns a scale $\delta + \beta
# (\ln n)^\gamma$ for entmax; for normal scores $\gamma = 1/2$ is the exponent of the limit. The law that
# keeps the *entropy of softmax*, $\sqrt{1 + 2\ln(n/512)}$, differs: under it the support shrinks.


# %%
@at.laws.register("root_log_n")
def root_log_n(n, head_dim, *, n0=512):
    """sqrt(ln n / ln n0) / sqrt(head_dim)."""
    return np.sqrt(np.log(n) / np.log(n0)) / head_dim**0.5


BOTH = ["sparsemax", "entmax15"]
options = {"normalizer": BOTH, "samples": 1000, "rng": 23}
root = at.montecarlo.sparsity(LENGTHS, law="root_log_n", **options)
annealed = at.montecarlo.sparsity(LENGTHS[2:], law="annealed", **options)  # it starts at 512
# The limit: 2000 points of the process, many more than can have a weight.
gaps = np.log(np.cumsum(rng.standard_exponential((4000, 2000)), axis=-1))
limit = {}
for i, rule in enumerate(BOTH):
    rows = at.attention_statistics(
        *(np.ones((4000, 1, 1)), -gaps[..., None]),
        scale=1 / np.sqrt(2 * np.log(512)),
        normalizer=rule,
        statistics=("support",),
    )
    limit[rule] = rows.support.mean()
    print(f"{rule:10} root_log_n {root.value[:, i].round(2)}, limit {limit[rule]:.2f}")
    print(f"{'':10} annealed {annealed.value[:, i].round(2)} from n = 1024 on")
    assert (np.diff(annealed.value[:, i]) < 0).all()
    # The support rises towards its limit.
    assert (np.diff(root.value[:, i]) > -5 * root.standard_error[1:, i]).all()
    assert root.value[0, i] < root.value[-1, i] < limit[rule]

with at.plot.style():
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.4))
    for i, (ax, rule) in enumerate(zip(axes, BOTH, strict=True)):
        curves = [(LENGTHS, result.value[:, j, i], result.standard_error[:, j, i]) for j in range(3)]
        more = ((LENGTHS, root), (LENGTHS[2:], annealed))
        curves += [(x, y.value[:, i], y.standard_error[:, i]) for x, y in more]
        labels = [*NAMES, r"$\sqrt{\log_{512} n}/\sqrt{d}$", r"$\sqrt{1 + 2\ln(n/512)}/\sqrt{d}$"]
        colours = [at.plot.COLOURS[place] for place in (0, 1, 2, 5, 4)]
        for (x, y, error), label, colour in zip(curves, labels, colours, strict=True):
            ax.errorbar(x, y, 3 * error, fmt="o-", markersize=3, color=colour, label=label)
        ax.axhline(limit[rule], color="0.6", linewidth=1, label="limit")
        ax.set(xscale="log", yscale="log", xlabel="$n$", title=rule)
        ticks = ([1.5, 2, 3, 4, 5], [2, 3, 5, 10, 20, 30])[i]
        ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.set_yticks([], minor=True)
    axes[0].set_ylabel("keys with a weight")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    plt.show()

# %% [markdown]
# At 16384 keys sparsemax is 10 % below its limit and entmax-1.5 nearly 30 %. So at finite lengths an exponent
# other than 1/2 is better. Which one keeps the support between 64 and 16384 keys, if $\beta = (\log_{512}
# n)^\gamma$?


# %%
gammas = np.array([0, 0.25, 0.5, 0.75, 1])
near = {"sparsemax": (0.6, 0.75), "entmax15": (0.8, 0.92)}  # on either side of the answer
powers = [at.laws.LogPower(power=gamma, base=512) for gamma in gammas.tolist()]
ends = at.montecarlo.sparsity([64, 16384], law=powers, **options)
ratio = ends.value[1] / ends.value[0]  # (gammas, normalizers)
ratio_error = ratio * np.hypot(*(ends.standard_error / ends.value))
kept = {}
for rule, values in zip(BOTH, ratio.T, strict=True):
    laws = [at.laws.LogPower(power=gamma, base=512) for gamma in near[rule]]
    both = at.montecarlo.sparsity([64, 16384], law=laws, normalizer=rule, samples=10_000, rng=31)
    log_ratio = np.log(both.value[1] / both.value[0])
    log_error = np.hypot(*(both.standard_error / both.value)).max()
    slope = np.diff(log_ratio)[0] / np.diff(near[rule])[0]
    kept[rule] = near[rule][0] - log_ratio[0] / slope, log_error / abs(slope)
    print(f"{rule:10} support at 16384 / at 64: {values.round(2)}; kept by", end=" ")
    print("gamma = {:.3f} +- {:.3f}".format(*kept[rule]))
for rule, measured in (("sparsemax", 0.672), ("entmax15", 0.865)):  # by 40,000 samples, +- 0.005 and 0.002
    gamma, error = kept[rule]
    assert abs(gamma - measured) < 4 * error < 0.04
assert (np.abs(ratio[0] - 1) > 5 * ratio_error[0]).all()  # a constant scale does not keep it
assert (np.abs(ratio[-1] - 1) > 5 * ratio_error[-1]).all()  # the logarithm does not either

with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.8, 3.0))
    for i, (rule, colour) in enumerate(zip(BOTH, at.plot.COLOURS, strict=False)):
        ax.errorbar(gammas, ratio[:, i], 3 * ratio_error[:, i], fmt="o-", color=colour, label=rule)
    ax.axhline(1, color="0.6", linewidth=1)
    ax.set(yscale="log", xlabel=r"exponent $\gamma$ of $\log_{512} n$", ylabel="support at 16384 / at 64")
    ax.set_yticks([0.8, 1, 1.5, 2, 3], ["0.8", "1", "1.5", "2", "3"])
    ax.set_yticks([], minor=True)
    ax.set_title("Which scale keeps the support")
    ax.legend()
    plt.show()

# %% [markdown]
# ## How near the limit is
#
# The limit is a known distribution. Under sparsemax the number of keys tends to $1 +
# \mathrm{Poisson}(\lambda)$, $\lambda = \mathrm{isf}(1/n)/\beta$, and under entmax of any $\alpha$ to 1 plus
# the count of a renewal process with Weibull waiting times of shape $\alpha - 1$. [The support of
# entmax](../docs/explanation/support.md) proves both, with a bound of the total variation that falls like
# $1/\ln n$. The exact probabilities at finite $n$ (`theory.support_probabilities`) test the bound: it is at
# least 9 times the distance, but its rate is right: over ten decades the distance times $\ln n$ hardly
# changes.

# %%
decades = 10.0 ** np.arange(2, 13)
ratios = (0.5, 1.0, 3.0)
distance, bound = {}, {}
for ratio in ratios:
    beta = norm.isf(1 / decades) / ratio
    chances = at.theory.support_probabilities(decades, beta, keys=30)
    distance[ratio] = np.abs(chances - poisson.pmf(np.arange(30), ratio)).sum(-1) / 2
    bound[ratio] = at.theory.support_distance_bound(decades, beta)
    scaled = distance[ratio] * np.log(decades)
    print(f"ratio {ratio}: {distance[ratio][[0, -1]].round(4)}, times ln n {scaled[[0, 4, -1]].round(3)}")
    assert (distance[ratio] < bound[ratio] / 8).all()
    assert (np.diff(scaled) < 0).all()
    assert scaled[-1] / scaled[4] > 0.95
np.testing.assert_allclose(distance[3.0][[0, -1]], [0.0832, 0.0119], atol=5e-5)

alphas = np.array([1.5, 2.0, 3.0])
expected = np.array([at.theory.expected_support(decades, norm.isf(1 / decades) / 3, alpha=a) for a in alphas])
limits = at.theory.support_limit(3.0, alpha=alphas)
print("expected support at ratio 3, n = 1e12:", expected[:, -1].round(3), "limits:", limits.round(3))
np.testing.assert_allclose(limits, [20.945, 4, 2.014], atol=5e-4)
np.testing.assert_allclose(expected[:, -1], [20.321, 4.014, 2.024], atol=5e-4)

with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.2))
    for ratio, colour in zip(ratios, at.plot.COLOURS, strict=False):
        left.plot(decades, distance[ratio], "o-", markersize=3, color=colour, label=rf"$\lambda = {ratio}$")
        left.plot(decades, bound[ratio], "--", linewidth=1, color=colour)
    left.set(xscale="log", yscale="log", xlabel="$n$", ylabel="total variation", title="Exact; dashed: bound")
    left.legend()
    for values, at_last, a, colour in zip(expected, limits, alphas, at.plot.COLOURS, strict=False):
        right.plot(decades, values / at_last, "o-", markersize=3, color=colour, label=rf"$\alpha = {a}$")
    right.axhline(1, color="0.6", linewidth=1)
    right.set(
        xscale="log", xlabel="$n$", ylabel="expected support over its limit", title=r"Entmax, $\lambda = 3$"
    )
    right.legend()
    plt.show()

# %% [markdown]
# ## Real heads (T23)
#
# 18 heads of all-MiniLM-L6-v2 on 512 tokens of English, queries and keys cut to the first $n$. These scores
# are not normal, and the heads were trained with softmax. So the table shows how the number of keys changes
# with $n$, not that sparsemax would be a good replacement.

# %%
data = at.datasets.minilm_qk()
cuts = [32, 64, 128, 256, 512]
table = {}
for law in ("standard", "log_n", "natural_log_n"):
    table[law] = [
        at.attention_statistics(
            *(data.query[:, :n].astype(np.float32), data.key[:, :n].astype(np.float32)),
            scale=law,
            normalizer="sparsemax",
            statistics=("support",),
        ).support.mean(-1)
        for n in cuts
    ]
    means = np.mean(table[law], axis=-1)
    print(f"{law:14}", dict(zip(cuts, means.round(2).tolist(), strict=True)))

with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.8, 3.0))
    for rows, label, colour in zip(table.values(), NAMES, at.plot.COLOURS, strict=False):
        ax.plot(cuts, rows, color=colour, linewidth=0.5, alpha=0.5)
        ax.plot(cuts, np.mean(rows, axis=-1), "o-", color=colour, label=label)
    ax.set(xscale="log", yscale="log", xlabel="$n$", ylabel="keys with a weight")
    ax.set_title("sparsemax, 18 real heads")
    ax.set(ylim=(0.95, 13))
    ax.set_yticks([1, 2, 3, 5, 10], ["1", "2", "3", "5", "10"])
    ax.set_yticks([], minor=True)
    ax.set_xticks(cuts, cuts)
    ax.set_xticks([], minor=True)
    ax.legend()
    plt.show()

# %% [markdown]
# ## Sparse is not low rank (T24)
#
# A reader asks whether the aim of entropy invariance is an attention map of low rank; the author answers: not
# of low rank, sparse. They differ: a permutation has one key per row and full rank, equal weights use all
# keys and have rank 1. Here the weights of the same queries and keys become sharper and sharper. A row uses
# fewer keys, and the effective rank of the matrix grows; it falls a little only when rows use nearly one key,
# since several queries share their best key.

# %%
n, d = 256, 64
query, key = (at.montecarlo.sphere((n, d), radius=8.0, rng=seed) for seed in (1, 2))


def effective_rank(matrix):
    """exp of the entropy of the singular values divided by their sum."""
    share = np.linalg.svd(matrix, compute_uv=False)
    share = share[share > 0] / share.sum()
    return np.exp(-(share * np.log(share)).sum())


betas = [0.25, 0.5, 1, 2, 4, 8]
ranks, used = ({label: [] for label in RULES} for _ in range(2))
for beta in betas:
    for label, rule in RULES.items():
        matrix = at.attention(query, key, np.eye(n), scale=beta / 8, normalizer=rule)
        rows = at.attention_statistics(query, key, scale=beta / 8, normalizer=rule, statistics=("entropy",))
        ranks[label].append(effective_rank(matrix))
        used[label].append(np.exp(rows.entropy).mean())
for label in RULES:
    print(f"{label:11} effective keys {np.round(used[label], 1)}  effective rank {np.round(ranks[label], 1)}")
    assert (np.diff(used[label]) < 0).all()
sharp = [rank for label in RULES for rank, keys in zip(ranks[label], used[label], strict=True) if keys < 10]
assert min(sharp) > 150
assert used["sparsemax"][-1] < 1.5
assert ranks["sparsemax"][-1] > 100
assert [f"{each['softmax'][0]:.0f}" for each in (used, ranks)] == ["248", "48"]

with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.8, 3.0))
    for (label, values), colour in zip(ranks.items(), at.plot.COLOURS, strict=False):
        ax.plot(used[label], values, "o-", color=colour, label=label)
    ax.set(xscale="log", xlabel="effective keys of a row", ylabel="effective rank")
    ax.set_title("256 keys, from flat to sharp")
    ax.legend()
    plt.show()

# %% [markdown]
# ## Without the diagonal
#
# A reader of the same article has a graph on which a factor $\log n$ makes results worse, suspects that a
# node's own weight is diluted, and masks the diagonal. The effect is exactly known. With $w = p_{ii}$ the
# other weights are divided by $1 - w$, so that
#
# $$o_i' = \frac{o_i - w\,v_i}{1 - w}, \qquad
#   H_i = h(w) + (1 - w)\,H_i', \quad h(w) = -w\ln w - (1 - w)\ln(1 - w):$$
#
# the other keys keep their ratios, at any scale. Whether a token's own weight matters depends on $w$. If
# query and key are the same vector of length $\sqrt d$ among random ones, it is the needle with cosine 1, and
# at $d = 64$ it keeps 0.78 of the weight at 512 keys and 0.05 at 32768. On the 18 shipped heads query and key
# differ, and $w$ is small: 0.039 at 64 tokens, 0.021 at 512, falling more slowly than $1/n$.

# %%
data = at.datasets.minilm_qk()
own = {}
for length in (64, 512):
    q, k = (x[:, :length].astype(float) for x in (data.query, data.key))
    v = rng.standard_normal(k.shape)
    no_diagonal = ~np.eye(length, dtype=bool)
    w = np.diagonal(at.attention_weights(q, k), axis1=1, axis2=2)
    whole, masked = at.attention(q, k, v), at.attention(q, k, v, attn_mask=no_diagonal)
    np.testing.assert_allclose(masked, (whole - w[..., None] * v) / (1 - w)[..., None], atol=1e-9)
    parts = -w * np.log(w) - (1 - w) * np.log1p(-w)
    parts += (1 - w) * at.attention_entropy(q, k, attn_mask=no_diagonal)
    np.testing.assert_allclose(at.attention_entropy(q, k), parts, atol=1e-9)
    own[length] = w.mean()
    print(f"n = {length}: mean weight of a token on itself {own[length]:.3f}")
np.testing.assert_allclose(list(own.values()), [0.039, 0.021], atol=5e-4)
assert own[512] > own[64] * 64 / 512
alone = at.theory.needle_weight([512, 32768], cosine=1.0, beta=1.0)
np.testing.assert_allclose(alone, [0.78, 0.05], atol=5e-3)

# %% [markdown]
# The author's answer names another reason. If all keys are drawn from one distribution and the task is to
# average them, as in a graph with sampled neighbours, more keys are more evidence, and sharper weights
# discard it. `attnscale.montecarlo.averaging_error` measures that for random keys: the variance of the
# average falls as $1/n$ under $1/\sqrt d$, and hardly falls under $\ln n$.

# %% [markdown]
# ## What is n in a layer that sees its top k?
#
# Some models choose the $k$ best of $n$ keys for each query, attend to those alone, and still let the scale
# follow $\ln n$ (Mistral Large 4, $k = 2048$). Is $n$ the number of keys to choose from, or $k$? Take
# independent normal scores of standard deviation $\beta$. The $k$ largest of $n$ uniform numbers are, from
# the top, $1 - \Gamma_j/\Gamma_{n+1}$ with the arrivals $\Gamma_1 < \Gamma_2 < \dots$ of a Poisson process of
# rate 1, exactly. So the scores are $\beta\,\mathrm{isf}(\Gamma_j/\Gamma_{n+1})$, and $k + 1$ draws suffice
# at any $n$. With $b = \mathrm{isf}(1/n)$ and $n \to \infty$, $\mathrm{isf}(x/n) = b - (\ln x)/b + o(1/b)$
# and $\Gamma_{n+1}/n \to 1$, so that
#
# $$p_j \to \Gamma_j^{-\beta/b} \Big/ \sum_{i \le k} \Gamma_i^{-\beta/b}.$$
#
# **The entropy depends on $\beta/b(n)$ alone.** Under a fixed scale it saturates at $\ln k$. A scale in
# proportion to $b(n)$, which grows like $\sqrt{2 \ln n}$, keeps it: $n$ is the number of keys to choose from,
# and the power of $\ln n$ tends to $1/2$.


# %%
def top_entropy(n, k, beta, rows=400):
    """Mean entropy of the k largest of n normal scores of deviation beta; the same draws for every n."""
    draws = np.random.default_rng(7)
    arrivals = np.cumsum(draws.standard_exponential((rows, k)), axis=1)
    total = arrivals[:, -1:] + draws.gamma(n + 1 - k, size=(rows, 1))
    scores = beta * norm.isf(arrivals / total)
    weights = np.exp(scores - scores[:, :1])
    weights /= weights.sum(1, keepdims=True)
    return -(weights * np.log(weights)).sum(1).mean()


def top_multiple(n, n0, k, beta):
    """The multiple of the scale that gives n keys the entropy of n0."""
    kept = top_entropy(n0, k, beta)
    return brentq(lambda c: top_entropy(n, k, c * beta) - kept, 0.3, 8)


offered = np.array([4096, 8192, 16384, 32768, 65536, 131072])
grown = {k: [top_multiple(n, 4096, k, 2.0) for n in offered] for k in (64, 512, 2048)}
limit = norm.isf(1 / offered) / norm.isf(1 / 4096)
logarithm = np.log(offered) / np.log(4096)
full = at.theory.invariant_beta(offered, n0=4096)
for name, values in {**grown, "limit": limit, "ln n": logarithm, "all keys": full}.items():
    print(f"{name!s:>8}: multiple at 131072 keys {values[-1]:.2f}")
last = [grown[64][-1], grown[512][-1], grown[2048][-1], limit[-1], logarithm[-1], full[-1]]
np.testing.assert_allclose(last, [1.27, 1.36, 1.47, 1.24, 1.42, 3.09], atol=0.012)
assert top_entropy(131072, 64, 2.0) > top_entropy(4096, 64, 2.0) > np.log(64) - 0.5

# %% [markdown]
# With 2048 of 131072 keys the scale has to grow by 1.47 from 4096 keys on, where $\ln n$ grows by 1.42; a row
# that sees all keys would need 3.09. So in such a layer $\ln n$ is about right. We now predict the multiple
# for the top 32 of 512 tokens in the 18 heads, from the standard deviation of their scores at 64 tokens
# alone, and then measure it:

# %%
K = 32
query, key = (x.astype(np.float32) for x in (data.query, data.key))


def head_entropy(n, beta):
    """Mean entropy of each head over its top keys among the first n, at a multiple of its scale."""
    scale = beta[:, None] / np.sqrt(query.shape[-1])
    rows = at.attention_entropy(query[:, :n], key[:, :n], scale=scale, normalizer=f"top_k(k={K})")
    return rows.mean(-1, dtype=float)


scores = query[:, :64].astype(float) @ key[:, :64].swapaxes(1, 2).astype(float) / np.sqrt(query.shape[-1])
deviation = np.sqrt(scores.var(-1).mean(-1))
predicted = np.array([top_multiple(512, 64, K, each) for each in deviation])
kept, low, high = head_entropy(64, np.ones(18)), np.full(18, 0.3), np.full(18, 8.0)
for _ in range(30):
    middle = np.sqrt(low * high)
    above = head_entropy(512, middle) > kept
    low, high = np.where(above, middle, low), np.where(above, high, middle)
every = at.calibrate(data.query, data.key, n0=64, lengths=[64, 512], laws=["standard"]).beta[:, 1]
medians = [np.median(each) for each in (middle, predicted, every)]
print("median multiple at 512 tokens: top 32 {:.2f}, predicted {:.2f}, all keys {:.2f}".format(*medians))
np.testing.assert_allclose(medians, [1.36, 1.44, 1.80], atol=0.012)
assert np.sort(np.abs(np.log(middle / predicted)))[-2] < 0.3  # all heads but the one with one effective key

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(5.2, 3.4))
    for (k, values), colour in zip(grown.items(), at.plot.COLOURS, strict=False):
        ax.plot(offered, values, "o-", color=colour, label=f"top {k}")
    ax.plot(offered, logarithm, color="#6E6E6E", linestyle="--", label=r"$\ln n / \ln n_0$")
    ax.plot(offered, limit, color="#6E6E6E", linestyle=":", label="limit, any $k$")
    ax.plot(offered, full, color="black", label="all keys")
    ax.set_xscale("log", base=2)
    ax.set(xlabel="keys offered, $n$", ylabel="multiple that keeps the entropy")
    ax.set_title("A row of the top $k$ wants less than one of all keys")
    ax.legend()
    plt.show()

# %% [markdown]
# ## The proofs in full (T23)
#
# [The page on the support of entmax](../docs/explanation/support.md) has the notation, both theorems and
# equations (1) and (2). $N$ is the number of keys with a weight, less one; $h$ is the hazard rate of a
# standard normal number.
#
# ### Theorem 1, sparsemax
#
# **Proof.** For numbers in $\{0, 1, \dots\}$, $d_{TV} \le W_1 = \sum_{k \ge 1} |P(N \ge k) -
# Q_k(\lambda)|$, and $\mathbb E N - \lambda$ is the same sum without the bars. $Q_k(x)$ is also the
# probability that $k$ exponential numbers of mean 1 sum to less than $x$. It rises in $x$, with the
# derivative $e^{-x} x^{k-1}/(k-1)!$, and $\sum_k Q_k(x) = x$. Of $h$ we need: $h(s) > s$; $h(s) < s +
# 1/s$ for $s > 0$; and $0 < h' < 1$, that is, $h$ rises and $h(s) - s$ falls (Sampford 1953).
#
# *One key.* $X_j = \int_0^{Y_j} h(r + y)\, dy$ is exponential with mean 1. As $h$ rises, $X_j \ge h(r)\,
# Y_j$; and $X_j \le h(r + 1/\beta)\, Y_j$ wherever $Y_j \le 1/\beta$, which holds for all $j$ if $\sum_j
# Y_j < 1/\beta$. So
#
# $$Q_k\big(h(r)/\beta\big) \le G_k(r) \le Q_k\big(h(r + 1/\beta)/\beta\big),
# \qquad h(r + 1/\beta) \le h(r) + 1/\beta. \tag{3}$$
#
# *From above.* Since $s_{(k+1)} \le s_{(2)}$, (2) and (3) give $P(N \ge k) \le \mathbb E\, Q_k(V)$ with
# $V = h(s_{(2)})/\beta + 1/\beta^2$, which does not depend on $k$. So
#
# $$\sum_k \big(P(N \ge k) - Q_k(\lambda)\big)_+
# \le \mathbb E \sum_k \big(Q_k(V) - Q_k(\lambda)\big)_+ = \mathbb E (V - \lambda)_+
# \le \frac{\mathbb E (h(s_{(2)}) - b)_+}{\beta} + \frac{1}{\beta^2}.$$
#
# Here $(h(s) - b)_+ \le (h(b) - b) + (s - b)_+ \le 1/b + (s - b)_+$. Two of the $n$ scores are above $b +
# x$ with a probability of at most $(n \bar\Phi(b + x))^2/2$, and $n \bar\Phi(b + x) = \exp(-\int_b^{b+x}
# h) \le e^{-bx}$. So $\mathbb E (s_{(2)} - b)_+ \le \int_0^\infty e^{-2bx}/2\, dx = 1/(4b)$, and the side
# is at most $\frac{5}{4 b \beta} + \frac{1}{\beta^2} = (\frac54 \lambda + \lambda^2)/b^2$.
#
# *From below.* Write $h$ as a function of $e = -\ln \bar\Phi(s)$. Its derivative is $h'/h = h - s$, which
# falls as $e$ grows. So it is concave, it is 0 at $e = 0$, and $h(b)$ at $e = \ln n$. It lies above its
# chord: $h(s) \ge h(b)\, e/\ln n \ge b\, e/\ln n$ for $0 \le e \le \ln n$. Let $e_{k+1}$ belong to
# $s_{(k+1)}$. Then
#
# $$\frac{h(s_{(k+1)})}{\beta} \ge \lambda (1 - \delta_k),
# \qquad \delta_k = \frac{(\ln n - e_{k+1})_+}{\ln n} \in [0, 1].$$
#
# $e^{-e_{k+1}}$ is the smallest but $k$ of $n$ uniform numbers, with the mean $(k+1)/(n+1)$. As $(\ln
# x)_+ \le \ln(1 + x)$ and by Jensen's inequality, $\mathbb E\, \delta_k \ln n \le \ln\big(1 + n
# \frac{k+1}{n+1}\big) \le \ln(k+2)$. So (2) and (3) give $Q_k(\lambda) - P(N \ge k) \le \mathbb
# E\,[Q_k(\lambda) - Q_k(\lambda - \delta_k\lambda)] \le c_k\, \mathbb E\, \delta_k \le c_k \ln(k+2)/\ln
# n$. For $k \ge n$, where $P(N \ge k) = 0$, it holds with $\delta_k = 1$, since $\ln(k+2) \ge \ln n$. The
# sum over $k$ is the second term. The two sides bound the positive and the negative parts of the
# differences, so that their sum bounds $W_1$.
#
# *The constants.* $c_k \le \lambda \max_{x \le \lambda} e^{-x} x^{k-1}/(k-1)!$. The maximum is at most 1
# for the at most $\lambda + 1$ values $k - 1 < \lambda$, and the Poisson probability of $k - 1$ for the
# others. So $\sum_k c_k \ln(k+2) \le \lambda (\lambda + 1) \ln(\lambda + 3) + \lambda\, \mathbb E \ln(P +
# 3)$ with $P$ of the law Poisson($\lambda$), and $\mathbb E \ln(P + 3) \le \ln(\lambda + 3)$. $\square$
#
# ### Theorem 2, entmax of any $\alpha$
#
# **Proof.** Let $Q_k(x) = P(X_1^q + \dots + X_k^q < x^q)$, which rises in $x$, and $v = q\lambda = q
# b/\beta$. The condition in (2) is $\sum_j Y_j^q < (q/\beta)^q$, under which every $Y_j < q/\beta$. So,
# as in (3),
#
# $$Q_k\big(q\, h(r)/\beta\big) \le G_k(r) \le Q_k\big(q\, (h(r) + q/\beta)/\beta\big).$$
#
# *Two facts about $Q_k$, for $x$ in a compact part $J$ of $(0, \infty)$.* First, $Q_k(x) \le P(\text{all
# } X_j < x) \le \theta^k$ with a $\theta < 1$. Second, $\sum_k \ln(k+2) \max_J Q_k' < \infty$. The
# density of a sum of $k$ Weibull numbers at $c = x^q$ is at most $k\, \max_{w \ge c/k} f(w)\; P(\text{the
# other } k - 1 \text{ sum to less than } c)$, because one of them is at least $c/k$. The density $f$ of
# one is bounded by a power of $k$ on $w \ge c/k$, and the last factor is at most $\theta^{k-1}$.
#
# *From above*, with $V = q\,(h(s_{(2)}) + q/\beta)/\beta$, the side is at most $\mathbb E (M(V) -
# M(v))_+$. Where $V \le 2v$ this is at most $\max M' \cdot \mathbb E(V - v)_+$, the maximum over
# $[q\lambda_0, 2q\lambda_1]$ being finite by the second fact, and $\mathbb E(V - v)_+ = O(1/b^2)$ as
# before. Where $V > 2v$ we have $h(s_{(2)}) > 2b - q/\beta$, and so $s_{(2)} > \frac32 b$ once $n$ is
# large, as $h(s) < s + 1/s$ and $1/\beta \le \lambda_1/b$. This has a probability of at most
# $e^{-b^2}/2$, and of a larger $V$ still less, while $M(V)$ grows like a power of $V$ at most, as every
# renewal function is bounded by a multiple of 1 plus the time. The contribution is $O(1/b^2)$, too.
#
# *From below* the side is at most $\sum_k \mathbb E\,[Q_k(v) - Q_k(v - \delta_k v)]$ with the $\delta_k$
# of Theorem 1. Where $\delta_k \le \frac12$ the difference is at most $v\, \delta_k \max_{[v/2, v]}
# Q_k'$, elsewhere at most $2 \delta_k Q_k(v)$. With $\mathbb E\, \delta_k \le \ln(k+2)/\ln n$ and both
# facts the sum is $O(1/\ln n)$. For $k \ge n$ take $\delta_k = 1$. At last $1/b^2 = O(1/\ln n)$, since
# $\bar\Phi(b) = 1/n$; the finitely many small $n$ only change $C$. $\square$

# %% [markdown]
# ## What was shown
#
# - Sparsemax and entmax have a threshold, and Jacobians that are 0 outside the support (T22).
# - The number of keys with a weight changes slowly with $n$: up under $1/\sqrt d$, down under the logarithms.
#   A scale $\propto \sqrt{\ln n}$ keeps it in the limit, the exponents 0.67 (sparsemax) and 0.87 (entmax-1.5)
#   between 64 and 16384 keys (T23).
# - The limit is $1 + \mathrm{Poisson}(\mathrm{isf}(1/n)/\beta)$ under sparsemax and 1 plus a Weibull renewal
#   count under entmax; a row's distance to it falls like $1/\ln n$.
# - Sparse is not low rank: rows of fewer than ten effective keys make matrices of effective rank above 150
#   (T24).
# - Masking the diagonal divides the other weights by $1 - w$, at any scale.
# - In a layer that selects the top $k$, $n$ is the number of keys to choose from. The power of $\ln n$ that
#   keeps the entropy tends to $1/2$; at today's lengths $\ln n$ itself is close.
#
# ## Exercises
#
# 1. Which exponent keeps the support of `at.normalizers.Entmax(1.25)` between 64 and 16384 keys? Which would
#    you expect for softmax?
# 2. Repeat the table of the real heads with `entmax15`. Is the order of the laws the same?
