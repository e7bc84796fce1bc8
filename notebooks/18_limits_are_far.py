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
# # Limits are far: three papers at finite length
#
# Theorems about attention often let $n$ go to infinity. Here three recent papers are compared with rows of 64
# to 4096 keys: a phase transition, a critical scale, a map of where attention can be trained. (A fourth, on a
# sphere, is in [notebook 5](05_phases.ipynb).) Each describes a real effect, but at the lengths in use each
# needs its form for finite $n$. Derivations are on the page [smaller
# results](../docs/explanation/further-results.md) (7, 8 and 11); each section stands by itself.
#
# $\beta$ is the scale times $\sqrt d$, $n$ the number of keys a row sees, logarithms are natural. "Normal
# scores" are independent and standard normal at $\beta = 1$. Random results are compared with a larger
# sample, drawn once, within 4.5 standard errors, so other random streams pass too.
#
# **摘要。** 关于注意力的定理通常令 $n \to \infty$。本文把三篇近期论文的极限与 64 到 4096 个键的精确结果对照：
# 相变，临界缩放，以及可训练区域。每个极限都描述了真实的现象，但在实际长度下其数值相去甚远。

# %%
import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from attnscale import laws, theory

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

rng = np.random.default_rng(17)
GREY = "#6E6E6E"
BLUE, RED, GREEN = at.plot.COLOURS[:3]
data = at.datasets.minilm_qk()
query, key = data.query.astype(float), data.key.astype(float)
d = query.shape[-1]
scores = query @ key.swapaxes(-1, -2) / np.sqrt(d)  # of 18 heads, at the standard scale
names = [f"L{layer} H{head}" for layer, head in zip(data.layers, data.heads, strict=True)]


def median_error(x):
    """Standard error of a median: half the distance of the quantiles 1/2 -+ 1/(2 sqrt(rows))."""
    return np.ptp(np.quantile(x, 0.5 + np.array([-0.5, 0.5]) / np.sqrt(len(x)))) / 2


# %% [markdown]
# ## A phase transition at finite length
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
np.testing.assert_allclose([critical, width, width / critical], [1.667, 0.401, 0.240], atol=5e-4)
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
np.testing.assert_allclose(below, [0.879, 1, 1], atol=5e-4)
np.testing.assert_allclose(above, [0.407, 0.440, 1], atol=5e-4)

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
# Real heads differ: keys have a mean cosine of 0.12 to 0.38, but queries are not keys. A query's score with
# its own key is above the others by 0.04 to 6 times $\ln n$, and the weight on itself is at most 0.06.

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
    [rho_heads.min(), rho_heads.max(), np.median(rho_heads)], [0.12, 0.38, 0.29], atol=5e-3
)
np.testing.assert_allclose([own.min() / np.log(512), own.max() / np.log(512)], [0.04, 6.02], atol=5e-3)
assert (own > np.log(512)).sum() == 6
assert abs(on_itself.max() - 0.057) < 6e-4

# %% [markdown]
# ## The critical scale is a distribution
#
# Hayase and Karakida (arXiv 2605.12697) measure a row's critical inverse temperature $\Lambda = \sup_t \ln
# N(t)/t$, $N(t)$ the number of scores within $t$ of the largest. It is above $\ell$ if the second score is
# within $\ln 2/\ell$ of the first, and the density of that gap at 0 is positive. So $P(\Lambda > \ell) \sim
# c/\ell$: **the mean is infinite** at every $n$. Use quantiles instead.

# %%
levels = np.array([10.0, 100.0, 1000.0])
tail = theory.critical_scale_tail(512, levels)
print("P(Lambda > 10, 100, 1000) is at least", tail.round(4))
np.testing.assert_allclose(tail, [0.1919, 0.0209, 0.0021], atol=5e-5)
drawn = laws.CriticalScale.measure(rng.standard_normal((20_000, 512)))
running = [drawn[:rows].mean() for rows in (200, 2000, 20_000)]
print("means of 200, 2000, 20000 rows:", np.round(running, 1), "median:", round(float(np.median(drawn)), 2))
# An infinite mean has no standard error; shares and the median have one.
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
np.testing.assert_allclose([quantiles[512].min(), quantiles[512].max()], [0.16, 7.20], atol=5e-3)
np.testing.assert_allclose(list(above_1.values()), [0.660, 0.796], atol=5e-4)
of_heads = laws.CriticalScale.measure(scores).ravel()
constant = [level * (of_heads > level).mean() for level in (10, 30, 100, 300)]
print("level x P(Lambda > level) of real rows, level = 10, 30, 100, 300:", np.round(constant, 1))
np.testing.assert_allclose(constant, [1.1, 1.3, 1.4, 1.2], atol=0.05)

