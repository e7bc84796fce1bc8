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
# # Gradients, with the entropy in the loss
#
# The earlier notebooks analyse attention; this one trains it. `attnscale.torch` has the backward pass of
# attention and of every statistic of a row, so the entropy can be a term of a loss. What is the gradient of
# an entropy, and how does a step along it change a row? Which gradients vanish without $1/\sqrt d$ in a
# backward pass (claim **T2**)? What does an entropy term change in the training of a small model?
#
# This notebook needs PyTorch. Logarithms are natural, entropies in nats.
#
# **摘要。** 前面各篇只观察注意力，本文训练它。`attnscale.torch` 提供注意力及每行统计量 (lse，熵，平均分数等)
# 的反向传播，因而熵可以写进损失函数。熵对分数的梯度是 $-p_j(\ln p_j + H)$：权重大于 $1/e^H$ 的键与小于它的键
# 方向相反，总和为零，在均匀与 one-hot 的行上为零。不缩放时 (T2)，反向传播中典型的查询几乎得不到梯度，
# 平均梯度却没有消失，而是集中在少数几行；四分之一的值向量几乎没有梯度。在一个小模型上，
# 奖励熵在求平均的任务上大有帮助，在检索任务上则没有；惩罚熵使权重更尖锐，却没有使它更正确。
#
# | English | 中文 | here |
# |---|---|---|
# | backward pass | 反向传播 | computes the gradients at $q$, $k$, $v$ from the gradient at the output |
# | regulariser | 正则项 | a term of the loss that is not the task |
# | effective keys | 有效键数 | $e^H$, where $H$ is the entropy of a row |
# | fixed point | 不动点 | a row on which the gradient is 0 |

# %%
from types import SimpleNamespace

import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn import functional

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

BLUE, RED, GREEN, ORANGE, _, PURPLE = at.plot.COLOURS[:6]
GREY = "#6E6E6E"
print(f"attnscale {at.__version__}")


def softmax(scores):
    """Weights of a row."""
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# %% [markdown]
# ## The gradient of a row
#
# Let $s_j$ be the scores of a row, $p_j = e^{s_j - \mathrm{lse}}$ its weights, $m = \sum_j p_j s_j$ the mean
# score and $H = \mathrm{lse} - m$ the entropy. Everything follows from two derivatives,
#
# $$\frac{\partial\, \mathrm{lse}}{\partial s_j} = p_j, \qquad
#   \frac{\partial p_i}{\partial s_j} = p_i (\delta_{ij} - p_j).$$
#
# The second gives $\partial m/\partial s_j = p_j (1 + s_j - m)$, and with $s_j = \ln p_j + \mathrm{lse}$
#
# $$\boxed{\frac{\partial H}{\partial s_j} = -p_j\, (s_j - m) = -p_j\, (\ln p_j + H).}$$
#
# | statistic of a row | derivative by $s_j$ | sum over $j$ |
# |---|---|---|
# | lse | $p_j$ | 1 |
# | mean score $m$ | $p_j (1 + s_j - m)$ | 1 |
# | entropy $H$ | $-p_j (\ln p_j + H)$ | 0 |
# | score variance $v$ | $p_j ((s_j - m)^2 + 2 (s_j - m) - v)$ | 0 |
# | concentration $c = \sum p^2$ | $2 p_j (p_j - c)$ | 0 |
#
# The sum is the effect of adding a constant to all scores. Each formula agrees with `at.attention_gradients`,
# the backward pass of the kernel. If the query has one channel that is 1 and the keys are the scores, the
# gradient at the keys is the gradient at the scores. (The tests of the package compare both with finite
# differences.)

# %%
STATISTICS = ("lse", "mean_score", "entropy", "score_variance", "concentration")


def row(scores):
    """A query and keys that have these scores."""
    return np.ones((1, 1, 1)), np.asarray(scores, float)[None, :, None]


def of_kernel(scores, name):
    """d name / d scores, by the backward pass."""
    return at.attention_gradients(*row(scores), None, **{f"grad_{name}": 1.0}, scale=1.0).key[0, :, 0]


