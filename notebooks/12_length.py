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
# # A law and longer texts
#
# This page shows that most of what a small rotary model loses on longer texts is lost to its positions, and
# that a law of $n$ gives back a little. The models were trained by `attnscale train length_generalization`;
# this page reads their stored results.
#
# The fourth article has one table (claim **T15**): a masked language model is trained at 64 tokens, and its
# accuracy is read at 64 to 1024, once with the scale $1/\sqrt d$ ("O") and once with $\log_{512}(n)/\sqrt d$
# ("E"). E falls more slowly. It is one run of a small RoFormer, without repeated seeds. Here small models
# repeat the experiment on Python source code, which every Python installation has, with seeds, paired errors,
# more laws, and one more question: does the accuracy fall because of the number of keys or because of their
# positions?
#
# The claims are judged by [one rule](../docs/explanation/how-we-judge.md) that is younger than these runs, so
# the runs are exploratory. A small model is trained again at the end of this page. Logarithms are natural,
# entropies in nats.
#
# **摘要。** 第四篇文章只有一张表 (T15)：在长度 64 上训练的掩码语言模型，分别用 $1/\sqrt d$ (O) 与
# $\log_{512}n/\sqrt d$ (E)，在 64 至 1024 上测准确率，E 下降较慢。文章只做了一次训练。本文用小模型，
# 多个随机种子，配对误差和更多缩放规则重复这一实验，并把准确率下降的两个原因分开：键变多 (稀释)，
# 与旋转位置编码的距离未曾见过 (外推)。文章所比较的 (E 与 O) 仍未决；结论见文末。
#
# | English | 中文 | here |
# |---|---|---|
# | masked language model | 掩码语言模型 | fills in hidden tokens |
# | extrapolation | 外推 | reading at lengths that were not trained |
# | dilution | 稀释 | the weight of a key falls because there are more keys |
# | clipped distance | 截断距离 | beyond 48 tokens every distance counts as 48 (ReRoPE) |
# | paired difference | 配对差 | of two laws on the same weights and the same masked tokens |
# | seed | 随机种子 | of weights, batches and masked tokens |

# %%
from dataclasses import replace

import attnscale as at
import matplotlib.pyplot as plt
import numpy as np
from studies.length_generalization import LengthGeneralization

CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()

BLUE, RED, GREEN, ORANGE, _, PURPLE = at.plot.COLOURS[:6]
GREY = "#6E6E6E"
print(f"attnscale {at.__version__}")

# %% [markdown]
# ## What to expect
#
# Two things change when a model trained at $n_0 = 64$ tokens reads $n$.
#
# **Dilution.** There are more keys. For independent scores the entropy of a row is about $\ln n - \beta^2/2$
# ([notebook 3](03_entropy_invariance.ipynb)): it grows with $n$ at a fixed scale, and a scale that grows with
# $n$ reduces the growth. If that is why accuracy falls, a law should help more the better it keeps the
# entropy that the layers above were trained on.
#
# **Distances.** Rotary positions turn a query by an angle for each distance, and distances above 63 were
# never seen in training. A scale cannot correct that, but clipping can (ReRoPE, article 9708): within 48
# tokens nothing changes, and every key beyond is treated as at distance 48.
#
# So there are two changes to test, and their four combinations show which one matters. A third kind of model,
# without positions, has dilution only.
#
# The laws as multiples of the scale at 64, with the exact entropy of a row of random keys ($d = 32$):

# %%
lengths = np.array([64, 128, 256, 512, 1024])
SPELLING = {
    "standard": "standard",
    "log_n": "log_n(base=64)",
    "annealed": "annealed(n0=64)",
    "entropy_invariant": "entropy_invariant(n0=64)",
    "info_scale": "info_scale(train_length=64)",
    "natural_log_n": "natural_log_n",
}
print("multiple of 1/sqrt(d), expected entropy      n =", *(f"{n:11d}" for n in lengths))
for name, spelling in SPELLING.items():
    beta = at.laws.get(spelling).multiplier(lengths, 32)
    beta = np.broadcast_to(beta, lengths.shape)
    entropy = [at.theory.expected_entropy(n, b, head_dim=32) for n, b in zip(lengths, beta, strict=True)]
    print(f"  {name:46}", *(f"{b:5.2f} {h:5.2f}" for b, h in zip(beta, entropy, strict=True)))
