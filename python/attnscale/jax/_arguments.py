# SPDX-License-Identifier: BSD-3-Clause
"""Conversion of a call of attention to arrays and a form, checked by shapes and types before compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from .. import normalizers
from .._base.checks import as_array, shown
from .._base.statistics import statistic_names
from .._call.arrays import Unread, float_type_error, is_float_type, shape_in
from .._call.distance import law_factor
from .._call.measures import count_visible
from .._call.options import DEFAULTS
from .._call.plan import Plan
from .._call.rows import read_causal, read_integers, read_window
from .._call.scale import read_law
from .._call.weights import available, read_normalizer
from ..laws import Law
from ..laws._base import ClosedForm
from ..normalizers import Normalizer
from ..normalizers._base import Rule
from ..normalizers._softmax import fit_logits
from ._autograd import Form, with_length
from ._ffi import check_on_cpu

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._call.types import Causal, DistanceTable, QKNorm, Window


@dataclass(frozen=True)
class Sink:
    """A softmax with a sink whose logits can be learned: see :class:`attnscale.normalizers.Sink`.

    A pytree, so that it can be one of a model's parameters.

    Parameters
    ----------
    logits : jax.Array, shape (), (heads,) or (..., heads, n_queries)
        The score of the sink, for all heads, per head or per row. May be traced and differentiated.

    Examples
    --------
    >>> import attnscale as at, jax, jax.numpy as jnp
    >>> q, k = jnp.zeros((2, 1, 3, 4))  # (heads, n, head_dim)
    >>> def total(sink):
    ...     return at.jax.attention_statistics(q, k, statistics="lse", normalizer=sink).lse.sum()
    >>> jax.grad(total)(at.jax.Sink(jnp.zeros(1))).logits  # 3 rows, each gives a fourth to the sink
    Array([0.75], dtype=float32)
    """

    logits: jax.Array


jax.tree_util.register_dataclass(Sink, ["logits"], [])


def is_traced(x: Any) -> bool:
    """Whether an option is a traced array, without numbers that Python can read."""
    return isinstance(x, jax.core.Tracer)


def known(name: str, x: Any) -> Any:
    """An option for a plan: its numbers, or its shape and type if it is traced."""
    if is_traced(x):
        return Unread(x.shape, x.dtype)
    return as_array(name, x) if isinstance(x, jax.Array) else x


class _TracedRows(NamedTuple):
    """Rows of a plan, counted for a law or a normalizer unless that takes numbers of traced arrays."""

    plan: Plan
    asking: str  # law or normalizer that counts keys
    of_core: bool  # whether the core counts them again when the program runs

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.plan.row_shape

    def visible_keys(self) -> NDArray[np.int64]:
        self._need("attn_mask", "key_lengths", "document_ids")
        plan, mask = self.plan, self.plan.mask
        if mask is None or isinstance(mask, Unread) or self.of_core:
            return plan.intervals.visible_keys()
        return count_visible(plan.extents, plan.intervals, mask)

    def row_sizes(self) -> NDArray[np.int64]:
        self._need("key_lengths", "document_ids")
        return self.plan.row_sizes()

    def positions(self) -> NDArray[np.int64]:
        self._need("key_lengths", "document_ids")
        return self.plan.positions()

    def row_entropies(self) -> NDArray[np.float64]:
        raise self._no_scores()

    def row_gaps(self) -> NDArray[np.float64]:
        raise self._no_scores()

    def row_spreads(self) -> NDArray[np.float64]:
        raise self._no_scores()

    def _need(self, *names: str) -> None:
        for name in names:
            if isinstance(self.plan.options[name], Unread) and not self.of_core:
                instead = "" if self.asking.startswith("normalizer") else ", or the scale as an array"
                raise ValueError(
                    f"{self.asking} counts the keys of a row, which takes the numbers of {name}, a traced "
                    f"array here (jit, vmap, grad); pass numbers{instead}"
                )

    def _no_scores(self) -> ValueError:
        return ValueError(
            f"{self.asking} measures the scores of each row, which attnscale.jax does not; "
            "attnscale.attention does, or pass the scale as an array"
        )


_Arrays = dict[str, Any]
# The values of the core's causal_alignment, and its open side of a window.
_ALIGNMENTS, _OFFSET = (None, "top_left", "bottom_right"), 3
_OPEN = 2**63 - 1


class JaxOptions(TypedDict, total=False):
    """Options of :func:`attnscale.jax.attention`."""

    scale: float | jax.Array | str | Law | None
    is_causal: bool
    causal: Causal | None
    attn_mask: jax.Array | None
    window: Window | None
    key_lengths: int | jax.Array | None
    document_ids: jax.Array | None
    distance_scale: DistanceTable | None
    distance_bias: DistanceTable | None
    enable_gqa: bool
    softcap: float | None
    normalizer: str | Normalizer | Sink
    qk_norm: QKNorm | None
    layout: str
    num_threads: int | None


def read_traced_call(
    query: Any, key: Any, value: Any, statistics: Any, options: Mapping[str, Any], *, leave_out: bool = False
) -> tuple[Form, _Arrays]:
    """Form and arrays of a call, with equal leading axes; `leave_out` drops what the normalizer lacks."""
    given = {**DEFAULTS, **options}
    normalizer, scale = given["normalizer"], given["scale"]
    found = _read_normalizer(normalizer)
    asked = available(statistic_names(statistics), found, leave_out=leave_out)
    arrays = {"query": _read("query", query), "key": _read("key", key)}
    if value is not None:
        arrays["value"] = _read("value", value)
    if given["layout"] not in ("bhsd", "bshd"):
        raise ValueError(
            f"layout must be one of 'bhsd', 'bshd' for arrays of JAX, got {shown(given['layout'])}"
        )
    given["attn_mask"] = _mask(given["attn_mask"])
    tables = _Tables(given["distance_scale"], given["distance_bias"])
    masks = {name: given[name] for name in ("attn_mask", "key_lengths", "document_ids")}
    law = read_law(scale)
    options = {name: known(name, x) for name, x in masks.items()} | tables.known
    options["scale"] = law or known("scale", scale)
    q, k, v = (Unread(x.shape, x.dtype) for x in (arrays["query"], arrays["key"], arrays.get("value", query)))
    plan = Plan.of(q, k, None if value is None else v, {**given, **options})
    plan.form_scores()
    asking = f"scale={scale!r}" if isinstance(scale, (str, Law)) else "the scale"
    of_core = isinstance(law, ClosedForm) and law._in_core is not None
    plan.scale_rows(_TracedRows(plan, asking, of_core))
    spelling = ""
    if law is not None and of_core and plan.counts is not None and law.meaning.is_used:
        spelling = law.spelling
    by_normalizer = _TracedRows(plan, f"normalizer={normalizer!r}", of_core=False)
    rule = Rule("softmax") if found is None else found._rule(by_normalizer)
    rows = _Placed(plan)
    arrays = rows.inputs(arrays, given["qk_norm"])
    arrays |= rows.masks(masks) | ({} if spelling else rows.scale(scale)) | rows.tables(tables)
    arrays |= rows.numbers(rule, normalizer)
    return _form(plan, asked, spelling, rule, normalizer), arrays


def _form(plan: Plan, asked: tuple[str, ...], law: str, rule: Rule, normalizer: Any) -> Form:
    extents, given = plan.extents, plan.options
    causal, window = read_causal(given["is_causal"], given["causal"]), read_window(given["window"])
    output = None if extents.value_dim is None else (*extents.row_shape, extents.value_dim)
    return Form(
        swapped=plan.layout == "bshd" and len(extents.leading) > 0,
        dtype=extents.dtype,
        rows=extents.row_shape,
        output=None if output is None else shape_in(plan.layout, output),
        statistics=asked,
        scale=plan.scale if isinstance(plan.scale, float) else 0.0,
        law=law,
        causal=_OFFSET if isinstance(causal, int) else _ALIGNMENTS.index(causal),
        causal_offset=causal if isinstance(causal, int) else 0,
        left=_OPEN if window[0] is None else window[0],
        right=_OPEN if window[1] is None else window[1],
        softcap=plan.form.softcap,
        normalizer=rule.kind,
        alpha=float(rule.alpha),
        k=int(rule.k),
        eps=float(rule.eps),
        shown=shown(normalizer),
        num_threads=plan.threads,
    )


def _read(name: str, array: Any) -> Any:
    found: Any = array
    if isinstance(array, np.ndarray) and array.dtype.kind not in "OSU":
        found = jnp.asarray(array)
    elif not isinstance(array, jax.Array):
        raise TypeError(f"{name} must be an array of JAX or NumPy, got {shown(array)}")
    elif not isinstance(array.dtype, np.dtype):
        raise TypeError(f"{name} must be an array of numbers, got one of {array.dtype}")
    else:
        check_on_cpu(name, array)
    if not is_float_type(found.dtype):
        raise float_type_error(name, array, found.dtype)
    return found


def _read_normalizer(normalizer: Any) -> Normalizer | None:
    """The normalizer, checked; None for the plain softmax, and for one with a :class:`Sink` of JAX."""
    if not isinstance(normalizer, Sink):
        return read_normalizer(normalizer)
    logits = normalizer.logits
    if not hasattr(logits, "dtype"):
        raise TypeError(f"logits of attnscale.jax.Sink must be an array, got {shown(logits)}")
    if not is_traced(logits):
        normalizers.Sink._of_one_call(logits=as_array("logits", logits))  # raises unless they are finite
    elif logits.dtype.kind not in "iuf" and logits.dtype.name != "bfloat16":
        raise TypeError(f"logits must be numbers, got {shown(logits)}")
    return None


class _Tables:
    """Tables of the distance; functions are called once, with the distances of the call."""

    def __init__(self, distance_scale: Any, distance_bias: Any) -> None:
        self.given = {"distance_scale": distance_scale, "distance_bias": distance_bias}
        self.returned: _Arrays = {}

    @property
    def known(self) -> _Arrays:
        return {name: self._known(name, table) for name, table in self.given.items()}

    def _known(self, name: str, table: Any) -> Any:
        if not callable(table):
            return known(name, table)

        def look_up(distances: Any) -> Any:
            self.returned[name] = table(distances)
            return known(name, self.returned[name])

        return look_up

    def traced(self, name: str) -> Any:
        """A traced table, or a function's traced result; None if there is none."""
        found = self.returned.get(name, self.given[name])
        return found if is_traced(found) else None


