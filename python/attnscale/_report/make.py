# SPDX-License-Identifier: BSD-3-Clause
"""The function that measures heads for a report."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.checks import boolean, positive_int, refusal, shown
from .._base.hints import hinted
from .._base.provenance import provenance
from .._call.call import Call
from ..calibration.fit import Length, candidates, default_lengths, read_lengths, several_laws
from .kept import kept_heads, size_of
from .measure import MULTIPLES, measure_heads
from .page import has_core
from .result import SAMPLED, Report
from .text import read_spans, read_tokens, text_rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Layout
    from ..laws import Law

#: Default laws of a report, besides the standard one.
LAWS = ("log_n", "annealed", "variance_invariant", "entropy_invariant")
_FEWEST_ROWS = 32  # of a sample: fewer tell little, and nothing of their error


class Group(NamedTuple):
    """Heads measured together."""

    rows: Mapping[int, Length]  # at each length
    places: Sequence[tuple[int, int]]  # (layer, head) of each of them
    module: str = ""  # their module in a model
    name: str = ""  # of their part of the page, if there are several


@hinted
def report(
    query: ArrayLike,
    key: ArrayLike,
    *,
    lengths: Sequence[int] | None = None,
    laws: Iterable[Law | str | float] | None = None,
    rows: int | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
    labels: Iterable[tuple[int, int]] | None = None,
    about: Mapping[str, str] | None = None,
    tokens: Sequence[str] | None = None,
    spans: Mapping[str, tuple[int, int]] | None = None,
    with_heads: bool = False,
    layout: Layout = "bhsd",
    num_threads: int | None = None,
) -> Report:
    """Measure heads at several lengths, for a page with a map, a scatter plot and a slider.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attnscale.attention`, without batch axes: (heads, n, head_dim). At length n the first n
        queries see the first n keys.
    lengths : sequence of int, optional
        Default: the number of keys and its halves, four at most, none shorter than 16.
    laws : iterable of str, float or Law, optional
        Laws to compare with the heads, besides the standard scale; a training length that a spelling leaves
        open is the shortest length. Default: log_n, annealed, variance_invariant and entropy_invariant.
    rows : int, optional
        Most rows to measure at each length, for long texts: one of each equal stretch of those whose mean is
        the entropy, and as many of all rows for the weight that a key gets and the entropy along the text.
        All of these are estimates then; ``entropy_error`` and the page say the standard error. At least 32.
        Default: all rows.
    is_causal : bool, default False
        Query i sees the keys 0 ... i. The entropy at length n is then the mean over the last eighth of the n
        rows.
    enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`.
    labels : iterable of pairs of int, optional
        (layer, head) of each head. Default: all of layer 0.
    about : mapping of str to str, optional
        Description for the head of the page: "model", "text", and other entries.
    tokens : sequence of str, shape (n,), optional
        The text in pieces, shown with each token in the colour of its row's entropy, and with the strongest
        keys of the row. The longest length must be n.
    spans : mapping of str to (start, stop), optional
        Named parts of these tokens; the page shows each row's weight on them.
    with_heads : bool, default False
        Whether the page carries queries and keys at the longest length, in float16, from which it measures a
        head at any scale, law and length: 5.4 bytes for each number of the queries, and as much for shared
        keys. It can then open a reader's file too. If the installation has no kernels for pages, a warning
        says so, and the page omits them.

    Returns
    -------
    Report
        ``.save("report.html")`` writes the page; in Jupyter it displays itself.

    Raises
    ------
    TypeError, ValueError
        If there are batch axes, different numbers of queries and keys, a length not between 2 and the number
        of keys, or a law that scales the keys of a row differently.

    Notes
    -----
    Entropies under laws, numbers at multiples of the scale, and the law that keeps the entropy of the first
    length are those of :func:`attnscale.attention_entropy`, :func:`attnscale.attention_statistics` and
    :func:`attnscale.calibrate`. The heads are measured at 17 multiples of their scale, from 1/4 to 4, four to
    a doubling, at which the page's slider stops. ``to_dict()`` follows :meth:`Report.json_schema`.

    Examples
    --------
    >>> import attnscale as at
    >>> data = at.datasets.minilm_qk()
    >>> found = at.report(data.query[:4], data.key[:4], lengths=[64, 256], laws=["log_n"])
    >>> found.entropy.shape, found.curve.shape  # (heads, lengths, laws), (heads, lengths, multiples)
    ((4, 2, 2), (4, 2, 17))
    >>> print(found.outliers[0])
    layer 0, head 2 spreads least: 1.0 effective keys at 64, 1.3 at 256.
    """
    given = {"enable_gqa": enable_gqa, "layout": layout, "num_threads": num_threads}
    call = Call(query, key, None, given)
    q, k = map(as_measured, call.inputs[:2])
    if q.ndim != 3:
        raise ValueError(f"query must have the axes (heads, n, head_dim), got shape {q.shape}")
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"a report needs as many queries as keys, got {q.shape[1]} and {k.shape[1]}")
    for name, x in (("query", q), ("key", k)):
        if not np.isfinite(x).all():
            raise ValueError(f"{name} must be finite, got {(~np.isfinite(x)).sum()} NaN or infinite values")
    n_keys = k.shape[1]
    if n_keys < 2:
        raise ValueError(f"key must have at least 2 keys, got {n_keys}")
    chosen = default_lengths(n_keys) if lengths is None else sorted(read_lengths(lengths, n_keys, n_keys))
    causal = "bottom_right" if boolean("is_causal", is_causal) else None
    options = {"causal": causal, "enable_gqa": len(q) != len(k), "num_threads": num_threads}
    of_lengths = {n: Length(q[:, :n], k[:, :n], options) for n in chosen}
    places = [(0, head) for head in range(len(q))] if labels is None else _read_labels(labels, len(q))
    if not isinstance(about, (Mapping, type(None))):
        raise TypeError(f"about must be a mapping of str to str, got {shown(about)}")
    told = {
        **{str(name): str(text) for name, text in (about or {}).items()},
        "tokens": str(n_keys),
        "causal": "yes" if causal else "no",
    }
    return report_of(
        [Group(of_lengths, places)],
        laws,
        told,
        rows=rows,
        tokens=tokens,
        spans=spans,
        with_heads=boolean("with_heads", with_heads),
    )


def as_measured(x: NDArray[Any]) -> NDArray[Any]:
    """The numbers of heads as a report measures them: float64 stays, other types become float32."""
    return np.asarray(x, np.float64 if x.dtype == np.float64 else np.float32)


def _read_labels(labels: Any, n_heads: int) -> list[tuple[int, int]]:
    """(layer, head) of each head."""
    try:
        places = [(operator.index(layer), operator.index(head)) for layer, head in labels]
    except (TypeError, ValueError):
        raise TypeError(f"labels must be pairs of integers (layer, head), got {shown(labels)}") from None
    if len(places) != n_heads:
        raise ValueError(f"labels must name each of the {n_heads} heads, got {len(places)}")
    return places


def report_of(
    groups: Iterable[Group],
    laws: Iterable[Law | str | float] | None,
    about: Mapping[str, str],
    plan: str = "",
    tell: Callable[[str], object] = lambda text: None,
    *,
    rows: int | None = None,
    tokens: Sequence[str] | None = None,
    spans: Mapping[str, tuple[int, int]] | None = None,
    with_heads: bool = False,
) -> Report:
    """The report of groups of heads, each with its rows at every length and the places of its heads."""
    most_rows = read_rows(rows)
    words = read_tokens(tokens)
    parts_of_text = read_spans(spans, words)
    listed = list(groups)
    lengths = sorted(listed[0].rows)
    longest = [group.rows[lengths[-1]] for group in listed]
    text = None if words is None else text_rows(longest, words, parts_of_text)
    if with_heads and has_core():
        tell(f"the page carries queries and keys, {size_of(longest) / 1e6:.1f} MB of it")
    wanted = LAWS if laws is None else several_laws(laws)
    compared = tuple(candidates(dict.fromkeys(("standard", *wanted)), lengths[0]))
    parts = []
    for number, group in enumerate(listed):
        of = f"group {number + 1} of {len(listed)}, " if len(listed) > 1 else ""
        ordered = {n: group.rows[n] for n in lengths}
        parts.append(measure_heads(ordered, compared, partial(_tell, tell, of), most_rows))
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    where = np.array([place for group in listed for place in group.places], np.int64)
    named = [(group.module, group.name) for group in listed for _ in group.places]
    return Report(
        layers=where[:, 0],
        heads=where[:, 1],
        lengths=np.array(lengths, np.int64),
        laws=compared,
        multiples=MULTIPLES,
        about=dict(about) | sampled(most_rows, arrays["entropy_error"]),
        plan=plan,
        provenance=provenance(),
        modules=tuple(module for module, _ in named),
        groups=tuple(name for _, name in named),
        text=text,
        kept=kept_heads(longest) if with_heads else None,
        **arrays,
    )


def read_rows(rows: Any) -> int | None:
    """The value of ``rows=``, checked."""
    most = None if rows is None else positive_int("rows", rows)
    if most is not None and most < _FEWEST_ROWS:
        raise refusal(ValueError, "rows", f"must be at least {_FEWEST_ROWS}, got {most}")
    return most


def sampled(most_rows: int | None, errors: NDArray[np.float64]) -> dict[str, str]:
    """The entry of ``about`` for a sample of the rows; none if all rows were measured."""
    largest = float(np.max(errors, where=errors > 0, initial=0))
    if most_rows is None or not largest:
        return {}
    digit = 10.0 ** (math.floor(math.log10(largest)) - 1)
    bound = math.ceil(largest / digit) * digit
    sample = f"at most {most_rows} rows at each length, one of each equal stretch"
    return {SAMPLED: f"{sample}: standard error of an entropy at most {bound:.2g} nat"}


def _tell(tell: Callable[[str], object], of: str, text: str) -> None:
    tell(f"{of}{text}")
