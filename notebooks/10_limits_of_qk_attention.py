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
# An article of April 2022 asks what a score $x^\top Q^\top K y$ cannot say, and repairs it step by step:
# $f_1$ is the dot product, $f_4$ has a best key, and $f_5$ is the score of "kattention". This notebook
# computes each step (claims **T28** to **T33**), with mathematics and random vectors. Most of it holds, but:
#
# - "the normalising constant is finite" and "some directions of $y$ are free" exclude each other;
# - a rotary score can look one to the right, but for one content at a time;
# - the norm of the Jacobian is not a function of the attention weight alone;
# - kattention can find the neighbour of every token, and float32 ends that after some thousand positions.
#
# **摘要.** 2022 年的一篇文章讨论了点积注意力 $x^\top Q^\top K y$ 的局限, 并逐步修改打分函数:
# $f_1$ 为点积, $f_4$ 具有有限的极大值点, 以 $f_5$ 为打分函数的注意力称为 kattention.
# 本文逐一验证这些步骤: kattention 等价于高斯 (RBF) 核, 可以作为每个键的附加偏置在精确注意力内核上计算;
# "标准化常数有界" 与 "沿 $K$ 的核不变" 不能同时成立; 旋转位置编码的分数随距离振荡衰减,
# 而 "右边第一个" 可以由偏置 $b$ 表示; 自注意力雅可比矩阵的范数有封闭形式, 但它并不仅由注意力权重决定.
#
# | English | 中文 | here |
# |---|---|---|
# | score function | 打分函数 | $f(x, y)$, large where $y$ answers $x$ |
# | normalising constant | 标准化常数 | $Z = \int e^{f(x, y)}\,\mathrm dy$ |
# | kernel (null space) | 核, 零空间 | the $y$ with $Ky = 0$ |
# | radial basis function | 径向基函数 | $e^{-\lvert p - u\rvert^2/2}$ |
# | rotary position embedding | 旋转位置编码 (RoPE) | turns pairs of channels by position times frequency |
# | relay node | 中继节点 | a softmax average of the whole sequence |
# | Jacobian | 雅可比矩阵 | $\partial y_i/\partial x_j$ |

# %%
import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from attnscale import theory
from attnscale.variants import score_functions as sf
from scipy.stats import multivariate_normal

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
# $f_1$ has no best key. That of $f_2$ is $y = K^\top Q x$, but every change of $y$ now counts. To $f_3$ what
# $K$ does not see is free, and the best keys are those with $Ky = Qx$. $f_4$ moves them to $Ky = Qx + b$, so
# that with $Q = K$ it is no longer $x$ itself. $f_6$ treats both sides alike, and is $f_4$ and a term of $x$.

# %%
E, D = 6, 4
x, y = rng.standard_normal((5, E)), rng.standard_normal((7, E))
Q, K = rng.standard_normal((2, D, E))
b, c = rng.standard_normal((2, D))
np.testing.assert_allclose(sf.f1(x, 3 * y, Q, K), 3 * sf.f1(x, y, Q, K))  # 3 times the key

arguments = {"f2": (Q, K), "f3": (Q, K), "f4": (Q, K, b), "f5": (K, b), "f6": (Q, K, b, c)}
for name, rest in arguments.items():
    q, step = (K if name == "f5" else Q), (None if name < "f4" else b)
    best = sf.peak(name, x, q, K, step)
    score = getattr(sf, name)
    top = np.diagonal(score(x, best, *rest))
    for size in (0.01, 1.0, 100.0):  # every step away loses
        away = best + size * rng.standard_normal((200, *best.shape))
        assert (np.diagonal(score(x, away, *rest), axis1=1, axis2=2) < top).all()
    if name != "f2":
        np.testing.assert_allclose(best @ K.T, x @ q.T + (0 if step is None else b), atol=1e-12)

