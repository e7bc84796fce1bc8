# SPDX-License-Identifier: BSD-3-Clause
"""Verdicts and registrations: claims of the pages, evaluated on the stored runs."""

from __future__ import annotations

from itertools import chain

import attnscale as at
import pytest
from pages import ROOT, page
from stored_runs import EVIDENCE, built, run

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

#: Runs that were registered before them.
REGISTERED = (
    ("causal_length", "full"),
    ("causal_length", "packages"),
    ("context", "lengths"),
    ("hybrids", "sizes"),
    ("learned_scales", "norm"),
    ("length_generalization", "paired"),
    ("length_generalization", "primary"),
    ("length_tasks", "pair"),
    ("needle_multiples", "full"),
    ("text_multiples", "full"),
    ("two_heads", "answered"),
    ("two_heads", "full"),
)
#: Outcomes of the contrasts, claim by claim, on which the words of the page rest.
OUTCOMES = {
    ("length_generalization", "full"): [["undecided"] * 2, ["shown", "undecided"]],
    ("length_generalization", "large"): [["undecided"] * 2, ["shown", "undecided"]],
    ("length_generalization", "cpu"): [["undecided"] * 2, ["undecided"] * 2],
    ("length_generalization", "paired"): [["undecided"] * 2, ["shown"] * 2],
    ("length_generalization", "primary"): [["shown"], ["shown"] * 2],
    ("causal_length", "full"): [
        *(["shown"] * 4, ["undecided"], ["undecided", "shown"], ["shown"], ["undecided"] * 2),
        *(["shown", "undecided"], ["undecided"] * 2 + ["shown"] * 2, ["undecided"] * 4),
    ],
    ("causal_length", "packages"): [*([["shown"]] * 5), ["shown"] * 3, ["undecided"]],
    ("context", "full"): [["shown"] * 6],
    ("context", "lengths"): [
        *(["refuted"] * 2, ["shown"], ["shown"], ["shown"] * 3, ["shown"] * 2, ["shown"])
    ],
    ("length_tasks", "full"): [["undecided"], ["undecided"]],
    ("length_tasks", "pair"): [["shown"], ["undecided"]],
    ("recall", "full"): [["shown"], ["shown"]],
    ("hybrids", "full"): [["undecided"], ["undecided"]],
    ("hybrids", "cpu"): [["shown"], ["refuted"]],
    ("hybrids", "sizes"): [["undecided"]] * 4,
    ("learned_scales", "full"): [["shown"], ["shown"]],
    ("learned_scales", "norm"): [
        ["shown", "refuted", "refuted", "shown", "shown"],
        ["shown", "shown", "refuted", "shown", "shown"],
        ["refuted"],
    ],
    ("layers", "full"): [["shown"] * 20],
    ("two_heads", "answered"): [["shown"] * 3 + ["undecided"], ["shown"] + ["undecided"] * 2],
    ("two_heads", "full"): [["shown"] * 5, ["shown"] * 5, ["shown"], ["shown"], ["shown"]],
    ("collapse", "full"): [["undecided", "undecided", "shown", "undecided"]],
    ("needle_multiples", "full"): [["shown"], ["refuted"], ["refuted"] * 2],
    ("text_multiples", "full"): [
        *[["refuted"], ["refuted"], ["refuted"] * 2],
        *[["undecided"], ["refuted"], ["refuted"] * 2],
    ],
}
#: Runs with claims of their own, and the files of their tables.
OWN = {
    ("length_tasks", "pair"): "verdicts-length_tasks-pair.md",
    ("causal_length", "packages"): "verdicts-causal_length-packages.md",
    ("context", "lengths"): "verdicts-context-lengths.md",
    ("hybrids", "sizes"): "verdicts-hybrids-sizes.md",
    ("learned_scales", "norm"): "verdicts-learned_scales-norm.md",
    ("length_generalization", "primary"): "verdicts-length_generalization-primary.md",
    ("two_heads", "answered"): "verdicts-two_heads-answered.md",
}
#: A row of each table built from stored runs.
ROWS = {
    "run-masked.md": "3 layers, distances clipped at 48 | 33.41 ± 0.10 | 33.60 ± 0.11 | 32.80 ± 0.13",
    "run-masked-compared.md": "3 layers | 5 | -0.40 ± 0.12 | -0.36 ± 0.15 | +0.59 ± 0.50 | +2.75 ± 1.52",
    "run-masked-same.md": r"as trained, 3 layers | $\log_{64} n$ | +0.10 ± 0.05 | +0.95 ± 0.15",
    "run-masked-likelihood.md": "clipped at 48, 6 layers | +0.005 ± 0.001 | +0.008 ± 0.002 | +0.001 ± 0.004",
    "run-paired.md": "E less O | as trained | points | -0.30 ± 0.46",
    "run-causal-late.md": r"alibi | $\log_{256} n$ | 2.739 ± 0.002 | -0.033 ± 0.001",
    "run-causal-by-length.md": "none | log n put in | -0.016 ± 0.001 | -0.040 ± 0.001 | -0.033 ± 0.001",
    "run-causal-entropy.md": "none | SSMax | 3.53 ± 0.03 | 4.07 ± 0.04 | 4.60 ± 0.05 | 5.12 ± 0.06",
    "run-causal-by-book.md": "anarchism | 12 | +0.029",
    "run-causal-by-package.md": "gnu-standards | 5 | +0.064 ± 0.005 | +0.044 ± 0.003 | +0.050 ± 0.001",
    "run-context.md": r"graph (stochastic block model), $\log_{32} n$ | 0.653 ± 0.015 | 0.806 ± 0.009",
    "run-context-lengths.md": r"$s \ln n + b$ | 0.646 ± 0.023 | 0.898 ± 0.007 | 0.998 ± 0.000",
    "run-needle.md": r"$\log_{16} n$, less that | -0.005 ± 0.004 | -0.001 ± 0.014 | +0.063 ± 0.015",
    "run-counts.md": "ASEntmax | 0.536 (0.503) | 0.975 (0.783)",
    "run-two-heads.md": r"two of 64, same scores | $5/\sqrt d$ and $0.2/\sqrt d$ | 0.742 ± 0.011",
    "run-two-heads-kept.md": r"$1/\sqrt d$ | 0.956 ± 0.004 | 0.246 ± 0.013",
    "run-recall.md": "2 efficient | 0.985 ± 0.001 | 0.939 ± 0.002 | 0.785 ± 0.007 | 0.484 ± 0.008",
    "run-hybrids.md": "dot + 3 efficient | 2 of 3 models | +0.090 ± 0.007",
    "run-hybrids-sizes.md": "16 | 128 | 3.753 ± 0.010 | -0.028 ± 0.008 | -0.019 ± 0.009 | -0.030 ± 0.005",
    "run-scales.md": "normalised | 0.0425 ± 0.0001 | 0.0003 in 4 of 5 models, 0.82 in one | 0.0000 ± 0.0000",
    "run-scales-norm.md": "fixed, 16 | 0.0001, 0.0000 | 0.0003, 0.0000",
    "run-layers.md": "cosine of updates | 0.51 to 0.76 | 0.31 to 0.58 | 0.29 to 0.47 | 0.21 to 0.35",
    "run-collapse.md": "entropy floor | 1.15 ± 0.01 | 1.23 ± 0.02 | 1.26 ± 0.03 | 2.06 ± 0.11",
}


