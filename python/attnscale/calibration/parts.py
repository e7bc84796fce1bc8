# SPDX-License-Identifier: BSD-3-Clause
"""A calibration of heads that are read part by part: files larger than the memory, layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._call.call import Call
from ..laws._registry import of_heads
from .calibration import Calibration, calibrate, median_law
from .fit import cut

if TYPE_CHECKING:
    from .._files.heads import OpenHeads
    from .._grid.progress import Progress
    from ..laws import Law

Arrays = Mapping[str, NDArray[Any]]

#: The axis of the heads in the arrays of a Calibration, from the end.
_AXIS = dict.fromkeys(("target", "equal_scores", "amplitude"), -1)
_AXIS |= dict.fromkeys(("beta", "standard_entropy", "law_beta", "law_entropy", "median_entropy"), -2)
_OF_LAWS = ("amplitude", "law_beta", "law_entropy")


class Wanted(NamedTuple):
    """Measurements of each head: the lengths, and the laws to compare."""

    n0: int
    lengths: list[int]
    laws: tuple[Law, ...]
    heads: list[int] | None
    is_causal: bool

    @property
    def described(self) -> dict[str, Any]:
        """All of it in JSON."""
        return {**self._asdict(), "laws": [repr(law) for law in self.laws]}

    def measure(self, heads: OpenHeads, progress: Progress = False) -> dict[str, NDArray[Any]]:
        """Arrays of the calibration of a file; its batch entries are beside each other."""
        n = self._longest(heads)
        heads.check(n, self.heads)
        count, first = heads.query_shape[-3] if self.heads is None else len(self.heads), 0
        found = []
        for part in heads.parts(n, self.heads):
            alone, own = len(part.names) == count, slice(first, first + len(part.names))
            found.append(self._of_part(part.query, part.key, own, count, progress if alone else False))
            first = own.stop
            del part  # its memory, before the next one takes as much
        arrays = _in_a_row(_beside(found))
        if len(found) > 1:  # each part had a median of its own
            arrays["median_entropy"] = np.full_like(arrays["median_entropy"], np.nan)
        return arrays

    def _longest(self, heads: OpenHeads) -> int | None:
        """The number of tokens to cut to; None where the numbers of queries and keys count too."""
        as_many = heads.query_shape[-2] == heads.key_shape[-2]
        return None if self.is_causal and not as_many else max(self.n0, *self.lengths)

    def _of_part(
        self, query: Any, key: Any, own: slice, count: int, progress: Progress
    ) -> dict[str, NDArray[Any]]:
        """Arrays of a part of the heads; laws that are equal for this part are measured once."""
        laws = [of_heads(law, own, count) for law in self.laws]
        gqa = query.shape[-3] != key.shape[-3]
        found = calibrate(
            *(query, key, self.n0, self.lengths),
            laws=dict.fromkeys(laws),
            is_causal=self.is_causal,
            enable_gqa=gqa,
            progress=progress,
        )
        arrays = {name: np.asarray(getattr(found, name)) for name in _AXIS}
        places = [found.laws.index(law) for law in laws]
        return {name: array[places] if name in _OF_LAWS else array for name, array in arrays.items()}

    def median_entropy(self, heads: OpenHeads, law: Law) -> NDArray[np.float64]:
        """Mean entropy of each head of a file under one law, as :attr:`Calibration.median_entropy`."""
        found = []
        for part in heads.parts(self._longest(heads), self.heads):
            gqa = part.query.shape[-3] != part.key.shape[-3]
            inputs = Call(part.query, part.key, None, {"enable_gqa": gqa}).inputs
            cuts = (cut(inputs, n, None, is_causal=self.is_causal) for n in self.lengths)
            found.append(np.stack([each.law_entropy(law) for each in cuts], axis=-1))
            del part, inputs, cuts
        whole = np.concatenate(found, axis=-2)
        return whole.reshape(-1, whole.shape[-1])

    def joined(self, found: Mapping[int, Arrays], median: Callable[[int, Law], Arrays]) -> Calibration:
        """The calibration of all heads; `median` gives the entropies of a file under the median law."""
        arrays = _beside([*found.values()])
        calibration = Calibration(
            n0=self.n0,
            lengths=np.array(self.lengths, np.int64),
            laws=self.laws,
            is_causal=self.is_causal,
            **arrays,
        )
        is_of_all = len(found) == 1 and bool(np.isfinite(calibration.median_entropy).any())
        if is_of_all or not calibration.determined.any():
            return calibration
        law = median_law(calibration)
        arrays["median_entropy"] = np.concatenate([median(index, law)["median_entropy"] for index in found])
        return Calibration(**{**vars(calibration), **arrays})


def _beside(parts: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    """Arrays of several calibrations, with the heads of all of them beside each other."""
    return {name: np.concatenate([part[name] for part in parts], axis) for name, axis in _AXIS.items()}


def _in_a_row(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays with the axes (..., heads) as one axis of heads."""
    flat = {}
    for name, axis in _AXIS.items():
        array = arrays[name]
        lead, tail = array.shape[: name in _OF_LAWS], array.shape[array.ndim + axis + 1 :]
        flat[name] = array.reshape(*lead, -1, *tail)
    return flat