kernel = np.linalg.svd(K)[2][D:]  # two directions that K maps to 0
moved = y + rng.standard_normal((7, E - D)) @ kernel
np.testing.assert_allclose(sf.f3(x, moved, Q, K), sf.f3(x, y, Q, K), atol=1e-12)
assert np.abs(sf.f2(x, moved, Q, K) - sf.f2(x, y, Q, K)).min() > 1e-3
np.testing.assert_allclose(sf.f6(x, y, Q, K, b, c), sf.f6(y, x, K, Q, c, b).T)
rows = sf.f6(x, y, Q, K, b, c) - sf.f4(x, y, Q, K, b)
np.testing.assert_allclose(rows, np.broadcast_to(rows[:, :1], rows.shape), atol=1e-12)
print("f1 is linear, f2 ... f6 have their peaks, f3 is free along the kernel, f6 is symmetric")

# %% [markdown]
# The picture: one $x$, keys $y$ in a plane, and a $K$ that sees the horizontal axis alone. Darker is a larger
# $e^{f}$; the dot is the shortest best key.

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
# Softmax does not see the last term: the weights are those of a Gaussian kernel around $Qx_i + b$. As one
# more channel, $(q + b,\, 1)\cdot(k,\, -\lvert k\rvert^2/2)$, it runs on the exact kernel, with its masks
# and statistics, and without an $n \times n$ matrix.

# %%
x = rng.standard_normal((40, E))
beta = 0.7
distance = ((x @ Q.T + b)[:, None] - (x @ K.T)[None]) ** 2
weights = np.exp(-0.5 * beta * distance.sum(-1))
weights /= weights.sum(-1, keepdims=True)
np.testing.assert_allclose(at.variants.kattention(x, Q, K, b, beta), weights @ x, atol=1e-12)

rows = at.variants.kattention_statistics(x @ Q.T, x @ K.T, bias=b, scale=beta, statistics=("lse", "entropy"))
entropy = -(weights * np.log(weights)).sum(-1)
np.testing.assert_allclose(rows.entropy, entropy, atol=1e-12)
print(f"entropy of a row: {entropy.mean():.2f} of at most {np.log(40):.2f} nats")

# %% [markdown]
# So the article's guess about layer normalisation: under $f_1$ a long key that points roughly where the query
# points takes the whole row, under $f_4$ it gets nothing. If all keys have one length $f_3$ and $f_1$ agree.

# %%
keys = rng.standard_normal((1, 64, 16))
query = rng.standard_normal((1, 1, 16))
# One key's direction has a cosine of 0.5 with the query; its length varies.
along = query[0, 0] / np.linalg.norm(query)
across = rng.standard_normal(16)
across -= (across @ along) * along
direction = 0.5 * along + np.sqrt(0.75) * across / np.linalg.norm(across)
lengths = np.geomspace(0.5, 200, 40)
taken = {"$f_1$, dot product": [], "$f_4$, kattention": []}
marker = np.zeros((1, 64, 1))
marker[0, 5] = 1  # the value that shows the weight of key 5
for length in lengths:
    keys[0, 5] = length * direction
    taken["$f_1$, dot product"].append(at.attention(query, keys, marker).item())
    taken["$f_4$, kattention"].append(at.variants.kattention_heads(query, keys, marker).item())
assert taken["$f_1$, dot product"][-1] > 0.999
assert taken["$f_4$, kattention"][-1] < 1e-6
assert 0.01 < max(taken["$f_4$, kattention"]) < 0.9

unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
np.testing.assert_allclose(
    at.variants.kattention_heads(query, unit, keys), at.attention(query, unit, keys), atol=1e-12
)
with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.6, 2.9))
    for (label, values), colour in zip(taken.items(), at.plot.COLOURS, strict=False):
        ax.plot(lengths, values, color=colour, label=label)
    ax.set(xscale="log", xlabel="length of the key", ylabel="its weight among 64", title="One key grows")
    ax.legend()
    plt.show()

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
# Below, both are integrated over boxes that grow.

