# SPDX-License-Identifier: BSD-3-Clause
"""Files that a clone of the repository has and an installed package lacks."""

from __future__ import annotations

from pathlib import Path

_STUDIES = Path("notebooks", "studies")


def studies_folder() -> Path:
    """The folder of the studies in the clone around the working directory.

    Raises
    ------
    ValueError
        If the working directory is in no clone.

    Examples
    --------
    >>> import pathlib
    >>> try:
    ...     found = studies_folder().name
    ... except ValueError as error:  # outside of a clone
    ...     found = str(error).split(";")[0]
    >>> found == "studies" or found.endswith("in a clone the name of one in notebooks/studies")
    True
    """
    here = Path.cwd()
    for each in (here, *here.parents):
        if (each / _STUDIES / "__init__.py").is_file():
            return each / _STUDIES
    raise ValueError(
        f"study must be a file, FILE.py, or in a clone the name of one in {_STUDIES.as_posix()}; "
        f"run it in a clone of the repository, got the working directory {str(here)!r}"
    )
