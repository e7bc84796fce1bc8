# SPDX-License-Identifier: BSD-3-Clause
"""calibrate as a scikit-learn estimator: fit on some texts and lengths, score on others."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import as_array, meant, shown
from .calibration import Calibration, calibrate

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.arrays import Inputs
    from .._call.types import Layout
    from ..laws import Law

__all__ = ["LawCalibrator"]


class LawCalibrator:
    """The law that keeps the entropy of given heads, as an estimator with fit, predict and score.

    It follows the conventions of scikit-learn's estimators without needing scikit-learn: parameters are
    stored as given, results have a trailing underscore, ``sklearn.base.clone`` copies it.

    Batch axes are texts of the same heads. Each head has one constant, the median over the texts of the fit,
    so a law fitted on some texts can be judged on others, whatever their number.

    Parameters
    ----------
    n0, lengths, laws, is_causal, enable_gqa, layout, num_threads
        As for :func:`attnscale.calibrate`; None is its default.

    Attributes
    ----------
    calibration_ : Calibration
        All measured values.
    law_ : Law
        The first law of the calibration's ranking.
    amplitude_ : ndarray, shape (heads,)
        The constant that multiplies the law: the median over the texts. NaN for heads whose entropy no beta
        keeps in any text. Shape () without an axis of heads.
    target_ : ndarray, shape (heads,)
        The entropy to keep, in nats: the mean over the texts.
    n0_, lengths_
        The length whose entropy is kept, and the lengths of the fit.
    head_dim_ : int
        head_dim of the query.

    Examples
    --------
    >>> import attnscale as at
    >>> data = at.datasets.minilm_qk()
    >>> model = at.LawCalibrator(n0=64, lengths=[64, 128, 256], laws=["standard", "log_n", "annealed"])
    >>> model.fit(data.query, data.key).law_.name
    'log_n'
    >>> model.predict([512]).shape  # beta of each head
    (18, 1)
    >>> round(model.score(data.query, data.key), 2)  # at 512: it misses by so many nats
    -0.44
    >>> annealed = at.LawCalibrator(n0=64, lengths=[64, 128, 256], laws="annealed")
    >>> round(annealed.fit(data.query, data.key).score(data.query, data.key), 2)
    -0.26
    """

    def __init__(
        self,
        *,
        n0: int | None = None,
        lengths: Sequence[int] | None = None,
        laws: Iterable[Law | str] | None = None,
        is_causal: bool = False,
        enable_gqa: bool = False,
        layout: Layout = "bhsd",
        num_threads: int | None = None,
    ) -> None:
        self.n0 = n0
        self.lengths = lengths
        self.laws = laws
        self.is_causal = is_causal
        self.enable_gqa = enable_gqa
        self.layout = layout
        self.num_threads = num_threads

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = ((name, value) for name, value in self.get_params().items())
        given = (f"{name}={value!r}" for name, value in changed if value is not defaults[name].default)
        return f"{type(self).__name__}({', '.join(given)})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; ``deep`` is part of scikit-learn's interface and changes nothing."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> LawCalibrator:
        """Change parameters; results of an earlier fit stay until the next."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(
                    f"{meant(name, [*known])}parameters must be among {', '.join(known)}; got {shown(name)}"
                )
            setattr(self, name, value)
        return self

    def fit(self, query: ArrayLike, key: ArrayLike) -> LawCalibrator:
        """Measure with :func:`attnscale.calibrate` and choose the first law of its ranking.

        Raises
        ------
        ValueError
            If no law keeps the entropy of any head.
        """
        given = self.get_params()
        if given["n0"] is None:
            del given["n0"]
        inputs = _inputs(query, key, self.enable_gqa, self.num_threads, self.layout)
        found: Calibration = calibrate(query, key, **given)
        if not found.groups or not np.isfinite(found.beta).any():
            raise ValueError(f"no law can be fitted: {found.recommendation}")
        first = found.first
        self.calibration_ = found
        self.law_, self.n0_, self.lengths_ = found.laws[first], found.n0, found.lengths
        # In the axis order of all calls: score may get arrays with other axis names or none.
        texts = (-1, *inputs.leading[-1:])
        self.amplitude_ = _median(np.asarray(found.amplitude[first]).reshape(texts))
        self.target_ = np.asarray(found.target).reshape(texts).mean(0)
        self.head_dim_ = int(inputs.query.shape[-1])
        return self

    def predict(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """Beta of a row that sees `lengths` keys, shape (heads, n_lengths).

        Attention of n keys takes ``scale=model.predict([n]) / sqrt(head_dim)``.
        """
        self._check_fitted()
        if self.law_.meaning.measures_the_row:
            raise ValueError(f"law {self.law_.name!r} measures the row, so a length does not determine beta")
        counts = np.atleast_1d(as_array("lengths", lengths))
        multiplier = np.asarray(self.law_.multiplier(counts, self.head_dim_), np.float64)
        return np.asarray(self.amplitude_[..., None] * np.broadcast_to(multiplier, counts.shape))

    def score(self, query: ArrayLike, key: ArrayLike, lengths: Sequence[int] | None = None) -> float:
        """Minus the root mean square over heads and lengths of the entropy's distance from the target.

        Parameters
        ----------
        query, key : array_like
            Arrays of the same heads: the activations of the fit or, better, of other texts.
        lengths : sequence of int, optional
            Default: lengths beyond those of the fit, its longest times the powers of 2.

        Returns
        -------
        float
            In nats; 0 is best. Heads without an amplitude do not count.
        """
        misses = self.misses(query, key, lengths)
        return -float(np.sqrt(np.mean(np.square(misses[..., np.isfinite(self.amplitude_), :]))))

    def misses(
        self, query: ArrayLike, key: ArrayLike, lengths: Sequence[int] | None = None
    ) -> NDArray[np.float64]:
        """The entropy under the law minus the target, for each text, head and length.

        Parameters
        ----------
        query, key, lengths
            As for :meth:`score`.

        Returns
        -------
        ndarray of float64, shape (..., heads, n_lengths)
            In nats; NaN for heads without an amplitude. :func:`attnscale.held_out_error` gives the root mean
            square with an error over heads and texts.

        Examples
        --------
        >>> import attnscale as at
        >>> rng = np.random.default_rng(0)
        >>> query, key = rng.standard_normal((2, 6, 4, 256, 16), np.float32)  # 6 texts, 4 heads
        >>> model = at.LawCalibrator(n0=64, lengths=[64, 128], laws="annealed").fit(query[:3], key[:3])
        >>> misses = model.misses(query[3:], key[3:])  # of the other texts, at 256
        >>> misses.shape, round(at.held_out_error(misses).value, 2)
        ((3, 4, 1), 0.1)
        """
        from .fit import cut

        self._check_fitted()
        inputs = _inputs(query, key, self.enable_gqa, self.num_threads, self.layout)
        if inputs.leading[-1:] != self.target_.shape:
            raise ValueError(
                f"query must have the heads of the fit, {self.target_.shape}, got {inputs.leading[-1:]}"
            )
        known = np.isfinite(self.amplitude_)
        amplitude = np.where(known, self.amplitude_, 0.0)[..., None]
        misses = []
        for n in self._held_out(inputs.key.shape[-2]) if lengths is None else lengths:
            rows = cut(inputs, n, self.num_threads, is_causal=self.is_causal)
            entropy = rows.entropy(amplitude * rows.law_scale(self.law_))
            misses.append(np.where(known, entropy - self.target_, np.nan))
        return np.stack(misses, axis=-1)

    def _held_out(self, n_keys: int) -> list[int]:
        longest = int(self.lengths_.max())
        longer = [longest << k for k in range(1, max(n_keys // longest, 1).bit_length())]
        if not longer:
            raise ValueError(
                f"query and key must be longer than the fit, at least {2 * longest} keys, got {n_keys}; "
                "or pass lengths"
            )
        return longer

    def _check_fitted(self) -> None:
        if not hasattr(self, "calibration_"):
            raise ValueError("LawCalibrator is not fitted: call fit(query, key) first")


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median over the first axis of the numbers; NaN where there is none."""
    known = np.isfinite(values).any(0)
    return np.where(known, np.nanmedian(np.where(known, values, 0.0), axis=0), np.nan)


def _inputs(query: Any, key: Any, enable_gqa: Any, num_threads: Any, layout: Any = "bhsd") -> Inputs:
    """Query and key in the axis order of all calls, (..., heads, n, dim); `layout` may name the axes."""
    from .._call.call import Call

    return Call(
        query, key, None, {"enable_gqa": enable_gqa, "layout": layout, "num_threads": num_threads}
    ).inputs
