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
# # Entropy invariance: the derivation, and what is true of it
#
# Su Jianlin's article of December 2021 ([kexue.fm/8823](https://kexue.fm/archives/8823)) proposes the scale
# $\log_{512} n/\sqrt d$: with it, the entropy of attention should not depend on the length $n$. This notebook
# goes through the derivation step by step, computes each step exactly, and checks it with random keys run
# through the kernels. Three results (claims **T7** to **T12** and **T14**):
#
# - the constant 0.24 of the article is half the logarithm of the golden ratio;
# - at the scales in use the entropy deficit is quadratic in the scale, not linear, so $\log_{512} n/\sqrt d$
#   slows the growth of entropy and does not stop it;
# - a law that does keep the entropy exists in the same model. It is close to $\sqrt{1 + 2\ln(n/512)}$.
#
# All of this is about a model: keys uniform on a sphere, independent of the query. The article's experiments
# are about trained networks, and nothing here says that they are wrong. The article does not claim that its
# law keeps the entropy exactly: it wants to offset part of the influence of the length, and says that
# complete independence is impossible. Where the heads of a real encoder give the opposite result, the section
# says so.
#
# **摘要。** 苏剑林 2021 年的文章《从熵不变性看 Attention 的 Scale 操作》提出
# 用 $\log_{512} n/\sqrt d$ 作为缩放因子，使注意力的熵与长度 $n$ 无关。
# 本文逐步重走其推导，并对每一步给出精确结果：
# 常数 0.24 恰为黄金比例对数的一半；熵的亏损在实际使用的尺度附近是缩放因子的二次函数而不是一次函数，
# 因此 $\log_{512} n$ 只是减缓了熵的增长；在同一模型中，真正保持熵不变的缩放因子近似为
# $\sqrt{1 + 2\ln(n/512)}$。这些结论只针对随机键的模型，并不否定文章中的实验；
# 在真实的头上次序不同 (见第七个 notebook)，而训练后改用 $\ln n$ 确实会使注意力饱和。
#
# | English | 中文 | here |
# |---|---|---|
# | entropy deficit | 熵的亏损 | $\ln n - H$ |
# | annealed | 退火平均 | averages inside the logarithm; right for many keys that share the weight |
# | quenched | 淬火平均 | the average of the entropy itself, at a finite $n$ |
# | von Mises-Fisher distribution | 冯·米塞斯-费希尔分布 | density $\propto e^{\kappa \cos\theta}$ |
# | golden ratio | 黄金比例 | $\varphi = (1 + \sqrt 5)/2$ |
# | gradient vanishing | 梯度消失 | the Jacobian of softmax goes to 0 |

# %%
import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from attnscale import theory

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

rng = np.random.default_rng(20211221)
D = 64


def unit_rows(*shape):
    """Uniform directions."""
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def simulated(statistic, n, beta, n_sets=40, n_queries=32):
    """Mean and standard error over sets of random keys, through the kernels."""
    means = []
    for _ in range(n_sets):
        query, key = np.sqrt(D) * unit_rows(n_queries, D), np.sqrt(D) * unit_rows(n, D)
        rows = at.attention_statistics(query, key, scale=beta / np.sqrt(D), statistics=(statistic,))
        means.append(getattr(rows, statistic).mean())
    return np.mean(means), np.std(means, ddof=1) / np.sqrt(n_sets)