# %%
p = np.array([0.6, -0.3])
regular = np.array([[1.0, 0.4], [0.0, 0.8]])
singular = np.array([[1.0, 0.4], [0.5, 0.2]])  # rank 1
identity = np.eye(2)
query_point = p[None]  # Q is the identity


def log_integral(score, reach, points=601):
    """ln of the integral of exp(score) over a square of half-width reach."""
    axis = np.linspace(-reach, reach, points)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    values = score(query_point, grid)[0]
    return np.log(np.exp(values - values.max()).sum()) + values.max() + 2 * np.log(axis[1] - axis[0])


reaches = np.array([2.0, 4.0, 8.0, 16.0, 32.0])
curves = {
    "$f_1$": [log_integral(lambda x, y: sf.f1(x, y, identity, regular), r) for r in reaches],
    "$f_3$, $K$ with a kernel": [
        log_integral(lambda x, y: sf.f3(x, y, identity, singular), r) for r in reaches
    ],
    "$f_3$, $K$ without": [log_integral(lambda x, y: sf.f3(x, y, identity, regular), r) for r in reaches],
}
for label, values in curves.items():
    print(f"{label:26}", np.round(values, 4))
exact = theory.kattention_log_normalizer(p, regular)
np.testing.assert_allclose(curves["$f_3$, $K$ without"][-2:], exact, atol=1e-9)
assert theory.kattention_log_normalizer(p, singular) == np.inf
# Twice the box, twice the integral: ln 2 more each time, for ever. f1 grows with the box itself.
np.testing.assert_allclose(np.diff(curves["$f_3$, $K$ with a kernel"])[2:], np.log(2), atol=0.01)
assert (np.diff(curves["$f_1$"]) > reaches[:-1] * 0.4).all()
over_u = log_integral(lambda x, u: sf.f3(x, u, identity, identity), 16.0)
np.testing.assert_allclose(over_u, theory.kattention_log_normalizer(p), atol=1e-9)

with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.8, 3.0))
    for (label, values), colour in zip(curves.items(), at.plot.COLOURS, strict=False):
        ax.plot(reaches, values, "o-", color=colour, label=label)
    ax.axhline(exact, color="0.6", linewidth=1)
    ax.set(xscale="log", xlabel="half-width of the box", ylabel=r"$\ln \int e^{f}$", ylim=(0, 12))
    ax.set_xticks(reaches, [f"{r:g}" for r in reaches])
    ax.set_xticks([], minor=True)
    ax.set_title("Which constants are finite")
    ax.legend()
    plt.show()

# %% [markdown]
# ## Rotary positions (T31)
#
# A rotary score, $(R_m q)\cdot(R_n k) = q^\top R_{n-m} k$, depends on $m - n$ alone, and leaves norms as they
# are. Random keys do not notice: every statement about the sphere model holds with rotary positions too. What
# decays is the score of *related* contents: if $\mathbb E[q_c k_c] = r$, then
#
# $$\mathbb E[\text{score}] = r d \cdot \frac{2}{d}\sum_c \cos(t\,\theta_c), \qquad t = m - n.$$
#
# The article finds "a strange oscillation" in it, and is right.

# %%
q, k = rng.standard_normal((2, 64))
turn = at.variants.apply_rotary
scores = [turn(q[None], [m]) @ turn(k[None], [m - 5]).T for m in (5, 77, 4096)]
np.testing.assert_allclose(np.ravel(scores), np.ravel(scores)[0], atol=1e-9)
np.testing.assert_allclose(np.linalg.norm(turn(np.tile(q, (9, 1))), axis=-1), np.linalg.norm(q))
ahead, back = at.variants.rotary_score(q, k, [5, -5])
assert abs(ahead - back) > 0.1  # R_m^T R_n is not R_n^T R_m
assert (
    at.variants.rotary_score(q, k, [0, 9], frequencies=np.zeros(32)).round(9).tolist()
    == [round(q @ k, 9)] * 2
)

