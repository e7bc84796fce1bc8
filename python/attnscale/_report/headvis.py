# SPDX-License-Identifier: BSD-3-Clause
"""Data of HeadVis, a page that shows heads by what they attend to in many texts."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from .._base.checks import boolean, refusal, shown
from .._base.hints import hinted
from .._call.call import Call
from .._call.options import AttentionEntropyOptions, takes
from ..calibration.fit import Length
from ..exact.forward import attention_entropy
from ..exact.heads import head_kinds, weight_by_distance
from ..exact.selection import top_keys
from .text import read_tokens

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# Shown: keys of a row, the least weight, buckets of texts, texts of a bucket, tokens of a table.
_TOP, _LEAST, _INTERVALS, _OF_INTERVAL, _OF_TABLE = 8, 0.005, 10, 20, 10
_METRICS = {
    "self_attention_score": "Mean weight of a token on itself",
    "previous_token_score": "Mean weight of a token on the one before it",
    "induction_score": "Mean weight on the tokens that followed earlier occurrences of a row's own token",
    "pattern_entropy": "Mean entropy of a row's weights, in nats",
    "qk_distance": "Mean distance from a query to its keys, in tokens, by weight",
}
_CONFIG = {
    "n_intervals": _INTERVALS,
    "metrics": list(_METRICS),
    "metric_descriptions": _METRICS,
    "head_data_pattern": "L{layer}H{head}.json",
    "has_umap": False,
    "umap_heads": [],
    "custom_plots": [{"key": "qk_distance_histogram", "label": "Weight by the distance from query to key"}],
    "custom_tables": [
        {"key": "top_query_tokens", "label": "Queries by their share of the shown weights"},
        {"key": "top_key_tokens", "label": "Keys by their share of the shown weights"},
    ],
    "statistics_display": {
        "mean_max_activation": {"label": "Mean of the texts' largest", "format": "default"}
    },
}


@hinted
@takes(AttentionEntropyOptions)
def export_headvis(
    directory: str | Path,
    query: Iterable[ArrayLike],
    key: Iterable[ArrayLike],
    tokens: Iterable[Sequence[str]],
    *,
    model_name: str = "model",
    overwrite: bool = False,
    **options: Unpack[AttentionEntropyOptions],
) -> Path:
    """Write the files that HeadVis shows: the strongest keys of each row in many texts, and numbers of heads.

    Parameters
    ----------
    directory : str or Path
        The folder ``data`` beside the page of HeadVis; it is created.
    query, key : iterable of array_like
        For each text an array (layers, heads, n, head_dim), as for :func:`attention`; n may differ.
    tokens : iterable of sequence of str
        For each text its n tokens.
    model_name : str, default "model"
        Name of the model on the page.
    overwrite : bool, default False
        Whether a folder written by an earlier call may be replaced, with all its content.
    {names}
        As for :func:`attention`, for each layer of each text.

    Returns
    -------
    Path
        The folder, written as a whole or not at all.

    Raises
    ------
    FileExistsError
        If the folder has files, unless ``overwrite=True`` and they are HeadVis's.
    OSError
        If the folder cannot be written.
    TypeError, ValueError
        If there is no text, texts differ in their layers, a text does not have one token for each query and
        key, or scores are not finite.

    Notes
    -----
    Of each row the eight strongest keys with a weight of at least 0.005 are kept. Texts are ordered by their
    activation, which is the largest weight off the diagonal, the first row and the first column, and divided
    into ten equal buckets; of a bucket with more than twenty, twenty at even steps are written. Tokens of
    equal spelling are one token. Scores of a head are means over the rows of all texts: a hidden key counts
    as 0, and so does the induction of a new token. No matrix of weights is stored.

    Examples
    --------
    >>> import attnscale as at, json, pathlib, tempfile
    >>> data = at.datasets.minilm_qk()
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "data"
    >>> texts = [slice(0, 64), slice(64, 128)]
    >>> q, k = ([x[None, :4, text] for text in texts] for x in (data.query, data.key))
    >>> written = at.export_headvis(folder, q, k, [data.tokens[text] for text in texts])
    >>> json.loads((written / "config.json").read_text())["heads"]
    [[0, 0], [0, 1], [0, 2], [0, 3]]
    """
    q: list[Any] = list(query)
    k: list[Any] = list(key)
    sizes = [len(x) for x in (*q, *k)]
    if len(q) != len(k) or len({*sizes}) > 1:
        seen = f"{len(q)} and {len(k)} texts of {shown(sorted({*sizes}))} layers"
        raise refusal(ValueError, ("query", "key"), f"must have the same layers in each text, got {seen}")
    layers = [
        Layer(number, [Length(x[number], y[number], dict(options)) for x, y in zip(q, k, strict=True)])
        for number in range(sizes[0] if sizes else 0)
    ]
    return write_headvis(directory, layers, tokens, model_name, overwrite=overwrite)


class Layer(NamedTuple):
    """The heads of a layer in each text."""

    number: int
    texts: Sequence[Length]


class _Head(NamedTuple):
    """A head in one text."""

    rows: NDArray[np.float64]  # (metrics, n)
    by_distance: NDArray[np.float64]  # sums of weights
    key: NDArray[np.int64]  # (n, 8): the strongest keys
    weight: NDArray[np.float64]  # their weights

    def is_shown(self) -> NDArray[np.bool_]:
        """Whether the page shows each weight: those outside of the first row and the first column."""
        row = np.arange(len(self.key))[:, None]
        return (row > 0) & (self.key > 0)

    def activation(self) -> float:
        """The largest shown weight off the diagonal."""
        away = self.key != np.arange(len(self.key))[:, None]
        return float(self.weight.max(initial=0, where=self.is_shown() & away))


def write_headvis(
    directory: str | Path, layers: Sequence[Layer], tokens: Iterable[Any], model_name: str, *, overwrite: bool
) -> Path:
    """Write the files of the layers' heads; `tokens` are the tokens of each text."""
    target = _free(Path(directory), overwrite=boolean("overwrite", overwrite))
    words = [read_tokens(each) or () for each in tokens]
    texts = {len(layer.texts) for layer in layers}
    if texts != {len(words)}:
        seen = f"those of {len(words)} for {shown(sorted(texts))}"
        raise refusal(ValueError, "tokens", f"must be one sequence for each of one or more texts, got {seen}")
    beside = target.with_name(f"{target.name}.{secrets.token_hex(4)}.tmp")
    old = beside.with_suffix(".old")
    try:
        (beside / "heads").mkdir(parents=True)
        (beside / "attributions").mkdir()
        _write_files(beside, layers, words, model_name)
        if target.exists():
            target.rename(old)
        beside.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        for each in (beside, old):
            shutil.rmtree(each, ignore_errors=True)
    return target


