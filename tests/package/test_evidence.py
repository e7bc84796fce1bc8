# SPDX-License-Identifier: BSD-3-Clause
"""What the pages say of trained models is what the stored runs say: tables, counts and verdicts."""

from __future__ import annotations

from functools import cache
from itertools import chain

import attnscale as at
import numpy as np
import pytest
from pages import ROOT, page
from scipy import stats

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

AFTER = ("log_n", "annealed")
#: Rows of a table: title, law of the training, law of the reading.
LENGTHS = (
    (r"trained at 32, $1/\sqrt d$", "one length", "own"),
    (r"the same, read under $\log_{32} n$", "one length", "log_n"),
    (r"trained at all lengths, $1/\sqrt d$", "standard", "own"),
    (r"the same, read under $\log_{32} n$", "standard", "log_n"),
    (r"$\log_{32} n$", "log_n", "own"),
    ("SSMax", "ssmax", "own"),
    (r"$s \ln n + b$", "ssmax_b", "own"),
)
SWEPT = (
    *(f"fixed, {cosine}" for cosine in (4, 8, 16, 32, 64)),
    *("one learned", "one a head", r"one a head, times $\ln n$"),
)
EVIDENCE = "docs/explanation/training-evidence.md"


@cache
def run(name, which=None):
    return at.experiments.stored(name, which) if which else at.experiments.stored(name)


def of_masked(which, quantity, law, *, trained="O", reading="as trained"):
    """Of the models with rotary positions: (seeds, lengths), NaN where there is none."""
    return run("length_generalization", which).select(
        quantity, positions="rotary", trained=trained, reading=reading, law=law
    )


def there(values):
    values = np.asarray(values, float)
    return values[np.isfinite(values.reshape(len(values), -1)).all(-1)]


def cells(values, form):
    """Mean and standard error over the seeds, as tables have them."""
    values = there(values)
    mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))
    return [f"{m:{form}} ± {e:{form.lstrip('+')}}" for m, e in zip(mean, error, strict=True)]


def p_value(values):
    return stats.ttest_1samp(there(values), 0).pvalue


def compared(which=None):
    """E less O by seed, in points."""
    e = of_masked(which, "accuracy", "log_n", trained="E")
    return 100 * there(e - of_masked(which, "accuracy", "standard"))


RUNS = {"3 layers": None, "6 layers": "large", "3 layers, this package's kernels": "cpu"}


def test_the_articles_comparison():
    text = page(EVIDENCE)
    for title, which in RUNS.items():
        found = compared(which)
        row = cells(found, "+.2f") if len(found) > 1 else [f"{each:+.2f}" for each in found[0]]
        assert f"| {title} | {len(found)} | {' | '.join(row)} |" in text
    full = compared()
    assert (full[:, 0] < 0).all()
    assert "below O in 5 of 5 pairs" in text
    assert f"(p = {p_value(full[:, 2]):.2f} and {p_value(full[:, 3]):.2f} over the 5 pairs)" in text
    assert f"in 5 of 5 pairs (p = {p_value(full[:, 0]):.2f})" in text
    short = cells(full, "+.2f")
    for name in (*(f"docs/articles/{each}.md" for each in ("004", "zh/004")), "docs/claims.md", EVIDENCE):
        assert all(short[i] in page(name) for i in (2, 3)), name
        assert short[0].lstrip("+-") in page(name), name


def test_a_law_on_the_same_weights():
    text = page(EVIDENCE)
    rows = {"as trained": ("3 layers", "6 layers"), "clipped": ("3 layers", "6 layers")}
    for reading, titles in rows.items():
        spelled = "clipped at 48" if reading == "clipped" else reading
        for title in titles:
            gain = 100 * of_masked(RUNS[title], "accuracy_gain", "log_n", reading=reading)
            row = " | ".join((f"{spelled}, {title}", r"$\log_{64} n$", *cells(gain, "+.2f")[1:]))
            assert f"| {row} |" in text
            nll = of_masked(RUNS[title], "nll_gain", "log_n", reading=reading)
            assert f"| {spelled}, {title} | {' | '.join(cells(nll, '+.3f')[1:])} |" in text


