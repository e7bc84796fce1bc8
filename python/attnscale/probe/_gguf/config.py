# SPDX-License-Identifier: BSD-3-Clause
"""A config as llama.cpp's converter sees it: with defaults, and with one form of rotary parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._base.checks import InputError, shown
from ...audit._keys import Keys

#: Types of rotary positions for which transformers fills in the original length.
_WITH_LENGTH = ("llama3", "yarn", "longrope")


class Config:
    """Keys of a config.json by name; a missing one is the default of `usual` or of transformers."""

    def __init__(self, given: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
        self.given = given
        self.usual = usual
        self.kind = str(given["model_type"])
        self.defaults = Keys(given, self.kind).defaults

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key, else its default; for a key that is null, ``default``."""
        value = self.given.get(name)
        if value is None and name not in self.given:
            value = self.usual.get(name, self.defaults.get(name))
        return default if value is None else value

    def __getitem__(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise InputError(f"config must have {name} for a GGUF file of {self.kind}, got {shown(value)}")
        return value

    @property
    def head_dim(self) -> int:
        return int(self.get("head_dim") or self["hidden_size"] // self["num_attention_heads"])

    @property
    def key_heads(self) -> int:
        return int(self.get("num_key_value_heads") or self["num_attention_heads"])

    @property
    def rope(self) -> dict[str, Any]:
        """Rotary parameters of the layers without a window."""
        return self._with_length(self._full() if self._by_kind else self._flat())

    @property
    def window_theta(self) -> float | None:
        """Base of the angles in layers with a window; None if all layers have the same."""
        if not self._by_kind:
            return None
        usual = self.defaults["rope_parameters"]["sliding_attention"]["rope_theta"]
        block = _table(self.given.get("rope_parameters")).get("sliding_attention") or {}
        return float(block.get("rope_theta") or self.get("rope_local_base_freq") or usual)

    @property
    def _by_kind(self) -> bool:
        return "full_attention" in _table(self.defaults.get("rope_parameters"))

    def _full(self) -> dict[str, Any]:
        usual = self.defaults["rope_parameters"]["full_attention"]["rope_theta"]
        block = dict(
            _table(self.given.get("rope_parameters")).get("full_attention") or {"rope_type": "default"}
        )
        block |= _table(self.given.get("rope_scaling"))  # its older key "type" is not read here
        block.setdefault("rope_theta", self.get("rope_theta", usual))
        return _typed(block)

    def _flat(self) -> dict[str, Any]:
        usual = _table(self.defaults.get("rope_parameters"))
        given = self.given.get("rope_scaling") or self.given.get("rope_parameters")
        theta = self.get("rope_theta", usual.get("rope_theta", 10000.0))
        block = dict(_table(given))
        if not block and usual.get("rope_type") != "default":
            block = {**usual, "rope_theta": theta}
        block.setdefault("rope_theta", theta)
        share = "partial_rotary_factor"
        block.setdefault(share, self.get(share, self.usual.get(share, 1.0)))
        return _typed(block)

    def _with_length(self, block: dict[str, Any]) -> dict[str, Any]:
        name = "original_max_position_embeddings"
        if block["rope_type"] in _WITH_LENGTH:
            block.setdefault(name, self["max_position_embeddings"])
        beside = None if self._by_kind else self.get(name)
        return block if beside is None else {**block, name: beside}


def _typed(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "rope_type": block.get("rope_type") or block.get("type") or "default"}


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