def entropy_of(p):
    """Entropy of weights in the last axis."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


scores = at.montecarlo.normal(12, std=1.5, rng=1)
p = softmax(scores)
m = p @ scores
variance, concentration = p @ (scores - m) ** 2, p @ p
formulas = (
    p,
    p * (1 + scores - m),
    -p * (np.log(p) + entropy_of(p)),
    p * ((scores - m) ** 2 + 2 * (scores - m) - variance),
    2 * p * (p - concentration),
)
for name, formula, total in zip(STATISTICS, formulas, (1, 1, 0, 0, 0), strict=True):
    np.testing.assert_allclose(of_kernel(scores, name), formula, atol=1e-14)
    np.testing.assert_allclose(formula.sum(), total, atol=1e-14)

# %% [markdown]
# ## What a step on the entropy does
#
# Read the boxed formula with $N = e^H$ effective keys: $\ln p_j + H = \ln(p_j N)$. Every key is compared with
# $1/N$. A step *down* in entropy adds $p_j \ln(p_j N)$ to $s_j$: it raises the keys with a weight above $1/N$
# and lowers the others; a step *up* does the opposite. The tail, where $p \ln p$ is small, hardly changes.
#
# **Fixed points.** The gradient is 0 where every $p_j$ is 0 or $1/N$, that is in rows with equal weights on
# the keys they use. With finite scores that is only the row of equal weights, the maximum, $H = \ln n$.
# One-hot rows and rows with equal weights on some keys need infinite scores or a mask: a row near them has
# hardly any gradient. So an entropy term cannot bring back a row that has collapsed; it can only keep rows
# from collapsing.

# %%
n = 12
np.testing.assert_allclose(of_kernel(np.zeros(n), "entropy"), 0, atol=1e-15)  # equal weights
one_hot = np.where(np.arange(n) == 3, 40.0, 0.0)
assert abs(of_kernel(one_hot, "entropy")).max() < 1e-14
some = np.arange(n) < 5
hidden = at.attention_gradients(*row(np.zeros(n)), None, grad_entropy=1.0, scale=1.0, attn_mask=some[None])
np.testing.assert_allclose(hidden.key, 0, atol=1e-15)  # equal on five keys, others masked

effective = np.exp(entropy_of(p))
gradient = of_kernel(scores, "entropy")
assert ((gradient < 0) == (p > 1 / effective)).all()
print(f"{effective:.2f} effective keys; weights above 1/N: {(p > 1 / effective).sum()} of {n}")


def flow(scores, sign, steps=4000, size=0.05):
    """Scores of a row after each of many small steps on H, up (1) or down (-1)."""
    path = [scores]
    for _ in range(steps):
        p = softmax(path[-1])
        path.append(path[-1] - sign * size * p * (np.log(np.where(p > 0, p, 1)) + entropy_of(p)))
    return np.array(path)


up, down = flow(scores, 1), flow(scores, -1)
for path, sign in ((up, 1), (down, -1)):
    weights = softmax(path)
    entropy = entropy_of(weights)
    assert (sign * np.diff(entropy) > -1e-12).all()  # every step changes H the way it should
    assert (path.argsort(-1) == scores.argsort()).all()  # keys never change places
    print(f"H = {entropy[0]:.3f} -> {entropy[-1]:.3f}, largest weight {weights[-1].max():.3f}")

# %%
order = np.argsort(-p)
colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, n))
with at.plot.style():
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.1))
    place = np.arange(n)
    axes[0].bar(place, p[order], color=BLUE, width=0.6, label="weight")
    axes[0].bar(place + 0.3, gradient[order], color=RED, width=0.3, label=r"$\partial H/\partial s_j$")
    axes[0].axhline(1 / effective, color=GREY, linestyle=(0, (4, 2)), linewidth=1.2)
    axes[0].text(n - 0.5, 1 / effective + 0.01, "$1/N$", color=GREY, fontsize=9, ha="right")
    axes[0].axhline(0, color="black", linewidth=0.6)
    axes[0].set(xlabel="key, by weight", title="One row and its gradient")
    axes[0].set_xticks(place, place + 1)
    axes[0].legend()
    for ax, path, title in zip(axes[1:], (up, down), ("Steps up in $H$", "Steps down in $H$"), strict=True):
        for j, colour in zip(order, colours, strict=True):
            ax.plot(0.05 * np.arange(1, len(path)), softmax(path)[1:, j], color=colour, linewidth=1.3)
        ax.set(xscale="log", xlabel="steps times their size", title=title)
    axes[1].set_ylabel("weights")
    plt.show()

# %% [markdown]
# On the way up the tail changes last. On the way down the second best key loses although its weight was above
# $1/N$: $N$ falls, and $1/N$ overtakes it.
#
# ## The gradient at the scale (T4)
#
# With $s = a x$ the chain rule gives
#
# $$\frac{\mathrm dH}{\mathrm da} = \sum_j x_j \frac{\partial H}{\partial s_j} = -\sum_j x_j\, p_j (s_j - m)
#   = -a\, \mathrm{Var}_p(x),$$
#
# the identity of notebooks 1 and 2. It is the gradient at a learned scale: the scale alone can satisfy an
# entropy term. The gradient of a row is 0 at $a = 0$, large in between, and 0 again for large $a$. (The
# second bump in the figure comes from the two best of these 64 keys, which are close and separate late.)

# %%
x = at.montecarlo.normal(64, rng=2)
a = np.geomspace(0.01, 1000, 101)
force, at_scale = [], []
for each in a:
    found = at.attention_gradients(*row(x), None, grad_entropy=1.0, scale=float(each))
    force.append(np.linalg.norm(found.key / each))  # at the scores
    at_scale.append(found.scale.item())
force, at_scale = np.array(force), np.array(at_scale)
p = softmax(a[:, None] * x)
variance = (p * (x - (p @ x)[:, None]) ** 2).sum(-1)
np.testing.assert_allclose(at_scale, -a * variance, rtol=1e-9, atol=1e-11)

top = force.argmax()
print(f"largest force at a = {a[top]:.1f}: {np.exp(entropy_of(p[top])):.1f} effective keys")
assert force[0] < 0.05 * force[top]
assert force[-1] < 0.05 * force[top]

with at.plot.style():
    figure, ax = plt.subplots(figsize=(4.8, 3.0))
    ax.plot(a, force, color=BLUE, label=r"$|\partial H/\partial s|$")
    ax.plot(a, -a * at_scale, color=RED, label=r"$-a\,\mathrm{d}H/\mathrm{d}a = \mathrm{Var}_p(s)$")
    ax.set(xscale="log", xlabel="scale $a$", title="64 normal keys: the force on a row")
    ax.legend()
    plt.show()

# %% [markdown]
# ## Which gradient vanishes in a backward pass (T2)
#
# [Notebook 2](02_why_scaled.ipynb) drew rows one by one, and found that without a scale the gradient of a
# typical query vanishes, while the mean tends to $\rho \sqrt{2/\pi} = 1.870$ (64 keys) and few rows carry it.
# Now the same in backward passes: 64 queries, keys and values of $d$ normal channels, a normal gradient $g$
# at the output, divided by $\sqrt d$ so that the gradient at a weight has variance 1 at every $d$. 60 heads
# give the standard errors.

# %%
dims, n, heads = [16, 64, 256, 1024], 64, 60
LAWS = ("standard", "unscaled")


def backward(d, law):
    """Norms of the gradients at each query, key and value: (3, heads, n)."""
    rng = np.random.default_rng([d, 11])
    tensors = [torch.from_numpy(at.montecarlo.normal((heads, n, d), rng=rng)) for _ in range(4)]
    q, k, v = (tensor.requires_grad_() for tensor in tensors[:3])
    at.torch.attention(q, k, v, scale=law).backward(tensors[3] / np.sqrt(d))
    return np.array([tensor.grad.norm(dim=-1).numpy() for tensor in (q, k, v)])


norms = np.array([[backward(d, law) for law in LAWS] for d in dims])  # (dims, laws, 3, heads, n)
mean, middle = norms.mean((-1, -2)), np.median(norms, axis=(-1, -2))
starved = norms < 0.01 * mean[..., None, None]
squares = np.sort(norms.reshape(*mean.shape, -1) ** 2, axis=-1)
top_share = squares[..., -squares.shape[-1] // 20 :].sum(-1) / squares.sum(-1)
error = norms.mean(-1).std(-1, ddof=1) / np.sqrt(heads)  # rows of one head share their keys
few = starved.mean((-1, -2))
for j, law in enumerate(LAWS):
    for part, name in enumerate(("query", "key", "value")):
        print(f"{law}, at the {name}; share of the square in the top 5 %; starved: below 1 % of the mean")
        for i, d in enumerate(dims):
            m, e, med, share, none = (x[i, j, part] for x in (mean, error, middle, top_share, few))
            line = f"mean {m:.3f} +- {e:.3f}, median {med:.4f}, {share:4.0%}, starved {none:.0%}"
            print(f"  d = {d:4d}: {line}")

np.testing.assert_allclose(mean[:, 0] / mean[-1:, 0], 1, atol=0.06)  # scaled: nearly the same at every d
assert abs(mean[-1, 1, 0] - 1.870) < 5 * error[-1, 1, 0]  # unscaled, at the query: its limit
assert abs(mean[-1, 1, 0] - 9.4 * mean[-1, 0, 0]) < 3 * error[-1, 1, 0]
assert middle[-1, 1, 0] < 0.01 * mean[-1, 1, 0]
assert top_share[-1, 1, 0] > 0.7
assert top_share[1:, 0, 0].max() < 0.25
assert middle[-1, 1, 1] > 10 * middle[-1, 1, 0]  # keys sum over 64 queries
# A value that no query chose has no gradient: with one-hot rows (1 - 1/64)^64 = 37 % of the values.
without = starved[-1, 1, 2].mean(-1)
assert abs(without.mean() - 0.25) < 3 * without.std(ddof=1) / np.sqrt(heads) + 0.005
assert without.mean() < (1 - 1 / 64) ** 64 < 0.37

# %%
with at.plot.style():
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.1), sharey=True)
    for part, (ax, name) in enumerate(zip(axes, ("queries", "keys", "values"), strict=True)):
        for j, (law, colour, mark) in enumerate(zip(LAWS, (BLUE, PURPLE), "oD", strict=True)):
            ax.errorbar(
                dims, mean[:, j, part], error[:, j, part], color=colour, marker=mark, label=f"{law}, mean"
            )
            line = {"linestyle": (0, (4, 2)), "markerfacecolor": "white", "label": f"{law}, median"}
            ax.plot(dims, middle[:, j, part], color=colour, marker=mark, **line)
        ax.set(
            xscale="log", yscale="log", ylim=(1e-3, 10), xlabel="head dimension, $d$", title=f"At the {name}"
        )
        ax.set_xticks(dims, dims)
        ax.minorticks_off()
    axes[0].set_ylabel("norm of a gradient")
    axes[0].legend(loc="lower left")
    plt.show()

# %% [markdown]
# Scaled attention gives queries, keys and values nearly the same gradient at every $d$. Unscaled, at $d =
# 1024$, the mean at the queries is nine times the scaled one, 5 % of them carry 79 % of its square, and the
# median is 0.3 % of the mean. The gradient of a key is a sum over 64 queries, one of which may be nearly
# tied, so it vanishes only at larger $d$. A value that no query chose has no gradient: a quarter of them at
# $d = 1024$, 37 % in the limit. So for these random vectors "the gradient vanishes" means that few rows carry
# nearly all of it.
#
# ## A small model, with an entropy term
#
# The model is one layer of `at.torch.nn.MultiheadAttention`, two heads of 16. A token is a code of 16 numbers
# and a noisy or clean label of 8 numbers, and one query reads 16 tokens. Two tasks:
#
# - *retrieve*: the query is the code of one of the tokens, plus a little noise; the answer is that token's
#   label. One key is right.
# - *average*: all tokens carry the same label with much noise, and the query is irrelevant. All keys are
#   right.
#
# The training sets are small, 512 and 128 sequences, so that models can overfit. The loss is cross-entropy
# plus $\lambda \bar H$, with $\bar H$ the mean entropy of the rows. A positive $\lambda$ penalises entropy, a
# negative one rewards it. Six seeds, tested on new data at the length of training and at longer ones. The 24
# models of a task, four $\lambda$ by six seeds, are trained together: `torch.func.vmap` adds an axis to all
# parameters, and attention over all models is one call.

# %%
CODE, LABELS, WIDTH = 16, 8, 32
torch.set_num_threads(1)


def retrieve(batch, n, generator):
    """Query, tokens, answer."""
    code = functional.normalize(torch.randn(batch, n, CODE, generator=generator), dim=-1)
    label = torch.randint(LABELS, (batch, n), generator=generator)
    every, chosen = torch.arange(batch), torch.randint(n, (batch,), generator=generator)
    query = code[every, chosen] + 0.1 * torch.randn(batch, CODE, generator=generator)
    return query, torch.cat((code, functional.one_hot(label, LABELS)), -1), label[every, chosen]


def average(batch, n, generator):
    """Query, tokens, answer."""
    label = torch.randint(LABELS, (batch,), generator=generator)
    query, code = (torch.randn(batch, *rows, CODE, generator=generator) for rows in ((), (n,)))
    noise = 2 * torch.randn(batch, n, LABELS, generator=generator)
    return query, torch.cat((code, functional.one_hot(label, LABELS)[:, None] + noise), -1), label


def best(task, n, count=2000):
    """Accuracy of a reader that knows how the data were made: one code is nearest, all labels are added."""
    query, tokens, label = task(count, n, torch.Generator().manual_seed(n))
    codes, labels = tokens[..., :CODE], tokens[..., CODE:]
    nearest = (codes @ query[..., None]).argmax(1, keepdim=True)  # codes have length 1
    chosen = labels.gather(1, nearest.expand(-1, -1, LABELS))[:, 0] if task is retrieve else labels.sum(1)
    return (chosen.argmax(-1) == label).float().mean().item()


class Reader(torch.nn.Module):
    """One query reads tokens."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(CODE + LABELS, WIDTH)
        self.attend = at.torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True, statistics=["entropy"])
        self.answer = torch.nn.Linear(WIDTH, LABELS)

    def forward(self, query, tokens):
        """Logits of the label, and the entropies of the rows."""
        query, tokens = self.embed(functional.pad(query, (0, LABELS)))[:, None], self.embed(tokens)
        logits = self.answer(self.attend(query, tokens, tokens, need_weights=False)[0][:, 0])
        return logits, self.attend.rows.entropy


