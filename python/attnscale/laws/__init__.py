# SPDX-License-Identifier: BSD-3-Clause
"""Scale laws: named rules for the multiplier of q . k, each with its meaning of n.

``scale=`` of every attention function takes a law or its name:

>>> import attnscale as at
>>> at.laws.get("log_n").scale(4096, 64) == at.laws.LogN(base=512).scale(4096, 64)
True
"""

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
    "explain",
    "from_dict",
    "from_json",
    "get",
    "names",
    "register",
]
