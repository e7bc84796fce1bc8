# SPDX-License-Identifier: BSD-3-Clause
"""Entropy of a model's attention against the length of its input, by layer and by head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..._base.checks import number, positive_int, refusal, several, shown
from ..._base.drawing import drawn_by
from ..._base.tabled import EFFECTIVE_KEYS, Labelled, Sheet, Tabled
from ..._base.text import by_reason, some_of
from ..._grid.finished import finished
from ...calibration.calibration import rows_that_count
from ...laws import get
from .by_name import layer_numbers, towers_of
from .diagnosed_heads import STATISTICS, DiagnosedHeads, Heads, heads_of, joined, side_by_side
from .record import record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from ..._base.tabled import Unit
    from ..._grid.progress import Progress
    from ...laws import Law
    from .log import AttentionLog

_LENGTHS = (64, 128, 256, 512)


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Tabled):
    """Mean entropy of a model's heads at each length; :func:`attnscale.torch.diagnose` makes it.

    Attributes
    ----------
    laws : dict of str to Law
        Laws by their spelling: each multiplies the model's own scale, which "standard" leaves alone.
    lengths : tuple of int
        Numbers of tokens; 0 for an input without tokens.
    entropy : dict of str to ndarray
        By law, in nats, shape (lengths, layers, heads): the mean over all queries without padding. NaN where
        a layer has fewer heads.
    uniform_entropy : ndarray, shape (lengths, layers)
        Mean entropy of equal weights on each query's visible keys and sink.
    sinks : tuple of int
        Numbers of the layers whose entropy counts a sink as one more outcome.
    modules, kinds : tuple of str
        Name of each layer's attention in the model, and whether it is "self" or "cross" attention.
    padding : tuple of int
        Rows that were left out as padding, and all rows, at the largest length.
    unmeasured : dict of str to str
        Modules whose attention was seen and could not be measured, with the reason.
    without_heads : tuple of str
        Modules whose texts and heads cannot be told apart: their only "head" is a mean over both.
    interrupted : bool
        Whether Ctrl-C came before the last length.
    """

    laws: Mapping[str, Law]
    lengths: tuple[int, ...]
    entropy: Mapping[str, NDArray[np.float64]]
    uniform_entropy: NDArray[np.float64]
    sinks: tuple[int, ...]
    modules: tuple[str, ...]
    kinds: tuple[str, ...]
    padding: tuple[int, int]
    unmeasured: Mapping[str, str]
    without_heads: tuple[str, ...] = ()
    interrupted: bool = False
    _heads: Heads | None = None

    @property
    def layers(self) -> tuple[int, ...]:
        """Number of each layer: that in the names of the modules if it is distinct."""
        return layer_numbers(self.modules)

    @property
    def groups(self) -> dict[tuple[str, str], list[int]]:
        """Places of the layers of each tower and kind; "" where there is one tower, or one kind."""
        towers = towers_of(self.modules)
        several = len(set(self.kinds)) > 1
        found: dict[tuple[str, str], list[int]] = {}
        for place, (name, kind) in enumerate(zip(self.modules, self.kinds, strict=True)):
            found.setdefault((towers[name], kind if several else ""), []).append(place)
        return found if len(found) > 1 else {("", ""): [*range(len(self.modules))]}

    def rows(self) -> list[dict[str, Any]]:
        """One row for each length, law and layer, with the entropies of its heads in nats."""
        return [
            {
                "n": n,
                "layer": self.layers[place],
                "module": self.modules[place],
                "kind": self.kinds[place],
                "law": law,
                "entropy_counts_sink": self.layers[place] in self.sinks,
                "axes": "unknown" if self.modules[place] in self.without_heads else "batch, heads, queries",
                "entropy_by_head": self._by_head(place, values[index, place]),
                "entropy": float(np.nanmean(values[index, place])),
                "uniform_entropy": float(self.uniform_entropy[index, place]),
            }
            for index, n in enumerate(self.lengths)
            for law, values in self.entropy.items()
            for place in range(len(self.modules))
        ]

    def heads(self, *, bits: float | None = None, tokens: float | None = None) -> DiagnosedHeads:
        """A row for every head, with its share of a cache; needs ``diagnose(..., per_head=True)``.

        Parameters
        ----------
        bits : float, optional
            Bits of a number in the cache, on average over the key heads. With H_2 the Renyi entropy of order
            2 of a key head in bits, it gets bits + (mean of H_2 - H_2) / 4.
        tokens : float, optional
            Tokens to keep, on average over the key heads, divided in proportion to effective keys.

        Returns
        -------
        DiagnosedHeads

        Raises
        ------
        ValueError
            If no head was measured, or a number is not above 0.
        """
        if self._heads is None:
            raise ValueError("heads() needs diagnose(..., per_head=True)")
        if len(self.without_heads) == len(self.modules):
            raise ValueError(
                f"heads() needs heads: texts and heads cannot be told apart in {some_of(self.modules)}"
            )
        for name, mean in (("bits", bits), ("tokens", tokens)):
            if mean is not None and number(name, mean) <= 0:
                raise refusal(ValueError, name, f"must be above 0, got {mean}")
        rows = [
            row
            for index in range(len(self.lengths))
            for row in self._head_rows(index, self._heads, self._heads.shares(index, bits, tokens))
        ]
        return DiagnosedHeads(bits, tokens, tuple(rows), len(self.groups) > 1)

    def _head_rows(
        self, index: int, heads: Heads, shares: Mapping[str, Sequence[NDArray[Any]]]
    ) -> Iterator[dict[str, Any]]:
        """A row for each head at one length."""
        own = get("standard")
        layers = zip(self.layers, self.modules, self.kinds, heads.key_of, strict=True)
        for place, (layer, module, kind, key_of) in enumerate(layers):
            for head, key_head in enumerate(key_of):
                values = {name: float(array[index, place, head]) for name, array in heads.values.items()}
                entropy = values.pop("entropy")
                yield (
                    {"n": self.lengths[index], "layer": layer, "module": module, "kind": kind}
                    | {"head": head, "key_head": key_head}
                    | {"entropy": entropy, "effective_keys": float(np.exp(entropy))}
                    | values
                    | {"uniform_entropy": float(self.uniform_entropy[index, place])}
                    | {
                        f"entropy under {name}": float(self.entropy[name][index, place, head])
                        for name, law in self.laws.items()
                        if law != own
                    }
                    | {name: each[place][key_head].item() for name, each in shares.items()}
                )

    def plot(self, *, figure: Figure | None = None, unit: Unit = "nats", about: str = "") -> Axes:
        """Mean entropy against length, below it each head of each layer; returns the first axes.

        With several towers or kinds of layers, or without tokens, there is only a map of the heads. `about`
        is the title.
        """
        axes: Axes = drawn_by("_diagnosis.diagnosis")(self, figure, unit, about)
        return axes

    def _labels(self) -> dict[str, str]:
        """Names of columns and curves by law."""
        own = get("standard")
        return {
            name: "as the model has it" if law == own else f"times {name}" for name, law in self.laws.items()
        }

    def _remarks(self) -> list[str]:
        """Notes on what the numbers leave out."""
        left_out, rows = self.padding
        notes = [f"{left_out} of {rows} rows are padding, and are left out"] if left_out else []
        if unknown := self.without_heads:
            said = "texts and heads cannot be told apart in"
            notes.append(f"{said} {some_of(unknown)}: no number is per head")
        return notes + [f"seen, not measured: {each}" for each in by_reason(self.unmeasured)]

    def _by_head(self, place: int, values: NDArray[np.float64]) -> list[float]:
        """Numbers of a layer's heads; empty if its heads are unknown."""
        return [] if self.modules[place] in self.without_heads else values[~np.isnan(values)].tolist()

    def _variables(self) -> dict[str, Labelled]:
        entropy = np.stack(list(self.entropy.values()))
        return {
            "entropy": Labelled(("law", "n", "layer", "head"), entropy, "nat"),
            "uniform_entropy": Labelled(("n", "layer"), self.uniform_entropy, "nat"),
            "module": Labelled(("layer",), list(self.modules)),
            "kind": Labelled(("layer",), list(self.kinds)),
        }

    def _coordinates(self) -> dict[str, Any]:
        return {"law": list(self.laws), "n": list(self.lengths), "layer": list(self.layers)}

    def _attributes(self) -> dict[str, Any]:
        return {"sinks": list(self.sinks), "interrupted": int(self.interrupted)}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        """One row for each length and layer, then the mean of the layers, or of each tower and kind."""
        groups = self.groups
        one = len(groups) == 1
        parts = [([i], name) for i, name in enumerate(map(str, self.layers) if one else self.modules)]
        parts += [(places, " ".join(["mean", *filter(None, group)])) for group, places in groups.items()]
        titles = (title for name in self._labels().values() for title in (name, "keys"))
        rows = [
            (
                str(n) if n else "-",
                name,
                f"{np.nanmean(self.uniform_entropy[index, places]) / nats:.3f}",
                *(cell for mean in self._means(index, places) for cell in _cells(mean, nats)),
            )
            for index, n in enumerate(self.lengths)
            for places, name in parts
        ]
        header = ("n", "layer" if one else "module", "equal", *titles)
        notes = self._explained(unit) + [f"{each[0].upper()}{each[1:]}." for each in self._remarks()]
        return Sheet("Diagnosis", header, rows, tuple(notes))

    def _means(self, index: int, places: Sequence[int]) -> list[float]:
        return [
            float(np.nanmean(np.nanmean(values[index, places], axis=-1))) for values in self.entropy.values()
        ]

    def _explained(self, unit: str) -> list[str]:
        all_queries = rows_that_count(is_causal=False)
        sink = " and the sink" * bool(self.sinks)
        notes = [
            f"Mean entropy ({unit}) of the heads over {all_queries}; keys: {EFFECTIVE_KEYS[unit]}.",
            f"equal: of equal weights on the keys that each query sees{sink}.",
        ]
        if self.sinks:
            layers = ", ".join(map(str, self.sinks))
            notes.append(f"Both count the sink as one more outcome in the layers {layers}.")
        return notes