yarn = [at.laws.get(f"yarn(factor={n / 64}, channels='all')").multiplier(n, 32) for n in lengths]
print(f"  {'yarn (its temperature alone)':46}", *(f"{b:5.2f}      " for b in yarn))

# %% [markdown]
# log n slows the growth, the invariant law stops it, and ln n is far sharper than anything the model was
# trained with. Trained keys are not random, so a measured law is compared too: a number for each head that
# keeps *its* entropy.
#
# ## The runs
#
# Two runs of one experiment, both trained with PyTorch's own attention on a GPU, in float32: "full" is a
# model of 3 layers, "large" one of 6, trained longer. Some models were not finished in time; they are
# missing, and the numbers of models are given below. All rotary models of O are there, and at least one of E.

# %%
full = LengthGeneralization.stored()
large = LengthGeneralization.stored("large")
runs = {"full": full, "large": large}


def models(run, **labels):
    """Which seeds are there."""
    return np.isfinite(run.select("accuracy", reading="as trained", law="standard", n=64, **labels))


for name, run in runs.items():
    config = run.parameters
    tokens = config["windows"] * config["lengths"][-1] // config["train_length"] * config["masked"]
    print(
        f"{name}: {config['layers']} layers of width {config['width']}, {config['steps']} steps of "
        f"{config['batch']} x {config['train_length']} tokens; {tokens} masked tokens are read at each n"
    )
    counts = {
        f"{positions} {trained}": int(models(run, positions=positions, trained=trained).sum())
        for positions in run.axes["positions"]
        for trained in run.axes["trained"]
    }
    print("  models:", ", ".join(f"{cell}: {count}" for cell, count in counts.items()))
    for record in run.provenance:
        print(f"  {record['models']} on {record['device']}, torch {record['torch']}")
source = full.facts["source"]
assert source == large.facts["source"]
for part in ("train", "held_out"):
    digest = source[part]["sha256"][:16]
    print(f"{part}: {source[part]['files']} files, {source[part]['tokens']} tokens, sha256 {digest}")
print(f"refuted if {full.refuted_if}")
assert models(full, positions="rotary", trained="O").sum() == 5
assert models(large, positions="rotary", trained="O").sum() == 3


def values(run, name="accuracy", **labels):
    """Values of the finished models: (seeds, lengths)."""
    found = run.select(name, **labels)
    return found[np.isfinite(found).all(-1)]


def mean_error(found):
    """Mean over the seeds, with its error if there are several."""
    count = len(found)
    return found.mean(0), found.std(0, ddof=1) / np.sqrt(count) if count > 1 else np.nan * found[0]


def line(title, found, unit=100, form="{:+7.2f} ± {:4.2f}"):
    """A row of a table."""
    pairs = zip(*mean_error(unit * found), strict=True)
    print(f"  {title:24}", *(form.format(m, e) for m, e in pairs))


# %% [markdown]
# ## The article's table (T15)
#
# O and E as in the article: trained and read under one law. (E is read under $\log_{512} n$, with which it
# was trained.)

# %%
ARTICLE = {"O": [43.27, 36.53, 23.02, 15.12, 11.54], "E": [43.11, 41.17, 34.04, 20.15, 13.58]}
OWN = {"O": "standard", "E": "log_n"}
table = {}
print("accuracy in %, n =         ", *(f"{n:14d}" for n in lengths))
for trained, law in OWN.items():
    print(f"  {trained + ', article':24}", *(f"{value:14.2f}" for value in ARTICLE[trained]))
    for name, run in runs.items():
        where = {"positions": "rotary", "trained": trained, "reading": "as trained", "law": law}
        table[name, trained] = values(run, **where)
        line(f"{trained}, {name}", table[name, trained], form="{:7.2f} ± {:4.2f}")
for name in runs:  # where the article has E above O by 11 points
    assert abs(table[name, "E"].mean(0) - table[name, "O"].mean(0))[2] < 0.02

