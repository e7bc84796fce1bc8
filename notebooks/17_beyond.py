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
# # Beyond the articles: twelve results
#
# What should stay the same when the text grows? The articles answer "the entropy". Here are other answers
# (the number of keys, the variance of the output, one key, an average), five recent papers at finite
# lengths, and 18 real heads. The derivations are on the page [results](../docs/explanation/results.md); read
# one section at a time, each stands by itself.
#
# $\beta$ is the scale times $\sqrt d$, $n$ the number of keys a row sees, logarithms are natural. "Normal
# scores" are independent and standard normal at $\beta = 1$. What is drawn is held against a larger draw,
# made once, within 4.5 standard errors: another random stream passes as well.
#
# **摘要.** 文本变长时, 究竟应该保持什么不变? 文章的回答是"熵". 本文考察其它选择: 有权重的键数 (1),
# 单个关键键 (2), 输出方差 (3), 平均值与检索的取舍 (12); 并在有限长度下检验五篇近期论文 (3, 4, 5, 9, 10),
# 最后用 18 个真实注意力头检验公式 (4, 5, 6, 10, 11). 所有数字都在单元格中断言.

# %%
import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from attnscale import laws, theory

rng = np.random.default_rng(17)
GREY = "#6E6E6E"
BLUE, RED, GREEN, ORANGE = at.plot.COLOURS[:4]
data = at.datasets.minilm_qk()
query, key = data.query.astype(float), data.key.astype(float)
d = query.shape[-1]
scores = query @ key.swapaxes(-1, -2) / np.sqrt(d)  # of 18 heads, at the standard scale
names = [f"L{layer} H{head}" for layer, head in zip(data.layers, data.heads, strict=True)]


def root_mean_square(x):
    """Over the heads."""
    return float(np.sqrt((np.asarray(x) ** 2).mean()))


def median_error(x):
    """Standard error of a median: half of what lies between the quantiles 1/2 -+ 1/(2 sqrt(rows))."""
    return np.ptp(np.quantile(x, 0.5 + np.array([-0.5, 0.5]) / np.sqrt(len(x)))) / 2


# %% [markdown]
# ## 1. The law that keeps sparsity
#
# How many keys have a weight under sparsemax? `theory.expected_support` has the exact expectation for normal
# scores. For many keys the number has the law of $1 + \mathrm{Poisson}(b/\beta)$, $b = \Phi^{-1}(1 - 1/n)$.
# So
#
# $$\beta(n) = \frac{\mathrm{isf}(k/n)}{\mathrm{isf}(k/n_0)}$$
#
# keeps it, $k = 1$ for sparsemax. Every other law drifts.

# %%
n = np.array([64, 512, 4096, 16384])
support = {}
for name in ("standard", "log_n", "sparsity_invariant", "variance_invariant", "annealed"):
    beta = laws.get(name).multiplier(n, 64) * np.ones(n.size)
    support[name] = [
        theory.expected_support(*pair) if pair[1] > 0.05 else np.nan for pair in zip(n, beta, strict=True)
    ]
    print(f"{name:18}", *(f"{each:6.2f}" for each in support[name]))
np.testing.assert_allclose(support["sparsity_invariant"], [3.94, 3.93, 3.93, 3.92], atol=6e-3)
np.testing.assert_allclose(support["standard"], [3.24, 3.93, 4.51, 4.86], atol=6e-3)
np.testing.assert_allclose(support["variance_invariant"][1:], [3.93, 3.04, 2.86], atol=6e-3)
np.testing.assert_allclose(support["annealed"][1:], [3.93, 2.58, 2.40], atol=6e-3)
np.testing.assert_allclose(support["log_n"], [4.26, 3.93, 3.66, 3.51], atol=6e-3)

simulated = at.montecarlo.sparsity(n, law="sparsity_invariant", model="gaussian", samples=3000, rng=1)
print("drawn:", simulated.value.round(2), "+-", simulated.standard_error.round(2))
assert (np.abs(simulated.value - support["sparsity_invariant"]) < 4.5 * simulated.standard_error + 5e-3).all()
limit = theory.expected_support(1e200, theory.sparsity_beta(1e200))
print(f"n = 10^200: {limit:.3f}, 1 + isf(1/512) = 3.886")
assert abs(limit - 3.886) < 1e-3

# %%
grid = np.geomspace(32, 2**17, 14)
with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.3, 2.9))
    for name, colour in zip(("standard", "log_n", "sparsity_invariant"), (BLUE, RED, GREEN), strict=True):
        beta = laws.get(name).multiplier(grid, 64) * np.ones(grid.size)
        ax.plot(grid, theory.expected_support(grid, beta), color=colour, label=name)
    ax.errorbar(n, simulated.value, 2 * simulated.standard_error, fmt="o", color=GREEN, markersize=4)
    ax.set_xscale("log", base=2)
    ax.set(xlabel="$n$", ylabel="keys with a weight", title="Sparsemax, normal scores")
    ax.legend()
    plt.show()

# %% [markdown]
# ## 2. The retrieval window
#
# One key lies $a$ standard deviations above $n$ others. It has half of the weight where
# $\beta a = \ln n + \beta^2/2$, that is from $\beta = a - \sqrt{a^2 - 2 \ln n}$ on, and it can be found at
# all if and only if $n < e^{a^2/2}$. A cosine $c$ is $a = c \sqrt d$.

# %%
long = np.array([512, 4096, 32768])
closed, exact = theory.retrieval_beta(long, gap=0.578 * 8), theory.needle_beta(long, cosine=0.578)
print("closed form:", closed.round(3), "exact:", exact.round(3))
np.testing.assert_allclose(closed, [1.640, 2.446, 3.858], atol=6e-4)
np.testing.assert_allclose(exact, [1.628, 2.390, 3.409], atol=6e-4)

