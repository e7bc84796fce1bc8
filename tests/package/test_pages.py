# SPDX-License-Identifier: BSD-3-Clause
"""Counts, rankings and numbers on pages are those of the package and of the stored runs."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from functools import cache

import attnscale as at
import numpy as np
import pytest
from pages import ROOT, page
from scipy.special import betainc
from stored_runs import run

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.py"))
LENGTHS = (64, 128, 256, 512)


# The shipped heads


@cache
def ranking(lengths):
    """(law, nats off), all laws that can be fitted, least first; of those that are equal the first."""
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query, data.key, n0=64, lengths=list(lengths))
    assert np.all(found.determined)
    errors = np.sqrt((np.asarray(found.entropy_error) ** 2).mean(-1))
    order = np.argsort(errors, kind="stable")
    kept = [i for place, i in enumerate(order) if not place or errors[i] - errors[order[place - 1]] > 1e-6]
    return [(found.laws[i].name, float(errors[i])) for i in kept]


def first_four(lengths):
    return ", ".join(f"{name} {error:.3f}" for name, error in ranking(lengths)[:4])


SHORT = ("docs/claims.md", "docs/faq.md", "notebooks/07_calibrating_a_real_model.py")
ARTICLES = tuple(f"docs/articles/{each}.md" for each in ("000", "004", "zh/000", "zh/004"))


@pytest.mark.parametrize("name", SHORT + ARTICLES)
def test_the_order_of_laws_on_the_shipped_heads(name):
    assert first_four(LENGTHS) in page(name)


def test_the_order_of_laws_that_explain_gives():
    assert first_four(LENGTHS) in at.laws.LogN.remark
    assert at.laws.LogN.remark[-40:] in re.sub(r"\s+", " ", str(at.laws.explain("log_n")))


def test_the_order_of_laws_from_32_tokens_on():
    assert first_four((32, *LENGTHS)) in page("docs/claims.md")


def test_the_numbers_that_the_readme_puts_first():
    log_n = at.laws.get("log_n(base=512)")
    short, long = (
        f"{at.theory.expected_entropy(n, head_dim=64, model='sphere', beta=log_n.multiplier(n, 64)):.2f}"
        for n in (512, 32768)
    )
    assert f"from {short} nats at 512 keys to {long} at 32768" in page("README.md")
    assert f"从 512 个键时的 {short} nat 升到 32768 个键时的 {long} nat" in page("README.zh-CN.md")
    pytest.importorskip("torch")
    here = {"positions": "plain rotary", "trained": "standard"}
    windows, *lost = (
        run("causal_length").select("late", reading=reading, **here).mean()
        for reading in ("windows", "as trained", "clipped")
    )
    whole, clipped = (f"{each - windows:.2f}" for each in lost)
    assert f"loses {whole} nats, and only {clipped} if distances are clipped" in page("README.md")
    assert f"损失 {whole} nat，截断距离后只剩 {clipped}" in page("README.zh-CN.md")


def test_the_page_of_results():
    text = (DOCS / "explanation" / "results.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 2500
    n = np.array([512, 4096, 32768, 2**20])
    for first, values in {
        r"$\mathbb E H$, $1/\sqrt d$": at.theory.expected_entropy(n, 1.0),
        r"$\mathbb E H$, $\log_{512} n$": at.theory.expected_entropy(n, np.log(n) / np.log(512)),
        r"$\beta$ that keeps $\mathbb E H$": at.theory.invariant_beta(n),
        r"$\sqrt{1 + 2 \ln(n/512)}$": at.theory.annealed_beta(n),
    }.items():
        cells = [f"{each:.3f}".replace("1.000", "1") for each in values]
        assert f"| {' | '.join([first, *cells])} |\n" in text
    slowed = [100 * np.log(each) / np.log(512) ** 2 for each in (512, 32768)]
    text = page("docs/explanation/results.md")
    assert "by {:.0f} % at 512 keys and by {:.0f} % at 32768".format(*slowed) in text
    assert f"{512 ** np.log(512) / 1e16:.0f} \\cdot 10^{{16}}" in text
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert "docs/explanation/results.md" in citation


def test_laws_that_are_judged_beyond_the_lengths_of_their_fit():
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query, data.key, n0=64, lengths=list(LENGTHS[:3]))
    errors = {}
    for law, amplitude in zip(found.laws, found.amplitude, strict=True):
        if law.name in ("log_n_from_training", "annealed", "variance_invariant", "log_n"):
            scale = np.asarray(amplitude)[:, None] * law.scale(512, data.query.shape[-1])
            entropy = at.attention_entropy(data.query, data.key, scale=scale).mean(-1, dtype=float)
            errors[law.name] = np.sqrt(((entropy - found.target) ** 2).mean())
    text = page("notebooks/07_calibrating_a_real_model.py")
    assert " ".join(sorted(errors, key=errors.get)) == "log_n_from_training annealed variance_invariant log_n"
    for law, error in errors.items():
        assert re.search(rf"\b{law} (leaves )?{error:.3f}", text), (law, error)


# Counts

_WORDS = "five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
NUMBERS = dict(enumerate(_WORDS.split(), 5))


def test_counts():
    fields = [field.name for field in dataclasses.fields(at.AttentionStatistics)]
    more = set(fields) - {"output", "entropy", "lse"}
    readme = page("README.md")
    assert f"Entropy, lse and {NUMBERS[len(more)]} more numbers of each row" in readme
    assert f"where {len(at.audit.FRAMEWORKS)} frameworks are known to differ" in readme
    assert f"derives all of this slowly; there are {len(NOTEBOOKS)} of them" in page("docs/five-minutes.md")
    pages = ("results.md", "further-results.md")
    results = "".join((DOCS / "explanation" / each).read_text(encoding="utf-8") for each in pages)
    sections = re.findall(r"^## (\d+)\. ", results, flags=re.MULTILINE)
    assert sections == [str(i + 1) for i in range(len(sections))]
    assert f"{NUMBERS[len(sections)]} results" in readme
    assert f"[{NUMBERS[len(sections) - 4].capitalize()} smaller results](further-results.md)" in results
    articles = [path for path in (DOCS / "articles").glob("*.md") if path.stem.isdigit()]
    assert f"the {NUMBERS[len(articles)]} web articles" in readme


def test_the_questions_say_that_there_are_gradients():
    text = (DOCS / "faq.md").read_text(encoding="utf-8")
    assert "## Does it have gradients?\n\nYes" in text
    assert callable(at.attention_gradients)
    assert "Nothing here trains" not in text


# Times


def test_shares_and_ratios_are_those_of_the_baseline():
    kept = json.loads((ROOT / "benchmarks" / "baseline.json").read_text(encoding="utf-8"))["rows"]
    scope = {"__file__": str(DOCS / "_ext" / "_speed_table.py")}
    exec((DOCS / "_ext" / "_speed_table.py").read_text(encoding="utf-8"), scope)
    assert sorted(" ".join(scope["MEASURED"].values()).split()) == sorted(kept)
    table, short = scope["speed_table"]().replace("**", ""), kept["short"]
    share, spread = (f"{100 * short[name]:.1f} %" for name in ("value", "spread"))
    assert f"| forward, 64 x 128 x 64, of the peak | {share} | {spread} |" in table
    long, short = kept["causal_4096"], kept["causal_512"]
    ratios, spread = f"{long['value']:.2f}x / {short['value']:.2f}x", max(long["spread"], short["spread"])
    assert f"| causal faster than full, n = 4096 / 512 | {ratios} | {spread:.2f}x |" in table
    assert "```{include} ../_declared/speed.md\n```" in (DOCS / "explanation" / "performance.md").read_text(
        "utf-8"
    )


def test_costs_of_variants_are_those_of_the_stored_run():
    scope = {"__file__": str(DOCS / "_ext" / "_speed_table.py")}
    exec((DOCS / "_ext" / "_speed_table.py").read_text(encoding="utf-8"), scope)
    table, text = scope["variants_table"]().splitlines(), page("docs/explanation/which-variant.md")
    assert "| exact | 2.19 | 41.7 | 653 | 11608 | - | 2.03 |  |" in table
    stored = json.loads((DOCS / "_measured" / "variants.json").read_text(encoding="utf-8"))
    memory = [each["memory_slope"] for each in stored["summary"].values() if each["memory_slope"]]
    assert [f"{f(memory):.1f}" for f in (min, max)] == ["0.9", "1.0"]  # linear
    taken = [each["bytes"] / 1e6 for each in stored["costs"] if each["n"] == 262144 and each["bytes"]]
    low, high = (round(f(taken)) for f in (min, max))
    assert f"{low} to {high} MB at 262144" in text
    at_1024 = {each["call"]: each["seconds"] for each in stored["costs"] if each["n"] == 1024}
    times = at_1024["torch dot product"] / at_1024["torch efficient"]
    assert f"PyTorch take {times:.0f} times as long" in page("docs/articles/003.md")


# Constants


def test_the_constants_of_the_lemma_and_of_heads():
    claims = page("docs/claims.md")
    assert f"{4 / (1 - math.log(2)):.2f} or more, $4/(1 - \\ln 2)$" in claims
    shown = {0.47: "cosine 0.47 in {} % of the rows, one of 64 in {} %"}
    for cosine, form in shown.items():
        tail = betainc((np.array([50, 64]) - 1) / 2, 0.5, 1 - cosine**2) / 2
        found = 100 * np.exp(511 * np.log1p(-tail))
        assert form.format(*(f"{each:.0f}" for each in found)) in claims


def test_the_bound_of_a_soft_cap_is_the_known_one():
    """The bound of Cicalese, Gargano and Vaccaro, from the ratio of the largest and the smallest weight."""
    for spread in (0.1, 1.0, 4.0):
        ratio, r = math.exp(spread), spread / math.expm1(spread)
        x = ratio * math.log(ratio) / (ratio - 1)
        assert math.log(r) + 1 - r == pytest.approx(-(x - 1 - math.log(x)), abs=1e-12)


# Tables


@pytest.mark.parametrize(
    "path", sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")]), ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_row_of_a_table_has_the_columns_of_its_header(path):
    text = re.sub(r"^ *(```|~~~).*?^ *\1", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for table in re.findall(r"(?:^ *\|.*\n?)+", text, flags=re.M):
        rows = [re.split(r"(?<!\\)\|", row.strip())[1:-1] for row in table.splitlines()]
        assert len(rows) > 1, table
        assert all(re.fullmatch(" *:?-+:? *", cell) for cell in rows[1]), table
        assert {len(row) for row in rows} == {len(rows[0])}, table


# Words


def test_prior_work_is_cited():
    text = page("docs/explanation/results.md") + page("docs/explanation/further-results.md")
    text = " ".join(text.split())  # a line may end between arXiv and the number
    known = ("2008.02217", "2304.14964", "1806.00900", "1712.07906", "2410.01104", "2411.12892")
    near = ("2512.10656", "2404.12224", "2603.11487")
    for source in known + near:
        assert f"arXiv {source}" in text
    assert "inverse participation ratio" in text


@pytest.mark.parametrize(
    "path",
    sorted([*(DOCS / "articles" / "zh").glob("*.md"), ROOT / "README.zh-CN.md", *NOTEBOOKS]),
    ids=lambda path: path.name,
)
def test_a_law_has_one_name_in_chinese(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search("缩放律|规律|定律|(?<!缩放)规则", text)


@pytest.mark.parametrize("path", [*DOCS.rglob("*.md"), *NOTEBOOKS], ids=lambda path: path.name)
def test_no_run_is_said_to_have_had_its_criterion_first(path):
    if "_build" not in path.parts:
        assert not re.search(r"written before\s+(?:# )?the run", path.read_text(encoding="utf-8"))
