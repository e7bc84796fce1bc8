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
# # Phases of attention: when a row freezes
#
# A row of attention over random keys is a known system of statistical physics. With normal scores it is
# Derrida's random energy model: the scale is an inverse temperature, the keys are the states. The model has
# two phases. Below $\beta_c = \sqrt{2 \ln n}$ a number of keys that grows with $n$ shares the weight; above
# it a few keys have nearly all of it, however long the row is. This notebook draws the two phases (claim
# **T13**), adds the scale laws (**T12**), and asks what "focus" should mean: keeping the entropy, or keeping
# the weight of the one key that matters (**T16**). These are different targets.
#
# **摘要。** 对随机键的注意力等价于统计物理中的随机能量模型 (Derrida 1981)：缩放因子相当于逆温度，
# 键相当于状态。
# 当 $\beta < \beta_c = \sqrt{2\ln n}$ 时，权重由数目随 $n$ 增长的许多键分担；当 $\beta > \beta_c$ 时，
# 无论 $n$ 多大，权重都凝聚在少数几个键上 (T13)。本文画出相图，标出各种缩放规则的位置 (T12)，
# 并讨论"集中注意力"的两种含义：保持熵不变，或保持某个关键键的权重 (T16)。两者是不同的目标。
#
# | English | 中文 | here |
# |---|---|---|
# | random energy model | 随机能量模型 | independent normal scores |
# | freezing, condensation | 冻结，凝聚 | few keys hold the weight at every $n$ |
# | inverse temperature | 逆温度 | $\beta$, the multiple of $1/\sqrt d$ |
# | participation | 参与数 | $1/\sum p^2$, a number of keys |
# | needle | 针 (关键键) | one key with a given cosine to the query |
# | dilution | 稀释 | its weight falls as keys are added |

# %%
import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from attnscale import theory

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

rng = np.random.default_rng(1981)

# %% [markdown]
# ## Two phases (T13)
#
# About $n\, e^{-s^2/2}$ of $n$ normal scores are near $s$, and the largest is near $s = \sqrt{2 \ln n}$. The
# sum $\sum e^{\beta s}$ is dominated by the scores near $s = \beta$, as long as there are any. Then $H
# \approx \ln n - \beta^2/2$. At $\beta_c = \sqrt{2 \ln n}$ this is 0; from there on the few largest scores
# dominate the sum. For $n \to \infty$ at fixed $m = \beta_c/\beta < 1$ the weights have a Poisson-Dirichlet
# distribution, with
#
# $$H \to \psi(1) - \psi(1 - m), \qquad \mathbb E \sum p^2 \to 1 - m.$$
#
# The exact entropy at finite $n$ approaches the limit extremely slowly. At $\beta = 1.25\,\beta_c$ the limit
# is 4.71 nats. A thousand keys have 1.89, and $10^{100}$ keys still only 4.32. The gap falls not like $1/\ln
# n$, but like $(\ln\ln n + \ln 4\pi)/\ln n$: the largest of $n$ normal scores is not at $\sqrt{2 \ln n}$ but
# below it, by the factor $1 - (\ln\ln n + \ln 4\pi)/(4 \ln n)$ to the next order, 12 % at 16384 keys. From
# $10^{100}$ on the gap divided by that quotient is about constant. No row of a transformer is near the limit.

# %%
m = 1 / 1.25
n = np.array([1e3, 1e12, 1e100, 1e300])
reached = theory.expected_entropy(n, theory.critical_beta(n) / m, model="gaussian")
print(
    "H at beta = 1.25 beta_c:",
    dict(zip(("10^3", "10^12", "10^100", "10^300"), reached.round(3).tolist(), strict=True)),
)
np.testing.assert_allclose(reached, [1.893, 3.091, 4.323, 4.561], atol=5e-4)
gap, log_n = theory.condensed_entropy(m) - reached, np.log(n)
below = (np.log(log_n) + np.log(4 * np.pi)) / log_n
print("gap times ln n:", (gap * log_n).round(1), "  over (ln ln n + ln 4 pi)/ln n:", (gap / below).round(1))
np.testing.assert_allclose(gap * log_n, [19.5, 44.8, 89.6, 104.1], atol=0.05)  # not 1/ln n
np.testing.assert_allclose(gap / below, [4.4, 7.7, 11.2, 11.5], atol=0.05)
at_16384 = (np.log(np.log(16384)) + np.log(4 * np.pi)) / (4 * np.log(16384))
np.testing.assert_allclose(at_16384, 0.12, atol=5e-3)
assert abs(theory.condensed_entropy(m) - 4.712) < 5e-4
assert abs(theory.condensed_concentration(m) - 0.2) < 1e-12
np.testing.assert_allclose(theory.critical_beta([512, 32768]), [3.53, 4.56], atol=5e-3)
for size in (512, 32768):
    assert abs(theory.annealed_entropy(size, theory.critical_beta(size), model="gaussian")) < 1e-12

