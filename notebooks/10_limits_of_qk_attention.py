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
# # The limits of QK attention
#
# An article of April 2022 asks what a score $x^\top Q^\top K y$ cannot express, and changes it step by step:
# $f_1$ is the dot product, $f_4$ has a best key, and is the score of "kattention" (the notes say $f_5$, the
# case $Q = K$). This notebook computes each step (claims **T28** to **T33**) on random vectors. Most of it is
# right, with four corrections:
#
# - "the normalising constant is finite" and "some directions of $y$ are free" exclude each other;
# - a rotary score can select the next token to the right, but only for one content at a time;
# - the norm of the Jacobian is not a function of the attention weight alone;
# - kattention can find the neighbour of every token, but in float32 only up to some thousand positions.
#
# **摘要。** 2022 年的一篇文章讨论了点积注意力 $x^\top Q^\top K y$ 的局限，并逐步修改打分函数：
# $f_1$ 为点积，$f_4$ 具有有限的极大值点，以 $f_4$ 为打分函数的注意力即 kattention
# (笔记写作 $f_5$，即 $Q = K$ 的情形)。
# 本文逐一验证这些步骤：kattention 等价于高斯 (RBF) 核，可以作为每个键的附加偏置在精确注意力内核上计算；
# "标准化常数有界" 与 "沿 $K$ 的核不变" 不能同时成立；旋转位置编码的分数随距离振荡衰减，
# 而 "右边第一个" 可以由偏置 $b$ 表示；自注意力雅可比矩阵的范数有封闭形式，但它并不仅由注意力权重决定。
#
# | English | 中文 | here |
# |---|---|---|
# | score function | 打分函数 | $f(x, y)$, large where $y$ answers $x$ |
# | normalising constant | 标准化常数 | $Z = \int e^{f(x, y)}\,\mathrm dy$ |
# | kernel (null space) | 核，零空间 | the $y$ with $Ky = 0$ |
# | radial basis function | 径向基函数 | $e^{-\lvert p - u\rvert^2/2}$ |
# | rotary position embedding | 旋转位置编码 (RoPE) | turns pairs of channels by position times frequency |

# %%
import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from attnscale import theory
from attnscale.variants import score_functions as sf
from scipy import stats
from scipy.special import logsumexp

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

rng = np.random.default_rng(20220427)

# %% [markdown]
# ## Six score functions (T28)
#
# $x$ asks, $y$ answers, $Q$ and $K$ map both to a space of relations:
#
# $$\begin{aligned}
# f_1 &= x^\top Q^\top K y, & f_2 &= f_1 - \tfrac12 \lvert y\rvert^2, \\
# f_3 &= f_1 - \tfrac12 \lvert Ky\rvert^2, & f_4 &= f_3 + b^\top K y, \\
# f_5 &= f_4 \text{ with } Q = K, & f_6 &= -\tfrac12 \lvert Qx - Ky\rvert^2 + b^\top K y + c^\top Q x.
# \end{aligned}$$
#
# $f_1$ has no best key. The best key of $f_2$ is $y = K^\top Q x$, but every change of $y$ changes the score.
# $f_3$ does not depend on the part of $y$ that $K$ maps to 0, and its best keys are those with $Ky = Qx$.
# $f_4$ moves them to $Ky = Qx + b$, so that with $Q = K$ the best key is no longer $x$ itself. $f_6$ treats
# both sides alike, and equals $f_4$ plus a term of $x$.

# %%
E, D = 6, 4
x, y = rng.standard_normal((5, E)), rng.standard_normal((7, E))
Q, K = rng.standard_normal((2, D, E))
b, c = rng.standard_normal((2, D))
np.testing.assert_allclose(sf.f1(x, 3 * y, Q, K), 3 * sf.f1(x, y, Q, K))  # linear in the key

