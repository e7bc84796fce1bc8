# SPDX-License-Identifier: BSD-3-Clause
"""Laws by name, user-defined laws, and laws with new values of learned parameters."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from .._base.checks import choose, shown
from .._base.spelling import as_literal, check_parameters, parse_spelling, spell
from ._base import Law, Scaled
from ._meaning import MEANINGS_OF_N, NMeans

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LawType = TypeVar("_LawType", bound=type[Law])
_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Name in :func:`get` of the length from which a law counts, for every law.
_LENGTH = "train_length"

_classes: dict[str, type[Law]] = {}
_functions: dict[str, tuple[Callable[..., Any], NMeans]] = {}


def built_in(law: _LawType) -> _LawType:
    """Register a class of laws of this package under its name."""
    _classes[law.name] = law
    return law


@dataclass(frozen=True, repr=False)
class FunctionLaw(Law):
    """A registered function with its parameters; made by :func:`get`.

    Attributes
    ----------
    name, n_means, formula, source, used_by : str
        Attributes of every law; the formula is the first line of the function's docstring.
    function : callable
        ``function(n, head_dim, **parameters)`` returns the scale.
    parameters : tuple of (str, value) pairs
        The keyword arguments of the function, defaults included.
    """

    name: str  # type: ignore[misc]  # of the instance here, of the class for every other law
    function: Callable[..., Any]
    parameters: tuple[tuple[str, Any], ...]
    n_means: NMeans  # type: ignore[misc]

    @property
    def formula(self) -> str:  # type: ignore[override]
        """First line of the function's docstring."""
        return (inspect.getdoc(self.function) or self.function.__qualname__).splitlines()[0]

    source = "registered by the user"
    used_by = "its author"

    def __repr__(self) -> str:
        arguments = "".join(f", {name}={value!r}" for name, value in self.parameters)
        return f"get({self.name!r}{arguments})"

    def _spell(self) -> str:
        """Name and parameters other than defaults; reading it needs the registered function."""
        usual, given = _parameters_of_function(self.function)[0], dict(self.parameters)
        same = {name for name, value in usual.items() if as_literal(value) == as_literal(given[name])}
        return spell(self.name, {name: value for name, value in self.parameters if name not in same})

    def with_defaults(self) -> FunctionLaw:
        """A law of the same function with only its default parameters."""
        return replace(self, parameters=tuple(_parameters_of_function(self.function)[0].items()))

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters; reading them needs the function registered under this name."""
        return {"name": self.name, "parameters": dict(self.parameters)}

    def _scale(self, n: NDArray[np.float64], head_dim: int) -> Any:
        returned = self.function(n, head_dim, **dict(self.parameters))
        array = np.asarray(returned)
        if array.dtype.kind not in "iuf":
            raise TypeError(f"law {self.name!r} must return the scale as numbers, got {shown(returned)}")
        if not np.isfinite(array).all():
            self._check_finite(*np.broadcast_arrays(array, n))
        return array

    def _check_finite(self, scales: NDArray[Any], n: NDArray[np.float64]) -> None:
        """Refuse an infinite or NaN scale at a finite n; an n measured on the row may be infinite."""
        bad = np.isfinite(n) & ~np.isfinite(scales)
        if bad.any():
            seen, at = float(scales[bad][0]), as_literal(n[bad][0])
            raise ValueError(
                f"law {self.name!r} must return finite numbers, got {seen} at n = {at} "
                f"({self.meaning.description})"
            )

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return self._scale(n, head_dim) * math.sqrt(head_dim)


def names() -> tuple[str, ...]:
    """Names for :func:`get` and ``scale=``: those of the package, then registered functions.

    Examples
    --------
    >>> names()[:3]
    ('standard', 'unscaled', 'constant')
    """
    return (*_classes, *_functions)


def class_of(name: str) -> type[Law] | None:
    """The package's class with that name; None for a registered function or an unknown name."""
    return _classes.get(name)