# %% [markdown]
# ## Keys on a sphere: the deficit in closed form (T7)
#
# The entropy of a row is
#
# $$H = \ln \sum_j e^{\lambda q \cdot k_j}
#   - \frac{\sum_j e^{\lambda q \cdot k_j}\, \lambda q \cdot k_j}{\sum_j e^{\lambda q \cdot k_j}}.$$
#
# Assume that both vectors have norm $\sqrt d$, so that $q \cdot k = d \cos\theta$, and that the keys are
# uniform on their sphere. For many keys each sum is near $n$ times its mean, and
#
# $$H \approx \ln n + \ln \mathbb E\, e^{\kappa \cos\theta}
#   - \kappa\, \frac{\mathbb E\, e^{\kappa \cos\theta} \cos\theta}{\mathbb E\, e^{\kappa \cos\theta}},
#   \qquad \kappa = \lambda d.$$
#
# The article continues with Laplace's approximation. It is not needed: the means are Bessel functions. With
# $M = \Gamma(\nu + 1) (2/\kappa)^\nu I_\nu(\kappa)$, $A = I_{\nu+1}(\kappa)/I_\nu(\kappa)$ and $\nu = d/2 -
# 1$,
#
# $$\ln n - H = \kappa A(\kappa) - \ln M(\kappa),$$
#
# the divergence of a von Mises-Fisher distribution from the uniform one. `sphere_entropy_deficit` computes it
# without $I_\nu$, which underflows from $d = 612$ on.

# %%
deficit = theory.sphere_entropy_deficit
assert abs(deficit(1 / 8, 64) - 0.48899425984578) < 1e-14
assert abs(deficit(1, 64) - 15.473400160234) < 1e-12
assert abs(deficit(1, 128) - 30.87183383) < 5e-9
print("deficit at scale 1/sqrt(d):", {d: round(deficit(d**-0.5, d), 4) for d in (2, 64, 128, 100_000)})

# %% [markdown]
# ## Where 0.24 comes from (T8)
#
# Laplace's approximation looks for the cosine $r$ at which $e^{\kappa t}(1 - t^2)^{d/2}$ is largest. This
# gives $\lambda = r/(1 - r^2)$, or
#
# $$r = \frac{2\lambda}{1 + \sqrt{1 + 4\lambda^2}}, \qquad \frac{\ln n - H}{d} \to -\tfrac12 \ln(1 - r^2).$$
#
# At $\lambda = 1$ the cosine is $1/\varphi$, and $1 - 1/\varphi^2 = 1/\varphi$: the deficit per dimension is
# $\frac12 \ln\varphi = 0.24060591$. This is the article's 0.24. It makes the 8.33 of "$n > 8.33 \ln N$"
# exactly $4/\ln\varphi = 8.3123$.

# %%
golden = (1 + 5**0.5) / 2
assert abs(theory.GOLDEN_DEFICIT - np.log(golden) / 2) < 1e-15
assert round(theory.GOLDEN_DEFICIT, 8) == 0.24060591
assert round(theory.GOLDEN_DIMENSION, 8) == 8.31234768
for d in (64, 768, 100_000):
    print(f"d = {d:6d}: deficit(1, d)/d = {deficit(1, d) / d:.6f}")
assert abs(deficit(1, 100_000) / 100_000 - theory.GOLDEN_DEFICIT) < 1e-5

# %% [markdown]
# ## The deficit is not linear in the scale (T9)
#
# The article writes $H \approx \ln n - 0.24\,\lambda d + O(1)$. The number was computed at $\lambda = 1$. The
# line through the origin and that point is not the curve: it meets the curve again at $\lambda = 1.742$ and
# stays within 2.3 % of it for $\lambda$ between 0.9 and 2. But attention has $\lambda = 1/\sqrt d$. There the
# curve is a parabola,
#
# $$\ln n - H \approx \tfrac12 \lambda^2 d,$$
#
# which at $d = 64$ gives half a nat where the line gives 1.92. Setting the line equal to $\ln n$ gave
# $\lambda \propto \ln n$. The parabola gives $\lambda \propto \sqrt{\ln n}$.

# %%
rate = theory.sphere_entropy_deficit_rate
line = theory.GOLDEN_DEFICIT
near = np.linspace(0.9, 2, 1001)
assert 0.022 < np.abs(line * near / rate(near) - 1).max() < 0.0235
assert abs(rate(1.74181) - line * 1.74181) < 1e-6
assert abs(deficit(1 / 8, 64) - 0.5) < 0.02
assert abs(0.24 * 8 - 1.92) < 1e-12