related = rng.standard_normal((2, 4000, 64))
related[1] = 0.6 * related[0] + 0.8 * related[1]
t = np.arange(0, 1000)
measured = at.variants.rotary_score(*related, t[::50])
error = measured.std(0, ddof=1) / np.sqrt(4000)
assert (np.abs(measured.mean(0) - 0.6 * 64 * at.variants.rotary_decay(t[::50], 64)) < 5 * error).all()

entropies = [
    at.attention_entropy(
        *(f(at.montecarlo.sphere((40, 512, 64), radius=8.0, rng=seed)) for seed in (1, 2))
    ).mean(-1)
    for f in (lambda x: x, turn)
]
plain, turned = (e.mean() for e in entropies)
expected = theory.expected_entropy(512, 1)
print(
    f"entropy of 512 random keys: {plain:.4f} without and {turned:.4f} with rotary positions; "
    f"the theory's is {expected:.4f}"
)
assert abs(turned - expected) < 5 * entropies[1].std(ddof=1) / np.sqrt(40)

curve, bound = at.variants.rotary_decay(t, 64), at.variants.rotary_bound(t, 64)
rises = (np.diff(curve) > 0).mean()
print(f"the decay curve rises at {rises:.0%} of the steps from 0 to 999")
assert f"{rises:.0%}" == "49%"
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.0))
    left.plot(t, curve, color=at.plot.COLOURS[0], linewidth=1, label="mean score, relative")
    left.plot(t, bound / bound[0], color=at.plot.COLOURS[1], label="RoFormer's curve, relative", linewidth=1)
    left.plot(
        t[::50],
        measured.mean(0) / (0.6 * 64),
        "o",
        color=at.plot.COLOURS[2],
        markersize=3,
        label="random vectors",
    )
    left.set(xlabel="distance $t$", ylim=(-0.2, 1.05), title="Related contents, $d = 64$")
    left.legend()
    near = np.arange(-60, 61)
    own = at.variants.rotary_score(q, q, near)
    shifted = at.variants.rotary_score(turn(q[None], [10])[0], q, near)
    right.plot(near, own, color=at.plot.COLOURS[0], label="$q = k$")
    right.plot(near, shifted, color=at.plot.COLOURS[1], label="$q = R_{10} k$")
    right.set(xlabel="distance $m - n$", ylabel="score", title="One content")
    right.legend()
    plt.show()
assert near[shifted.argmax()] == -10

# %% [markdown]
# ## First to the right (T31)
#
# "There is no simple $W$ for *the first to the right*", the article says of rotary scores. With kattention
# there is: let $Q = K$ read a channel that is the position, and put $b = 1$. Then
# $E_{ij} = -\tfrac12 (i + 1 - j)^2$ up to a term of the row: a Gaussian on the integers around $i + 1$. The
# weight of the right key is $1/\vartheta_3(e^{-\beta/2})$, where $\vartheta_3(z) = \sum_j z^{j^2}$.
#
# A rotary score with $q = R_1 k$ has its largest value one to the right among keys of the *same* content.
# Where all contents differ the query's own token wins, one step from where it should be.

# %%
n, d = 24, 32
content = rng.standard_normal((n, d))
x = np.concatenate([content, np.arange(n)[:, None]], axis=-1)
read = np.eye(1, d + 1, d)  # 1 x 33: the position
position = x @ read.T
identity_values = np.eye(n)  # values that show the weights
right_key = np.arange(1, n)

maps = {
    "kattention, $\\beta = 4$": at.variants.kattention_heads(
        position, position, identity_values, bias=np.ones(1), scale=4.0
    )
}
for label, keys in (
    ("rotary, one content", np.tile(content[:1], (n, 1))),
    ("rotary, random contents", content),
):
    queries = turn(keys, np.arange(n) + 1)  # R_m (R_1 k)
    maps[label] = at.attention(queries, turn(keys), identity_values, scale=1.0)
found = {label: (weights.argmax(-1)[:-1] == right_key).mean() for label, weights in maps.items()}
for label, share in found.items():
    print(f"{label:26} the right neighbour has the largest weight in {share:.0%} of the rows")
