# SPDX-License-Identifier: BSD-3-Clause
"""How much of the work that a mask saves is saved in time?"""

from _command import run

run("causal_4096", "causal_512", "window")