def _cells(mean: float, nats: float) -> tuple[str, str]:
    return f"{mean / nats:.3f}", f"{np.exp(mean):.1f}"


def diagnose(
    model: Any,
    inputs: Any,
    lengths: Sequence[int] | None = None,
    *,
    laws: Iterable[str | float | Law] = ("standard",),
    select: Callable[[AttentionLog], AttentionLog] | None = None,
    per_head: bool = False,
    progress: Progress = False,
) -> Diagnosis:
    """Measure the entropy of a model's attention at several lengths of its input.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`record`. It runs without gradients, in the mode that it has.
    inputs : Tensor, shape (texts, n_tokens), or callable
        Token ids, of which the model gets the first n, or a function of n that runs the model.
    lengths : sequence of int, optional
        Numbers of tokens. Default for a tensor: 64, 128, 256 and 512, as far as it goes, or all of fewer.
    laws : iterable of str, float or Law, default ("standard",)
        Laws that multiply the model's own scale, on the same queries and keys.
    select : callable, optional
        Choice of the calls, as ``lambda log: log.select("self")``; all by default.
    per_head : bool, default False
        Also measure what :meth:`Diagnosis.heads` needs.
    progress : bool or callable, default False
        True shows a bar where standard error is a terminal. A function is called with (done, total), in
        lengths.

    Returns
    -------
    Diagnosis
        After Ctrl-C it has the finished lengths.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As :func:`record`; if a length is refused, or attention was seen and none could be measured.

    Examples
    --------
    >>> import torch
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_embd=32, n_head=2, n_layer=3, vocab_size=50)).eval()
    >>> found = diagnose(model, torch.arange(40)[None], [10, 40], laws=["standard", "log_n"])
    >>> found.entropy["log_n"].shape  # (lengths, layers, heads)
    (2, 3, 2)
    """
    run, counts = _read_inputs(model, inputs, lengths)
    named = {law.spelling: law for law in map(get, several("laws", laws, "law", "laws"))}

    def measure(n: int) -> Diagnosis:
        others = {name: law for name, law in named.items() if law != get("standard")}
        statistics = STATISTICS if per_head else ("entropy", "n_visible")
        with record(model, statistics=statistics, laws=others) as log, torch.no_grad():
            run(n)
        if not log.passes:
            why = "; ".join(by_reason(log.unmeasured))
            raise ValueError(f"attention was seen, and none could be measured: {why}")
        return diagnosis_of(log if select is None else select(log), n, named, per_head=per_head)

    found, interrupted = finished(
        counts, measure, progress, work=lambda n: max(n, 1), name=lambda n: f"n = {n}"
    )
    return _joined(list(found.values()), interrupted=interrupted)


