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
# # Why attention is scaled
#
# Attention divides $q \cdot k$ by $\sqrt d$, where $d$ is the number of components of a head. The article
# [*Why does the Transformer use scaled attention?*](https://allenwind.github.io/blog/16228) (in Chinese)
# gives two reasons, and this notebook follows both of them. The variance of a dot product grows like $d$
# (claim **T1**), large scores saturate the softmax, and a saturated softmax passes no gradient (**T2**). The
# scale is also a temperature, which moves the weights between uniform and one-hot (**T3**, **T4**).
#
# Three topics are not in the article: the variance under BERT's initialiser, the formula for trained heads,
# and which part of the gradient vanishes. Logarithms are natural.
#
# **摘要。** 注意力为什么要除以 $\sqrt d$? 原文给出两个角度，本文逐步推导并用蒙特卡罗实验验证：
# 其一，点积的方差与 $d$ 成正比 (T1)，过大的分数使 softmax 饱和，其雅可比矩阵趋于零 (T2)；
# 其二，缩放因子就是温度，它使权重在均匀分布与 one-hot 之间移动 (T3, T4)。
# 另有三点补充：BERT 的截断正态初始化使分数的方差小于 1；
# 训练后的注意力头并不满足独立同分布假设，但推广的公式依然精确；
# 不缩放时，典型的行确实几乎没有梯度，平均梯度却没有消失，而是集中在少数几行上。
#
# | English | 中文 | here |
# |---|---|---|
# | scaled dot product | 缩放点积 | $q \cdot k / \sqrt d$ |
# | truncated normal | 截断正态分布 | a normal number, drawn again if it is beyond 2 standard deviations |
# | saturation | 饱和 | one weight of a row is nearly 1: here, above 0.99 |
# | Jacobian | 雅可比矩阵 | $J = \partial p / \partial s = \mathrm{diag}(p) - p p^\top$ |
# | temperature | 温度 | $1/a$, where the weights are $\mathrm{softmax}(a x)$ |

# %%
import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from scipy import integrate, stats

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

BLUE, RED, PURPLE = (at.plot.COLOURS[i] for i in (0, 1, 5))
GREY = "#6E6E6E"
print(f"attnscale {at.__version__}")


def softmax(scores):
    """Weights of a row."""
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def points(ax, x, value, error, colour, mark="o", **options):
    """Marks with one standard error to each side."""
    options = {"linestyle": "none", "markerfacecolor": "white", "capsize": 2.5, **options}
    ax.errorbar(x, value, error, color=colour, marker=mark, **options)


def against_d(ax, d, **options):
    """Label the axis of head dimensions."""
    ax.set(xscale="log", xlabel="head dimension, $d$", **options)
    ax.set_xticks(d, [str(each) for each in d])
    ax.minorticks_off()


# %% [markdown]
# ## The article's listing
#
# The article begins with multi-head attention in pseudocode: project $x$, cut it into heads, score, mask,
# take the softmax, sum, project back. `attention` does everything between the projections, without the matrix
# of scores. The listing also mentions a prior $r_{ij}$ that multiplies $e^{s_{ij}}$. That is $\ln r_{ij}$
# added to the score, so it is passed as part of the mask.

# %%
HEADS, DIM = 4, 16
rng = np.random.default_rng(16228)
x, maps = rng.standard_normal((10, HEADS * DIM)), rng.standard_normal((4, HEADS * DIM, HEADS * DIM)) / 8
mask, prior = np.tri(10), rng.uniform(0.1, 1, (10, 10))


def listing(x):
    """The article's steps, with a prior."""
    q, k, v = ((x @ w).reshape(10, HEADS, DIM) for w in maps[:3])
    scores = np.einsum("jhd,khd->hjk", q, k) / np.sqrt(DIM)
    scores = scores * mask - 1e12 * (1 - mask)
    weights = softmax(scores + np.log(prior))
    return np.einsum("hjk,khd->jhd", weights, v).reshape(10, HEADS * DIM) @ maps[3]