with at.plot.style():
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.1))
    for trained, colour in (("O", BLUE), ("E", RED)):
        axes[0].plot(lengths, ARTICLE[trained], color=colour, marker="o", label=trained)
        for ax, name in zip(axes[1:], runs, strict=True):
            mean, error = mean_error(100 * table[name, trained])
            ax.errorbar(lengths, mean, error, color=colour, marker="o", capsize=2, label=trained)
    for ax, title in zip(axes, ("Article 004", "3 layers", "6 layers"), strict=True):
        ax.set(xscale="log", xlabel="length that is read, $n$", title=title, ylim=(0, None))
        ax.set_xticks(lengths, lengths)
        ax.minorticks_off()
    axes[0].set_ylabel("accuracy, %")
    axes[0].legend()
    plt.show()

# %% [markdown]
# Our models fall later than the article's: at 256 they have lost a fifth of their accuracy, the article's O
# nearly half. Between two separately trained models the seeds make a difference of a point or more at 512, as
# much as the laws do. E less O, paired by seed, is +0.59 ± 0.50 points at 256 and +2.75 ± 1.52 at 512 over
# the five pairs of three layers, and of either sign in the three other pairs: the article's comparison is
# undecided here. At 64 tokens E is below O in five of five pairs, by 0.40 ± 0.12. The next section compares
# laws on the same weights, which the article does not do.
#
# ## The laws, on the same weights (T15)
#
# Models trained under $1/\sqrt d$, each read under every law. "±" is over the seeds.

# %%
LAWS = full.variables["accuracy"].coords["law"]
PANELS = (("rotary", "as trained"), ("rotary", "clipped"), ("none", "as trained"))
TITLES = ("Rotary", "Rotary, distances clipped", "No positions")


def gains(run, positions, reading, law, name="accuracy_gain"):
    """Paired difference to the standard scale, (seeds, lengths)."""
    return values(run, name, positions=positions, trained="O", reading=reading, law=law)


def report(quantity, unit, form):
    """A table for each run and kind of positions."""
    for name, run in runs.items():
        for positions, reading in PANELS:
            standard = values(
                run, quantity, positions=positions, trained="O", reading=reading, law="standard"
            )
            if not len(standard):
                continue
            print(f"{name}, {positions}, {reading}: {quantity}, and what a law adds, n =", *lengths)
            line("standard", standard, unit, form.replace("+", " "))
            for law in LAWS[1:]:
                line(law, gains(run, positions, reading, law, f"{quantity}_gain"), unit, form)


report("accuracy", 100, "{:+7.2f} ± {:4.2f}")

# %%
passed = {}
for name, run in runs.items():
    gain, error = (gains(run, "rotary", "as trained", "log_n", f"accuracy_gain{e}") for e in ("", "_error"))
    passed[name] = (gain[:, 2:4] > 2 * error[:, 2:4]).all(-1)
    print(f"{name}: log_64 n above the standard scale, in its paired standard errors, n = 256 and 512")
    for seed, ratio in enumerate(gain[:, 2:4] / error[:, 2:4]):
        print(f"  seed {seed}:", *(f"{each:5.1f}" for each in ratio))
    assert passed[name].all()
    assert (gain[:, 0] == 0).all()
    assert gain.mean(0)[2] < 0.015  # and is a tenth of the article's 11.02 points at 256

LOOK = {
    "standard": (r"$1/\sqrt{d}$", "black", "-"),
    "natural_log_n": ("ln n", GREY, "-"),
    "log_n": ("log n", BLUE, "-"),
    "yarn": ("YaRN's temperature", "#56B4E9", "-"),
    "info_scale": ("InfoScale", PURPLE, "-"),
    "annealed": ("sqrt(1 + 2 ln(n/64))", GREEN, "--"),
    "calibrated": ("entropy-invariant by head", ORANGE, "--"),
    "entropy_invariant": ("entropy-invariant", RED, "--"),
}
with at.plot.style():
    figure, axes = plt.subplots(2, 2, figsize=(7.6, 5.8), sharex=True)
    for row, run in enumerate(runs.values()):
        for ax, (positions, reading), title in zip(axes[row], PANELS[:2], TITLES[:2], strict=True):
            for law, (label, colour, style) in list(LOOK.items())[
                2:
            ]:  # ln n, which costs 4 points, is left out
                mean, error = mean_error(100 * gains(run, positions, reading, law))
                ax.errorbar(
                    lengths, mean, error, color=colour, linestyle=style, marker="o", markersize=3, label=label
                )
            ax.axhline(0, color="black", linewidth=0.6)
            ax.set(xscale="log", title=f"{title}, {(3, 6)[row]} layers")
            ax.set_xticks(lengths, lengths)
            ax.minorticks_off()
        axes[row, 0].set_ylabel("points above $1/\\sqrt{d}$")
    for ax in axes[1]:
        ax.set_xlabel("length that is read, $n$")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    plt.show()

