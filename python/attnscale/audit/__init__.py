# SPDX-License-Identifier: BSD-3-Clause
"""Audit of model configs: the multiplier of the score of a query and a key in each layer.

>>> import attnscale as at
>>> plan = at.audit.resolve({"model_type": "granite", "hidden_size": 4096, "num_attention_heads": 32,
...                          "num_hidden_layers": 40, "attention_multiplier": 0.0078125})
>>> plan.multiplier(layer=0, position=100)
0.0078125
"""

import sys
from types import ModuleType

from ._angles import AngleDifference, AngleGap, Rotation
from ._differences import Difference, Differences
from ._keys import TRANSFORMERS, ConfigError
from ._layer import LayerPlan, PlanError, Term
from ._learned import Learned, LearnedScales, learned_scales
from ._measured import MeasuredPlan, measure
from ._measured_against import MeasuredDifference
from ._measured_layer import MeasuredLayer
from ._positions import Positions
from ._records import FRAMEWORKS, Defect, Framework, as_framework
from ._releases import Sighting
from ._resolve import AuditWarning, resolve
from ._scale_plan import ScalePlan, compare
from ._survey import Survey, Surveyed, survey
from ._text import SCHEMA, json_schema

__all__ = [
    "FRAMEWORKS",
    "SCHEMA",
    "TRANSFORMERS",
    "AngleDifference",
    "AngleGap",
    "AuditWarning",
    "ConfigError",
    "Defect",
    "Difference",
    "Differences",
    "Framework",
    "LayerPlan",
    "Learned",
    "LearnedScales",
    "MeasuredDifference",
    "MeasuredLayer",
    "MeasuredPlan",
    "PlanError",
    "Positions",
    "Rotation",
    "ScalePlan",
    "Sighting",
    "Survey",
    "Surveyed",
    "Term",
    "as_framework",
    "compare",
    "json_schema",
    "learned_scales",
    "measure",
    "resolve",
    "survey",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class _Callable(ModuleType):
    """A module that calls :func:`resolve` when it is called."""

    __call__ = staticmethod(resolve)


sys.modules[__name__].__class__ = _Callable