# %%
ratio = np.linspace(0.02, 2.5, 120)
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.2))
    for exponent, colour in zip((3, 6, 12, 100), at.plot.COLOURS, strict=False):
        beta = ratio * theory.critical_beta(10.0**exponent)
        rows = theory.expected_statistics(10.0**exponent, beta, model="gaussian")
        left.plot(
            ratio, rows.entropy / (exponent * np.log(10)), color=colour, label=f"$n = 10^{{{exponent}}}$"
        )
        right.plot(ratio, rows.concentration, color=colour)
    left.plot(ratio, np.maximum(1 - ratio**2, 0), color="#6E6E6E", linestyle=(0, (4, 2)), label="limit")
    right.plot(ratio, np.maximum(1 - 1 / ratio, 0), color="#6E6E6E", linestyle=(0, (4, 2)))
    left.set(xlabel=r"$\beta/\beta_c$", ylabel=r"$H/\ln n$", title="Entropy")
    right.set(xlabel=r"$\beta/\beta_c$", ylabel=r"expected $\sum p^2$", title="Concentration")
    left.legend()
    plt.show()

# %% [markdown]
# Rows of normal scores, run through the kernels, agree. With a query of one channel that is 1, $q \cdot k_j$
# can be any score.

# %%
n_keys, n_rows = 4096, 200
scores = rng.standard_normal((n_rows, n_keys))
betas = np.array([1.0, 2.5, 4.0, 6.0])
curve = at.entropy_curve(np.ones((n_rows, 1, 1)), scores[..., None], betas)
simulated = curve.entropy[:, 0]  # (rows, betas)
exact = theory.expected_entropy(n_keys, betas, model="gaussian")
error = simulated.std(0, ddof=1) / np.sqrt(n_rows)
for beta, mean, bar, value in zip(betas, simulated.mean(0), error, exact, strict=True):
    print(f"beta {beta:.1f}: {mean:.4f} +- {bar:.4f}, exact {value:.4f}")
assert (np.abs(simulated.mean(0) - exact) < 5 * error).all()

# %% [markdown]
# ## Scale laws in the phase diagram (T12)
#
# The colour is the expected entropy as a share of $\ln n$. The standard scale is a horizontal line deep in
# the phase of many keys at every length: attention at $1/\sqrt d$ is diluted by new keys because it is far
# from freezing. $\log_{512} n$ rises but stays below the freezing line $\sqrt{2 \ln n}$ for every length in
# use. $\ln n$ lies above it, in the condensed phase, where the entropy hardly depends on $n$. The invariant
# law keeps $H$, a falling share of $\ln n$, so it crosses the contours. It runs just below the freezing line,
# since $\beta^2 = \beta_c^2 - 2 \ln 512 + 1$ to first order.

# %%
n = np.geomspace(64, 2**20, 45)
beta = np.linspace(0.05, 8, 60)
laws = ["standard", "log_n", "natural_log_n", at.laws.EntropyInvariant(model="gaussian")]
with at.plot.style():
    ax = at.plot.phase_diagram(n, beta, laws=laws, labels={laws[-1].spelling: "invariant"})
    ax.set_title("Normal scores")
    plt.show()

long = np.array([512, 4096, 32768, 2**20])
invariant = theory.invariant_beta(long, model="gaussian")
np.testing.assert_allclose(invariant[1:], [2.314, 3.168, 4.287], atol=5e-4)
assert (invariant < theory.critical_beta(long)).all()
assert (np.log(long) / np.log(512) < theory.critical_beta(long)).all()
assert (np.log(long) > theory.critical_beta(long)).all()
kept = theory.expected_entropy(long, invariant, model="gaussian")
np.testing.assert_allclose(kept, kept[0], atol=1e-9)
np.testing.assert_allclose(
    theory.invariant_beta([1024, 4096, 32768, 2**20]), [1.58696, 2.43330, 3.47118, 5.0405], atol=5e-5
)  # on the sphere, d = 64

# %% [markdown]
# ## Finding a needle (T16)
#
# Entropy says how many keys share the weight, not which. Put one key with a given cosine $c$ among $n - 1$
# random ones on the sphere, and ask for its weight. At $c = 0.578$, $n = 64$ and $\beta = 1$ it has half of
# the weight. Then keys are added:
#
# - under the standard scale the needle is diluted, to 6 % at $n = 1024$;
# - under $\log_{64} n$ it keeps 36 % there, and 10.6 % at $n = 65536$;
# - the entropy-invariant law *raises* it to more than 0.9 before it falls again: the needle stands out more
#   than a random key of the same rank would.
#
# The multiple at which the needle keeps one half is about the solution of $\beta\, c \sqrt d = \ln n + \ln
# M(\beta)$, and $\ln M$ grows with $\beta$, so the multiple rises faster than $\ln n$. Retrieval and entropy
# are different targets, and no law of $n$ alone serves both.

