# SPDX-License-Identifier: BSD-3-Clause
"""Engines with one fault each, and the name that a reading is to give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import faults as do
from .configs import scaled
from .faults import Fault

FAR = 1 << 20  # a window that no text fills


@dataclass(frozen=True)
class Planted:
    """An engine with one fault.

    Attributes
    ----------
    slip : str
        The name that a reading is to give.
    family, scaling : str
        The config, as :func:`.configs.scaled` makes it.
    fault : Fault
    layer : int
        The layer that is asked.
    keys : mapping
        Further keys of the config.
    """

    slip: str
    family: str
    scaling: str
    fault: Fault
    layer: int = 0
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """The config that is probed."""
        found = scaled(self.family, self.scaling)
        if found is None:
            raise KeyError(f"{self.family} has no scaling {self.scaling}")
        return {**found, **self.keys}


NO_FACTOR = "frequencies scaled, score not multiplied"
UNSCALED = "score multiplied, frequencies not scaled"
ONE_SIDE = "factor on the query or the key alone"
ABSENT, SHORT, LONG = "window absent or longer", "window one short", "window one long"
NO_POSITIONS = "rotated, where the model has no positions"
PAIRED = "channels paired otherwise"

_SMALL_WINDOW = {"sliding_window": 512}
_PHI_4 = {"partial_rotary_factor": 0.75}  # three quarters of a head turn

ROTARY = (
    # The whole scaling is not read.
    Planted("YaRN dropped", "mixtral", "yarn", do.dropped()),
    Planted("YaRN dropped", "qwen3_moe", "yarn", do.dropped()),
    Planted("YaRN dropped", "glm4", "yarn", do.dropped()),
    Planted("YaRN dropped", "gpt_oss", "yarn", do.dropped(), layer=1),
    Planted("YaRN dropped", "olmo3", "yarn", do.dropped(), layer=3),
    Planted("YaRN dropped", "smollm3", "yarn", do.dropped()),
    Planted("YaRN dropped", "deepseek_v3", "yarn", do.dropped()),
    Planted("YaRN dropped", "qwen2", "yarn_factor", do.dropped()),
    Planted("linear scaling dropped", "llama", "linear", do.dropped()),
    Planted("linear scaling dropped", "gemma3_text", "linear", do.dropped(), layer=5),
    Planted("llama3 scaling dropped", "llama", "llama3", do.dropped()),
    Planted("llama3 scaling dropped", "exaone4", "llama3", do.dropped()),
    Planted("llama3 scaling dropped", "llama4_text", "llama3", do.dropped()),
    Planted("LongRoPE dropped", "phi3", "longrope", do.dropped()),
    Planted("LongRoPE dropped", "qwen3", "longrope", do.dropped()),
    # One key is not read.
    Planted("attention_factor ignored", "qwen2", "yarn_factor", do.rope_without("attention_factor")),
    Planted("attention_factor ignored", "granite", "yarn_factor", do.rope_without("attention_factor")),
    Planted("attention_factor ignored", "mistral", "yarn_factor", do.rope_without("attention_factor")),
    Planted("mscale pair ignored", "llama", "mscale", do.rope_without("mscale", "mscale_all_dim")),
    Planted("mscale pair ignored", "ministral3", "mscale_equal", do.rope_without("mscale", "mscale_all_dim")),
    Planted("mscale pair ignored", "deepseek_v3", "mscale", do.rope_without("mscale", "mscale_all_dim")),
    Planted(
        "mscale pair ignored", "deepseek_v3", "mscale_equal", do.rope_without("mscale", "mscale_all_dim")
    ),
    Planted(
        "factor on all channels absent",
        "deepseek_v3",
        "mscale",
        do.scale(lambda each: each.qk_head_dim**-0.5),
    ),
    Planted("truncate ignored", "gpt_oss", "yarn", do.rope_without("truncate"), layer=1),
    Planted(
        "original_max_position_embeddings ignored",
        "qwen3",
        "yarn",
        do.rope_with(original_max_position_embeddings="max_position_embeddings"),
    ),
    Planted("long_factor in a short text", "phi3", "longrope", do.rope_with(short_factor="long_factor")),
    Planted("rope_theta ignored (10000)", "qwen2", "plain", do.rope_with(rope_theta=10000.0)),
    # Half of the work is done, or too much.
    Planted(NO_FACTOR, "qwen3", "yarn", do.factor(0)),
    Planted(NO_FACTOR, "mistral", "yarn", do.factor(0)),
    Planted(NO_FACTOR, "gemma3_text", "yarn", do.factor(0), layer=5),
    Planted(NO_FACTOR, "phi3", "longrope", do.factor(0)),
    Planted(UNSCALED, "qwen2", "yarn", do.frequencies()),
    Planted(UNSCALED, "glm4", "yarn", do.frequencies()),
    Planted(UNSCALED, "gpt_oss", "yarn", do.frequencies(), layer=1),
    Planted("linear scaling in its place", "mixtral", "yarn", do.frequencies(4.0)),
    Planted("scaled twice", "mistral", "yarn", do.factor(2)),
    Planted("scaled twice", "gemma2", "yarn", do.factor(2), layer=1, keys=_SMALL_WINDOW),
    Planted(ONE_SIDE, "llama", "yarn", do.query_alone()),
    Planted(ONE_SIDE, "exaone4", "yarn", do.query_alone()),
    Planted(ONE_SIDE, "qwen3_moe", "yarn", do.query_alone()),
    # Other pairs of channels, another base, other layers.
    Planted(PAIRED, "llama", "plain", do.adjacent()),
    Planted(PAIRED, "qwen3", "yarn", do.adjacent()),
    Planted(PAIRED, "glm4", "plain", do.halves(doubled=False)),
    Planted(PAIRED, "cohere2", "plain", do.halves(doubled=True), keys=_SMALL_WINDOW),
    Planted(PAIRED, "deepseek_v3", "plain", do.reads(rope_interleave=False)),
    Planted("partial rotation ignored", "glm4", "plain", do.rope_with(partial_rotary_factor=1.0)),
    Planted(
        "partial rotation ignored", "phi3", "plain", do.rope_with(partial_rotary_factor=1.0), keys=_PHI_4
    ),
    Planted("base of other layers (1e+06)", "gemma3_text", "plain", do.exchanged()),
    Planted("base of other layers (10000)", "gemma3_text", "plain", do.exchanged(), layer=5),
    Planted("linear scaling of other layers", "gemma3_text", "linear", do.for_all_layers()),
    Planted(NO_POSITIONS, "smollm3", "yarn", do.rotation_everywhere("use_rope", True), layer=3),
    Planted(NO_POSITIONS, "cohere2", "plain", do.rotation_everywhere("sliding_window", FAR), layer=3),
    Planted(NO_POSITIONS, "exaone4", "llama3", do.rotation_everywhere("is_sliding", True), layer=3),
    Planted(NO_POSITIONS, "llama4_text", "plain", do.rotation_everywhere("use_rope", True), layer=3),
    Planted("not rotated", "smollm3", "plain", do.no_rotation(0)),
)

SCORES = (
    # The scale.
    Planted(
        "query_pre_attn_scalar ignored: 1/sqrt(head_dim)",
        "gemma2",
        "plain",
        do.reads(query_pre_attn_scalar=256),
        layer=1,
        keys={"query_pre_attn_scalar": 224},
    ),
    Planted(
        "query_pre_attn_scalar ignored: 1/sqrt(head_dim)",
        "gemma3_text",
        "linear",
        do.reads(query_pre_attn_scalar=128),
        layer=5,
    ),
    Planted(
        "attention_multiplier ignored: 1/sqrt(head_dim)",
        "granite",
        "plain",
        do.reads(attention_multiplier=128**-0.5),
    ),
    Planted(
        "1/sqrt(hidden_size / num_attention_heads)", "qwen3_moe", "plain", do.scale(lambda each: 64**-0.5)
    ),
    Planted(
        "1/sqrt(channels without rotation)",
        "deepseek_v3",
        "plain",
        do.scale(lambda each: each.qk_nope_head_dim**-0.5),
    ),
    Planted("scale applied twice", "olmo3", "plain", do.scale(lambda each: each.scaling**2), layer=3),
    Planted("scale not applied", "qwen2", "plain", do.scale(lambda each: 1.0)),
    # Windows.
    Planted(ABSENT, "gemma2", "plain", do.reads(sliding_window=FAR)),
    Planted(SHORT, "gemma2", "plain", do.moved("sliding_window", -1)),
    Planted(LONG, "gemma2", "plain", do.moved("sliding_window", 1), keys=_SMALL_WINDOW),
    Planted(ABSENT, "gpt_oss", "yarn", do.reads(sliding_window=FAR)),
    Planted(SHORT, "gpt_oss", "yarn", do.moved("sliding_window", -1)),
    Planted(LONG, "gpt_oss", "plain", do.moved("sliding_window", 1)),
    Planted(SHORT, "gemma3_text", "linear", do.moved("sliding_window", -1)),
    Planted(ABSENT, "cohere2", "plain", do.reads(sliding_window=FAR)),
    Planted(ABSENT, "olmo3", "plain", do.reads(sliding_window=FAR)),
    Planted(LONG, "exaone4", "plain", do.moved("sliding_window", 1)),
    Planted(ABSENT, "mistral", "plain", do.reads(sliding_window=None), keys={"sliding_window": 1024}),
    Planted(SHORT, "phi3", "plain", do.moved("sliding_window", -1), keys={"sliding_window": 2047}),
    Planted(
        ABSENT,
        "llama4_text",
        "plain",
        do.reads(attention_chunk_size=FAR),
        keys={"attention_chunk_size": 1024},
    ),
    # Soft-caps and sinks.
    Planted("cap absent", "gemma2", "plain", do.reads(attn_logit_softcapping=None), layer=1),
    Planted("another cap", "gemma2", "plain", do.reads(attn_logit_softcapping=30.0), layer=1),
    Planted("sink ignored", "gpt_oss", "yarn", do.sinks(lambda each: -1e9 + 0 * each.sinks)),
    Planted("sink ignored", "gpt_oss", "plain", do.sinks(lambda each: -1e9 + 0 * each.sinks), layer=1),
    Planted("sink scaled", "gpt_oss", "yarn", do.sinks(lambda each: each.scaling * each.sinks), layer=1),
    # Temperatures.
    Planted("temperature absent", "ministral3", "temperature", do.rope_with(llama_4_scaling_beta=0.0)),
    Planted(
        "temperature absent", "llama4_text", "temperature", do.reads(attn_temperature_tuning=False), layer=3
    ),
    Planted(
        "temperature of the number of words, not of the position",
        "ministral3",
        "temperature",
        do.temperature(lambda law, positions: law(positions + 1)),
    ),
    Planted(
        "temperature of the position, not of the number of words",
        "llama4_text",
        "temperature",
        do.later_temperature(),
        layer=3,
    ),
    Planted(
        "temperature twice",
        "ministral3",
        "temperature",
        do.temperature(lambda law, positions: law(positions) ** 2),
    ),
)

PLANTED = ROTARY + SCORES

#: Slip and family of the engines that a test runs: one of each kind, with short texts.
QUICK = (
    ("YaRN dropped", "mixtral"),
    ("attention_factor ignored", "qwen2"),
    ("mscale pair ignored", "llama"),
    ("truncate ignored", "gpt_oss"),
    (NO_FACTOR, "qwen3"),
    (UNSCALED, "glm4"),
    ("scaled twice", "mistral"),
    (PAIRED, "llama"),
    ("long_factor in a short text", "phi3"),
    (SHORT, "gpt_oss"),
    ("sink ignored", "gpt_oss"),
    ("attention_multiplier ignored: 1/sqrt(head_dim)", "granite"),
    (NO_POSITIONS, "smollm3"),
)
