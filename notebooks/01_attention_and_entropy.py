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
# # Attention and its entropy
#
# The scale in front of $q \cdot k$ decides over how many keys a query spreads its attention. This notebook
# measures that spread by the entropy of the attention weights. It derives three facts that everything else in
# this project rests on (claims **T3**, **T4** and **T6** of the register). Then it follows 18 heads of a real
# encoder as the text grows from 32 to 512 tokens: under the standard scale $1/\sqrt d$, under $\log_{512}
# n/\sqrt d$ and under $\ln n/\sqrt d$.
#
# Every statement with a number is followed by a cell that asserts it. Logarithms are natural, entropies are
# in nats.
#
# **摘要。** $q \cdot k$ 前的缩放因子决定一个查询把注意力分散到多少个键上，
# 本文用注意力权重的熵来度量这种分散程度。我们推导并逐条验证三个基本事实：
# softmax 的两个极限 (T3)，熵随缩放因子单调下降 (T4)，
# 以及 $H = \mathrm{lse} - \mathbb E_p[s]$ 及其推论 (T6)。
# 然后在真实模型 (all-MiniLM-L6-v2) 的 18 个注意力头上，
# 观察文本从 32 个词元增长到 512 个词元时熵的变化：
# $\log_{512} n$ 只是减缓了熵的增长，并没有使它停止。
#
# | English | 中文 | here |
# |---|---|---|
# | scale | 缩放因子 | the number that multiplies $q \cdot k$ |
# | attention weights | 注意力权重 | $p = \mathrm{softmax}(s)$, one row for each query |
# | entropy | 熵 | $H = -\sum_j p_j \ln p_j$ |
# | effective keys | 有效键数 | $e^H$: the number of equal weights that has the same entropy |
# | entropy invariance | 熵不变性 | $H$ does not depend on the length $n$ |
# | length extrapolation | 长度外推 | use beyond the lengths of training |

# %%
import attnscale as at
import matplotlib.pyplot as plt
import numpy as np

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

rng = np.random.default_rng(20211221)
print(f"attnscale {at.__version__}")

# %% [markdown]
# ## Entropy is lse minus the mean score (T6)
#
# A row of attention has scores $s_j = \lambda\, q \cdot k_j$ and weights $p_j = e^{s_j} / Z$ with $Z = \sum_j
# e^{s_j}$. The kernels already keep $\mathrm{lse} = \ln Z$ to normalise the row. Substitute $\ln p_j = s_j -
# \mathrm{lse}$ in the definition of the entropy:
#
# $$H = -\sum_j p_j \ln p_j = \sum_j p_j\,(\mathrm{lse} - s_j) = \mathrm{lse} - \mathbb E_p[s].$$
#
# So the entropy costs one more running sum, $\sum_j e^{s_j} s_j$, and no matrix of weights.
# `attention_statistics` returns it from the same pass over the keys.

# %%
query, key = rng.standard_normal((2, 3, 200, 64))  # (heads, n, head_dim)
rows = at.attention_statistics(query, key, statistics=("lse", "entropy", "mean_score"))

scores = np.einsum("hqd,hkd->hqk", query, key) / np.sqrt(64)
weights = np.exp(scores - scores.max(-1, keepdims=True))
weights /= weights.sum(-1, keepdims=True)
by_definition = -(weights * np.log(weights)).sum(-1)

np.testing.assert_allclose(rows.entropy, by_definition, atol=1e-12)
np.testing.assert_allclose(rows.entropy, rows.lse - rows.mean_score, atol=1e-12)

# %% [markdown]
# Both terms can be merged, so the entropy of a long row follows from its pieces. If the pieces $A$ and $B$ of
# the keys have $(\mathrm{lse}_A, m_A)$ and $(\mathrm{lse}_B, m_B)$, where $m$ is the mean score, the whole
# row has
#
# $$\mathrm{lse} = \ln\left(e^{\mathrm{lse}_A} + e^{\mathrm{lse}_B}\right), \qquad
# m = w\, m_A + (1 - w)\, m_B, \qquad w = e^{\mathrm{lse}_A - \mathrm{lse}}.$$
#
# `merge_states` does this; outputs merge like mean scores.

