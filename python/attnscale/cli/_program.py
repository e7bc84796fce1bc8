# SPDX-License-Identifier: BSD-3-Clause
"""The command line of this program, for messages that suggest a command."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

_NAME = "attnscale"


def program(*, anywhere: bool = False) -> str:
    """The words that run this program in the caller's shell: its name, or its path if needed.

    `anywhere`: the words must work in other working directories too, so a path is absolute.

    Examples
    --------
    >>> program()  # not run as a command here
    'attnscale'
    """
    given = Path(sys.argv[0])
    if given.name == "__main__.py":  # python -m attnscale
        found = shutil.which("python")
        on_path = found is not None and os.path.abspath(found) == os.path.abspath(sys.executable)
        return f"{'python' if on_path else shlex.quote(sys.executable)} -m {_NAME}"
    if given.name != _NAME or _is_on_path(given):
        return _NAME
    return shlex.quote(os.path.abspath(given) if anywhere else sys.argv[0])


def activation() -> str | None:
    """The command that puts the program's name on the path; None if it is there or nothing helps."""
    given = Path(sys.argv[0])
    script = given.with_name("activate")
    if given.name != _NAME or _is_on_path(given) or not script.is_file():
        return None
    return f". {shlex.quote(str(script))}"


def _is_on_path(given: Path) -> bool:
    """Whether a shell finds this program by name."""
    found = shutil.which(_NAME)
    return found is not None and given.exists() and os.path.samefile(found, given)