def get(law: str | float | Law, **parameters: Any) -> Law:
    """The law of a spelling: the common grammar of ``scale=``, ``law=`` and ``laws=``.

    Parameters
    ----------
    law : str, float or Law
        One of :func:`names`; a name with parameters, ``"ssmax(s=0.43)"``; a number, also as text, which is
        the multiplier of q . k itself; a number, or a list with one a head, times a law, ``"1.2 * log_n"``. A
        law is returned unchanged.
    **parameters
        Parameters of that law, if ``law`` is a name without them. Every law that counts from a length
        (``length_parameter``) accepts ``train_length``, also if its own name for the length differs.

    Raises
    ------
    ValueError
        If there is no such law, or a parameter is out of range.
    TypeError
        If the law has no such parameter or lacks a required one, or ``law`` is of another kind.

    Examples
    --------
    >>> get("log_n", base=1024)
    LogN(base=1024.0, floor=1.0)
    >>> get("log_n(base=1024)") == get("log_n", train_length=1024)
    True
    >>> get(0.125)
    Constant(value=0.125)
    """
    if isinstance(law, str) and not parameters and law.partition("(")[0] in _classes:
        return _of_package(law)
    return _read(law, parameters)


@lru_cache(maxsize=256)
def _of_package(spelling: str) -> Law:
    """The law of a spelling, cached: reading may take longer than a call, and laws do not change."""
    return _read(spelling, {})


def _read(law: Any, parameters: dict[str, Any]) -> Law:
    number = _as_number(law)
    if isinstance(law, Law) or number is not None:
        if parameters:
            raise TypeError(f"parameters go with a law's name, got {shown(law)} and {sorted(parameters)}")
        return law if isinstance(law, Law) else _classes["constant"](number)  # type: ignore[call-arg]
    if not isinstance(law, str):
        raise TypeError(
            f"a law is a Law, a number, a name or a spelling such as 'ssmax(s=0.43)', got {shown(law)}"
        )
    if parameters and ("(" in law or _is_product(law)):
        raise TypeError(
            f"parameters stand in the name or beside it, got {shown(law)} and {sorted(parameters)}"
        )
    if _is_product(law):
        amplitude, rest = _read_product(law)
        return amplitude * get(rest)
    if "(" in law:
        law, parameters = parse_spelling(law, "a law")
    if not law.replace("-", "_").isidentifier():
        raise ValueError(f"a law must be a number, as 0.125, or a name, as 'log_n', got {shown(law)}")
    choose("the name of a law", law, names())
    if law in _classes:
        known, required = _parameters_of_class(_classes[law])
        parameters = _own_length(_classes[law], parameters)
        _check_parameters(law, parameters, known, required)
        return _classes[law](**parameters)
    function, n_means = _functions[law]
    defaults, required = _parameters_of_function(function)
    _check_parameters(law, parameters, [*defaults, *required], required)
    return FunctionLaw(law, function, tuple({**defaults, **parameters}.items()), n_means)


def with_length(law: str | float | Law, length: float) -> Law:
    """The law of :func:`get`; a training length left open by a spelling is `length`."""
    if isinstance(law, str) and _is_product(law):
        amplitude, rest = _read_product(law)
        return amplitude * with_length(rest, length)
    if isinstance(law, str) and _as_number(law) is None:
        name, own = parse_spelling(law, "a law") if "(" in law else (law, {})
        known = class_of(name)
        if (
            known is not None
            and known.length_parameter
            and not {known.length_parameter, _LENGTH} & own.keys()
        ):
            return get(name, **own, **{_LENGTH: length})
    return get(law)


def explain(law: str | float | Law, **parameters: Any) -> str:
    """Formula, meaning of n, source and users of a law, as text.

    Examples
    --------
    >>> print(explain("unscaled"))
    unscaled: Unscaled()
      scale    1
      n        not used: the scale is the same at every length
      source   TENER, Yan et al. 2019, arXiv 1911.04474
      used by  TENER, T5 (whose initialisation carries the factor)
    """
    return get(law, **parameters).explain()


