# SPDX-License-Identifier: BSD-3-Clause
"""The function ``measure``: what a loaded model multiplies, beside what its config says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.hints import hinted
from .._base.spelling import as_number
from .._base.tabled import Labelled, Sheet, Tabled
from .._base.text import by_reason, counted, grouped
from ._keys import read_config
from ._measured_against import NOT_TEMPERED, MeasuredDifference, differences_from, said
from ._measured_layer import MeasuredLayer
from ._scale_plan import ScalePlan
from ._survey import resolve_quietly
from ._text import named

if TYPE_CHECKING:
    import torch

    from ..torch._measured.model import Measurement

_HEADER = ("layers", "what", "at i", "measured", "config", "ratio")
_PLAIN_HEADER = ("layers", "rotated", "unrotated", "channels", "causal", "window", "cap", "sink", "bias")
#: Training length of a model whose config names none.
_USUAL_LENGTH = 4096
#: Multiples of the training length at which queries are measured.
_MULTIPLES = (1, 4, 16)


@dataclass(frozen=True, repr=False)
class MeasuredPlan(Tabled):
    """Numbers that the code of a loaded model multiplies scores by; :func:`attnscale.audit.measure` makes it.

    Attributes
    ----------
    model : str
        Class of the model.
    layers : tuple of MeasuredLayer
    plan : ScalePlan or None
        What the config says; None where it says nothing.
    differences : tuple of MeasuredDifference
    positions : tuple of int
        Positions at which queries were measured.
    passes, tokens : int
        Number of passes of the model, and tokens of each.
    compared : int
        Number of layers that were compared with the config.
    remarks : tuple of str
        What was not measured or not compared, and why.
    """

    model: str
    layers: tuple[MeasuredLayer, ...]
    plan: ScalePlan | None
    differences: tuple[MeasuredDifference, ...]
    positions: tuple[int, ...]
    passes: int
    tokens: int
    compared: int = 0
    remarks: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> MeasuredLayer:
        return self.layers[index]

    @property
    def measured(self) -> tuple[MeasuredLayer, ...]:
        """The layers that could be measured."""
        return tuple(each for each in self.layers if not each.reason)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each layer and measured position; None where there is no such number."""
        return [
            {
                "layer": layer.index,
                "module": layer.module,
                "tower": layer.tower,
                "position": position,
                "rotated": layer.multiplier(position, rotated=True),
                "unrotated": layer.multiplier(position, rotated=False),
                "pairing": layer.pairing,
                "softcap": layer.softcap,
                "window": layer.window,
                "sink": layer.sink,
                "bias": layer.bias,
            }
            for layer in self.measured
            for position in (0, *layer.positions)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The measurement in types of JSON."""
        return {
            "model": self.model,
            "rows": self.rows(),
            "differences": [each.to_dict() for each in self.differences],
            "not_measured": {each.module: each.reason for each in self.layers if each.reason},
            "remarks": list(self.remarks),
            "compared": self.compared,
            "passes": self.passes,
            "tokens": self.tokens,
        }

    def _variables(self) -> dict[str, Labelled]:
        missing = {"module": "", "tower": "", "pairing": "", "sink": False, "bias": False}
        rows = self.rows()
        return {
            name: Labelled(
                ("line",), np.array([missing.get(name, np.nan) if x[name] is None else x[name] for x in rows])
            )
            for name in (rows[0] if rows else ())
        }

    def _sheet(self, nats: float, unit: str) -> Sheet:
        size = f"{counted(len(self.measured), 'layer')} measured in {counted(self.passes, 'pass', 'passes')}"
        title = f"{self.model}: {size} of {self.tokens} tokens"
        notes = [*map(str, self.differences), *(f"note: {text}" for text in self.remarks)]
        if self.plan is None or not self.compared:
            title += "" if self.plan is None else ", none compared with its config"
            return Sheet(title, _PLAIN_HEADER, self._plain(), tuple(notes))
        if not self.differences:
            count = "" if self.compared == len(self.layers) else f"{self.compared} of them "
            return Sheet(f"{title}, {count}as its config says", _PLAIN_HEADER, self._plain(), tuple(notes))
        title += f", {counted(len(self.differences), 'difference')} from its config"
        return Sheet(title, _HEADER, [_cells(each) for each in self.differences], tuple(notes))

    def _plain(self) -> list[tuple[str, ...]]:
        """Cells of layers that were measured alike."""

        def key(layer: MeasuredLayer) -> tuple[str, ...]:
            return (
                *(_range(layer, rotated=kind) for kind in (True, False)),
                f"{layer.pairing} of {int(layer.rotated.sum())}" if layer.pairing else "-",
                "yes" if layer.is_causal else "-",
                str(layer.window or "-"),
                "-" if layer.softcap is None else as_number(layer.softcap),
                "?" if layer.sink is None else "yes" if layer.sink else "-",
                "yes" if layer.bias else "-",
            )

        groups = grouped(self.measured, lambda layer: (layer.tower, key(layer)))
        return [
            (f"{tower} {named([each.index for each in alike])}".strip(), *cells)
            for (tower, cells), alike in groups.items()
        ]


def _range(layer: MeasuredLayer, *, rotated: bool) -> str:
    """The multiplier at position 0, and the one at the last position if that differs."""
    first = layer.multiplier(rotated=rotated)
    if first is None:
        return "-"
    last = layer.multiplier(layer.positions[-1], rotated=rotated) if layer.positions else first
    near = max(1e-4, layer.rounding) * abs(first)
    return f"{first:.6g}" if last is None or abs(last - first) <= near else f"{first:.6g} to {last:.6g}"


def _cells(each: MeasuredDifference) -> tuple[str, ...]:
    return (
        f"{each.tower} {named(list(each.layers))}".strip(),
        each.what,
        "-" if each.position is None else str(each.position),
        said(each.measured),
        said(each.config),
        "-" if each.ratio is None else f"{each.ratio:.4f}",
    )


@hinted
def measure(model: torch.nn.Module, *, config: Any = None) -> MeasuredPlan:
    """Numbers that a loaded model multiplies its scores by, found by running it, beside its config's.

    Parameters
    ----------
    model : torch.nn.Module
        A model of PyTorch that reads ``input_ids``, such as those of transformers, on any device, of any
        type, with adapters or patches as it will be used. It is not changed.
    config : mapping, str, path or transformers config, optional
        The config to compare with, as for :func:`resolve`; default: ``model.config``.

    Returns
    -------
    MeasuredPlan
        It prints as a table of the differences, or of what was measured if there are none.

    Raises
    ------
    TypeError
        If the model is not a module.
    NotImplementedError
        If the model does not read ``input_ids``, or its attention is closed (flash attention).
    ValueError
        If no attention was seen, or the config cannot be read.

    Notes
    -----
    The model runs six times over 61 random tokens: in order, and, where it takes ``position_ids``, all at
    position 0, 1, the training length, 4 and 16 times it. At position 0 a rotation changes nothing, so that
    each channel of a query is one feature of a projection, or of a norm behind it, times a factor; at other
    positions the pair of each channel, its angle and its growth are fitted. No module's name is used.
    Multipliers are medians over channels of two heads. A difference is one of more than 2e-4 in a multiplier
    (8e-3 in bfloat16, 1e-3 in float16), or of more than the rounding of an angle.

    Not measured: windows longer than 61 tokens, angles in layers that norm q and k behind the rotation, and
    layers whose scores are not one product of queries and keys; ``remarks`` says so.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaModel
    >>> import attnscale as at
    >>> model = LlamaModel(LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2,
    ...                                intermediate_size=64, vocab_size=200))
    >>> model.config.rope_parameters = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
    ...                                 "original_max_position_embeddings": 512}
    >>> found = at.audit.measure(model)
    >>> print(found.differences[0])
    layers 0-1: the model multiplies q . k by 0.25, the config says 0.324119 (0.7713 times): YaRN not applied
    """
    from ..torch._measured.model import measured

    content, plan, remarks = _asked(model, config)
    positions = _positions(plan)
    found: Measurement = measured(model, positions)
    layers, differences = _layers(found), list[MeasuredDifference]()
    compared, more = 0, list[str]()
    if plan is not None:
        differences, compared, more = _compared(plan, layers, content)
        if any(each.slip == NOT_TEMPERED for each in differences):
            found.run_behind(positions[1:])
            layers = _layers(found)
            differences, compared, more = _compared(plan, layers, content)
        if differences and config is None:
            more.append("most of a config is read when the model is built: a later change has no effect")
    return MeasuredPlan(
        found.name,
        tuple(layers),
        plan,
        tuple(differences),
        (0, *positions),
        found.passes,
        found.tokens,
        compared,
        (*remarks, *found.remarks, *_remarks(layers), *more),
    )


def _asked(model: Any, config: Any) -> tuple[dict[str, Any], ScalePlan | None, list[str]]:
    """The config to compare with, its plan, and a remark if the model's own cannot be read."""
    given = getattr(model, "config", None) if config is None else config
    if given is None:
        return {}, None, []
    try:
        content = read_config(given)
        return content, resolve_quietly(content, None), []
    except (TypeError, ValueError) as error:
        if config is not None:
            raise
        return {}, None, [f"not compared: the config of the model cannot be read ({error})"]


