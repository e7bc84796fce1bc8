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
# # Johnson-Lindenstrauss and log n
#
# Two statements have a $\log n$ in them. The lemma of Johnson and Lindenstrauss: $n$ vectors fit into $O(\log
# n)$ dimensions. The scale law $\log_{512} n/\sqrt d$: attention over $n$ keys needs a factor $\log n$. Su
# Jianlin connected them in April 2023 (kexue.fm archive 9588): if $n$ keys deserve $d_n = \lambda \log n$
# dimensions and get only $d$, multiply the dot product by $d_n/d$.
#
# This notebook examines the argument step by step: what the lemma bounds (claim **T18**); why "$8 \ln n$" is
# not that bound, and where the 8 comes from (**T19**); what random projections and random keys do (**T20**);
# which question about heads $\ln n$ does answer (**T21**). Then the connection itself: multiplying by $d_n/d$
# gives the right key exactly the score that $d_n$ dimensions would give it, but gives the wrong keys too
# much. Logarithms are natural. Every statement with a number is asserted.
#
# **摘要。** JL 引理说 $n$ 个向量只需 $O(\log n)$ 维，而 $\log_{512} n/\sqrt d$ 这一缩放规则中也有 $\log n$。
# 苏剑林 (2023 年 4 月，科学空间 9588) 将两者联系起来：若 $n$ 个键理想上需要 $d_n = \lambda\log n$ 维，
# 而实际只有 $d$ 维，就把内积乘以 $d_n/d$。本文把这条链条拆开逐一检验：
# 引理究竟约束什么 (T18), "$8\ln n$" 为何不是引理的界，它从何而来 (T19)，
# 随机投影与随机键的实测 (T20)，以及注意力头的维度与 $\ln n$ 的真正关系 (T21)。
# 结论：乘以 $d_n/d$ 给正确的键的得分恰好等于 $d_n$ 维时的得分，但噪声也被同样放大，
# 所以它补偿的是权重，而不是检索能力。
#
# | English | 中文 | here |
# |---|---|---|
# | random projection | 随机投影 | $x \mapsto R x$ with a $k \times D$ matrix of random entries |
# | distortion | 失真 | relative change of $\lvert x - y\rvert^2$ by the projection |
# | failure probability | 失败概率 | of a projection that changes some pair too much |
# | head dimension | 头的维度 | $d$, the number of terms in $q \cdot k$ |
# | needle | 针 (正确的键) | the key that the query is meant to find |
# | signal and noise | 信号与噪声 | the needle's score, and the spread of the other scores |

# %%
import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import betainc

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

theory = at.theory
print(f"attnscale {at.__version__}")

# %% [markdown]
# ## What the lemma says (T18)
#
# Project a vector $v$ to $k$ dimensions by a matrix of independent normal entries of variance $1/k$. Then
# $\lvert Rv\rvert^2/\lvert v\rvert^2$ is a chi-squared variable with $k$ degrees of freedom, divided by $k$:
# its mean is 1 and its spread $\sqrt{2/k}$, whatever $v$ and its dimension are. Both tails are bounded by
#
# $$P\left(\left|\,\lvert Rv\rvert^2/\lvert v\rvert^2 - 1\right| > \varepsilon\right)
# \;\le\; 2\,e^{-\frac k2\left(\frac{\varepsilon^2}2 - \frac{\varepsilon^3}3\right)} .$$
#
# There are $n(n-1)/2$ differences of $n$ points. By the union bound, some pair is off with a probability of
# at most $n(n-1)\,e^{-\frac k2(\varepsilon^2/2 - \varepsilon^3/3)}$. For that to be $\delta$ or less,
#
# $$k \;\ge\; \frac{2 \ln\left(n(n-1)/\delta\right)}{\varepsilon^2/2 - \varepsilon^3/3} .$$
#
# Dasgupta and Gupta need success only once in $n$ trials, which still proves that a good projection exists:
# $k \ge 4 \ln n/(\varepsilon^2/2 - \varepsilon^3/3)$.

# %%
eps = np.array([0.1, 0.5, 0.9])
rate = eps**2 / 2 - eps**3 / 3
np.testing.assert_allclose(4 * np.log(512) / rate, [5347.14, 299.44, 154.03], atol=5e-3)
assert theory.jl_min_dim(512, eps=eps).tolist() == [5348, 300, 155]  # the smallest integers above
assert theory.jl_min_dim(512, eps=0.5, failure_probability=0.01) == 410