# %%
value = rng.standard_normal(key.shape)
pieces = [at.attention_state(query, key[:, cut], value[:, cut]) for cut in (slice(0, 77), slice(77, 200))]
np.testing.assert_allclose(at.merge_states(pieces).entropy, by_definition, atol=1e-12)

# %% [markdown]
# ## From uniform to one-hot (T3)
#
# Write $s_j = a x_j$ with a fixed $x$ and let $a$, the scale, vary. At $a = 0$ all weights are $1/n$. As $a
# \to \infty$ all weight goes to the largest $x_j$; keys that tie for it share it equally. The largest term of
# the sum is a lower bound of the sum, and $n$ times that term an upper bound:
#
# $$e^{a \max x} \le \sum_j e^{a x_j} \le n\, e^{a \max x}
# \quad\Longrightarrow\quad
# \max x \;\le\; \frac{\mathrm{lse}(a x)}{a} \;\le\; \max x + \frac{\ln n}{a}.$$
#
# To run this through the kernels, give each key one channel that holds $x_j$, and let the query be 1: then
# $q \cdot k_j = x_j$ and `entropy_curve` evaluates all $a$ in one pass.

# %%
x = np.array([-1.2, -0.4, 0.1, 0.9, 1.3, 1.3])  # two keys tie for the largest
n = x.size
a = np.geomspace(1e-3, 60, 400)
curve = at.entropy_curve(np.ones((1, 1)), x[:, None], a)
lse_over_a = curve.lse[0] / a

assert (x.max() <= lse_over_a + 1e-12).all()
assert (lse_over_a <= x.max() + np.log(n) / a + 1e-12).all()


def softmax(scores):
    """Weights of a row."""
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


np.testing.assert_allclose(softmax(a[-1] * x), [0, 0, 0, 0, 0.5, 0.5], atol=1e-9)  # ties share
np.testing.assert_allclose(softmax(a[0] * x), np.full(n, 1 / n), atol=5e-4)
np.testing.assert_allclose(curve.entropy[0, [0, -1]], [np.log(6), np.log(2)], atol=1e-6)

# %%
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.1))
    p = softmax(a[:, None] * x)
    names = [f"{each:g}" for each in x[:-2]] + ["1.3, twice", None]
    for j, name in enumerate(names):
        left.plot(a, p[:, j], color=at.plot.COLOURS[min(j, 4)], linewidth=1.6, label=name)
    left.legend(title="$x_j$", reverse=True, loc="upper left", title_fontsize=8)
    left.set(xscale="log", xlabel="$a$", ylabel="weight of a key")
    left.set_title("Weights softmax$(a x)$ of six keys")
    right.fill_between(a, x.max(), x.max() + np.log(n) / a, color="#E8EFF5", linewidth=0)
    right.plot(a, lse_over_a, color=at.plot.COLOURS[0])
    right.axhline(x.max(), color="#6E6E6E", linestyle=(0, (4, 2)), linewidth=1.2)
    right.text(0.11, x.max() - 0.12, r"$\max x$", color="#6E6E6E", va="top", fontsize=8)
    right.text(1.3, 3.4, r"$\mathrm{lse}(a x)/a$", color=at.plot.COLOURS[0], fontsize=8)
    right.text(0.75, 6.2, "between the bounds", color="#6E88A0", fontsize=8)
    right.set(xscale="log", xlim=(0.1, 60), ylim=(0, 8), xlabel="$a$", title="A smooth maximum")
    for ax in (left, right):
        ax.minorticks_off()
    plt.show()

# %% [markdown]
# Multiplying the scores is the same as taking the weights to a power. If $p$ are the weights of $x$, those of
# $a x$ are
#
# $$\mathrm{softmax}(a x)_j = \frac{p_j^a}{\sum_i p_i^a}, \qquad
#   \frac{\mathrm{softmax}(a x)_j}{\mathrm{softmax}(a x)_k} = \left(\frac{p_j}{p_k}\right)^a,$$
#
# since the normaliser of $p$ cancels. With $a > 1$ every ratio of a small weight to a large one shrinks, the
# smallest ratios most, and the sum is normalised to 1 again. An article of April 2023, on the
# Johnson-Lindenstrauss lemma, explains a factor such as $\log_{512} n$ in this way. What matters is the
# *ratio*, not that weights are below 1: the largest weight is below 1 too, and grows.