arguments = {"f2": (Q, K), "f3": (Q, K), "f4": (Q, K, b), "f5": (K, b), "f6": (Q, K, b, c)}
for name, rest in arguments.items():
    q, step = (K if name == "f5" else Q), (None if name < "f4" else b)
    best = sf.peak(name, x, q, K, step)
    if name != "f2":
        np.testing.assert_allclose(best @ K.T, x @ q.T + (0 if step is None else b), atol=1e-12)
    score = getattr(sf, name)
    away = best + rng.standard_normal((200, *best.shape))
    assert (np.diagonal(score(x, away, *rest), axis1=1, axis2=2) < np.diagonal(score(x, best, *rest))).all()

unseen = rng.standard_normal((7, E - D)) @ np.linalg.svd(K)[2][D:]  # in directions that K maps to 0
np.testing.assert_allclose(sf.f3(x, y + unseen, Q, K), sf.f3(x, y, Q, K), atol=1e-12)
np.testing.assert_allclose(sf.f6(x, y, Q, K, b, c), sf.f6(y, x, K, Q, c, b).T)
rows = sf.f6(x, y, Q, K, b, c) - sf.f4(x, y, Q, K, b)
np.testing.assert_allclose(rows, np.broadcast_to(rows[:, :1], rows.shape), atol=1e-12)  # a term of x

# %% [markdown]
# In the figure there is one $x$, keys $y$ lie in a plane, and $K$ keeps the horizontal axis only. Darker
# means a larger $e^{f}$; the dot is the shortest best key.

# %%
axis = np.linspace(-3, 3, 121)
plane = np.stack(np.meshgrid(axis, axis), axis=-1)
one = np.array([[1.0, 0.0]])  # K = Q: the first channel
point, step = np.array([[0.8, 0.4]]), np.array([1.2])
fields = {
    "$f_1$: no best key": sf.f1(point, plane.reshape(-1, 2), one, one),
    "$f_2$: one point": sf.f2(point, plane.reshape(-1, 2), one, one),
    "$f_3$: a line, at $x$": sf.f3(point, plane.reshape(-1, 2), one, one),
    "$f_4$: a step $b$ further": sf.f4(point, plane.reshape(-1, 2), one, one, step),
}
peaks = [
    None,
    sf.peak("f2", point, one, one),
    sf.peak("f3", point, one, one),
    sf.peak("f4", point, one, one, step),
]
with at.plot.style():
    figure, axes = plt.subplots(1, 4, figsize=(9.2, 2.5), sharey=True)
    for ax, (title, field), best in zip(axes, fields.items(), peaks, strict=True):
        ax.grid(visible=False)
        ax.contourf(axis, axis, np.exp(field - field.max()).reshape(121, 121), levels=12, cmap="Blues")
        ax.plot(*point[0], marker="x", color=at.plot.COLOURS[1])
        if best is not None:
            ax.plot(*best[0], marker="o", color=at.plot.COLOURS[1])
        ax.set(title=title, xlabel="$y_1$", aspect="equal", xticks=(-2, 0, 2), yticks=(-2, 0, 2))
    axes[0].set_ylabel("$y_2$")
    plt.show()

# %% [markdown]
# ## kattention is a Gaussian kernel (T29)
#
# The attention of $f_4$ has the score
#
# $$E_{ij} = (Qx_i + b - \tfrac12 Kx_j)\cdot Kx_j
#   = -\tfrac12 \lvert Qx_i + b - Kx_j\rvert^2 + \tfrac12 \lvert Qx_i + b\rvert^2.$$
#
# Softmax ignores the last term: the weights are those of a Gaussian kernel around $Qx_i + b$. With one more
# channel, $(q + b,\, 1)\cdot(k,\, -\lvert k\rvert^2/2)$, it runs on the kernel of exact attention, with its
# masks and statistics, and without an $n \times n$ matrix.

# %%
x = rng.standard_normal((40, E))
beta = 0.7
distance = ((x @ Q.T + b)[:, None] - (x @ K.T)[None]) ** 2
weights = np.exp(-0.5 * beta * distance.sum(-1))
weights /= weights.sum(-1, keepdims=True)
np.testing.assert_allclose(at.variants.kattention(x, Q, K, b, beta), weights @ x, atol=1e-12)

