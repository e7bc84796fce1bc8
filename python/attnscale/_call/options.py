# SPDX-License-Identifier: BSD-3-Clause
"""The options of a call of attention: one record, from which signatures and docstrings are made.

A function takes its options as ``**options: Unpack[...]`` of a type such as those of `types.py`, and
:func:`takes` shows them in its signature and in its docstring.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from .._base.hints import refuse_unknown

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Option(NamedTuple):
    """One option: its name, its value where it is not given, and what is said of it."""

    name: str
    default: Any
    kind: str  # what it takes, as docstrings have it behind the name
    text: str  # what it means
    #: The axes behind those of the batch that an array given for it broadcasts to; None: it is no array.
    axes: tuple[str, ...] | None = None


#: In the order of signatures.
OPTIONS = (
    Option(
        "scale",
        None,
        "float, array_like, Law or str, optional",
        """The whole multiplier of query . key. None: 1/sqrt(head_dim). An array must broadcast to
        (..., heads, n_queries): one scale a head is an array of shape (heads, 1). A law of
        :mod:`attnscale.laws`, or its name, is evaluated at the n of each query (see
        :data:`attnscale.laws.MEANINGS_OF_N`). Zero and negative scales are legal.""",
        ("heads", "queries"),
    ),
    Option(
        "is_causal",
        False,
        "bool, default False",
        """Query i sees the keys 0 ... i; the same as ``causal="top_left"`` (as in PyTorch).""",
    ),
    Option(
        "causal",
        None,
        '{"top_left", "bottom_right"} or int, optional',
        """Query i sees the keys up to i + offset: offset = 0 for "top_left", n_keys (or the key length)
        - n_queries for "bottom_right" (as in flash-attention; decoding), else the integer: queries that
        begin at position p of the keys have ``causal=p``.""",
    ),
    Option(
        "attn_mask",
        None,
        "array_like of bool or float, optional",
        """Broadcasts to (..., heads, n_queries, n_keys). bool: True = the key takes part. float: added
        to the score; -inf hides the key, as does every number at or below half of the smallest finite one of
        the mask's type, by which other libraries hide keys.""",
        ("heads", "queries", "keys"),
    ),
    Option(
        "window",
        None,
        "(int or None, int or None), optional",
        """(left, right): query i sees the keys from i + offset - left to i + offset + right, with the
        offset of ``causal``. None: that side is open.""",
    ),
    Option(
        "key_lengths",
        None,
        "int or array_like of int, optional",
        """Broadcasts to the batch shape query.shape[:-3]. Keys at and after this index are hidden.""",
        (),
    ),
    Option(
        "document_ids",
        None,
        "array_like of int, optional",
        """Broadcasts to (..., n_keys): the document that each key is of, each one run of equal numbers. A
        query is of the document of the key that it is aligned with (``causal``) and sees no other; masks
        and the n of a law count within it, as if each document had its own call.""",
        ("keys",),
    ),
    Option(
        "distance_scale",
        None,
        "array_like or callable, optional",
        """Table over the distance t between query and key, the query counted from where ``causal`` aligns
        it: the score is softcap(scale * distance_scale[t] * (query . key)) + distance_bias[t]. Entry t
        of the last axis, t = 0, 1, ..., is for both sides; other axes broadcast to (..., heads). Or a
        function of the signed distances, query less key, shape (..., n), that returns as many numbers
        on its last axis. O(n) memory.""",
    ),
    Option(
        "distance_bias",
        None,
        "array_like or callable, optional",
        """As distance_scale: ALiBi is ``distance_bias=-slopes[:, None] * np.arange(n_keys)``.""",
    ),
    Option(
        "enable_gqa",
        False,
        "bool, default False",
        """Query head h uses key head h // (heads / kv_heads), as in PyTorch.""",
    ),
    Option(
        "softcap",
        None,
        "float, optional",
        """c from 1e-37 to 1e37: the score is c * tanh(score / c). After the scale, before bias and mask.""",
    ),
    Option(
        "normalizer",
        "softmax",
        'str or Normalizer, default "softmax"',
        """How scores become weights: one of :mod:`attnscale.normalizers`, or its name.""",
    ),
    Option(
        "qk_norm",
        None,
        '{"l2", "rms"}, optional',
        """Queries and keys are brought to length 1, or sqrt(head_dim), before the product: query . key is
        their cosine, or head_dim times that. The scale applies to it as ever. Rows of zeros stay zero.""",
    ),
    Option(
        "layout",
        "bhsd",
        '{"bhsd", "bshd"} or str',
        """"bshd": query, key, value and output are (..., n, heads, dim). Statistics, masks and scale
        are as above. Or the names of the axes in their order, as einops writes them: "b n h d",
        "... h t c".""",
    ),
    Option(
        "dims",
        None,
        "mapping, optional",
        """For arrays whose axes have names (a DataArray of xarray, in any order; a pattern of ``layout``)
        that are none of the usual ones: the names of "heads", "sequence" (one, or those of queries and keys)
        and "channels". All other axes are batch axes, and go together by their name. Results of a DataArray
        are one, with the labels of the query (and of the keys, where there are keys); scales and masks may
        be one too.""",
    ),
    Option(
        "out",
        None,
        "ndarray, optional",
        """Where the output goes: of its shape and type, apart from the inputs.""",
    ),
    Option(
        "num_threads",
        None,
        "int, optional",
        """None: see :func:`attnscale.set_num_threads`. The result does not depend on it.""",
    ),
    Option(
        "backend",
        None,
        '{"auto", "core", "torch", "triton"}, optional',
        """What computes attention, of tensors: see :func:`attnscale.torch.attention`.""",
    ),
)

#: The options of a call that is given none.
DEFAULTS: Mapping[str, Any] = {option.name: option.default for option in OPTIONS}
#: The axes of options that may be arrays.
AXES = {option.name: option.axes for option in OPTIONS if option.axes is not None}


def takes(options: type) -> Callable[[_Function], _Function]:
    """A function whose ``**options`` are of this TypedDict: its signature and docstring show each of them.

    In the docstring ``{options}`` stands for the paragraph of each option, and ``{names}`` for all names.
    """
    kinds = options.__annotations__
    own = [option for option in OPTIONS if option.name in kinds]

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        shown = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        shown += [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option.default,
                annotation=getattr(kinds[option.name], "__forward_arg__", kinds[option.name]),
            )
            for option in own
        ]
        cast(Any, function).__signature__ = signature.replace(parameters=shown)
        function.__doc__ = _filled(function.__doc__, own)
        return function

    return decorate


def _filled(text: str | None, options: list[Option]) -> str | None:
    """A docstring with its options in the place of ``{options}`` and ``{names}``."""
    if text is None:  # Python runs without docstrings
        return None
    paragraphs = (f"    {option.name} : {option.kind}\n        {option.text}" for option in options)
    names = ", ".join(option.name for option in options)
    return text.replace("    {options}", "\n".join(paragraphs)).replace("{names}", names)


def check_known(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that a function which :func:`takes` some does not have, and say what may be meant."""
    refuse_unknown(function.__name__, options, cast(Any, function).__signature__.parameters)