# With the smaller k the union bound allows a failure in all trials but one of n:
bound = 512 * 511 * np.exp(-theory.jl_min_dim(512, eps=eps) / 2 * rate)
assert (bound <= 1 - 1 / 512).all()

# %% [markdown]
# Note that the bound is about *distances of all pairs*, to within a factor, and does not depend on the
# original dimension: for $\varepsilon = 0.1$, the "low" dimension of 512 points is 5348.
#
# ## 8 ln n is not such a bound (T19)
#
# The article quotes the lemma as "$8\ln n$ dimensions suffice": 50 for $n = 512$, 92 for $n = 10^5$. Write
# the bound above as $C(\varepsilon) \ln n$. As $\varepsilon$ grows to 1, the largest error that makes sense,
# $C$ falls to $4/(1/2 - 1/3) = 24$. The cubic is a lower bound of the exact exponent of the chi-square tail,
# $\varepsilon - \ln(1 + \varepsilon)$, with which $C$ falls to $4/(1 - \ln 2) = 13.04$. For no $\varepsilon$
# is either as low as 8.

# %%
every_eps = np.linspace(0.02, 1, 1000)
constant = 4 / (every_eps**2 / 2 - every_eps**3 / 3)
assert (np.diff(constant) < 0).all()
np.testing.assert_allclose(constant[-1], 24)
np.testing.assert_allclose(theory.jl_rule_of_thumb([512, 1e5]), [49.9, 92.1], atol=0.05)
assert theory.jl_min_dim(512, eps=0.999) > 2.9 * theory.jl_rule_of_thumb(512)

# %% [markdown]
# The 8 comes from somewhere else: an estimate of entropy that Su made in 2020 for word vectors. Take $N^2$
# pairs of vectors on the sphere $\lvert x\rvert = \sqrt d$, with probabilities proportional to $e^{x \cdot
# y}$. Equal probabilities have the entropy $2 \ln N$; the exponential lowers it by about $0.24\,d$; and $d$
# is large enough when nothing remains:
#
# $$2 \ln N - 0.24\, d < 0 \quad\Longleftrightarrow\quad d > 8.33 \ln N .$$
#
# The number 0.24 is the deficit per dimension at scale 1. Its limit for large $d$ is $\frac12 \ln \frac{1 +
# \sqrt5}2 = 0.2406$, half the logarithm of the golden ratio (claim T8), so that the constant is
# $4/\ln\frac{1+\sqrt5}2 = 8.312$. The deficit is also known at finite $d$.

# %%
golden = (1 + np.sqrt(5)) / 2
np.testing.assert_allclose(
    [theory.GOLDEN_DEFICIT, theory.GOLDEN_DIMENSION], [np.log(golden) / 2, 4 / np.log(golden)]
)
np.testing.assert_allclose(theory.GOLDEN_DIMENSION, 8.31234768, atol=1e-8)
np.testing.assert_allclose(theory.jl_rule_of_thumb(512, 8.33), 52.0, atol=0.05)

dims = np.arange(2, 200)
deficit = theory.sphere_entropy_deficit(1.0, dims)  # of one row; the deficit over all pairs is equal
for n in (512, 100_000):
    exact = int(dims[np.argmax(deficit >= 2 * np.log(n))])
    print(
        f"n = {n}: 8 ln n = {theory.jl_rule_of_thumb(n):.1f}, the exact deficit uses up 2 ln n at d = {exact}"
    )
    assert exact == {512: 52, 100_000: 96}[n]

# %% [markdown]
# So the estimate is sound for its purpose: a dimension at which a softmax *at scale 1* can tell $N$ vectors
# apart, on average, by entropy. It involves no distance and no $\varepsilon$. Both have the form $C \ln n$,
# because both count how many things fit on a sphere whose volume is exponential in $d$.

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(5.4, 3.3))
    n = np.geomspace(16, 2**20, 60)
    for error, colour in zip((0.1, 0.25, 0.5, 0.99), at.plot.COLOURS, strict=False):
        k = theory.jl_min_dim(n, eps=error)
        ax.plot(n, k, color=colour)
        ax.text(n[-1] * 1.15, k[-1], rf"$\varepsilon = {error}$", color=colour, va="center", fontsize=8)
    ax.plot(n, theory.jl_rule_of_thumb(n), color="black", linestyle=(0, (4, 2)))
    ax.text(n[-1] * 1.15, theory.jl_rule_of_thumb(n[-1]), r"$8 \ln n$", va="center", fontsize=8)
    ax.set(xscale="log", yscale="log", xlim=(16, 2e7), xlabel="vectors, $n$", ylabel="dimensions")
    ax.set_title("The lemma's bound, and the rule of thumb")
    ax.minorticks_off()
    plt.show()

