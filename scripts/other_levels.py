# SPDX-License-Identifier: BSD-3-Clause
"""Print the SIMD levels that this machine has but does not use, as LEVEL:TESTS, for ``make test-levels``.

TESTS selects tests: "bfloat16" if only those kernels differ from the level in use, that is among levels from
avx512 on and for emulated ones; otherwise empty.
"""

from __future__ import annotations

from collections.abc import Iterable

from attnscale import _core

_WIDE = frozenset({"avx512", "avx512_bf16", "amx_bf16"})


def others(own: str, available: Iterable[str]) -> list[str]:
    """Levels other than `own`, with the tests to select for each.

    >>> others("avx512", ["amx_bf16", "avx512", "avx2", "emulated_bf16"])
    ['amx_bf16:bfloat16', 'avx2:', 'emulated_bf16:bfloat16']
    """
    return [f"{level}:{_selected(own, level)}" for level in available if level != own]


def _selected(own: str, level: str) -> str:
    return "bfloat16" if {level, own} <= _WIDE or level.startswith("emulated") else ""


if __name__ == "__main__":
    print(*others(_core.simd_level(), _core.available_simd_levels()))
