# SPDX-License-Identifier: BSD-3-Clause
"""Study: its declarations, its actions, and how it is found."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack

import numpy as np

from .._base.checks import choose, shown
from .._files.clone import studies_folder
from ._design import Design, Variable
from ._registration import write_registration
from ._result import TrainingResult
from ._run import RunOptions, read_seeds, run


@dataclass(frozen=True)
class Study(Design):
    """An experiment that trains models: its question, its criterion, and the training of one model.

    A study is a subclass that is a frozen dataclass, in its own file. Its fields are numbers, text and
    tuples: all that defines the experiment but the seeds. Their defaults are the full run. ``attnscale train
    FILE.py`` runs it, as :meth:`run` does. A field ``device`` is the device of training ("cpu" without it),
    and a field ``dtype`` the type of the products in training ("float32" without it).

    Attributes
    ----------
    name : str
        Name of the class, in small letters with underscores: "length_generalization".
    claim : str
        Id of the claim in tables of claims; empty without one.
    question : str
        The question, in a sentence.

    Examples
    --------
    >>> import torch
    >>> from dataclasses import dataclass
    >>> from attnscale.experiments import Claim, Criterion, Study, Variable, difference
    >>> @dataclass(frozen=True)
    ... class Line(Study):
    ...     question = "Does a steeper line take longer to fit?"
    ...     steps: int = 20
    ...
    ...     def cells(self):
    ...         return {"slope": (1.0, 2.0)}
    ...
    ...     def variables(self):
    ...         return {"loss": Variable({"step": tuple(range(self.steps))})}
    ...
    ...     def measure(self, cell, seed, training):
    ...         with training.fork("weights"):
    ...             model = torch.nn.Linear(1, 1)
    ...         x = torch.randn(32, 1, generator=training.generator("data"))
    ...         def loss(step):
    ...             return (model(x) - cell["slope"] * x).square().mean()
    ...         return {"loss": training.fit(model, loss, steps=self.steps).loss}
    ...
    ...     def criterion(self):
    ...         last = {"step": self.steps - 1}
    ...         more = difference("2 less 1", "loss", {"slope": (2.0, 1.0)}, last)
    ...         return Criterion((Claim("a steeper line takes longer", (more,)),))
    >>> Line().run(seeds=3, progress=False)["loss"].value.shape  # slope, step
    (2, 20)
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if not isinstance(getattr(cls, "question", None), str):
            raise TypeError(f"{cls.__name__} must have a question, as text, got none")

    def run(self, seeds: Any = 5, **options: Unpack[RunOptions]) -> TrainingResult:
        """Train and measure the wanted models that the store lacks; the result has all models present.

        Parameters
        ----------
        seeds : int or sequence of int, default 5
            Number of models of each cell, or their seeds.
        **options
            See :class:`RunOptions`.

        Returns
        -------
        TrainingResult

        Raises
        ------
        TypeError, ValueError
            If an argument is wrong, or the store holds another study.
        SweepError
            After all other models are finished, if some raised; ``partial`` is the result of the others.
        SweepInterrupted
            On Ctrl-C before any model is finished (a KeyboardInterrupt); otherwise the result is
            ``interrupted``.
        """
        return run(self, seeds, options)

    def register(self, path: str | os.PathLike[str], *, seeds: Any = 5) -> str:
        """Write design, seeds and criterion of a run to a file before it, with their hash.

        Parameters
        ----------
        path : path
            The file, which is replaced if it exists.
        seeds : int or sequence of int

        Returns
        -------
        str
            The SHA-256, which a run with ``registration=path`` puts into its result. It proves the time of
            writing only if it is published or committed before the run.
        """
        return write_registration(path, self, read_seeds(seeds))

    @staticmethod
    def cluster(name: str) -> str:
        """The cluster of a held-out file, such as a package or a book: here the file itself.

        Texts of one cluster are not independent, so errors come from drawing whole clusters. A result with
        the file of each text but not its cluster derives the cluster from the file's name.
        """
        return name

    @classmethod
    def stored(cls, run: str = "full") -> TrainingResult:
        """The result of a run in the folder ``runs`` beside the study's file.

        Parameters
        ----------
        run : str, default "full"
            "full" is the file NAME.json, "reduced" that of the small cell, NAME-reduced.json; a study may
            have others.

        Raises
        ------
        ValueError
            If there is no such run.
        """
        folder = Path(inspect.getfile(cls)).parent / "runs"
        files = {"full": folder / f"{cls.name}.json"}
        for path in sorted(folder.glob(f"{cls.name}-*.json")):
            if ".registration" not in path.suffixes:
                files[path.stem.removeprefix(f"{cls.name}-")] = path
        path = files[choose(f"run of {cls.name}", run, [*files])]
        if not path.is_file():
            raise ValueError(f"run of {cls.name} must be stored, got {shown(run)}: there is no {path}")
        return cls.completed(TrainingResult.load(path))

    @classmethod
    def completed(cls, result: TrainingResult) -> TrainingResult:
        """The result with the fields that old files lack: its criterion, and whether it is reduced.

        Raises
        ------
        ValueError
            If it is the result of another study.
        """
        if result.experiment != cls.name:
            raise ValueError(f"result must be one of {cls.name}, got one of {result.experiment}")
        own = {each.name for each in fields(cls)}
        if unknown := result.parameters.keys() - own:
            raise ValueError(
                f"result must be one of {cls.name} as it is, got {sorted(unknown)} among its fields"
            )
        study = cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in result.parameters.items()})
        criterion = result.criterion or replace(study.criterion(), degrees="seeds")
        result = replace(result, criterion=criterion, reduced=result.reduced or study.is_reduced())
        try:
            names = result.facts["source"]["held_out"]["names"]
        except (KeyError, TypeError):  # no texts, or a run older than these names
            return result
        if "text_file" not in result.arrays or "text_cluster" in result.arrays:
            return result
        clusters = [cls.cluster(each) for each in names]
        first = np.array([*map(clusters.index, clusters), np.nan])
        files = np.nan_to_num(result.arrays["text_file"], nan=len(names)).astype(np.int64)
        coords = result.variables["text_file"].coords
        added = Variable(coords, "", "the first held-out file of the text's package or book")
        return replace(
            result,
            variables={**result.variables, "text_cluster": added},
            arrays={**result.arrays, "text_cluster": first[files]},
        )


