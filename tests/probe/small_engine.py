"""A decoder in NumPy with the weights of a probe; every rule of its attention is given from outside."""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Rounding = Callable[[Array], Array]


def unchanged(x: Array) -> Array:
    return x


@dataclass(frozen=True)
class Rules:
    """Rules of attention; scales of rotated and other channels, angles of pairs from word to word."""

    scale: float
    still: float
    turns: Array
    adjacent: bool = False
    window: int | None = None
    chunk: int | None = None
    cap: float | None = None
    sink: Callable[[float], float] | None = lambda logit: logit
    temperature: Callable[[int], float] = lambda position: 1.0
    front: int = 0  # words before a prompt

    def but(self, **changed: Any) -> Rules:
        return dataclasses.replace(self, **changed)


def rules_of(config: Any, layer: int) -> Rules:
    """The rules that the audit finds in a config."""
    whole = at.audit.resolve(config)
    plan = whole[layer]
    kinds = plan.channel_kinds
    first = {kind: float(plan.multipliers(np.zeros(1), kind)[0]) for kind in kinds}
    turns = None if plan.rotation is None else plan.rotation.frequencies(1)
    chunked = plan.kind == "chunked_attention"
    return Rules(
        first.get("rotated", first[kinds[-1]]),
        first.get("unrotated", first[kinds[0]]),
        np.zeros(0) if turns is None else turns,
        whole.model_type in ("glm4", "cohere2", "llama4_text", "deepseek_v3"),
        None if chunked else plan.window,
        plan.window if chunked else None,
        plan.softcap,
        temperature=lambda place: float(plan.multipliers(np.array([place]), kinds[0])[0]) / first[kinds[0]],
    )


#: Norm of the output of attention, where a family has one.
_AFTER = dict.fromkeys(("gemma2", "gemma3_text", "olmo3", "exaone4"), "post_attention_layernorm")
_AFTER["glm4"] = "post_self_attn_layernorm"


