# SPDX-License-Identifier: BSD-3-Clause
"""What a case may be about: how it is drawn and how it is checked."""

from __future__ import annotations

from . import check_attend

__all__ = ["CHECK", "DRAW"]

_ALL = {"attend": check_attend}
DRAW = {name: module.draw for name, module in _ALL.items()}
CHECK = {name: module.check for name, module in _ALL.items()}