def _look_up(table: Any, steps: Any) -> Any:
    """The table at the distances of each batch entry, which key lengths shift."""
    lead = np.broadcast_shapes(table.shape[:-1], steps.shape[:-1])
    table = jnp.broadcast_to(table, (*lead, table.shape[-1]))
    return jnp.take_along_axis(table, np.broadcast_to(steps, (*lead, steps.shape[-1])), -1)


def _mask(mask: Any) -> Any:
    """A mask in JAX's type for its numbers, float32 without 64 bits, which decides what hides."""
    if mask is None or isinstance(mask, jax.Array):
        return mask
    array = as_array("attn_mask", mask)
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):  # the smallest float64 becomes -inf, which hides as well
        return jnp.asarray(array)


class _Placed:
    """Arrays of a call, brought to the same number of leading axes."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.n_leading = len(plan.extents.leading)

    def inputs(self, arrays: _Arrays, qk_norm: Any) -> _Arrays:
        if qk_norm is not None:
            wide = np.float64 if self.plan.extents.dtype == np.float64 else np.float32
            arrays = arrays | {name: with_length(arrays[name], qk_norm, wide) for name in ("query", "key")}
        return {name: self._in_layout(x) for name, x in arrays.items()}

    def masks(self, masks: _Arrays) -> _Arrays:
        found: _Arrays = {}
        if (mask := masks["attn_mask"]) is not None:
            found["attn_mask"] = self._axes(mask if is_traced(mask) else jnp.asarray(mask), 2)
        for name, n_inner in (("key_lengths", 0), ("document_ids", 1)):
            if (integers := masks[name]) is not None:
                found[name] = self._integers(name, integers, n_inner)
        return found

    def _integers(self, name: str, given: Any, n_inner: int) -> Any:
        """Integers per batch entry, with an axis of heads; key_lengths become a row."""
        x = given if is_traced(given) else read_integers(name, known(name, given))
        x = x if n_inner or not x.ndim else x[..., None]
        x = x[..., None, :] if x.ndim > 1 else x
        if is_traced(x):
            return self._axes(x, 1).astype(np.int64 if x.dtype.itemsize == 8 else np.int32)
        return self._bits(x, np.int64)

    def scale(self, scale: Any) -> _Arrays:
        """Scales of rows; empty if one number for all is part of the form."""
        if isinstance(self.plan.scale, float):
            return {}
        if not isinstance(scale, jax.Array):
            return {"scale": self._bits(self.plan.scale)}
        wide = scale.dtype if scale.dtype == np.float64 else np.float32
        return {"scale": self._axes(scale, 1).astype(wide)}

    def numbers(self, rule: Rule, normalizer: Any) -> _Arrays:
        if isinstance(normalizer, Sink):
            logits = fit_logits(jnp.asarray(normalizer.logits), self.plan.row_shape)
            wide = logits.dtype if logits.dtype == np.float64 else np.float32
            return {"sink": self._axes(logits, 1).astype(wide)}
        given = {name: getattr(rule, name) for name in ("sink", "bias", "factor")}
        return {name: self._bits(x) for name, x in given.items() if x is not None}

    def tables(self, tables: _Tables) -> _Arrays:
        """Values for each distance between a query and a key, in the type of the arithmetic."""
        self._check_distances()
        form, found = self.plan.form, {}
        for name in ("distance_scale", "distance_bias"):
            matrix, traced = getattr(form, name), tables.traced(name)
            if matrix is None:
                continue
            if traced is None:  # entry n_queries - 1 - i + j is that of (i, j)
                values: Any = np.concatenate([matrix[..., ::-1, 0], matrix[..., 0, 1:]], -1)
            else:
                is_returned = name in tables.returned
                values = self._of_distances(name, traced, is_returned=is_returned).astype(matrix.dtype)
            found[name] = self._axes(values, 1)
        return found

    def _check_distances(self) -> None:
        """Refuse unknown key lengths where distances start from them: distances are part of the form."""
        tables, causal = self.plan.form[1:], self.plan.options["causal"]
        moved = isinstance(causal, str) and causal == "bottom_right"
        is_unread = isinstance(self.plan.options["key_lengths"], Unread)
        if moved and is_unread and any(each is not None for each in tables):
            raise ValueError(
                "tables and laws of the distance with causal='bottom_right' take the numbers of key_lengths, "
                "a traced array here (jit, vmap, grad); pass numbers, or biases as an attn_mask"
            )

    def _of_distances(self, name: str, table: Any, *, is_returned: bool) -> Any:
        """A traced table at each distance, plus the bias of a law of the distance."""
        plan, law = self.plan, self.plan.law
        distances = plan.intervals.distances()
        if not is_returned:
            steps = np.minimum(np.abs(distances), table.shape[-1] - 1)
            table = table[..., steps] if steps.ndim == 1 else _look_up(table, steps)
        if law is not None and law.meaning.is_distance:
            if name == "distance_scale":
                return table * law_factor(law, distances, plan.head_dim)
            return table + law.bias(np.abs(distances)) if hasattr(law, "bias") else table
        return table

    # ---- axes ----

    def _axes(self, x: Any, inner: int) -> Any:
        """The array with all leading axes; missing ones have length 1."""
        n = self.n_leading + inner
        while x.ndim > n:
            x = x[0]
        return x[(None,) * (n - x.ndim)]

    def _in_layout(self, x: Any) -> Any:
        if self.plan.layout == "bshd" and x.ndim == 2 and self.n_leading:
            x = x[:, None]
        return self._axes(x, 2)

    def _bits(self, numbers: Any, dtype: Any = np.float64) -> Any:
        """Rows of 64-bit numbers as pairs of uint32, which JAX takes whatever its types."""
        rows = self._axes(np.asarray(numbers, dtype), 1)
        return np.ascontiguousarray(rows).view(np.uint32)