# %%
n = np.array([64, 128, 256, 512, 1024])
c = 0.578386
log_64 = np.log(n) / np.log(64)
standard = theory.needle_weight(n, cosine=c, beta=1)
np.testing.assert_allclose(standard, [0.500, 0.331, 0.197, 0.109, 0.057], atol=5e-4)
np.testing.assert_allclose(
    theory.needle_weight(n, cosine=c, beta=log_64), [0.5000, 0.4727, 0.4402, 0.4025, 0.3604], atol=5e-5
)
far = np.array([1024, 65536])
np.testing.assert_allclose(
    theory.needle_weight(65536, cosine=c, beta=np.log(65536) / np.log(64)), 0.1057, atol=5e-5
)
np.testing.assert_allclose(  # at the cosine with one half of the weight at 64 keys
    theory.needle_weight(1024, cosine=c, beta=theory.invariant_beta(1024, n0=64)), 0.9359, atol=5e-5
)
np.testing.assert_allclose(
    theory.needle_weight(far, cosine=0.578, beta=theory.invariant_beta(far, n0=64)), [0.935, 0.814], atol=5e-4
)
half = theory.needle_beta([512, 4096, 32768, 2**18], cosine=0.578)
np.testing.assert_allclose(half, [1.628, 2.390, 3.409, 5.084], atol=5e-4)
print("beta at which the needle has half of the weight:", half.round(3))

# %%
grid = np.geomspace(64, 2**18, 40)
laws = {
    r"$1/\sqrt{d}$": np.ones_like(grid),
    r"$\log_{64} n$": np.log(grid) / np.log(64),
    "invariant": theory.invariant_beta(grid, n0=64),
    "half for the needle": theory.needle_beta(grid, cosine=0.578),
}
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.2))
    colours = [at.plot.COLOURS[place] for place in (0, 1, 3, 6)]
    for (name, beta), colour in zip(laws.items(), colours, strict=True):
        left.plot(grid, theory.needle_weight(grid, cosine=0.578, beta=beta), color=colour, label=name)
        right.plot(grid, beta, color=colour)
    left.set(xscale="log", xlabel="$n$", ylabel="weight of the needle", ylim=(0, 1.02))
    left.set_title("One key with cosine 0.578, $d = 64$")
    right.set(xscale="log", xlabel="$n$", ylabel=r"$\beta$", title="The multiples that were used")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    plt.show()

# %% [markdown]
# A needle whose cosine is below what random keys reach cannot be found at any scale: among a million keys of
# 64 dimensions the best random one has a cosine of 0.56, and a larger $\beta$ only gives that key more
# weight. A larger $d$ helps then, a larger scale does not.

# %%
best = theory.expected_max_cosine(10**6, 64)
wider = theory.expected_max_cosine(10**6, 128)
print(f"largest of a million random cosines: {best:.3f} for d = 64, {wider:.3f} for d = 128")
assert 0.55 < best < 0.58
assert np.isnan(theory.needle_beta(10**6, cosine=0.5, on_infeasible="nan"))
assert theory.needle_beta(10**6, cosine=0.5, head_dim=128) > 0

# %% [markdown]
# ## On a sphere: a limit for few dimensions
#
# Cosines are at most 1, so keys on a sphere have another critical scale. For the nearest of $n$ keys $1 -
# \cos$ is of the order $n^{-2/(d-1)}$. At $\beta\sqrt d = t\,(nC)^{2/(d-1)}$ the nearest few share the
# weight, in the proportions $\exp(-t\, \Gamma_k^{2/(d-1)})$ with the arrivals $\Gamma_k$ of a Poisson process
# of rate 1 (Bruno et al., arXiv 2605.08505). `theory.critical_limit_entropy` computes the expected entropy of
# that limit as one integral, `theory.expected_entropy` that of $n$ keys. Compared, they show where the limit
# holds: with 4 dimensions for all rows, with 8 for long ones, and with the 64 of a real head for none. With
# 64 the keys that matter are not near the query: at $n = 32768$ the factor $\beta\sqrt d$ is 51, and $x =
# \beta\sqrt d\,(1 - \cos)$ has to be about $d/2 = 32$.

# %%
CASES = ((4, 1.0), (8, 2.0), (64, 20.0))
sizes = np.geomspace(64, 1e15, 27)
finite = {
    d: theory.expected_entropy(sizes, theory.critical_limit_beta(sizes, t, head_dim=d), head_dim=d)
    for d, t in CASES
}
limits = {d: theory.critical_limit_entropy(t, head_dim=d) for d, t in CASES}
at_32768 = [
    theory.expected_entropy(32768, theory.critical_limit_beta(32768, t, head_dim=d), head_dim=d)
    for d, t in CASES
]
for (d, t), value in zip(CASES, at_32768, strict=True):
    print(f"d = {d:2}, t = {t:2.0f}: {value:.3f} nats at n = 32768, limit {limits[d]:.3f}")