# %%
p = softmax(x)
for power in (0.3, 1.5, 4.0):
    np.testing.assert_allclose(p**power / (p**power).sum(), softmax(power * x), rtol=1e-13)
ratios = softmax(1.5 * x) / p
assert (np.diff(ratios[:-1]) > 0).all()  # smaller weights lose more
assert ratios[0] < 0.4
assert p[-1] < 1 < ratios[-1]  # below 1, and it gains
print("weights", p.round(3), "  to the power 1.5", softmax(1.5 * x).round(3))

# %% [markdown]
# ## Entropy falls with the scale (T4)
#
# Differentiate $H(a) = \mathrm{lse}(a x) - a\, \mathbb E_p[x]$. The derivative of the log-sum-exp is the
# mean, $\mathrm{d}\,\mathrm{lse}/\mathrm{d}a = \mathbb E_p[x]$, and the derivative of the mean is the
# variance, $\mathrm{d}\,\mathbb E_p[x]/\mathrm{d}a = \mathrm{Var}_p(x)$. The means cancel:
#
# $$\frac{\mathrm dH}{\mathrm da} = \mathbb E_p[x] - \mathbb E_p[x] - a\, \mathrm{Var}_p(x)
# = -a\, \mathrm{Var}_p(x) \le 0.$$
#
# A larger scale never flattens a row, whatever the keys are; the variance under the current weights says
# how fast it sharpens. `entropy_curve` returns that variance, so the slope needs no finite differences.
# Here they only check it.

# %%
x = rng.standard_normal(512)
a = np.linspace(0, 6, 1201)
curve = at.entropy_curve(np.ones((1, 1)), x[:, None], a)
entropy, variance = curve.entropy[0], curve.variance[0]

slope = -a * variance
differences = (entropy[2:] - entropy[:-2]) / (a[2:] - a[:-2])
np.testing.assert_allclose(slope[1:-1], differences, atol=2e-5)  # the error of central differences
assert (slope <= 0).all()
assert (np.diff(entropy) < 0).all()

# %% [markdown]
# ## The deficit is an integral, and it has a bound (T6)
#
# Integrate the slope from 0, where $H = \ln n$:
#
# $$\ln n - H(a) = \int_0^a t\, \mathrm{Var}_{p_t}(x)\, \mathrm dt.$$
#
# The left side is the entropy that a row lacks compared with equal weights: its *deficit*. If all $x_j$ lie
# in a range of width $R$, no distribution on them has a variance above $R^2/4$ (half the weight at either
# end), so the integral is at most $a^2 R^2 / 8$:
#
# $$H(a) \;\ge\; \ln n - \frac{(a R)^2}{8}.$$
#
# With bounded scores the entropy must therefore grow like $\ln n$: this is dilution. Only a scale, or a range
# of scores, that grows with $n$ can prevent it.

# %%
deficit = np.log(x.size) - entropy
step = a[1] - a[0]
integrand = a * variance
integral = np.concatenate([[0.0], np.cumsum((integrand[1:] + integrand[:-1]) / 2 * step)])  # trapezoids
np.testing.assert_allclose(deficit, integral, atol=2e-5)

spread = x.max() - x.min()
bound = (a * spread) ** 2 / 8
assert (deficit <= bound + 1e-12).all()
two_ends = at.entropy_curve(np.ones((1, 1)), np.repeat([-0.5, 0.5], 256)[:, None], [0.01])
ratio = (np.log(512) - two_ends.entropy[0, 0]) / (0.01**2 / 8)
assert 0.9999 < ratio <= 1  # half the keys at either end: the bound is sharp