# %% [markdown]
# On the same weights log n adds a little accuracy in every seed of both models: 0.9 points at 256 and 2 at
# 512 (0.45 and 1.6 in the larger model). The errors here treat the texts as independent, though they are cut
# from fewer files; the spread over the seeds is more reliable.
#
# ## Distances or keys
#
# The first column falls to a fifth or less at 1024. In the second the same weights are read with distances
# clipped at 48, and most of the fall is gone: it came from unseen rotary angles. The rest is due to the
# number of keys, and there log n helps most.

# %%
for name, run in runs.items():
    where = {"positions": "rotary", "trained": "O", "law": "standard"}
    as_trained, clipped = (values(run, reading=each, **where) for each in ("as trained", "clipped"))
    by_clipping = clipped - as_trained
    by_law, by_law_clipped = (gains(run, "rotary", each, "log_n") for each in ("as trained", "clipped"))
    print(f"{name}: points gained, n =", *lengths)
    line("by clipping", by_clipping)
    line("by log n", by_law)
    line("by log n, after clipping", by_law_clipped)
    assert (by_clipping[:, 3:] > 3 * by_law[:, 3:]).all()  # in every model, at 512 and 1024
    error = gains(run, "rotary", "clipped", "log_n", "accuracy_gain_error")
    assert (by_law_clipped > 2 * error)[:, 4].all()  # at 1024 log n helps every one of them
    lost = as_trained[:, 0] - clipped[:, 4]
    print(f"  of the accuracy at 64, lost at 1024 with clipped distances: {100 * lost.mean():.1f} points")
for law, limit in (("log_n", 0.003), ("natural_log_n", 0.009)):
    assert gains(full, "none", "as trained", law).mean(0)[1:4].max() < limit  # no positions: nothing to gain

# %% [markdown]
# Without positions the model learns little more than the frequency of tokens (5 %), since it cannot know
# their order. It has dilution only, loses a sixth of its accuracy, and no law restores that. As a control it
# says little, because it has hardly anything to lose.
#
# ## Likelihood and entropy
#
# Accuracy counts the first choice only. The negative log-likelihood measures how sure the model was.

# %%
report("nll", 1, "{:+7.3f} ± {:5.3f}")
for run in runs.values():
    assert gains(run, "rotary", "clipped", "log_n", "nll_gain")[:, 4].max() < 0  # in every model
    assert gains(run, "rotary", "as trained", "log_n", "nll_gain")[:, 4].max() > 0.1  # in some it is worse


# %%
def entropies(run, positions, reading, law):
    """Mean entropy of all rows and layers by length, over the seeds."""
    found = run.select("entropy", positions=positions, trained="O", reading=reading, law=law).mean(-1)
    return np.nanmean(found, axis=0)


for name, run in runs.items():
    for positions, reading in PANELS[:2]:
        print(f"{name}, {positions}, {reading}: mean entropy of the rows, n =", *lengths)
        for law in LAWS:
            print(f"  {law:24}", *(f"{h:6.3f}" for h in entropies(run, positions, reading, law)))

with at.plot.style():
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.7), sharey=True)
    for ax, (positions, reading), title in zip(axes, PANELS, TITLES, strict=True):
        for law in LAWS:
            entropy = entropies(full, positions, reading, law)
            label, colour, style = LOOK[law]
            ax.plot(lengths, entropy, color=colour, linestyle=style, marker="o", markersize=3, label=label)
        ax.set(xscale="log", xlabel="length that is read, $n$", title=f"{title}, 3 layers")
        ax.set_xticks(lengths, lengths)
        ax.minorticks_off()
    axes[0].set_ylabel("mean entropy of the rows, nats")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    plt.show()