# %% [markdown]
# ## What random projections do (T20)
#
# A bound can be loose, so we measure. We project 512 points with 1000 normal coordinates to $k$ dimensions,
# six times for each $k$, with normal entries, with random signs, and with two thirds zeros (Achlioptas 2003).
# For each projection we keep the largest relative change of a squared distance over all 130 816 pairs.

# %%
projections = at.montecarlo.jl_distortion(
    n=512,
    dim=1000,
    k=[25, 52, 155, 300, 600],
    kind=["gaussian", "sign", "sparse"],
    samples=6,
    rng=20230410,
    progress=False,
)
worst, error = projections.value, projections.standard_error  # (k, kind)
print(projections)

# %% [markdown]
# At $k = 52$, which is $8.33 \ln 512$, the worst pair changes its squared distance by about 110 %: the lemma
# promises nothing there. At $k = 300$, where it promises $\varepsilon = 0.5$ once in 512 trials, the average
# is 0.39. The bound needs about one and a half times the dimensions that the average needs, not six times.
# The kind of matrix makes no visible difference.

# %%
average = worst.mean(axis=1)
assert [f"{each:.2f}" for each in average[[1, 3]]] == ["1.10", "0.39"]
np.testing.assert_allclose(np.hypot.reduce(error, axis=1)[[1, 3]] / 3, [0.02, 0.005], atol=5e-3)
loose = theory.jl_min_dim(512, eps=average[2:]) / [155, 300, 600]
print("dimensions that the lemma asks for, over those that the average needs:", loose.round(2))
assert ((loose > 1.2) & (loose < 1.9)).all()
assert (np.ptp(worst, axis=1) < 5 * np.sqrt(2) * error.max(axis=1)).all()

with at.plot.style():
    ax = at.plot.jl_distortion(projections)
    ax.axvline(8.33 * np.log(512), color="#6E6E6E", linewidth=0.8)
    ax.text(54, 1.75, r"$8.33 \ln n$", color="#6E6E6E", fontsize=8)
    plt.show()

# %% [markdown]
# ## The nearest of n random keys (T20)
#
# Attention asks an easier question than the lemma. It does not compare all pairs; it compares one query with
# $n$ keys, and the wrong keys only have to stay *below* the right one. How near does a wrong key get? The
# cosine $t$ of a fixed direction with a random one has the density $(1 - t^2)^{(d-3)/2}$, and the largest of
# $n$ independent ones is an order statistic:
#
# $$\mathbb E\max_j t_j = \int t\; \mathrm d F(t)^n, \qquad
# 1 - F(t) = \tfrac12 I_{1-t^2}\!\left(\tfrac{d-1}2, \tfrac12\right) .$$
#
# The usual estimate, $\sqrt{1 - n^{-2/(d-1)}}$, approximates the tail by $(1 - t^2)^{(d-1)/2}$ and omits a
# factor. It is 6 to 14 % too high in the range of the table.

# %%
lengths = np.array([512, 4096, 32768, 2**20])
exact, usual = theory.expected_max_cosine(lengths, 64), theory.max_cosine(lengths, 64)
np.testing.assert_allclose(exact[[0, 2]], [0.3706, 0.4887], atol=5e-5)
np.testing.assert_allclose(usual[[0, 2]], [0.4239, 0.5302], atol=5e-5)
assert (np.diff(usual / exact) < 0).all()
np.testing.assert_allclose((usual / exact - 1)[[0, -1]], [0.144, 0.062], atol=5e-4)

nearest = at.montecarlo.max_cosine(lengths[:3], 64, samples=1000, rng=20230411, progress=False)
print(nearest)
assert (abs(nearest.value - exact[:3]) < 5 * nearest.standard_error).all()
assert (usual[:3] - nearest.value > 5 * nearest.standard_error).all()  # the usual estimate is rejected

