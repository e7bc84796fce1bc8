# SPDX-License-Identifier: BSD-3-Clause
"""Learned parts of the scale of attention, read from the weights of a checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from .._base.tabled import Labelled, Sheet, Tabled
from .._files.heads import InputError
from .._files.safetensors import Stored, stored_tensors
from ..laws import ASEntmax, Constant, Law, SSMax
from ._keys import read_config

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Function of the tensor and the config's keys that returns a number per head, or per channel of each head.
Meaning = Callable[["NDArray[np.float64]", Mapping[str, Any]], "NDArray[np.float64]"]


class Rule(NamedTuple):
    """Meaning of tensors with some names."""

    tensor: str  # regular expression for the end of the name; before it is the module
    quantity: str
    values: Meaning
    meaning: str
    source: str  # source of the name and the formula


def _by_head(tensor: NDArray[np.float64], config: Mapping[str, Any]) -> NDArray[np.float64]:
    return tensor.ravel()


def _size(tensor: NDArray[np.float64], config: Mapping[str, Any]) -> NDArray[np.float64]:
    return np.abs(tensor.ravel())


def _cosine(tensor: NDArray[np.float64], config: Mapping[str, Any]) -> NDArray[np.float64]:
    return np.exp(np.minimum(tensor.ravel(), math.log(100)))


def _gain(tensor: NDArray[np.float64], config: Mapping[str, Any]) -> NDArray[np.float64]:
    """softplus(w) / ln 2, which is 1 at w = 0; the channels are the same for all heads."""
    return np.logaddexp(0, tensor.ravel())[None] / math.log(2)


def _ngpt(tensor: NDArray[np.float64], config: Mapping[str, Any]) -> NDArray[np.float64]:
    """(sqk sqrt(d) / init)^2 / sqrt(d), by head and channel."""
    head_dim, init = int(config.get("head_dim", 256)), float(config.get("initializer_range", 0.0177))
    by_head = tensor.reshape(-1, head_dim)
    return (by_head * math.sqrt(head_dim) / init) ** 2 / math.sqrt(head_dim)


#: Names in the files of models, and in the code that loads them.
RULES = (
    Rule(
        r"(softmax_scaling\.scale|ssmax_scaling\.s|ssmax_layer\.scales)",
        "s",
        _by_head,
        "q . k is multiplied by (s ln n + b) / sqrt(head_dim), n = i + 1",
        "transformers mistral_large4, and its conversion_mapping.py; tabicl SSMax",
    ),
    Rule(
        r"(softmax_scaling\.bias|ssmax_scaling\.b)",
        "b",
        _by_head,
        "see s",
        "transformers mistral_large4, and its conversion_mapping.py",
    ),
    Rule(
        r"attn_scale_beta",
        "beta",
        _by_head,
        "q . k is multiplied by (delta + beta ln(n)^gamma) / sqrt(head_dim), n = i + 2; "
        "by beta ln(n) / sqrt(head_dim) without a gamma",
        "deep-spin/asentmax sparse_gemma.py",
    ),
    Rule(r"attn_scale_gamma", "gamma", _by_head, "see beta", "deep-spin/asentmax sparse_gemma.py"),
    Rule(
        r"(attention\.self|attn)\.logit_scale",
        "cosine scale",
        _cosine,
        "the cosine of q and k is multiplied by it: exp(min(logit_scale, ln 100))",
        "transformers swinv2, swin2sr; timm swin_transformer_v2",
    ),
    Rule(
        r"attn\.temperature",
        "temperature",
        _by_head,
        "the score is multiplied by it, in XCiT and Restormer that of channels and not of tokens",
        "timm xcit; Restormer",
    ),
    Rule(
        r"attn_temperature",
        "layer temperature",
        _size,
        "q . k is multiplied by abs(attn_temperature), beside 1/sqrt(head_dim) and other factors",
        "synthefy_nori model/layer.py",
    ),
    Rule(
        r"\.(sinks|learnable_sink_param|attn_sink|attention_sink_bias|softmax_offset)",
        "sink",
        _by_head,
        "logit of a key without a value",
        "transformers gpt_oss, hy_v4, mimo_v2_flash, and conversion_mapping.py",
    ),
    Rule(
        r"self_attn\.sqk",
        "channel scale",
        _ngpt,
        "q . k of unit vectors, by channel: (sqk sqrt(head_dim) / initializer_range)^2 / sqrt(head_dim)",
        "transformers dory",
    ),
    Rule(
        r"(per_dim_scale|self_attn\.scaling)",
        "channel gain",
        _gain,
        "softplus(w) / ln 2 on a channel of q, beside 1/sqrt(head_dim); the same for all heads",
        "transformers timesfm, gemma3n and gemma4 (audio, whose keys have ln(1 + e) / ln 2 there)",
    ),
)

_SEARCHED = [re.compile(rf"(?P<module>.*?)\.?{rule.tensor}$") for rule in RULES]
_BASE = re.compile(r"(?P<module>.*)\.base_mlp\.(0|2)\.(weight|bias)$")
_QUERY = (".query_mlp.0.weight", ".gate_mlp.0.weight", ".qkv_proj_weight")
_BY_TOKEN = re.compile(r"(attn_scale_(beta|gamma)_proj|sink_proj|query_mlp\.2)\.weight$")

#: Names in attention that could belong to the scale, without those of norms and of quantised weights.
_SUSPICIOUS = re.compile(r"(attn|atten|atn).*\.[^.]*(scal|temper|sink|tau|logn|log_n|ssmax)[^.]*$")
_ELSEWHERE = re.compile(
    r"norm|((weight|input|output|act|[qkv])_scale(_inv|_2)?|scales|kv_scale)$|layer_scale"
)


@dataclass(frozen=True)
class Learned:
    """One quantity of one module of attention.

    Attributes
    ----------
    module : str
        Name of the module in the checkpoint.
    layer : int
        The number in that name; with several, its place among the modules of the same kind.
    quantity : str
        "s", "b", "delta", "beta", "gamma", "cosine scale", "temperature", "sink", "channel scale",
        "channel gain", "layer temperature", or "base at n = 1024" of a QASSMax.
    values : ndarray of float64, shape (heads,) or (heads, channels)
    meaning : str
        Effect of the numbers on a score.
    curve : callable or None
        For a QASSMax: function from n to the numbers.
    """

    module: str
    layer: int
    quantity: str
    values: NDArray[np.float64]
    meaning: str
    curve: Callable[[float], NDArray[np.float64]] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The quantity in types of JSON."""
        names = ("layer", "module", "quantity", "meaning")
        return {**{name: getattr(self, name) for name in names}, "values": self.values.tolist()}