q, k, v = ((x @ w).reshape(10, HEADS, DIM).swapaxes(0, 1) for w in maps[:3])
rows = at.attention(q, k, v, attn_mask=np.log(prior), is_causal=True)
np.testing.assert_allclose(rows.swapaxes(0, 1).reshape(10, -1) @ maps[3], listing(x), atol=1e-13)

# %% [markdown]
# ## The variance of a dot product (T1)
#
# Let the components of $q$ and $k$ be independent random numbers $x_i$ and $y_i$ with means $m_x, m_y$ and
# variances $v_x, v_y$.
#
# 1. *One product.* Moments multiply, $\mathbb E[xy] = m_x m_y$ and
#    $\mathbb E[x^2 y^2] = (v_x + m_x^2)(v_y + m_y^2)$, so
#    $\mathrm{Var}(xy) = v_x v_y + v_x m_y^2 + v_y m_x^2.$
# 2. *A sum of $d$ products.* They are independent of each other, so variances add:
#    $$\mathrm{Var}(q \cdot k) = d\,(v_x v_y + v_x m_y^2 + v_y m_x^2).$$
# 3. *A scale.* With $v = 1$ and $m = 0$ the factor $1/\sqrt d$ gives a variance of 1 at every $d$.
#
# This is exact for any distribution with a variance; no limit is taken. Here are four distributions with the
# same standard deviation, the last of them cut at 2 standard deviations, with standard errors.

# %%
dims = [4, 16, 64, 256]
kinds = ["normal", "uniform", "laplace", "truncated_normal"]
result = at.montecarlo.dot_product_variance(head_dim=dims, distribution=kinds, rng=1706)
print(result)
exact = result.exact()
for name in ("variance", "scaled_variance"):
    assert (abs(result[name].value - exact[name]) < 5 * result[name].standard_error).all(), name
np.testing.assert_allclose(exact["variance"][:, 0], dims, rtol=1e-14)
np.testing.assert_allclose(exact["scaled_variance"][:, :3], 1, rtol=1e-14)

with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.2))
    left.set_yscale("log")
    right.set_ylim(0, 1.2)
    at.plot.experiment(result, quantity="variance", ax=left).set_title("Grows like $d$")
    at.plot.experiment(result, quantity="scaled_variance", ax=right)
    right.set_title(r"Does not, after $1/\sqrt{d}$")
    right.get_legend().remove()
    plt.show()

# %% [markdown]
# ## What BERT's initialiser does (T1)
#
# The article assumes unit variance "under a proper initialisation (the Transformer uses a truncated
# normal)". A normal distribution that is cut at $c$ standard deviations is narrower. Integrate
# $x^2 \varphi(x)$ by parts from $-c$ to $c$, and divide by the probability $2\Phi(c) - 1$ of that interval:
#
# $$v(c) = 1 - \frac{2 c\, \varphi(c)}{2 \Phi(c) - 1}, \qquad v(2) = 0.773741.$$
#
# BERT's original code cuts at 2 and does not rescale. If the components of $q$ and $k$ are such numbers,
# $q \cdot k/\sqrt d$ has the variance $v(2)^2 = 0.598676$: the lower line of the figure.

# %%
cut = at.theory.truncated_normal_variance(2)
by_quadrature = integrate.quad(lambda x: x**2 * stats.norm.pdf(x), -2, 2)[0] / (2 * stats.norm.cdf(2) - 1)
np.testing.assert_allclose(cut, by_quadrature, rtol=1e-12)
np.testing.assert_allclose([cut, cut**2], [0.773741, 0.598676], atol=5e-7)
np.testing.assert_allclose(exact["scaled_variance"][:, 3], cut**2, rtol=1e-13)