rows = at.variants.kattention_statistics(x @ Q.T, x @ K.T, bias=b, scale=beta, statistics=("entropy",))
np.testing.assert_allclose(rows.entropy, -(weights * np.log(weights)).sum(-1), atol=1e-12)

# %% [markdown]
# This bears on the article's guess about layer normalisation: under $f_1$ a long key that points roughly in
# the query's direction takes the whole row, under $f_4$ it gets nothing. If all keys have one length, $f_3$
# and $f_1$ agree.

# %%
query, keys = rng.standard_normal((1, 1, 16)), rng.standard_normal((1, 64, 16))
along, across = query[0, 0] / np.linalg.norm(query), rng.standard_normal(16)
across -= (across @ along) * along
direction = 0.5 * along + np.sqrt(0.75) * across / np.linalg.norm(across)  # a cosine of 0.5 with the query
marker = (np.arange(64) == 5)[None, :, None].astype(float)  # the value that shows the weight of key 5
for length in (1, 4, 200):
    keys[0, 5] = length * direction
    dot, gauss = (f(query, keys, marker).item() for f in (at.attention, at.variants.kattention_heads))
    print(f"a key of length {length:3} among 64: weight {dot:.3f} by dot products, {gauss:.3f} by kattention")
assert dot > 0.999
assert gauss < 1e-6
unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
np.testing.assert_allclose(
    at.variants.kattention_heads(query, unit, keys), at.attention(query, unit, keys), atol=1e-12
)

# %% [markdown]
# ## "The constant is finite, and $y$ is free": not both (T30)
#
# The article lists two properties of $f_3$: $Z = \int_{\mathbb R^E} e^{f(x,y)}\,\mathrm dy \neq \infty$, and
# $f(x, y + \delta) = f(x, y)$ for $\delta$ in the kernel of $K$. But a positive function that does not change
# along parallel lines has no finite integral. With $p = Qx + b$ and $P$ the projection onto the range of $K$,
#
# $$\int_{\mathbb R^E} e^{f_4}\,\mathrm dy = (2\pi)^{E/2} \det(K^\top K)^{-1/2} e^{\lvert Pp\rvert^2/2}
#   \text{ if } \ker K = \{0\}, \text{ else } \infty; \qquad
#   \int_{\mathbb R^D} e^{f_4}\,\mathrm du = (2\pi)^{D/2} e^{\lvert p\rvert^2/2},\ u = Ky.$$
#
# Below, both are integrated over growing boxes.

# %%
p = np.array([0.6, -0.3])
regular, singular = np.array([[1.0, 0.4], [0.0, 0.8]]), np.array([[1.0, 0.4], [0.5, 0.2]])  # of rank 2 and 1


def log_integral(score, K, reach, points=601):
    """ln of the integral of exp(score) over a square of half-width reach; Q is the identity."""
    axis = np.linspace(-reach, reach, points)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    return logsumexp(score(p[None], grid, np.eye(2), K)) + 2 * np.log(axis[1] - axis[0])


reaches = np.array([2.0, 4.0, 8.0, 16.0, 32.0])
found = {
    name: np.array([log_integral(score, K, reach) for reach in reaches])
    for name, score, K in (("f1", sf.f1, regular), ("kernel", sf.f3, singular), ("none", sf.f3, regular))
}
titles = {"f1": "f1", "kernel": "f3, K with a kernel", "none": "f3, K without"}
for name, values in found.items():
    print(f"{titles[name]:20} over boxes of half-width 2 to 32: ln integral", values.round(2))
