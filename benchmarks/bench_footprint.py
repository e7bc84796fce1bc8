# SPDX-License-Identifier: BSD-3-Clause
"""How much memory does a call need, and how much time the import?"""

from _command import run

run("memory", "import")