@dataclass(frozen=True, repr=False)
class LearnedScales(Tabled):
    """Learned parts of the scale in a checkpoint, read by :func:`attnscale.audit.learned_scales`.

    Attributes
    ----------
    entries : tuple of Learned
        In the order of the layers.
    unread : tuple of str
        Tensors that could belong to the scale and are not numbers of a head, in words.
    """

    entries: tuple[Learned, ...]
    unread: tuple[str, ...] = ()

    def laws(self) -> dict[tuple[int, str, int], Law]:
        """The law of each head by (layer, module, head), if its numbers make one.

        Returns
        -------
        dict
            :class:`~attnscale.laws.SSMax`, :class:`~attnscale.laws.ASEntmax`, or
            :class:`~attnscale.laws.Constant` for a scale of cosines (q and k of length 1).
        """
        found: dict[tuple[int, str], dict[str, NDArray[np.float64]]] = {}
        for each in self.entries:
            found.setdefault((each.layer, each.module), {})[each.quantity] = each.values
        return {
            (layer, module, head): law
            for (layer, module), values in found.items()
            for head, law in enumerate(_laws(values))
        }

    def rows(self) -> list[dict[str, Any]]:
        """One line per layer, head and quantity: the value, or mean, smallest and largest of channels."""
        return [
            {
                "layer": each.layer,
                "module": each.module,
                "head": head,
                "quantity": each.quantity,
                "value": float(np.mean(value)),
                "least": float(np.min(value)),
                "largest": float(np.max(value)),
            }
            for each in self.entries
            for head, value in enumerate(each.values)
        ]

    def laws_at(self, lengths: Sequence[int] = ()) -> list[dict[str, Any]]:
        """One row for each head that has a law: its spelling, and its multiple of 1/sqrt(d) at each length.

        The multiple is for the last of n causal queries; NaN for a constant, which multiplies a cosine. The
        base of a QASSMax has a row too.
        """
        found: list[tuple[int, str, int, str, Any]] = [
            (*head, law.spelling, None if law.name == "constant" else partial(law.multiplier_at, head_dim=1))
            for head, law in self.laws().items()
        ]
        found += [
            (each.layer, each.module, head, "base of a QASSMax", partial(_mean_of_head, each, head))
            for each in self.entries
            if each.curve is not None
            for head in range(len(each.values))
        ]
        return [
            {"layer": layer, "module": module, "head": head, "law": spelling}
            | {f"m({n})": math.nan if curve is None else float(curve(n)) for n in lengths}
            for layer, module, head, spelling, curve in found
        ]

    def _variables(self) -> dict[str, Labelled]:
        columns: dict[str, list[Any]] = {}
        for row in self.rows():
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
        return {name: Labelled(("line",), np.array(values)) for name, values in columns.items()}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        rows = [
            (
                str(each.layer),
                each.quantity,
                str(len(each.values)),
                *(f"{x:.6g}" for x in (each.values.min(), np.median(each.values), each.values.max())),
            )
            for each in self.entries
        ]
        told = dict.fromkeys(
            f"  {each.quantity}: {each.meaning}"
            for each in self.entries
            if not each.meaning.startswith("see ")
        )
        notes = (*told, *(f"  not read: {text}" for text in self.unread))
        header = ("layer", "quantity", "heads", "least", "median", "largest")
        return Sheet("in the weights" if rows else "nothing of the scale in the weights", header, rows, notes)


