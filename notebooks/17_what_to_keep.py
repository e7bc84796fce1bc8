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
# # What should stay the same when the text grows?
#
# The articles answer "the entropy". This notebook looks at four other answers: the number of keys with a
# weight, the weight of one key, the variance of the output, and the error of an average. Each of the first
# three has its own law. No single scale serves both a needle and an average, but two do. Derivations and
# proofs are on the pages [results](../docs/explanation/results.md) (2, 3) and [smaller
# results](../docs/explanation/further-results.md) (5, 6); each section stands by itself.
#
# $\beta$ is the scale times $\sqrt d$, $n$ the number of keys a row sees, logarithms are natural. "Normal
# scores" are independent and standard normal at $\beta = 1$. Random results are compared with a larger
# sample, drawn once, within 4.5 standard errors, so other random streams pass too.
#
# **摘要。** 文本变长时，究竟应该保持什么不变？文章的回答是"熵"。本文考察另外四种选择：有权重的键数，
# 单个关键键，输出方差，以及平均值与检索的取舍。前三者各有自己的缩放规则；后两者无法用同一个缩放兼顾，
# 但两个头可以。

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
BLUE, RED, GREEN, ORANGE = at.plot.COLOURS[:4]

# %% [markdown]
# ## The law that keeps sparsity
#
# How many keys have a weight under sparsemax? `theory.expected_support` has the exact expectation for normal
# scores. For many keys the number is distributed like $1 + \mathrm{Poisson}(b/\beta)$, $b = \Phi^{-1}(1 -
# 1/n)$. So
#
# $$\beta(n) = \frac{\mathrm{isf}(k/n)}{\mathrm{isf}(k/n_0)}$$
#
# keeps it, with $k = 1$ for sparsemax. Under every other law it drifts.

# %%
n = np.array([64, 512, 4096, 16384])
support = {}
for name in ("standard", "log_n", "sparsity_invariant", "variance_invariant", "annealed"):
    beta = laws.get(name).multiplier(n, 64) * np.ones(n.size)
    support[name] = [
        theory.expected_support(*pair) if pair[1] > 0.05 else np.nan for pair in zip(n, beta, strict=True)
    ]
    print(f"{name:18}", *(f"{each:6.2f}" for each in support[name]))
np.testing.assert_allclose(support["sparsity_invariant"], [3.94, 3.93, 3.93, 3.92], atol=5e-3)
np.testing.assert_allclose(support["standard"], [3.24, 3.93, 4.51, 4.86], atol=5e-3)
np.testing.assert_allclose(support["variance_invariant"][1:], [3.93, 3.04, 2.86], atol=5e-3)
np.testing.assert_allclose(support["annealed"][1:], [3.93, 2.58, 2.40], atol=5e-3)
np.testing.assert_allclose(support["log_n"], [4.26, 3.93, 3.66, 3.51], atol=5e-3)

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
# ## The retrieval window
#
# One key lies $a$ standard deviations above $n$ others. It has half of the weight where $\beta a = \ln n +
# \beta^2/2$, that is from $\beta = a - \sqrt{a^2 - 2 \ln n}$ on, and it can be found if and only if $n <
# e^{a^2/2}$. A cosine $c$ is $a = c \sqrt d$.

# %%
long = np.array([512, 4096, 32768])
closed, exact = theory.retrieval_beta(long, gap=0.578 * 8), theory.needle_beta(long, cosine=0.578)
print("closed form:", closed.round(3), "exact:", exact.round(3))
np.testing.assert_allclose(closed, [1.640, 2.446, 3.858], atol=5e-4)
np.testing.assert_allclose(exact, [1.628, 2.390, 3.409], atol=5e-4)

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
assert round(needed, 2) == 2.83
assert max(given[each] for each in list(given)[:3]) - min(given[each] for each in list(given)[:3]) < 0.1
np.testing.assert_allclose(list(given.values()), [1.16, 1.07, 1.15, 1.46, 1.67, 4.47], atol=5e-3)
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
    shown = {label: production[label] for label in ("SSMax 0.43", "log_512 n", "YaRN, x 8", "Qwen, 8192")}
    for (label, law), colour in zip(shown.items(), (GREY, ORANGE, BLUE, RED), strict=True):
        beta = laws.get(law).multiplier_at(grid, 128) * np.ones(grid.size)
        label = "Qwen; Llama 4 and Ministral are within 0.1" if label.startswith("Qwen") else label
        ax.plot(grid, beta, color=colour, linewidth=1.2, label=label)
    ax.set_xscale("log", base=2)
    ax.set(
        ylim=(0.5, 6), xlabel="$n$", ylabel=r"$\beta$", title="A key of cosine 0.45, $d = 128$, unit variance"
    )
    figure.legend(loc="outside lower center", ncols=2)
    plt.show()