scale = np.linspace(0, 2.2, 400)
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.2))
    for ax, top in ((left, 2.2), (right, 0.35)):
        x = scale * top / 2.2
        ax.plot(x, deficit(x, D), color=at.plot.COLOURS[0], label="exact")
        ax.plot(x, 0.24 * x * D, color=at.plot.COLOURS[1], linestyle=(0, (4, 2)), label=r"$0.24\,\lambda d$")
        ax.plot(x, x * x * D / 2, color=at.plot.COLOURS[2], linewidth=1.2, label=r"$\lambda^2 d/2$")
        ax.set(xlim=(0, top), ylim=(0, deficit(top, D) * 1.25), xlabel=r"scale $\lambda$")
    left.set(ylabel=r"$\ln n - H$ (nats)", title="Deficit, $d = 64$")
    right.set_title(r"Where attention works: $\lambda = 1/\sqrt{d}$")
    right.plot([1 / 8], [deficit(1 / 8, D)], "o", color=at.plot.COLOURS[0])
    left.legend()
    plt.show()

# %% [markdown]
# ## Any number of keys, exactly (T11)
#
# So far $n$ was so large that sums equal their means. At a large scale few keys have most of the weight, and
# this fails. For independent scores the exact average is still an integral. Write $f(u) = \mathbb E
# \exp(-e^{u + \beta s})$ for a score $\beta s$, start from $\ln Z = \int_0^\infty (e^{-z} - e^{-zZ})\,\mathrm
# dz/z$ and $1/Z = \int_0^\infty e^{-zZ}\,\mathrm dz$, put $z = e^u$ and use that the keys are independent:
#
# $$\mathbb E \ln Z = \int \left(e^{-e^u} - f(u)^n\right) \mathrm du, \qquad
# \mathbb E\, \mathbb E_p[\ell] = n \int e^u\,
#   \mathbb E\!\left[\beta s\, e^{\beta s} e^{-e^{u + \beta s}}\right] f(u)^{n-1}\, \mathrm du.$$
#
# Their difference is $\mathbb E[H]$. `expected_entropy` evaluates it for $n$ up to $10^{15}$ and any $\beta =
# \lambda\sqrt d$. The points are random keys run through the attention kernels.

# %%
lengths = np.array([512, 2048, 8192])
laws = ("standard", "log_n", "natural_log_n")
points = {}
for law in laws:
    beta = at.laws.get(law).multiplier(lengths, D)
    points[law] = np.array(
        [simulated("entropy", int(n), float(b)) for n, b in zip(lengths, beta, strict=True)]
    )
    exact = theory.expected_entropy(lengths, beta)
    misses = (points[law][:, 0] - exact) / points[law][:, 1]
    print(f"{law:14}", *(f"{m:7.4f} +- {e:.4f}" for m, e in points[law]), "  exact", exact.round(4))
    assert (np.abs(misses) < 5).all()

# %% [markdown]
# ## log n slows the growth, and does not stop it (T10)
#
# Under the standard scale the entropy is half a nat below $\ln n$. $\log_{512} n/\sqrt d$ lowers the slope,
# but 32,768 keys still have 3.3 nats more than 512: 28 times as many effective keys. The natural logarithm,
# $\ln n/\sqrt d$, nearly keeps the entropy, at about three effective keys.
#
# On real heads the order differs. With one constant per head, fitted from 64 to 512 tokens, $\log n$ keeps
# the entropy of the 18 heads of [notebook 7](07_calibrating_a_real_model.ipynb) better than $\sqrt{1 +
# 2\ln(n/n_0)}$, and two other laws keep it better still: their keys are not random.