assert list(found.values())[:2] == [1, 1]
assert found["rotary, random contents"] < 0.1
self_found = (maps["rotary, random contents"].argmax(-1) == np.arange(n)).mean()
print(f"{'':26} ... and the token itself in {self_found:.0%}")
assert self_found > 0.9

lattice = np.exp(-0.5 * 4.0 * np.arange(-40, 41) ** 2).sum()
inner = maps["kattention, $\\beta = 4$"][np.arange(5, 18), np.arange(6, 19)]
np.testing.assert_allclose(inner, 1 / lattice, rtol=1e-6)
print(f"its weight under kattention: {inner.mean():.4f} = 1/theta_3")
with at.plot.style():
    figure, axes = plt.subplots(1, 3, figsize=(8.6, 3.0))
    for ax, (label, weights) in zip(axes, maps.items(), strict=True):
        ax.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        ax.set(title=label, xlabel="key", xticks=(0, 10, 20), yticks=(0, 10, 20))
        ax.grid(visible=False)
    axes[0].set_ylabel("query")
    plt.show()

# %% [markdown]
# In float64 kattention finds every neighbour at 16384 positions. In float32 it does at 4096 and no longer at
# 16384: beyond $n^2 = 2^{24}$ a difference of 1/2 is below the rounding of $(i + 1) j - j^2/2$.


# %%
def share_right(n, dtype, beta=4.0, probes=256):
    """How often kattention's largest weight is on the right neighbour."""
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
# For $j = i$ the query moves as well, which adds $V\,\mathrm{Cov}_p(x) M^\top$. The norm is the weight times
# a factor that tells how far $x_j$ is from the average that the query reads: here 1.0 to 6.2 times
# $\lvert V\rvert_F$, and the order of the pairs is nearly that of their weights.

# %%
n, E, D = 48, 16, 8
topics = rng.standard_normal((4, E))
x = topics[np.repeat(np.arange(4), 12)] + 0.5 * rng.standard_normal((n, E))  # four blocks of related tokens
Q, K = rng.standard_normal((2, D, E)) / np.sqrt(E)
K = 0.3 * K + Q  # related tokens attend to each other
V = rng.standard_normal((E, E)) / np.sqrt(E)
scale = 1 / np.sqrt(D)
norms = at.variants.attention_jacobian_norms(x, Q, K, V, scale=scale)
weights = at.attention(x @ Q.T, x @ K.T, np.eye(n), scale=scale)


def output(x):
    return at.attention(x @ Q.T, x @ K.T, x @ V.T, scale=scale)


step, differences = 1e-5, np.zeros((n, n))
for j in (0, 7, 30):
    for channel in range(E):
        moved = np.zeros_like(x)
        moved[j, channel] = step
        differences[:, j] += (((output(x + moved) - output(x - moved)) / (2 * step)) ** 2).sum(-1)
chosen = [0, 7, 30]
np.testing.assert_allclose(norms[:, chosen], np.sqrt(differences[:, chosen]), rtol=1e-5, atol=1e-8)

off = ~np.eye(n, dtype=bool)
factor = norms[off] / weights[off]
alone = np.linalg.norm(V)
print(f"norm / weight: {factor.min():.1f} to {factor.max():.1f}; |V| = {alone:.1f}")
assert [f"{each / alone:.1f}" for each in (factor.min(), factor.max())] == ["1.0", "6.2"]  # not p alone
assert factor.max() > 5 * factor.min()
flat = at.variants.attention_jacobian_norms(x, 1e-6 * Q, K, V, scale=scale)
np.testing.assert_allclose(flat[off], alone / n, rtol=1e-4)  # it is, where scores are small
ranks = [np.argsort(np.argsort(each[off])) for each in (norms, weights)]
agreement = np.corrcoef(*ranks)[0, 1]
print(f"rank correlation of norms and weights: {agreement:.3f}")
assert agreement > 0.9
with at.plot.style():
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.2, 3.0))
    left.grid(visible=False)
    middle.grid(visible=False)
    left.imshow(weights, cmap="Blues")
    middle.imshow(norms, cmap="Blues", vmax=np.quantile(norms, 0.99))
    left.set(title="weights $p_{ij}$", xlabel="$j$", ylabel="$i$")
    middle.set(title=r"$\Vert\partial y_i/\partial x_j\Vert_F$", xlabel="$j$")
    right.plot(weights[off], norms[off], ".", markersize=2, color=at.plot.COLOURS[0])
    line = np.array([weights[off].min(), 1])
    right.plot(line, alone * line, color=at.plot.COLOURS[1], label=r"$p\,\Vert V\Vert_F$")
    right.set(xscale="log", yscale="log", xlabel="weight", ylabel="norm", title="All pairs $j \\neq i$")
    right.legend()
    plt.show()