# %% [markdown]
# In BERT the *weights* are drawn in this way, with $\sigma = 0.02$, and $q = W_q h$, $k = W_k h'$. The layer
# norm in front gives $|h|^2 = D = 768$, apart from dropout. Given $h$, the components of $q$ are independent,
# with mean 0 and variance $D \sigma^2 v(2) = 0.2377$; the components of $k$ are too. By T1 the variance of $q
# \cdot k/\sqrt d$ is the square of that, 0.0565, for *any* two tokens, even a token and itself: $W_q$ and
# $W_k$ are independent of each other. So a new BERT does not start at unit variance. Its weights start nearly
# uniform: its scores have the standard deviation 0.24.

# %%
width, head_dim, sigma, n_heads, n_tokens = 768, 64, 0.02, 48, 32
h = at.montecarlo.sphere((n_tokens, width), radius=np.sqrt(width), rng=3)
w_query, w_key = at.montecarlo.truncated_normal((2, n_heads, width, head_dim), std=sigma, rng=4)
scores = (h @ w_query) @ (h @ w_key).transpose(0, 2, 1) / np.sqrt(head_dim)

component = width * sigma**2 * cut  # variance of a component of q or k
by_head = (scores**2).mean((1, 2))  # heads are independent, tokens of one head are not
error = by_head.std(ddof=1) / np.sqrt(n_heads)
print(f"variance of the scores of a new BERT: {by_head.mean():.4f} +- {error:.4f}, exact {component**2:.4f}")
assert abs(by_head.mean() - component**2) < 5 * error < 0.01
np.testing.assert_allclose([component, component**2], [0.2377, 0.0565], atol=5e-5)
entropy = at.theory.expected_entropy(512, component, model="gaussian")  # the standard deviation
print(f"normal scores of this variance on 512 keys: {np.exp(entropy):.0f} effective keys")
assert np.exp(entropy) > 490

# %% [markdown]
# T5 does not divide: its initialiser contains the factor. It draws $W_k$ with variance $1/D$ and $W_q$ with
# $1/(D d)$, so that the components of $k$ have variance 1, those of $q$ $1/d$, and by T1 $\mathrm{Var}(q
# \cdot k) = 1$ without any scale. In training that is not the same model: Adam's steps do not depend on the
# size of a weight, so they change T5's smaller $W_q$ by a larger fraction.

# %%
of_t5 = at.theory.dot_product_variance(head_dim, query_variance=1 / head_dim, key_variance=1)
np.testing.assert_allclose(of_t5, 1, rtol=1e-14)

# %% [markdown]
# ## Means, and trained heads (T1)
#
# Two of the three terms come from means, and one of them does not affect softmax. Write $k = m_k + \kappa$.
# The part $q \cdot m_k$ is the same for all keys of a row, and softmax ignores a constant of a row. So the
# term $v_q m_k^2$ is variance *between* rows. The variance within a row is the rest, $v_k (v_q + m_q^2)$
# times $d$.
#
# In trained heads the components are neither independent nor identically distributed. The formula still holds
# in matrix form. For a random query and a random key of a head, with covariance matrices $\Sigma_q, \Sigma_k$
# of their components,
#
# $$\mathrm{Var}(q \cdot k)
# = \mathrm{tr}(\Sigma_q \Sigma_k) + m_k^\top \Sigma_q m_k + m_q^\top \Sigma_k m_q,$$
#
# because $q$ and $k$ are still drawn independently of each other. With independent components this is T1. We
# check it on the 18 heads of all-MiniLM-L6-v2 that the package ships.

# %%
data = at.datasets.minilm_qk()
query, key = data.query.astype(float), data.key.astype(float)
head_dim = query.shape[-1]


def parts_of(q, k):
    """The three terms, and their sum with the covariances of different components set to 0."""
    cov_q, cov_k, mean_q, mean_k = np.cov(q.T, bias=True), np.cov(k.T, bias=True), q.mean(0), k.mean(0)
    terms = (cov_q * cov_k).sum(), mean_k @ cov_q @ mean_k, mean_q @ cov_k @ mean_q
    var_q, var_k = np.diag(cov_q), np.diag(cov_k)
    return *terms, (var_q * var_k + var_q * mean_k**2 + var_k * mean_q**2).sum()