def test_tables_of_runs_are_built_and_not_typed():
    text = (ROOT / EVIDENCE).read_text(encoding="utf-8")
    assert built().keys() == ROWS.keys()
    for file, row in ROWS.items():
        assert f"```{{include}} ../_declared/{file}\n```" in text
        head, rule, *rows = built()[file].splitlines()
        assert set(rule) <= set("|- ")
        assert {each.count(" | ") for each in rows} == {head.count(" | ")}
        assert any(each.startswith(f"| {row}") for each in rows), file


def test_registered_runs_have_their_registration_beside_them():
    folder = ROOT / "notebooks" / "studies" / "runs"
    files = {name if which == "full" else f"{name}-{which}" for name, which in REGISTERED}
    found = {path.name.removesuffix(".registration.json") for path in folder.glob("*.registration.json")}
    assert found == files
    assert all(name in page("docs/explanation/how-we-judge.md") for name, _ in REGISTERED)


def test_verdicts_are_evaluated_and_not_typed():
    scope = {}
    exec((ROOT / "docs" / "_ext" / "_verdict_tables.py").read_text(encoding="utf-8"), scope)
    written, text = scope["verdict_texts"](), page(EVIDENCE)
    for (name, which), outcomes in OUTCOMES.items():
        verdict = run(name, which).verdict()
        assert [[each.outcome for each in claim.findings] for claim in verdict.claims] == outcomes
        assert verdict.exploratory == ((name, which) not in REGISTERED)
        file = OWN.get((name, which), f"verdicts-{name}.md")
        table = written[file].splitlines()
        rows = [line for line in table if line.startswith(f"| {which} |")]
        assert [row.split(" | ")[-1].split(":")[0].rstrip(" |") for row in rows] == [*chain(*outcomes)]
        assert f"{{include}} ../_declared/{file}" in text
    claims = {OWN.get(run, run[0]): len(outcomes) for run, outcomes in OUTCOMES.items()}
    assert claims.keys() == {*at.experiments.names(), *OWN.values()}
    assert len(written["verdicts.md"].splitlines()) == 2 + sum(claims.values())
    for said in (
        "At 256 tokens more accuracy is shown for 3 layers. For 6, too, but only because three models agree",
        "Three models cannot show either.",
        '"full" can evaluate neither',
        "that one head of dot products is enough is refuted on text by this run",
        "The runs of this page are exploratory, except where they are called registered.",
    ):
        assert said in text