@pytest.mark.parametrize("title", ["3 layers", "6 layers"])
def test_accuracies_and_what_clipping_gives_back(title):
    text, results = page(EVIDENCE), page("docs/explanation/results.md")
    trained = 100 * there(of_masked(RUNS[title], "accuracy", "standard"))
    clipped = 100 * there(of_masked(RUNS[title], "accuracy", "standard", reading="clipped"))
    assert f"| {title}, O | {' | '.join(cells(trained, '.2f'))} |" in text
    rows = {f"{title}, rotary positions": trained, "the same, distances clipped": clipped}
    for (row, values), reading in zip(rows.items(), ("as trained", "clipped"), strict=True):
        gain = 100 * of_masked(RUNS[title], "accuracy_gain", "log_n", reading=reading)
        assert f"| {row} | {values.mean(0)[3]:.2f} | {cells(gain, '+.2f')[3]} |" in results
    if title == "3 layers":
        fall = trained.mean(0)[0] - clipped.mean(0)
        gain = 100 * there(of_masked(None, "accuracy_gain", "log_n", reading="clipped")).mean(0)
        assert f"still read {fall[3]:.1f} points less at 512 than at 64, of which" in results
        assert f"log n gives back {gain[3]:.1f}, and {fall[4]:.1f} less at 1024" in results
        assert f"of which it gives back {gain[4]:.1f};" in results
    else:
        gain = 100 * of_masked("large", "accuracy_gain", "log_n", reading="clipped")[:, 3]
        assert f"cannot be told from none (p = {p_value(gain):.2f})" in results


def test_how_many_models_pass():
    passed = []
    for which in RUNS.values():
        gain, error = (of_masked(which, f"accuracy_gain{e}", "log_n") for e in ("", "_error"))
        kept = np.isfinite(gain).all(-1)
        passed.append((gain[kept, 2:4] > 2 * error[kept, 2:4]).all(-1))
    assert [(int(each.sum()), len(each)) for each in passed] == [(5, 5), (3, 3), (1, 3)]
    count = f"{sum(each.sum() for each in passed)} of {sum(map(len, passed))} models"
    assert count == "9 of 11 models"
    for name in (EVIDENCE, "docs/claims.md", "notebooks/12_length.py"):
        assert count in page(name), name


def test_how_many_masked_tokens_are_read():
    tokens = {}
    for which in RUNS.values():
        config = run("length_generalization", which).parameters
        windows = config["windows"] * config["lengths"][-1] // config["train_length"]
        tokens[which] = windows * config["masked"]
    text = page(EVIDENCE)
    assert tokens[None] == tokens["large"] == 40960
    assert "40 960 masked tokens" in text
    assert f"({tokens['cpu']}, {tokens['cpu'] / tokens[None]:.0%})".replace("%", " %") in text


def test_tasks_where_only_the_length_changes():
    tasks = run("length_tasks")

    def gain(task, variant, n):
        one, other = (
            tasks.select("accuracy", task=task, variant=each, step=3000, n=n)
            for each in (variant, "standard")
        )
        return one - other

    shown = [f"{p_value(gain('needle', 'log_n', n)):.2f}" for n in (1024, 4096)]
    assert f"correction for two claims, p = {shown[0]} at 1024 and {shown[1]} at 4096" in page(EVIDENCE)
    for variant in ("log_n", "natural_log_n", "ssmax"):
        assert (tasks.select("accuracy", task="average", variant=variant, step=3000, n=4096) == 1).all()
    for variant in tasks.axes["variant"][1:]:
        assert (gain("majority", variant, 1024).mean() < 0) == (variant != "ssmax")


def pair(value, error, form):
    """A number with its error, as sentences have them."""
    return f"{value:{form}} ± {error:{form.lstrip('+')}}"


