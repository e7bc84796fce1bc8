# SPDX-License-Identifier: BSD-3-Clause
"""Base class of scale laws, their facts in words, and laws that the core evaluates."""

from __future__ import annotations

import json
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np

from .._base.checks import refusal, refuse_masked, shown
from .._base.spelling import Spelled, spell
from .._base.text import Text, to_html
from .._core import law_parameters, law_values
from ._meaning import Meaning, NMeans, meaning_of
from ._parameters import OneOrPerHead, one_or_per_head

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def description(law: Any) -> list[str]:
    """The lines of an explanation below its title, for a law or for a class without parameters."""
    form: dict[str, Any] = {"width": 98, "break_long_words": False, "break_on_hyphens": False}
    indented = (
        textwrap.wrap(text, initial_indent=f"  {title:7}  ", subsequent_indent=" " * 11, **form)
        for title, text in facts(law)
    )
    return [line for lines in indented for line in lines]


def facts(law: Any) -> list[tuple[str, str]]:
    """Facts about a law: titles and texts."""
    found = [
        ("scale", law.formula),
        ("n", f"{law.n_means}: {meaning_of(law.n_means).description}"),
        ("length", "" if law.length_parameter is None else f"{law.length_parameter}: train_length= sets it"),
        ("on", "" if law.channels == "all" else f"the {law.channels} channels"),
        ("layers", "" if law.layers == "all" else law.layers),
        ("source", law.source),
        ("used by", law.used_by),
        ("config", ", ".join(law.config_keys)),
        ("note", law.remark),
    ]
    return [(title, text) for title, text in found if text]


Channels = Literal["all", "rotated", "latent"]
USE_DATA = "pass its data, or what compressed() leaves"