# ---- a study in a file, or by its name in a clone of the repository ------------------------------


def names() -> tuple[str, ...]:
    """Names of the studies in ``notebooks/studies`` of the clone around the working directory.

    Raises
    ------
    ValueError
        If the working directory is in no clone of the repository.
    """
    return tuple(sorted(path.stem for path in studies_folder().glob("[a-z]*.py")))


def find(study: str | os.PathLike[str]) -> type[Study]:
    """The class of a study.

    Parameters
    ----------
    study : str or path
        A file, ``FILE.py``, or ``FILE.py:Class`` if it has several studies; or one of :func:`names`. A file
        in a package (a folder with ``__init__.py``) is imported as its module. The folder of the import stays
        in ``sys.path``, since other processes need it.

    Raises
    ------
    ValueError
        If there is no such file or name, or no such study in the file.

    Examples
    --------
    ``find("notebooks/studies/recall.py")`` and, in a clone, ``find("recall")`` are equal.
    """
    file, _, wanted = os.fspath(study).partition(".py:")
    if wanted or file.endswith(".py"):
        path = Path(file if not wanted else f"{file}.py")
        if not path.is_file():
            raise ValueError(f"study must be a file, got {str(path)!r}, which does not exist")
    else:
        path = studies_folder() / f"{choose('study', file, names())}.py"
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


def _module(path: Path) -> ModuleType:
    """The module of a file, imported under its name in its package."""
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