gap = 0.45 * np.sqrt(128)  # cosine 0.45, d = 128
needed = theory.retrieval_beta(32768, gap=gap)
production = {
    "Llama 4": "llama4_temperature",
    "Ministral": "ministral_temperature",
    "Qwen, 8192": "qwen_log_n(train_length=8192)",
    "YaRN, x 8": "yarn(factor=8)",
    "log_512 n": "log_n",
    "SSMax 0.43": "ssmax",
}
print(f"needed at n = 32768: {needed:.2f}")
given = {label: float(laws.get(law).multiplier_at(32768, 128)) for label, law in production.items()}
print(*(f"{label}: {value:.2f}" for label, value in given.items()), sep="\n")
assert abs(needed - 2.83) < 6e-3
np.testing.assert_allclose(list(given.values()), [1.16, 1.07, 1.15, 1.46, 1.67, 4.47], atol=6e-3)
longest = theory.retrieval_length(gap)
print(f"no scale finds the key among more than {longest:.0f}")
assert round(longest) == 425066

# %%
grid = np.geomspace(64, 2**19, 80)
with at.plot.style():
    figure, ax = plt.subplots(figsize=(5.6, 3.4))
    edge = theory.retrieval_beta(grid, gap=gap, on_infeasible="nan")
    inside = np.isfinite(edge)
    ax.fill_between(grid[inside], edge[inside], 8, color=GREEN, alpha=0.13, linewidth=0)
    ax.plot(grid, edge, color=GREEN, label="from here on the key has half of the weight")
    ax.axvline(longest, color=GREY, linestyle=(0, (4, 2)), linewidth=1)
    for (label, law), colour, dash in zip(
        production.items(), (BLUE, BLUE, RED, RED, ORANGE, GREY), ("-", ":", "-", ":", "-", "-"), strict=True
    ):
        beta = laws.get(law).multiplier_at(grid, 128) * np.ones(grid.size)
        ax.plot(grid, beta, dash, color=colour, linewidth=1.2, label=label)
    ax.set_xscale("log", base=2)
    ax.set(
        ylim=(0.5, 6), xlabel="$n$", ylabel=r"$\beta$", title="A key of cosine 0.45, $d = 128$, unit variance"
    )
    figure.legend(loc="outside lower center", ncols=3)
    plt.show()

# %% [markdown]
# A head that retrieves has learned a larger $W_q$ (see 7), which multiplies the axis of this figure. What it
# says of the laws is their *growth*: from 4096 to 32768 the window rises by 1.38, log n by 1.25.

# %%
growth = theory.retrieval_beta([4096, 32768], gap=gap)
print(f"window {growth[1] / growth[0]:.2f}, log n {np.log(32768) / np.log(4096):.2f}")
np.testing.assert_allclose([growth[1] / growth[0], np.log(32768) / np.log(4096)], [1.38, 1.25], atol=6e-3)

# %% [markdown]
# ## 3. The law that keeps the output's variance
#
# The output $\sum p_j v_j$ of independent values has the variance $\sum p^2$, which is $e^{\beta^2}/n$ while
# many keys share the weight. So $\beta = \sqrt{1 + \ln(n/n_0)}$ keeps it, not $\sqrt{1 + 2 \ln(n/n_0)}$,
# which keeps the entropy. "On Vanishing Variance" (arXiv 2504.02827) normalises the output. That keeps its
# *size*, and cannot bring back the share of one key in its direction: of a key of gap 4.624 it falls from
# 0.86 to 0.20 under the standard scale, and to 0.83 under the law.

# %%
far = np.array([4096, 32768, 2**20])
exact = theory.variance_invariant_beta(far, model="gaussian")
first = laws.VarianceInvariant().multiplier(far, 64)
print("exact", exact.round(4), "sqrt(1 + ln(n/512))", first.round(4))
np.testing.assert_allclose(exact, [1.7887, 2.3570, 3.1308], atol=6e-5)
np.testing.assert_allclose(first, [1.7548, 2.2713, 2.9368], atol=6e-5)


def share_of_needle(n, beta, rows=400):
    """Of the direction of a normalised output: w / sqrt(w^2 + sum of the others' p^2)."""
    s = rng.standard_normal((rows, n))
    s[:, 0] = 4.624
    p = np.exp(beta * (s - s.max(-1, keepdims=True)))
    p /= p.sum(-1, keepdims=True)
    found = p[:, 0] / np.sqrt((p * p).sum(-1))
    return found.mean(), found.std() / np.sqrt(rows)


variance, share, share_error = {}, {}, {}
for name in ("standard", "variance_invariant", "annealed"):
    beta = laws.get(name).multiplier([512, *far[:2]], 64) * np.ones(3)
    found = theory.expected_concentration([512, *far[:2]], beta, model="gaussian")
    variance[name] = found / found[0]
    drawn = [share_of_needle(*each) for each in zip((512, *far[:2]), beta, strict=True)]
    share[name], share_error[name] = np.transpose(drawn)
    print(f"{name:18} variance {variance[name].round(3)}   share after normalising {share[name].round(2)}")
np.testing.assert_allclose(variance["standard"], [1, 0.127, 0.016], atol=6e-4)
np.testing.assert_allclose(variance["variance_invariant"], [1, 0.904, 0.752], atol=6e-4)
np.testing.assert_allclose(variance["annealed"], [1, 3.80, 6.28], atol=6e-3)
of_many_rows = {
    "standard": [0.858, 0.507, 0.203],
    "variance_invariant": [0.858, 0.931, 0.834],
    "annealed": [0.858, 0.975, 0.910],
}
for name, many in of_many_rows.items():
    assert (abs(share[name] - many) < 4.5 * share_error[name] + 2e-3).all()  # they are 2e-3 off at most

