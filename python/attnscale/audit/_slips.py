# SPDX-License-Identifier: BSD-3-Clause
"""Slips that engines are known for: what each would multiply a score by, and how far it would turn a pair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import laws
from ._angles import Rotation
from ._layer import LayerPlan
from ._scale_plan import ScalePlan

#: Names of the types of scaling.
SCALINGS = {
    "linear": "linear scaling",
    "dynamic": "dynamic scaling",
    "llama3": "llama3 scaling",
    "yarn": "YaRN",
    "longrope": "LongRoPE",
}
#: Names of slips that are joined with others.
NO_FACTOR, UNSCALED, NOT_TURNED = "factor of rotary positions absent", "frequencies unscaled", "not rotated"
WHOLE_HEAD, TURNED = "partial rotation ignored", "rotated, where the model has no positions"
ALL_CHANNELS = "YaRN's factor on all channels"

Angles = NDArray[np.float64]


class ScoreSlip(NamedTuple):
    """A slip of the multiplier, and the multipliers that it leads to."""

    name: str
    rotated: float
    unrotated: float


def rope_keys(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The parameters of rotary positions for a kind of layer, in either spelling."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    inner = found.get(kind)
    return dict(inner if isinstance(inner, dict) else found)


# ---------------------------------------------------------------- the multiplier


def score_slips(config: Mapping[str, Any], plan: LayerPlan, whole: ScalePlan) -> list[ScoreSlip]:
    """Slips of the multiplier at position 0, each a guess with a name."""
    asked = {channels: _asked(plan, channels) for channels in ("rotated", "unrotated")}
    base = _base(plan)
    factor = {channels: value / base for channels, value in asked.items()}
    out = []
    if any(not math.isclose(each, 1.0) for each in factor.values()):
        out.append(ScoreSlip(NO_FACTOR, base, base))
    rope = rope_keys(config, plan.kind)
    for name, rotated, unrotated in (*_factors(rope, factor), *_of_lengths(config, rope, factor)):
        out.append(ScoreSlip(name, base * rotated, base * unrotated))
    for name, other in _bases(config, plan, base):
        out.append(ScoreSlip(name, other * factor["rotated"], other * factor["unrotated"]))
    turned = next((each for each in whole.layers if each.rotation is not None), None)
    if plan.rotation is None and turned is not None:
        product = base * _asked(turned, "rotated") / _base(turned)
        out.insert(0, ScoreSlip(TURNED, product, product))
    return [each for each in out if _differs(each, asked)]


def _base(plan: LayerPlan) -> float:
    return float(np.ravel(plan.base.law.scale(1.0, plan.head_dim))[0])


def _asked(plan: LayerPlan, channels: Any) -> float:
    return float(plan.multipliers(np.zeros(1, np.int64), channels)[0])


def _differs(slip: ScoreSlip, asked: Mapping[str, float]) -> bool:
    pairs = ((slip.rotated, asked["rotated"]), (slip.unrotated, asked["unrotated"]))
    return any(not math.isclose(mine, theirs, rel_tol=1e-6) for mine, theirs in pairs)


def _multiplier(law: laws.ScaleLaw) -> float:
    """The factor of a score by a law of rotary positions."""
    return float(law.multiplier(1, 1))


def _factors(rope: dict[str, Any], asked: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Factors of rotary positions on rotated and other channels, in place of those asked for."""
    rotated, others = asked["rotated"], asked["unrotated"]
    found = []
    if not (math.isclose(rotated, 1.0) and math.isclose(others, 1.0)):
        found.append(("scaled twice", rotated**2, others**2))
        found.append(("factor on the query or the key alone", math.sqrt(rotated), math.sqrt(others)))
    size = rope.get("factor")
    if not isinstance(size, (int, float)) or size <= 1:
        return found
    usual = _multiplier(laws.YaRN(size))
    found += _ignored(rope, size, usual, others)
    if not math.isclose(others, 1.0):  # a factor on all channels
        found.append(("factor on all channels absent", rotated / others, 1.0))
        found.append(("factor on all channels twice", rotated * others, others**2))
        found.append(("factor on rotated channels absent", others, others))
    found.append(("YaRN's factor on a scaling without it", usual, others))
    found.append((ALL_CHANNELS, usual, usual))
    found.append((f"{ALL_CHANNELS}, besides", rotated * usual, others * usual))
    return found


def _of_lengths(
    config: Mapping[str, Any], rope: dict[str, Any], asked: Mapping[str, float]
) -> list[tuple[str, float, float]]:
    """LongRoPE's factor from two lengths, in place of that from its key."""
    long, original = (config.get("max_position_embeddings"), rope.get("original_max_position_embeddings"))
    if "longrope" not in (rope.get("rope_type"), rope.get("type")) or not long or not original:
        return []
    found = _multiplier(laws.LongRoPE(original, long / original))
    return [("LongRoPE's factor from max_position_embeddings", found, asked["unrotated"])]


def _ignored(
    rope: dict[str, Any], size: float, usual: float, others: float
) -> list[tuple[str, float, float]]:
    """Factors of a scaling some of whose keys are not read."""
    given = {name: rope[name] for name in ("attention_factor", "mscale", "mscale_all_dim") if rope.get(name)}
    both = {"mscale", "mscale_all_dim"} <= given.keys()
    found = []
    if given:
        named = "mscale pair" if both else next(iter(given))
        first = "attention_factor" if "attention_factor" in given else named
        left = 1.0 if "mscale_all_dim" in given else others
        found.append((f"{first} ignored", usual, left))
        found.append((f"{first} ignored, {ALL_CHANNELS} besides", usual**2, left * usual))
    if "mscale" in given:
        alone = _multiplier(laws.MLAYaRN(size, given["mscale"]))
        name = "mscale_all_dim ignored" if both else "mscale read without mscale_all_dim"
        found.append((name, alone, 1.0 if both else others))
    return found


