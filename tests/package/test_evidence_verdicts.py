# SPDX-License-Identifier: BSD-3-Clause
"""Verdicts and registrations: what the pages say is evaluated on the stored runs."""

from __future__ import annotations

from itertools import chain

import attnscale as at
import pytest
from pages import ROOT, page
from stored_runs import EVIDENCE, run

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

#: Runs that were registered before them.
REGISTERED = (
    ("causal_length", "full"),
    ("context", "lengths"),
    ("hybrids", "sizes"),
    ("learned_scales", "norm"),
    ("length_generalization", "paired"),
    ("needle_multiples", "full"),
    ("text_multiples", "full"),
    ("two_heads", "full"),
)
#: Outcomes of the contrasts, claim by claim, on which the words of the page rest.
OUTCOMES = {
    ("length_generalization", "full"): [["undecided"] * 2, ["shown", "undecided"]],
    ("length_generalization", "large"): [["undecided"] * 2, ["shown", "undecided"]],
    ("length_generalization", "cpu"): [["undecided"] * 2, ["undecided"] * 2],
    ("length_generalization", "paired"): [["undecided"] * 2, ["shown"] * 2],
    ("causal_length", "full"): [
        *(["shown"] * 4, ["undecided"], ["undecided", "shown"], ["shown"], ["undecided"] * 2),
        *(["shown", "undecided"], ["undecided"] * 2 + ["shown"] * 2, ["undecided"] * 4),
    ],
    ("context", "full"): [["shown"] * 6],
    ("context", "lengths"): [
        *(["refuted"] * 2, ["shown"], ["shown"], ["shown"] * 3, ["shown"] * 2, ["shown"]),
    ],
    ("length_tasks", "full"): [["undecided"], ["undecided"]],
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
    ("context", "lengths"): "verdicts-context-lengths.md",
    ("hybrids", "sizes"): "verdicts-hybrids-sizes.md",
    ("learned_scales", "norm"): "verdicts-learned_scales-norm.md",
}


def test_registered_runs_have_their_registration_beside_them():
    folder = ROOT / "notebooks" / "studies" / "runs"
    files = {name if which == "full" else f"{name}-{which}" for name, which in REGISTERED}
    found = {path.name.removesuffix(".registration.json") for path in folder.glob("*.registration.json")}
    assert found == files
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
        assert [row.split(" | ")[9].split(":")[0].rstrip(" |") for row in rows] == [*chain(*outcomes)]
        assert f"{{include}} ../_declared/{file}" in text
    claims = {OWN.get(run, run[0]): len(outcomes) for run, outcomes in OUTCOMES.items()}
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