# %% [markdown]
# ## Why heads of 50 to 64 dimensions do (T21)
#
# Let the right key have the cosine $c$ with the query. It has the largest weight if none of the $n - 1$
# others is nearer: with probability $F(c)^{n-1}$, whatever the scale is. In the usual estimate the wrong keys
# reach $c$ when
#
# $$d - 1 = \frac{2}{-\ln(1 - c^2)}\, \ln n .$$
#
# So this question *does* have the answer "a constant times $\ln n$", and the constant depends on the cosine.
# It is 8 for $c = 0.47$. A key with cosine 0.6 needs half as many dimensions, one with 0.3 needs 21 for every
# unit of $\ln n$.


# %%
def accuracy(n, head_dim, cosine):
    """F(cosine)^(n - 1)."""
    tail = betainc((np.asarray(head_dim) - 1) / 2, 0.5, 1 - cosine**2) / 2
    return np.exp((n - 1) * np.log1p(-tail))


cosine_of_8 = np.sqrt(1 - np.exp(-2 / 8))
np.testing.assert_allclose(cosine_of_8, 0.4703, atol=5e-5)
np.testing.assert_allclose(-2 / np.log(1 - np.array([0.6, 0.3]) ** 2), [4.48, 21.21], atol=5e-3)
np.testing.assert_allclose(theory.max_cosine(512, 1 + round(8 * np.log(512))), cosine_of_8, atol=1e-3)

heads = at.montecarlo.head_dimension(
    [16, 32, 43, 50, 64, 128], n=512, cosine=0.47, samples=4000, rng=20230412, progress=False
)
print(heads)
exact = accuracy(512, heads.axes["head_dim"], 0.47)
np.testing.assert_allclose(heads.exact()["accuracy"], exact, rtol=1e-6)
assert (abs(heads.value - exact) < 5 * np.sqrt(exact * (1 - exact) / 4000) + 1e-3).all()

# %% [markdown]
# At $n = 512$ and cosine 0.47 a head of 50 dimensions finds the right key in 88 % of the rows, one of 64 in
# 98 %, and one of 128 always. In this sense the article's remark on multi-head attention holds: the 768
# dimensions of a BERT layer can be spent on twelve heads of 64. It holds *at a given cosine*, and 0.47 is the
# one that makes the constant 8. At 0.40 the two heads find the key in 39 and 78 % of the rows, and at 0.30 in
# 0 and 2 %.

# %%
np.testing.assert_allclose(accuracy(512, [50, 64], 0.47), [0.88, 0.98], atol=5e-3)
assert accuracy(512, 128, 0.47) > 0.9999
assert accuracy(512, 64, 0.3) < 0.03
assert accuracy(512, 256, 0.3) > 0.99

with at.plot.style():
    figure, ax = plt.subplots(figsize=(5.4, 3.3))
    every_dim = np.arange(4, 257)
    for cosine, colour in zip((0.6, 0.47, 0.4, 0.3), at.plot.COLOURS, strict=False):
        ax.plot(every_dim, accuracy(512, every_dim, cosine), color=colour, label=f"cosine {cosine}")
    ax.plot(heads.axes["head_dim"], heads.value, "o", color=at.plot.COLOURS[1], markerfacecolor="white")
    ax.axvspan(50, 64, color="#EEEEEE", zorder=0)
    ax.set(
        xscale="log", xlabel="head dimension, $d$", ylabel="right key has the largest weight", ylim=(0, 1.02)
    )
    ax.set_title("$n = 512$; points: 4000 rows each; grey: 50 to 64")
    ax.set_xticks([4, 8, 16, 32, 64, 128, 256], ["4", "8", "16", "32", "64", "128", "256"])
    ax.minorticks_off()
    ax.legend()
    plt.show()

# %% [markdown]
# ## The connection: d_n = d log_512 n (T19)
#
# Now the article's step. Suppose that a head of $d$ dimensions suits $n = 512$. At another $n$ it should have
#
# $$d_n = \frac{d}{\ln 512} \ln n = d \log_{512} n$$
#
# dimensions, and $q \cdot k$ should be a sum of $d_n$ terms. It is a sum of $d$. "If each term contributes
# about the same", multiply by $d_n/d = \log_{512} n$: this is the law `log_n`.