def _layers(found: Measurement) -> list[MeasuredLayer]:
    return [MeasuredLayer(**vars(each)) for each in found.layers()]


def _remarks(layers: list[MeasuredLayer]) -> list[str]:
    """Reasons why layers were not measured, and the notes of the others."""
    lost = by_reason({each.module: each.reason for each in layers if each.reason})
    notes = dict.fromkeys(note for each in layers for note in each.notes)
    return [*(f"not measured: {each}" for each in lost), *notes]


def _positions(plan: ScalePlan | None) -> tuple[int, ...]:
    """Positions at which queries are measured: 1, the training length, and multiples of it."""
    length = _USUAL_LENGTH
    if plan is not None:
        rotations = [each.rotation for each in plan.layers if each.rotation is not None]
        originals = [dict(each.parameters).get("original") for each in rotations]
        length = next((x for x in (*originals, plan.max_positions) if isinstance(x, int) and x > 1), length)
    return tuple(dict.fromkeys((1, *(length * each for each in _MULTIPLES))))


def _compared(
    plan: ScalePlan, layers: list[MeasuredLayer], content: Mapping[str, Any]
) -> tuple[list[MeasuredDifference], int, list[str]]:
    """Differences, number of compared layers and remarks of the towers that the config has a plan for."""
    towers = grouped(layers, lambda layer: layer.tower)
    chosen = _tower(plan, towers)
    differences, remarks, count, alone = list[MeasuredDifference](), list[str](), 0, []
    for name, own in towers.items():
        asked = plan if name == chosen else _plan_of_part(content, name)
        if asked is None:
            alone.append(name)
            continue
        found = differences_from(asked, own, content)
        tower = name if len(towers) > 1 else ""
        differences += [replace(each, tower=tower) for each in found.differences]
        remarks += found.remarks
        count += found.compared
    remarks += [f"measured alone, not compared with the config: {', '.join(alone)}"] if alone else []
    return differences, count, remarks


def _plan_of_part(content: Mapping[str, Any], tower: str) -> ScalePlan | None:
    """The plan of an encoder beside a decoder; None for other towers."""
    if "encoder" not in tower.replace("decoder", ""):
        return None
    try:
        return resolve_quietly(content, "encoder")
    except ValueError:
        return None


def _tower(plan: ScalePlan, towers: Mapping[str, list[MeasuredLayer]]) -> str:
    """The tower with the layers of the plan: the language model, or the decoder."""
    if not towers:
        return ""
    for word in ("language", "text", "decoder"):
        for name in towers:
            if word in name:
                return name
    return min(towers, key=lambda name: abs(len(towers[name]) - len(plan)))