# %%
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.1))
    left.plot(a, entropy, color=at.plot.COLOURS[0])
    for at_a in (0.5, 1.5, 3.0):
        i = int(np.searchsorted(a, at_a))
        tangent = np.array([-0.45, 0.45])
        left.plot(a[i] + tangent, entropy[i] + slope[i] * tangent, color=at.plot.COLOURS[1], linewidth=2.4)
    left.text(2.05, 4.75, r"slope $-a\,\mathrm{Var}_p(x)$", color=at.plot.COLOURS[1], fontsize=8)
    left.axhline(np.log(x.size), color="#6E6E6E", linestyle=(0, (4, 2)), linewidth=1.2)
    left.text(6, np.log(x.size) + 0.1, r"$\ln n$", color="#6E6E6E", ha="right", fontsize=8)
    left.set(xlabel="$a$", ylabel="entropy (nats)", ylim=(0, 6.9), title="512 normal scores: entropy falls")
    right.fill_between(a, 0, integrand, color="#E8EFF5", linewidth=0)
    right.plot(a, integrand, color="#6E88A0", linewidth=1.2)
    right.plot(a, deficit, color=at.plot.COLOURS[0])
    right.plot(a, bound, color=at.plot.COLOURS[1], linestyle=(0, (4, 2)))
    right.text(3.05, 3.3, r"$\ln n - H$ = area", color=at.plot.COLOURS[0], fontsize=8)
    right.text(1.35, 5.6, r"$(aR)^2/8$", color=at.plot.COLOURS[1], fontsize=8)
    right.text(2.2, 0.35, r"$t\,\mathrm{Var}_{p_t}(x)$", color="#6E88A0", fontsize=8)
    right.set(xlabel="$a$", ylabel="nats", ylim=(0, 6.9), title="The deficit, its integral and its bound")
    plt.show()

# %% [markdown]
# ## Real heads
#
# The package ships queries and keys of all-MiniLM-L6-v2 (head dimension 32) reading 512 tokens of the
# Python language reference: heads 0 to 5 of the layers 0, 2 and 5. For a prefix length $n$ we let the first
# $n$ queries see the first $n$ keys and average the entropy over these queries.
#
# One caveat: the model reads in both directions, so beyond layer 0 the vectors of a prefix depend on the
# whole text. In layer 0 queries and keys depend only on their own token and position. We look at each layer
# below.

# %%
data = at.datasets.minilm_qk()
n_heads, n_tokens, head_dim = data.query.shape
heads = [f"L{layer} H{head}" for layer, head in zip(data.layers, data.heads, strict=True)]
print(" ".join(data.tokens[:40]), "...")

lengths = [32, 64, 128, 256, 512]
entropy = {
    law: np.array(
        [at.attention_entropy(data.query[:, :n], data.key[:, :n], scale=law).mean(-1) for n in lengths],
        dtype=float,
    )
    for law in ("standard", "log_n", "natural_log_n")
}  # each (lengths, heads)

assert all((values < np.log(lengths)[:, None]).all() for values in entropy.values())

# %%
with at.plot.style():
    ax = at.plot.entropy_vs_length(entropy, lengths)
    ax.set_title("18 heads of all-MiniLM-L6-v2 (shade: middle half)")
    plt.show()

mean = {law: values.mean(1) for law, values in entropy.items()}
print("n              ", *(f"{n:6d}" for n in lengths))
for law, values in mean.items():
    print(f"{law:15}", *(f"{value:6.3f}" for value in values))

# %% [markdown]
# Results, and their limits:
#
# - Under $1/\sqrt d$ the mean entropy grows by 0.52 nat with the first doubling and by 0.64 nat with the
#   last. Equal weights would add $\ln 2 = 0.69$. Under the standard scale the growth cannot stay below that
#   for long: the deficit of rows with bounded scores is bounded.
# - $\log_{512} n$ is at most 1 up to $n = 512$: in this range the law *flattens short rows*, and it meets the
#   standard scale at 512. Entropy grows by 0.35 to 0.41 nat a doubling: slower, but not invariant.
# - $\ln n$ keeps the mean entropy nearly constant, between 0.69 and 0.56 nat; as $e$ to the mean entropy,
#   that is two effective keys or fewer. The mean of $e^H$ over the rows falls from 2.73 to 2.48, and 7 heads
#   at 32 tokens, 5 at 512, have a mean entropy above $\ln 2$. Nearly constant does not mean useful: these
#   heads were trained at $1/\sqrt d$, and [notebook 3](03_entropy_invariance.ipynb) shows them saturated.
#
# This model reads at most 512 tokens, so the laws are not tested beyond the length at which they are
# normalised.

