# SPDX-License-Identifier: BSD-3-Clause
"""What a case may be about: how it is drawn and how it is checked."""

from __future__ import annotations

from . import (
    arguments,
    check_attend,
    check_curve,
    check_family,
    check_gradients,
    check_kattention,
    check_linear,
    check_solve,
    check_ssd,
    check_state,
)

__all__ = ["CHECK", "DRAW"]

_ALL = {
    "arguments": arguments,
    "attend": check_attend,
    "curve": check_curve,
    "family": check_family,
    "gradients": check_gradients,
    "kattention": check_kattention,
    "linear": check_linear,
    "solve": check_solve,
    "ssd": check_ssd,
    "state": check_state,
}
DRAW = {name: module.draw for name, module in _ALL.items()}
CHECK = {name: module.check for name, module in _ALL.items()}
