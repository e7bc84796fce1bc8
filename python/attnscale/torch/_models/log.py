# SPDX-License-Identifier: BSD-3-Clause
"""The log of what was recorded of a model's attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..._report.make import report_of
from ..._report.page import check_free
from ..._tables.tabled import Labelled, Sheet, Tabled, Unit
from ...laws import get
from .._functional import attention_entropy
from .heads import groups_of, kept_rows, on_host

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from ..._calibrate.fit import Length
    from ..._report.result import Report
    from ..._results import AttentionStatistics
    from ...laws import Law

__all__ = ["AttentionLog"]


class AttentionLog(Tabled):
    """Statistics of the rows of attention in every layer; :func:`record` makes and fills it.

    Attributes
    ----------
    statistics : tuple of str
        What is recorded: names of fields of :class:`attnscale.AttentionStatistics`.
    laws : mapping of str to Law
        Laws whose entropy is measured on the same queries and keys, as factors on the model's scale.
    modules : dict of int to str
        The name of each layer's attention in the model, as its ``named_modules()`` has it.
    key_heads : dict of int to int
        The number of key heads of each layer, which grouped queries share.

    Notes
    -----
    A forward pass ends where a layer that was seen comes again. The arrays are those of the last
    pass. Where a layer has a sink (``sink_layers``), the sink is one more outcome in entropy, effective keys
    and lse, as with :class:`attnscale.normalizers.Sink`, also under a law. With its weight w, statistic
    "sink_weight", the entropy over the keys alone is (entropy + w ln w + (1 - w) ln(1 - w)) / (1 - w).
    """

    def __init__(
        self,
        statistics: tuple[str, ...],
        laws: Mapping[str, Law],
        *,
        names: Mapping[int, str] | None = None,
        keep_heads: bool = False,
    ) -> None:
        self.statistics = statistics
        self.laws = dict(laws)
        self.modules: dict[int, str] = {}
        self.key_heads: dict[int, int] = {}
        self._names = dict(names or {})  # of the model's modules, by id()
        self.passes: list[dict[int, dict[str, NDArray[Any]]]] = []
        self._kept: list[dict[int, Length]] | None = [] if keep_heads else None  # beside the passes
        self._with_sink: set[int] = set()
        self._most_keys = 1  # largest number of keys in a call; entropies reach up to its logarithm

    def __len__(self) -> int:
        return len(self.passes)

    def add(
        self, module: Any, rows: AttentionStatistics, query: Any, key: Any, options: Mapping[str, Any]
    ) -> None:
        """Add the statistics of one call of one layer: arrays, and the tensors and options of the call."""
        found = {name: getattr(rows, name) for name in self.statistics}
        self._most_keys = max(self._most_keys, int(key.shape[-2]))
        for name, law in self.laws.items():
            found[f"entropy under {name}"] = _under_law(law, query, key, options)
        layer = self._layer(module)
        if not self.passes or layer in self.passes[-1]:
            self.passes.append({})
            if self._kept is not None:
                self._kept.append({})
        self.passes[-1][layer] = found
        if self._kept is not None:
            self._kept[-1][layer] = kept_rows(query, key, options)
        self.modules[layer] = self._names.get(id(module), f"layer {layer}")
        self.key_heads[layer] = int(key.shape[-3])
        if "normalizer" in options:
            self._with_sink.add(layer)

    def _layer(self, module: Any) -> int:
        number = getattr(module, "layer_idx", None)
        if isinstance(number, int):
            return number
        # Modules without a number are counted in the order of their first call.
        self._order: list[int] = getattr(self, "_order", [])
        if id(module) not in self._order:
            self._order.append(id(module))
        return self._order.index(id(module))

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the layers in the last pass."""
        return tuple(sorted(self._last()))

    @property
    def sink_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have a sink, which their entropy counts."""
        return tuple(sorted(self._with_sink))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A statistic of the last pass, shape (layers, batch, heads, queries)."""
        last = self._last()
        arrays = [last[layer].get(name) for layer in self.layers]
        if any(each is None for each in arrays):
            known = ", ".join(last[self.layers[0]])
            raise KeyError(f"{name!r} was not recorded; there is {known}")
        shapes = {each.shape for each in arrays if each is not None}
        if len(shapes) > 1:
            raise ValueError(f"layers differ in shape ({sorted(shapes)}); passes[-1] has them one by one")
        return np.stack([each for each in arrays if each is not None])

    @property
    def entropy(self) -> NDArray[Any]:
        """Entropy of each row in nats, shape (layers, batch, heads, queries)."""
        return self["entropy"]

    @property
    def effective_keys(self) -> NDArray[Any]:
        """The number of effective keys of each row, exp(entropy)."""
        keys: NDArray[Any] = np.exp(self["entropy"])
        return keys

    @property
    def lse(self) -> NDArray[Any]:
        """Natural log-sum-exp of the scores, and of the sink's logit where the layer has one."""
        return self["lse"]

    @property
    def max_score(self) -> NDArray[Any]:
        """Largest score of each row."""
        return self["max_score"]

    def mean_entropy(self, law: str | float | Law | None = None) -> NDArray[np.float64]:
        """Mean entropy over batch and queries, (layers, heads), of the model itself or under a law.

        A law is given by any of its spellings, or by the name that ``record(laws={...})`` gave it.
        """
        name = "entropy" if law is None else f"entropy under {self._called(law)}"
        return np.asarray(self[name].astype(np.float64).mean(axis=(1, 3)))

    def _called(self, law: str | float | Law) -> str:
        """The name under which the law was recorded; its own spelling where it was not."""
        if isinstance(law, str) and law in self.laws:
            return law
        try:
            wanted = get(law)
        except (TypeError, ValueError):
            return str(law)
        return next((name for name, each in self.laws.items() if each == wanted), wanted.spelling)

    def _variables(self) -> dict[str, Labelled]:
        axes = ("layer", "batch", "head", "query")
        names = list(self._last()[self.layers[0]])
        kinds = {name: "nat" if name in self._entropies() else "" for name in names}
        found = {name: Labelled(axes, self[name], kind) for name, kind in kinds.items()}
        if "entropy" in names:
            found["effective_keys"] = Labelled(axes, self.effective_keys)
        return found

    def _coordinates(self) -> dict[str, Any]:
        return {"layer": list(self.layers)}

    def _attributes(self) -> dict[str, Any]:
        return {"sink_layers": list(self.sink_layers)}

    def _entropies(self) -> set[str]:
        return {"entropy", *(f"entropy under {name}" for name in self.laws)}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        if not self.passes:
            return Sheet("AttentionLog: nothing was recorded yet")
        last = self._last()
        names = list(last[self.layers[0]])
        size = {name: nats if name in self._entropies() else 1.0 for name in names}
        rows = [
            (
                str(layer),
                " x ".join(map(str, np.shape(next(iter(last[layer].values()), ())))),
                *(f"{np.mean(last[layer][name], dtype=np.float64) / size[name]:.4g}" for name in names),
            )
            for layer in self.layers
        ]
        units = (f"{name} ({unit})" if name in self._entropies() else name for name in names)
        title = f"AttentionLog: {len(self)} pass{'es' * (len(self) > 1)}; means over the last one"
        return Sheet(title, ("layer", "batch x heads x queries", *units), rows)

    def plot(self, *, ax: Axes | None = None, unit: Unit = "nats") -> Axes:
        """Map of the mean entropy of each head of each layer, from 0 to ln of the keys of a call.

        The unit is "nats" or "bits".
        """
        from ... import plot

        modules = [self.modules[layer] for layer in self.layers]
        return plot.head_map(self.mean_entropy(), n_keys=self._most_keys, modules=modules, ax=ax, unit=unit)

    def report(
        self,
        path: str | Path | None = None,
        *,
        overwrite: bool = False,
        laws: Iterable[str | float | Law] | None = None,
        about: Mapping[str, str] | None = None,
        plan: str = "",
        tell: Callable[[str], object] = lambda text: None,
    ) -> Report:
        """A report of every head of every layer, which ``record(model, keep_heads=True)`` makes possible.

        Parameters
        ----------
        path : str or Path, optional
            Where the page goes; see :meth:`attnscale.Report.save`. Without it nothing is written.
        overwrite : bool, default False
            Whether a file that is there may be replaced.
        laws : iterable of str, float or Law, optional
            As for :func:`attnscale.report`; default: the laws of the log, if it has any.
        about : mapping of str to str, optional
            What was measured, for the head of the page: "model", "text", and whatever else is worth saying.
        plan : str, default ""
            What multiplies the scores of the model, for the page: ``attnscale.audit.resolve(...).explain()``.
        tell : function of a str, optional
            Told what is being measured.

        Returns
        -------
        Report
            Each pass through the model is one length; of two passes of the same length the later one counts.

        Raises
        ------
        FileExistsError, OSError
            As :meth:`attnscale.Report.save`, before anything is measured.
        ValueError
            If queries and keys were not kept, or a pass was not one whole text: a batch, a step with a cache.
        """
        if self._kept is None:
            raise ValueError("a report needs queries and keys: record(model, keep_heads=True) keeps them")
        self._last()
        if path is not None:
            check_free(path, overwrite=overwrite)
        groups = groups_of(self._kept)
        wanted = laws if laws is not None or not self.laws else self.laws.values()
        causal = {rows.options["causal"] is not None for each, _ in groups for rows in each.values()}
        said = "some layers" if len(causal) > 1 else "yes" if True in causal else "no"
        longest = max(groups[0][0])
        told = {**(about or {}), "tokens": str(longest), "causal": said}
        found = report_of(groups, wanted, told, plan, tell)
        if path is not None:
            found.save(path, overwrite=overwrite)
        return found

    def _last(self) -> dict[int, dict[str, NDArray[Any]]]:
        if not self.passes:
            raise ValueError("nothing was recorded: run the model inside the with block")
        return self.passes[-1]


def _under_law(law: Law, query: Any, key: Any, options: Mapping[str, Any]) -> NDArray[Any]:
    """Entropy of each row with the law as a factor on the model's own scale."""
    own = options["scale"] * math.sqrt(query.shape[-1])
    with torch.no_grad():
        found = attention_entropy(query * query.new_tensor(own), key, **{**options, "scale": law})
    return np.asarray(on_host(found))