parts = np.array([parts_of(q, k) for q, k in zip(query, key, strict=True)]) / head_dim
spread, between_rows, shift, independent = parts.T
scores = query @ key.transpose(0, 2, 1) / np.sqrt(head_dim)
total = spread + between_rows + shift
np.testing.assert_allclose(total, scores.var((1, 2)), rtol=1e-12)
np.testing.assert_allclose(total - between_rows, scores.var(-1).mean(-1), rtol=1e-12)  # within a row
shifted = softmax(scores - np.einsum("hqd,hd->hq", query, key.mean(1))[..., None] / np.sqrt(head_dim))
np.testing.assert_allclose(shifted, softmax(scores), atol=1e-12)  # the mean key does not change the weights

print(f"variance of a scaled score: {total.min():.2f} to {total.max():.0f}, median {np.median(total):.1f}")
ratio = independent / total
print(f"independent components would give {ratio.min():.2f} to {ratio.max():.2f} of it")
np.testing.assert_allclose([total.min(), total.max()], [0.84, 383], rtol=5e-3)
assert 0.3 < ratio.min() < 0.4 < ratio.max() < 1

# %%
heads = [f"L{layer} H{head}" for layer, head in zip(data.layers, data.heads, strict=True)]
with at.plot.style():
    figure, ax = plt.subplots(figsize=(7.2, 3.1))
    place = np.arange(len(heads))
    ax.plot(place, total, "o", color=BLUE, label="all pairs of query and key")
    ax.plot(place, independent, "D", color=RED, label="if components were independent")
    ax.axhline(1, color=GREY, linestyle=(0, (4, 2)), linewidth=1.2)
    ax.text(-0.6, 1.1, "1", color=GREY, fontsize=8)
    ax.set(yscale="log", xlim=(-0.8, 17.8), ylim=(0.4, 900), ylabel=r"variance of $q \cdot k/\sqrt{d}$")
    ax.set_title("Trained heads of all-MiniLM-L6-v2")
    ax.set_xticks(place, heads, rotation=60)
    ax.legend(ncols=3, loc="upper right")
    plt.show()

# %% [markdown]
# Training gives every head its own variance, here from 0.84 to 383. The components of these heads are
# correlated: independent ones would have less variance in every head, down to a third. The factor $1/\sqrt d$
# matters where training starts. It does not keep scores at unit variance.
#
# ## The Jacobian of softmax (T2)
#
# Why would large scores hurt? With $p_i = e^{s_i}/Z$, the derivative $\partial p_i/\partial s_j$ is
# $p_i \delta_{ij} - p_i p_j$, or $J = \mathrm{diag}(p) - p p^\top$. For a direction $v$,
#
# $$v^\top J v = \sum_i p_i v_i^2 - \Big(\sum_i p_i v_i\Big)^2 = \mathrm{Var}_p(v),$$
#
# the variance of the numbers $v$ under the weights. Three facts follow.
#
# - $J$ is positive semidefinite, and $J \mathbf 1 = 0$: constants do not count.
# - Its norm is at most $1/2$. No variance exceeds a quarter of the squared range, and a unit vector
#   has a range of at most $\sqrt 2$. Equality needs two keys with weight $1/2$ each.
# - Its trace is $1 - \sum_i p_i^2 \le 2 (1 - p_{\max})$. So $J \to 0$ as the row goes to one-hot.

# %%
s = at.montecarlo.normal(7, std=2, rng=6)
p = softmax(s)
jacobian = np.diag(p) - np.outer(p, p)
step = 1e-5 * np.eye(7)
np.testing.assert_allclose(jacobian, ((softmax(s + step) - softmax(s - step)) / 2e-5).T, atol=1e-10)
eigenvalues = np.linalg.eigvalsh(jacobian)
np.testing.assert_allclose(at.theory.jacobian_norm(p), eigenvalues[-1], rtol=1e-12)
np.testing.assert_allclose(at.theory.jacobian_trace(p), eigenvalues.sum(), rtol=1e-12)