np.testing.assert_allclose(found["none"][-2:], theory.kattention_log_normalizer(p, regular), atol=1e-9)
assert theory.kattention_log_normalizer(p, singular) == np.inf
# Twice the box, twice the integral: ln 2 more each time, without limit. f1 grows with the box itself.
np.testing.assert_allclose(np.diff(found["kernel"])[2:], np.log(2), atol=0.01)
assert (np.diff(found["f1"]) > reaches[:-1] * 0.4).all()
over_u = log_integral(sf.f3, np.eye(2), 16.0)
np.testing.assert_allclose(over_u, theory.kattention_log_normalizer(p), atol=1e-9)

# %% [markdown]
# ## Rotary positions (T31)
#
# A rotary score, $(R_m q)\cdot(R_n k) = q^\top R_{n-m} k$, depends on $m - n$ alone, and does not change
# norms. Every statement about random keys on a sphere also holds with rotary positions. Only the score of
# *related* contents decays: if $\mathbb E[q_c k_c] = r$, then
#
# $$\mathbb E[\text{score}] = r d \cdot \frac{2}{d}\sum_c \cos(t\,\theta_c), \qquad t = m - n.$$
#
# The article finds "a strange oscillation" in it, correctly.

# %%
q, k = rng.standard_normal((2, 64))
turn = at.variants.apply_rotary
scores = [turn(q[None], [m]) @ turn(k[None], [m - 5]).T for m in (5, 77, 4096)]
np.testing.assert_allclose(np.ravel(scores), np.ravel(scores)[0], atol=1e-9)
np.testing.assert_allclose(np.linalg.norm(turn(np.tile(q, (9, 1))), axis=-1), np.linalg.norm(q))
still = at.variants.rotary_score(q, k, [0, 9], frequencies=np.zeros(32))  # the angle 0: no positions
np.testing.assert_allclose(still, q @ k)

keys, queries = (turn(at.montecarlo.sphere((40, 512, 64), radius=8.0, rng=seed)) for seed in (1, 2))
entropy = at.attention_entropy(queries, keys).mean(-1)
mean, error, expected = entropy.mean(), entropy.std(ddof=1) / np.sqrt(40), theory.expected_entropy(512, 1)
print(f"512 random keys, turned: {mean:.4f} +- {error:.4f} nats, not turned {expected:.4f}")
assert abs(mean - expected) < 5 * error

related = rng.standard_normal((2, 4000, 64))
related[1] = 0.6 * related[0] + 0.8 * related[1]
t = np.arange(0, 1000)
curve, measured = at.variants.rotary_decay(t, 64), at.variants.rotary_score(*related, t[::50])
error = measured.std(0, ddof=1) / np.sqrt(4000)
assert (np.abs(measured.mean(0) - 0.6 * 64 * curve[::50]) < 5 * error).all()
rises = (np.diff(curve) > 0).mean()
print(f"the decay curve rises at {rises:.0%} of the steps from 0 to 999")
assert f"{rises:.0%}" == "49%"

with at.plot.style():
    figure, ax = plt.subplots(figsize=(5.2, 2.9))
    ax.plot(t, curve, color=at.plot.COLOURS[0], linewidth=1, label="mean score, exact")
    marks = {"fmt": "o", "color": at.plot.COLOURS[1], "markersize": 3, "label": "random vectors"}
    ax.errorbar(t[::50], measured.mean(0) / (0.6 * 64), error / (0.6 * 64), **marks)
    ax.set(xlabel="distance $t$", ylabel="relative to $t = 0$", title="Related contents, $d = 64$")
    ax.legend()
    plt.show()

# %% [markdown]
# ## First to the right (T31)
#
# "There is no simple $W$ for *the first to the right*", the article says of rotary scores. With kattention
# there is: let $Q = K$ read a channel with the position, and let $b = 1$. Then $E_{ij} = -\tfrac12 (i + 1 -
# j)^2$ up to a term of the row: a Gaussian on the integers around $i + 1$. The weight of the right key is
# $1/\vartheta_3(e^{-\beta/2})$, where $\vartheta_3(z) = \sum_j z^{j^2}$.
#
# A rotary score with $q = R_1 k$ is largest one to the right among keys of the *same* content. If all
# contents differ, the query's own token wins, one step too early.

