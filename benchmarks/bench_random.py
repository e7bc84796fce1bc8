# SPDX-License-Identifier: BSD-3-Clause
"""How fast are random numbers, and what is simulated with them?"""

from _command import run

run("normals", "products", "rows", "projection", "two_threads")
