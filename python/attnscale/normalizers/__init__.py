# SPDX-License-Identifier: BSD-3-Clause
"""Normalizers, which turn the scores of a row into weights: values of ``normalizer=``.

The value is an instance, or a name of :func:`names`, alone or with parameters: ``"entmax(alpha=1.2)"``.
Scores are those of :func:`attnscale.attention`, after scale, soft-cap, bias and mask; sums run over the
visible keys of the row.
"""

# This order of imports is that of names().
# isort: off
from ._base import Normalizer, get, names
from ._softmax import Sink, Softmax, SoftmaxN
from ._pointwise import ReLU, Sigmoid, Softpick, SquaredReLU
from ._sparse import Entmax, Sparsemax, TopK

__all__ = [
    "Entmax",
    "Normalizer",
    "ReLU",
    "Sigmoid",
    "Sink",
    "Softmax",
    "SoftmaxN",
    "Softpick",
    "Sparsemax",
    "SquaredReLU",
    "TopK",
    "get",
    "names",
]
