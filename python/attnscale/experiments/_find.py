# SPDX-License-Identifier: BSD-3-Clause
"""Find a study: in a file, or by its name among those of a clone of the repository."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType

from .._checks import choose
from ._study import Study

_STUDIES = Path("notebooks", "studies")  # in a clone


def names() -> tuple[str, ...]:
    """The names of the studies in ``notebooks/studies`` of the clone that the working directory is in.

    Raises
    ------
    ValueError
        If the working directory is in no clone of the repository.
    """
    return tuple(sorted(path.stem for path in _folder().glob("[a-z]*.py")))


def find(study: str | os.PathLike[str]) -> type[Study]:
    """The class of a study.

    Parameters
    ----------
    study : str or path
        A file, ``FILE.py``, or ``FILE.py:Class`` where it has several studies; or one of :func:`names`. A
        file in a package, a folder with ``__init__.py``, is imported as a module of it. The folder that it is
        imported from stays in ``sys.path``, as other processes need it.

    Raises
    ------
    ValueError
        If there is no such file or name, or no such study in it.

    Examples
    --------
    ``find("notebooks/studies/recall.py")`` and, in a clone, ``find("recall")`` are equal.
    """
    file, _, wanted = os.fspath(study).partition(".py:")
    if wanted or file.endswith(".py"):
        path = Path(file if not wanted else f"{file}.py")
        if not path.is_file():
            raise ValueError(f"study must be a file, got {str(path)!r}, which there is not")
    else:
        path = _folder() / f"{choose('study', file, names())}.py"
    module = _module(path.resolve())
    own = {
        name: each
        for name, each in vars(module).items()
        if inspect.isclass(each) and issubclass(each, Study) and each.__module__ == module.__name__
    }
    if wanted:
        return own[choose(f"study of {path}", wanted, [*own])]
    if len(own) != 1:
        named = f": {', '.join(own)}; write {path}:CLASS" if own else ""
        raise ValueError(
            f"study must be a file with one class of attnscale.experiments.Study, got {len(own)}{named}"
        )
    return next(iter(own.values()))


def _folder() -> Path:
    """The folder of the clone's studies."""
    here = Path.cwd()
    for each in (here, *here.parents):
        if (each / _STUDIES / "__init__.py").is_file():
            return each / _STUDIES
    raise ValueError(
        "study must be a file, FILE.py, or the name of one in the repository's notebooks/studies where the "
        f"working directory is in a clone of it, and {str(here)!r} is in none"
    )


def _module(path: Path) -> ModuleType:
    """The module of a file, imported under the name that its package gives it."""
    parts, root = [path.stem], path.parent
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module = importlib.import_module(".".join(parts))
    if Path(inspect.getfile(module)).resolve() != path:
        raise ValueError(
            f"study must have a file name that no other module has, got {str(path)!r}, and there is "
            f"{inspect.getfile(module)!r}"
        )
    return module