rows = softmax(at.montecarlo.normal((2000, 20), rng=7) * np.geomspace(0.1, 100, 2000)[:, None])
assert (at.theory.jacobian_norm(rows) <= 0.5).all()
assert at.theory.jacobian_norm([0.5, 0.5, 0.0]) == 0.5
assert (at.theory.jacobian_trace(rows) <= 2 * (1 - rows.max(-1)) + 1e-15).all()

# %% [markdown]
# The article compares this with $\sigma(x)$ at large $x$. With two keys the two are the same: the weights are
# $\sigma(\pm g)$, with $g$ the difference of the scores, and the trace is $2\sigma(g)\sigma(-g)$, twice the
# slope of $\sigma$, which falls like $2 e^{-g}$.

# %%
gap = np.array([0.0, 2.0, 8.0])
two = softmax(np.stack([gap, 0 * gap], -1))
sigmoid = 1 / (1 + np.exp(-gap))
np.testing.assert_allclose(two[:, 0], sigmoid, rtol=1e-14)
np.testing.assert_allclose(at.theory.jacobian_trace(two), 2 * sigmoid * (1 - sigmoid), rtol=1e-11)

# %% [markdown]
# ## Saturation against d (T2)
#
# `softmax_saturation` draws rows of 64 normal keys and counts the rows with a weight above 0.99, with and
# without the scale. The trace can also be computed exactly. Given $q$, the scores of normal keys are
# independent normal numbers with standard deviation $|q|$ (unscaled) or $|q|/\sqrt d$. The expected trace is
# `expected_jacobian_trace` at $\beta = |q|$, averaged over the chi distribution of $|q|$.
#
# For large $d$ the unscaled trace has a simple limit. A row that is nearly one-hot passes a gradient only if
# its two best keys are close. With a gap $g$ between them, $p = 1/(1 + e^{-\beta g})$ and the trace is
# $2 p (1 - p)$. Let $\rho$ be the density of the gap at 0, at $\beta = 1$:
#
# $$\mathbb E[\mathrm{tr} J] \approx \rho \int_0^\infty 2 p (1 - p)\, \mathrm dg = \frac{\rho}{\beta}, \qquad
# \rho = n (n - 1) \int \varphi(x)^2\, \Phi(x)^{n - 2}\, \mathrm dx = 2.3437 \text{ at } n = 64.$$
#
# With $\beta \approx \sqrt d$ the mean Jacobian vanishes like $1/\sqrt d$: a power law, not an exponential.

# %%
n, dims = 64, [4, 16, 64, 256, 1024]
result = at.montecarlo.softmax_saturation(head_dim=dims, n=n, samples=2000, rng=8)
print(result)
saturated, trace = result["saturated"], result["jacobian_trace"]
node, weight = np.polynomial.legendre.leggauss(32)


def mean_over_queries(function, d, scale, n):
    """Expectation for normal q and n normal keys: over |q| by quadrature in its quantiles."""
    length = stats.chi.ppf((node + 1) / 2, d)
    return weight / 2 @ function(n, scale * length, model="gaussian")


def expected_trace(d, scale):
    return mean_over_queries(at.theory.expected_jacobian_trace, d, scale, n)


exact = np.array([[expected_trace(d, scale) for scale in (1 / np.sqrt(d), 1)] for d in dims])
assert (abs(trace.value - exact) < 5 * trace.standard_error).all()
np.testing.assert_allclose(exact[-1], [0.9612, 0.0732], atol=5e-5)
top_two = integrate.quad(lambda x: stats.norm.pdf(x) ** 2 * stats.norm.cdf(x) ** (n - 2), -8, 8)[0]
rho = n * (n - 1) * top_two
np.testing.assert_allclose(rho, 2.3437, atol=5e-5)
np.testing.assert_allclose(expected_trace(2**14, 1), rho / np.sqrt(2**14), rtol=1e-3)