# %% [markdown]
# A head that retrieves has learned a larger $W_q$ (see [notebook 19](19_heads.ipynb)), which multiplies the
# axis of this figure. So compare only the *growth* of the laws: from 4096 to 32768 the window rises by 1.38,
# log n by 1.25.

# %%
growth = theory.retrieval_beta([4096, 32768], gap=gap)
print(f"window {growth[1] / growth[0]:.2f}, log n {np.log(32768) / np.log(4096):.2f}")
np.testing.assert_allclose([growth[1] / growth[0], np.log(32768) / np.log(4096)], [1.38, 1.25], atol=5e-3)

# %% [markdown]
# ## The law that keeps the output's variance
#
# The output $\sum p_j v_j$ of independent values has the variance $\sum p^2$, which is $e^{\beta^2}/n$ while
# many keys share the weight. So $\beta = \sqrt{1 + \ln(n/n_0)}$ keeps it, not $\sqrt{1 + 2 \ln(n/n_0)}$,
# which keeps the entropy. "On Vanishing Variance" (arXiv 2504.02827) normalises the output. That keeps its
# *size*, but cannot restore the share of one key in its direction: for a key of gap 4.624 it falls from 0.86
# to 0.20 under the standard scale, and to 0.83 under the law.

# %%
far = np.array([4096, 32768, 2**20])
exact = theory.variance_invariant_beta(far, model="gaussian")
first = laws.VarianceInvariant().multiplier(far, 64)
print("exact", exact.round(4), "sqrt(1 + ln(n/512))", first.round(4))
np.testing.assert_allclose(exact, [1.7887, 2.3570, 3.1308], atol=5e-5)
np.testing.assert_allclose(first, [1.7548, 2.2713, 2.9368], atol=5e-5)


def share_of_needle(n, beta, rows=400):
    """Share of the needle in a normalised output, w / sqrt(w^2 + sum of the others' p^2), and its error."""
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
np.testing.assert_allclose(variance["standard"], [1, 0.127, 0.016], atol=5e-4)
np.testing.assert_allclose(variance["variance_invariant"], [1, 0.904, 0.752], atol=5e-4)
np.testing.assert_allclose(variance["annealed"], [1, 3.80, 6.28], atol=5e-3)
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
# ## Average or needle: no law serves both
#
# At one $n$ every law is one $\beta$, and both the weight of a needle and the error of an average, $\sum
# p^2$, rise with it (compare Veličković et al., arXiv 2410.01104). So at each length all laws lie on one
# curve. At 64 times the training length a needle weight of 1/2 costs 66 times the error of the best average;
# with $\log n$ a weight of 0.27 costs 26 times that error.

# %%
lengths = np.array([64, 128, 512, 4096])
held = theory.retrieval_trade_off(lengths, theory.needle_beta(lengths, cosine=0.578), cosine=0.578)
print("1/2 for the needle costs", held.excess.round(2), "times the best average")
np.testing.assert_allclose(held.needle_weight, 0.5, atol=1e-9)
np.testing.assert_allclose(held.excess, [2.42, 3.51, 9.12, 66.41], atol=5e-3)
points = {}
for name in ("standard", "log_n", "variance_invariant", "annealed"):
    law = laws.get(name, train_length=64) if name != "standard" else laws.Standard()
    points[name] = theory.retrieval_trade_off(lengths, law.multiplier(lengths, 64) * np.ones(4), cosine=0.578)
    print(f"{name:18} weight {points[name].needle_weight.round(3)} excess {points[name].excess.round(2)}")
