# SPDX-License-Identifier: BSD-3-Clause
"""A row in which one key, most often the first, is apart from the others: a sink of attention."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from ._arguments import at_least, between, plain, together


def sink_entropy(weight: ArrayLike, rest: ArrayLike) -> Any:
    """The entropy of a row with a key apart: ``h(w) + (1 - w) H'``.

    w is the weight of that key, H' the entropy of the other keys' weights divided by their sum, and
    ``h(w) = -w ln w - (1 - w) ln(1 - w)``. This is the chain rule of entropy (Shannon 1948, section 6), an
    identity in each row. With a model for H', such as :func:`spectrum_entropy` of the keys without the sink,
    it is a model for a head with a sink. As h is concave, give the weight of every row and average the
    result: the entropy at the mean weight is larger.

    Parameters
    ----------
    weight : array_like
        w, from 0 to 1.
    rest : array_like
        H' in nats, at least 0; it broadcasts against `weight`.

    Returns
    -------
    float or ndarray of float64
        Nats.

    Raises
    ------
    TypeError, ValueError
        If an argument is no number, is out of its range, or the shapes do not broadcast.

    Examples
    --------
    >>> import attnscale as at
    >>> heads = at.datasets.minilm_qk()
    >>> query, key = heads.query[11], heads.key[11]  # head 5 of layer 2: 36 % of the weight on the first key
    >>> rest = at.theory.spectrum_entropy(511, spectrum=at.theory.score_spectrum(query, key[1:]))
    >>> first = at.attention_weights(query, key)[:, 0]
    >>> without = at.theory.spectrum_entropy(512, spectrum=at.theory.score_spectrum(query, key))
    >>> [round(float(each), 2) for each in (at.attention_entropy(query, key).mean(), without)]
    [4.1, 5.57]
    >>> round(float(sink_entropy(first, rest).mean()), 2)
    4.09
    """
    from scipy.special import entr  # at first use: `import attnscale` stays fast

    w = between("weight", weight, 0, 1, closed="low high")
    w, other = together(weight=w, rest=at_least("rest", rest, 0))
    return plain(entr(w) + entr(1 - w) + (1 - w) * other)


def sink_weight(weight: ArrayLike, *, n: ArrayLike, n0: ArrayLike) -> Any:
    """The weight of one key in a row of n keys, where it has `weight` in a row of n0.

    The other keys' exponentials are taken to add up in proportion to their number, and the key to keep its
    score: ``w / (w + (1 - w) (n - 1) / (n0 - 1))``.

    Parameters
    ----------
    weight : array_like
        From 0 to 1.
    n, n0 : array_like
        Numbers of keys, at least 2.

    Returns
    -------
    float or ndarray of float64

    Raises
    ------
    TypeError, ValueError
        If an argument is no number, is out of its range, or the shapes do not broadcast.

    Examples
    --------
    >>> sink_weight([0.5, 0.9], n=[[65], [513]], n0=65).round(3)
    array([[0.5  , 0.9  ],
           [0.111, 0.529]])
    """
    w, counts, starts = together(
        weight=between("weight", weight, 0, 1, closed="low high"),
        n=at_least("n", n, 2),
        n0=at_least("n0", n0, 2),
    )
    return plain(w / (w + (1 - w) * (counts - 1) / (starts - 1)))