scaled, unscaled = saturated.value.T
assert (scaled < 0.005).all()
assert (np.diff(unscaled) > 0).all()
assert abs(unscaled[-1] - 0.70) < 3 * saturated.standard_error[-1, 1] < 0.035
assert (exact[:, 0] > 0.95).all()

# %%
fine = np.geomspace(4, 1024, 25)
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.2))
    left.set_ylim(-0.02, 1)
    at.plot.saturation(result, ax=left).set_title("Saturated rows")
    for j, (colour, mark) in enumerate(((BLUE, "o"), (PURPLE, "D"))):
        curve = [expected_trace(d, 1 if j else 1 / np.sqrt(d)) for d in fine]
        right.plot(fine, curve, color=colour, linewidth=1.4)
        points(right, dims, trace.value[:, j], trace.standard_error[:, j], colour, mark)
    right.plot(fine, rho / np.sqrt(fine), color=GREY, linestyle=(0, (4, 2)), linewidth=1.2)
    right.text(5, 1.25, r"$\rho/\sqrt{d}$", color=GREY, fontsize=9)
    against_d(right, dims, yscale="log", ylim=(0.05, 1.6), ylabel=r"trace, $1 - \sum p^2$")
    right.set_yticks([0.1, 0.3, 1], ["0.1", "0.3", "1"])
    right.set_title("Mean Jacobian, exact and simulated")
    plt.show()

# %% [markdown]
# ## Which gradient vanishes (T2)
#
# "The gradient is almost 0": the gradient of what, and in which rows? Let $g$ be the gradient at the weights,
# here standard normal. At the scores it is $J g$, and at the query $\lambda \sum_j (J g)_j k_j$. Without the
# scale, $|k_j| \approx \sqrt d$ makes up for the small Jacobian. Take two close keys as above: $J g$ is
# $p(1 - p)(g_1 - g_2)$ at one key and its negative at the other, so the gradient at the query has the length
# $p (1 - p)\, |g_1 - g_2|\, |k_1 - k_2|$. With $\mathbb E|g_1 - g_2| = 2/\sqrt\pi$ and $|k_1 - k_2| \approx
# \sqrt{2 d}$,
#
# $$\mathbb E\,|\nabla_q| \to \frac{\rho}{\sqrt d} \cdot \frac12 \cdot \frac{2}{\sqrt \pi} \cdot \sqrt{2 d}
# = \rho \sqrt{2/\pi} = 1.870 \quad (n = 64):$$
#
# the *mean* gradient at an unscaled query does not vanish at all, but fewer and fewer rows carry it.

# %%
limit = rho * np.sqrt(2 / np.pi)
np.testing.assert_allclose(limit, 1.870, atol=5e-4)