# %%
grid = np.geomspace(512, 2**20, 12)
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.9, 2.6))
    for name, colour in zip(("standard", "variance_invariant", "annealed"), (BLUE, GREEN, RED), strict=True):
        beta = laws.get(name).multiplier(grid, 64) * np.ones(grid.size)
        c = theory.expected_concentration(grid, beta, model="gaussian")
        left.plot(grid, c / c[0], color=colour, label=name)
        right.plot([512, *far[:2]], share[name], "o-", color=colour)
    left.set(xscale="log", yscale="log", xlabel="$n$", ylabel="variance over that at 512", title="Output")
    right.set(xscale="log", ylim=(0, 1), xlabel="$n$", ylabel="share of the needle", title="After LayerNorm")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    plt.show()

# %% [markdown]
# ## 4. A phase transition at finite length
#
# Chen, Lin, Polyanskiy and Rigollet (arXiv 2510.05554) give $n$ tokens of pairwise cosine $\rho$ the scores
# $\gamma \ln n\; x \cdot y$. A token's weight on itself is $1/(1 + (n-1) n^{-\gamma (1-\rho)})$, a jump at
# $\gamma_c = 1/(1-\rho)$ for $n \to \infty$. At finite $n$ it goes from 0.27 to 0.73 while $\gamma$ changes
# by $2/((1-\rho) \ln n)$: 0.40 for $\rho = 0.4$ and $n = 4096$, a quarter of $\gamma_c$ itself. Each layer
# makes the tokens more alike, which raises the critical $\gamma$ of the next: at $1.5\,\gamma_c$ and $n =
# 4096$ one layer leaves a cosine of 0.41, four 0.44, and twelve leave one direction.

# %%
rho = 0.4
critical = theory.critical_gamma(rho)
width = 2 / ((1 - rho) * np.log(4096))
print(f"critical gamma {critical:.2f}, from 0.27 to 0.73 within {width:.2f}")
np.testing.assert_allclose([critical, width, width / critical], [1.667, 0.401, 0.240], atol=6e-4)
below, above = (
    [
        theory.token_correlation(4096, gamma=g * critical, correlation=rho, layers=layers)
        for layers in (1, 4, 12)
    ]
    for g in (0.9, 1.5)
)
print(
    "cosine after 1, 4, 12 layers:",
    np.round(below, 3),
    "at 0.9 critical,",
    np.round(above, 3),
    "at 1.5 critical",
)
np.testing.assert_allclose(below, [0.879, 1, 1], atol=6e-4)
np.testing.assert_allclose(above, [0.407, 0.440, 1], atol=6e-4)

# %%
gamma = np.linspace(0.2, 4, 160)
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.9, 2.6))
    for size, colour in zip((64, 4096, 1e6, 1e30), (BLUE, RED, GREEN, GREY), strict=True):
        left.plot(
            gamma,
            theory.self_weight(size, gamma=gamma, correlation=rho),
            color=colour,
            label=f"$n$ = {size:g}",
        )
    left.axvline(critical, color="black", linewidth=0.8, linestyle=":")
    for layers, colour in zip((1, 2, 4, 12), (BLUE, RED, GREEN, GREY), strict=True):
        cosine = theory.token_correlation(4096, gamma=gamma, correlation=rho, layers=layers)
        right.plot(gamma, cosine, color=colour, label=str(layers))
    left.set(xlabel=r"$\gamma$", ylabel="weight on itself", title=r"$\rho = 0.4$")
    right.set(xlabel=r"$\gamma$", ylabel="cosine of two tokens", title="$n$ = 4096")
    left.legend()
    right.legend(title="layers")
    plt.show()

# %% [markdown]
# Real heads are not of this kind: keys have a mean cosine of 0.12 to 0.38, but a query is no key. Its score
# with its own key is above the others by 0.04 to 6 times $\ln n$, and the weight on itself at most 0.06.

# %%
unit = key / np.linalg.norm(key, axis=-1, keepdims=True)
off = ~np.eye(512, dtype=bool)
rho_heads = np.array([(each @ each.T)[off].mean() for each in unit])
own = np.einsum("hii->hi", scores).mean(-1) - np.array([each[off].mean() for each in scores])
weights = at.attention_weights(query, key)
on_itself = np.einsum("hii->hi", weights).mean(-1)
print(f"rho: {rho_heads.min():.2f} to {rho_heads.max():.2f}, median {np.median(rho_heads):.2f}")
print(f"own score over ln n: {(own / np.log(512)).min():.2f} to {(own / np.log(512)).max():.2f}")
print(f"heads beyond critical: {(own > np.log(512)).sum()}; largest weight on itself {on_itself.max():.3f}")
np.testing.assert_allclose(
    [rho_heads.min(), rho_heads.max(), np.median(rho_heads)], [0.12, 0.38, 0.29], atol=6e-3
)
np.testing.assert_allclose([own.min() / np.log(512), own.max() / np.log(512)], [0.04, 6.02], atol=6e-3)
assert (own > np.log(512)).sum() == 6
assert abs(on_itself.max() - 0.057) < 6e-4

# %% [markdown]
# ## 5. The critical scale is a distribution
#
# Hayase and Karakida (arXiv 2605.12697) measure a row's critical inverse temperature
# $\Lambda = \sup_t \ln N(t)/t$, $N(t)$ the number of scores within $t$ of the largest. It is above $\ell$
# if the second score is within $\ln 2/\ell$ of the first, and the density of that gap at 0 is positive. So
# $P(\Lambda > \ell) \sim c/\ell$: **the mean is infinite**, at every $n$. Look at quantiles.