def _mean_of_head(each: Learned, head: int, n: float) -> float:
    """The mean over the channels of a head of a QASSMax's base."""
    curve = cast("Callable[[float], NDArray[np.float64]]", each.curve)
    return float(curve(n).reshape(len(each.values), -1)[head].mean())


def _laws(values: Mapping[str, NDArray[np.float64]]) -> list[Law]:
    """A law for each head, or an empty list."""
    if "s" in values:
        offsets = values.get("b", np.zeros(len(values["s"])))
        return [SSMax(s=float(s), b=float(b)) for s, b in zip(values["s"], offsets, strict=True)]
    if "beta" in values:
        ones = np.ones(len(values["beta"]))
        each = (values.get("delta", 0 * ones), values["beta"], values.get("gamma", ones))
        return [ASEntmax(*map(float, numbers)) for numbers in zip(*each, strict=True)]
    for name in ("cosine scale", "temperature"):
        if name in values:
            return [Constant(float(value)) for value in values[name]]
    return []


def learned_scales(checkpoint: Any, *, config: Any = None) -> LearnedScales:
    """Read the learned parts of the scale of attention from the weights of a checkpoint.

    Only the header of each file and the tensors with these names are read: slope and offset of a
    scalable softmax (Mistral Large 4, TabICL), the numbers of ASEntmax and QASSMax (TabICL, TabPFN 3 and
    3.5, Nori), scales of cosines (Swin v2), sinks (gpt-oss and others), scales of channels (nGPT, TimesFM,
    audio of Gemma).

    Parameters
    ----------
    checkpoint : str or path
        A ``.safetensors`` file, the ``.safetensors.index.json`` of several, or their folder.
    config : mapping, str, path or transformers config, optional
        As for :func:`attnscale.audit.resolve`; default: the ``config.json`` beside the weights, if there
        is one. Only channel scales of nGPT need it, for ``head_dim`` and ``initializer_range``.

    Returns
    -------
    LearnedScales

    Raises
    ------
    ValueError
        If there is no such file, or it is not a safetensors file: the message names it.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> import numpy as np
    >>> import attnscale as at
    >>> name, logits = "model.layers.0.self_attn.sinks", np.array([0.5, -1.25], np.float32)
    >>> header = json.dumps({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "model.safetensors")
    ...     size = file.write_bytes(len(header).to_bytes(8, "little") + header + logits.tobytes())
    ...     at.audit.learned_scales(file)
    in the weights
      layer  quantity  heads  least  median  largest
          0  sink          2  -1.25  -0.375      0.5
      sink: logit of a key without a value
    """
    path = Path(checkpoint)
    stored = stored_tensors(path, _of_interest)
    folder = path if path.is_dir() else path.parent
    if config is None and (folder / "config.json").is_file():
        config = folder
    keys = {} if config is None else read_config(config)
    if isinstance(keys.get("text_config"), dict):
        keys = {**keys, **keys["text_config"]}
    entries = [*_tensors(stored, keys), *_bases(stored, keys)]
    delta = float(keys.get("attn_scale_delta", 1))
    said = "see beta; attn_scale_delta of the config, 1 by default"
    entries += [
        Learned(each.module, 0, "delta", np.full(len(each.values), delta), said)
        for each in entries
        if each.quantity == "gamma"
    ]
    places = _layers(each.module for each in entries)
    entries = [Learned(**{**vars(each), "layer": places[each.module]}) for each in entries]
    return LearnedScales(tuple(sorted(entries, key=lambda each: each.layer)), _unread(stored, places))


def _of_interest(name: str) -> bool:
    if any(each.match(name) for each in _SEARCHED) or _BASE.match(name) or name.endswith(_QUERY):
        return True
    return bool(_BY_TOKEN.search(name) or _is_suspicious(name))


def _is_suspicious(name: str) -> bool:
    return bool(_SUSPICIOUS.search(name)) and not _ELSEWHERE.search(name)