# %%
n, d, draws = 24, 32, 20
content = rng.standard_normal((draws, n, d))
position = np.arange(n, dtype=float)[:, None]
maps = {
    "kattention, $\\beta = 4$": at.variants.kattention_heads(
        position, position, np.eye(n), bias=np.ones(1), scale=4.0
    )[None]
}
for label, keys in (
    ("rotary, one content", np.repeat(content[:, :1], n, axis=1)),
    ("rotary, random contents", content),
):
    queries = turn(keys, np.arange(n) + 1)  # R_m (R_1 k)
    maps[label] = at.attention_weights(queries, turn(keys, np.arange(n)), scale=1.0)
for label, weights in maps.items():
    top = weights.argmax(-1)
    right, own = (top[:, :-1] == np.arange(1, n)).mean(-1), (top == np.arange(n)).mean(-1)
    print(f"{label:26} largest weight on: right neighbour {right.mean():.0%}, itself {own.mean():.0%}")
    if label == "rotary, random contents":
        assert own.mean() > 0.9 > 0.1 > right.mean()
    else:
        assert right.min() == 1

inner = maps["kattention, $\\beta = 4$"][0, np.arange(5, 18), np.arange(6, 19)]
np.testing.assert_allclose(inner, 1 / np.exp(-0.5 * 4.0 * np.arange(-40, 41) ** 2).sum(), rtol=1e-6)
print(f"its weight under kattention: {inner.mean():.4f} = 1/theta_3")
with at.plot.style():
    figure, axes = plt.subplots(1, 3, figsize=(8.6, 3.0))
    for ax, (label, weights) in zip(axes, maps.items(), strict=True):
        ax.imshow(weights[0], cmap="Blues", vmin=0, vmax=1)
        ax.set(title=label, xlabel="key", xticks=(0, 10, 20), yticks=(0, 10, 20))
        ax.grid(visible=False)
    axes[0].set_ylabel("query")
    plt.show()

# %% [markdown]
# In float64 kattention finds every neighbour at 16384 positions. In float32 it does at 4096 but not at 16384:
# beyond $n^2 = 2^{24}$ a difference of 1/2 is below the rounding of $(i + 1) j - j^2/2$.


# %%
def share_right(n, dtype, beta=4.0, probes=256):
    """Share of rows whose largest kattention weight is on the right neighbour."""
    position = np.arange(n, dtype=dtype)[:, None]
    chosen = np.linspace(0, n - 2, probes).astype(int)
    rows = at.variants.kattention_statistics(
        *(position[chosen], position), bias=np.ones(1, dtype), scale=beta, statistics=("argmax",)
    )
    return float((rows.argmax == chosen + 1).mean())


sizes = [256, 1024, 4096, 16384]
table = {dtype.__name__: [share_right(n, dtype) for n in sizes] for dtype in (np.float64, np.float32)}
for name, values in table.items():
    print(f"{name}:", dict(zip(sizes, np.round(values, 2).tolist(), strict=True)))
assert table["float64"] == [1, 1, 1, 1]
assert table["float32"][:3] == [1, 1, 1]
assert table["float32"][-1] < 0.5

# %% [markdown]
# ## What an output depends on (T32)
#
# In pure self-attention, the article says, the norm of the Jacobian between nodes of two layers should only
# be affected by the attention. With $y_i = V \sum_j p_{ij} x_j$ and scores $x_i^\top M x_j$,
#
# $$\frac{\partial y_i}{\partial x_j} = p_{ij}\, V \left(I + u w_i^\top\right), \qquad
#   w_i = M^\top x_i, \quad u = x_j - \bar x_i, \quad j \neq i,$$
#
# $$\left\lVert\frac{\partial y_i}{\partial x_j}\right\rVert_F^2
#   = p_{ij}^2 \left(\lvert V\rvert_F^2 + 2 w_i^\top V^\top V u
#   + \lvert Vu\rvert^2 \lvert w_i\rvert^2\right).$$
#
# For $j = i$ the query changes as well, which adds $V\,\mathrm{Cov}_p(x) M^\top$. The norm is the weight
# times a factor that depends on the distance of $x_j$ from the average that the query reads. In twenty draws
# of 48 tokens, in four blocks of related ones, the factor goes from $\lvert V\rvert_F$ to 4.4 ± 0.2 times
# that (mean and standard error of the draws' maxima), and the order of the pairs is nearly that of their
# weights.