# %%
levels = np.array([10.0, 100.0, 1000.0])
tail = theory.critical_scale_tail(512, levels)
print("P(Lambda > 10, 100, 1000) is at least", tail.round(4))
np.testing.assert_allclose(tail, [0.1919, 0.0209, 0.0021], atol=6e-5)
drawn = laws.CriticalScale.measure(rng.standard_normal((20_000, 512)))
running = [drawn[:rows].mean() for rows in (200, 2000, 20_000)]
print("means of 200, 2000, 20000 rows:", np.round(running, 1), "median:", round(float(np.median(drawn)), 2))
# A mean that is infinite has no standard error. Shares and the median have.
shares = (drawn[:, None] > levels).mean(0)
assert (shares > tail - 4.5 * np.sqrt(tail / drawn.size)).all()
assert abs(np.median(drawn) - 3.862) < 4.5 * median_error(drawn)
largest = np.sort(drawn)[::-1]
print(f"a thousandth of the rows has {largest[:20].sum() / drawn.sum():.0%} of the sum")
assert largest[:20].sum() > 0.15 * drawn.sum()

quantiles = {
    size: np.median(laws.CriticalScale.measure(scores[:, :size, :size]), axis=-1) for size in (64, 512)
}
above_1 = {size: (laws.CriticalScale.measure(scores[:, :size, :size]) > 1).mean() for size in (64, 512)}
print(f"median of a head, n = 512: {quantiles[512].min():.2f} to {quantiles[512].max():.2f}")
print(f"rows below critical at 1/sqrt(d): {above_1[64]:.0%} at n = 64, {above_1[512]:.0%} at n = 512")
np.testing.assert_allclose([quantiles[512].min(), quantiles[512].max()], [0.16, 7.20], atol=6e-3)
np.testing.assert_allclose(list(above_1.values()), [0.660, 0.796], atol=6e-4)
of_heads = laws.CriticalScale.measure(scores).ravel()
constant = [level * (of_heads > level).mean() for level in (10, 30, 100, 300)]
print("level x P(Lambda > level) of real rows, level = 10, 30, 100, 300:", np.round(constant, 1))
np.testing.assert_allclose(constant, [1.1, 1.3, 1.4, 1.2], atol=0.05)

# %% [markdown]
# How it grows with $n$ depends on how the scores end: $\sqrt{\ln n}$ for normal scores, constant for
# exponential ones. $(\ln n)^2$, the steepest of the abstract, needs scores that end in a wall that is
# hardly ever reached, a density like $e^{-1/t}$ at distance $t$; heavy tails give less than a constant, not
# more.

# %%
ends = {
    "normal": lambda shape: rng.standard_normal(shape),
    "exponential": lambda shape: rng.exponential(size=shape),
    "thin wall": lambda shape: -1 / np.log(1 / rng.random(shape)),
    "heavy (Pareto 3)": lambda shape: rng.pareto(3, shape),
}
sizes = np.array([64, 512, 4096])
of_many_rows = [2.99, 3.88, 4.54], [1.27, 1.27, 1.28], [18.67, 44.2, 79.4], [1.305, 0.821, 0.512]
place = np.log(np.log(sizes))
lever = (place - place.mean()) / ((place - place.mean()) ** 2).sum()  # the slope is this times ln median
for (name, draw), many in zip(ends.items(), of_many_rows, strict=True):
    rows = [laws.CriticalScale.measure(draw((1500, size))) for size in sizes]
    median, error = np.median(rows, axis=-1), np.array([median_error(each) for each in rows])
    slope, slope_error = lever @ np.log(median), np.linalg.norm(lever * error / median)
    print(f"{name:17} medians {median.round(2)}  exponent of ln n: {slope:.2f} +- {slope_error:.2f}")
    assert (abs(median - many) < 4.5 * error + 0.01 * np.array(many)).all()
    assert abs(slope - lever @ np.log(many)) < 4.5 * slope_error + 0.05

# %%
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.9, 2.6))
    by_head = laws.CriticalScale.measure(scores)
    low, middle, high = np.quantile(by_head, [0.05, 0.5, 0.95], axis=1)
    left.vlines(np.arange(1, 19), low, high, color=GREY, linewidth=1)
    left.plot(np.arange(1, 19), middle, "o", color=RED)
    left.axhline(1, color="black", linewidth=0.8)
    left.set_yscale("log")
    left.set_xticks(range(1, 19), names, rotation=90, fontsize=6)
    left.set(ylabel=r"$\Lambda$, 5 to 95 %", title="18 real heads, $n$ = 512")
    level = np.geomspace(2, 3000, 40)
    right.loglog(level, theory.critical_scale_tail(512, level), color=GREEN, label="two largest scores")
    right.loglog(
        np.sort(drawn)[::-1][::20],
        (np.arange(drawn.size)[::20] + 1) / drawn.size,
        color=BLUE,
        label="normal rows",
    )
    right.loglog(
        np.sort(by_head.ravel())[::-1][::20],
        (np.arange(by_head.size)[::20] + 1) / by_head.size,
        color=RED,
        label="real rows",
    )
    right.set(xlim=(0.5, 3000), ylim=(1e-4, 1.1), xlabel=r"$\ell$", ylabel=r"$P(\Lambda > \ell)$")
    right.legend()
    plt.show()

# %% [markdown]
# ## 6. A head's own invariant law
#
# With $\psi(\beta) = \ln \mathbb E e^{\beta s}$ of a head's own scores the deficit is $D = \beta \psi' -
# \psi$, and the law that keeps the entropy solves $D(\beta) = D(1) + \ln(n/n_0)$. From the variance alone:
# $\beta = \sqrt{1 + 2 \ln(n/n_0)/\sigma^2}$. We take $\sigma^2$ from the first 64 tokens, predict 512 tokens,
# fit nothing, and look at the entropy that comes out. This is an observation on 18 heads of one encoder and
# one text, without error bars, and the 64 tokens are among the 512.

