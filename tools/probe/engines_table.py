# SPDX-License-Identifier: BSD-3-Clause
"""The table of what engines do with configs, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attnscale as at

#: Keys of the row whose entropy is told, and channels of its head.
KEYS, CHANNELS = 32768, 128
NAMES = {"transformers": "transformers", "mlx": "mlx-lm", "llama_cpp": "llama.cpp"}
_UNNAMED = "a difference without a name"
#: Beginnings of slips that leave the multiplier alone.
_NO_SCALE = ("window", "truncate", "sink", "cap")

Result = Mapping[str, Any]
_Key = TypeVar("_Key", bound=Hashable)


def table(results: Sequence[Result]) -> str:
    """A table of counts, a table of differences, and a list of configs that were not loaded."""
    return "\n".join((*_counts(results), "", *_differences(results), "", *_refused(results))) + "\n"


def entropy(ratio: float) -> float:
    """Expected entropy, in nats, of random keys whose scores have the standard deviation `ratio`."""
    return float(at.theory.expected_entropy(KEYS, ratio, head_dim=CHANNELS))


def _counts(results: Sequence[Result]) -> Iterator[str]:
    yield "| engine | configs | as asked | otherwise | not loaded |"
    yield "|---|---|---|---|---|"
    for name, chosen in _grouped(results, lambda each: each["engine"]).items():
        lost = sum("error" in each for each in chosen)
        wrong = sum(bool(each.get("wrong")) for each in chosen)
        label = next((_version(each) for each in chosen if "error" not in each), NAMES[name])
        yield f"| {label} | {len(chosen)} | {len(chosen) - lost - wrong} | {wrong} | {lost} |"


def _version(result: Result) -> str:
    return str(result["layers"][0]["engine"]).split(",")[0]


def _differences(results: Sequence[Result]) -> Iterator[str]:
    """One line for each engine and slip, with the range of the ratios of its multipliers."""
    yield f"| engine | difference | scale, answered / asked | entropy at {KEYS // 1024}k | families |"
    yield "|---|---|---|---|---|"
    found = [(result, slip, ratio) for result in results for slip, ratio in slips_of(result).items()]
    for (engine, slip), chosen in _grouped(found, lambda each: (each[0]["engine"], each[1])).items():
        ratios = sorted({ratio for _, _, ratio in chosen})
        ends = ratios if len(ratios) == 1 else [ratios[0], ratios[-1]]
        families = ", ".join(dict.fromkeys(result["family"] for result, _, _ in chosen))
        scale = " to ".join(f"{each:.4g}" for each in ends)
        nats = " to ".join(f"{entropy(each):.2f}" for each in ends)
        yield f"| {NAMES[engine]} | {slip} | {scale} | {nats} | {families} |"


def slips_of(result: Result) -> dict[str, float]:
    """Slips of a result, each with the ratio of the multipliers that differs most."""
    out: dict[str, float] = {}
    for layer in result.get("layers", ()):
        slips = layer["slips"] or ([_UNNAMED] if layer["wrong"] else [])
        ratios = [each["answered"] / each["asked"] for each in layer["scales"].values() if each["answered"]]
        most = max(ratios, key=lambda each: abs(math.log(each)), default=1.0)
        ratio = round(most, 4) if abs(most - 1) > 1e-3 else 1.0
        out |= {slip: 1.0 if slip.startswith(_NO_SCALE) else ratio for slip in slips}
    return out


def _refused(results: Sequence[Result]) -> Iterator[str]:
    refused = [each for each in results if "error" in each]
    for engine, chosen in _grouped(refused, lambda each: each["engine"]).items():
        families = _grouped(chosen, lambda each: each["family"])
        said = "; ".join(f"{family} ({_scalings(each)})" for family, each in families.items())
        yield f"Not loaded by {NAMES[engine]}: {said}."


def _scalings(results: Sequence[Result]) -> str:
    return ", ".join(each["scaling"] for each in results)


def _grouped(items: Iterable[Any], key: Callable[[Any], _Key]) -> dict[_Key, list[Any]]:
    out: dict[_Key, list[Any]] = {}
    for each in items:
        out.setdefault(key(each), []).append(each)
    return out