def _bases(config: Mapping[str, Any], plan: LayerPlan, base: float) -> list[tuple[str, float]]:
    """Scales in place of the base."""
    found = [("scale not applied", 1.0), ("scale applied twice", base**2)]
    named = plan.base.key.split(" ")[0]
    said = f"{named} ignored: 1/sqrt(head_dim)" if named and named in config else "1/sqrt(head_dim)"
    found.append((said, plan.head_dim**-0.5))
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if isinstance(hidden, int) and isinstance(heads, int) and hidden and heads:
        found.append(("1/sqrt(hidden_size / num_attention_heads)", (hidden / heads) ** -0.5))
    if plan.rotated not in (0, plan.head_dim):
        found.append(("1/sqrt(rotated channels)", plan.rotated**-0.5))
        found.append(("1/sqrt(channels without rotation)", (plan.head_dim - plan.rotated) ** -0.5))
    return found


# ---------------------------------------------------------------- the angles


def unscaled_rotation(plan: LayerPlan, whole: ScalePlan) -> Rotation:
    """The layer's rotation without scaling; of a layer that does not rotate, that of a layer that does."""
    rotation = plan.rotation
    if rotation is None:
        others = [each.rotation for each in whole.layers if each.rotation is not None]
        base = others[0].base if others else 10000.0
        rotated = others[0].rotated if others else plan.head_dim
        return Rotation("default", base, rotated, plan.head_dim)
    return replace(rotation, kind="default", parameters=())


def angle_slips(
    config: Mapping[str, Any], plan: LayerPlan, whole: ScalePlan, unscaled: Rotation
) -> dict[str, Angles]:
    """Angles of all pairs by the name of the slip."""
    rotation = plan.rotation
    if rotation is None:
        turned = next((each.rotation for each in whole.layers if each.rotation is not None), unscaled)
        return {TURNED: _angles(turned), f"{TURNED}, unscaled": _angles(unscaled)}
    variants = [(UNSCALED, unscaled), *_of_scaling(rotation, unscaled, config)]
    variants += _of_other_layers(rotation, unscaled, whole)
    if rotation.base != 10000.0:
        variants.append(("rope_theta ignored (10000)", replace(rotation, base=10000.0)))
    if rotation.rotated < rotation.head_dim and plan.rotated * 2 >= rotation.head_dim:
        variants.append((WHOLE_HEAD, replace(rotation, rotated=rotation.head_dim)))
    out: dict[str, Angles] = {NOT_TURNED: np.zeros(rotation.rotated // 2)}
    for name, variant in variants:
        found = variant.frequencies(1)
        if found is not None and name not in out:
            out[name] = found[: rotation.rotated // 2]
    asked = _angles(rotation)
    return {name: each for name, each in out.items() if not np.allclose(each, asked, rtol=1e-7, atol=0)}


def _of_scaling(
    rotation: Rotation, unscaled: Rotation, config: Mapping[str, Any]
) -> list[tuple[str, Rotation]]:
    """Slips of the scaling itself."""
    given = dict(rotation.parameters)
    if rotation.kind == "linear":
        return [("linear scaling twice", _with(rotation, factor=given["factor"] ** 2))]
    found = []
    if rotation.kind == "yarn":
        found += _of_yarn(rotation, given, config.get("max_position_embeddings"))
    if rotation.kind == "longrope":
        found.append(("long_factor in a short text", _with(rotation, short_factor=given.get("long_factor"))))
    if given.get("factor"):
        linear = replace(unscaled, kind="linear", parameters=(("factor", given["factor"]),))
        found.append(("linear scaling in its place", linear))
    return found


def _of_other_layers(rotation: Rotation, unscaled: Rotation, whole: ScalePlan) -> list[tuple[str, Rotation]]:
    """Slips that take a base or a scaling from layers of another kind."""
    others = [each.rotation for each in whole.layers if each.rotation is not None]
    found = []
    for theta in sorted({each.base for each in others if each.base} - {rotation.base}):
        found.append((f"base of other layers ({theta:g})", replace(rotation, base=theta)))
        found.append((f"base of other layers ({theta:g}), unscaled", replace(unscaled, base=theta)))
    for one in others:
        if one.rotated == rotation.rotated and one.kind in SCALINGS.keys() - {rotation.kind}:
            scaling = f"{SCALINGS[one.kind]} of other layers"
            found += [(scaling, replace(one, base=rotation.base)), (f"base and {scaling}", one)]
    return found


def _of_yarn(rotation: Rotation, given: dict[str, Any], size: Any) -> list[tuple[str, Rotation]]:
    found = []
    flipped = not given.get("truncate", True)
    found.append(("truncate ignored" if flipped else "ramp not truncated", _with(rotation, truncate=flipped)))
    if (given.get("beta_fast") or 32, given.get("beta_slow") or 1) != (32, 1):
        found.append(("beta_fast and beta_slow ignored", _with(rotation, beta_fast=32, beta_slow=1)))
    if isinstance(size, int) and size != given.get("original"):
        found.append(("original_max_position_embeddings ignored", _with(rotation, original=size)))
    return found


def _with(rotation: Rotation, **changed: Any) -> Rotation:
    merged = {**dict(rotation.parameters), **changed}
    return replace(rotation, parameters=tuple(sorted(merged.items())))


def _angles(rotation: Rotation) -> Angles:
    found = rotation.frequencies(1)
    return np.zeros(rotation.rotated // 2) if found is None else found