def _write_files(
    folder: Path, layers: Sequence[Layer], words: Sequence[Sequence[str]], model_name: str
) -> None:
    """Measure layer by layer, and write the results."""
    names, numbered = np.unique([word for text in words for word in text], return_inverse=True)
    ids = np.split(numbered, np.cumsum([len(text) for text in words])[:-1])
    scatter: list[dict[str, Any]] = []
    for layer in layers:
        found = [_measured(*each) for each in zip(layer.texts, ids, strict=True)]
        for head, of_texts in enumerate(zip(*found, strict=True)):
            place = {"layer": layer.number, "head": head}
            metrics = _means(np.concatenate([each.rows for each in of_texts], axis=-1))
            scatter.append(place | dict(zip(_METRICS, metrics, strict=True)))
            content = _content(of_texts, words, ids, names.tolist())
            _write(folder / "heads" / f"L{layer.number}H{head}.json", content)
    heads = [(each["layer"], each["head"]) for each in scatter]
    n_layers, n_heads = (1 + max(each) for each in zip(*heads, strict=True))
    about = {"model_name": model_name, "heads": heads, "n_layers": n_layers, "n_heads": n_heads}
    _write(folder / "config.json", about | _CONFIG)
    _write(folder / "scatter_data.json", scatter)
    for name in ("server_config.json", "attributions/manifest.json"):
        _write(folder / name, {})


def _free(target: Path, *, overwrite: bool) -> Path:
    """The folder to write, checked."""
    there = {each.name for each in target.iterdir()} if target.is_dir() else set()
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{target} is a file, not a folder")
    if there and not {"config.json", "scatter_data.json", "heads"} <= there:
        raise FileExistsError(f"{target} has files that are not of HeadVis; name a folder of its own")
    if there and not overwrite:
        raise FileExistsError(f"{target} is there already; overwrite=True replaces it")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: there is no folder {target.parent}")
    return target