# %%
target = at.attention_entropy(query[:, :64], key[:, :64]).mean(-1)
second = theory.score_cumulants(scores[:, :64, :64]).mean(1)
third = theory.score_cumulants(scores[:, :64, :64], order=3).mean(1)
own_law = laws.Annealed(n0=64, variance=second[:, 0].tolist())
beta = {
    "own variance": own_law.multiplier(512, d)[:, 0],
    "own three cumulants": theory.cumulant_beta(512, n0=64, cumulants=third),
    "annealed": np.full(18, laws.Annealed(64).multiplier(512, d)),
    "log_64 n": np.full(18, laws.LogN(64).multiplier(512, d)),
    "standard": np.ones(18),
}
missed = {}
for name, each in beta.items():
    entropy = at.attention_entropy(query, key, scale=each[:, None] / np.sqrt(d)).mean(-1)
    missed[name] = entropy - target
    print(f"{name:20} misses the entropy by {root_mean_square(missed[name]):.2f} nat")
np.testing.assert_allclose(
    [root_mean_square(each) for each in missed.values()], [0.46, 0.71, 0.74, 0.87, 1.86], atol=6e-3
)
measured = at.calibrate(data.query, data.key, n0=64, lengths=[64, 512], laws=["annealed"]).beta[:, 1]
off_by = {name: np.median(np.abs(np.log(each / measured))) for name, each in beta.items()}
np.testing.assert_allclose(
    [off_by["own variance"], off_by["log_64 n"], off_by["annealed"]], [0.128, 0.194, 0.237], atol=6e-4
)

# %% [markdown]
# The third cumulant makes it worse: 64 scores hardly measure it, and the series has to reach twice as far
# as it was measured. The full empirical $\psi$ of 64 scores has no deficit above $\ln 64$ at all. The same
# on the shipped causal heads, from rows of 129 to 256 keys to rows beyond 1024:

# %%
causal = at.datasets.causal_qk()
q, k = causal.query.astype(float), causal.key.astype(float)
early = q[:, 128:256] @ k[:, :256].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
seen = np.arange(256) <= np.arange(128, 256)[:, None]
spread = np.array([[row[mask].var() for row, mask in zip(head, seen, strict=True)] for head in early]).mean(
    -1
)
goal = at.attention_entropy(q[:, :256], k[:, :256], is_causal=True)[:, 128:].mean(-1)
causal_laws = {
    "own variance": laws.Annealed(192, variance=spread.tolist()),
    "log_192 n": laws.LogN(192),
    "standard": laws.Standard(),
    "annealed": laws.Annealed(192),
}
drift = []
for name, law in causal_laws.items():
    late = at.attention_entropy(q, k, scale=law, is_causal=True)[:, 1024:].mean(-1)
    drift.append(root_mean_square(late - goal))
    print(f"{name:14} misses the entropy by {drift[-1]:.2f} nat")
np.testing.assert_allclose(drift, [0.53, 0.64, 1.32, 1.40], atol=6e-3)

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(6.9, 2.8))
    place = np.arange(18)
    for offset, name, colour in zip(
        (-0.26, 0, 0.26), ("own variance", "log_64 n", "annealed"), (GREEN, RED, BLUE), strict=True
    ):
        ax.bar(place + offset, missed[name], width=0.25, color=colour, label=name)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xticks(place, names, rotation=60)
    ax.set(ylabel="entropy at 512 less at 64 (nats)", title="Predicted from 64 tokens, nothing fitted")
    figure.legend(loc="outside lower center", ncols=3)
    plt.show()

# %% [markdown]
# ## 7. A scale a head is a choice of coordinates
#
# $\beta\, (W_q x) \cdot k = ((\beta W_q) x) \cdot k$: a model with a learned scale a head is one without,
# unless queries are normalised, heads or layers share one $W_q$, or an adapter has low rank. Weight decay
# picks one of the equal models: under decay $\lambda$ of both, $a^2 - |W|^2$ falls as $e^{-2 \lambda t}$; of
# $W$ alone, the scale grows and $W$ shrinks for ever.

# %%
x = rng.standard_normal((64, 48))
w_q, w_k = rng.standard_normal((2, 3, 16, 48))
head_beta = np.array([0.3, 1.0, 4.0])
folded = theory.fold_scale(w_q, head_beta)
k_heads = x @ w_k.swapaxes(-1, -2)
scaled = at.attention_entropy(x @ w_q.swapaxes(-1, -2), k_heads, scale=head_beta[:, None] / 4)
np.testing.assert_allclose(at.attention_entropy(x @ folded.swapaxes(-1, -2), k_heads), scaled, atol=1e-12)
lost = [at.attention_entropy(x @ w.swapaxes(-1, -2), k_heads, scale=4.0, qk_norm="l2") for w in (w_q, folded)]
np.testing.assert_allclose(*lost, atol=1e-12)

residual = [theory.scale_update_residual(rng.standard_normal((64, 768)), 1.5, rank=r) for r in (0, 8, 32, 64)]
print("share of a scale that an adapter of rank 0, 8, 32, 64 misses (64 x 768):", np.round(residual, 3))
spread = np.array([0, 8e-4, 1.5e-3, 0])  # over 30 matrices, whose mean is held against
assert (abs(residual - np.array([1, 0.9016, 0.6142, 0])) < 4.5 * spread + 1e-9).all()