np.testing.assert_allclose(points["standard"].needle_weight, [0.499, 0.330, 0.109, 0.015], atol=5e-4)
np.testing.assert_allclose(points["standard"].excess, [2.41, 2.49, 2.56, 2.59], atol=5e-3)
np.testing.assert_allclose(
    points["variance_invariant"].needle_weight, [0.499, 0.586, 0.594, 0.427], atol=5e-4
)
np.testing.assert_allclose(points["variance_invariant"].excess, [2.41, 4.20, 11.88, 50.62], atol=5e-3)
np.testing.assert_allclose(points["annealed"].needle_weight, [0.499, 0.758, 0.857, 0.809], atol=5e-4)
np.testing.assert_allclose(points["annealed"].excess, [2.41, 6.41, 30.44, 224.75], atol=5e-3)
np.testing.assert_allclose(points["log_n"].needle_weight, [0.499, 0.472, 0.401, 0.267], atol=5e-4)
np.testing.assert_allclose(points["log_n"].excess, [2.41, 3.31, 6.96, 26.09], atol=5e-3)

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
# ## Two heads
#
# Two heads with two fixed scales serve both. A needle of gap $a$ keeps half of the weight at $\beta = a$ for
# all $n \le e^{a^2/2}$, by Jensen's inequality, and a head with $\beta = 0$ averages perfectly. With one
# scale for both the error is at least $e^{(\ln n/a)^2}/8$ times the best, $\sqrt n/8$ times at the longest
# such row. The proof is on the page [results](../docs/explanation/results.md); here are the exact values
# beside the bounds. Scores on a sphere of 100000 dimensions approximate normal ones.

# %%
gap, many = 4.624, 100_000
lengths = np.array([64, 512, 4096, 32768])
cosine = gap / np.sqrt(many)
weight = theory.needle_weight(lengths + 1, head_dim=many, cosine=cosine, beta=gap)
safe = theory.needle_weight_bound(lengths, gap=gap, beta=gap)
one_scale = theory.needle_beta(lengths + 1, head_dim=many, cosine=cosine)
paid = lengths * theory.expected_concentration(lengths, one_scale, model="gaussian")
least = theory.shared_excess_bound(lengths, gap=gap)
print("two heads, weight:", weight.round(4), "at least", safe.round(4))
print("one head, error over the best:", paid.round(2), "at least", least.round(2))
np.testing.assert_allclose(weight, [0.9993, 0.9942, 0.9552, 0.7191], atol=5e-5)
np.testing.assert_allclose(safe, [0.9985, 0.9885, 0.9147, 0.5728], atol=5e-5)
np.testing.assert_allclose(paid, [2.51, 11.07, 118.8, 2838], rtol=2e-3)
np.testing.assert_allclose(least, [0.28, 0.77, 3.18, 19.62], atol=5e-3)

with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.9, 2.6))
    left.plot(lengths, weight, "o-", color=GREEN, label=r"$\beta = a$, exact")
    left.plot(lengths, safe, "--", color=GREEN, label="bound")
    left.set(
        xscale="log", ylim=(0, 1.03), xlabel="$n$", ylabel="weight of the needle", title="A head of its own"
    )
    left.legend(loc="lower left")
    right.plot(lengths, paid, "o-", color=RED, label="one scale for both")
    right.plot(lengths, least, "--", color=RED, label="bound")
    right.axhline(1, color=GREEN, label="a head of its own")
    right.set(xscale="log", yscale="log", xlabel="$n$", ylabel="error over the best", title="The average")
    right.legend()
    plt.show()

# %% [markdown]
# ## What was shown
#
# - Three quantities besides the entropy have a law: the number of keys under sparsemax, $\mathrm{isf}(k/n)$;
#   the variance of the output, $\sqrt{1 + \ln(n/n_0)}$; the weight of one key, $a - \sqrt{a^2 - 2 \ln n}$ up
#   to $n = e^{a^2/2}$.
# - Normalising the output keeps its size, not the share of one key in its direction.
# - No law serves both an average and a needle. Two heads with fixed scales do, at every length at which the
#   needle can be found.
#
# ## Exercises
#
# 1. Which rank $k$ keeps the support of entmax with $\alpha = 1.25$? Use `theory.support_invariant_beta`.
# 2. At which $n$ does a cosine of 0.5 become impossible to find with $d = 64$, and with $d = 128$?