# %% [markdown]
# The laws that keep the entropy are not the most accurate. With distances as trained, annealed,
# entropy-invariant and the head's own measured scale keep it within 0.2 to 0.6 nats, where the standard scale
# lets it grow by 2 to 3. But they *lose* 0.3 to 1.5 points at 256, where log n, which lets it grow, gains.
# YaRN's temperature is log n under another name at these lengths (1.63 for 1.67 at 1024), and InfoScale, the
# mildest, does as well. ln n, four times the trained scale already at 64, costs 3 to 5 points there. So
# keeping the mean entropy does not explain how well a model reads longer texts.

# %%
for run in runs.values():
    by_law = {law: gains(run, "rotary", "as trained", law).mean(0) for law in LAWS[1:]}
    for law in ("annealed", "entropy_invariant", "calibrated"):
        assert (by_law[law] < by_law["log_n"])[1:4].all(), law
        kept = entropies(run, "rotary", "as trained", law)
        grown = entropies(run, "rotary", "as trained", "log_n")
        assert abs(kept - kept[0]).max() < abs(grown - grown[0]).max() * 0.8, law
    assert abs(by_law["yarn"] - by_law["log_n"]).max() < 0.002
    assert (by_law["natural_log_n"][:3] < -0.03).all()

for name, run in runs.items():
    for positions, reading in PANELS[:2]:
        beta = run.select("beta", positions=positions, trained="O", reading=reading)
        flat = beta.transpose(1, 0, 2, 3).reshape(len(lengths), -1)
        print(f"{name}, {reading}: the heads' measured multiples: quartiles, and log_64 n")
        for n, *quartiles in zip(lengths, *np.nanquantile(flat, [0.25, 0.5, 0.75], axis=1), strict=True):
            print(f"  n = {n:4d}", *(f"{q:6.2f}" for q in quartiles), f"{np.log(n) / np.log(64):9.2f}")

# %% [markdown]
# ## Through this package's kernels
#
# The models above went through PyTorch's attention on a GPU. The small models again, trained and read on a
# CPU through this package's kernels, forward and backward, on the standard library of another Python version:
# three of O, two of E, and one of O without positions. Fewer texts are read, so that one model's error is as
# large as the gain at 256: log_64 n is two of its errors above the standard scale at both lengths in one
# model of three. The mean over the models is positive, as before.

# %%
cpu = LengthGeneralization.stored("cpu")
assert cpu.parameters["attention"] == "attnscale"
assert cpu.parameters | {"attention": "torch", "device": "cuda", "windows": 256} == full.parameters
tokens = cpu.parameters["windows"] * lengths[-1] // cpu.parameters["train_length"] * cpu.parameters["masked"]
print(f"python {cpu.facts['python']}, {tokens} masked tokens at each n =", *lengths)
for trained, law in OWN.items():
    line(f"{trained}", values(cpu, positions="rotary", trained=trained, reading="as trained", law=law))
for positions, reading in PANELS:
    print(f"{positions}, {reading}: what a law adds, in points")
    for law in LAWS[1:]:
        line(law, gains(cpu, positions, reading, law), form="{:+7.2f} ± {:4.2f}")
gain, error = (gains(cpu, "rotary", "as trained", "log_n", f"accuracy_gain{e}") for e in ("", "_error"))
ratio = gain[:, 2:4] / error[:, 2:4]
print("log_64 n, seed by seed, in its paired standard errors, n = 256 and 512:", ratio.round(1).tolist())
mean, spread = mean_error(gain)
assert (mean[2:4] > 2 * spread[2:4]).all()
assert abs(mean - gains(full, "rotary", "as trained", "log_n").mean(0)).max() < 0.006
assert (ratio[:, 1] > 2).all()  # at 512 each by itself
assert (ratio[:, 0] > 2).sum() == 1  # at 256 one of three

# %% [markdown]
# ## Again, on this machine
#
# The reduced cells: two layers of width 64, 200 steps, O and E, through this package's kernels, forward and
# backward; and the first 40 steps of such a model on less text, through them and through PyTorch's own. They
# are far from fully trained and say nothing about the claim. They show that the stored results can be
# reproduced, and that the two programs train the same model.