def _read_inputs(
    model: Any, inputs: Any, lengths: Sequence[int] | None
) -> tuple[Callable[[int], object], list[int]]:
    """The function that runs the model, and the lengths, ascending."""
    given = lengths
    if given is not None:
        given = several("lengths", given, "number of tokens", "numbers of tokens")
    if callable(inputs):
        if given is None:
            raise refusal(ValueError, "lengths", "must be given with a function, got None")
        return inputs, sorted({0 if n == 0 else positive_int("lengths", n) for n in given})
    if not isinstance(inputs, torch.Tensor) or inputs.ndim != 2 or not inputs.numel():
        rule = f"must be a tensor (texts, n_tokens) or a function, got {shown(inputs)}"
        raise refusal(TypeError, "inputs", rule)
    most = inputs.shape[1]
    counts = [positive_int("lengths", n) for n in given or [n for n in _LENGTHS if n <= most] or [most]]
    for n in counts:
        if n > most:
            raise refusal(ValueError, "lengths", f"must be at most {most}, the tokens of inputs, got {n}")
    return lambda n: model(inputs[:, :n]), sorted(set(counts))


def diagnosis_of(log: AttentionLog, n: int, laws: Mapping[str, Law], *, per_head: bool = False) -> Diagnosis:
    """The diagnosis of the last pass of a log, recorded under all laws except the standard one."""
    names = {
        name: "entropy" if law == get("standard") else f"entropy under {name}" for name, law in laws.items()
    }
    rows = [each for each in log.rows.values() if not each.all()] or [*log.rows.values()]
    return Diagnosis(
        laws=laws,
        lengths=(n,),
        entropy={name: side_by_side(log.means(each))[None] for name, each in names.items()},
        uniform_entropy=np.array([_equal_weights(log)]),
        sinks=log.sink_layers,
        modules=log.modules,
        kinds=tuple(log.kinds.values()),
        padding=(int((~rows[0]).sum()), rows[0].size),
        unmeasured=dict(log.unmeasured),
        without_heads=tuple(name for name, each in log.calls.items() if each.axes == "unknown"),
        _heads=heads_of(log) if per_head else None,
    )


def _equal_weights(log: AttentionLog) -> list[float]:
    """Mean entropy of equal weights in each layer, on the visible keys and the sink, if any."""

    def means(sinks: int) -> Mapping[str, NDArray[np.float64]]:
        return log.means("n_visible", lambda keys: np.log(np.maximum(keys + sinks, 1)))

    without, beside = means(0), means(1)
    has_sink = (layer in log.sink_layers for layer in log.layers)
    return [
        float((beside if has else without)[name].mean())
        for name, has in zip(log.modules, has_sink, strict=True)
    ]


def _joined(parts: Sequence[Diagnosis], *, interrupted: bool) -> Diagnosis:
    """The diagnoses of several lengths, concatenated."""
    heads = [part._heads for part in parts if part._heads is not None]
    return replace(
        parts[-1],
        lengths=tuple(n for part in parts for n in part.lengths),
        entropy={law: np.concatenate([part.entropy[law] for part in parts]) for law in parts[0].entropy},
        uniform_entropy=np.concatenate([part.uniform_entropy for part in parts]),
        unmeasured={name: why for part in parts for name, why in part.unmeasured.items()},
        interrupted=interrupted,
        _heads=joined(heads) if heads else None,
    )
