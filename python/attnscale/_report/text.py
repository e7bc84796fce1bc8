# SPDX-License-Identifier: BSD-3-Clause
"""The rows of the heads along the text: entropy, strongest keys, and the weight of spans of the context."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.checks import refusal, shown
from ..calibration.fit import Length
from ..exact.forward import attention_entropy
from ..exact.spans import attention_spans
from ..exact.weights import attention_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: Number of strongest keys kept of each row.
TOP = 5
# Rows of all heads together, about 0.7 MB of a page; fewest tokens; weights in memory at once.
_MOST_ROWS, _FEWEST_TOKENS, _MOST_WEIGHTS = 1 << 15, 64, 1 << 26
_MOST_PARTS = 8  # tokens that may share letters


class Span(NamedTuple):
    """A named part of the context: the tokens from `start` up to but not including `stop`."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class TextRows:
    """Rows of the first tokens at the longest length of a report and the heads' own scale.

    Attributes
    ----------
    tokens : tuple of str
        The tokens of these rows.
    n_keys : int
        Number of keys, which may exceed that of `tokens`.
    entropy : ndarray, shape (n_heads, n_rows)
        In nats; NaN for heads that do not attend within the text.
    top_keys : ndarray of int64, shape (n_heads, n_rows, 5)
        The keys with the largest weights of each row, descending.
    top_weights : ndarray, shape (n_heads, n_rows, 5)
    spans : tuple of Span
    span_weights : ndarray, shape (n_heads, n_rows, n_spans)
    """

    tokens: tuple[str, ...]
    n_keys: int
    entropy: Array
    top_keys: NDArray[np.int64]
    top_weights: Array
    spans: tuple[Span, ...]
    span_weights: Array

    def to_dict(self) -> dict[str, Any]:
        """Content for the page: each head's numbers as base64 bytes; None for a head without a text."""
        has_text = [bool(np.isfinite(rows).any()) for rows in self.entropy]
        share = self.entropy / max(np.log(self.n_keys), 1e-6)
        index = np.dtype("<u2" if self.n_keys <= 1 << 16 else "<u4")

        def each(arrays: NDArray[Any]) -> list[str | None]:
            return [
                base64.b64encode(array.tobytes()).decode() if has else None
                for array, has in zip(arrays, has_text, strict=True)
            ]

        return {
            "tokens": list(self.tokens),
            "n_keys": self.n_keys,
            "entropy": each(_bytes_of(share)),
            "index_bytes": index.itemsize,
            "top_keys": each(self.top_keys.astype(index)),
            "top_weights": each(_bytes_of(self.top_weights)),
            "spans": [span._asdict() for span in self.spans],
            "span_weights": each(_bytes_of(self.span_weights)),
        }


def readable(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    """The text of each token; a token with part of a letter's bytes gives the letter and the part.

    `decode` gives the text of several tokens, with U+FFFD for incomplete letters.

    Examples
    --------
    >>> readable(lambda ids: bytes(ids).decode(errors="replace"), [72, 105, 228, 189, 160])
    ['H', 'i', '你 [1/3]', '你 [2/3]', '你 [3/3]']
    """
    found: list[str] = []
    while len(found) < len(ids):
        start = len(found)
        stops = range(start + 1, min(start + _MOST_PARTS, len(ids)) + 1)
        texts = {stop: decode(ids[start:stop]) for stop in stops[:1]}
        if "\ufffd" in texts[start + 1]:
            texts |= {stop: decode(ids[start:stop]) for stop in stops[1:]}
        stop = next((stop for stop, text in texts.items() if "\ufffd" not in text), start + 1)
        parts = stop - start
        found += [texts[stop] + f" [{part + 1}/{parts}]" * (parts > 1) for part in range(parts)]
    return found


def _bytes_of(shares: Array) -> NDArray[np.uint8]:
    """Numbers from 0 to 1 scaled to 0 ... 255; 0 for NaN."""
    return np.asarray(np.rint(255 * np.nan_to_num(shares).clip(0, 1)), np.uint8)


def read_tokens(tokens: Any) -> tuple[str, ...] | None:
    """The value of ``tokens=``, checked: a text in pieces."""
    if tokens is None:
        return None
    given = tuple(tokens) if isinstance(tokens, (Sequence, np.ndarray)) else (None,)
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in given):
        raise refusal(TypeError, "tokens", f"must be a sequence of str, got {shown(tokens)}")
    return tuple(map(str, given))