def test_the_shape_of_the_law():
    text = page(EVIDENCE)
    needle, clipped = (
        at.experiments.best_multiples(run(name), **labels)
        for name, labels in (("needle_multiples", {}), ("text_multiples", {"reading": "clipped"}))
    )
    powers = [pair(each.exponent.value, each.exponent.error, ".2f") for each in (needle, clipped)]
    assert f"At the needle p = {powers[0]}, and on text with clipped distances {powers[1]}." in text
    for name in ("docs/claims.md", "docs/explanation/how-we-judge.md"):
        assert all(each in page(name) for each in powers), name
    found = [
        pair(f.value, f.error, "+.3f") for c in run("needle_multiples").verdict().claims for f in c.findings
    ]
    assert f"loses to one constant ({found[1]}) and to both roots ({found[2]}, {found[3]})" in text
    found = [
        pair(f.value, f.error, "+.3f") for c in run("text_multiples").verdict().claims for f in c.findings
    ]
    assert f"to the constant ({found[5]}) and to both roots ({found[6]}, {found[7]})" in text
    assert f"than the trained scale ({found[4]})" in text

    roots = []
    for each in (needle, clipped):
        u = np.log(np.log(each.lengths))
        logs = [0.5 * np.log(1 + a * np.log(each.lengths)) for a in (1, 2)]
        roots += [(u - u.mean()) @ one / ((u - u.mean()) @ u) for one in logs]
        assert each.exponent.high < 1
        assert each.exponent.low > 0
    assert f"have p = {min(roots):.2f} to {max(roots):.2f}" in text
    assert needle.exponent.low < min(roots)
    assert max(roots) < needle.exponent.high
    assert clipped.exponent.high < min(roots)

    def points(other):
        one, two = (
            100 * run("needle_multiples").select("accuracy", trained="standard", n=4096, multiple=each)
            for each in ("log n", other)
        )
        return cells((one - two)[:, None], ".1f")[0]

    more = (points(1.0), points("sqrt(1 + ln n)"))
    assert f"{more[0]} points of accuracy more than the trained scale, {more[1]} more than" in text
    assert f"and {points(1.6)} more than the constant" in text
    pilot = at.experiments.best_multiples(run("text_multiples", "pilot"), reading="clipped")
    assert f"a best multiple of {pilot.beta.value[-1]:.2f} at 1024 and p = {pilot.exponent.value:.2f}" in text
    for which, said in ((None, "in 3 layers, and"), ("large", "in the 6 layers")):
        log_n, info = (
            of_masked(which, "nll", law, reading="clipped")[:, 4:] for law in ("log_n", "info_scale")
        )
        assert f"{cells(log_n - info, '+.3f')[0]} {said}" in text


HEADS = {"one": "one of 64", "shared": "two of 64, same scores", "two": "two of 32"}
SCALES = {
    "standard": r"$1/\sqrt d$",
    "sharp": r"$5/\sqrt d$",
    "log_n": r"$\log_{16}(n)/\sqrt d$",
    "natural_log_n": r"$\ln(n)/\sqrt d$",
    "ssmax": "SSMax, learned",
    "pair": r"$5/\sqrt d$ and $0.2/\sqrt d$",
    "learned": r"two learned multiples of $1/\sqrt d$",
    "split": r"$\log_{16}(n)/\sqrt d$ and $1/\sqrt d$",
}
#: Rows of the second table: a model, one of its heads, and a variable.
THEORY = {
    r"same scores, $5/\sqrt d$: weight of the needle": ("shared: pair", "sharper", "weight"),
    "its bound": ("shared: pair", "sharper", "weight_bound"),
    r"same scores, $0.2/\sqrt d$: error": ("shared: pair", "flatter", "excess"),
    "its bound, without the needle": ("shared: pair", "flatter", "excess_bound"),
    r"one head, $\ln n$: weight of the needle": ("one: natural_log_n", "sharper", "weight"),
    "its error": ("one: natural_log_n", "sharper", "excess"),
    r"two of 32, $\log_{16} n$: error of the flatter": ("two: log_n", "flatter", "excess"),
    r"two of 32, $1/\sqrt d$: error of the flatter": ("two: standard", "flatter", "excess"),
}


def two_heads_rows():
    """The rows of both tables, from the stored run."""
    trained = run("two_heads")
    for variant in trained.axes["variant"]:
        heads, law = variant.split(": ")
        found = cells(trained.select("accuracy", variant=variant, n=1024), ".3f")
        yield f"| {HEADS[heads]} | {SCALES[law]} | {' | '.join(found)} |"
    for title, (variant, head, name) in THEORY.items():
        yield f"| {title} | {' | '.join(cells(trained.select(name, variant=variant, head=head), '.3f'))} |"