# %% [markdown]
# ## Data as code: an energy, a graph, a mixture
#
# The article has three pictures in which the data act on themselves, $z = f_x(x)$ in the place of $z = f(x)$.
# With the weights held a head is linear in its tokens; what makes it $f_x$ is the term with $w_i$ above.
#
# *An energy.* A head joins each node $h$ to a companion $t$ and sends it $\mathrm dh = Vt$, "which maximises
# $E = h^\top V t$". For companions that do not move it is the gradient, and a step of size $\eta$ raises $E$
# by $\eta \lvert Vt\rvert^2$ exactly. But attention's moves with $h_i$, $t_i = \sum_j p_{ij} x_j$, which
# adds $M\,\mathrm{Cov}_p(x)\,V^\top h$. One head's message to its query, keys held, is the gradient of
# $\mathrm{lse}_j(h^\top M x_j)$ if $V = M$: the energy of modern Hopfield networks.

# %%
tokens, h = rng.standard_normal((30, 6)), rng.standard_normal(6)
M, V = rng.standard_normal((2, 6, 6)) / 6**0.5


def companion(h):
    """What attention reads for h: weights and average."""
    p = np.exp(h @ M @ tokens.T)
    p /= p.sum()
    return p, p @ tokens


def slope_of(energy, h):
    """Central differences."""
    steps = 1e-6 * np.eye(h.size)
    return np.array([(energy(h + step) - energy(h - step)) / 2e-6 for step in steps])


p, t = companion(h)
np.testing.assert_allclose(slope_of(lambda h: h @ V @ t, h), V @ t, atol=1e-8)  # held companion
raised = (h + 0.3 * V @ t) @ V @ t - h @ V @ t
np.testing.assert_allclose(raised, 0.3 * (V @ t) @ (V @ t))
covariance = (tokens - t).T @ (p[:, None] * (tokens - t))
moving = slope_of(lambda h: h @ V @ companion(h)[1], h)
np.testing.assert_allclose(moving, V @ t + M @ covariance @ V.T @ h, atol=1e-7)
log_sum = slope_of(lambda h: np.log(np.exp(h @ M @ tokens.T).sum()), h)
np.testing.assert_allclose(log_sum, M @ t, atol=1e-8)
print("the part of the gradient that the message leaves out:", end=" ")
print(f"{np.linalg.norm(moving - V @ t) / np.linalg.norm(moving):.2f} of its length")

# %% [markdown]
# *A graph.* The article guesses that residual connections are there so that every layer still hears the
# first. With the graphs given, layers are a product of matrices whose rows sum to 1. Twelve of random tokens
# make all rows alike, to 2e-9 of their length. With residuals, $\prod (I + A_l)/2$, the rows still differ by
# 2e-3. What a real encoder does takes a trained model (T34).

# %%
graphs = []
for seed in range(12):
    q, k = (at.montecarlo.normal((64, 16), rng=[seed, side]) for side in (0, 1))
    graphs.append(at.attention_weights(q, k))