def _tensors(stored: Mapping[str, Stored], config: Mapping[str, Any]) -> list[Learned]:
    found = []
    for name, each in stored.items():
        for rule, searched in zip(RULES, _SEARCHED, strict=True):
            if (match := searched.match(name)) is not None and each.shape:
                tensor = each.read().astype(np.float64)
                try:
                    values = rule.values(tensor, config)
                except (ValueError, TypeError):
                    raise InputError(
                        f"{each.file}: {name} has the shape {each.shape}, not that of a head"
                    ) from None
                found.append(Learned(match["module"], 0, rule.quantity, values, rule.meaning))
                break
    return found


def _bases(stored: Mapping[str, Stored], config: Mapping[str, Any]) -> list[Learned]:
    """The base of each QASSMax, a small network of ln n: one number per head or per channel."""
    modules = dict.fromkeys(match["module"] for name in stored if (match := _BASE.match(name)))
    found = []
    for module in modules:
        names = [f"{module}.base_mlp.{part}" for part in ("0.weight", "0.bias", "2.weight", "2.bias")]
        gate = next((each for each in _GATES if f"{module}.{each}.0.weight" in stored), "")
        whole = stored.get(f"{module.rpartition('.')[0]}.{_PROJECTION}")  # beside a Nori without a gate
        is_nori = gate == "gate_mlp" or (not gate and whole is not None and len(whole.shape) == 4)
        if not set(names) <= set(stored) or not (gate or is_nori):
            continue
        if is_nori and config.get("qass_mode") == "log_only":
            continue  # older files have networks that this mode does not run
        channels = stored[f"{module}.{gate}.0.weight"].shape[-1] if gate or whole is None else whole.shape[2]
        out = f"{module}.query_mlp.2.weight"
        by_channel = is_nori or (out in stored and stored[out].shape[0] == channels)
        curve = partial(
            _nori_base if is_nori else _network,
            tuple(stored[name].read().astype(np.float64) for name in names),
            (-1, channels) if by_channel else (-1,),
        )
        meaning = _NORI_MEANING if is_nori else _MEANING
        found.append(Learned(module, 0, "base at n = 1024", curve(1024), meaning, curve))
    return found


#: Networks of the query beside a base.
_GATES = ("query_mlp", "gate_mlp")
_PROJECTION = "qkv_proj_weight"
_MEANING = "q is multiplied by it and by 1 + tanh(query_mlp(q)), which is between 0 and 2; n: keys"
_NORI_MEANING = (
    "q is multiplied by it, and in the mode full by 1 + tanh(gate_mlp(q)), which is between 0 and 2; n: keys"
)


def _network(
    weights: tuple[NDArray[np.float64], ...], shape: tuple[int, ...], n: float
) -> NDArray[np.float64]:
    """The base of TabICL and TabPFN: base_mlp(ln n)."""
    first, shift, second, offset = weights
    hidden = first[:, 0] * math.log(max(n, 1)) + shift
    gelu = 0.5 * hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    return np.asarray(second @ gelu + offset).reshape(shape)


def _nori_base(
    weights: tuple[NDArray[np.float64], ...], shape: tuple[int, ...], n: float
) -> NDArray[np.float64]:
    """The base of Nori: ln n (1 + tanh(base_mlp(ln n))), and 1 for a single key."""
    network = _network(weights, shape, n)
    return math.log(n) * (1 + np.tanh(network)) if n > 1 else np.ones_like(network)


def _layers(modules: Any) -> dict[str, int]:
    """The number of each module: that in its name, or its place if the name has several or none."""
    names = sorted(dict.fromkeys(modules), key=lambda name: [int(x) for x in re.findall(r"\d+", name)])
    kinds: dict[str, int] = {}
    found = {}
    for name in names:
        numbers, kind = re.findall(r"\d+", name), re.sub(r"\d+", "*", name)
        kinds[kind] = kinds.get(kind, -1) + 1
        found[name] = int(numbers[0]) if len(numbers) == 1 else kinds[kind]
    return found


def _unread(stored: Mapping[str, Stored], read: Mapping[str, Any]) -> tuple[str, ...]:
    """Tensors that could belong to the scale and have no rule, by their names with * for numbers."""
    found: dict[str, list[Sequence[int]]] = {}
    for name, each in stored.items():
        known = any(rule.match(name) for rule in _SEARCHED) or name.partition(".query_mlp.")[0] in read
        if not known and (_BY_TOKEN.search(name) or _is_suspicious(name)):
            why = "made into numbers of each token and head" if _BY_TOKEN.search(name) else "no rule is known"
            found.setdefault(f"{re.sub(r'[0-9]+', '*', name)}|{why}", []).append(each.shape)
    return tuple(
        f"{len(shapes)} x {name} of shape {tuple(shapes[0])}: {why}"
        for (name, _, why), shapes in ((each.partition("|"), shapes) for each, shapes in found.items())
    )
