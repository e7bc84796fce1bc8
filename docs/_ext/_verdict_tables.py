# SPDX-License-Identifier: BSD-3-Clause
"""Tables of verdicts, evaluated on the stored runs when the site is built: no number is typed."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import studies

#: Stored runs, by the names of ``attnscale train NAME --judge RUN``; reduced runs are for tests.
RUNS = ("full", "large", "cpu", "paired")
#: Stored runs with their own claims and table.
OWN_CLAIMS = {
    "causal_length": ("packages",),
    "context": ("lengths",),
    "hybrids": ("sizes",),
    "learned_scales": ("norm",),
    "length_generalization": ("primary",),
    "length_tasks": ("pair",),
    "two_heads": ("answered",),
}
_WITHOUT_TORCH = "This table needs PyTorch where the site is built: `attnscale train NAME --judge full`."


def verdict_texts():
    """The text of each file to include: the contrasts of each experiment, and all claims in one table."""
    runs = dict.fromkeys(_names(), RUNS)
    runs |= {f"{name}-{run}": (run,) for name, own in OWN_CLAIMS.items() for run in own}
    if find_spec("torch") is None:
        return {f"verdicts{each}.md": _WITHOUT_TORCH for each in ("", *(f"-{name}" for name in runs))}
    verdicts = {name: _verdicts(name.partition("-")[0], each) for name, each in sorted(runs.items())}
    tables = {f"verdicts-{name}.md": contrasts(found) for name, found in verdicts.items()}
    return {**tables, "verdicts.md": claims(verdicts)}


def _names():
    """Names of the studies, without importing them."""
    folder = Path(studies.__file__).parent
    return sorted(path.stem for path in folder.glob("[a-z]*.py"))


def _verdicts(name, runs):
    """The verdicts of the stored ones of these runs of a study."""
    found = {}
    for run in runs:
        try:
            found[run] = studies.stored(name, run).verdict()
        except ValueError:  # no such run is stored
            continue
    return found


def claims(verdicts):
    """A row for each claim, with its outcome in each run."""
    rows = ["| experiment | claim | verdict |", "|---|---|---|"]
    for name, found in verdicts.items():
        for i, claim in enumerate(next(iter(found.values())).claims):
            outcomes = [(_run(run, verdict), verdict.claims[i].outcome) for run, verdict in found.items()]
            several = [run for run, _ in outcomes] != ["full"]
            said = ", ".join(f"{outcome} ({run})" if several else outcome for run, outcome in outcomes)
            rows.append(f"| `{name.partition('-')[0]}` | {claim.text} | {said} |")
    return "\n".join(rows)


def _run(run, verdict):
    """The name of a run, and whether its criterion was registered before it."""
    return run if verdict.exploratory else f"{run}, registered"


def contrasts(found):
    """A row for each contrast of each run."""
    findings = [
        (run, one) for run, verdict in found.items() for claim in verdict.claims for one in claim.findings
    ]
    beside = ("by cluster",) if any(one.by_cluster for _, one in findings) else ()
    head = (
        "run",
        "difference",
        "of",
        "margin",
        "mean ± error",
        "interval",
        "p",
        "visible",
        "seeds",
        *beside,
        "verdict",
    )
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*rows, *(_row(run, one, beside) for run, one in findings)])


def _row(run, found, beside):
    value = "" if math.isnan(found.value) else f"{found.value:+.2g}"
    if math.isnan(found.low):
        numbers = (value, "", "", "")
    else:
        interval = f"{found.low:+.2g} to {found.high:+.2g}"
        numbers = (f"{value} ± {found.error:.1g}", interval, f"{found.p:.1g}", f"{found.visible:.2g}")
    outcome = f"{found.outcome}{f': {found.note}' if found.note else ''}"
    of = f"{found.variable} ({found.unit})" if found.unit else found.variable
    if beside and found.by_cluster:
        low, high, degrees = found.by_cluster
        beside = (f"{low:+.2g} to {high:+.2g} (df {degrees:.2g})",)
    elif beside:
        beside = ("",)
    cells = (run, found.name, of, f"{found.least:g}", *numbers, str(found.seeds), *beside, outcome)
    return f"| {' | '.join(cells)} |"
