# SPDX-License-Identifier: BSD-3-Clause
"""The options of an attention call: one record, from which signatures and docstrings are made.

A function takes its options as ``**options: Unpack[...]``, and :func:`takes` shows them in its signature and
docstring. The types of such options are at the end, with the names of the functions that take them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from textwrap import dedent
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, cast

from .._base.hints import refuse_unknown

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ..normalizers import Normalizer
    from .types import Causal, Dims, DistanceTable, KeyLengths, Layout, QKNorm, Scale, Window

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Option(NamedTuple):
    """One option: its name, default and description."""

    name: str
    default: Any
    kind: str  # its type, as docstrings show it behind the name
    text: str  # its meaning
    #: The axes after the batch to which an array broadcasts; None if the option is not an array.
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
        - n_queries for "bottom_right" (as in flash-attention; decoding), else the integer: for queries that
        begin at position p of the keys, ``causal=p``.""",
    ),
    Option(
        "attn_mask",
        None,
        "array_like of bool or float, optional",
        """Broadcasts to (..., heads, n_queries, n_keys). bool: True = the key takes part. float: added
        to the score; -inf hides the key, as does any number at or below half of the smallest finite one of
        the mask's type (a convention of other libraries).""",
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
        """Broadcasts to (..., n_keys): the document of each key, each a run of equal numbers. A query belongs
        to the document of its aligned key (``causal``) and sees no other; masks and the n of a law count
        within the document, as if it had its own call.""",
        ("keys",),
    ),
    Option(
        "distance_scale",
        None,
        "array_like or callable, optional",
        """Table over the distance t between query and key, the query placed by ``causal``: the score is
        softcap(scale * distance_scale[t] * (query . key)) + distance_bias[t]. Entry t of the last axis,
        t = 0, 1, ..., serves both sides; other axes broadcast to (..., heads). Or a function of the signed
        distances, query minus key, shape (..., n), that returns as many numbers on its last axis. O(n)
        memory.""",
    ),
    Option(
        "distance_bias",
        None,
        "array_like or callable, optional",
        """Like distance_scale; ALiBi is ``distance_bias=-slopes[:, None] * np.arange(n_keys)``.""",
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
        """Map from scores to weights: one of :mod:`attnscale.normalizers`, or its name.""",
    ),
    Option(
        "qk_norm",
        None,
        '{"l2", "rms"}, optional',
        """Scale queries and keys to length 1 ("l2") or sqrt(head_dim) ("rms") before the product: query . key
        is their cosine, or head_dim times that. ``scale`` still applies. Rows of zeros stay zero.""",
    ),
    Option(
        "layout",
        "bhsd",
        '{"bhsd", "bshd"} or str',
        """"bshd": query, key, value and output are (..., n, heads, dim); statistics, masks and scale are as
        above. Or the names of the axes in order, as in einops: "b n h d", "... h t c".""",
    ),
    Option(
        "dims",
        None,
        "mapping, optional",
        """For named axes (a DataArray of xarray, in any order; a pattern of ``layout``) with unusual names:
        the names of "heads", "sequence" (one, or those of queries and keys) and "channels". All others are
        batch axes, matched by name. Results of a DataArray are DataArrays, with the labels of the query (and
        of the keys, if they have keys); scales and masks may be DataArrays too.""",
    ),
    Option(
        "out",
        None,
        "ndarray, optional",
        """Array for the output: of its shape and type, without overlap with the inputs.""",
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
        """Implementation for tensors: see :func:`attnscale.torch.attention`.""",
    ),
)

#: The options and their defaults.
DEFAULTS: Mapping[str, Any] = {option.name: option.default for option in OPTIONS}
#: The axes of options that may be arrays.
AXES = {option.name: option.axes for option in OPTIONS if option.axes is not None}


def takes(options: type) -> Callable[[_Function], _Function]:
    """A decorator that shows the options of this TypedDict in a function's signature and docstring.

    In the docstring ``{options}`` stands for the paragraphs of all options, and ``{names}`` for their names.
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
    """A docstring with ``{options}`` and ``{names}`` filled in."""
    if text is None:  # Python was started without docstrings
        return None
    paragraphs = (f"    {option.name} : {option.kind}\n        {option.text}" for option in options)
    names = ", ".join(option.name for option in options)
    # The compiler of Python 3.13 takes the indentation out of docstrings, those before leave it.
    text = inspect.cleandoc(text).replace("{names}", names)
    return text.replace("{options}", dedent("\n".join(paragraphs)))


def check_known(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that a function decorated with :func:`takes` lacks, and suggest a near name."""
    refuse_unknown(function.__name__, options, cast(Any, function).__signature__.parameters)


class LayoutOptions(TypedDict, total=False):
    """Heads, axes and threads: options of every function of query, key and value."""

    enable_gqa: bool
    layout: Layout
    num_threads: int | None


class VariantOptions(LayoutOptions, total=False):
    """Options of the variants of attention."""

    is_causal: bool
    causal: Causal | None


class VisibilityOptions(VariantOptions, total=False):
    """Masks and layout: options of every exact function."""

    attn_mask: ArrayLike | None
    window: Window | None
    key_lengths: KeyLengths | None
    document_ids: ArrayLike | None


class SolveScaleOptions(VisibilityOptions, total=False):
    """Options of :func:`attnscale.solve_scale`."""

    softcap: None
    normalizer: str
    dims: Dims | None


class NormalizerOptions(VisibilityOptions, total=False):
    """Weights from scores, besides their scale."""

    softcap: float | None
    normalizer: str | Normalizer
    qk_norm: QKNorm | None


class KAttentionOptions(NormalizerOptions, total=False):
    """Options of :func:`attnscale.variants.kattention`: those of attention except scale and out."""

    distance_scale: DistanceTable | None
    distance_bias: DistanceTable | None


class AttentionStateOptions(NormalizerOptions, total=False):
    """Options of :func:`attnscale.attention_state`."""

    scale: Scale
    dims: Dims | None


class AttentionDivergenceOptions(VisibilityOptions, total=False):
    """Options of :func:`attnscale.attention_divergence`, for both attentions or the first."""

    scale: Scale
    softcap: float | None


class EntropyCurveOptions(KAttentionOptions, total=False):
    """Options of :func:`attnscale.entropy_curve`."""

    dims: Dims | None


class AttentionGradientsOptions(KAttentionOptions, total=False):
    """Options of :func:`attnscale.attention_gradients`."""

    scale: Scale


class AttentionEntropyOptions(EntropyCurveOptions, total=False):
    """Options of :func:`attnscale.attention_entropy` and other functions with a result for each row."""

    scale: Scale


class AttentionOptions(AttentionEntropyOptions, total=False):
    """Options of :func:`attnscale.attention` and other functions with an output."""

    out: NDArray[Any] | None