# %%
n, E, D = 48, 16, 8
scale = 1 / np.sqrt(D)


def drawn(seed):
    """Tokens in four blocks of related ones, which attend to each other; Q, K and V."""
    rng = np.random.default_rng([seed, 32])
    topics = rng.standard_normal((4, E))
    x = topics[np.repeat(np.arange(4), 12)] + 0.5 * rng.standard_normal((n, E))
    Q, K = rng.standard_normal((2, D, E)) / np.sqrt(E)
    return x, Q, 0.3 * K + Q, rng.standard_normal((E, E)) / np.sqrt(E)


def norms_of(x, Q, K, V):
    """Norms of the Jacobian, and weights."""
    weights = at.attention_weights(x @ Q.T, x @ K.T, scale=scale)
    return at.variants.attention_jacobian_norms(x, Q, K, V, scale=scale), weights


x, Q, K, V = drawn(0)
norms, weights = norms_of(x, Q, K, V)
squares = 0  # of the derivatives by token 7, by finite differences
for channel in range(E):
    step = 1e-5 * np.outer(np.arange(n) == 7, np.arange(E) == channel)
    up, down = (at.attention(y @ Q.T, y @ K.T, y @ V.T, scale=scale) for y in (x + step, x - step))
    squares += (((up - down) / 2e-5) ** 2).sum(-1)
np.testing.assert_allclose(norms[:, 7], np.sqrt(squares), rtol=1e-5, atol=1e-8)

off = ~np.eye(n, dtype=bool)
ends, agreement = [], []
for seed in range(20):
    *given, V = drawn(seed)
    found = norms_of(*given, V)
    factor = found[0][off] / found[1][off] / np.linalg.norm(V)
    ends.append([factor.min(), factor.max()])
    agreement.append(stats.spearmanr(found[0][off], found[1][off])[0])
mean, error = np.mean(ends, axis=0), np.std(ends, axis=0, ddof=1) / np.sqrt(20)
print("norm / (weight |V|), least and largest of a draw:", mean.round(2), "+-", error.round(2))
print(f"rank correlation of norms and weights: {np.mean(agreement):.3f}, at least {min(agreement):.3f}")
assert (abs(mean - [1.0, 4.4]) < 3 * error).all()
assert min(agreement) > 0.9

alone = np.linalg.norm(drawn(0)[-1])
flat = norms_of(x, 1e-6 * Q, K, drawn(0)[-1])[0]
np.testing.assert_allclose(flat[off], alone / n, rtol=1e-4)  # for small scores only the weight matters
with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.4, 3.0))
    ax.plot(weights[off], norms[off], ".", markersize=2, color=at.plot.COLOURS[0])
    line = np.array([weights[off].min(), 1])
    ax.plot(line, alone * line, color=at.plot.COLOURS[1], label=r"$p\,\Vert V\Vert_F$")
    ax.set(xscale="log", yscale="log", xlabel="weight $p_{ij}$", title="All pairs $j \\neq i$ of one draw")
    ax.set_ylabel(r"$\Vert\partial y_i/\partial x_j\Vert_F$")
    ax.legend()
    plt.show()