READER = Reader()  # its own parameters are not used


def read(parameters, query, tokens, label):
    """Accuracy, cross-entropy, mean entropy and mean effective keys of one model."""
    logits, entropy = torch.func.functional_call(READER, parameters, (query, tokens))
    right = (logits.argmax(-1) == label).float().mean()
    return right, functional.cross_entropy(logits, label), entropy.mean(), entropy.exp().mean()


def trained(task, size, weights, seeds, steps=200, batch=32, n=16):
    """Parameters (weights * seeds, ...) after training, and the effective keys of each step."""
    models, data, picks = [], [], []
    for seed in seeds:  # each seed has its own data, order and initial parameters, shared by all weights
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        data.append(task(size, n, generator))
        picks.append([torch.randint(size, (batch,), generator=generator) for _ in range(steps)])
        models.append(Reader())
    parameters, _ = torch.func.stack_module_state(models * len(weights))
    factor = torch.tensor(weights).repeat_interleave(len(seeds))
    optimiser, keys = torch.optim.Adam(parameters.values(), lr=0.01), []
    for pick in zip(*picks, strict=True):
        drawn = [[part[own] for part in each] for each, own in zip(data, pick, strict=True)]
        given = (
            torch.stack(each).repeat(len(weights), *[1] * each[0].dim()) for each in zip(*drawn, strict=True)
        )
        _, loss, entropy, effective = torch.func.vmap(read)(parameters, *given)
        optimiser.zero_grad()
        (loss + factor * entropy).sum().backward()
        optimiser.step()
        keys.append(effective.detach())
    return parameters, torch.stack(keys, -1)