def test_two_scales_for_a_needle_and_a_majority():
    text, trained = page(EVIDENCE), run("two_heads")
    assert trained.complete
    for row in two_heads_rows():
        assert row in text
    both = dict(zip(trained.axes["variant"], trained.select("accuracy", n=1024, part="both"), strict=True))
    best = max(both[each].mean() for each in both if each.startswith("one"))
    shares = [round(100 * each) for each in (both["shared: pair"].mean(), best, both["two: sharp"].mean())]
    assert shares == [65, 41, 66]
    short = trained.select("accuracy", n=16, part="both").mean(1)
    pair = short[trained.axes["variant"].index("shared: pair")]
    assert f"it answers {100 * short[:5].max():.0f} % at most, and this pair {100 * pair:.0f} %" in text
    for name in ("shared: pair", "one: natural_log_n", "two: sharp"):
        assert cells(both[name][:, None], ".3f")[0] in page("docs/claims.md")
    factor = trained.select("factor", variant="shared: learned").mean(0)
    answered = f"{both['shared: learned'].mean():.0%}".replace("%", " %")
    assert f"they end at {factor[0]:.1f} and {factor[1]:.2f} (mean), and {answered}" in text
    beta = trained.select("beta", variant="two: sharp", n=1024).mean(0)
    assert f"have a standard deviation of {beta[0]:.1f} and {beta[1]:.2f}" in text
    for variant in trained.axes["variant"][5:]:
        of = {name: trained.select(name, variant=variant) for name in trained.variables if name != "factor"}
        assert (of["weight"] > of["weight_bound"])[..., 0].all()
        assert (of["others_excess"] < of["excess_bound"])[..., 1].all()
    gap = trained.select("gap", variant="shared: pair", head="sharper", n=1024).mean()
    bound = at.theory.needle_weight_bound(1023, gap=gap, beta=gap)
    assert (
        rf"The gap is {gap:.2f}, and by the theorem $\beta = {gap:.2f}$ would keep a weight of {bound:.3f}"
        in text
    )


def test_hybrids_on_text():
    ours, text = run("hybrids", "cpu"), page(EVIDENCE)
    dot, efficient, hybrid = (ours.select("nll", variant=v) for v in ours.axes["variant"])
    contrast = (hybrid - dot) - (efficient - hybrid)
    assert (contrast > 0).all()
    assert f"nearer to the efficient model by {cells(contrast[:, None], '.3f')[0]}" in text
    assert f"takes back {cells((efficient - hybrid)[:, None], '.3f')[0]}" in text
    whole = run("hybrids")
    assert not np.isfinite(whole.select("nll", variant="4 efficient")).any()
    dot, efficient, hybrid = (
        whole.select("loss", variant=v, step=1300) for v in ("4 dot", "4 efficient", "dot + 3 efficient")
    )
    contrast = (hybrid - dot) - (efficient - hybrid)
    assert f"a contrast of {cells(contrast[:, None], '.3f')[0]} (p = {p_value(contrast):.2f})" in text


def test_collapse_and_tagging():
    text, collapse = page(EVIDENCE), run("collapse")

    def floor(rate):
        one, other = (
            collapse.select("test_loss", guard=g, learning_rate=rate) for g in ("entropy_floor", "none")
        )
        return one - other

    cost = floor(0.003)
    assert f"it costs {cells(cost[:, None], '.2f')[0]} (p = {p_value(cost):.2f}, and " in text
    assert f"{4 * p_value(cost):.2f} after a correction for four rates" in text
    assert f"by {cells(-floor(0.03)[:, None], '.2f')[0]} at 0.03" in text
    by_chance = 100 * stats.t.sf(2, [2, 4])
    assert f"in about {100 * (1 - (1 - by_chance[1] / 50) ** 4):.0f} % of the cases" in text
    assert f"in {by_chance[0]:.0f} % of the cases, with 5 seeds in {by_chance[1]:.0f} %" in text
    scales = run("learned_scales")
    worse = scales.select("error", task="tagging", model="unscaled", n=32, output="sharp") - scales.select(
        "error", task="tagging", model="fixed", n=32, output="sharp"
    )
    assert (worse > 0).all()
    assert f"the difference, {cells(worse[:, None], '+.2f')[0]}" in text
    ratio = worse.mean() / (worse.std(ddof=1) / np.sqrt(len(worse)))
    assert f"is {ratio:.1f} standard errors (p = {p_value(worse):.2f})" in text


