# SPDX-License-Identifier: BSD-3-Clause
"""Laws of the distance between query and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ._closed_form import ClosedForm
from ._meaning import NMeans
from ._parameters import greater_than
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@built_in
@dataclass(frozen=True)
class ScaleInvariant(ClosedForm):
    """Scale-invariant attention: score = a_t q . k / sqrt(head_dim) + m_t at distance t.

    Parameters
    ----------
    tau : float, default 10
        Distance, in tokens, from which on the law departs from the standard scale; > 0.

    Notes
    -----
    a_t = sqrt(1 + 2 ln(1 + t/tau)) and m_t = -2 ln(1 + t/tau). The paper writes a_t^2 =
    2 [ln(t/tau + 1) - ln(alpha) + beta/alpha] and m_t = -a_t^2 + beta/alpha with alpha = beta = e^(1/2),
    which is the same.

    The factor differs from key to key of one row: attention takes the tables :meth:`factor` and
    :meth:`bias` over the distance between query and key, on either side.

    Examples
    --------
    >>> law = ScaleInvariant()
    >>> law.factor([0, 32768]).round(6), law.bias([0, 32768]).round(6)
    (array([1.      , 4.146065]), array([ -0.      , -16.189855]))
    """

    tau: float = 10.0
    name: ClassVar[str] = "scale_invariant"
    n_means: ClassVar[NMeans] = "query-key distance"
    formula: ClassVar[str] = "sqrt(1 + 2 ln(1 + n / tau)) / sqrt(head_dim), and -2 ln(1 + n / tau) is added"
    source: ClassVar[str] = "Anson et al. 2025, Scale-invariant attention, arXiv 2505.17083"
    used_by: ClassVar[str] = "its authors, with p-RoPE"
    remark: ClassVar[str] = "the only law here whose value differs between the keys of one row"

    def __post_init__(self) -> None:
        greater_than(self, "tau", 0)

    def factor(self, distance: ArrayLike) -> NDArray[np.float64]:
        """a_t: the multiple of 1/sqrt(head_dim) at each distance, of the shape of `distance`."""
        return np.asarray(self._beta(_distances(distance), 1), np.float64)

    def bias(self, distance: ArrayLike) -> NDArray[np.float64]:
        """m_t: what is added to the score at each distance, of the shape of `distance`."""
        return np.asarray(-2 * np.log1p(_distances(distance) / self.tau), np.float64)


def _distances(distance: ArrayLike) -> NDArray[np.float64]:
    t = np.asarray(distance, np.float64)
    if not (t >= 0).all():
        raise ValueError(f"distance must be at least 0, got {t.min()}")
    return t