def train(decay_of_scale, decay=0.5, steps=6000, step=1e-3):
    """Gradient descent on |a W - T|^2 / 2 with decay; a^2 and |W|^2 after each step."""
    a, w, goal = 3.0, np.array([[0.4, 0.1], [-0.2, 0.3]]), np.array([[1.0, -0.5], [0.3, 2.0]])
    path = []
    for _ in range(steps):
        slope = a * w - goal
        change = (slope * w).sum() + decay_of_scale * a
        a, w = a - step * change, w - step * (a * slope + decay * w)
        path.append((a * a, (w * w).sum()))
    return np.array(path)


both, alone = train(0.5), train(0.0)
ratio = (both[5999, 0] - both[5999, 1]) / (both[1999, 0] - both[1999, 1])
print(f"a^2 - |W|^2 from step 2000 to 6000: times {ratio:.4f}, e^(-4) = {np.exp(-4):.4f}")
assert abs(ratio / np.exp(-4) - 1) < 0.01
assert alone[-1, 0] > alone[2000, 0]
assert alone[-1, 1] < alone[2000, 1]

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.3, 2.9))
    time = np.arange(len(both)) * 1e-3
    for path, colour, label in ((both, GREEN, "decay of both"), (alone, RED, "of $W$ alone")):
        ax.plot(time, path[:, 0], color=colour, label=f"$a^2$, {label}")
        ax.plot(time, path[:, 1], color=colour, linestyle="--", label=f"$|W|^2$, {label}")
    ax.set(yscale="log", xlabel="time", title="The same loss, one scale and one matrix")
    figure.legend(loc="outside right center")
    plt.show()

# %% [markdown]
# ## 8. Position against dilution
#
# When a model trained at 64 tokens fails at 512, is it the scale or the positions? That takes training, which
# [notebook 12](12_length.ipynb) shows: clipping the distances gives back 14 and 24 points there, $\log_{64}
# n$ 2.6 and 0.2 beyond that. The first is a measure of positions; the second is what one law adds, and no
# measure of dilution.
#
# ## 9. Trainability at finite length
#
# Giorlandino and Goldt (arXiv 2505.24333) read attention at initialisation as a random energy model. With
# pairwise cosine $\rho$ a row has $C = \mathbb E \sum p^2$ and two rows overlap by
# $O = \mathbb E \sum p p'$, and a layer takes $\rho \to (\rho + (1-\rho) O)/(\rho + (1-\rho) C)$. For
# $n \to \infty$ that model has $C = \max(0, 1 - \beta_c/\beta)$ and $O = 0$. At finite $n$ both are exact
# integrals (`theory.expected_concentration`, `theory.expected_overlap`), and the limit is far away.

# %%
sizes = np.array([64, 512, 4096])
frozen = theory.expected_concentration(sizes, 1.2 * theory.critical_beta(sizes), model="gaussian")
print("C at 1.2 beta_c, n = 64, 512, 4096:", frozen.round(3), "limit", round(1 - 1 / 1.2, 3))
np.testing.assert_allclose(frozen, [0.392, 0.342, 0.313], atol=6e-4)
at_critical = theory.expected_concentration(sizes, theory.critical_beta(sizes), model="gaussian")
print("C at beta_c:", at_critical.round(3), "limit 0")
np.testing.assert_allclose(at_critical, [0.308, 0.249, 0.214], atol=6e-4)
drawn = [
    at.reference.propagated_correlation(0.3, n=200, beta=5.0, rng=np.random.default_rng(seed))
    for seed in range(6)
]
expected, error = theory.propagated_correlation(0.3, n=200, beta=5.0), np.std(drawn) / 6**0.5
print(f"one layer of 200 tokens from 0.3: {expected:.3f}, drawn {np.mean(drawn):.3f} +- {error:.3f}")
assert abs(expected - 0.552) < 6e-4
assert abs(np.mean(drawn) - expected) < 4.5 * error < 0.1


def in_the_limit(rho, n, beta, alpha, layers):
    """The same map with C and O of the random energy model."""
    for _ in range(layers):
        within = beta * np.sqrt(1 - rho)
        c = np.maximum(0, 1 - theory.critical_beta(n) / np.maximum(within, 1e-9))
        rho = (rho + alpha**2 * rho) / (1 + alpha**2 * (rho + (1 - rho) * c))
    return rho


beta, alpha = np.meshgrid(np.linspace(1, 12, 7), [0.3, 0.5, 0.75, 1.0, 1.4, 2.0])
after = {n: theory.propagated_correlation(0.3, n=n, beta=beta, residual=alpha, layers=4) for n in (64, 4096)}
rem = {n: in_the_limit(0.3, n, beta, alpha, 4) for n in (64, 4096)}
for n in after:
    print(f"n = {n}, beta 6.5, skip connection 1 + 1: exact {after[n][3, 3]:.2f}, limit {rem[n][3, 3]:.2f}")
np.testing.assert_allclose([after[n][3, 3] for n in after], [0.66, 0.72], atol=6e-3)
np.testing.assert_allclose([rem[n][3, 3] for n in rem], [0.63, 0.81], atol=6e-3)

# %% [markdown]
# The line on which four layers with a skip connection take the cosine of two tokens from 0.3 to 0.6. Above it
# tokens become one. Finite rows change smoothly with $\beta$ where the limit (dashed) has a corner.

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.3, 2.9))
    for n, colour in zip(after, (BLUE, RED), strict=True):
        ax.contour(beta, alpha, after[n], levels=[0.6], colors=[colour])
        ax.contour(beta, alpha, rem[n], levels=[0.6], colors=[colour], linestyles="--")
        ax.plot([], [], color=colour, label=f"$n$ = {n}")
    ax.set(xlabel=r"$\beta$, deviation of the scores", ylabel=r"strength $\alpha$ of attention")
    ax.set_title("Cosine 0.6 after 4 layers; dashed: limit")
    ax.legend(loc="upper left")
    plt.show()

