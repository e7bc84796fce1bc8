# SPDX-License-Identifier: BSD-3-Clause
"""What do many scales cost: a search for the scale of each row, and a curve of sixteen?"""

from _command import run

run("solve", "curve")
