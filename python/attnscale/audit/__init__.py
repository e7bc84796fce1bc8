# SPDX-License-Identifier: BSD-3-Clause
"""The referee for model configs: what multiplies the score of a query and a key in each layer.

>>> import attnscale as at
>>> plan = at.audit.resolve({"model_type": "granite", "hidden_size": 4096, "num_attention_heads": 32,
...                          "num_hidden_layers": 40, "attention_multiplier": 0.0078125})
>>> plan.multiplier(layer=0, position=100)
0.0078125
"""

import sys
from types import ModuleType
from typing import Any

from ._config.config import TRANSFORMERS
from ._config.source import ConfigError
from ._frameworks.as_framework import as_framework
from ._frameworks.defect import Defect, Framework
from ._frameworks.records import FRAMEWORKS
from ._plan.compare import compare
from ._plan.difference import Difference, Differences
from ._plan.layer import LayerPlan, PlanError, Term
from ._plan.plan import ScalePlan
from ._resolve import AuditWarning, resolve
from ._schema import SCHEMA, json_schema

__all__ = [
    "FRAMEWORKS",
    "SCHEMA",
    "TRANSFORMERS",
    "AuditWarning",
    "ConfigError",
    "Defect",
    "Difference",
    "Differences",
    "Framework",
    "LayerPlan",
    "PlanError",
    "ScalePlan",
    "Term",
    "as_framework",
    "compare",
    "json_schema",
    "resolve",
]


class _Audit(ModuleType):
    """This module, which does when it is called what :func:`resolve` does."""

    def __call__(self, *arguments: Any, **options: Any) -> ScalePlan:
        return resolve(*arguments, **options)


def __dir__() -> list[str]:
    return sorted(__all__)


sys.modules[__name__].__class__ = _Audit