def _measured(rows: Length, ids: NDArray[np.int64]) -> list[_Head]:
    """The heads of a layer in one text with these token numbers."""
    n, given = len(ids), (rows.query, rows.key)
    call = Call(*given, None, rows.options).read()
    shape = (*call.row_shape, call.inputs.key.shape[-2])
    if len(shape) != 3 or shape[1:] != (n, n):
        seen = f"{n} for queries and keys (heads, n_queries, n_keys) = {shape}"
        raise refusal(ValueError, "tokens", f"must be one for each query and each key of a text, got {seen}")
    index, weight = (np.asarray(x) for x in top_keys(*given, _TOP, **rows.options))
    kinds = head_kinds(*given, ids, **rows.options)
    scores = [np.nan_to_num(x) for x in (kinds.itself, kinds.previous, np.asarray(kinds.induction))]
    scores[1][:, 0] = np.nan  # no token precedes the first
    entropy = np.asarray(attention_entropy(*given, **rows.options))
    if not np.isfinite(entropy).all():
        seen = f"{np.isnan(entropy).sum()} rows of NaN"
        raise refusal(ValueError, ("query", "key"), f"must have finite scores, got {seen}")
    of_rows = np.stack([*scores, entropy, np.asarray(kinds.distance)], axis=1).astype(np.float64)
    return [
        _Head(*each)
        for each in zip(of_rows, weight_by_distance(call), index, weight.astype(np.float64), strict=True)
    ]


def _means(rows: NDArray[np.float64]) -> list[float]:
    """Means of rows without NaN, rounded; 0 for empty ones."""
    there = ~np.isnan(rows)
    found: list[float] = (rows.sum(-1, where=there) / np.maximum(there.sum(-1), 1)).round(6).tolist()
    return found


def _content(
    heads: Sequence[_Head], words: Sequence[Sequence[str]], ids: Sequence[NDArray[np.int64]], names: list[str]
) -> dict[str, Any]:
    """Content of one head's JSON file; `heads` is the head in each text."""
    activations = np.array([each.activation() for each in heads])
    of_query, of_key = np.zeros((2, len(names)))
    by_distance = np.zeros(max(len(each.by_distance) for each in heads))
    for each, numbers in zip(heads, ids, strict=True):
        by_distance[: len(each.by_distance)] += each.by_distance
        row, rank = np.nonzero(each.is_shown() & (each.weight >= _LEAST))
        np.add.at(of_query, numbers[row], each.weight[row, rank])
        np.add.at(of_key, numbers[each.key[row, rank]], each.weight[row, rank])
    counts, edges = np.histogram(activations, bins=20, range=(0, max(1, activations.max())))
    return {
        "sequences": [
            _sequence(text, interval, heads[text], words[text]) for text, interval in _chosen(activations)
        ],
        "qk_distance_histogram": {
            "bin_edges": [0, *(2**i for i in range(len(by_distance)))],
            "bin_values": _shares(by_distance),
        },
        "top_query_tokens": _strongest(of_query, names),
        "top_key_tokens": _strongest(of_key, names),
        "histogram": {"bin_edges": edges.round(4).tolist(), "bin_values": counts.tolist()},
        "statistics": {"mean_max_activation": round(float(activations.mean()), 4)},
    }


def _chosen(activations: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Texts with their intervals, by ascending activation."""
    order, n = np.argsort(activations, kind="stable"), len(activations)
    interval = _INTERVALS - (n - 1 - np.arange(n)) * _INTERVALS // n
    found = []
    for number in range(1, _INTERVALS + 1):
        texts = order[interval == number]
        if len(texts) > _OF_INTERVAL:
            texts = texts[np.linspace(0, len(texts) - 1, _OF_INTERVAL).round().astype(int)]
        found += [(int(text), number) for text in texts]
    return found


def _sequence(text: int, interval: int, head: _Head, tokens: Sequence[str]) -> dict[str, Any]:
    n = len(tokens)
    row, rank = np.nonzero((head.key >= 0) & (head.weight >= _LEAST))
    place = row * n + head.key[row, rank]
    order = np.argsort(place)
    return {
        "sequence_id": text,
        "interval": interval,
        "tokens": list(tokens),
        "attention_indices": place[order].tolist(),
        "attention_values": head.weight[row, rank][order].round(4).tolist(),
        "seq_len": n,
        "max_activation": round(head.activation(), 4),
    }


def _shares(sums: NDArray[np.float64]) -> list[float]:
    found: list[float] = (sums / (sums.sum() or 1)).round(4).tolist()
    return found


def _strongest(sums: NDArray[np.float64], names: list[str]) -> list[dict[str, Any]]:
    """The tokens with the most weight, and their shares."""
    shares = _shares(sums)
    order = np.argsort(-sums, kind="stable")[:_OF_TABLE]
    return [{"token": names[i], "weight": shares[i]} for i in order if shares[i]]


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, allow_nan=False, separators=(",", ":")), encoding="utf-8")