def of_lengths(trained, law="own", quantity="accuracy", **labels):
    """Of the contexts at many lengths: (seeds, lengths)."""
    cell = {"task": "context", "own_key": "seen", "trained": trained}
    return run("context", "lengths").select(quantity, law=law, **cell, **labels)


def test_contexts_at_many_lengths():
    text, claims = page(EVIDENCE), page("docs/claims.md")
    for title, trained, law in LENGTHS:
        row = " | ".join(cells(of_lengths(trained, law)[:, [0, 2, 4, 5]], ".3f"))
        assert f"| {title} | {row} |" in text
    shuffled, equal = (
        {law: of_lengths("one length", law, "by_weights", weights=each)[:, -1].mean() for law in AFTER}
        for each in ("shuffled", "equal")
    )
    assert f"name {shuffled['log_n']:.3f} of the classes at 1024 tokens under log n, and" in text
    assert f"and {shuffled['annealed']:.3f} under the annealed law" in text
    assert f"Equal weights would be right in {100 * equal['log_n']:.2f} %" in text
    assert (
        f"name {shuffled['log_n']:.3f}, under the annealed law {shuffled['annealed']:.3f}) than a tilt"
        in claims
    )
    likelihood = of_lengths("log_n", quantity="nll") - of_lengths("standard", quantity="nll")
    assert f"log n is {cells(likelihood, '.3f')[-1]} nats worse at 1024, and" in text
    assert f"{cells(likelihood, '.3f')[-1]} nats" in claims
    assert [f"{each:.3f}" for each in likelihood.mean(0)[3:]] == ["0.026", "0.028", "0.027"]
    assert f"better there, by {cells(-likelihood, '.3f')[0]}:" in text
    lost = of_lengths("standard") - of_lengths("log_n")
    assert f"log n loses {cells(lost, '.3f')[0]} of the accuracy at 32 tokens" in text
    after = cells(of_lengths("standard") - of_lengths("standard", "log_n"), ".4f")[-1]
    assert all(f"{after}" in each for each in (text, claims))
    short = of_lengths("one length") - of_lengths("one length", "log_n")
    assert f"({cells(short, '.3f')[-1]})" in text
    factor = run("context", "lengths").select("own_factor", trained="ssmax_b")[0, 0]
    assert (np.diff(factor) < 0).all()
    low, high = factor.mean(0)[[-1, 0]]
    assert f"ends at {high:.2f} for 32 tokens and {low:.3f} for 1024" in text
    gain = of_lengths("ssmax_b") - of_lengths("standard")
    assert f"at 32 tokens (by {cells(gain, '.3f')[0]})" in text
    likelier = of_lengths("standard", quantity="nll") - of_lengths("ssmax_b", quantity="nll")
    assert (likelier.mean(0)[3:] > 2 * likelier.std(0, ddof=1)[3:] / 5**0.5).all()


def test_fixed_factors_under_normalised_rows():
    text, swept = page(EVIDENCE), run("learned_scales", "norm")
    titles = dict(zip(swept.axes["model"], SWEPT, strict=True))
    for model, title in titles.items():
        means = swept.select("error", task="recall", model=model).mean(0)  # n, output
        shown = (", ".join(f"{each:.4f}" for each in row) for row in means)
        assert f"| {title} | {' | '.join(shown)} |" in text
    stuck = swept.select("error", task="recall", model="one-norm", n=32, output="sharp") > 0.5
    assert stuck.sum() == 1
    full = run("learned_scales")
    for model, same in (("4-norm", "fixed-norm"), ("per_head-norm", "per_head-norm")):
        one, other = (
            each.select("error", task="recall", model=name) for each, name in ((swept, model), (full, same))
        )
        np.testing.assert_allclose(one, other, atol=2e-4)  # the same seeds