# %%
kept = LengthGeneralization.stored("reduced")
config = LengthGeneralization.reduced()
ours = config.run(seeds=[100], progress=False)
brief = replace(config, trained=("O",), steps=40, lengths=(64, 128), windows=8, most_bytes=300_000)
both = [
    replace(brief, attention=attention).run(seeds=[100], progress=False)
    for attention in ("attnscale", "torch")
]
loss, accuracy = (np.stack([each.select(name) for each in both]) for name in ("loss", "accuracy"))
apart = np.ptp(loss, axis=0).max()
print(f"loss of O after 200 steps {ours.select('loss', trained='O')[..., -1].item():.3f}")
print(f"in 40 steps from {loss.max():.3f} to {loss[0].min():.3f}; the programs differ by {apart:.0e} at most")
assert apart < 0.01
assert np.ptp(accuracy, axis=0).max() < 0.02
assert loss[0].max() - loss[0].min() > 100 * apart  # small against what was learned
for law in ("standard", "log_n", "calibrated"):
    there = kept.select("accuracy", reading="as trained", law=law)[0, 0]
    here = ours.select("accuracy", reading="as trained", law=law)[0, 0, 0]
    spread = there.std(0, ddof=1)
    pairs = zip(here, there.mean(0), spread, strict=True)
    print(f"  {law:12}", *(f"{h:.3f} ({m:.3f} ± {s:.3f})" for h, m, s in pairs))
    # Another Python has another standard library, and another text is harder or easier to fill in.
    slack = 0 if ours.facts["source"] == kept.facts["source"] else 0.05
    assert (abs(here - there.mean(0)) < 4 * spread * np.sqrt(1 + 1 / len(there)) + slack).all()

# %% [markdown]
# ## What was shown
#
# **T15 has two verdicts.** *The article's comparison*, E against O, is undecided for these models: over five
# pairs E less O is +0.59 ± 0.50 points at 256 and +2.75 ± 1.52 at 512, where the article has 11 and 5, and
# three other pairs have either sign. For smaller models a registered run of 40 pairs decides it: +3.39 ± 0.44
# at 256, and O read under log n has the same within two points. At the training length E is worse in the
# larger models, and equal in the smaller ones.
#
# *The law on the same weights* gains a little accuracy: 0.9 and 2.0 points at 256 and 512 (0.45 and 1.6 in
# six layers, 0.5 and 1.6 through the kernels). By the
# [rule for verdicts](../docs/explanation/how-we-judge.md) the gain is shown at 256 for three and for six
# layers, undecided at 512, and undecided at both lengths through the kernels. (These runs came with another
# rule, two paired standard errors over the texts of each model at both lengths: 9 of 11 models pass it.) The
# likelihood gains 0.03 and 0.07 nats in three layers, is worse in six at 128 and 256, and is worse at 1024 in
# most models. In the registered run of smaller models the gain of accuracy is 3.2 ± 0.5 and 4.0 ± 0.2 points,
# shown at both lengths.
#
# **Most of the fall is positions.** Clipping the distances of the same weights is worth 4 to 18 times as
# much at 512, and with it the larger model loses 1 point of 52 from 64 to 1024.
#
# **Where positions are known, log n helps where the keys are many.** With clipped distances it gains 2 to 8
# points at 512 and 1024 in the small models, and 0.5 to 1 at 1024 in the larger ones, which are less diluted.
# YaRN's and InfoScale's factors help there too, so this is no evidence for the logarithm in particular. A
# sweep over factors measures the best one at each length: [the shape of the
# law](../docs/explanation/training-evidence.md#t15-the-shape-of-the-law).
#
# **Keeping the entropy is not the reason.** The laws that do, exact, annealed or measured head by head,
# read worse than log n up to 512.
#
# Not shown: models of more than 6 layers. Causal models of English prose, without positions and with other
# ones, have a registered run: [positions or
# dilution](../docs/explanation/training-evidence.md#t15-in-prose-positions-or-dilution).
#
# ## Exercises
#
# 1. Train with `clip` in the training, too. Does the gain of log n at 1024 stay?
# 2. The measured multiples of heads differ by a factor of two and more. Read with the law only in the sharp
#    half of the heads, and with the standard scale in the others.
# 3. The model without positions cannot know the order of tokens. Give it a causal mask, with which it can,
#    and repeat.
