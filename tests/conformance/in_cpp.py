# SPDX-License-Identifier: BSD-3-Clause
"""The C++ API as a backend: the program attnscale_conformance, which computes one call."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
from attnscale.conformance import Case

from . import truth
from .backends import Arrays, Backend

_BUILD = Path(__file__).parents[2] / "build" / "gcc"
_PROGRAM = _BUILD / "cpp" / "tests" / "attnscale_conformance"
#: Types of arrays, by their names in C++.
_WORDS = {"float32": "float", "float64": "double"}

#: Laws missing in C++: laws that measure rows or search for a root, and the law with a number for each head.
_LAWS_OF_PYTHON = ("adaptive_temperature", "critical_scale", "norm_softmax", "per_head", "entropy_invariant")
#: Normalizers with a number 1/n or -ln n for each row, where the caller of C++ counts n.
_COUNTED = [at.normalizers.get(name) for name in ("sigmoid", "relu", "squared_relu")]


class InCpp(Backend):
    """A backend that sends arrays as text, which keeps their bits."""

    def serves(self, case: Case) -> bool:
        """Whether the C++ API has the options: it has no laws of heads and no layouts, which are views."""
        options = case.options
        law, normalizer = options.get("scale"), at.normalizers.get(options.get("normalizer", "softmax"))
        return not (
            "layout" in options
            or callable(options.get("distance_bias"))
            or isinstance(law, at.laws.Law)
            or (isinstance(law, str) and at.laws.get(law).name in _LAWS_OF_PYTHON)
            or normalizer in _COUNTED
        )

    def values(self, arrays: list[Any], case: Case, statistics: tuple[str, ...]) -> Arrays:
        found = self._answer([*_lines(arrays, case), f"statistics {' '.join(statistics)}"])
        counts = ("n_visible", "argmax", "support")
        return {name: x.astype(np.int64) if name in counts else x for name, x in found.items()}

    def gradients(self, arrays: list[Any], case: Case, cotangents: Arrays) -> Arrays:
        weights = [f"grad_{name} {_text(x)}" for name, x in cotangents.items()]
        found = self._answer([*_lines(arrays, case), *weights])
        for name, parameter in truth.parameters(case.options).items():
            if name in ("logits", "scale"):
                found[name] = _sum_to(found[name], parameter.shape, of_heads=name == "logits")
            elif name == "bias":
                found[name] = found[name].sum()
        return found

    def _answer(self, lines: list[str]) -> Arrays:
        """Error of the program for a call."""
        status, said, error = self.ask("\n".join(lines) + "\n")
        assert status == 0, error
        found = {}
        for line in said.splitlines():
            name, n_axes, *rest = line.split()
            shape, numbers = [int(x) for x in rest[: int(n_axes)]], rest[int(n_axes) :]
            found[name] = np.array(numbers, np.float64).reshape(shape)
        return found

    def ask(self, call: str) -> tuple[int, str, str]:
        """Run the program: its exit status, standard output and standard error."""
        assert _PROGRAM.exists(), f"{_PROGRAM} is not built: cmake --build --preset gcc"
        ran = subprocess.run([_PROGRAM], input=call, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout, ran.stderr


def _sum_to(rows: Any, shape: tuple[int, ...], *, of_heads: bool) -> Any:
    """Sum numbers of rows (..., heads, n_queries) to the shape of the given array."""
    if of_heads:
        return rows.sum() if not shape else rows.sum((*range(rows.ndim - 2), -1))
    rows = rows.sum(tuple(range(rows.ndim - len(shape))))
    return rows.sum(tuple(i for i, n in enumerate(shape) if n != rows.shape[i]), keepdims=True)


def _word(x: Any) -> str:
    return _WORDS.get(x.dtype.name, x.dtype.name)


def _text(x: Any) -> str:
    x = np.asarray(x)
    numbers = x.astype(np.int64 if x.dtype.kind in "biu" else np.float64).ravel().tolist()
    return " ".join(map(repr, [x.ndim, *x.shape, *numbers]))


def _lines(arrays: list[Any], case: Case) -> list[str]:
    """Lines that describe a call, without the requested results."""
    given = [f"type {_word(arrays[0])}"]
    named = zip(("query", "key", "value"), arrays, strict=True)
    given += [f"{name} {_text(x)}" for name, x in named if x is not None]
    for name, x in case.options.items():
        given += _option(name, x)
    return given


def _option(name: str, x: Any) -> list[str]:
    if name == "attn_mask":
        return [f"{name}:{_word(x)} {_text(x)}"]
    if name == "window":
        return [f"{side} {n}" for side, n in zip(("left", "right"), x, strict=True) if n is not None]
    if name == "normalizer":
        return [f"normalizer {word}"] if (word := _normalizer(at.normalizers.get(x))) else []
    if name == "scale" and isinstance(x, (str, at.laws.Law)):
        return [f"law {at.laws.get(x).spelling}"]
    if isinstance(x, (str, bool)) or name in ("causal", "softcap"):
        return [f"{name} {x}"] if x is not False else []
    return [f"{name} {_text(x)}"]


def _normalizer(normalizer: Any) -> str | None:
    """Name of a normalizer in the program, and its number."""
    number = {"softmax_n": "n", "sigmoid": "bias", "entmax": "alpha", "top_k": "k"}.get(normalizer.name)
    if number is not None:
        return f"{normalizer.name} {getattr(normalizer, number)}"
    if normalizer.name == "sink":
        logits = np.asarray(normalizer.logits)
        return f"sink {_text(logits[:, None] if logits.ndim else logits)}"
    return {"softmax": None, "sparsemax": "entmax 2"}.get(normalizer.name, normalizer.name)


def backends() -> dict[str, Backend]:
    """The backend, if the C++ tests are built."""
    return {"C++": InCpp()} if _BUILD.exists() else {}