@torch.no_grad()
def measured(parameters, task, n):
    """Accuracy, loss and effective keys of each model on the same new data."""
    given = task(500, n, torch.Generator().manual_seed(1000 + n))
    accuracy, loss, _, keys = torch.func.vmap(read, (0, None, None, None))(parameters, *given)
    return torch.stack((accuracy, loss, keys), -1)


# %%
TASKS = {"retrieve": (retrieve, 512), "average": (average, 128)}
WEIGHTS, SEEDS, LENGTHS = [0.1, 0.0, -0.1, -0.5], range(6), [16, 64, 256]
results, traces = {}, {}
for name, (task, size) in TASKS.items():
    parameters, keys = trained(task, size, WEIGHTS, SEEDS)
    traces[name] = keys.unflatten(0, (len(WEIGHTS), -1)).numpy()  # (weights, seeds, steps)
    found = torch.stack([measured(parameters, task, n) for n in LENGTHS], 1)
    results[name] = found.unflatten(0, (len(WEIGHTS), -1)).numpy()  # (weights, seeds, lengths, what)
    print(f"{name}: accuracy at n = 16, 64, 256, mean and standard deviation over {len(SEEDS)} seeds")
    print("  a reader that knows the task:", *(f"{best(task, n):.3f}" for n in LENGTHS))
    for weight, table in zip(WEIGHTS, results[name], strict=True):
        middle, spread = table.mean(0), table.std(0, ddof=1)
        cells = [f"{middle[i, 0]:.3f} +- {spread[i, 0]:.3f}" for i in range(len(LENGTHS))]
        print(f"  lambda {weight:4.1f}: {', '.join(cells)}; {middle[0, 2]:4.1f} keys of 16")

