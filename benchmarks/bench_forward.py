# SPDX-License-Identifier: BSD-3-Clause
"""How much of the peak does attention reach, and how does it compare with PyTorch?"""

from _command import run

run("forward_64", "forward_128", "forward_32")