def from_dict(stored: Mapping[str, Any]) -> Law:
    """The law that :meth:`Law.to_dict` wrote.

    Parameters
    ----------
    stored : mapping
        A mapping with the entries ``name`` and, unless all parameters have their defaults, ``parameters``.

    Raises
    ------
    TypeError, ValueError
        If ``stored`` is not such a mapping, or :func:`get` refuses the law.

    Examples
    --------
    >>> from_dict({"name": "log_n", "parameters": {"base": 1024}})
    LogN(base=1024.0, floor=1.0)
    """
    if not isinstance(stored, Mapping):
        raise TypeError(f"a stored law is a mapping with 'name' and 'parameters', got {shown(stored)}")
    if "name" not in stored or stored.keys() - {"name", "parameters"}:
        raise ValueError(f"a stored law has the entries 'name' and 'parameters', got {list(stored)}")
    parameters = stored.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise TypeError(f"the parameters of a stored law are a mapping, got {shown(parameters)}")
    return get(stored["name"], **parameters)


def from_json(text: str) -> Law:
    """The law that :meth:`Law.to_json` wrote.

    Raises
    ------
    TypeError, ValueError
        If the text is not JSON, or :func:`from_dict` refuses its content.

    Examples
    --------
    >>> from_json(get("ssmax", s=[0.4, 0.5]).to_json())
    SSMax(s=(0.4, 0.5), b=0.0, floor=1.0)
    """
    try:
        stored = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"a stored law is JSON, got {shown(text)}: {error}") from None
    return from_dict(stored)


def register(name: str, *, n_means: NMeans = "visible keys") -> Callable[[_Function], _Function]:
    """Register a function as a law for ``scale=``.

    Parameters
    ----------
    name : str
        The law's name: a Python identifier, for spellings. A name of this package is refused; a registered
        one is replaced.
    n_means : str, default "visible keys"
        Meaning of n: one of :data:`MEANINGS_OF_N`.

    Returns
    -------
    callable
        A decorator that returns its function unchanged. The function is called as ``function(n, head_dim, *,
        <parameters>)`` with an array n (float64, at least 1) and returns the scale: finite numbers of either
        sign. NaN or infinity at a finite n is a ValueError that names the law and the n.

    Examples
    --------
    >>> @register("root_log")
    ... def root_log(n, head_dim, *, n0=512):
    ...     "sqrt(1 + 2 ln(n / n0)) / sqrt(head_dim)"
    ...     return (1 + 2 * np.log(n / n0)) ** 0.5 / head_dim**0.5
    >>> get("root_log", n0=64)
    get('root_log', n0=64)
    >>> get("root_log").scale(512, 64)
    0.125
    """
    if not name:
        raise ValueError("name must not be empty")
    if not name.isidentifier() or iskeyword(name) or _as_number(name) is not None:
        raise ValueError(
            "name must be a Python identifier, so that 'NAME(parameter=value)' is read, and no number, "
            f"got {shown(name)}"
        )
    if name in _classes:
        raise ValueError(f"name must not be one of this package's laws, got {shown(name)}")
    meaning = cast(NMeans, choose("n_means", n_means, list(MEANINGS_OF_N)))

    def decorate(function: _Function) -> _Function:
        _parameters_of_function(function)
        _functions[name] = (function, meaning)
        return function

    return decorate


def _as_number(law: Any) -> float | None:
    """The number that `law` is or spells; None if there is none."""
    if isinstance(law, (bool, np.bool_)) or not isinstance(law, (str, int, float, np.integer, np.floating)):
        return None
    try:
        return float(law)
    except ValueError:
        return None


def _is_product(text: str) -> bool:
    """Whether there is a "*" outside of the parameters."""
    return "*" in text.partition("(")[0]


def _read_product(text: str) -> tuple[float | list[float], str]:
    """The number, or the heads' numbers, and the law of "NUMBER * LAW"."""
    import ast

    amplitude, _, rest = text.partition("*")
    try:
        return ast.literal_eval(amplitude.strip()), rest.strip()
    except (SyntaxError, ValueError):
        raise ValueError(f"a number times a law is written '1.2 * NAME', got {shown(text)}") from None


def _own_length(law: type[Law], parameters: dict[str, Any]) -> dict[str, Any]:
    """`parameters` with the law's own name for the training length."""
    own = law.length_parameter
    if own in (None, _LENGTH) or _LENGTH not in parameters:
        return parameters
    if own in parameters:
        raise TypeError(f"{_LENGTH} is {own} of law {law.name!r}: give one of them")
    return {own if name == _LENGTH else name: value for name, value in parameters.items()}