# %%
growth = {law: np.diff(values) for law, values in mean.items()}
np.testing.assert_allclose(growth["standard"][[0, -1]], [0.52, 0.64], atol=5e-3)
assert (np.diff(growth["standard"]) > -0.03).all()
assert (growth["standard"] < np.log(2)).all()
assert 0.34 < growth["log_n"].min() < growth["log_n"].max() < 0.42
assert (growth["log_n"] < growth["standard"]).all()
assert (mean["log_n"][:-1] > mean["standard"][:-1]).all()
np.testing.assert_allclose(mean["log_n"][-1], mean["standard"][-1], atol=1e-6)
assert (np.exp(mean["natural_log_n"]) < 2).all()
np.testing.assert_allclose(mean["natural_log_n"][[0, -1]], [0.69, 0.56], atol=5e-3)
keys = [
    np.exp(at.attention_entropy(data.query[:, :n], data.key[:, :n], scale="natural_log_n").astype(float))
    for n in (32, 512)
]
np.testing.assert_allclose([each.mean() for each in keys], [2.73, 2.48], atol=5e-3)
assert [(entropy["natural_log_n"][i] > np.log(2)).sum() for i in (0, -1)] == [7, 5]

# %% [markdown]
# The order of the laws is the same in every layer, including layer 0, where a prefix depends on nothing after
# it.

# %%
doublings = np.log2(lengths[-1] / lengths[0])
per_doubling = {law: (values[-1] - values[0]) / doublings for law, values in entropy.items()}
print("nat a doubling, mean over the heads of a layer")
for layer in np.unique(data.layers):
    growth_here = {law: values[data.layers == layer].mean() for law, values in per_doubling.items()}
    print(f"layer {layer}: ", "   ".join(f"{law} {value:+.2f}" for law, value in growth_here.items()))
    assert growth_here["natural_log_n"] < growth_here["log_n"] < growth_here["standard"]

# %% [markdown]
# The entropy of layer 5 grows by *more* than $\ln 2$ a doubling, which equal weights cannot do. Its short
# prefixes are sharper than their length explains, because the beginning of a text is special. `[CLS]` alone
# takes 23 % of the weight of these heads at $n = 64$ and 7 % at $n = 512$. The same number of tokens from
# further on in the text, without `[CLS]`, starts flatter and grows by less than $\ln 2$.

# %%
last = data.layers == 5


def weights_of(q, k):
    """Attention weights at the standard scale, materialised."""
    return softmax(np.einsum("hqd,hkd->hqk", q, k, dtype=float) / np.sqrt(head_dim))


cls_share = [weights_of(data.query[last, :n], data.key[last, :n])[:, :, 0].mean() for n in (64, 512)]
print(f"weight on [CLS] in layer 5: {cls_share[0]:.0%} at n = 64, {cls_share[1]:.0%} at n = 512")
np.testing.assert_allclose(cls_share, [0.231, 0.071], atol=2e-3)

for start in (0, 64, 256):
    window = [slice(start, start + n) for n in (32, 64)]
    short, long = (at.attention_entropy(data.query[last, cut], data.key[last, cut]).mean() for cut in window)
    print(f"tokens from {start:3d} on: {short:.2f} nat at n = 32, {long - short:+.2f} at n = 64")
    assert (long - short > np.log(2)) == (start == 0)

# %% [markdown]
# ## No two heads are alike
#
# The mean hides the heads. At 512 tokens and the standard scale, one head of layer 0 attends to hardly more
# than one key, others of the same layer to more than 300. A law that multiplies all heads by one factor
# moves them by different amounts: by T4, a head moves in proportion to the variance of its scores under its
# own weights.

# %%
with at.plot.style():
    ends = {f"n = {n}": entropy["standard"][lengths.index(n)] for n in (64, 512)}
    ax = at.plot.entropy_by_head(ends, heads, n_keys=n_tokens)
    plt.show()