def gradients(d, rows=2000, block=50):
    """Norms of the gradients at the query for normal q, keys and g: (scaled or not, rows)."""
    rng, found = np.random.default_rng(d), []
    for _ in range(rows // block):
        q, k, g = (at.montecarlo.normal((block, *shape), rng=rng) for shape in ((d, 1), (n, d), (n,)))
        products = (k @ q)[..., 0]
        for scale in (1 / np.sqrt(d), 1):
            p = softmax(scale * products)
            at_scores = p * (g - (p * g).sum(-1, keepdims=True))  # J g
            found.append(np.linalg.norm(scale * (at_scores[:, None] @ k)[:, 0], axis=-1))
    return np.array([np.concatenate(found[i::2]) for i in (0, 1)])


norms = np.array([gradients(d) for d in dims])
mean, middle = norms.mean(-1), np.median(norms, axis=-1)  # (dims, scaled or not)
error = norms.std(-1) / np.sqrt(norms.shape[-1])
squares = np.sort(norms**2, axis=-1)
top_share = squares[..., -100:].sum(-1) / squares.sum(-1)
for j, name in enumerate(("scaled", "unscaled")):
    print(f"gradient at the query, {name}; share: of its square, in the top 5 % of rows")
    for d, m, e, med, share in zip(dims, mean[:, j], error[:, j], middle[:, j], top_share[:, j], strict=True):
        print(f"  d = {d:4d}: mean {m:.3f} +- {e:.3f}, median {med:.4f}, share {share:.0%}")

assert abs(mean[-1, 1] - limit) < 5 * error[-1, 1]
np.testing.assert_allclose(mean[1:, 0], mean[-1, 0], rtol=0.03)  # with the scale: the same at every d
assert (top_share[1:, 0] < 0.25).all()
assert middle[-1, 1] < 0.01
assert abs(mean[-1, 1] - 10 * mean[-1, 0]) < 3 * error[-1, 1]
assert top_share[-1, 1] > 0.6

# %%
with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.6, 3.2))
    for j, (name, colour, mark) in enumerate((("scaled", BLUE, "o"), ("unscaled", PURPLE, "D"))):
        line = {"linestyle": "-", "markerfacecolor": colour, "label": f"{name}, mean"}
        points(ax, dims, mean[:, j], error[:, j], colour, mark, linewidth=1.2, **line)
        line = {"linestyle": (0, (4, 2)), "markerfacecolor": "white", "label": f"{name}, median"}
        ax.plot(dims, middle[:, j], color=colour, marker=mark, linewidth=1.2, **line)
    against_d(ax, dims, yscale="log", ylim=(2e-3, 6), ylabel="norm", title="Gradient at the query")
    ax.axhline(limit, color=GREY, linewidth=1.2)
    ax.text(4, 2.2, r"limit of the unscaled mean, $\rho\sqrt{2/\pi}$", color=GREY, fontsize=8)
    ax.legend(loc="lower left")
    plt.show()

# %% [markdown]
# The article is right about a typical row: without the scale, half the rows have a gradient below 0.01 at
# $d = 1024$. The mean does not vanish: it is ten times that of scaled attention. A twentieth of the rows,
# those in which two keys happen to tie, carries most of the squared gradient. These are random vectors; they
# say nothing about training.
#
# ## From uniform to one-hot, the article's way (T3)
#
# The second reason is that softmax is a smooth version of the maximum. For large $a$ the number $e^{a (x_i -
# \max x)}$ is 1 at the largest $x_i$ and nearly 0 elsewhere, but not smooth, and it does not add up to 1.
# Replace $\max x$ by the *smooth maximum* $\mathrm{lse}(a x)/a$, which lies between $\max x$ and $\max x +
# \ln(n)/a$:
#
# $$e^{a (x_i - \mathrm{lse}(a x)/a)} = \frac{e^{a x_i}}{\sum_j e^{a x_j}} = \mathrm{softmax}(a x)_i.$$
#
# [Notebook 1](01_attention_and_entropy.ipynb) draws the limits; keys that tie share the weight.

# %%
x = np.sort(at.montecarlo.normal(64, rng=9))
a = np.geomspace(1e-3, 200, 200)
smooth = at.theory.smooth_maximum(x, a)
low, high = at.theory.smooth_maximum_bounds(x, a)
assert ((low <= smooth) & (smooth <= high + 1e-12)).all()
p = softmax(a[:, None] * x)
np.testing.assert_allclose(np.exp(a[:, None] * (x - smooth[:, None])), p, rtol=1e-11, atol=1e-300)
np.testing.assert_allclose(softmax(200 * np.append(x, x[-1]))[-3:], [0, 0.5, 0.5], atol=1e-3)