# %% [markdown]
# ## Data as code: an energy, a graph, a mixture
#
# The article has three pictures in which the data act on themselves, $z = f_x(x)$ in place of $z = f(x)$.
# With fixed weights a head is linear in its tokens; the term with $w_i$ above makes it $f_x$.
#
# *An energy.* A head joins each node $h$ to a companion $t$ and sends it $\mathrm dh = Vt$, "which maximises
# $E = h^\top V t$". For fixed companions it is the gradient. But in attention the companion depends on $h_i$,
# $t_i = \sum_j p_{ij} x_j$, which adds $M\,\mathrm{Cov}_p(x)\,V^\top h$. One head's message to its query,
# with fixed keys, is the gradient of $\mathrm{lse}_j(h^\top M x_j)$ if $V = M$: the energy of modern Hopfield
# networks.

# %%
tokens, h = rng.standard_normal((30, 6)), rng.standard_normal(6)
M, V = rng.standard_normal((2, 6, 6)) / 6**0.5


def companion(h):
    """Weights and weighted average of attention with the query h."""
    p = np.exp(h @ M @ tokens.T)
    p /= p.sum()
    return p, p @ tokens


def slope_of(energy, h):
    """Central differences."""
    steps = 1e-6 * np.eye(h.size)
    return np.array([(energy(h + step) - energy(h - step)) / 2e-6 for step in steps])


p, t = companion(h)
np.testing.assert_allclose(slope_of(lambda h: h @ V @ t, h), V @ t, atol=1e-8)  # fixed companion
covariance = (tokens - t).T @ (p[:, None] * (tokens - t))
moving = slope_of(lambda h: h @ V @ companion(h)[1], h)
np.testing.assert_allclose(moving, V @ t + M @ covariance @ V.T @ h, atol=1e-7)
log_sum = slope_of(lambda h: np.log(np.exp(h @ M @ tokens.T).sum()), h)
np.testing.assert_allclose(log_sum, M @ t, atol=1e-8)

# %% [markdown]
# *A graph.* The article guesses that residual connections let every layer still read the first. With given
# graphs, layers are a product of matrices whose rows sum to 1. Twelve such layers of random tokens make all
# rows equal, to 1e-9 of their length. With residuals, $\prod (I + A_l)/2$, the rows still differ by 2e-3. For
# a trained encoder see [notebook 16](16_layers_and_collapse.ipynb) (T34).

# %%
spread = np.zeros((8, 2))
for draw, row in enumerate(spread):
    rows = (at.montecarlo.normal((12, 64, 16), rng=[draw, side]) for side in (0, 1))
    graphs = at.attention_weights(*rows)
    for i, layers in enumerate((graphs, (np.eye(64) + graphs) / 2)):
        whole = np.linalg.multi_dot(layers[::-1])
        row[i] = np.linalg.norm(whole - whole.mean(0)) / np.linalg.norm(whole)
mean, error = spread.mean(0), spread.std(0, ddof=1) / np.sqrt(8)
for name, m, e in zip(("no residual", "residual"), mean, error, strict=True):
    print(f"{name:12} after 12 layers the rows differ by {m:.2e} +- {e:.0e} of their length (8 draws)")
assert (abs(mean - [1.0e-9, 2.2e-3]) < 3 * error).all()

# %% [markdown]
# *A mixture.* "The candidate words are candidate models": one reading of this is exact. Let each key be a
# Gaussian around $k_j$ with variance $1/\beta$, all equally likely at first. The weights of kattention are
# the posterior probabilities of the candidates given $q + b$, its output the posterior mean of their values.
# A dot product has the prior $\propto e^{\beta \lvert k_j\rvert^2/2}$: long keys are likelier a priori.
# Either output is inside the convex hull of the values, and for a single token a linear map of it: only the
# feed-forward layer is nonlinear in one token.

# %%
q, k, v = rng.standard_normal((3, 20, 5))
beta, b = 1.7, rng.standard_normal(5)
likelihood = np.array([stats.multivariate_normal(each, np.eye(5) / beta).pdf(q + b) for each in k]).T
posterior = likelihood / likelihood.sum(1, keepdims=True)
found = at.variants.kattention_heads(q, k, v, bias=b, scale=beta)
np.testing.assert_allclose(found, posterior @ v, atol=1e-12)
prior = np.exp(beta * (k**2).sum(1) / 2)
weighed = likelihood * prior
np.testing.assert_allclose(
    at.attention(q + b, k, v, scale=beta), weighed @ v / weighed.sum(1, keepdims=True), atol=1e-12
)
assert (found <= v.max(0)).all()
assert (found >= v.min(0)).all()
np.testing.assert_allclose(at.attention(q[:1], k[:1], v[:1]), v[:1])