class Law(Spelled, ABC):
    """A named rule for the scale of q . k as a function of n, head_dim and its own parameters.

    Laws are frozen dataclasses: equal parameters make equal laws, and the repr evaluates.

    Attributes
    ----------
    name : str
        Name of the law in :func:`get`.
    n_means : str
        Meaning of n, one of :data:`MEANINGS_OF_N`. It is part of the law's identity: laws differ in n alone
        as often as in the formula.
    length_parameter : str or None
        The parameter that is the length, in tokens, from which the law counts: the training length, or the
        length at which the scale is the standard one.
    channels : {"all", "rotated", "latent"}
        The channels of q and k that the law multiplies: all, those that rotary positions turn, or those fed
        by a latent of low rank.
    layers : str
        The layers of a model that use the law, in words.
    config_keys : tuple of str
        Keys of a model's configuration that select the law.
    formula, source, used_by, remark : str
        Parts of :meth:`explain`.
    """

    name: ClassVar[str]
    n_means: ClassVar[NMeans]
    length_parameter: ClassVar[str | None] = None
    channels: ClassVar[Channels] = "all"
    layers: ClassVar[str] = "all"
    config_keys: ClassVar[tuple[str, ...]] = ()
    formula: ClassVar[str]
    source: ClassVar[str]
    used_by: ClassVar[str]
    remark: ClassVar[str] = ""

    @property
    def meaning(self) -> Meaning:
        """The meaning named by ``n_means``, as an object.

        It has a ``description``, the ``least`` n, n minus i of a causal query at position i (``at_position``;
        None where n is not a count), and tells whether the law ``measures_the_row``.
        """
        return meaning_of(self.n_means)

    @property
    def spelling(self) -> str:
        """The shortest text that :func:`get`, ``scale=`` and the commands read as this law.

        Examples
        --------
        >>> import attnscale as at
        >>> at.laws.LogN(base=1024).spelling
        'log_n(base=1024)'
        """
        return self._spelled or self._spell()

    def _spell(self) -> str:
        usual = {each.name: each.default for each in fields(cast(Any, self))}
        given = {name: getattr(self, name) for name in usual}
        return spell(self.name, {name: value for name, value in given.items() if value != usual[name]})

    def __mul__(self, amplitude: Any) -> Law:
        """The law times a number, or times one number a head."""
        return Scaled(self, amplitude)

    __rmul__ = __mul__
    __array_ufunc__ = None  # so that an array times a law calls the law

    @abstractmethod
    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        """The multiple of 1/sqrt(head_dim) at a checked n."""

    def multiplier(
        self, n: ArrayLike, head_dim: int, *, position: ArrayLike | None = None
    ) -> float | NDArray[np.float64]:
        """Beta: the multiple of the standard scale 1/sqrt(head_dim).

        Parameters
        ----------
        n : array_like
            The number that the law counts (see ``n_means``): at least 1, or 0 for laws whose n starts there.
        head_dim : int
            At least 1.
        position : array_like, optional
            0-based positions of the queries. A law whose n is a query position (plus 1, plus 2) takes n from
            here if given; other laws ignore it.

        Returns
        -------
        float or ndarray of float64
            A float for a scalar n, else of the shape of n. With one parameter a head, of shape (heads, 1)
            broadcast against n.
        """
        return _plain(self._beta(self._checked_n(n, head_dim, position), head_dim))

    def scale(
        self, n: ArrayLike, head_dim: int, *, position: ArrayLike | None = None
    ) -> float | NDArray[np.float64]:
        """The whole multiplier of q . k; arguments and shapes as for :meth:`multiplier`."""
        return _plain(self._scale(self._checked_n(n, head_dim, position), head_dim))

    def derivatives(
        self, n: ArrayLike, head_dim: int, *, position: ArrayLike | None = None
    ) -> dict[str, float | NDArray[np.float64]]:
        """Derivatives of :meth:`scale` by the law's parameters, for learning them.

        Parameters
        ----------
        n, head_dim, position
            As for :meth:`multiplier`.

        Returns
        -------
        dict of str to float or ndarray
            A derivative for each parameter, by name, of the shape of ``scale(n, head_dim)``; with one
            parameter a head, of the scale of that head by its own. Empty if the law has nothing to learn.

        Examples
        --------
        >>> import attnscale as at
        >>> at.laws.SSMax(s=0.5).derivatives(1024, 64)  # (s ln n + b) / 8
        {'s': 0.8664339756999316, 'b': 0.125}
        """
        counts = self._checked_n(n, head_dim, position)
        of_beta = self._derivatives(counts, head_dim)
        return {name: _plain(each / math.sqrt(head_dim)) for name, each in of_beta.items()}

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        """Derivatives of beta by each parameter of the law, by name."""
        return {}

    def parameter(self, name: str) -> Any:
        """The value of a parameter that has a derivative: a number, or a tuple of one a head."""
        return getattr(self, name)

    def n_of_position(self, position: ArrayLike) -> NDArray[np.float64]:
        """n of a causal query at this 0-based position that sees every key up to its own.

        Parameters
        ----------
        position : array_like
            At least 0. The last query of a text of n tokens is at n - 1.

        Raises
        ------
        ValueError
            If n is not a count: a distance, or a measure of the row's scores.
        """
        meaning = self.meaning
        if meaning.at_position is None:
            raise ValueError(f"law {self.name!r} has no n at a position: its n is {meaning.description}")
        refuse_masked("position", position, USE_DATA)
        where = np.asarray(position, np.float64)
        if not (where >= 0).all():
            raise ValueError(f"position must be at least 0, got {where.min()}")
        if not (where <= 2**53).all():
            raise ValueError(
                f"position must be at most 2^53, beyond which float64 skips integers, got {where.max()}"
            )
        return where + meaning.at_position

    def multiplier_at(self, n_keys: ArrayLike, head_dim: int) -> float | NDArray[np.float64]:
        """Beta of the last of `n_keys` causal queries, which sees as many keys.

        The law's n is that of this query. If n is not a count there is no such beta: the number of keys is
        not used in its place.

        Parameters
        ----------
        n_keys : array_like
            At least 1.
        head_dim : int
            At least 1.

        Returns
        -------
        float or ndarray of float64
            As for :meth:`multiplier`, of the shape of n_keys.

        Raises
        ------
        ValueError
            If n is a distance or a measure of the row's scores.

        Examples
        --------
        >>> import attnscale as at
        >>> at.laws.get("log_n").multiplier_at([512, 512**2], 64)
        array([1., 2.])
        """
        refuse_masked("n_keys", n_keys, USE_DATA)
        keys = np.asarray(n_keys, np.float64)
        if not (keys >= 1).all():
            raise ValueError(f"n_keys must be at least 1, got {keys.min()}")
        n = self.n_of_position(keys - 1)
        beta = np.asarray(self.multiplier(n, head_dim))
        return _plain(np.broadcast_to(beta, n.shape) if beta.ndim < n.ndim else beta)

    def channel_factors(self, head_dim: int, acted_on: Any, *, n: float = 1.0) -> NDArray[np.float64]:
        """Multiplier of each channel of the query, besides 1/sqrt(head_dim).

        Parameters
        ----------
        head_dim : int
            At least 1.
        acted_on : int, slice or array_like
            The channels that the law acts on: their number from the first, or a NumPy index.
        n : float, default 1
            As for :meth:`multiplier`.

        Returns
        -------
        ndarray of float64, shape (head_dim,)
            The multiplier on those channels, 1 on the others. ``attention(query * factors, key, value)`` is
            attention under the law.

        Examples
        --------
        >>> import attnscale as at
        >>> at.laws.YaRN(factor=16).channel_factors(4, 2).round(7)  # the first two of four are rotated
        array([1.6313902, 1.6313902, 1.       , 1.       ])
        """
        factors = np.ones(head_dim)
        factors[slice(acted_on) if isinstance(acted_on, int) else acted_on] = self.multiplier(n, head_dim)
        return factors

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters as JSON types; :func:`from_dict` reads them.

        Examples
        --------
        >>> import attnscale as at
        >>> at.laws.LogN(base=1024).to_dict()
        {'name': 'log_n', 'parameters': {'base': 1024.0, 'floor': 1.0}}
        """
        parameters = {each.name: getattr(self, each.name) for each in fields(cast(Any, self))}
        return {"name": self.name, "parameters": {name: _listed(each) for name, each in parameters.items()}}

    def to_json(self) -> str:
        """:meth:`to_dict` as one line of JSON; :func:`from_json` reads it."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def explain(self) -> str:
        """Formula, meaning of n, source and users, as text."""
        return Text("\n".join([f"{self.name}: {self!r}", *description(self)]))

    def _repr_html_(self) -> str:
        return to_html(repr(self), ("", self.name), facts(self))

    def _scale(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return self._beta(n, head_dim) / math.sqrt(head_dim)

    def _checked_n(self, n: ArrayLike, head_dim: int, position: ArrayLike | None) -> NDArray[np.float64]:
        if head_dim < 1:
            raise refusal(ValueError, "head_dim", f"must be at least 1, got {head_dim}")
        meaning = self.meaning
        if position is not None and meaning.is_position:
            n = self.n_of_position(position)
        refuse_masked("n", n, USE_DATA)
        try:
            counts = np.asarray(n, np.float64)
        except (TypeError, ValueError):
            raise refusal(TypeError, "n", f"must be numbers, got {shown(n)}") from None
        if not (counts >= meaning.least).all():
            raise refusal(ValueError, "n", f"must be at least {meaning.least}, got {counts.min()}")
        # Measured numbers may be infinite: the gaps of a row whose top scores tie.
        if meaning.at_position is not None and not np.isfinite(counts).all():
            raise refusal(ValueError, "n", f"must be finite, got {counts.max()}")
        return counts


@dataclass(frozen=True)
class Scaled(Law):
    """A number, or one a head, times a law; written ``2 * law`` or ``"2 * NAME"``.

    Parameters
    ----------
    law : Law
        A law that gives all keys of a row the same scale.
    amplitude : float or sequence of float
        The factor: one number, or one a head.

    Examples
    --------
    >>> from attnscale.laws import LogN, get
    >>> law = 1.5 * LogN(base=64)
    >>> law.name, law == get("1.5 * log_n(base=64)")
    ('1.5 * log_n(base=64)', True)
    >>> law.multiplier([64, 4096], head_dim=32)
    array([1.5, 3. ])
    """

    law: Law
    amplitude: OneOrPerHead | Sequence[float]

    def _check(self) -> None:
        one_or_per_head(self, "amplitude")
        if self.law.meaning.is_distance:
            raise ValueError(f"law {self.law.name!r} adds to the score as well: a number times it is no law")

    @property
    def name(self) -> str:  # type: ignore[override]  # of the instance here, of the class elsewhere
        """The spelling of the whole product."""
        return self.spelling

    def _spell(self) -> str:
        numbers = list(self.amplitude) if isinstance(self.amplitude, tuple) else self.amplitude
        return f"{numbers!r} * {self.law.spelling}"

    @property
    def n_means(self) -> NMeans:  # type: ignore[override]
        """The meaning of n in the multiplied law."""
        return self.law.n_means

    @property
    def channels(self) -> Channels:  # type: ignore[override]
        """The channels of the multiplied law."""
        return self.law.channels

    @property
    def formula(self) -> str:  # type: ignore[override]
        """The amplitude and the formula of the law."""
        return f"amplitude * ({self.law.formula})"

    @property
    def source(self) -> str:  # type: ignore[override]
        """The source of the law and of the amplitude."""
        return f"{self.law.source}; the amplitude: whoever measured it"

    used_by = "the heads that it was fitted to"

    def to_dict(self) -> dict[str, Any]:
        """The spelling of the product as a name, for :func:`from_dict`."""
        return {"name": self.name, "parameters": {}}

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return head_parameter(self, "amplitude") * self.law._beta(n, head_dim)

    def parameter(self, name: str) -> Any:
        """The value of the amplitude, or of a parameter of the multiplied law."""
        return self.amplitude if name == "amplitude" else self.law.parameter(name)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        amplitude = head_parameter(self, "amplitude")
        inner = self.law._derivatives(n, head_dim)
        shape = np.ones_like(amplitude)
        return {"amplitude": shape * self.law._beta(n, head_dim)} | {
            name: amplitude * each for name, each in inner.items() if name != "amplitude"
        }

    def _scale(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return head_parameter(self, "amplitude") * self.law._scale(n, head_dim)


def head_parameter(law: Law, name: str) -> Any:
    """A parameter as a float, or with one value a head as an array (heads, 1)."""
    value = getattr(law, name)
    return np.array(value)[:, None] if isinstance(value, tuple) else value


def _plain(x: Any) -> float | NDArray[np.float64]:
    return float(x) if np.ndim(x) == 0 else np.asarray(x, np.float64)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class ClosedForm(Law):
    """A law of cpp/include/attnscale/scale_law.hpp, with the same names of law and parameters."""

    @cached_property
    def _in_core(self) -> str | None:
        """The core's spelling; None if a parameter is one number a head."""
        return None if any(isinstance(each, tuple) for each in self._numbers()) else self.spelling

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return law_values(self.name, self._numbers(), n, head_dim, False)

    def _scale(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return law_values(self.name, self._numbers(), n, head_dim, True)

    def _numbers(self) -> tuple[Any, ...]:
        """The parameters in the core's form: for each a number, None or a tuple of one number a head."""
        return tuple([getattr(self, name) for name in _parameters(self.name)])


@cache
def _parameters(law: str) -> list[str]:
    return law_parameters(law)