# %% [markdown]
# Its growth with $n$ depends on the upper tail of the scores: $\sqrt{\ln n}$ for normal scores, constant for
# exponential ones. $(\ln n)^2$, the steepest in the abstract, needs bounded scores whose density near the
# bound is like $e^{-1/t}$ at distance $t$; with heavy tails it falls with $n$.

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
# ## Trainability at finite length
#
# Giorlandino and Goldt (arXiv 2505.24333) read attention at initialisation as a random energy model. With
# pairwise cosine $\rho$ a row has $C = \mathbb E \sum p^2$ and two rows overlap by $O = \mathbb E \sum p p'$,
# and a layer takes $\rho \to (\rho + (1-\rho) O)/(\rho + (1-\rho) C)$. For $n \to \infty$ that model has $C =
# \max(0, 1 - \beta_c/\beta)$ and $O = 0$. At finite $n$ both are integrals, computed exactly
# (`theory.expected_concentration`, `theory.expected_overlap`), and the limit is far away.

# %%
sizes = np.array([64, 512, 4096])
frozen = theory.expected_concentration(sizes, 1.2 * theory.critical_beta(sizes), model="gaussian")
print("C at 1.2 beta_c, n = 64, 512, 4096:", frozen.round(3), "limit", round(1 - 1 / 1.2, 3))
np.testing.assert_allclose(frozen, [0.392, 0.342, 0.313], atol=5e-4)
at_critical = theory.expected_concentration(sizes, theory.critical_beta(sizes), model="gaussian")
print("C at beta_c:", at_critical.round(3), "limit 0")
np.testing.assert_allclose(at_critical, [0.308, 0.249, 0.214], atol=5e-4)
drawn = [
    at.reference.propagated_correlation(0.3, n=200, beta=5.0, rng=np.random.default_rng(seed))
    for seed in range(6)
]
expected, error = theory.propagated_correlation(0.3, n=200, beta=5.0), np.std(drawn) / 6**0.5
print(f"one layer of 200 tokens from 0.3: {expected:.3f}, drawn {np.mean(drawn):.3f} +- {error:.3f}")
assert abs(expected - 0.552) < 6e-4
assert abs(np.mean(drawn) - expected) < 4.5 * error < 0.1


def in_the_limit(rho, n, beta, alpha, layers):
    """Correlation after some layers, with C and O of the limit, the random energy model."""
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
np.testing.assert_allclose([after[n][3, 3] for n in after], [0.66, 0.72], atol=5e-3)
np.testing.assert_allclose([rem[n][3, 3] for n in rem], [0.63, 0.81], atol=5e-3)

# %% [markdown]
# The figure shows the line on which four layers with a skip connection take the cosine of two tokens from 0.3
# to 0.6. Above it tokens become alike. Finite rows change smoothly with $\beta$ where the limit (dashed) has
# a corner.

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.3, 2.9))
    for n, colour in zip(after, (BLUE, RED), strict=True):
        ax.contour(beta, alpha, after[n], levels=[0.6], colors=[colour])
        ax.contour(beta, alpha, rem[n], levels=[0.6], colors=[colour], linestyles="--")
        ax.plot([], [], color=colour, label=f"$n$ = {n}")
    ax.set(xlabel=r"$\beta$, deviation of the scores", ylabel=r"strength $\alpha$ of attention")
    ax.plot([], [], "--", color="black", label="limit, with the same $\\ln n$")
    ax.set(xlim=(1, 11), title="Where the cosine of two tokens becomes 0.6")
    ax.legend(loc="lower right", fontsize="small")
    plt.show()

# %% [markdown]
# ## What was shown
#
# - The transition of 2510.05554 is a quarter of its critical value wide at 4096 tokens, and even above it
#   twelve layers make all tokens alike.
# - The critical scale of 2605.12697 has no finite mean at any length, but its quantiles are finite.
# - At $\beta_c$ the random energy model of 2505.24333 has $\sum p^2 = 0$, rows of 4096 keys 0.21.
#
# ## Exercises
#
# 1. From which $n$ on is the transition narrower than a tenth of its critical value?
# 2. Draw 200 rows of 512 normal scores ten times. How far apart are the ten means of $\Lambda$, and the ten
#    medians?