def _parameters_of_class(law: type[Law]) -> tuple[list[str], list[str]]:
    """(all, required): the names of the parameters of a class of laws."""
    parameters = fields(cast(Any, law))
    return [each.name for each in parameters], [each.name for each in parameters if each.default is MISSING]


def _parameters_of_function(function: Callable[..., Any]) -> tuple[dict[str, Any], list[str]]:
    """(defaults, required): the keyword-only parameters of a function registered as a law."""
    parameters = list(inspect.signature(function).parameters.values())
    keyword = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
    if len(parameters) - len(keyword) != 2:
        raise TypeError(
            "a law is a function (n, head_dim, *, parameters), "
            f"got {function.__name__}{inspect.signature(function)}"
        )
    defaults = {each.name: each.default for each in keyword if each.default is not each.empty}
    return defaults, [each.name for each in keyword if each.default is each.empty]


def _check_parameters(name: str, given: dict[str, Any], known: list[str], required: list[str]) -> None:
    check_parameters(f"law {name!r}", f"'{name}({{}}=...)'", given, known, required)


#: A value that every law accepts as length, factor or power.
_PLACEHOLDER = 2.0
#: An n at which every law's derivatives are finite.
_N = 3.0


def learnable(law: Law) -> tuple[str, ...]:
    """Names of the parameters in :meth:`Law.derivatives`."""
    return tuple(law.derivatives(_N, 1))


def open_law(law: str | float | Law, parameters: tuple[str, ...]) -> Law:
    """The law of :func:`get` with placeholders for missing `parameters`."""
    if not (isinstance(law, str) and law in names()):
        return get(law)
    return _open_of_package(law, parameters) if law in _classes else _opened(law, parameters)


def _opened(law: str, parameters: tuple[str, ...]) -> Law:
    return get(law, **dict.fromkeys(parameters, _PLACEHOLDER))


#: Cached, as :func:`_of_package`: every call with a learned law opens it.
_open_of_package = lru_cache(maxsize=256)(_opened)


def check_learnable(law: Law, parameters: Iterable[str]) -> None:
    """Refuse a parameter without a gradient in the law."""
    known = learnable(law)
    for name in parameters:
        if name not in known:
            raise ValueError(
                f"a parameter must be one that law {law.name!r} has a gradient of "
                f"({', '.join(known) or 'it has none'}), got {shown(name)}"
            )


def takes_one_a_head(law: Law, name: str) -> bool:
    """Whether this parameter may be one number a head."""
    value = law.parameter(name)
    try:
        with_values(law, {name: value if isinstance(value, tuple) else (value,)})
    except TypeError:
        return False
    return True


def with_values(law: Law, values: Mapping[str, float | tuple[float, ...]]) -> Law:
    """The law with these values in place of its own, checked by the law."""
    if not isinstance(law, Scaled):
        return cast(Law, replace(cast(Any, law), **values))
    inner = {name: value for name, value in values.items() if name != "amplitude"}
    return replace(law, law=with_values(law.law, inner), amplitude=values.get("amplitude", law.amplitude))


def of_heads(law: Law, part: slice, count: int) -> Law:
    """The law of a part of `count` heads: of parameters with one number a head, the part's numbers.

    Examples
    --------
    >>> of_heads(get("[1, 2, 3] * log_n"), slice(1, 3), 3).spelling
    '[2.0, 3.0] * log_n'
    """
    if isinstance(law, Scaled):
        law = replace(law, law=of_heads(law.law, part, count))
    parameters = {each.name: getattr(law, each.name) for each in fields(cast(Any, law))}
    held = {
        name: value for name, value in parameters.items() if isinstance(value, tuple) and len(value) == count
    }
    return with_values(
        law, {name: value[part] for name, value in held.items() if _takes_one(law, name, value[0])}
    )


def _takes_one(law: Law, name: str, value: float) -> bool:
    """Whether a parameter that is a sequence may be one number too: then its numbers are those of heads."""
    try:
        with_values(law, {name: value})
    except (TypeError, ValueError):
        return False
    return True
