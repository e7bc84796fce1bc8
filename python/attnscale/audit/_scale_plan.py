# SPDX-License-Identifier: BSD-3-Clause
"""Plan of the multipliers of the score of a query and a key in each layer of a model."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import refusal, shown
from .._base.tabled import Labelled, Sheet, Tabled
from .._base.text import Text
from ..normalizers import Sink
from ._differences import Differences, compare_layers
from ._layer import Channels, LayerPlan, PlanError
from ._positions import Positions
from ._text import explain, groups, layer_columns, layer_dict, layer_table

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_OF_TERM = ("channels", "n_means", "key")
_LONGEST = 1 << 24  # largest number of positions to compare


@dataclass(frozen=True, repr=False)
class ScalePlan(Tabled):
    """Multipliers of the raw q . k in each layer of a model, made by :func:`attnscale.audit.resolve`.

    Raw q and k are those after every projection, norm and learned gain, before rotary positions and
    before any factor from the config.

    Attributes
    ----------
    model_type : str
        The type of the language model.
    known : bool
        Whether the code of the model type was read; if not, the plan follows its keys.
    layers : tuple of LayerPlan
    warnings : tuple of str
        Possible errors of the plan.
    remarks : tuple of str
        Notes on the reading of the config.
    max_positions : int or None
        ``max_position_embeddings``.
    learned_positions : bool
        Whether the model has no position beyond ``max_positions``.
    architecture : str
        Name in llama.cpp for a plan from a GGUF file, or empty.
    unread : tuple of pairs
        Keys that no rule reads and that could belong to the scale, with their values.

    Examples
    --------
    >>> import attnscale as at
    >>> plan = at.audit.resolve({"model_type": "gemma2", "hidden_size": 4608, "num_attention_heads": 32,
    ...                          "head_dim": 128, "num_hidden_layers": 46, "query_pre_attn_scalar": 144})
    >>> plan.multiplier(layer=1, position=9) == 1 / 12, plan.softcap(1)
    (True, 50.0)
    """

    model_type: str
    known: bool
    layers: tuple[LayerPlan, ...]
    warnings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    max_positions: int | None = None
    learned_positions: bool = field(default=False, repr=False)
    architecture: str = field(default="", repr=False)
    unread: tuple[tuple[str, Any], ...] = field(default=(), repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> LayerPlan:
        """One layer, so that a plan is a sequence: ``plan[-1]`` is the last, and a for loop visits all."""
        number = _integer("layer", index)
        if not -len(self.layers) <= number < len(self.layers):
            raise IndexError(f"layer must be between 0 and {len(self.layers) - 1}, got {number}")
        return self.layers[number]

    def layer(self, index: int) -> LayerPlan:
        """One layer, 0-based.

        Raises
        ------
        ValueError
            If there is no such layer.
        """
        number = _integer("layer", index)
        if not 0 <= number < len(self.layers):
            raise refusal(PlanError, "layer", f"must be between 0 and {len(self.layers) - 1}, got {number}")
        return self.layers[number]

    def multiplier(self, *, layer: int, position: int, channels: Channels | None = None) -> float:
        """The multiplier of the raw q . k of a query, before soft-cap, bias and mask.

        A temperature that multiplies the capped score instead (Grok) is in :meth:`capped_multiplier`.

        Parameters
        ----------
        layer : int
            0-based.
        position : int
            0-based index of the query in its sequence. Rules by length take the length to be position + 1.
        channels : {"rotated", "unrotated"}, optional
            Part of q . k: the channels rotated by rotary positions, or the others. Optional if both have the
            same multiplier.

        Raises
        ------
        ValueError
            If the layer or position is out of range, the layer has no such channels, or the config does not
            give the scale: the message has the reason.
        """
        return float(self._multipliers(self._answering(layer), self._position(position), channels))

    def capped_multiplier(self, *, layer: int, position: int) -> float:
        """The multiplier of a query's score after the layer's soft-cap: 1 for nearly all models.

        Parameters
        ----------
        layer, position : int
            As for :meth:`multiplier`.

        """
        plan = self._answering(layer)
        return float(plan.capped_multipliers(self._position(position)))

    def softcap(self, layer: int) -> float | None:
        """c of the layer's soft-cap c * tanh(score / c), or None."""
        return self._answering(layer).softcap

    def window(self, layer: int) -> int | None:
        """Largest number of keys that a query of the layer sees, or None if it sees all earlier ones."""
        return self._answering(layer).window

    def sink(self, layer: int) -> bool:
        """Whether the layer's softmax has a learned extra logit without a value."""
        return self._answering(layer).sink

    def attention_options(
        self,
        layer: int,
        positions: ArrayLike,
        *,
        channels: Channels | None = None,
        sink_logits: ArrayLike | None = None,
    ) -> dict[str, Any]:
        """Keyword arguments for :func:`attnscale.attention` on raw, rotated q and k.

        Parameters
        ----------
        layer : int
            0-based.
        positions : int or array_like of int, shape (n_queries,)
            0-based positions of the queries.
        channels : {"rotated", "unrotated"}, optional
            Needed if the multipliers of the two differ: the scale is then that of these channels, and the
            other channels of the query must be multiplied by the ratio of the two beforehand.
        sink_logits : float or array_like, shape (heads,), optional
            The checkpoint's logits for a layer with sinks, one per head.

        Returns
        -------
        dict
            ``scale`` (a float, or one number per query), ``softcap`` if there is one, and ``normalizer``
            if there is a sink.

        Raises
        ------
        ValueError
            As :meth:`multiplier`; also if ``sink_logits`` is missing for a layer with a sink, or given for
            one without, or if a temperature after the soft-cap differs between the queries.
        """
        plan = self._answering(layer)
        if plan.sink and sink_logits is None:
            raise PlanError(
                f"layer {plan.index} has attention sinks, whose logits are not in the config: "
                "sink_logits must be given"
            )
        if sink_logits is not None and not plan.sink:
            raise PlanError(f"sink_logits must be left out: layer {plan.index} ({plan.kind}) has no sink")
        where = self._positions(positions)
        scale = self._multipliers(plan, where, channels)
        constant = not scale.ndim or not plan.depends_on_n
        options: dict[str, Any] = {"scale": float(scale.flat[0]) if constant and scale.size else scale}
        if plan.softcap is not None:
            behind = self._behind_cap(plan, where)
            options = {"scale": options["scale"] * behind, "softcap": plan.softcap * behind}
        return options if sink_logits is None else {**options, "normalizer": Sink(sink_logits)}

    def at(self, positions: ArrayLike, *, layer: int | None = None) -> Positions:
        """Multipliers of queries at some positions, as a table of all layers or of one.

        Parameters
        ----------
        positions : int or array_like of int
            0-based positions of the queries.
        layer : int, optional

        Returns
        -------
        Positions

        Raises
        ------
        ValueError
            As :meth:`multiplier`; a layer without an answer only if it is the one asked for.

        Examples
        --------
        >>> import attnscale as at
        >>> config = {"model_type": "ministral3", "hidden_size": 4096, "num_attention_heads": 32,
        ...           "head_dim": 128, "num_hidden_layers": 34}
        >>> plan = at.audit.resolve(config)
        >>> plan.at([0, 100000])
        Positions
          layer       i       rotated  unrotated  window  cap  sink
          0-33        0  0.0883883476          -       -    -     -
          0-33   100000   0.105587926          -       -    -     -
        """
        wanted = range(len(self)) if layer is None else [self.layer(layer).index]
        listed = np.ravel(positions).tolist()
        found: list[dict[str, Any]] = []
        for numbers, each in groups(self.layers):
            layers = [number for number in numbers if number in wanted]
            if layers and each.refusal is not None and layer is not None:
                self._answering(layer)  # raises, with the reason
            found += [self._at(layers, each, i) for i in listed if layers]
        return Positions(tuple(found), self.warnings)

    def _at(self, layers: list[int], plan: LayerPlan, position: int) -> dict[str, Any]:
        """The multipliers of equal layers at a position."""
        row: dict[str, Any] = {"layers": layers, "position": position}
        if plan.refusal is not None:
            return {**row, "refusal": plan.refusal}
        for kind in plan.channel_kinds:
            row[kind] = self.multiplier(layer=layers[0], position=position, channels=kind)
        if plan.terms_behind_cap:
            row["capped"] = self.capped_multiplier(layer=layers[0], position=position)
        return {**row, "softcap": plan.softcap, "window": plan.window, "sink": plan.sink}

    def rows(self) -> list[dict[str, Any]]:
        """One row for each factor of each layer; None and empty texts for a layer without an answer."""
        return [
            {
                "layer": layer.index,
                "kind": layer.kind,
                "factor": "" if term is None else repr(term.law),
                **{
                    name: "" if term is None else getattr(term, name)
                    for name in ("channels", "n_means", "key")
                },
                **{name: getattr(layer, name) for name in ("softcap", "window", "sink", "refusal")},
            }
            for layer in self.layers
            for term in ([None] if layer.refusal is not None else [layer.base, *layer.terms])
        ]

    def explain(self) -> str:
        """The plan as text: equal layers in one row, and the origin of each number."""
        return Text(explain(self._title(), self.layers, self.remarks, self.warnings))

    def to_dict(self) -> dict[str, Any]:
        """The plan in types of JSON."""
        return {
            "model_type": self.model_type,
            "known": self.known,
            "max_positions": self.max_positions,
            "layers": [layer_dict(layer) for layer in self.layers],
            "remarks": list(self.remarks),
            "warnings": list(self.warnings),
        }

    def _title(self) -> str:
        known = "" if self.known else " (not known)"
        return f"{self.model_type or 'model'}, {len(self.layers)} layers{known}"

    def _variables(self) -> dict[str, Labelled]:
        columns = layer_columns(self.layers)
        return {name: Labelled(("layer",), np.array(each)) for name, each in columns.items()}

    def _coordinates(self) -> dict[str, Any]:
        return {"layer": [layer.index for layer in self.layers]}

    def _attributes(self) -> dict[str, Any]:
        return {"model_type": self.model_type, "known": int(self.known)}  # netCDF has no booleans

    def _sheet(self, nats: float, unit: str) -> Sheet:
        notes = (*(f"  note: {x}" for x in self.remarks), *(f"  warning: {x}" for x in self.warnings))
        return Sheet(self._title(), *layer_table(self.layers), notes)

    def differences(self, other: ScalePlan, *, up_to: int | None = None) -> Differences:
        """Differences from another plan, for example of another revision; :func:`attnscale.audit.compare`.

        Parameters
        ----------
        other : ScalePlan
        up_to : int, optional
            Compare positions below this one.

        Returns
        -------
        Differences
            Empty if the plans agree.
        """
        longest = max(self.max_positions or 0, other.max_positions or 0, 1 << 17)
        return compare_layers(self.layers, other.layers, up_to or min(_LONGEST, longest))

    def with_layers(self, layers: tuple[LayerPlan, ...]) -> ScalePlan:
        return replace(self, layers=layers)

    def _answering(self, layer: int) -> LayerPlan:
        plan = self.layer(layer)
        if plan.refusal is not None:
            raise PlanError(f"layer {plan.index} ({plan.kind}): {plan.refusal}")
        return plan

    def _position(self, position: Any) -> NDArray[np.int64]:
        positions = self._positions(position)
        if positions.ndim:
            raise TypeError(f"position must be one integer, got {shown(position)}")
        return positions

    def _positions(self, positions: Any) -> NDArray[np.int64]:
        where = np.asarray(positions)
        if where.dtype.kind not in "iu":
            raise TypeError(f"position must be an integer, got {shown(positions)}")
        if where.size and where.min() < 0:
            raise PlanError(f"position must be at least 0, got {where.min()}")
        if self.learned_positions and self.max_positions and where.size and where.max() >= self.max_positions:
            raise PlanError(
                f"position must be below {self.max_positions}, the learned positions of {self.model_type}, "
                f"got {where.max()}"
            )
        return where.astype(np.int64)

    def _behind_cap(self, plan: LayerPlan, positions: NDArray[np.int64]) -> float:
        """t of t c tanh(s / c), a soft-cap t c of scores t s: one number for all queries of a call."""
        factors = np.unique(plan.capped_multipliers(positions))
        if factors.size > 1:
            raise PlanError(
                f"positions must have one temperature behind the soft-cap of layer {plan.index}: it is "
                f"{factors[0]:.7g} for some and {factors[-1]:.7g} for others, and one call has one soft-cap"
            )
        return float(factors[0]) if factors.size else 1.0

    def _multipliers(
        self, plan: LayerPlan, positions: NDArray[np.int64], channels: Channels | None
    ) -> NDArray[np.float64]:
        if channels is None:
            return self._common(plan, positions)
        if channels not in ("rotated", "unrotated"):
            raise ValueError(f"channels must be one of 'rotated', 'unrotated', got {shown(channels)}")
        if channels not in plan.channel_kinds:
            what = "every channel" if channels == "unrotated" else "no channel"
            raise PlanError(
                f"channels={channels!r}: rotary positions turn {what} of layer {plan.index} ({plan.kind})"
            )
        return plan.multipliers(positions, channels)

    def _common(self, plan: LayerPlan, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        first, *others = (plan.multipliers(positions, kind) for kind in plan.channel_kinds)
        if any(not np.array_equal(first, other) for other in others):
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = float(np.ravel(others[0] / first)[0])
            raise PlanError(
                f"channels must be 'rotated' or 'unrotated' in layer {plan.index}: their multipliers differ "
                f"(unrotated / rotated = {ratio:.9g})"
            )
        return first


def compare(plan: ScalePlan, other: ScalePlan, *, up_to: int | None = None) -> Differences:
    """Differences between two plans; also ``plan.differences(other)``.

    Parameters
    ----------
    plan, other : ScalePlan
    up_to : int, optional
        Compare positions below this one; default: up to the larger ``max_position_embeddings`` of the two
        models, at least 131072 and at most 2^24.

    Returns
    -------
    Differences
        A tuple of :class:`Difference`, empty if the plans agree. If one plan has more layers, that is the
        first difference, and the common layers are compared.

    Examples
    --------
    >>> import attnscale as at
    >>> config = {"model_type": "ministral3", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128,
    ...           "num_hidden_layers": 34}
    >>> plan = at.audit.resolve(config)
    >>> for each in at.audit.compare(plan, at.audit.as_framework(plan, "vllm-0.25")[0]):
    ...     print(each)
    layers 0-33, rotated channels: differs from i = 0 on: 0.08838835 here, 0.1441959 there (0.6130 times)
    """
    return plan.differences(other, up_to=up_to)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an integer, got {shown(value)}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {shown(value)}") from None