# %%
law = at.laws.get("log_n")
for n in lengths:
    ideal = theory.equivalent_head_dim(n, head_dim=64)
    print(f"n = {n:7d}: d_n = {ideal:6.1f}, d_n / d = {ideal / 64:.3f}")
    np.testing.assert_allclose(ideal / 64, law.multiplier(n, 64))

# %% [markdown]
# Do the terms contribute equally? It depends on the key. With $|q| = |k| = \sqrt d$ and the scale
# $1/\sqrt{64}$ left as it is, compare a head of $d_n$ dimensions with one of 64 times $L = d_n/64$:
#
# | | needle (cosine $c$) | other keys: mean | other keys: spread |
# |---|---|---|---|
# | 64 dimensions | $8\,c$ | 0 | $1$ |
# | $d_n$ dimensions | $8\,c\,L$ | 0 | $\sqrt L$ |
# | 64 dimensions, law | $8\,c\,L$ | 0 | $L$ |
#
# For the needle all terms have the same sign, and their sum grows like their number: **the law gives it
# exactly the score that $d_n$ dimensions would.** The terms of a random key have random signs; their sum
# grows like the root of their number. The law amplifies this noise by $L$ where more dimensions amplify it by
# $\sqrt L$.

# %%
n, dim_n = 32768, 107  # 106.7, rounded
factor = dim_n / 64
long_keys = at.montecarlo.sphere((200_000, dim_n), radius=np.sqrt(dim_n), rng=1)
short_keys = at.montecarlo.sphere((200_000, 64), radius=8, rng=2)
ideal_noise = (long_keys[:, 0] * np.sqrt(dim_n) / 8).std()  # q along the first axis
law_noise = (short_keys[:, 0] * 8 / 8 * factor).std()
np.testing.assert_allclose([ideal_noise, law_noise], [np.sqrt(factor), factor], rtol=0.01)

# %% [markdown]
# Two things follow, and both can be computed.
#
# *Weight.* The law is a fair substitute. At $n = 32768$ the weight of a needle with cosine 0.578 falls to
# 0.0019 under the standard scale. With $d_n$ dimensions it would be 0.030, with the law it is 0.017: nine
# times as much as without the law, a little more than half of the ideal.
#
# *Retrieval.* The law has no effect: a factor does not change which score is the largest. Whether the right
# key wins depends on the ratio of signal to noise: $8c$ in a head of 64 with or without the law, $8 c \sqrt
# L$ in one of $d_n$. At cosine 0.45 the head of 64 finds the right key in 71 % of the rows of 4096 keys, in 6
# % of 32768; heads of $d_n$ dimensions stay at 97 % and more.

# %%
big = np.array([512, 4096, 32768, 2**20])
factors = law.multiplier(big, 64)
dims_n = np.round(64 * factors).astype(int)
needle = {
    "standard": theory.needle_weight(big, head_dim=64, cosine=0.578386, beta=1.0),
    "log_512 n": theory.needle_weight(big, head_dim=64, cosine=0.578386, beta=factors),
    "d_n": theory.needle_weight(big, head_dim=dims_n, cosine=0.578386, beta=np.sqrt(dims_n / 64)),
}
np.testing.assert_allclose([values[2] for values in needle.values()], [0.0019, 0.0172, 0.0296], atol=5e-5)
assert (needle["standard"][1:] < needle["log_512 n"][1:]).all()
assert (needle["log_512 n"][1:] < needle["d_n"][1:]).all()
np.testing.assert_allclose(accuracy(big[1:3], 64, 0.45), [0.707, 0.062], atol=5e-4)
assert (accuracy(big[1:], dims_n[1:], 0.45) > 0.97).all()

# Two such heads, with 4000 rows of 4096 keys each.
same = {"n": 4096, "cosine": 0.45, "samples": 4000, "progress": False}
with_law = at.montecarlo.head_dimension(64, law="log_n", rng=3, **same)
with_dims = at.montecarlo.head_dimension(85, law=1 / 8, rng=4, **same)
for seen, dim, beta in ((with_law, 64, 4 / 3), (with_dims, 85, np.sqrt(85 / 64))):
    exact = accuracy(4096, dim, 0.45)
    weight, expected = seen["needle_weight"], theory.needle_weight(4096, head_dim=dim, cosine=0.45, beta=beta)
    print(f"d = {dim}: found {seen.value:.1%}, exact {exact:.1%}", end="; ")
    print(f"weight {weight.value:.4f}, exact {expected:.4f}")
    assert abs(seen.value - exact) < 5 * np.sqrt(exact * (1 - exact) / 4000)
    assert abs(weight.value - expected) < 5 * weight.standard_error