# %% [markdown]
# Judged by the difference to $\lambda = 0$, seed by seed:

# %%
changes = {}
for name, table in results.items():
    accuracy = table[..., 0]
    change = accuracy - accuracy[1]
    changes[name] = SimpleNamespace(mean=change.mean(1), error=change.std(1, ddof=1) / np.sqrt(len(SEEDS)))
    for i in (0, 2, 3):
        parts = zip(LENGTHS, changes[name].mean[i], changes[name].error[i], strict=True)
        print(
            f"{name:8} lambda {WEIGHTS[i]:4.1f}:", *(f"n = {n}: {m:+.3f} +- {e:.3f}  " for n, m, e in parts)
        )

for table in results.values():  # the term moves the entropy the way it should
    assert (np.diff(table[:, :, 0, 2].mean(1)) > 0).all()
gain, same = changes["average"], changes["retrieve"]
critical = 2.57  # t with 5 degrees of freedom, 5 %
assert (gain.mean[2:] > critical * gain.error[2:]).all()  # rewards, at every length
assert (gain.mean[0] < -critical * gain.error[0]).all()  # the penalty
assert (same.mean < critical * same.error + 0.02).all()  # no weight of the term helps, at any length
collapsed = results["retrieve"][0, :, 0, 2] < 1.5
print(f"penalised, retrieve: {collapsed.sum()} of {len(SEEDS)} seeds fall to one key")

