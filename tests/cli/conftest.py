# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures that run commands."""

import pytest
from attnscale.cli import main


@pytest.fixture
def text(tmp_path):
    """A file with more words than the model reads in one pass."""
    path = tmp_path / "text.txt"
    path.write_text("Names refer to objects. Names are introduced by name binding operations. " * 60)
    return str(path)


@pytest.fixture
def run(capsys):
    """Run a command that succeeds and return its output."""

    def call(*arguments):
        assert main(arguments) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return call


@pytest.fixture
def fail(capsys):
    """Run a command that fails and return its line of error."""

    def call(*arguments):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("attnscale: error: ")
        assert captured.err.count("\n") == 1
        return captured.err

    return call