# %% [markdown]
# ## 10. Entropy collapse, and what a soft-cap promises
#
# Scores within $(-c, c)$ have a spread of $2c$, and $H \ge \ln n - (2c)^2/8$: empty unless $c < \sqrt{2 \ln
# n}$, which is 3.5 at 512 keys. The bound can be made sharp. $\partial H/\partial s_i = -p_i (s_i - \bar s)$
# pushes every score to an end of the range, and with $r = R/(e^R - 1)$ the least entropy is $\ln n + \ln r +
# 1 - r$ up to whole numbers (`theory.least_entropy`), the bound of Cicalese, Gargano and Vaccaro (arXiv
# 1712.07906). A cap of 50 promises $10^{-39}$ nats at 512 keys. To promise one nat it has to be 4.18, and
# 7.23 at 131072 keys.

# %%
empty = theory.critical_beta(512)
caps = theory.softcap_for_entropy([512, 131072], entropy=1.0)
print(f"sqrt(2 ln 512) = {empty:.2f}; a cap of 50 promises {theory.least_entropy(512, 100.0):.1e} nats")
print("caps that promise one nat:", caps.round(2))
assert abs(empty - 3.53) < 6e-3
np.testing.assert_allclose(caps, [4.18, 7.23], atol=6e-3)
assert 1e-39 < theory.least_entropy(512, 100.0) < 1e-38

entropy = at.attention_entropy(query, key).mean(-1)
centred = scores - scores.mean(-1, keepdims=True)
zhai = theory.spectral_entropy_bound(512, np.linalg.norm(centred, axis=-1))
sharp = theory.least_entropy(512, np.ptp(scores, axis=-1)).mean(-1)
print(
    f"bound of Zhai et al. on real rows: at most {zhai.max():.3f} nat, mean {zhai.mean():.1e}; "
    f"entropy {entropy.mean():.2f}"
)
print(f"sharp bound from the range: {sharp.max():.2f} nat in the best head, {sharp.mean():.2f} on average")
np.testing.assert_allclose([zhai.max(), zhai.mean()], [0.095, 1.2e-4], rtol=0.03)
np.testing.assert_allclose([entropy.mean(), sharp.max(), sharp.mean()], [4.30, 3.89, 1.20], atol=6e-3)


def sensitivity(beta, n=512):
    """dE[H] / d sigma^2 at sigma = beta, normal scores."""
    low, high = theory.expected_entropy(n, np.sqrt(beta**2 + np.array([-1e-3, 1e-3])), model="gaussian")
    return (high - low) / 2e-3


slopes = [sensitivity(each) for each in (0.3, 1, 2, 3)]
print("dH/d sigma^2 at sigma = 0.3, 1, 2, 3:", np.round(slopes, 3))
np.testing.assert_allclose(slopes, [-0.499, -0.492, -0.389, -0.195], atol=6e-4)

# %%
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.9, 2.6))
    cap = np.linspace(0.05, 10, 120)
    left.plot(cap, theory.least_entropy(512, 2 * cap), color=GREEN, label="sharp")
    left.plot(
        cap, theory.entropy_lower_bound(512, 2 * cap), color=GREY, linestyle="--", label="variance bound"
    )
    left.set(xlabel="soft-cap", ylabel="entropy promised (nats)", title="512 keys")
    left.legend()
    right.plot(entropy, sharp, "o", color=GREEN, label="range, sharp")
    right.plot(entropy, zhai.mean(-1), "s", color=RED, label="Zhai et al.")
    right.plot([0, 6], [0, 6], color=GREY, linewidth=1)
    right.set(xlabel="entropy of a head (nats)", ylabel="lower bound", title="18 real heads")
    right.legend()
    plt.show()

# %% [markdown]
# ## 11. Correlated keys: the spectrum decides
#
# Given the query, a row over normal keys of covariance $\Sigma$ is a row of independent normal scores of
# variance $q^\top \Sigma q / d$; a mean that all keys share drops out. With $M = \mathbb E\, q q^\top$ the
# variance is $\sum \lambda_i g_i^2$, $\lambda$ the spectrum of $M^{1/2} \Sigma M^{1/2}/d$. So $\mathbb E H =
# \mathbb E_g\, h_n\big(\sqrt{\sum \lambda_i g_i^2}\big)$ with the exact finite-$n$ entropy $h_n$. On the 18
# heads this is off by 0.42 nat (root mean square), where the formula for independent isotropic keys is off by
# 2.10: most of what distinguishes heads is 32 numbers. Spectrum and entropy are those of the same 512 tokens,
# so that this is a description in sample and not a prediction.

# %%
spectrum = theory.score_spectrum(query, key)
predicted = theory.spectrum_entropy(512, spectrum=spectrum)
white = theory.expected_entropy(512, 1, head_dim=d)
errors = [root_mean_square(predicted - entropy), root_mean_square(white - entropy)]
print(f"spectrum: off by {errors[0]:.2f} nat; independent keys: {errors[1]:.2f}")
np.testing.assert_allclose(errors, [0.42, 2.10], atol=6e-3)
worst = int(np.abs(predicted - entropy).argmax())
print(f"worst: {names[worst]}, {predicted[worst]:.2f} for {entropy[worst]:.2f}")
assert names[worst] == "L2 H5"
np.testing.assert_allclose([predicted[worst], entropy[worst]], [5.57, 4.10], atol=6e-3)
received = weights[worst].mean(0)
print(f"there {data.tokens[received.argmax()]} has {received.max():.0%} of the weight")
assert data.tokens[received.argmax()] == "[CLS]"
assert abs(received.max() - 0.36) < 6e-3

