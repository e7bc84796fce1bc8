# SPDX-License-Identifier: BSD-3-Clause
"""Scale laws: named rules for the multiplier of q . k, each with its meaning of n.

``scale=`` of every attention function takes a law or its name:

>>> import attnscale as at
>>> at.laws.get("log_n").scale(4096, 64) == at.laws.LogN(base=512).scale(4096, 64)
True
"""

from typing import Any

# This order of imports is that of names().
# isort: off
from ._base import Law, Scaled
from ._meaning import MEANINGS_OF_N
from ._registry import FunctionLaw, explain, from_dict, from_json, get, names, register
from ._constant import Constant, DisentangledScale, LatentScale, LayerIndex, MuP, PerHead, Standard, Unscaled
from ._log_n import (
    ASEntmax,
    GrokTemperature,
    Kappa,
    LogN,
    LogNFromTraining,
    LogPower,
    NaturalLogN,
    QwenLogN,
    SSMax,
)
from ._temperature import (
    BeamTemperature,
    InklingTemperature,
    Llama4Temperature,
    MinistralTemperature,
    NoPETemperature,
    SelectiveTemperature,
)
from ._rotary import LongRoPE, MLAYaRN, YaRN
from ._invariance import (
    Annealed,
    EntropyInvariant,
    InfoScale,
    Retrieval,
    ScaleInvariant,
    SparsityInvariant,
    VarianceInvariant,
)
from ._measured import AdaptiveTemperature, CriticalScale, NormSoftmax
from ._cosine import LSSA, QKNormScale, SwinV2
# isort: on

__all__ = [
    "LSSA",
    "MEANINGS_OF_N",
    "ASEntmax",
    "AdaptiveTemperature",
    "Annealed",
    "BeamTemperature",
    "Constant",
    "CriticalScale",
    "DisentangledScale",
    "EntropyInvariant",
    "FunctionLaw",
    "GrokTemperature",
    "InfoScale",
    "InklingTemperature",
    "Kappa",
    "LatentScale",
    "Law",
    "LawComparison",
    "LayerIndex",
    "Llama4Temperature",
    "LogN",
    "LogNFromTraining",
    "LogPower",
    "LongRoPE",
    "MLAYaRN",
    "MinistralTemperature",
    "MuP",
    "NaturalLogN",
    "NoPETemperature",
    "NormSoftmax",
    "PerHead",
    "QKNormScale",
    "QwenLogN",
    "Retrieval",
    "SSMax",
    "ScaleInvariant",
    "Scaled",
    "SelectiveTemperature",
    "SparsityInvariant",
    "Standard",
    "SwinV2",
    "Unscaled",
    "VarianceInvariant",
    "YaRN",
    "compare",
    "explain",
    "from_dict",
    "from_json",
    "get",
    "names",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in ("LawComparison", "compare"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    # At first use: a comparison measures heads, and attention takes its laws from here.
    return getattr(import_module("attnscale.calibration.comparison"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
