# SPDX-License-Identifier: BSD-3-Clause
"""How much of its own peak does the AVX2 level reach, and how much does float64?"""

from _command import run

run("avx2", "float64")
