# SPDX-License-Identifier: BSD-3-Clause
"""Programs that compare the audit with the code of transformers, and break configs at random."""

from __future__ import annotations

import warnings
from typing import Any

import attnscale as at


def quietly(config: Any, **options: Any) -> Any:
    """The plan of a config; what it warns of is in the plan's ``warnings``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.audit.AuditWarning)
        return at.audit.resolve(config, **options)
