# SPDX-License-Identifier: BSD-3-Clause
"""Where the code of transformers scales attention otherwise than by 1/sqrt(head_dim).

Every modeling file is parsed. A sign is, within a class whose name speaks of attention, a scale that is set
to something else than (the size of a head)^-1/2, or a name that belongs to a rule of its own: a soft-cap
that is handed on, sinks, a multiplier of the config, a temperature, a learned scale.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_SCALE = re.compile(r"scal|softmax_scale|norm_factor|normalize_fact")
_SIZE = r"[\w.]*(?:head_dim|head_size|d_head|dim_head|key_dim|head_width|hidden_dim|qk_head_dim)"
_PLAIN = re.compile(
    rf"{_SIZE} \*\* \(?-0\.5\)?"
    rf"|1(?:\.0)? / (?:math\.sqrt\({_SIZE}\)|{_SIZE} \*\* 0\.5)"
    rf"|math\.sqrt\({_SIZE}\)"  # a divisor
    rf"|qk_scale or {_SIZE} \*\* \(-0\.5\)"
    r"|\(self\.internal_dim // config\.num_attention_heads\) \*\* \(-0\.5\)"
    r"|1 / math\.sqrt\(self\.hidden_size / self\.n_heads\)"
    r"|scale"  # an argument, which its callers give
)
_NAMES = re.compile(
    r"attention_multiplier|key_multiplier|qk_scale_factor|query_pre_attn_scalar|yarn_apply_mscale|softmax_scaling"
    r"|scale_attn_weights|inverse_layer_idx|logit_scale|per_dim_scale|temperature_tuning|attn_scales?\b|log_scaling"
    r"|get_llama_4_attn_scale|scaled_size_sqrt|lora_scale|scale_(?:q|kv)_lora|\btau\b|attention_scaling\b"
)


def scan(models: Path) -> dict[str, set[str]]:
    """Signs by the name of the modeling file."""
    found: dict[str, set[str]] = {}
    for file in sorted(models.glob("*/modeling_*.py")):
        signs = set(_signs(ast.parse(file.read_text(encoding="utf-8"))))
        if signs:
            found[file.stem.removeprefix("modeling_")] = signs
    return found


def _signs(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and re.search("Attention|Attn|MLA", node.name):
            for part in ast.walk(node):
                yield from _of(part)
        elif isinstance(node, ast.ClassDef) and "Rotary" in node.name:
            yield from (
                part.attr
                for part in ast.walk(node)
                if isinstance(part, ast.Attribute) and "mscale" in part.attr
            )


def _of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            text = ast.unparse(node.value)
            if (
                isinstance(target, ast.Attribute)
                and _SCALE.search(target.attr)
                and not _PLAIN.fullmatch(text)
            ):
                yield f"{target.attr} = {text}"
    elif isinstance(node, ast.keyword) and node.arg in ("softcap", "s_aux"):
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield f"{node.arg}={ast.unparse(node.value)}"
    elif isinstance(node, ast.keyword) and node.arg == "softmax_scale":
        yield f"softmax_scale={ast.unparse(node.value)}"
    elif isinstance(node, ast.Attribute) and _NAMES.search(node.attr):
        yield node.attr
    elif isinstance(node, ast.Name) and _NAMES.search(node.id):
        yield node.id