# %%
n = np.array([512, 4096, 32768])
table = {law: theory.expected_entropy(n, at.laws.get(law).multiplier(n, D)) for law in laws}
for law, values in table.items():
    print(f"{law:14}", values.round(4), " effective keys", np.exp(values).round(1))
np.testing.assert_allclose(table["standard"], [5.7523, 7.8292, 9.9083], atol=5e-5)
np.testing.assert_allclose(table["log_n"], [5.7523, 7.4642, 9.0894], atol=5e-5)
np.testing.assert_allclose(table["natural_log_n"], [1.2367, 1.1723, 1.1232], atol=5e-5)
assert 28 < np.exp(table["log_n"][2] - table["log_n"][0]) < 29

# %% [markdown]
# ### Any base will do?
#
# A later article (of April 2023) says that the base 512 may be used whatever the training length, with hardly
# a difference. Another base $b$ is a constant factor, $\log_{512} n = \log_b n \cdot \log_{512} b$. A model
# that is *trained* with it can absorb the factor into $W_q$, and then the two are the same model. A model
# that was trained with $1/\sqrt d$ at length $L$ cannot: the law changes its scale even at the training
# length, by $\log_{512} L$. On the sphere, the entropy at $L = 64$ rises by a quarter of a nat, at 8192 it
# falls by half a nat, at 131,072 by more than one. The causal heads of the package were trained on 2048
# tokens: over the second half of the text, base 512 lowers their entropy by 0.53 nat.

# %%
trained = np.array([64, 2048, 8192, 131072])
factor = at.laws.LogN().multiplier(trained, D)
np.testing.assert_allclose(factor, [0.667, 1.222, 1.444, 1.889], atol=5e-4)
cost = theory.expected_entropy(trained, factor) - theory.expected_entropy(trained, 1)
print(
    "nats gained by base 512 at the length of the training:",
    dict(zip(trained.tolist(), cost.round(3).tolist(), strict=True)),
)
np.testing.assert_allclose(cost, [0.252, -0.233, -0.507, -1.165], atol=5e-4)
own_base = [at.laws.LogN(base=float(length)).multiplier(length, D) for length in trained]
np.testing.assert_allclose(own_base, 1)

q, k = np.sqrt(D) * unit_rows(2, 300, D)
absorbed = q * np.log(8192) / np.log(512)  # what W_q would become in training
np.testing.assert_allclose(
    at.attention_weights(absorbed, k, scale="log_n(base=8192)"), at.attention_weights(q, k, scale="log_n")
)

causal = at.datasets.causal_qk()
half = [
    at.attention_entropy(causal.query, causal.key, scale=law, is_causal=True)[:, 1024:].mean(dtype=float)
    for law in ("standard", "log_n")
]
print("shipped causal heads, rows 1024 to 2047: {:.2f} nats, with base 512 {:.2f}".format(*half))
np.testing.assert_allclose(half, [4.56, 4.03], atol=5e-3)

# %% [markdown]
# ## The law that keeps the entropy (T12)
#
# Solve $\mathbb E[H](n, \beta) = \mathbb E[H](512, 1)$ for $\beta$. To first order in the parabola above,
# $\ln n - \beta^2/2 = \ln 512 - 1/2$, so
#
# $$\beta(n) \approx \sqrt{1 + 2 \ln(n/512)}.$$
#
# The exact solution lies above it, by a quarter at $n = 2^{20}$, because the deficit saturates and few keys
# begin to matter. Below $n = 300$ or so there is no solution: a row cannot have more than $\ln n$ nats.

