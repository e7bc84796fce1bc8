# SPDX-License-Identifier: BSD-3-Clause
"""A plan as a framework is on record to compute it."""

from __future__ import annotations

import re

from ..._checks import choose
from .._plan.plan import ScalePlan
from .defect import Defect, Framework, version_of
from .records import FRAMEWORKS


def as_framework(plan: ScalePlan, name: str) -> tuple[ScalePlan, tuple[Defect, ...]]:
    """The plan as a framework is on record to have computed it, and the defects that change it.

    Parameters
    ----------
    plan : ScalePlan
    name : str
        One of :data:`FRAMEWORKS`, for some with a version behind it, as "vllm-0.9": without the defects
        that its report says came later or were mended before.

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

    Examples
    --------
    >>> import attnscale as at
    >>> plan = at.audit.resolve({"model_type": "gemma2", "hidden_size": 2304, "num_attention_heads": 8,
    ...                          "num_hidden_layers": 26, "head_dim": 256})
    >>> theirs, defects = at.audit.as_framework(plan, "vllm-metal")
    >>> print(defects[0].what)
    the soft-cap of attention is left out
    >>> plan.differences(theirs)
    1 difference
      layers  what     from i  here  there  ratio
      0-25    softcap       -    50  none       -
      layers 0-25: from attn_logit_softcapping = 50.0 (default of gemma2) here, no key there
    """
    framework, version = framework_named(name)
    defects = []
    for defect in framework.defects:
        layers = tuple(defect.change(plan, layer) for layer in plan.layers)
        if defect.concerns(version) and layers != plan.layers:
            plan = plan.with_layers(layers)
            defects.append(defect)
    return plan, tuple(defects)


def framework_named(name: str) -> tuple[Framework, tuple[int, ...]]:
    """The framework and the version that a name asks for; the version is empty if any will do."""
    stem, version = name, version_of("")
    match = re.fullmatch(r"(.+?)-[vb]?(\d+(?:\.\d+)*)", name) if name not in FRAMEWORKS else None
    if match and match[1] in FRAMEWORKS:
        stem, version = match[1], version_of(match[2])
    framework = FRAMEWORKS[choose("framework", stem, list(FRAMEWORKS))]
    if version and not framework.has_versions:
        raise ValueError(f"framework {stem!r} is on record without a version, got {name!r}")
    if framework.seen and version[: len(framework.seen)] > framework.seen:
        last = ".".join(map(str, framework.seen))
        raise ValueError(f"framework {stem!r} is on record up to version {last}, got {name!r}")
    return framework, version