def read_spans(spans: Any, tokens: tuple[str, ...] | None) -> tuple[Span, ...]:
    """The value of ``spans=``, checked: named parts of the text that do not overlap."""
    if spans is None:
        return ()
    if tokens is None:
        raise refusal(
            ValueError, "spans", f"must come with tokens, of which they are parts, got {shown(spans)}"
        )
    if not isinstance(spans, Mapping):
        raise refusal(TypeError, "spans", f"must map names to (start, stop), got {shown(spans)}")
    found = []
    for name, given in spans.items():
        try:
            start, stop = (range(len(tokens) + 1).index(end) for end in given)
        except (TypeError, ValueError):
            start, stop = 0, 0
        if start >= stop:
            rule = f"must be (start, stop) with 0 <= start < stop <= {len(tokens)}"
            raise refusal(ValueError, "spans", f"{rule}, got {shown(given)} for {shown(name)}")
        found.append(Span(str(name), start, stop))
    ordered = sorted(found, key=lambda span: span.start)
    for one, other in pairwise(ordered):
        if other.start < one.stop:
            raise refusal(
                ValueError, "spans", f"must not overlap, got {shown(one.name)} and {shown(other.name)}"
            )
    return tuple(found)


def text_rows(parts: Sequence[Length], tokens: tuple[str, ...], spans: tuple[Span, ...]) -> TextRows:
    """The rows of the text for heads in several parts, each at its longest length.

    Only heads that attend within the text have them. The number of tokens keeps the page small.
    """
    n = len(tokens)
    reads = [part.query.shape[-2] == part.key.shape[-2] == n for part in parts]
    if not any(reads):
        seen = sorted({part.query.shape[-2] for part in parts})
        counts = " or ".join(map(str, seen))
        raise refusal(ValueError, "tokens", f"must be one for each of the {counts} rows, got {n}")
    heads = [len(part.query) for part in parts]
    rows = max(_MOST_ROWS // sum(heads), _FEWEST_TOKENS)
    rows = max(min(n, rows, _MOST_WEIGHTS // (max(heads) * n)), 1)
    found = [
        _of_part(part, rows, spans) if has else _nothing(len(part.query), rows, len(spans))
        for part, has in zip(parts, reads, strict=True)
    ]
    entropy, top_keys, top_weights, span_weights = (
        np.concatenate(arrays) for arrays in zip(*found, strict=True)
    )
    return TextRows(tokens[:rows], n, entropy, top_keys, top_weights, spans, span_weights)


def _nothing(heads: int, rows: int, spans: int) -> tuple[NDArray[Any], ...]:
    return (
        np.full((heads, rows), np.nan),
        np.zeros((heads, rows, TOP), np.int64),
        np.zeros((heads, rows, TOP)),
        np.zeros((heads, rows, spans)),
    )


def _of_part(part: Length, rows: int, spans: tuple[Span, ...]) -> tuple[NDArray[Any], ...]:
    first = _first_rows(part, rows)
    given = (first.query, first.key)
    entropy = attention_entropy(*given, **first.options).astype(np.float64)
    top_keys, top_weights = top_keys_of(first, TOP)
    of_key = np.full(first.key.shape[-2], -1)
    for number, span in enumerate(spans):
        of_key[span.start : span.stop] = number
    weights = attention_spans(*given, ids=of_key, **first.options) if spans else np.empty((*entropy.shape, 0))
    return entropy, top_keys, top_weights, np.asarray(weights, np.float64)


def _first_rows(part: Length, rows: int) -> Length:
    """The first rows, with their keys among all rows: rows are aligned at both ends."""
    options = dict(part.options)
    if options["causal"] is not None:
        options["causal"] = "top_left"
    mask = options.get("attn_mask")
    if mask is not None and mask.shape[-2] > 1:
        options["attn_mask"] = mask[..., :rows, :]
    return Length(part.query[..., :rows, :], part.key, options)


def top_keys_of(rows: Length, k: int) -> tuple[NDArray[np.int64], Array]:
    """The `k` keys with the largest weights of each row, descending, and the weights: (heads, n_rows, k).

    Missing keys have the weight 0.
    """
    weights = attention_weights(rows.query, rows.key, **rows.options)
    weights = np.pad(weights, [*[(0, 0)] * (weights.ndim - 1), (0, max(k - weights.shape[-1], 0))])
    largest = np.argpartition(-weights, k - 1, axis=-1)[..., :k]
    values = np.take_along_axis(weights, largest, -1)
    order = np.argsort(-values, axis=-1, kind="stable")
    keys = np.take_along_axis(largest, order, -1)
    return keys.astype(np.int64), np.take_along_axis(values, order, -1).astype(np.float64)