# %%
n = np.array([1024, 4096, 32768, 2**20])
invariant = theory.invariant_beta(n, head_dim=D)
np.testing.assert_allclose(invariant, [1.58696, 2.43330, 3.47118, 5.0405], atol=5e-5)
np.testing.assert_allclose(theory.expected_entropy(n, invariant), theory.expected_entropy(512, 1), atol=1e-9)
assert abs(theory.annealed_beta(2**20) / invariant[-1] - 0.8) < 0.005
assert np.isnan(theory.invariant_beta(300, on_infeasible="nan"))
measured, error = simulated("entropy", 8192, theory.invariant_beta(8192))
print(f"8192 random keys at the invariant scale: {measured:.3f} +- {error:.3f} nats; 512 keys at 1: 5.752")
assert abs(measured - theory.expected_entropy(512, 1)) < 5 * error

grid = np.geomspace(330, 2**20, 60)
curves = {
    "standard": np.ones_like(grid),
    "log_n": np.log(grid) / np.log(512),
    "natural_log_n": np.log(grid),
    "invariant": theory.invariant_beta(grid),
    "annealed": theory.annealed_beta(grid),
}
names = [
    r"$1/\sqrt{d}$",
    r"$\log_{512} n/\sqrt{d}$",
    r"$\ln n/\sqrt{d}$",
    "invariant",
    r"$\sqrt{1 + 2\ln(n/512)}$",
]
with at.plot.style():
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.4))
    for (law, beta), name, colour in zip(curves.items(), names, at.plot.COLOURS, strict=False):
        left.plot(grid, beta, color=colour, label=name)
        right.plot(grid, theory.expected_entropy(grid, np.nan_to_num(beta)), color=colour)
        if law in points:
            means, errors = points[law].T
            right.errorbar(lengths, means, 3 * errors, fmt="o", color=colour, markersize=3.5)
    left.set(
        xscale="log", xlabel="$n$", ylabel=r"$\beta$", ylim=(0, 9), title="Multiples of the standard scale"
    )
    right.set(xscale="log", xlabel="$n$", ylabel="expected entropy (nats)", ylim=(0, 14))
    right.set_title("Exact curves; points: random keys")
    left.legend(fontsize=7)
    plt.show()

# %% [markdown]
# ## Do gradients vanish under ln n? (T14)
#
# The article warns that the natural logarithm is too large, "leading to severe gradient vanishing". The
# gradient of softmax goes through its Jacobian $\mathrm{diag}(p) - p p^\top$, whose trace is $1 - \sum p^2$.
# In this model the trace falls slowly, from 0.51 to 0.45 between 512 and a million keys, and stays far
# from 0. But a few per cent of the rows give more than 0.99 to one key. Those rows are saturated; the average
# row is not.
#
# For trained heads the article is right. Their scores vary more than those of random keys, and under $\ln n$
# the trace of the median row of the 18 shipped heads falls from 0.98 to 0.11 at 512 tokens: 37 % of the rows
# have a weight above 0.99, against 4 % before. These heads were trained at $1/\sqrt d$; a model that is
# trained with $\ln n$ can make its queries smaller. So the warning is wrong for random keys, and right if the
# scale of a trained model is changed.

# %%
n = np.array([512, 4096, 32768, 2**20])
trace = theory.expected_jacobian_trace(n, np.log(n))
np.testing.assert_allclose(trace, [0.5059, 0.4802, 0.4625, 0.4456], atol=5e-5)
gaussian = theory.expected_jacobian_trace(n, np.log(n), model="gaussian")
np.testing.assert_allclose(gaussian, [0.4719, 0.4279, 0.3930, 0.3493], atol=5e-5)

saturated = []
for n_keys in (512, 4096):
    query, key = np.sqrt(D) * unit_rows(40, 100, D), np.sqrt(D) * unit_rows(40, n_keys, D)
    top = at.attention_statistics(query, key, scale="natural_log_n", statistics=("max_weight",)).max_weight
    saturated.append((top > 0.99).mean())
print("trace", trace.round(4), "  rows with a weight above 0.99:", [f"{share:.1%}" for share in saturated])
assert all(0.01 < share < 0.13 for share in saturated)

