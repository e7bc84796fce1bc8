# SPDX-License-Identifier: BSD-3-Clause
"""One call of attention by a model, and the statistics of its rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...laws import Law
from .._base.learned import Sink
from .._base.tensors import shows
from .._functional import attention_entropy, attention_statistics
from .readings import Product, with_causal

#: Options that depend on the place of a row among all rows.
_OF_PLACES = ("key_lengths", "document_ids", "distance_scale", "distance_bias")


class Place(NamedTuple):
    """Module and number of a call."""

    module: str  # name in the model's ``named_modules()``
    number: int  # call number of the module within one pass of the model, from 0

    def __str__(self) -> str:
        return f"{self.module}#{self.number}" if self.number else self.module


@dataclass(frozen=True, eq=False)
class SeenCall:
    """One call of attention, detached from autograd."""

    place: Place
    way: str  # how the model computed it: see LoggedCall
    kind: str  # "self" or "cross"
    key_of: tuple[int, ...]  # the key head of each head, which grouped queries share
    #: Queries, keys and options that give the rows of the model; for a softmax that it wrote out, its scores
    #: as a mask on products of 0.
    measured: Product
    #: Queries, keys and options of the model itself; None for a written-out softmax over scores that are not
    #: known to be one product.
    product: Product | None
    real: Tensor | None = None  # True for rows of a text, not of padding, (batch, n_queries); None: all
    #: The text of each key, (batch, n_keys), for laws that count positions in the key's own; None: one text.
    documents: Tensor | None = None
    is_cut: bool = False  # whether the first keys of the text are gone, as from the cache of a sliding window
    has_known_axes: bool = True  # whether batch and heads are told apart; otherwise heads are in the batch
    hides_by_sum: bool = False  # whether a finite number added to scores hides keys

    @property
    def rows_shape(self) -> tuple[int, int, int]:
        batch, heads, n_queries = self.measured.query.shape[:3]
        return batch, heads, n_queries

    @property
    def key_heads(self) -> int:
        return len({*self.key_of})

    @property
    def n_keys(self) -> int:
        return self.measured.key.shape[-2]

    @property
    def has_sink(self) -> bool:
        return isinstance(self.measured.options.get("normalizer"), Sink)

    def statistics(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Statistics of each row, (batch, heads, n_queries), as the model itself computed it."""
        asked = tuple(dict.fromkeys(names))
        query, key, options = self.measured
        with torch.no_grad():
            found = attention_statistics(query, key, statistics=asked, **options)
        return {name: getattr(found, name) for name in asked}

    def entropy_under(self, law: Law) -> Tensor:
        """Entropy of each row, (batch, heads, n_queries), with the law as a factor on the model's own scale.

        Raises
        ------
        NotImplementedError
            If the model's scale is unknown or a law itself, or the law's n depends on the places of queries
            among the keys and these are unknown.
        """
        query, key, known = self.known(f"law {law.spelling} multiplies")
        own = known["scale"]
        if not isinstance(own, (int, float)):
            raise NotImplementedError(
                f"{str(self.place) or 'the model'} has the law {own} as its scale, which law {law.spelling} "
                "cannot multiply"
            )
        with torch.no_grad():
            key, options = self._placed(law, key, {**known, "scale": law})
            return attention_entropy(query * (own * math.sqrt(query.shape[-1])), key, **options)

    def _placed(self, law: Law, key: Tensor, options: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Keys and options with which the law's n counts in the text of the query."""
        meaning, n_queries = law.meaning, self.rows_shape[2]
        by_place = meaning.is_position or meaning.is_distance
        if not (by_place or meaning.is_row_size):
            return key, options
        if self.is_cut:
            raise NotImplementedError(
                self._refusal(law, "the first keys of its text are gone from the cache")
            )
        if self.kind == "self":
            options = with_causal(options)
        mask = options.get("attn_mask")
        seen = None if mask is None else shows(mask)
        is_last = n_queries < self.n_keys and "causal" not in options
        if self.kind == "cross":
            if meaning.is_distance or (by_place and (n_queries == 1 or not self._begins_with_text())):
                raise NotImplementedError(self._refusal(law, "the places of its queries are not known"))
            return key, options if by_place else options | _lengths(seen)
        if is_last and seen is not None:  # room for later keys follows those that no row sees
            filled = int(_some_row(seen).flatten(0, -2).any(0).nonzero().max()) + 1
            key, seen = key[..., :filled, :], seen[..., :filled]
            options["attn_mask"] = options["attn_mask"][..., :filled]
        n_keys = key.shape[-2]
        if is_last and (n_queries == 1 or (seen is not None and not seen.triu(n_keys - n_queries + 1).any())):
            options["causal"] = "bottom_right"
        elif by_place and n_queries != n_keys and is_last:
            raise NotImplementedError(self._refusal(law, "its queries are not the last of its keys"))
        if self.documents is not None and not meaning.is_distance:
            options["document_ids"] = self.documents[:, :n_keys]
            if self._sees_other_texts(options, seen, n_keys):
                raise NotImplementedError(self._refusal(law, "its rows see keys of other texts"))
        return key, options

    def _refusal(self, law: Law, why: str) -> str:
        name, n_means = str(self.place) or "the model", law.meaning.name
        return f"law {law.spelling} counts n as {n_means}, which is not known in {name}: {why}"

    def _begins_with_text(self) -> bool:
        return self.real is None or bool(self.real[:, 0].all())

    def _sees_other_texts(self, options: Mapping[str, Any], seen: Tensor | None, n_keys: int) -> bool:
        documents, n_queries = options["document_ids"], self.rows_shape[2]
        other = documents[:, None, -n_queries:, None] != documents[:, None, None]
        if self.real is not None:
            other &= self.real[:, None, :, None]
        if "causal" in options:
            other = other.tril(n_keys - n_queries)
        return bool((other if seen is None else other & seen).any())

    def known(self, purpose: str) -> Product:
        """Query, key and options of the model, if the scores are known to be one product of them."""
        if self.product is None:
            raise NotImplementedError(
                f"{str(self.place) or 'the model'} writes its softmax out over scores that are more than one "
                f"product of queries and keys, so that what {purpose} is not known"
            )
        return self.product

    def some(self, rows: int | None) -> SeenCall:
        """The call with some real queries of the first text that has any, evenly spread, with the last one.

        None takes all queries of all texts. So does a call whose rows depend on their place: with a law as
        its scale, tables of the distance or several documents.
        """
        if rows is None or not self.has_rows_apart:
            return self
        text, places = self.text_rows()
        if rows < len(places):
            places = places[torch.arange(1, rows + 1, device=places.device) * len(places) // rows - 1]
        return self.at(text, places)

    def text_rows(self) -> tuple[int, Tensor]:
        """The first text that has real queries, and the places of these."""
        if self.real is None:
            return 0, torch.arange(self.rows_shape[2], device=self.measured.query.device)
        text = int(self.real.any(-1).int().argmax())
        return text, self.real[text].nonzero()[:, 0]

    def at(self, text: int, places: Tensor) -> SeenCall:
        """The call with the queries at these places of one text; they must stand alone."""
        measured, product = self.measured.of_rows(text, places), None
        if self.product is not None:  # usually the same as `measured`
            product = measured if self.product is self.measured else self.product.of_rows(text, places)
        return replace(
            self,
            measured=measured,
            product=product,
            real=None if self.real is None else self.real[text : text + 1, places],
            documents=None if self.documents is None else self.documents[text : text + 1],
        )

    @property
    def has_rows_apart(self) -> bool:
        """Whether some rows can be measured without the others, by their own mask."""
        options = (self.product or self.measured).options
        number = isinstance(options.get("scale", 1.0), (int, float))
        return number and not any(options.get(name) is not None for name in _OF_PLACES)


def _some_row(seen: Tensor) -> Tensor:
    """Keys that any head or row of each text sees, (batch, 1, n_keys)."""
    return seen[(None,) * (4 - seen.ndim)].flatten(1, 2).any(1, keepdim=True)


def _lengths(seen: Tensor | None) -> dict[str, Any]:
    """Option with the lengths of keys of another text, without the padding after them."""
    if seen is None:
        return {}
    places = torch.arange(1, seen.shape[-1] + 1, device=seen.device)
    return {"key_lengths": (_some_row(seen) * places).amax(-1)[:, 0]}
