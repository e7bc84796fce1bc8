"""Readings of engines that are right, and of engines with one slip each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from rotary import Array, factor_of, plain, yarn
from small_bench import Bench, Change, config_of
from small_engine import bfloat16, in_blocks

from tools.probe.configs import FAMILIES


def what_of(found: Any) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in found.rows()}


#: A scaling for each family: its own, where checkpoints have one.
OWN = {
    "phi3": "longrope",
    "gemma3_text": "linear",
    "exaone4": "llama3",
    "olmo3": "yarn_factor",
    "ministral3": "temperature",
    "llama4_text": "temperature",
    "deepseek_v3": "mscale_equal",
    "gemma2": "plain",
    "cohere2": "plain",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_right_engine_is_as_asked(bench: Bench, family: str) -> None:
    """The slowest pair turns too little where the base is millions."""
    found = bench.read(config_of(family, OWN.get(family, "yarn")))
    assert not found.wrong, found
    assert found.slips == ()
    for row in found.rows():
        if row["verdict"] != "as asked":
            assert (row["what"], row["verdict"]) == ("pair 63, rad a word", "not resolved")
            assert family in ("granite", "smollm3")
        if row["what"].startswith("scale"):
            assert row["answered"] == pytest.approx(row["asked"], rel=1e-5)


# ---- slips -----------------------------------------------------------------------------------------


class Slip(NamedTuple):
    """An engine with one slip: the name of it, the config, and how rules change."""

    name: str
    family: str
    scaling: str
    change: Change
    layer: int = 0
    keys: Mapping[str, Any] = MappingProxyType({})


def times(factor: float, still: float = 1.0) -> Change:
    """Other scales of rotated and of other channels."""
    return lambda rules: rules.but(scale=rules.scale * factor, still=rules.still * still)


def turns(angles: Array, factor: float = 1.0) -> Change:
    """Other angles, and another scale."""
    return lambda rules: rules.but(turns=angles, scale=rules.scale * factor, still=rules.still * factor)


def rules(**changed: Any) -> Change:
    return lambda given: given.but(**changed)


def moved(by: int) -> Change:
    return lambda given: given.but(window=(given.window or 0) + by)


X4, X32, HALF = factor_of(4), factor_of(32), factor_of(4, 0.5)
_LLAMA = plain(5e5, 128)
_LLAMA4 = {"attention_chunk_size": 1024}
FACTOR = "frequencies scaled, score not multiplied"
ANGLES = "score multiplied, frequencies not scaled"
ONE_SIDE = "factor on the query or the key alone"
NO_POSITIONS = "rotated, where the model has no positions"


def ministral_late(position: int) -> float:
    """The temperature of the number of words."""
    return 1 + 0.1 * math.log(1 + (position + 1) // 2048)


def llama4_early(position: int) -> float:
    """The temperature of the position."""
    return 1 + 0.1 * math.log(1 + position // 2048)


def ministral_twice(position: int) -> float:
    return (1 + 0.1 * math.log(1 + position // 2048)) ** 2


SLIPS = (
    Slip("YaRN dropped", "qwen2", "yarn", turns(plain(1e6, 128), 1 / X4)),
    Slip("YaRN dropped", "glm4", "yarn", lambda given: given.but(turns=plain(1e4, 64), scale=128**-0.5)),
    Slip("YaRN dropped", "gpt_oss", "yarn", turns(plain(150000, 64), 1 / X32), 1),
    Slip("YaRN dropped", "qwen2", "yarn_factor", turns(plain(1e6, 128))),
    Slip("linear scaling dropped", "llama", "linear", turns(_LLAMA)),
    Slip("llama3 scaling dropped", "llama", "llama3", turns(_LLAMA)),
    Slip(
        "LongRoPE dropped", "phi3", "longrope", lambda given: given.but(turns=plain(1e4, 96), scale=96**-0.5)
    ),
    Slip("attention_factor ignored", "qwen2", "yarn_factor", times(X4)),
    Slip("mscale pair ignored", "llama", "mscale", lambda given: given.but(scale=128**-0.5 * X4)),
    Slip(
        "mscale pair ignored",
        "deepseek_v3",
        "mscale",
        lambda given: given.but(scale=192**-0.5 * X4, still=192**-0.5),
    ),
    Slip("mscale pair ignored", "ministral3", "mscale_equal", times(X4)),
    Slip("factor on all channels absent", "deepseek_v3", "mscale", times(1 / HALF, 1 / HALF)),
    Slip("truncate ignored", "gpt_oss", "yarn", turns(yarn(150000, 64, 32, 4096)), 1),
    Slip("ramp not truncated", "qwen2", "yarn", turns(yarn(1e6, 128, 4, 8192, truncate=False))),
    Slip("original_max_position_embeddings ignored", "qwen2", "yarn", turns(yarn(1e6, 128, 4, 32768))),
    Slip(FACTOR, "qwen3", "yarn", times(1 / X4)),
    Slip(FACTOR, "gemma3_text", "yarn", times(1 / X4), 5),
    Slip(ANGLES, "mistral", "yarn", turns(plain(1e6, 128))),
    Slip("scaled twice", "mixtral", "yarn", times(X4)),
    Slip(ONE_SIDE, "exaone4", "yarn", times(X4**-0.5)),
    Slip("linear scaling in its place", "qwen3_moe", "yarn", turns(plain(1e6, 128) / 4)),
    Slip("linear scaling twice", "llama", "linear", turns(_LLAMA / 16)),
    Slip("rope_theta ignored (10000)", "qwen2", "plain", turns(plain(1e4, 128))),
    Slip("base of other layers (1e+06)", "gemma3_text", "plain", turns(plain(1e6, 128))),
    Slip("base of other layers (10000)", "gemma3_text", "plain", turns(plain(1e4, 128)), 5),
    Slip("channels paired otherwise", "llama", "yarn", rules(adjacent=True)),
    Slip("channels paired otherwise", "glm4", "plain", rules(adjacent=False)),
    Slip("channels paired otherwise", "deepseek_v3", "plain", rules(adjacent=False)),
    Slip("partial rotation ignored", "glm4", "plain", turns(plain(1e4, 128))),
    Slip(NO_POSITIONS, "smollm3", "plain", turns(plain(5e6, 128)), 3),
    Slip(NO_POSITIONS, "cohere2", "plain", turns(plain(5e4, 128)), 3),
    Slip("not rotated", "smollm3", "plain", turns(np.zeros(0))),
    Slip(
        "query_pre_attn_scalar ignored: 1/sqrt(head_dim)",
        "gemma2",
        "plain",
        rules(scale=1 / 16),
        1,
        {"query_pre_attn_scalar": 224},
    ),
    Slip("attention_multiplier ignored: 1/sqrt(head_dim)", "granite", "plain", rules(scale=128**-0.5)),
    Slip("1/sqrt(hidden_size / num_attention_heads)", "qwen3_moe", "plain", rules(scale=64**-0.5)),
    Slip(
        "1/sqrt(channels without rotation)", "deepseek_v3", "plain", rules(scale=128**-0.5, still=128**-0.5)
    ),
    Slip("scale not applied", "qwen2", "plain", rules(scale=1.0)),
    Slip("scale applied twice", "olmo3", "plain", rules(scale=1 / 128), 3),
    Slip("window absent or longer", "gemma2", "plain", rules(window=None)),
    Slip("window absent or longer", "llama4_text", "plain", rules(chunk=None), keys=_LLAMA4),
    Slip("window one short", "gpt_oss", "yarn", moved(-1)),
    Slip("window one long", "exaone4", "plain", moved(1)),
    Slip("window shorter by two or more", "gemma3_text", "plain", moved(-2)),
    Slip("cap absent", "gemma2", "plain", rules(cap=None), 1),
    Slip("another cap", "gemma2", "plain", rules(cap=30.0), 1),
    Slip("sink ignored", "gpt_oss", "yarn", rules(sink=None)),
    Slip("sink scaled", "gpt_oss", "yarn", rules(sink=lambda logit: logit / 8), 1),
    Slip("another sink", "gpt_oss", "plain", rules(sink=lambda logit: logit + 1), 1),
    Slip("temperature absent", "ministral3", "temperature", rules(temperature=lambda place: 1.0)),
    Slip("temperature twice", "ministral3", "temperature", rules(temperature=ministral_twice)),
    Slip(
        "temperature of the number of words, not of the position",
        "ministral3",
        "temperature",
        rules(temperature=ministral_late),
    ),
    Slip(
        "temperature of the position, not of the number of words",
        "llama4_text",
        "temperature",
        rules(temperature=llama4_early),
        3,
    ),
)


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: f"{slip.name}, {slip.family}")
def test_a_slip_has_its_name(bench: Bench, slip: Slip) -> None:
    config = config_of(slip.family, slip.scaling, **slip.keys)
    found = bench.read(config, slip.change, layer=slip.layer, k=5)
    assert found.wrong
    assert found.slips == (slip.name,)


# ---- habits that are no slips ----------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen2", "gpt_oss", "ministral3", "llama4_text"])
def test_words_in_front_are_counted(bench: Bench, family: str) -> None:
    """Words in front move temperatures and chunks; windows, scales and angles stay."""
    keys = _LLAMA4 if family == "llama4_text" else {}
    found = bench.read(config_of(family, OWN.get(family, "yarn"), **keys), rules(front=1))
    assert found.slips == ()
    assert {each.front for each in found.checkpoints} == {1}
    assert "the engine puts 1 word(s) before a prompt" in found.table()
    lost = {what for what, row in what_of(found).items() if row["verdict"] != "as asked"}
    assert {what.split()[0] for what in lost} == {
        "qwen2": set(),
        "gpt_oss": set(),
        "ministral3": {"temperature"},
        "llama4_text": {"temperature", "window"},
    }[family]


# ---- rounded numbers -------------------------------------------------------------------------------

DRAWS = [(family, OWN.get(family, "yarn"), seed) for seed, family in enumerate(FAMILIES)]
DRAWS += [("gemma2", "yarn", 19), ("gemma3_text", "yarn", 20), ("exaone4", "yarn", 21)]


@pytest.mark.parametrize(("family", "scaling", "seed"), DRAWS)
def test_bfloat16_gives_no_false_alarm(bench: Bench, family: str, scaling: str, seed: int) -> None:
    for each in (None, seed):
        found = bench.read(config_of(family, scaling), rounded=bfloat16(each))
        assert not found.wrong, found
        for row in found.rows():
            if row["what"].startswith("scale"):
                assert row["answered"] == pytest.approx(row["asked"], rel=0.02)


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: f"{slip.name}, {slip.family}")
def test_a_slip_in_bfloat16_has_its_name(bench: Bench, slip: Slip) -> None:
    config = config_of(slip.family, slip.scaling, **slip.keys)
    assert bench.read(config, slip.change, layer=slip.layer, rounded=bfloat16()).slips == (slip.name,)


@pytest.mark.parametrize(("family", "scaling"), sorted({draw[:2] for draw in DRAWS}))
def test_blocks_of_8_bits_give_no_false_alarm(bench: Bench, family: str, scaling: str) -> None:
    found = bench.read(config_of(family, scaling), multiplied=in_blocks)
    assert not found.wrong, found
    for row in found.rows():
        if row["what"].startswith("scale"):
            assert row["answered"] == pytest.approx(row["asked"], rel=2e-3)


@pytest.mark.parametrize("keys", [{}, {"query_pre_attn_scalar": 224}, {"query_pre_attn_scalar": 144}])
@pytest.mark.parametrize("scaling", ["plain", "yarn"])
def test_a_soft_cap_in_blocks_of_8_bits(bench: Bench, scaling: str, keys: dict[str, Any]) -> None:
    """Both weights of the question of a soft-cap are of one block."""
    for cap, slips in ((50.0, ()), (30.0, ("another cap",)), (None, ("cap absent",))):
        config = config_of("gemma2", scaling, **keys)
        assert bench.read(config, rules(cap=cap), layer=1, multiplied=in_blocks).slips == slips


def test_a_slow_pair_is_not_resolved(bench: Bench) -> None:
    """A pair may turn by less than its error."""
    found = what_of(bench.read(config_of("qwen3", "plain"), rounded=bfloat16(3)))
    slowest = found["pair 63, rad a word"]
    assert (slowest["verdict"], slowest["answered"], slowest["slip"]) == ("not resolved", None, "")
    assert found["pair 0, rad a word"]["verdict"] == "as asked"


def test_a_faint_soft_cap_is_not_resolved(bench: Bench) -> None:
    """A soft-cap may be lost in roundings: a right engine is never wrong, one without it never right."""
    config = config_of("gemma2", "yarn_factor", query_pre_attn_scalar=144)

    def verdicts(cap: float | None) -> set[str]:
        found = [bench.read(config, rules(cap=cap), layer=1, rounded=bfloat16(seed)) for seed in range(5)]
        return {what_of(each)["soft-cap"]["verdict"] for each in found}

    assert "wrong" not in verdicts(50.0)
    assert verdicts(None) == {"wrong", "not resolved"}


# ---- few log-probabilities -------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_five_log_probabilities_tell_as_much_as_all(bench: Bench, family: str) -> None:
    config = config_of(family, OWN.get(family, "yarn"))
    five, whole = (bench.read(config, k=k).rows() for k in (5, None))
    assert [(row["what"], row["verdict"]) for row in five] == [(row["what"], row["verdict"]) for row in whole]
    for few, many in zip(five, whole, strict=True):
        if many["answered"] is not None:
            assert few["answered"] == pytest.approx(many["answered"], rel=1e-9)