# %%
with at.plot.style():
    figure, axes = plt.subplots(2, 2, figsize=(8.4, 5.6))
    for column, name in zip(axes.T, TASKS, strict=True):
        for i, (weight, colour) in enumerate(zip(WEIGHTS, (RED, GREY, GREEN, BLUE), strict=True)):
            trace = traces[name][i]
            column[0].plot(trace.T, color=colour, linewidth=0.4, alpha=0.5)
            column[0].plot(trace.mean(0), color=colour, label=rf"$\lambda = {weight:g}$")
            accuracy = results[name][i, :, :, 0]
            spread = accuracy.std(0, ddof=1)
            column[1].errorbar(LENGTHS, accuracy.mean(0), spread, color=colour, marker="o", capsize=2.5)
        ceiling = [best(TASKS[name][0], n) for n in LENGTHS]
        column[1].plot(LENGTHS, ceiling, color="black", linestyle=(0, (1, 2)), linewidth=1.2)
        column[0].set(ylim=(0, 16.5), xlabel="step", title=f"{name}: effective keys of 16")
        column[1].set(xscale="log", ylim=(0, 1.05), xlabel="$n$ of the test", title=f"{name}: accuracy")
        column[1].set_xticks(LENGTHS, LENGTHS)
        column[1].minorticks_off()
    axes[0, 0].legend(ncols=2)
    plt.show()

# %% [markdown]
# Thin lines are seeds, bars standard deviations over seeds, dots the reader that knows the task. Effects of
# the term:
#
# - *Average.* Without it the rows settle at half of the keys, and the model overfits. The reward of 0.5 keeps
#   the weights nearly equal: accuracy rises from 0.33 to 0.52 at the training length, and doubles at 16 times
#   that length, where more tokens are averaged. The penalty does the opposite.
# - *Retrieve.* No weight of the term helps, at any length. A penalty of 0.1 halves the effective keys, and
#   the sharper rows are not on the right key more often. A reward of 0.5 doubles them and costs nothing at
#   the training length. On longer texts all are equally bad.
# - *With the penalty, one seed in six* collapses to a single key within 60 steps, before queries and keys
#   have learned much, stays there, and answers by chance. That is the fixed point above: near one-hot rows
#   neither the term nor the task has much gradient.
#
# That is one small model on two synthetic tasks. It shows that the term works and that its right sign depends
# on the task, not that a large model gains from one.

# %% [markdown]
# ## What was shown
#
# - The gradient of a row's entropy is $-p_j \ln(p_j N)$: a step moves keys above and below $1/N$ apart or
#   together. It is 0 on rows of equal weights and on one-hot rows: a term acts on the rows in between, not on
#   collapsed ones.
# - The gradient at a learned scale is $-a\, \mathrm{Var}_p(x)$.
# - In backward passes without a scale the mean gradient does not vanish, but few rows carry it: first for
#   queries, then for keys, and for values too (T2).
# - In a small model the term moved the entropy as intended. It helped where equal weights are right and data
#   are few, and did not help where one key is right.
#
# ## Exercises
#
# 1. Replace $\lambda \bar H$ by a floor, $\mathrm{relu}(\ln 8 - H)$. Does it harm retrieval less than
#    $\lambda = -0.5$?
# 2. What is the gradient of $H/\ln n$, with $n$ the number of keys that a causal row sees? Train *average*
#    with it.