class SmallEngine:
    """A checkpoint with one layer that speaks.

    `rounded` rounds all that is handed on, `multiplied` the inputs of matrix products.
    """

    def __init__(
        self, folder: Path, rules: Rules, rounded: Rounding = unchanged, multiplied: Rounding = unchanged
    ) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.rules, self._rounded, self._multiplied = rules, rounded, multiplied
        self.tensors = tensors_in(folder)
        self.layer = self._speaker()
        tied = self.config["tie_word_embeddings"]
        self._head = self._table("model.embed_tokens" if tied else "lm_head")
        self._words = self._table("model.embed_tokens") * self._factor("embedding_multiplier")
        if self._is("gemma2", "gemma3_text"):
            self._words = self._words * math.sqrt(self.config["hidden_size"])
        before = (
            self._norm(self._words, f"{self._at}input_layernorm") if self._has_input_norm else self._words
        )
        attend = self._latent if self._is("deepseek_v3") else self._projected
        self._q, self._k, self._v = map(rounded, attend(multiplied(rounded(before))))

    # ---- parts of the checkpoint

    def _is(self, *kinds: str) -> bool:
        return self.config["model_type"] in kinds

    @property
    def _at(self) -> str:
        return f"model.layers.{self.layer}."

    @property
    def _has_input_norm(self) -> bool:
        return f"{self._at}input_layernorm.weight" in self.tensors

    def _speaker(self) -> int:
        """The layer whose output is not zero; feed-forward layers are left out, so they must be zero."""
        heard = [name for name in self.tensors if "o_proj.weight" in name and self.tensors[name].any()]
        ends = ("down_proj.weight", "down_proj", "w2.weight", "down_proj_bias", "o_proj.bias")
        assert not any(self.tensors[name].any() for name in self.tensors if name.endswith(ends))
        (one,) = heard
        return int(one.split(".")[2])

    def _factor(self, name: str, default: float = 1.0) -> float:
        return float(self.config.get(name, default)) if self._is("granite", "cohere2") else 1.0

    def _table(self, name: str) -> Array:
        return self.tensors[f"{name}.weight"].astype(float)

    def _linear(self, x: Array, name: str) -> Array:
        name = f"{self._at}self_attn.{name}"
        return x @ self._table(name).T + self.tensors.get(f"{name}.bias", 0.0)

    def _norm(self, x: Array, name: str) -> Array:
        """RMS norm; layer norm of Cohere; weights of Gemma lack 1."""
        weight = self._table(name) + (1.0 if self._is("gemma2", "gemma3_text") else 0.0)
        centred = x - x.mean(-1, keepdims=True) if self._is("cohere2") else x
        eps = (
            self.config.get("layer_norm_eps", 1e-5)
            if self._is("cohere2")
            else self.config.get("rms_norm_eps", 1e-6)
        )
        return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps) * weight

    # ---- queries, keys and values of all words, as (word, head, channel)

    def _projected(self, x: Array) -> tuple[Array, Array, Array]:
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        if self._is("phi3"):
            width = self.config["hidden_size"] // heads
            whole = self._linear(x, "qkv_proj")
            q, k, v = np.split(whole, [heads * width, (heads + groups) * width], axis=1)
        else:
            q, k, v = (self._linear(x, f"{name}_proj") for name in "qkv")
        if self._is("olmo3"):  # over all heads
            q, k = (self._norm(y, f"{self._at}self_attn.{n}_norm") for n, y in (("q", q), ("k", k)))
        q, k, v = q.reshape(256, heads, -1), k.reshape(256, groups, -1), v.reshape(256, groups, -1)
        if self._is("qwen3", "qwen3_moe", "gemma3_text", "exaone4"):
            q, k = (self._norm(y, f"{self._at}self_attn.{n}_norm") for n, y in (("q", q), ("k", k)))
        if self._is("llama4_text") and self.config.get("use_qk_norm", True) and self._turning:
            q, k = (y / np.sqrt(np.square(y).mean(-1, keepdims=True) + 1e-6) for y in (q, k))
        return q, np.repeat(k, heads // groups, 1), np.repeat(v, heads // groups, 1)

    @property
    def _turning(self) -> bool:
        """Whether the model, not the engine, turns the layer's queries."""
        marks = self.config.get("no_rope_layers")
        return not marks or bool(marks[self.layer])

    def _latent(self, x: Array) -> tuple[Array, Array, Array]:
        heads, rank = self.config["num_attention_heads"], self.config["kv_lora_rank"]
        still = self.config["qk_nope_head_dim"]
        middle = self._norm(self._linear(x, "q_a_proj"), f"{self._at}self_attn.q_a_layernorm")
        middle = self._multiplied(middle)
        q = self._linear(middle, "q_b_proj").reshape(256, heads, -1)
        both = self._linear(x, "kv_a_proj_with_mqa")
        latent = self._norm(both[:, :rank], f"{self._at}self_attn.kv_a_layernorm")
        k_and_v = self._linear(self._multiplied(latent), "kv_b_proj").reshape(256, heads, -1)
        turned = np.repeat(both[:, None, rank:], heads, axis=1)
        return q, np.concatenate([k_and_v[..., :still], turned], -1), k_and_v[..., still:]

    @property
    def largest(self) -> float:
        """The largest number that a head can add, where all its keys are of one word."""
        output = self._table(f"{self._at}self_attn.o_proj").reshape(-1, *self._v.shape[1:])
        return float(np.abs(np.einsum("chv,whv->wch", output, self._v)).max())

    # ---- one prompt

    def _turned(self, x: Array, positions: Array) -> Array:
        """Channels of (position, head, channel) turned by the angles of the rules."""
        pairs = len(self.rules.turns)
        start = self.config["qk_nope_head_dim"] if self._is("deepseek_v3") else 0
        first = start + (2 * np.arange(pairs) if self.rules.adjacent else np.arange(pairs))
        second = first + (1 if self.rules.adjacent else pairs)
        angles = (positions[:, None] * self.rules.turns)[:, None]
        out = x.copy()
        out[..., first] = x[..., first] * np.cos(angles) - x[..., second] * np.sin(angles)
        out[..., second] = x[..., second] * np.cos(angles) + x[..., first] * np.sin(angles)
        return out

    def _scales(self) -> Array:
        """The multiplier of each channel."""
        width, rotated = self._q.shape[-1], 2 * len(self.rules.turns)
        start = self.config["qk_nope_head_dim"] if self._is("deepseek_v3") else 0
        found = np.full(width, self.rules.still)
        found[start : start + rotated] = self.rules.scale
        return found

    def _attended(self, ids: list[int]) -> Array:
        """Output of the heads that speak, for the last word."""
        rules, last = self.rules, len(ids) - 1
        output = self._table(f"{self._at}self_attn.o_proj").reshape(-1, *self._v.shape[1:])
        (head,) = np.flatnonzero(output.any(axis=(0, 2)))
        first = max(
            0, last + 1 - (rules.window or last + 1), last // rules.chunk * rules.chunk if rules.chunk else 0
        )
        places = np.arange(first, last + 1)
        seen = np.array(ids[first:])
        query = self._turned(self._q[ids[-1:], head : head + 1], np.array([last]))[0, 0]
        heard = self._k[seen, head].any(axis=1)  # the others have a score of 0
        keys = self._turned(self._k[seen[heard], head : head + 1], places[heard])[:, 0]
        scores = np.zeros(len(seen))
        scores[heard] = self._rounded(keys @ (query * self._scales()) * rules.temperature(last))
        if rules.cap:
            scores = rules.cap * np.tanh(scores / rules.cap)
        sinks = self.tensors.get(f"{self._at}self_attn.sinks")
        silent = sinks is not None and rules.sink is not None
        high = scores.max()
        weights = np.exp(scores - high)
        total = weights.sum() + (math.exp(rules.sink(sinks[head]) - high) if silent else 0.0)
        mean = self._rounded(self._rounded(weights / total) @ self._v[seen, head])
        return self._rounded(output[:, head] @ self._multiplied(mean))

    def logits(self, ids: Iterable[int]) -> Array:
        """Logits of the word that follows."""
        words = [1] * self.rules.front + list(ids)
        added, kind = self._attended(words), self.config["model_type"]
        if kind in _AFTER:
            added = self._rounded(self._norm(added, self._at + _AFTER[kind]))
        stream = self._rounded(self._words[words[-1]] + added * self._factor("residual_multiplier"))
        last = self._multiplied(self._rounded(self._norm(stream, "model.norm")))
        found = self._rounded(self._head @ last)
        found = found * self._factor("logit_scale", 0.0625 if kind == "cohere2" else 1.0)
        found = found / self._factor("logits_scaling")
        cap = self.config.get("final_logit_softcapping")
        return self._rounded(cap * np.tanh(found / cap) if cap else found)


def bfloat16(seed: int | None = None) -> Rounding:
    """Round to 8 significant bits: to the nearest number, or of two at random, alike for equal arrays."""

    def rounded(x: Array) -> Array:
        unit = 2.0 ** (np.floor(np.log2(np.where(x == 0, 1.0, np.abs(x)))) - 7)
        draws = (
            0.5 if seed is None else np.random.default_rng([seed, zlib.crc32(x.tobytes())]).random(x.shape)
        )
        return np.asarray(np.floor(x / unit + draws) * unit)

    return rounded


def in_blocks(x: Array) -> Array:
    """Round to integers up to 127 and a scale for 32 numbers, as products with 8-bit weights do."""
    if x.shape[-1] % 32:
        return x
    blocks = x.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    return np.asarray(np.round(blocks / np.where(scale > 0, scale, 1.0)) * scale).reshape(x.shape)


# ---- files -----------------------------------------------------------------------------------------


def numbers(raw: bytes, kind: str) -> Array:
    """Stored numbers; those of bfloat16 are the upper halves of float32."""
    if kind == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(raw, {"F32": "<f4"}[kind])


def tensors_in(folder: Path) -> dict[str, Array]:
    """Tensors of a safetensors file."""
    raw = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = {name: each for name, each in json.loads(raw[8 : 8 + size]).items() if name != "__metadata__"}
    found = {}
    for name, about in header.items():
        start, end = (8 + size + place for place in about["data_offsets"])
        found[name] = numbers(raw[start:end], about["dtype"]).reshape(about["shape"])
    return found
