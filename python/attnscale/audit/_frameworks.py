# SPDX-License-Identifier: BSD-3-Clause
"""What serving frameworks are on record to have computed instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .._checks import choose
from ..laws import MinistralTemperature, MLAYaRN, QwenLogN, YaRN
from ._layer import LayerPlan, Term
from ._plan import ScalePlan

__all__ = ["FRAMEWORKS", "Defect", "as_framework"]


@dataclass(frozen=True)
class Defect:
    """A rule of a model that a framework does not follow.

    Attributes
    ----------
    what : str
        What it does instead.
    reference : str
        The public report.
    change : callable
        (plan, layer, term) to the term that the framework computes; None if it leaves it out.
    """

    what: str
    reference: str
    change: Callable[[ScalePlan, LayerPlan, Term], Term | None]


@dataclass(frozen=True)
class Framework:
    """A framework, the last version that the reports are about (empty: any), and its defects."""

    version: tuple[int, ...]
    defects: tuple[Defect, ...]


def _without(law: type) -> Callable[[ScalePlan, LayerPlan, Term], Term | None]:
    return lambda plan, layer, term: None if isinstance(term.law, law) else term


def _plain_yarn(*ignored: str) -> Callable[[ScalePlan, LayerPlan, Term], Term | None]:
    """YaRN's rule without some of its keys; latent attention has a code path of its own."""

    def change(plan: ScalePlan, layer: LayerPlan, term: Term) -> Term | None:
        latent = any(isinstance(each.law, MLAYaRN) for each in layer.terms)
        if not isinstance(term.law, YaRN) or latent:
            return term
        given: dict[str, Any] = dict.fromkeys(ignored)
        return replace(term, law=replace(term.law, **given))

    return change


def _without_mla_yarn_in(*types: str) -> Callable[[ScalePlan, LayerPlan, Term], Term | None]:
    drop = _without(MLAYaRN)
    return lambda plan, layer, term: drop(plan, layer, term) if plan.model_type in types else term


def _mla_yarn_by_mscale(plan: ScalePlan, layer: LayerPlan, term: Term) -> Term:
    """The weight of the positions' own factor where that of all channels belongs."""
    weights = [each.law.mscale for each in layer.terms if isinstance(each.law, YaRN)]
    if not isinstance(term.law, MLAYaRN) or not weights or not weights[0]:
        return term
    return replace(term, law=replace(term.law, mscale_all_dim=weights[0]))


_GITHUB = "https://github.com/"

#: Frameworks with a rule on record that is not the model's.
FRAMEWORKS: dict[str, Framework] = {
    "vllm": Framework(
        (0, 25),
        (
            Defect(
                "attention_factor of YaRN is dropped",
                f"{_GITHUB}vllm-project/vllm/pull/48351",
                _plain_yarn("attention_factor"),
            ),
            Defect(
                "mscale and mscale_all_dim of YaRN are ignored",
                f"{_GITHUB}vllm-project/vllm/issues/48621",
                _plain_yarn("mscale", "mscale_all_dim"),
            ),
            Defect(
                "llama_4_scaling_beta among the rope parameters is ignored",
                f"{_GITHUB}vllm-project/vllm/issues/48621",
                _without(MinistralTemperature),
            ),
            Defect(
                "use_logn_attn is ignored",
                f"{_GITHUB}vllm-project/vllm/issues/36880",
                _without(QwenLogN),
            ),
        ),
    ),
    "sglang": Framework(
        (),
        (
            Defect(
                "mscale and mscale_all_dim of YaRN are ignored",
                f"{_GITHUB}sgl-project/sglang/pull/22711",
                _plain_yarn("mscale", "mscale_all_dim"),
            ),
        ),
    ),
    "mlx-lm": Framework(
        (),
        (
            Defect(
                "attention_factor of YaRN is ignored",
                f"{_GITHUB}ml-explore/mlx-lm/pull/1507",
                _plain_yarn("attention_factor"),
            ),
        ),
    ),
    "prime-rl": Framework(
        (),
        (
            Defect(
                "attention_factor of YaRN is dropped",
                f"{_GITHUB}PrimeIntellect-ai/prime-rl/pull/2802",
                _plain_yarn("attention_factor"),
            ),
        ),
    ),
    "tensorrt-llm": Framework(
        (),
        (
            Defect(
                "use_logn_attn is ignored",
                f"{_GITHUB}NVIDIA/TensorRT-LLM/issues/836",
                _without(QwenLogN),
            ),
        ),
    ),
    "megatron-lm": Framework(
        (),
        (
            Defect(
                "the scale of latent attention has mscale in place of mscale_all_dim",
                f"{_GITHUB}NVIDIA/Megatron-LM/issues/1429",
                _mla_yarn_by_mscale,
            ),
        ),
    ),
    "transformers-before-47435": Framework(
        (),
        (
            Defect(
                "mscale_all_dim does not reach the scale of DeepSeek V2 and Mistral 4",
                f"{_GITHUB}huggingface/transformers/pull/47435",
                _without_mla_yarn_in("deepseek_v2", "mistral4"),
            ),
        ),
    ),
}


def as_framework(plan: ScalePlan, name: str) -> tuple[ScalePlan, tuple[Defect, ...]]:
    """The plan as a framework is on record to have computed it, and the defects that change it.

    Parameters
    ----------
    plan : ScalePlan
    name : str
        One of :data:`FRAMEWORKS`, for some with a version behind it, as "vllm-0.9".

    Returns
    -------
    plan : ScalePlan
    defects : tuple of Defect
        Empty if none of them concerns this model.

    Raises
    ------
    ValueError
        If there is no record of the framework, or only of earlier versions.

    Notes
    -----
    This is a list of public reports, not a test of the frameworks: a defect may be mended in the
    version you use, and there may be others.
    """
    defects = []
    for defect in _framework(name).defects:
        layers = tuple(_changed(plan, layer, defect) for layer in plan.layers)
        if layers != plan.layers:
            plan = plan.with_layers(layers)
            defects.append(defect)
    return plan, tuple(defects)


def _framework(name: str) -> Framework:
    stem, version = name, ""
    match = re.fullmatch(r"(.+?)-v?(\d+(?:\.\d+)*)", name) if name not in FRAMEWORKS else None
    if match and match[1] in FRAMEWORKS:
        stem, version = match[1], match[2]
    framework = FRAMEWORKS[choose("framework", stem, list(FRAMEWORKS))]
    asked = tuple(int(part) for part in version.split(".")) if version else ()
    if asked and not framework.version:
        raise ValueError(f"framework {stem!r} is on record without a version, got {name!r}")
    if asked[: len(framework.version)] > framework.version:
        last = ".".join(map(str, framework.version))
        raise ValueError(f"framework {stem!r} is on record up to version {last}, got {name!r}")
    return framework


def _changed(plan: ScalePlan, layer: LayerPlan, defect: Defect) -> LayerPlan:
    terms = [defect.change(plan, layer, term) for term in layer.terms]
    return replace(layer, terms=tuple(term for term in terms if term is not None))
