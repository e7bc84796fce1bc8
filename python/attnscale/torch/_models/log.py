# SPDX-License-Identifier: BSD-3-Clause
"""The log of a model's recorded attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._base.checks import choose, shown
from ..._base.drawing import drawn_by
from ..._base.tabled import Labelled, Sheet, Tabled, Unit
from ..._base.text import by_reason, counted, some_of
from ..._files.recording import write_recording
from ..._report.headvis import Layer, write_headvis
from ..._report.make import report_of
from ..._report.page import check_free
from ..._report.result import UNMEASURED
from ...exact.heads import HeadKinds, head_kinds
from ...laws import get
from .by_name import ByName, LoggedCall, Rows, differing, layer_numbers, towers_of
from .logged import Logged, groups_of, mean_of_texts, measured, whole_text

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from ..._files.recording import KeptRows
    from ..._report.result import Report
    from ...calibration.fit import Length
    from ...laws import Law
    from .calls import SeenCall
    from .kept import LastPass


class AttentionLog(Tabled):
    """Statistics of the rows of attention in every layer; :func:`record` makes and fills it.

    Keys are names of the modules that call attention, as in the model's ``named_modules()``; a Bridge of
    TransformerLens has its own, "blocks.0.attn". A module that is called again within one pass of the model
    has "#" and the number of the call after its name: "layer", "layer#1", "layer#2".

    Attributes
    ----------
    statistics : tuple of str
        Recorded fields of :class:`attnscale.AttentionStatistics`.
    laws : mapping of str to Law
        Laws whose entropy is measured on the same queries and keys, as factors on the model's scale.
    unmeasured : dict of str to str
        Modules with attention that could not be measured, with the reason, of all passes. They are not among
        ``modules``. A log may have nothing else.

    Notes
    -----
    ``log["entropy"]``, or another statistic, has the arrays of the last pass by name, with all rows. It is
    also one array (layers, batch, heads, queries) if the layers agree in shape; if not, ``select`` gives a
    log of some of them. Means are over the rows of texts; ``rows`` is False at padding.

    ``calls`` has the meaning of each call's axes. If texts and heads cannot be told apart ("unknown") its
    rows are there, and means by head are refused. ``calls[name].key_of`` has the heads that share keys.

    In a layer with a sink (``sink_layers``), the sink is one more outcome in entropy, effective keys
    and lse, as with :class:`attnscale.normalizers.Sink`, also under a law. With its weight w, statistic
    "sink_weight", the entropy over the keys alone is (entropy + w ln w + (1 - w) ln(1 - w)) / (1 - w).
    """

    def __init__(
        self,
        statistics: tuple[str, ...],
        laws: Mapping[str, Law],
        *,
        keep_heads: bool = False,
        to_compare: LastPass | None = None,
    ) -> None:
        self.statistics = statistics
        self.laws = dict(laws)
        self._keeps_heads, self._to_compare = keep_heads, to_compare
        self.unmeasured: dict[str, str] = {}
        self._passes: list[dict[str, Logged]] = []
        self._begins = True  # whether the next call is the first one of a pass
        self._towers: Mapping[str, str] | None = None  # those of the log it was selected from

    def __len__(self) -> int:
        return len(self._passes)

    def begin_pass(self) -> None:
        """Start a new pass with the next call; a pass without calls leaves nothing in the log."""
        self._begins = True

    def add(self, call: SeenCall) -> None:
        """Measure one call of attention, and keep the statistics of its rows in CPU memory."""
        name, found = (
            str(call.place),
            measured(call, self.statistics, self.laws, keep_heads=self._keeps_heads),
        )
        if self._begins:
            self._passes.append({})
            self._begins = False
            if self._to_compare is not None:
                self._to_compare.begin()
        if name in self._passes[-1]:
            raise ValueError(f"the call of {name} must be recorded once in a pass, got it again")
        self._passes[-1][name] = found
        if self._to_compare is not None:
            self._to_compare.add(call)

    def lose(self, module: str, why: str) -> None:
        """Keep the reason why attention of a module could not be measured."""
        self.unmeasured.setdefault(module, why)

    # ---- what was recorded

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules in the last pass, in the order of their calls."""
        return tuple(self._last()) if self._passes or not self.unmeasured else ()

    @property
    def calls(self) -> ByName[LoggedCall]:
        """Kind, way, heads, key heads and tower of each call of the last pass."""
        towers = towers_of(self._last()) if self._towers is None else self._towers
        return ByName((name, each.called(towers.get(name, ""))) for name, each in self._last().items())

    @property
    def kinds(self) -> ByName[str]:
        """Whether each call is "self" attention, or "cross" attention to keys of other rows."""
        return ByName((name, each.kind) for name, each in self._last().items())

    @property
    def key_heads(self) -> ByName[int]:
        """Number of key heads of each call, which grouped queries share."""
        return ByName((name, each.key_heads) for name, each in self.calls.items())

    @property
    def ways(self) -> ByName[str]:
        """Way in which the model computed each call, such as "softmax" or "flex_attention"."""
        return ByName((name, each.way) for name, each in self._last().items())

    @property
    def rows(self) -> Rows:
        """True for rows of a text, not of padding, shape (batch, queries) for each call."""
        return Rows("rows", {name: each.real for name, each in self._last().items()})

    @property
    def passes(self) -> list[ByName[ByName[NDArray[Any]]]]:
        """The arrays of each pass: ``log.passes[0][module][statistic]``, shape (batch, heads, queries)."""
        return [ByName((name, each.arrays) for name, each in one.items()) for one in self._passes]

    @property
    def layers(self) -> tuple[int, ...]:
        """A number for each of ``modules``: one in its name that tells all apart, or else 0, 1, 2, ..."""
        return layer_numbers(self.modules)

    @property
    def sink_layers(self) -> tuple[int, ...]:
        """Numbers of the layers with a sink, which counts in their entropy."""
        return tuple(n for n, each in zip(self.layers, self._last().values(), strict=True) if each.has_sink)

    def __getitem__(self, name: str) -> Rows:
        """A statistic of the last pass: arrays by module, and one array if layers agree in shape."""
        last = self._last()
        if any(name not in each.arrays for each in last.values()):
            known = ", ".join(next(iter(last.values())).arrays)
            raise KeyError(f"{name!r} was not recorded; there is {known}, each by the names in log.modules")
        return Rows(name, {module: each.arrays[name] for module, each in last.items()})

    @property
    def entropy(self) -> NDArray[Any]:
        """Entropy of each row in nats, shape (layers, batch, heads, queries)."""
        return np.asarray(self["entropy"])

    @property
    def effective_keys(self) -> NDArray[Any]:
        """Number of effective keys of each row, exp(entropy)."""
        keys: NDArray[Any] = np.exp(self.entropy)
        return keys

    @property
    def lse(self) -> NDArray[Any]:
        """Natural log-sum-exp of the scores and, in a layer with a sink, of its logit."""
        return np.asarray(self["lse"])

    @property
    def max_score(self) -> NDArray[Any]:
        """Largest score of each row."""
        return np.asarray(self["max_score"])

    def mean_entropy(self, law: str | float | Law | None = None) -> NDArray[np.float64]:
        """Mean entropy over the rows of texts, (layers, heads), of the model itself or under a law.

        A law is given by any of its spellings, or by its name in ``record(laws={...})``. A layer without such
        rows has NaN.
        """
        return self.mean("entropy" if law is None else f"entropy under {self._called(law)}")

    def mean(self, statistic: str) -> NDArray[np.float64]:
        """Mean of a statistic over the rows of texts, without padding, shape (layers, heads)."""
        if unknown := self._without_heads():
            raise ValueError(
                f"the mean of {statistic} by head needs known axes: texts and heads cannot be told apart in "
                f"{some_of(unknown)}; log[statistic][name] has its rows"
            )
        found = self.means(statistic)
        heads = {name: f"{len(each)} heads" for name, each in found.items()}
        if len(set(heads.values())) > 1:
            raise ValueError(differing(f"the mean of {statistic}", "their heads", heads))
        return np.stack(list(found.values()))

    def means(
        self, statistic: str, function: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray
    ) -> ByName[NDArray[np.float64]]:
        """Mean of a statistic by name, shape (heads,), for layers that may differ in their heads.

        With a function of the rows, such as ``numpy.exp``, the mean of its results. A layer with "unknown"
        axes has one mean, over all its rows.
        """
        rows = self[statistic]
        return ByName(
            (name, mean_of_texts(function(rows[name]), each.real)) for name, each in self._last().items()
        )

    def _called(self, law: str | float | Law) -> str:
        """The name under which the law was recorded, or its own spelling."""
        if isinstance(law, str) and law in self.laws:
            return law
        try:
            wanted = get(law)
        except (TypeError, ValueError):
            return str(law)
        return next((name for name, each in self.laws.items() if each == wanted), wanted.spelling)

    def select(self, kind: str | None = None, modules: str | Iterable[str] | None = None) -> AttentionLog:
        """A log with only some of the calls.

        Parameters
        ----------
        kind : {"self", "cross"}, optional
            Self-attention, or attention to keys of other rows.
        modules : str or iterable of str, optional
            Patterns of names, where ``*`` stands for anything: ``"encoder.*"``, ``"*.self_attn"``. Entries of
            ``unmeasured`` stay if the name fits; their kind is not known.

        Returns
        -------
        AttentionLog
            All passes that have such calls.

        Raises
        ------
        TypeError, ValueError
            If kind is unknown, a pattern is not a str, or no call is left.
        """
        if kind is not None:
            choose("kind", kind, ("self", "cross"))
        patterns = [modules] if isinstance(modules, str) else None if modules is None else list(modules)
        if patterns is not None and not all(isinstance(each, str) for each in patterns):
            raise TypeError(f"modules must be a pattern of names or several, got {shown(modules)}")

        def is_wanted(name: str, each: Logged) -> bool:
            named = patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
            return named and kind in (None, each.kind)

        options: Any = {"keep_heads": self._keeps_heads, "to_compare": self._to_compare}
        found = AttentionLog(self.statistics, self.laws, **options)
        parts = [{name: each for name, each in one.items() if is_wanted(name, each)} for one in self._passes]
        found._passes = [part for part in parts if part]
        if not found._passes:
            there = ", ".join(f"{name} ({kind})" for name, kind in self.kinds.items())
            asked = [f"kind={kind!r}"] * (kind is not None) + [f"modules={modules!r}"] * (modules is not None)
            raise ValueError(f"{' and '.join(asked)} must leave a call, got none of {there}")
        found._towers = {name: each.tower for name, each in self.calls.items()}
        found.unmeasured = {
            name: why
            for name, why in self.unmeasured.items()
            if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
        }
        return found

    def kept_rows(self) -> tuple[KeptRows, ...]:
        """Rows of each call of the last pass for a comparison; needs ``record(model, to_compare=True)``."""
        if self._to_compare is None:
            raise ValueError("log must be of record(model, to_compare=True), which keeps rows to compare")
        self._last()
        kept = self._to_compare.rows
        numbers = zip(self.modules, self.layers, strict=True)
        return tuple(replace(kept[name], layer=number) for name, number in numbers if name in kept)

    def save(self, path: str | Path) -> None:
        """Write the rows of the last pass for :func:`attnscale.compare`; needs ``to_compare=True``.

        Parameters
        ----------
        path : str or Path
            A .npz file, which is written as a whole or not at all; an existing one is replaced.

        Raises
        ------
        ValueError, OSError
            If no rows were kept, or the file cannot be written.
        """
        write_recording(path, self.kept_rows())

    # ---- display

    def _variables(self) -> dict[str, Labelled]:
        axes = ("layer", "batch", "head", "query")
        names = list(next(iter(self._last().values())).arrays)
        kinds = {name: "nat" if name in self._entropies() else "" for name in names}
        found = {name: Labelled(axes, self[name], kind) for name, kind in kinds.items()}
        if "entropy" in names:
            found["effective_keys"] = Labelled(axes, self.effective_keys)
        found["real"] = Labelled(("layer", "batch", "query"), self.rows)
        found["module"] = Labelled(("layer",), list(self.modules))
        return {**found, "kind": Labelled(("layer",), list(self.kinds.values()))}

    def _coordinates(self) -> dict[str, Any]:
        return {"layer": list(self.layers)}

    def _attributes(self) -> dict[str, Any]:
        return {"sink_layers": list(self.sink_layers)}

    def _entropies(self) -> set[str]:
        return {"entropy", *(f"entropy under {name}" for name in self.laws)}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        if not self._passes:
            return Sheet("AttentionLog: nothing was recorded yet")
        last = self._last()
        names = list(next(iter(last.values())).arrays)
        size = {name: nats if name in self._entropies() else 1.0 for name in names}
        means = {name: self.means(name) for name in names}
        with_kind = len(set(self.kinds.values())) > 1
        rows = [
            (
                module,
                *([each.kind] if with_kind else []),
                " x ".join(map(str, next(iter(each.arrays.values())).shape)),
                *(f"{means[name][module].mean() / size[name]:.4g}" for name in names),
            )
            for module, each in last.items()
        ]
        units = (f"{name} ({unit})" if name in self._entropies() else name for name in names)
        header = ("module", *(["kind"] if with_kind else []), "batch x heads x queries", *units)
        title = f"AttentionLog: {len(self)} pass{'es' * (len(self) > 1)}; means over the last one"
        return Sheet(title, header, rows, tuple(f"  {note}" for note in self._notes()))

    def _notes(self) -> list[str]:
        """Notes on the last pass: rows that were left out, and how attention was computed if not alike."""
        last = self._last().values()
        padding = Counter((int((~each.real).sum()), each.real.size) for each in last)
        several = len(padding) > 1
        parts = [
            f"{left_out} of {counted(total, 'row')}" + f" in {counted(layers, 'module')}" * several
            for (left_out, total), layers in padding.items()
            if left_out
        ]
        found = [f"left out of the means as padding: {', '.join(parts)}"] if parts else []
        ways = Counter(each.way for each in last)
        if len(ways) > 1:
            parts = [f"{way} in {counted(layers, 'module')}" for way, layers in ways.items()]
            found.append(f"measured at: {', '.join(parts)}")
        if layers := sum(each.hides_by_sum for each in last):
            found.append(
                "numbers that were added to scores leave keys without weight, which count as hidden, in "
                f"{counted(layers, 'module')}"
            )
        if layers := sum(not each.has_known_axes for each in last):
            found.append(
                f"texts and heads cannot be told apart in {counted(layers, 'module')}; no mean is of a head"
            )
        found += [
            f"seen, not measured: {name or 'the model'}: {why}" for name, why in self.unmeasured.items()
        ]
        return found

    def plot(self, *, ax: Axes | None = None, unit: Unit = "nats") -> Axes:
        """Map of the mean entropy of each head of each layer, from 0 to ln of the keys of a call.

        The unit is "nats" or "bits". If layers differ in their heads, extra fields stay white, and so does a
        layer in which texts and heads cannot be told apart.
        """
        unknown = self._without_heads()
        means = [
            np.full(1, np.nan) if name in unknown else each for name, each in self.means("entropy").items()
        ]
        most = max(map(len, means))
        grid = np.stack([np.pad(each, (0, most - len(each)), constant_values=np.nan) for each in means])
        n_keys = max(each.n_keys for one in self._passes for each in one.values())
        options: Any = {"n_keys": n_keys, "modules": list(self.modules), "ax": ax, "unit": unit}
        axes: Axes = drawn_by("head_map")(grid, **options)
        return axes

    def report(
        self,
        path: str | Path | None = None,
        *,
        overwrite: bool = False,
        laws: Iterable[str | float | Law] | None = None,
        about: Mapping[str, str] | None = None,
        plan: str = "",
        tokens: Sequence[str] | None = None,
        spans: Mapping[str, tuple[int, int]] | None = None,
        with_heads: bool = False,
        rows: int | None = None,
        tell: Callable[[str], object] = lambda text: None,
    ) -> Report:
        """A report of every head of every layer; it needs ``record(model, keep_heads=True)``.

        Parameters
        ----------
        path : str or Path, optional
            File of the page; see :meth:`attnscale.Report.save`. Without it nothing is written.
        overwrite : bool, default False
            Whether an existing file may be replaced.
        laws : iterable of str, float or Law, optional
            As for :func:`attnscale.report`; default: the laws of the log, if it has any.
        about : mapping of str to str, optional
            Facts for the head of the page: "model", "text", and others.
        plan : str, default ""
            What multiplies the scores of the model, for the page: ``attnscale.audit.resolve(...).explain()``.
        tokens, spans, with_heads, rows
            The text of the longest pass in pieces, parts of it, whether the page carries the heads, and the
            most rows to measure: as for :func:`attnscale.report`.
        tell : function of a str, optional
            Called with the measurement in progress.

        Returns
        -------
        Report
            Each pass through the model is one length; of two passes of the same length the later one counts.

        Raises
        ------
        FileExistsError, OSError
            As :meth:`attnscale.Report.save`, before anything is measured.
        ValueError
            If queries and keys were not kept, or a pass was not one whole text (a batch, a step with a
            cache).

        Notes
        -----
        Rows of padding are left out. Towers of a model, and self- and cross-attention, are groups of a page.
        Lengths are those of the first module whose number of keys changes; a group with others states its
        own.
        """
        if not self._keeps_heads:
            raise ValueError("a report needs queries and keys: record(model, keep_heads=True) keeps them")
        self._last()
        if path is not None:
            check_free(path, overwrite=overwrite)
        kept = [{name: each.kept for name, each in one.items()} for one in self._passes]
        groups = groups_of(kept, self.calls, self.layers)
        wanted = laws if laws is not None or not self.laws else self.laws.values()
        causal = {rows.options["causal"] is not None for each in groups for rows in each.rows.values()}
        said = "some layers" if len(causal) > 1 else "yes" if True in causal else "no"
        missing = sorted({*self.modules} - {each.module for each in groups})
        told = {**(about or {}), "tokens": str(max(groups[0].rows)), "causal": said}
        if missing:
            told["left out, as they see one key"] = ", ".join(missing)
        if self.unmeasured:
            told[UNMEASURED] = "; ".join(by_reason(self.unmeasured))
        text: dict[str, Any] = {"tokens": tokens, "spans": spans}
        found = report_of(groups, wanted, told, plan, tell, rows=rows, **text, with_heads=with_heads)
        if path is not None:
            found.save(path, overwrite=overwrite)
        return found

    def head_kinds(self, tokens: Any = None) -> ByName[HeadKinds]:
        """Words that each head read in the last pass; needs ``record(model, keep_heads=True)``.

        Parameters
        ----------
        tokens : array_like of int, shape (n,), optional
            Token numbers of the text without its padding, as for :func:`attnscale.head_kinds`.

        Returns
        -------
        mapping of str to HeadKinds
            Each module with self-attention, by its name; arrays (heads, n).

        Raises
        ------
        TypeError, ValueError
            As :func:`attnscale.head_kinds`; if queries and keys were not kept, or the pass was not one whole
            text.
        """
        return ByName(
            (name, head_kinds(each.query, each.key, tokens, **each.options))
            for name, each in self._whole_texts(self._last()).items()
        )

    def to_headvis(
        self,
        directory: str | Path,
        tokens: Iterable[Sequence[str]],
        *,
        model_name: str = "model",
        overwrite: bool = False,
    ) -> Path:
        """Write the files for HeadVis; needs ``record(model, keep_heads=True)``.

        Parameters
        ----------
        directory, model_name, overwrite
            As for :func:`attnscale.export_headvis`.
        tokens : iterable of sequence of str
            For each pass, which is one text, its tokens without padding.

        Returns
        -------
        Path
            The folder, with the heads of self-attention; numbers of layers are those of ``layers``.

        Raises
        ------
        OSError, TypeError, ValueError
            As :func:`attnscale.export_headvis`; if queries and keys were not kept, or a pass was not one
            whole text.
        """
        kept = [self._whole_texts(one) for one in self._passes]
        if len({tuple(each) for each in kept}) > 1:
            raise ValueError("texts of HeadVis need passes through the same layers")
        numbers = dict(zip(self.modules, self.layers, strict=True))
        layers = [
            Layer(numbers[name], [each[name] for each in kept]) for name in self._whole_texts(self._last())
        ]
        return write_headvis(directory, layers, tokens, model_name, overwrite=overwrite)

    def _whole_texts(self, one: Mapping[str, Logged]) -> dict[str, Length]:
        """The rows of self-attention in one pass, by module."""
        kept = {name: each.kept for name, each in one.items() if each.kind == "self"}
        calls = self.calls
        rows = {name: whole_text(name, each, calls) for name, each in kept.items() if each is not None}
        if not rows:
            raise ValueError("head_kinds and HeadVis need self-attention, of record(model, keep_heads=True)")
        return rows

    def _without_heads(self) -> list[str]:
        """Modules of the last pass in which texts and heads cannot be told apart."""
        return [name for name, each in self._last().items() if not each.has_known_axes]

    def _last(self) -> dict[str, Logged]:
        if not self._passes and self.unmeasured:
            raise ValueError(
                f"attention was seen, and none could be measured: {'; '.join(by_reason(self.unmeasured))}"
            )
        if not self._passes:
            raise ValueError("nothing was recorded: run the model inside the with block")
        return self._passes[-1]