# %%
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.2))
    every_n = np.geomspace(512, 2**20, 40)
    every_factor = law.multiplier(every_n, 64)
    every_dim_n = np.round(64 * every_factor).astype(int)
    for values, colour in zip(needle.values(), at.plot.COLOURS, strict=False):
        left.plot(big, values, marker="o", color=colour)
    left.set(xscale="log", yscale="log", xlabel="keys, $n$", ylabel="weight of the needle")
    left.set_title("Weight: the law stands in for $d_n$")
    left.legend(["$d = 64$", r"$d = 64$, $\log_{512} n$", "$d_n$ dimensions"])
    both = "$d = 64$, with or without the law"
    right.plot(every_n, accuracy(every_n, 64, 0.45), color=at.plot.COLOURS[1], label=both)
    right.plot(
        every_n, accuracy(every_n, every_dim_n, 0.45), color=at.plot.COLOURS[2], label="$d_n$ dimensions"
    )
    right.set(xscale="log", xlabel="keys, $n$", ylabel="right key has the largest weight", ylim=(0, 1.02))
    right.set_title("Retrieval: it does not")
    right.legend(loc="upper right", bbox_to_anchor=(1, 0.85))
    for ax in (left, right):
        ax.minorticks_off()
    plt.show()

# %% [markdown]
# Neither keeps the entropy. At $n = 32768$ the random keys of a head of 64 have 9.91 nats under the standard
# scale, 9.09 under the law, 9.58 in a head of $d_n$ dimensions; at $n = 512$ it was 5.75. Notebook 3 derives
# the law, and the scale that does keep the entropy.

# %%
kept = [
    theory.expected_entropy(32768, 1.0, head_dim=64),
    theory.expected_entropy(32768, law.multiplier(32768, 64), head_dim=64),
    theory.expected_entropy(32768, np.sqrt(107 / 64), head_dim=107),
]
np.testing.assert_allclose(kept, [9.9083, 9.0894, 9.5800], atol=5e-5)
np.testing.assert_allclose(theory.expected_entropy(512, 1.0, head_dim=64), 5.7523, atol=5e-5)

# %% [markdown]
# ## Play with it
#
# How near do the wrong keys come? With `ipywidgets` (part of the extra `notebooks`) sliders set the numbers
# of keys and dimensions.


# %%
def draw(log2_n=9, head_dim=64):
    """Accuracy against the cosine of the right key."""
    cosine = np.linspace(0, 0.95, 200)
    with at.plot.style():
        _, ax = plt.subplots(figsize=(4.6, 2.6))
        ax.plot(cosine, [accuracy(2**log2_n, head_dim, c) for c in cosine], color=at.plot.COLOURS[0])
        ax.axvline(theory.expected_max_cosine(2**log2_n, head_dim), color="#6E6E6E", linewidth=0.8)
        ax.set(xlabel="cosine of the right key", ylabel="found", ylim=(0, 1.02))
        ax.set_title(f"n = {2**log2_n}, d = {head_dim}; line: the nearest wrong key, on average")
        plt.show()


try:
    import ipywidgets
except ImportError:
    draw()  # with ipywidgets there are sliders
else:
    ipywidgets.interact(
        draw,
        log2_n=ipywidgets.IntSlider(9, min=4, max=24, description="log2 n"),
        head_dim=ipywidgets.IntSlider(64, min=4, max=256, description="d"),
    )

# %% [markdown]
# ## What was shown
#
# The lemma is a theorem about the distances of all pairs, and its constant is at least 24, or 13.04 with the
# exact exponent. $8 \ln n$ is an estimate of entropy that happens to be near the dimension at which one query
# tells its key, at cosine 0.47, from $n$ random ones. $d_n/d$ is the right factor for the needle's score but
# too large for the noise: it helps the needle's weight, not retrieval.
#
# ## Exercises
#
# 1. How many dimensions find a key with cosine 0.3 among 4096 in nine rows of ten? Compare with $\ln n$
#    times the constant for that cosine.
# 2. Which factor on the scores gives the *noise* what $d_n$ dimensions would give it? What happens to the
#    needle's score and to its weight?