spread = {}
for name, layers in (("no residual", graphs), ("residual", [(np.eye(64) + a) / 2 for a in graphs])):
    whole = np.linalg.multi_dot(layers[::-1])
    np.testing.assert_allclose(whole.sum(1), 1)
    assert whole.min() > 0
    spread[name] = np.linalg.norm(whole - whole.mean(0)) / np.linalg.norm(whole)
    print(f"{name:12} after 12 layers the rows differ by {spread[name]:.1e} of their length")
assert [f"{each:.1e}" for each in spread.values()] == ["1.7e-09", "2.2e-03"]

# %% [markdown]
# *A mixture.* "The candidate words are candidate models": one reading is exact. Let each key be a Gaussian
# around $k_j$ with variance $1/\beta$, all equally likely at first. The weights of kattention are the
# posterior probabilities of the candidates given $q + b$, its output the posterior mean of their values. A
# dot product has the prior $\propto e^{\beta \lvert k_j\rvert^2/2}$: long keys are likelier from the start.
# Either output is inside the convex hull of the values, and for a single token a linear map of it: what is
# not linear in one token is left to the feed-forward layer.

# %%
q, k, v = rng.standard_normal((3, 20, 5))
beta, b = 1.7, rng.standard_normal(5)
likelihood = np.array([multivariate_normal(each, np.eye(5) / beta).pdf(q + b) for each in k]).T
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
# The article takes $L^\top R B$ for $\partial E/\partial B$. That is half of the derivative if $L^\top R$ is
# symmetric, and the derivative of no energy if it is not.

# %%
n, E, K, D = 200, 12, 5, 3
x, mu = rng.standard_normal((n, E)), rng.standard_normal((K, E))
L, R = rng.standard_normal((2, D, K))
read = at.variants.relay_attention  # .output: B, (nodes, E)

reads = np.exp(x @ mu.T)
reads /= reads.sum(0)
B = read(x, mu).output
np.testing.assert_allclose(B, reads.T @ x, atol=1e-12)  # the key half of efficient attention
halves = at.variants.global_maps(x @ mu.T, x @ mu.T, x).values
np.testing.assert_allclose(B, halves, atol=1e-12)

gradient = at.variants.relay_energy_gradient(B, L.T @ R)
message = at.variants.relay_message(x, mu, gradient)
step = 1e-6
for i in (0, 57, 199):
    for channel in (0, 11):
        moved = np.zeros_like(x)
        moved[i, channel] = step
        above, below = (
            at.variants.relay_energy(read(each, mu).output, L.T @ R) for each in (x + moved, x - moved)
        )
        assert abs((above - below) / (2 * step) - message[i, channel]) < 1e-6

ked = at.variants.relay_energy_gradient(B, (L, R), kind="ked")
assert np.abs(2 * ked - gradient).max() > 0.1  # L^T R is not symmetric here
same = at.variants.relay_energy_gradient(B, (L, L), kind="ked")
np.testing.assert_allclose(2 * same, at.variants.relay_energy_gradient(B, L.T @ L))
print(f"the message is the gradient; {n * K} weights in the place of {n * n}")

# %% [markdown]
# ## What was shown
#
# - A finite normalising constant and directions of $y$ that are free exclude each other (T30).
# - Rotary scores do not change what random keys do; for related contents they decay with an oscillation.
#   "The first to the right" is a bias of kattention, and a rotary score says it for one content at a time
#   (T31).
# - The norm of the Jacobian is the weight times a factor that depends on the key's distance from what the
#   query reads (T32).
# - The message $Vt$ is the gradient of $h^\top V t$ for a companion that is held; a head's weights are
#   posterior probabilities of its keys as candidates; without residuals twelve fixed graphs make all tokens
#   alike.
# - Relay nodes read $n$ tokens with $n K$ weights, and their message is the gradient of an energy if the
#   derivative is taken in full (T33).
#
# ## Exercises
#
# 1. Let kattention look two to the left. Which bias does it take, and what is the weight of that key?
# 2. At which length does `share_right` in float32 first drop below 1 with `beta=1`? Explain it by the
#    rounding of the score, and mend it with another unit for positions.