# %% [markdown]
# ## Relay nodes (T33)
#
# To avoid $n^2$ pairs, let $K$ nodes with directions $\mu_k$ read the sequence, each by a softmax over the
# tokens,
#
# $$A_{ik} = \frac{e^{\mu_k \cdot x_i}}{\sum_i e^{\mu_k \cdot x_i}}, \qquad B_k = \sum_i A_{ik} x_i,$$
#
# and interact among themselves: $O(nKE)$ to read, $O(KED)$ to interact. It is the key half of efficient
# attention, $\mathrm{softmax}_{\text{col}}(X\mu^\top)^\top X$. An energy of the nodes sends a message to each
# token; $L$ and $R$ are $D \times K$:
#
# $$E = \mathrm{tr}\, B^\top L^\top R B, \qquad
#   \frac{\partial E}{\partial x_i} = \sum_k A_{ik} \left(g_k + ((x_i - B_k)\cdot g_k)\, \mu_k\right), \qquad
#   g = \frac{\partial E}{\partial B} = (L^\top R + R^\top L) B.$$
#
# The article uses $L^\top R B$ as $\partial E/\partial B$. That is half of the derivative if $L^\top R$ is
# symmetric, and not the derivative of any energy if it is not.

# %%
n, E, K, D = 200, 12, 5, 3
x, mu = rng.standard_normal((n, E)), rng.standard_normal((K, E))
L, R = rng.standard_normal((2, D, K))
read = at.variants.relay_attention  # .output: B, (nodes, E)

B = read(x, mu).output
halves = at.variants.global_maps(x @ mu.T, x @ mu.T, x).values
np.testing.assert_allclose(B, halves, atol=1e-12)  # the key half of efficient attention

gradient = at.variants.relay_energy_gradient(B, L.T @ R)
message = at.variants.relay_message(x, mu, gradient)
direction = rng.standard_normal((n, E))
up, down = (at.variants.relay_energy(read(x + h * direction, mu).output, L.T @ R) for h in (1e-6, -1e-6))
np.testing.assert_allclose((up - down) / 2e-6, (direction * message).sum(), rtol=1e-6)

ked = at.variants.relay_energy_gradient(B, (L, R), kind="ked")
assert np.abs(2 * ked - gradient).max() > 0.1  # L^T R is not symmetric here
same = at.variants.relay_energy_gradient(B, (L, L), kind="ked")
np.testing.assert_allclose(2 * same, at.variants.relay_energy_gradient(B, L.T @ L))
print(f"the message is the gradient; {n * K} weights in the place of {n * n}")

# %% [markdown]
# ## What was shown
#
# - A finite normalising constant and free directions of $y$ exclude each other (T30).
# - Rotary positions do not change statements about random keys; for related contents the scores decay with an
#   oscillation. "The first to the right" is a bias of kattention; a rotary score can express it for one
#   content at a time (T31).
# - The norm of the Jacobian is the weight times a factor that depends on the key's distance from the average
#   that the query reads (T32).
# - The message $Vt$ is the gradient of $h^\top V t$ for a fixed companion; a head's weights are posterior
#   probabilities of its keys as candidates; without residuals twelve fixed graphs make all tokens equal.
# - Relay nodes read $n$ tokens with $n K$ weights, and their message is the gradient of an energy if the full
#   derivative is used (T33).
#
# ## Exercises
#
# 1. Let kattention look two to the left. Which bias does it need, and what is the weight of that key?
# 2. At which length does `share_right` in float32 first drop below 1 with `beta=1`? Explain it by the
#    rounding of the score, and fix it with another unit for positions.
