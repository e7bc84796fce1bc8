# SPDX-License-Identifier: BSD-3-Clause
"""How fast is it when the sequences are short, down to the smallest call?"""

from _command import run

run("forward_512_64", "forward_512_128", "forward_512_32", "short", "overhead")
