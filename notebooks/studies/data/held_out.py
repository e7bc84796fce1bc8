# SPDX-License-Identifier: BSD-3-Clause
"""Held-out texts of a corpus: each within one file, without passages that occur elsewhere."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .corpus import FILE, Corpus, library_source, package_of


class HeldOut(NamedTuple):
    """Texts that are never used in training.

    Attributes
    ----------
    tokens : ndarray of int64, shape (texts, n)
    files : ndarray of int64, shape (texts,)
        Ids of their files: places in the list of held-out names of :func:`corpus_facts`.
    """

    tokens: NDArray[np.int64]
    files: NDArray[np.int64]


def corpus_streams(vocabulary: int, most_bytes: int | None, shared: int) -> dict[str, NDArray[Any]]:
    """Tokens of the library's source as arrays for a store, with marks of repeated tokens.

    Parameters
    ----------
    vocabulary, most_bytes
        See :func:`library_source`.
    shared : int
        Length of a run of tokens that counts as repeated if it occurs twice.

    Returns
    -------
    dict
        "train" and "held_out", tokens; "repeated", a bool for each held-out token; "facts", text.
    """
    return streams_of(library_source(vocabulary, most_bytes), shared)


def streams_of(corpus: Corpus, shared: int) -> dict[str, NDArray[Any]]:
    """Tokens of a corpus as arrays for a store, with marks of repeated tokens."""
    repeated = repeated_tokens(corpus.train, corpus.held_out, shared)
    facts = {"source": {**corpus.facts, "repeated": int(repeated.sum())}, "python": platform.python_version()}
    return {
        "train": corpus.train,
        "held_out": corpus.held_out,
        "repeated": repeated,
        "facts": np.array(json.dumps(facts)),
    }


def corpus_facts(streams: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Sizes, hashes and names of the files of both parts, and the number of repeated tokens."""
    found: dict[str, Any] = json.loads(str(streams["facts"]))
    return found


def repeated_tokens(train: NDArray[np.int64], held_out: NDArray[np.int64], run: int) -> NDArray[np.bool_]:
    """Mark held-out tokens in a run of `run` tokens that also occurs in training or in an earlier file.

    Runs are compared by 64-bit hashes: about one in 10^13 is confused with another.

    Examples
    --------
    >>> train = np.array([5, 6, 7, 8, 0])
    >>> repeated_tokens(train, np.array([9, 6, 7, 8, 9, 5, 0, 9, 5, 0]), 3).astype(int)
    array([0, 1, 1, 1, 0, 0, 0, 1, 1, 1])
    """
    found = np.zeros(len(held_out), bool)
    if len(held_out) < run:
        return found
    kinds = 1 + max(int(held_out.max()), int(train.max(initial=0)))
    table = np.random.default_rng(0).integers(2**64, size=kinds, dtype=np.uint64)
    ours, others = _hashes(table[held_out], run), _hashes(table[train], run)
    _, first, which = np.unique(ours, return_index=True, return_inverse=True)
    file = np.cumsum(held_out == FILE)[: len(ours)]
    hits = np.flatnonzero(np.isin(ours, others) | (file[first[which]] < file))
    for i in range(run):
        found[hits + i] = True
    return found


def _hashes(tokens: NDArray[np.uint64], run: int) -> NDArray[np.uint64]:
    """Hash of each run of tokens, by the start of the run."""
    count = max(0, len(tokens) - run + 1)
    total = np.zeros(count, np.uint64)
    for i in range(run):
        total = total * np.uint64(0x9E3779B97F4A7C15) + tokens[i : i + count]  # modulo 2^64
    return total


def held_out_texts(streams: Mapping[str, NDArray[Any]], n: int, count: int) -> HeldOut:
    """Texts of n tokens without overlap, evenly spread over the held-out files.

    A text is a part of one file, without repeated tokens.

    Raises
    ------
    ValueError
        There are fewer texts than `count`.
    """
    starts, files = _fresh(streams, n)
    if len(starts) < count:
        raise ValueError(f"windows must be at most {len(starts)} of {n} tokens here, got {count}")
    chosen = np.arange(count) * len(starts) // count
    return _cut(streams, n, starts[chosen], files[chosen])


def texts_by_package(
    streams: Mapping[str, NDArray[Any]], n: int, packages: Sequence[str], count: int
) -> tuple[HeldOut, NDArray[np.int64]]:
    """`count` texts of each package, as in :func:`held_out_texts`, and the places of their packages.

    Raises
    ------
    ValueError
        A package has fewer texts than `count`.
    """
    starts, files = _fresh(streams, n)
    names = corpus_facts(streams)["source"]["held_out"]["names"]
    of_file = np.array([packages.index(package_of(each)) for each in names])[files]
    own = [np.flatnonzero(of_file == i) for i in range(len(packages))]
    for package, texts in zip(packages, own, strict=True):
        if len(texts) < count:
            raise ValueError(
                f"windows must be at most {len(texts)} of {n} tokens for {package!r}, got {count}"
            )
    chosen = np.concatenate([texts[np.arange(count) * len(texts) // count] for texts in own])
    return _cut(streams, n, starts[chosen], files[chosen]), of_file[chosen]


def other_texts(streams: Mapping[str, NDArray[Any]], n: int, count: int, others: int) -> HeldOut:
    """Further texts, evenly spread over those that :func:`held_out_texts` does not take for `count`.

    Raises
    ------
    ValueError
        There are fewer texts left than `others`.
    """
    starts, files = _fresh(streams, n)
    left = np.delete(np.arange(len(starts)), np.arange(count) * len(starts) // count)
    if len(left) < others:
        raise ValueError(
            f"calibration_windows must be at most {len(left)} of {n} tokens beside {count} windows here, "
            f"got {others}"
        )
    chosen = left[np.arange(others) * len(left) // others]
    return _cut(streams, n, starts[chosen], files[chosen])


def one_text_a_file(streams: Mapping[str, NDArray[Any]], n: int, count: int) -> HeldOut:
    """The middle text of n tokens of each of `count` held-out files, which are evenly spread.

    A text is a part of one file, without repeated tokens, as in :func:`held_out_texts`.

    Raises
    ------
    ValueError
        There are fewer files with such a text than `count`.
    """
    starts, files = _fresh(streams, n)
    _, first, texts = np.unique(files, return_index=True, return_counts=True)
    if len(first) < count:
        raise ValueError(f"files must be at most {len(first)} with {n} fresh tokens here, got {count}")
    chosen = (first + texts // 2)[np.arange(count) * len(first) // count]
    return _cut(streams, n, starts[chosen], files[chosen])


def _fresh(streams: Mapping[str, NDArray[Any]], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts of texts of n tokens within one file and without repeats, and the ids of their files."""
    tokens, repeated = streams["held_out"], streams["repeated"]
    edges = np.flatnonzero((tokens == FILE) | repeated)
    ends = np.append(edges, len(tokens))
    begins = np.append(0, edges + 1)
    starts = np.concatenate([np.arange(a, b - n + 1, n) for a, b in zip(begins, ends, strict=True)])
    starts = starts.astype(np.int64)
    return starts, np.cumsum(tokens == FILE)[starts]


def _cut(
    streams: Mapping[str, NDArray[Any]], n: int, starts: NDArray[np.int64], files: NDArray[np.int64]
) -> HeldOut:
    return HeldOut(streams["held_out"][starts[:, None] + np.arange(n)], files)