effective = np.exp(entropy["standard"][-1])
least, most = (f"{effective[i]:.1f} ({heads[i]})" for i in (effective.argmin(), effective.argmax()))
print(f"effective keys at n = 512: {least} to {most}")
assert effective.min() < 1.3
assert effective.max() > 300

# %% [markdown]
# The key a head looks at: `argmax` is the key with the largest weight. The sharpest head looks at the token
# before its own for four queries in five. Another looks mostly at `[CLS]`. A flat head has a top key too,
# with little weight on it.

# %%
rows = at.attention_statistics(data.query, data.key, statistics=("argmax", "max_weight"))
before = (rows.argmax == np.arange(n_tokens) - 1).mean(-1)
resting = (rows.argmax == 0).mean(-1)
print("head    keys  top key: one before   [CLS]   mean top weight")
for head in (int(effective.argmin()), int(resting[:12].argmax()), int(effective.argmax())):
    shares = f"{before[head]:19.0%}  {resting[head]:6.0%}"
    print(f"{heads[head]}  {effective[head]:6.1f}  {shares}   {rows.max_weight[head].mean():.2f}")
assert before[effective.argmin()] > 0.75
assert resting[heads.index("L2 H5")] > 0.95
assert rows.max_weight[effective.argmax()].mean() < 0.03

# %% [markdown]
# ## One pass, every scale
#
# `entropy_curve` gives the entropy at many multiples $\beta$ of the standard scale and computes the scores
# only once. Each line is one head; $\beta = 1$ is the model as trained. A horizontal line at 10 effective
# keys crosses the heads at very different $\beta$. An article asks whether each head should have a scale of
# its own. Training has already given each head one: a factor of the scale is a factor of the head's $W_q$,
# since $(a W_q x) \cdot k = a\,(W_q x \cdot k)$, so a learned scale adds no new function. With normalised
# queries and keys (`qk_norm=`) it does, because their length can no longer act as a scale.

# %%
beta = np.geomspace(0.1, 10, 41)
curve = at.entropy_curve(data.query, data.key, beta / np.sqrt(head_dim))
by_head = curve.entropy.mean(1, dtype=float)  # (heads, scales)
assert (np.diff(by_head, axis=-1) < 1e-6).all()  # T4 for every head
trained = int(np.argmin(abs(np.log(beta))))
np.testing.assert_allclose(by_head[:, trained], entropy["standard"][-1], atol=2e-6)

with at.plot.style():
    figure, ax = plt.subplots(figsize=(5.4, 3.4))
    for layer, colour in zip(np.unique(data.layers), at.plot.COLOURS, strict=False):
        lines = ax.plot(beta, np.exp(by_head[data.layers == layer]).T, color=colour, linewidth=1.1)
        lines[0].set_label(f"layer {layer}")
    ax.axvline(1, color="#6E6E6E", linestyle=(0, (4, 2)), linewidth=1.2)
    ax.axhline(10, color="#6E6E6E", linewidth=0.6)
    ax.text(0.3, 11, "10 effective keys", color="#6E6E6E", fontsize=8)
    ax.set(xscale="log", yscale="log", ylim=(0.9, 600))
    ax.set(xlabel=r"$\beta$ = scale $\cdot\sqrt{d}$", ylabel="effective keys, $e^H$")
    ax.set_title("Each head against its scale, $n = 512$")
    ax.set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    ax.set_yticks([1, 10, 100, 512], ["1", "10", "100", "512"])
    ax.minorticks_off()
    ax.legend()
    plt.show()

# %%
reached = [np.interp(-np.log(10), -row, np.log(beta)) for row in by_head if row[0] > np.log(10) > row[-1]]
low, high = np.exp([min(reached), max(reached)])
print(f"10 effective keys: beta from {low:.2f} to {high:.2f} over {len(reached)} heads")
assert [f"{each:.2f}" for each in (low, high)] == ["0.24", "5.01"]

doubled = at.attention_weights(2 * data.query, data.key)  # W_q times 2 ...
np.testing.assert_allclose(doubled, at.attention_weights(data.query, data.key, scale=2 / np.sqrt(head_dim)))
unit = at.attention_weights(2 * data.query, data.key, qk_norm="l2")  # ... which normalisation removes
np.testing.assert_allclose(unit, at.attention_weights(data.query, data.key, qk_norm="l2"), atol=1e-6)

