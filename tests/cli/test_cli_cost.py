# SPDX-License-Identifier: BSD-3-Clause
"""Cost of a command besides its work: the modules it loads, and the functions it enters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import attnscale
import pytest
from attnscale.cli import main

HEADS = str(Path(attnscale.__file__).parent / "data" / "minilm_qk.npz")


def loaded(*arguments: str) -> set[str]:
    """Modules that a command loads."""
    code = """
import sys
from attnscale.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_the_list_of_commands_loads_none_of_them(arguments: list[str]) -> None:
    found = {name for name in loaded(*arguments) if name.startswith("attnscale.")}
    commands = {name for name in found if name.startswith("attnscale.cli.") and "._" not in name}
    assert commands == set()
    heavy = {"laws", "audit", "montecarlo", "plot", "theory", "datasets", "_report", "_files"}
    assert {f"attnscale.{name}" for name in heavy} & found == set()


def test_a_command_loads_itself_alone() -> None:
    found = loaded("entropy", HEADS, "--json")
    commands = {name for name in found if name.startswith("attnscale.cli.") and "._" not in name}
    assert commands == {"attnscale.cli.entropy"}


def entered(*arguments: str) -> int:
    """Number of this package's Python functions that a command enters."""
    folder, count = str(Path(attnscale.__file__).parent), 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(folder)

    sys.setprofile(note)
    try:
        main(arguments)
    finally:
        sys.setprofile(None)
    return count


def test_json_is_not_laid_out_as_text_first(capsys: pytest.CaptureFixture[str]) -> None:
    """18 heads under three laws; the rows of the text take hundreds of calls."""
    entered("entropy", HEADS, "--json")  # the first call loads the command
    assert entered("entropy", HEADS, "--json") <= 600
    assert entered("entropy", HEADS) > 600
    capsys.readouterr()
