# SPDX-License-Identifier: BSD-3-Clause
"""What do entropy and the other statistics cost, and what would they cost by hand?"""

from _command import run

run("on_top", "entropy_alone", "by_hand")