# %% [markdown]
# ## The scale is a temperature (T4)
#
# $1/a$ acts as a temperature. [Notebook 1](01_attention_and_entropy.ipynb) derives $\mathrm dH/\mathrm da =
# -a\, \mathrm{Var}_p(x) \le 0$: a higher temperature is flatter, for any scores. The article compares this
# with the $\sigma$ of a normal distribution: "the larger $\sigma$, the flatter". For scores that fall with
# the square of a distance the comparison is exact. Let $x_j = -j^2/2$ and $a = 1/\sigma^2$. Then the weights
# are a normal density on the integers, $p_j \propto e^{-j^2/2\sigma^2}$, and
#
# $$H = \tfrac12 \ln(2 \pi e\, \sigma^2), \qquad
# \frac{\mathrm dH}{\mathrm da} = -a\, \mathrm{Var}_p(x) = -a\, \frac{\sigma^4}{2} = -\frac{\sigma^2}{2},$$
#
# up to an error of order $e^{-2 \pi^2 \sigma^2}$, because the sum is not an integral (below $10^{-6}$ from
# $\sigma = 1$ on). The effective keys are $e^H = 4.13\, \sigma$: the temperature is a width.

# %%
j = np.arange(-200, 201)
sigma = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
picture = at.entropy_curve(np.ones((1, 1)), (-(j**2) / 2.0)[:, None], 1 / sigma**2)
np.testing.assert_allclose(picture.entropy[0], np.log(2 * np.pi * np.e * sigma**2) / 2, atol=1e-6)
np.testing.assert_allclose(-picture.variance[0] / sigma**2, -(sigma**2) / 2, rtol=1e-5)
np.testing.assert_allclose(np.exp(picture.entropy[0]) / sigma, 4.1327, atol=1e-4)

# %% [markdown]
# For random keys the scale sets the range of the context in the same way. With $1/\sqrt d$ a query uses the
# same number of 512 normal keys at every $d$; without it, nine at $d = 16$ and little more than one at $d =
# 256$. A task may need sharp rows (the article cites TENER, which drops the scale for named entities), but
# then the width of the head decides how sharp they are.


# %%
def effective_keys(d, scale):
    """exp of the expected entropy of 512 normal keys."""
    return np.exp(mean_over_queries(at.theory.expected_entropy, d, scale, 512))


keys = np.array([[effective_keys(d, scale) for scale in (1 / np.sqrt(d), 1)] for d in dims])
for d, (with_scale, without) in zip(dims, keys, strict=True):
    print(f"d = {d:4d}: {with_scale:.1f} of 512 keys scaled, {without:.2f} unscaled")
np.testing.assert_allclose(keys[:, 0], 312, atol=1.5)
np.testing.assert_allclose(keys[:, 1], [94.81, 9.04, 2.30, 1.43, 1.18], atol=5e-3)

with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.6, 3.0))
    for i, (name, colour, mark) in enumerate((("scaled", BLUE, "o"), ("unscaled", PURPLE, "D"))):
        ax.plot(dims, keys[:, i], color=colour, marker=mark, label=name)
    against_d(ax, dims, yscale="log", ylim=(0.9, 600), ylabel="effective keys, $e^H$")
    ax.set_title("Of 512 normal keys")
    ax.set_yticks([1, 10, 100, 512], ["1", "10", "100", "512"])
    ax.legend(loc="center right")
    plt.show()

# %% [markdown]
# ## What was shown
#
# - $\mathrm{Var}(q \cdot k) = d\,(v_x v_y + v_x m_y^2 + v_y m_x^2)$, exactly, for any independent
#   components. The scale $1/\sqrt d$ makes the spread of the scores independent of the width of the head,
#   and nothing more: a new BERT has scores of variance 0.0565, and the trained heads here range from 0.84
#   to 383.
# - Unscaled rows saturate: at $d = 1024$ and 64 keys, 70 % of them. Their mean Jacobian falls as $1/\sqrt d$,
#   the gradient of a typical row much faster. The mean gradient at the query does not vanish.
# - The scale is an inverse temperature. The choice $1/\sqrt d$ fits one number of keys only: the entropy of a
#   row still grows with $n$, which is why laws with $\log n$ were proposed.
#
# ## Exercises
#
# 1. Give the keys a mean of 0.5 with `mean=(0, 0.5)`. Predict the variance of $q \cdot k$ by the formula
#    before `dot_product_variance` measures it.
# 2. With 512 keys instead of 64, at which $d$ are half of the unscaled rows saturated? Is it more or less,
#    and why?
