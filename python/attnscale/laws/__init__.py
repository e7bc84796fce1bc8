# SPDX-License-Identifier: BSD-3-Clause
"""Scale laws: named rules for the multiplier of q . k, each with its meaning of n.

``scale=`` of every attention function takes a law or its name:

>>> import attnscale as at
>>> at.laws.get("log_n").scale(4096, 64) == at.laws.LogN(base=512).scale(4096, 64)
True
"""

from ._base import MEANINGS_OF_N, Law
from ._registry import FunctionLaw, explain, get, names, register
from .constant import Constant, PerHead, Standard, Unscaled
from .log_n import Kappa, LogN, LogNFromTraining, NaturalLogN
from .ssmax import SSMax

__all__ = [
    "MEANINGS_OF_N",
    "Constant",
    "FunctionLaw",
    "Kappa",
    "Law",
    "LogN",
    "LogNFromTraining",
    "NaturalLogN",
    "PerHead",
    "SSMax",
    "Standard",
    "Unscaled",
    "explain",
    "get",
    "names",
    "register",
]