data = at.datasets.minilm_qk()
real = {}
for law in ("standard", "natural_log_n"):
    rows = at.attention_statistics(
        data.query, data.key, scale=law, statistics=("concentration", "max_weight")
    )
    real[law] = np.median(1 - rows.concentration.astype(float)), (rows.max_weight > 0.99).mean()
    print(f"18 real heads, {law:14} median trace {real[law][0]:.3f}, rows above 0.99: {real[law][1]:.1%}")
np.testing.assert_allclose(real["standard"], [0.980, 0.039], atol=5e-4)
np.testing.assert_allclose(real["natural_log_n"], [0.110, 0.374], atol=5e-4)

with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.6, 3.0))
    n = np.geomspace(16, 2**20, 50)
    for law, label, colour in zip(laws, names, at.plot.COLOURS, strict=False):
        beta = at.laws.get(law).multiplier(n, D)
        ax.plot(n, theory.expected_jacobian_trace(n, beta), color=colour, label=label)
    ax.set(xscale="log", xlabel="$n$", ylabel=r"expected $1 - \sum p^2$", ylim=(0, 1.02))
    ax.set_title("Trace of softmax's Jacobian, $d = 64$")
    ax.legend()
    plt.show()

# %% [markdown]
# ## Play with it
#
# Entropy under three laws. With `ipywidgets` (part of the extra `notebooks`) sliders set the dimension and
# the length at which $\beta = 1$.


# %%
def draw(head_dim=64, log2_n0=9):
    """Entropy under three laws, and the multiple that would keep it."""
    n = np.geomspace(2**log2_n0, 2**20, 25)
    colours = [at.plot.COLOURS[place] for place in (0, 1, 3)]
    betas = {"1": np.ones_like(n), "log": np.log(n) / np.log(2**log2_n0)}
    betas["invariant"] = theory.invariant_beta(n, n0=2**log2_n0, head_dim=head_dim)
    with at.plot.style():
        _, ax = plt.subplots(figsize=(4.6, 2.8))
        for (name, beta), colour in zip(betas.items(), colours, strict=True):
            known = np.isfinite(beta)
            entropy = theory.expected_entropy(n[known], beta[known], head_dim=head_dim)
            ax.plot(n[known], entropy, color=colour, label=name)
        ax.set(xscale="log", xlabel="$n$", ylabel="nats", title=f"d = {head_dim}, n0 = {2**log2_n0}")
        ax.legend()
        plt.show()


try:
    import ipywidgets
except ImportError:
    draw()  # with ipywidgets there are sliders
else:
    ipywidgets.interact(
        draw,
        head_dim=ipywidgets.IntSlider(64, min=2, max=256),
        log2_n0=ipywidgets.IntSlider(9, min=4, max=14),
    )

# %% [markdown]
# ## What was shown
#
# - The article's 0.24 is half the logarithm of the golden ratio (T8). It holds at the scale 1; at the scales
#   in use the deficit is $\lambda^2 d/2$, about a quarter of what that line gives at $d = 64$ (T9).
# - Under $\log_{512} n$ 32768 random keys have 3.3 nats more than 512 (T10). A law that keeps the entropy
#   exists from some 300 keys on; it is close to $\sqrt{1 + 2 \ln(n/512)}$ and above it (T12). On real heads a
#   logarithm with one constant per head comes closer than either.
# - The base is a constant factor: no change if the model is trained with it, up to 1.2 nats here if it is
#   not.
# - Under $\ln n$ the mean Jacobian of random keys falls slowly, from 0.51 at 512 keys to 0.45 at a million;
#   that of the median row of real heads falls from 0.98 to 0.11 when the scale is changed (T14).
#
# ## Exercises
#
# 1. From which $n$ on does the invariant law exist at `head_dim=16` and at 256? `theory.invariant_beta` is
#    NaN below it.
# 2. Which exponent of $\log_{512} n$ keeps the entropy of 512 keys best between 512 and 32768? Compare with
#    1/2, the exponent of the parabola.