np.testing.assert_allclose(list(limits.values()), [1.885, 3.628, 16.962], atol=5e-4)
np.testing.assert_allclose(at_32768, [1.884, 3.439, 2.378], atol=5e-4)

# Random rows against the exact value at their length: cosines on a sphere have a beta distribution.
drawn = []
for (d, t), rows in zip(CASES, (200, 100, 200), strict=True):
    cosine = 2 * rng.beta((d - 1) / 2, (d - 1) / 2, (rows, 20_000)) - 1
    beta = theory.critical_limit_beta(20_000, t, head_dim=d)
    row = np.exp(beta * np.sqrt(d) * (cosine - cosine.max(-1, keepdims=True)))
    p = row / row.sum(-1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
    drawn.append((entropy.mean(), entropy.std() / rows**0.5))
    expected = theory.expected_entropy(20_000, beta, head_dim=d)
    print(f"d = {d:2}, n = 20000: drawn {drawn[-1][0]:.3f} +- {drawn[-1][1]:.3f}, exact {expected:.3f}")
    assert abs(drawn[-1][0] - expected) < 4.5 * drawn[-1][1]

with at.plot.style():
    _, ax = plt.subplots(figsize=(5.2, 3.2))
    for (d, t), colour, (mean, error) in zip(CASES, at.plot.COLOURS, drawn, strict=False):
        ax.plot(sizes, finite[d], color=colour, label=f"$d = {d}$, $t = {t:.0f}$")
        ax.axhline(limits[d], color=colour, linestyle="--", linewidth=1)
        ax.errorbar(20_000, mean, 2 * error, fmt="o", color=colour, markersize=4)
    ax.set(
        xscale="log",
        ylim=(0, 18),
        xlabel="$n$",
        ylabel="entropy (nats)",
        title="Keys on a sphere; dashed: limit",
    )
    ax.legend(loc="center left")
    plt.show()

# %% [markdown]
# ## Play with it
#
# The cumulative weight of one row, from the largest weight on. With `ipywidgets` (part of the extra
# `notebooks`) sliders move it across the freezing line.


# %%
def draw(ratio=1.0, log2_n=12):
    """Sorted weights of one row of normal scores."""
    row = np.sort(np.random.default_rng(0).standard_normal(2**log2_n))[::-1]
    row *= ratio * theory.critical_beta(2**log2_n)
    p = np.exp(row - row[0])
    p /= p.sum()
    with at.plot.style():
        _, ax = plt.subplots(figsize=(4.6, 2.6))
        ax.plot(np.arange(1, p.size + 1), np.cumsum(p), color=at.plot.COLOURS[0])
        ax.set(xscale="log", xlabel="largest keys", ylabel="their share of the weight", ylim=(0, 1.02))
        ax.set_title(rf"$\beta = {ratio:g}\,\beta_c$, $n = 2^{{{log2_n}}}$")
        plt.show()


try:
    import ipywidgets
except ImportError:
    draw()  # with ipywidgets there are sliders
else:
    ipywidgets.interact(
        draw,
        ratio=ipywidgets.FloatSlider(1.0, min=0.1, max=2.5, step=0.1, description="beta/beta_c"),
        log2_n=ipywidgets.IntSlider(12, min=6, max=18),
    )

# %% [markdown]
# ## What was shown
#
# - Rows of normal scores freeze at $\beta_c = \sqrt{2 \ln n}$, in a limit that is approached like $\ln\ln
#   n/\ln n$: at $1.25\,\beta_c$ a thousand keys have 1.89 of the limit's 4.71 nats (T13).
# - $1/\sqrt d$ is deep in the phase of many keys, $\log_{512} n$ stays below the line, $\ln n$ is above
#   it, and the law that keeps the entropy runs beside it (T12).
# - Entropy and retrieval are different targets: a needle with half of the weight at 64 keys has 6 % at
#   1024 under the standard scale and 36 % under $\log_{64} n$, and the invariant law gives it more than
#   0.9 (T16).
# - Keys on a sphere have their own limit, at a scale that grows like $n^{2/(d-1)}$. With 4 or 8 dimensions
#   rows are near it; with 64 no row in use is.
#
# ## Exercises
#
# 1. How many of the largest keys hold half of the weight at $\beta = 0.5\,\beta_c$ and at $1.25\,\beta_c$,
#    for $n = 2^{10}$ and $2^{18}$?
# 2. Which cosine keeps exactly half of the weight at $n = 4096$ under the invariant law with `n0=64`?
