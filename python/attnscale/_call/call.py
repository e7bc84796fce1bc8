# SPDX-License-Identifier: BSD-3-Clause
"""One attention call: every option checked, in the form that the core takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from .._checks import choose
from .arrays import LAYOUTS, Inputs, make_output, read_inputs
from .distance import NO_TABLES, law_of_distance, read_tables
from .documents import Packed, attend_documents, read_documents
from .rows import Visibility, read_num_threads, read_softcap, read_visibility
from .scale import read_scale, refuse_row_measures
from .weights import normalize_rows, read_normalizer, rule_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["attend", "read_options"]


class Options(NamedTuple):
    """What goes with the arrays, as given by the caller. All public functions share these."""

    is_causal: Any
    causal: Any
    attn_mask: Any
    window: Any
    key_lengths: Any
    enable_gqa: Any
    softcap: Any
    normalizer: Any
    layout: Any
    document_ids: Any = None
    distance_scale: Any = None
    distance_bias: Any = None
    qk_norm: Any = None


def read_options(
    query: Any, key: Any, value: Any, options: Options, num_threads: Any
) -> tuple[Inputs, Visibility, float, int]:
    """The arrays, what is visible, soft-cap and number of threads: checked, as the core takes them."""
    if options.layout not in LAYOUTS:
        choose("layout", options.layout, LAYOUTS)
    inputs = read_inputs(query, key, value, options.enable_gqa, options.layout)
    if options.qk_norm is not None:
        inputs = normalize_rows(inputs, options.qk_norm)
    visible = read_visibility(
        inputs, options.is_causal, options.causal, options.attn_mask, options.window, options.key_lengths
    )
    return inputs, visible, read_softcap(options.softcap), read_num_threads(num_threads)


def attend(
    query: Any,
    key: Any,
    value: Any,
    scale: Any,
    statistics: int,
    out: Any,
    options: Options,
    num_threads: Any,
) -> tuple[NDArray[Any] | None, tuple[NDArray[Any] | None, ...]]:
    """(output, statistics): output if there is a value, those statistics whose bit is set."""
    inputs, visible, softcap, threads = read_options(query, key, value, options, num_threads)
    normalizer = read_normalizer(options.normalizer)
    law = law_of_distance(scale)
    if law is not None:
        scale = None
    distance = options.distance_scale, options.distance_bias, law
    tables = read_tables(*distance, inputs, visible)
    if tables is not NO_TABLES:
        refuse_row_measures(scale)
    if options.document_ids is not None:
        parts = read_documents(options.document_ids, inputs, visible)
        output, view = (None, None) if value is None else make_output(inputs, options.layout, out)
        how = Packed(inputs, visible, scale, softcap, threads, distance, normalizer)
        return output, attend_documents(parts, how, view, statistics)
    multiplier = read_scale(scale, inputs, visible, threads, softcap)
    output = view = None
    if value is not None:
        output, view = make_output(inputs, options.layout, out)
    q, k, v = inputs.query, inputs.key, inputs.value
    rule = rule_of(normalizer, inputs, visible, threads)
    return output, _core.attend(
        q, k, v, view, statistics, multiplier, *visible, softcap, threads, *tables, rule
    )