#: Runs that were registered before them.
REGISTERED = (
    ("context", "lengths"),
    ("learned_scales", "norm"),
    ("needle_multiples", "full"),
    ("text_multiples", "full"),
    ("two_heads", "full"),
)
#: Outcomes of the contrasts, claim by claim, on which the words of the page rest.
OUTCOMES = {
    ("length_generalization", "full"): [["undecided"] * 2, ["shown", "undecided"]],
    ("length_generalization", "large"): [["undecided"] * 2, ["shown", "undecided"]],
    ("length_generalization", "cpu"): [["undecided"] * 2, ["undecided"] * 2],
    ("context", "full"): [["shown"] * 6],
    ("context", "lengths"): [
        *(["refuted"] * 2, ["shown"], ["shown"], ["shown"] * 3, ["shown"] * 2, ["shown"]),
    ],
    ("length_tasks", "full"): [["undecided"], ["undecided"]],
    ("recall", "full"): [["shown"], ["shown"]],
    ("hybrids", "full"): [["undecided"], ["undecided"]],
    ("hybrids", "cpu"): [["shown"], ["refuted"]],
    ("learned_scales", "full"): [["shown"], ["shown"]],
    ("learned_scales", "norm"): [
        ["shown", "refuted", "refuted", "shown", "shown"],
        ["shown", "shown", "refuted", "shown", "shown"],
        ["refuted"],
    ],
    ("layers", "full"): [["shown"] * 20],
    ("two_heads", "full"): [["shown"] * 5, ["shown"] * 5, ["shown"], ["shown"], ["shown"]],
    ("collapse", "full"): [["undecided", "undecided", "shown", "undecided"]],
    ("needle_multiples", "full"): [["shown"], ["refuted"], ["refuted"] * 2],
    ("text_multiples", "full"): [
        *[["refuted"], ["refuted"], ["refuted"] * 2],
        *[["undecided"], ["refuted"], ["refuted"] * 2],
    ],
}
#: Experiments that are registered and without a stored run: no page says what they showed.
NOT_RUN = ("causal_length",)
#: Runs with claims of their own, and the files of their tables.
OWN = {
    ("context", "lengths"): "verdicts-context-lengths.md",
    ("learned_scales", "norm"): "verdicts-learned_scales-norm.md",
}


def test_registered_runs_have_their_registration_beside_them():
    folder = ROOT / "python" / "attnscale" / "data" / "experiments"
    files = {name if which == "full" else f"{name}-{which}" for name, which in REGISTERED}
    found = {path.name.removesuffix(".registration.json") for path in folder.glob("*.registration.json")}
    assert found == {*files, *NOT_RUN}
    assert all(name in page("docs/explanation/how-we-judge.md") for name, _ in REGISTERED)


def test_verdicts_are_evaluated_and_not_typed():
    scope = {}
    exec((ROOT / "docs" / "_verdict_tables.py").read_text(encoding="utf-8"), scope)
    written, text = scope["verdict_texts"](), page(EVIDENCE)
    for (name, which), outcomes in OUTCOMES.items():
        verdict = run(name, which).verdict()
        assert [[each.outcome for each in claim.findings] for claim in verdict.claims] == outcomes
        assert verdict.exploratory == ((name, which) not in REGISTERED)
        file = OWN.get((name, which), f"verdicts-{name}.md")
        table = written[file].splitlines()
        rows = [line for line in table if line.startswith(f"| {which} |")]
        assert [row.split(" | ")[8].split(":")[0].rstrip(" |") for row in rows] == [*chain(*outcomes)]
        assert f"{{include}} ../_declared/{file}" in text
    claims = {OWN.get(run, run[0]): len(outcomes) for run, outcomes in OUTCOMES.items()}
    for name in NOT_RUN:
        declared = at.experiments.experiment(name)
        claims[name] = len(declared.criterion(declared.config()).claims)
        assert f"| `{name}` |" in written["verdicts.md"]
        assert written[f"verdicts-{name}.md"] == "No run of this experiment is stored."
    assert claims.keys() == {*at.experiments.names(), *OWN.values()}
    assert len(written["verdicts.md"].splitlines()) == 2 + sum(claims.values())
    for said in (
        "At 256 tokens that is shown for 3 and for 6 layers. At 512",
        "In the run through this package's kernels both lengths are undecided.",
        "Both differences have the sign of the claim, and 3 models cannot show either.",
        "This run can evaluate neither",
        "that one head of dot products is enough is refuted on text by this run",
        "The runs of this page are exploratory, except where they are called registered.",
    ):
        assert said in text