# %%
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.9, 2.6))
    for layer, colour in zip((0, 2, 5), (BLUE, RED, GREEN), strict=True):
        middle = np.median(spectrum[data.layers == layer], axis=0)
        left.semilogy(np.arange(1, d + 1), middle, color=colour, label=f"layer {layer}")
    left.set(xlabel="rank", ylabel=r"$\lambda$", title="Spectra, median of the heads")
    left.legend()
    right.plot(entropy, predicted, "o", color=GREEN, label="from the spectrum")
    right.axhline(white, color=GREY, linestyle="--", label="independent keys")
    right.plot([0, 6], [0, 6], color=GREY, linewidth=1)
    right.set(xlabel="measured entropy (nats)", ylabel="predicted", title="18 heads, 512 tokens")
    right.legend()
    plt.show()

# %% [markdown]
# ## 12. Average or needle: no law serves both
#
# At one $n$ every law is one $\beta$, and both the weight of a needle and the error of an average, $\sum
# p^2$, rise with it (compare Veličković et al., arXiv 2410.01104). So all laws lie on one curve a length. At
# 64 times the training length 1/2 for the needle costs 66 times the error of the best average; $\log n$ pays
# 26 times for a weight of 0.27.

# %%
lengths = np.array([64, 128, 512, 4096])
held = theory.retrieval_trade_off(lengths, theory.needle_beta(lengths, cosine=0.578), cosine=0.578)
print("1/2 for the needle costs", held.excess.round(2), "times the best average")
np.testing.assert_allclose(held.needle_weight, 0.5, atol=1e-9)
np.testing.assert_allclose(held.excess, [2.42, 3.51, 9.12, 66.41], atol=6e-3)
points = {}
for name in ("standard", "log_n", "variance_invariant", "annealed"):
    law = laws.get(name, train_length=64) if name != "standard" else laws.Standard()
    points[name] = theory.retrieval_trade_off(lengths, law.multiplier(lengths, 64) * np.ones(4), cosine=0.578)
    print(f"{name:18} weight {points[name].needle_weight.round(3)} excess {points[name].excess.round(2)}")
np.testing.assert_allclose(points["standard"].needle_weight, [0.499, 0.330, 0.109, 0.015], atol=6e-4)
np.testing.assert_allclose(points["standard"].excess, [2.41, 2.49, 2.56, 2.59], atol=6e-3)
np.testing.assert_allclose(
    points["variance_invariant"].needle_weight, [0.499, 0.586, 0.594, 0.427], atol=6e-4
)
np.testing.assert_allclose(points["variance_invariant"].excess, [2.41, 4.20, 11.88, 50.62], atol=6e-3)
np.testing.assert_allclose(points["annealed"].needle_weight, [0.499, 0.758, 0.857, 0.809], atol=6e-4)
np.testing.assert_allclose(points["annealed"].excess, [2.41, 6.41, 30.44, 224.75], atol=6e-3)
np.testing.assert_allclose(points["log_n"].needle_weight, [0.499, 0.472, 0.401, 0.267], atol=6e-4)
np.testing.assert_allclose(points["log_n"].excess, [2.41, 3.31, 6.96, 26.09], atol=6e-3)

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(5.0, 3.3))
    sweep = np.linspace(0.02, 5, 20)
    for place, (n, shade) in enumerate(zip(lengths, (0.75, 0.6, 0.4, 0.15), strict=True)):
        front = theory.retrieval_trade_off(n, sweep, cosine=0.578)
        ax.plot(front.excess, front.needle_weight, color=str(shade), label=f"$n$ = {n}")
        for name, colour in zip(points, (BLUE, RED, GREEN, ORANGE), strict=True):
            ax.plot(
                points[name].excess[place],
                points[name].needle_weight[place],
                "o",
                color=colour,
                label=name if place == 3 else None,
            )
    ax.set(
        xscale="log",
        xlim=(1, 3000),
        xlabel="error of the average over the best",
        ylabel="weight of the needle",
    )
    ax.set_title("Every law is a point on each curve")
    ax.legend(ncols=2)
    plt.show()

# %% [markdown]
# ## What was shown
#
# - Three quantities besides the entropy have their law: the number of keys under sparsemax,
#   $\mathrm{isf}(k/n)$ (1); the variance of the output, $\sqrt{1 + \ln(n/n_0)}$ (3); the weight of one key,
#   $a - \sqrt{a^2 - 2 \ln n}$ up to $n = e^{a^2/2}$ (2). No law serves an average and a needle (12).
# - Limits are far: the transition of 2510.05554 is a quarter of its critical value wide at 4096 tokens, and
#   twelve layers undo it from above (4); the random energy model has 0 where rows of 4096 keys have
#   $\sum p^2 = 0.21$ at $\beta_c$ (9); the critical scale of 2605.12697 has no mean at all (5).
# - On these 18 heads the variance of 64 tokens gives a head's law at 512 better than $\log n$ (6), and the
#   spectrum of its keys describes its entropy to 0.42 nat, in sample (11). One number, or 32, instead of a
#   fit.
# - A scale a head adds nothing that $W_q$ does not have, unless queries are normalised (7). A soft-cap of
#   50 promises no entropy (10).
#
# ## Exercises
#
# 1. Which rank $k$ keeps the support of entmax with $\alpha = 1.25$? Use `at.montecarlo.sparsity`.
# 2. At which $n$ does a cosine of 0.5 become impossible to find with $d = 64$, and with $d = 128$?
# 3. Scale a head's queries by its own law of section 6 on your own model: is its loss at length lower?