# %% [markdown]
# ## A causal model, to 2048 tokens
#
# The 18 heads belong to an encoder: each query sees the whole text. In a causal model query $i$ sees the keys
# up to itself, so its largest possible entropy, $\ln(i + 1)$, grows along the text. The second data set of
# the package has 8 heads of a small causal transformer on 2048 tokens of Python source.

# %%
causal = at.datasets.causal_qk()
rows = at.attention_entropy(causal.query, causal.key, is_causal=True).astype(float)
visible = np.arange(1, 2049)
assert (rows <= np.log(visible) + 1e-5).all()
mean = rows[:, 1024:].mean(-1)
print("mean of the last 1024 rows:", mean.round(2), "of", np.log(visible[1024:]).mean().round(2))
np.testing.assert_allclose([mean.min(), mean.max()], [2.723, 6.153], atol=0.01)
assert (mean < np.log(visible[1024:]).mean() - 1).all()
with at.plot.style():
    _, ax = plt.subplots(figsize=(4.6, 3.2))
    smooth = np.ones(65) / 65
    for layer, colour in zip(range(4), at.plot.COLOURS, strict=False):
        for row in rows[causal.layers == layer]:
            ax.plot(visible[32:-32], np.convolve(row, smooth, "valid"), color=colour, linewidth=1)
        ax.plot([], [], color=colour, label=f"layer {layer}")
    ax.plot(visible, np.log(visible), color="black", linestyle=(0, (4, 2)), label="equal weights")
    ax.set(xscale="log", xlim=(32, 2048), xlabel="keys that the query sees", ylabel="entropy (nats)")
    ax.set_title("8 causal heads, running mean over 65 rows")
    ax.legend()
    plt.show()

# %% [markdown]
# ## Play with it
#
# The row of 512 normal scores again. With `ipywidgets` (part of the extra `notebooks`) a slider sets the
# scale.

# %%
sorted_x = np.sort(x)[::-1]


def draw(scale=1.0):
    """Sorted weights at one scale."""
    p = softmax(scale * sorted_x)
    with at.plot.style():
        _, ax = plt.subplots(figsize=(4.6, 2.6))
        ax.plot(np.arange(1, 513), p, color=at.plot.COLOURS[0])
        entropy_here = -(p * np.log(p)).sum()
        ax.set(xscale="log", xlabel="key, by weight", ylabel="weight", ylim=(0, None))
        ax.set_title(f"H = {entropy_here:.2f} nat, {np.exp(entropy_here):.1f} effective keys")
        plt.show()


try:
    import ipywidgets
except ImportError:
    draw()  # with ipywidgets there are sliders
else:
    ipywidgets.interact(draw, scale=ipywidgets.FloatSlider(1.0, min=0.0, max=6.0, step=0.1, description="a"))

# %% [markdown]
# ## What was shown
#
# - Entropy is $\mathrm{lse}$ minus the mean score: one more sum in the same pass. The entropies of the pieces
#   of a row merge exactly (T6).
# - As the scale grows from 0, a row goes from equal weights to its largest score. Its entropy falls all the
#   way, with slope $-a\,\mathrm{Var}_p(x)$ (T3, T4), and with scores in a bounded range it grows with $\ln n$
#   at any fixed scale.
# - The mean of 18 real heads grows by 0.52 nat with the first doubling of the text and by 0.64 with the last
#   under $1/\sqrt d$, by less under $\log_{512} n$. It hardly changes under $\ln n$, at about two effective
#   keys.
# - Heads differ more than laws do: from one effective key to more than 300 at the same scale.
#
# ## Exercises
#
# 1. Give every head the scale at which it has 10 effective keys at $n = 512$, with `at.solve_scale` on its
#    mean entropy or on the curves of the last figure. How much of the spread over the heads remains at $n =
#    64$?
# 2. Repeat the table of growth for the tokens from 256 on. Does layer 5 still grow by more than $\ln 2$ a
#    doubling?
