# SPDX-License-Identifier: BSD-3-Clause
"""How close does one query with many keys come to the read bandwidth?"""

from _command import run

run("decode")
