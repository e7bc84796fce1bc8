# SPDX-License-Identifier: BSD-3-Clause
"""The table of what engines do with configs, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attnscale as at

#: Keys of the row whose entropy is told, and channels of its head.
KEYS, CHANNELS = 32768, 128

Result = Mapping[str, Any]


def table(results: Sequence[Result]) -> str:
    """A table of counts, a table of differences, and a list of configs that were not loaded."""
    return "\n".join((*_counts(results), "", *_differences(results), "", *_refused(results))) + "\n"


def entropy(ratio: float) -> float:
    """Expected entropy, in nats, of random keys whose scores have the standard deviation `ratio`."""
    return float(at.theory.expected_entropy(KEYS, ratio, head_dim=CHANNELS))


def _counts(results: Sequence[Result]) -> Iterable[str]:
    yield "| engine | configs asked | as asked | otherwise | not loaded |"
    yield "|---|---|---|---|---|"
    for name, chosen in _grouped(results, lambda each: each["engine"]).items():
        lost = sum("error" in each for each in chosen)
        wrong = sum(bool(each.get("wrong")) for each in chosen)
        label = next((_version(each) for each in chosen if "error" not in each), name)
        yield f"| {label} | {len(chosen)} | {len(chosen) - lost - wrong} | {wrong} | {lost} |"


def _version(result: Result) -> str:
    return str(result["layers"][0]["engine"]).split(",")[0]


def _differences(results: Sequence[Result]) -> Iterable[str]:
    """One line for each engine and slip, and each ratio of the multipliers."""
    found: dict[tuple[str, str, float], list[Result]] = {}
    for each in results:
        for slip, ratio in _slips(each).items():
            found.setdefault((each["engine"], slip, ratio), []).append(each)
    length = f"{KEYS // 1024}k"
    yield f"| engine | difference | answered / asked | entropy of random keys at {length}, in nats | where |"
    yield "|---|---|---|---|---|"
    plain = entropy(1.0)
    for (engine, slip, ratio), chosen in sorted(
        found.items(), key=lambda each: (each[0][0], each[0][1], each[0][2])
    ):
        change = "" if math.isclose(ratio, 1.0, abs_tol=1e-3) else f"{plain:.3f} to {entropy(ratio):.3f}"
        yield f"| {engine} | {slip} | {ratio:.4g} | {change} | {_where(chosen)} |"


def _slips(result: Result) -> dict[str, float]:
    """Slips of a result, each with the ratio of the multipliers that differs most."""
    out: dict[str, float] = {}
    for layer in result.get("layers", ()):
        slips = layer["slips"] or (["a difference without a name"] if layer["wrong"] else [])
        ratios = [each["answered"] / each["asked"] for each in layer["scales"].values() if each["answered"]]
        most = max(ratios, key=lambda each: abs(math.log(each)), default=1.0)
        out |= {slip: round(most, 4) if abs(most - 1) > 1e-3 else 1.0 for slip in slips}
    return out


def _where(results: Sequence[Result]) -> str:
    groups = _grouped(results, lambda each: each["family"])
    return "; ".join(
        f"{family}: {', '.join(each['scaling'] for each in chosen)}" for family, chosen in groups.items()
    )


def _refused(results: Sequence[Result]) -> Iterable[str]:
    refused = [each for each in results if "error" in each]
    for (engine, said), chosen in _grouped(refused, lambda each: (each["engine"], each["error"])).items():
        yield f"- {engine}: {_where(chosen)}: {said}"


def _grouped(results: Iterable[Result], key: Any) -> dict[Any, list[Result]]:
    out: dict[Any, list[Result]] = {}
    for each in results:
        out.setdefault(key(each), []).append(each)
    return out
