# SPDX-License-Identifier: BSD-3-Clause
"""Configs that are broken at random, and what `resolve` promises of each.

``python -m tools.audit.fuzz --count 100000 --seed 1`` runs more of them than a test does.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
import time
import warnings
from typing import Any

import attnscale as at
import numpy as np
from attnscale.audit._keys import Keys, known_types
from attnscale.audit._rules.families import FAMILIES

from .cases import CASES

#: Values of a key in a file that a hand or a program has spoilt.
_NUMBERS = (0, 1, 2, -1, 7, 0.0, -0.0, 0.5, 1.0, -1.5, 1e-320, 1e308, math.inf, -math.inf, math.nan)
_YARN = {"rope_type": "yarn", "factor": 4.0}
VALUES: tuple[Any, ...] = (
    *(None, True, False, *_NUMBERS, 10**9, 10**30, 10**400),
    *("", "x", "4", "yarn", "full_attention", "a" * 5000),
    *([], [None], [0], [1, 2], ["x"], [[1]], [0.5] * 8, [True] * 4, [1e400] * 4),
    *(["full_attention", "sliding_attention"] * 2,),
    *({}, {1: 2}, {"x": 1}, {"factor": 0}, {"type": {}}, {"rope_type": []}, {"rope_type": "yarn"}),
    *({**_YARN, "factor": 1e300}, {"full_attention": None}, {"full_attention": _YARN}),
)


def bases() -> list[dict[str, Any]]:
    """A whole config of every model type, and of every case with its own keys."""
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "max_position_embeddings": 4096,
    }
    rows = sorted({kind for row in FAMILIES for kind in row.types} | known_types())
    plain = [{"model_type": kind, **sizes, **Keys({}, kind).defaults} for kind in [*rows, "novel", ""]]
    cases = [{"model_type": kind, **sizes, **keys} for kind, keys in CASES]
    inside = [{"model_type": "llava", "text_config": each} for each in cases[:20]]
    return [*plain, *cases, *inside]


def mutated(rng: random.Random, configs: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """A random config with one to three changes."""
    config = copy.deepcopy(rng.choice(configs))
    for _ in range(rng.randint(1, 3)):
        place: Any = config
        while True:
            inner = [value for value in place.values() if isinstance(value, dict) and value]
            if not inner or rng.random() < 0.5:
                break
            place = rng.choice(inner)
        _change(rng, place, names)
    return config


def _change(rng: random.Random, place: dict[Any, Any], names: list[str]) -> None:
    present = list(place)
    what = rng.random()
    if present and what < 0.15:
        del place[rng.choice(present)]
    elif present and what < 0.6:
        name = rng.choice(present)
        place[name] = copy.deepcopy(rng.choice(VALUES))
    else:
        place[rng.choice(names)] = copy.deepcopy(rng.choice(VALUES))


def all_names() -> list[str]:
    """Every key that a rule may read."""
    found = {name for kind in known_types() for name in (*Keys({}, kind).defaults, *Keys({}, kind).accepted)}
    nested = ("rope_type", "type", "factor", "attention_factor", "mscale", "mscale_all_dim", "short_factor")
    other = (
        *("rope_scaling", "layer_types", "rotary_pct", "per_layer_config", "no_rope_layers", "attn_config"),
        *("text_config", "decoder", "llama_4_scaling_beta", "compress_ratios"),
    )
    return sorted({*found, *nested, *other})


def broken_promise(config: Any) -> str | None:
    """The promise of `resolve` that this mapping breaks, or None."""
    before = copy.deepcopy(config)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            plan = at.audit.resolve(config)
        except ValueError as error:
            return "a message of several lines" if "\n" in str(error) else None
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    if str(config) != str(before):
        return "its argument is changed"
    foreign = [each for each in caught if not issubclass(each.category, at.audit.AuditWarning)]
    if foreign:
        return f"a foreign warning: {foreign[0].message}"
    if not plan.warnings and (wrong := _not_a_multiplier(plan)):
        return wrong
    return None


def _not_a_multiplier(plan: Any) -> str | None:
    for layer in plan.layers[:4]:
        if layer.refusal is None:
            for channels in layer.channel_kinds:
                try:
                    value = plan.multiplier(layer=layer.index, position=3, channels=channels)
                except ValueError:  # a model with fewer learned positions
                    continue
                if not np.isfinite(value) or value < 0:
                    return f"a multiplier of {value} without a warning"
    return None


def main() -> int:
    """Run and report; the exit status."""
    parser = argparse.ArgumentParser(description="what resolve promises of any config, on random ones")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, configs, names = random.Random(options.seed), bases(), all_names()
    failures, slowest, start = 0, 0.0, time.monotonic()
    for _ in range(options.count):
        config = mutated(rng, configs, names)
        began = time.process_time()
        wrong = broken_promise(config)
        slowest = max(slowest, time.process_time() - began)
        if wrong is not None:
            failures += 1
            print(f"{wrong}\n    {json.dumps(config, default=str)[:1500]}")
    seconds = time.monotonic() - start
    print(
        f"{options.count} configs in {seconds:.0f} s, {failures} broken promises, the slowest {slowest:.3f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
