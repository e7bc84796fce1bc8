# SPDX-License-Identifier: BSD-3-Clause
"""Criteria of refutation as data, and their evaluation: intervals over the seeds, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import choose
from .._base.text import error_cell, number_cell, to_text
from ..calibration.held_out import shares

# ---- predictions: differences, each with a sign and a margin -------------------------------------


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of measurements of one seed, predicted to be above a margin.

    Attributes
    ----------
    name : str
        Description of the comparison.
    variable : str
        The compared variable of the result.
    terms : tuple of (float, dict)
        A weight, and the labels that select one number of each seed.
    least : float
        The margin, in the variable's unit. A negative margin is the loss that the claim allows.
    """

    name: str
    variable: str
    terms: tuple[tuple[float, Mapping[str, Any]], ...]
    least: float = 0.0

    def less(self, other: Contrast, name: str) -> Contrast:
        """This sum minus another one of the same variable, with a margin of 0."""
        return Contrast(name, self.variable, (*self.terms, *((-weight, at) for weight, at in other.terms)))


def difference(
    name: str,
    variable: str,
    between: Mapping[str, tuple[Any, Any]],
    place: Mapping[str, Any],
    *,
    least: float = 0.0,
) -> Contrast:
    """The difference between two places of a table.

    Parameters
    ----------
    name, variable : str
        See :class:`Contrast`.
    between : dict of str to (label, label)
        The axes in which the places differ, with the labels of the first and of the second.
    place : dict
        The shared labels.
    least : float, default 0
        The margin; see :class:`Contrast`.

    Returns
    -------
    Contrast

    Examples
    --------
    >>> difference("b less a", "loss", {"model": ("b", "a")}, {"n": 8}).terms
    ((1.0, {'model': 'b', 'n': 8}), (-1.0, {'model': 'a', 'n': 8}))
    """
    one, other = ({axis: pair[i] for axis, pair in between.items()} for i in (0, 1))
    return Contrast(name, variable, ((1.0, {**one, **place}), (-1.0, {**other, **place})), least)


@dataclass(frozen=True)
class Claim:
    """A sentence, and the contrasts that it predicts.

    Attributes
    ----------
    text : str
    contrasts : tuple of Contrast
    needs : {"all", "any"}
        Whether the claim predicts all contrasts above their margins, or at least one.
    """

    text: str
    contrasts: tuple[Contrast, ...]
    needs: str = "all"

    def __post_init__(self) -> None:
        choose("needs", self.needs, ("all", "any"))

    @property
    def sentence(self) -> str:
        """The refutation of the claim, in words."""
        margins = ", ".join(f"{each.name} ({each.variable}, {each.least:g})" for each in self.contrasts)
        if len(self.contrasts) == 1:
            (only,) = self.contrasts
            return f"the interval of {only.name} ({only.variable}) lies below {only.least:g} (“{self.text}”)"
        which = "one of these intervals lies" if self.needs == "all" else "all of these intervals lie"
        return f"{which} below the margin: {margins} (“{self.text}”)"


@dataclass(frozen=True)
class Criterion:
    """The claims of one experiment, and the accepted rate of wrong verdicts over all of them.

    Attributes
    ----------
    claims : tuple of Claim
    rate : float
        Largest probability that any interval of the experiment misses its true value.
    degrees : {"satterthwaite", "seeds"}
        Degrees of freedom of the intervals. "satterthwaite": those of an error from seeds and clusters of
        texts, see :func:`judge`. "seeds": the number of seeds minus one, with files in place of clusters, as
        in older criteria.
    """

    claims: tuple[Claim, ...]
    rate: float = 0.05
    degrees: str = "satterthwaite"

    def __post_init__(self) -> None:
        choose("degrees", self.degrees, ("satterthwaite", "seeds"))

    @property
    def contrasts(self) -> int:
        """Number of contrasts of all claims, which share the rate."""
        return sum(len(each.contrasts) for each in self.claims)

    @property
    def sentence(self) -> str:
        """The refutation of each claim, in words."""
        return "; or ".join(each.sentence for each in self.claims)

    def to_dict(self) -> dict[str, Any]:
        """The criterion as JSON types; old ones, of "seeds", keep their form."""
        found = asdict(self)
        if self.degrees == "seeds":
            del found["degrees"]
        return found

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The criterion from :meth:`to_dict`, also if JSON turned its tuples into lists."""
        claims = tuple(
            Claim(each["text"], tuple(map(_contrast, each["contrasts"])), each["needs"])
            for each in stored["claims"]
        )
        return cls(claims, stored["rate"], stored.get("degrees", "seeds"))


def _contrast(stored: Mapping[str, Any]) -> Contrast:
    terms = tuple((float(weight), dict(labels)) for weight, labels in stored["terms"])
    return Contrast(stored["name"], stored["variable"], terms, stored["least"])


# ---- errors of means over seeds and texts, where texts of one file are not independent -----------


_DRAWS = 2000


def crossed_error(values: ArrayLike, files: ArrayLike) -> float:
    """The standard error of the mean of `values`, by a bootstrap that draws seeds and files.

    All seeds read the same texts, so a text's own difficulty does not vanish in the mean over seeds. A draw
    samples the seeds and, independently, the files with all their texts.

    Parameters
    ----------
    values : array_like, shape (seeds, texts)
    files : array_like of int, shape (texts,)
        Ids of the texts' files, or of larger clusters such as books.

    Returns
    -------
    float
        NaN with a single file. A single seed is not drawn: the error is then that of the files.

    Notes
    -----
    From k seeds, or files, k - 1 are drawn with replacement, because k would make the error too small by
    sqrt(1 - 1/k) (Rao and Wu 1988, JASA 83, 231). Variation shared by a seed and a file counts twice, so the
    error tends to be too large (Owen 2007, arXiv 0712.1111). The draws are the same at each call.

    Examples
    --------
    >>> texts = np.random.default_rng(0).normal(size=(1, 400))
    >>> round(crossed_error(texts, np.arange(400)), 2)  # 1 / sqrt(400)
    0.05
    """
    if len(np.unique(np.asarray(files))) < 2:
        return float("nan")
    return float(crossed_means(values, files).std(ddof=1))


def crossed_means(values: ArrayLike, files: ArrayLike) -> NDArray[np.float64]:
    """Means over seeds and texts in each draw of the bootstrap of :func:`crossed_error`.

    Parameters
    ----------
    values : array_like, shape (seeds, ..., texts)
    files : array_like of int, shape (texts,)

    Returns
    -------
    ndarray, shape (draws, ...)
        A single seed, or a single file, is not drawn.

    Examples
    --------
    >>> crossed_means([[[1.0], [2.0]], [[1.0], [2.0]]], [0]).std(0)  # two seeds agree on two means
    array([0., 0.])
    """
    values = np.asarray(values, np.float64)
    kinds, where = np.unique(np.asarray(files), return_inverse=True)
    rng = np.random.default_rng(0)
    flat = values.reshape(len(values), -1, values.shape[-1])
    by_file = flat @ (where[:, None] == np.arange(len(kinds)))  # seeds, means, files
    of_seeds, of_files = (shares(rng, len(each), _DRAWS) for each in (values, kinds))
    sums = np.einsum("ds,smf,df->dm", of_seeds, by_file, of_files, optimize=True)
    means = sums / (of_files @ np.bincount(where))[:, None]
    return np.asarray(means.reshape(_DRAWS, *values.shape[1:-1]))


# ---- evaluation of a table -----------------------------------------------------------------------


#: Share of runs that would show the smallest visible difference.
POWER = 0.8
#: Words of a verdict.
_NEEDED = {"all": "all must hold", "any": "one must hold"}
_ABOUT_REDUCED = "; the reduced config, a test cell: no evidence for or against the claims"


class Measured(Protocol):
    """A table of measurements by seed: a :class:`TrainingResult`."""

    @property
    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """The measurements by variable."""

    def select(self, name: str, **labels: Any) -> NDArray[np.float64]:
        """The measurements at these labels."""


@dataclass(frozen=True)
class Finding:
    """One judged contrast.

    Attributes
    ----------
    name : str
    least : float
        The margin that the claim predicts the difference to exceed.
    value, error : float
        Mean over the seeds and its standard error; NaN if they cannot be computed.
    low, high : float
        Interval that holds simultaneously with those of all other contrasts.
    p : float
        Two-sided p value of equality with the margin, times the number of contrasts.
    visible : float
        The smallest difference above the margin that 80 of 100 such runs would show, at this error.
    seeds : int
        Number of seeds with the measurement.
    degrees : float
        Degrees of freedom of the interval.
    by_cluster : tuple of (float, float, float) or None
        Low end, high end and degrees of freedom of the interval with errors by cluster, beside a criterion
        with the seeds' degrees; None if it is the criterion's own.
    outcome : {"shown", "refuted", "undecided"}
        Shown if the interval is above the margin, refuted if it is below.
    note : str
        The reason why nothing can be said, or empty.
    variable, unit : str
        Variable and unit of the numbers: "nat" or "" (a plain number).
    """

    name: str
    least: float
    value: float = math.nan
    error: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    visible: float = math.nan
    seeds: int = 0
    degrees: float = math.nan
    by_cluster: tuple[float, float, float] | None = None
    outcome: str = "undecided"
    note: str = ""
    variable: str = ""
    unit: str = ""


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its verdict.

    Attributes
    ----------
    text : str
    needs : {"all", "any"}
    findings : tuple of Finding
    """

    text: str
    needs: str
    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> str:
        """Shown, refuted or undecided, from the findings and the number that the claim needs."""
        found = [each.outcome for each in self.findings]
        every, some = ("shown", "refuted") if self.needs == "all" else ("refuted", "shown")
        if some in found:
            return some
        return every if found and set(found) == {every} else "undecided"


@dataclass(frozen=True)
class Verdict:
    """The verdict on each claim of an experiment.

    Attributes
    ----------
    experiment : str
    claims : tuple of JudgedClaim
    rate : float
        Largest probability that any interval misses its true value, if means are normal.
    registration : str
        Hash of the registration before the run; empty for an exploratory run.
    reduced : bool
        Whether the config was the small one that tests run: no evidence for or against a claim.
    """

    experiment: str
    claims: tuple[JudgedClaim, ...]
    rate: float
    registration: str = ""
    reduced: bool = False

    @property
    def exploratory(self) -> bool:
        """Whether the run was not registered, so that another run has to confirm its verdicts."""
        return not self.registration

    @property
    def refuted(self) -> bool:
        """Whether any claim is refuted."""
        return any(each.outcome == "refuted" for each in self.claims)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each contrast: its claim, numbers and outcome."""
        return [
            {"claim": claim.text, "verdict": claim.outcome, **vars(finding), "reduced": self.reduced}
            for claim in self.claims
            for finding in claim.findings
        ]

    def __str__(self) -> str:
        status = "exploratory: not registered" if self.exploratory else f"registered as {self.registration}"
        parts = [f"{self.experiment}, {status}{_ABOUT_REDUCED if self.reduced else ''}"]
        where = " in a test cell" if self.reduced else ""
        for claim in self.claims:
            said = f"{claim.outcome}{where}: {claim.text} ({_NEEDED[claim.needs]})"
            parts += ["", said, _table(claim.findings)]
        count = sum(len(each.findings) for each in self.claims)
        closing = (
            f"The intervals ({count}) are of t with df degrees of freedom and hold at once with probability "
            f"{1 - self.rate:g}; visible: the least difference above the margin that {POWER:.0%} of such "
            "runs would show."
        )
        return "\n".join([*parts, "", closing])


def judge(
    criterion: Criterion,
    table: Measured,
    *,
    experiment: str = "",
    registration: str = "",
    reduced: bool = False,
) -> Verdict:
    """Judge the claims of a criterion by a table of measurements.

    Each contrast is computed for each seed, hence paired. Its interval is the mean ± t times the standard
    error, where t is the quantile at the criterion's rate shared equally among all contrasts (Bonferroni). If
    the table has the variable of each text, the standard error is a bootstrap over seeds and clusters of
    texts, see :func:`crossed_error`: the clusters of the variable ``text_cluster``, or else the files of
    ``text_file``. The degrees of freedom are then those of Satterthwaite (1946, Biometrics Bulletin 2, 110),

        df = (v_s + v_c)^2 / (v_s^2 / (S - 1) + v_c^2 / (K - 1)),

    where v_s and v_c are the squared errors from S seeds and from clusters, and K = (sum n)^2 / sum n^2 is
    the effective number of clusters of n texts each; K - 1 counts as 1 where it is less.

    Parameters
    ----------
    criterion : Criterion
    table : TrainingResult
    experiment, registration, reduced
        Copied into the verdict, see :class:`Verdict`.

    Returns
    -------
    Verdict
        A contrast that was not measured, or not for all seeds, or for one seed, or without spread over the
        seeds, is undecided and has a note.

    Examples
    --------
    >>> from attnscale.experiments import Claim, Criterion, difference
    >>> class Table:  # of two models, five seeds each
    ...     arrays = {"loss": np.array([[1.1, 1.0, 1.2, 1.1, 1.0], [2.0, 2.2, 2.1, 2.0, 2.3]])}
    ...     def select(self, name, model):
    ...         return self.arrays[name]["ab".index(model)]
    >>> worse = Claim("b is worse", (difference("b less a", "loss", {"model": ("b", "a")}, {}),))
    >>> judge(Criterion((worse,)), Table()).claims[0].outcome
    'shown'
    """
    claims = [
        JudgedClaim(each.text, each.needs, tuple(_find(one, table, criterion) for one in each.contrasts))
        for each in criterion.claims
    ]
    return Verdict(experiment, tuple(claims), criterion.rate, registration, reduced)


def _find(contrast: Contrast, table: Measured, criterion: Criterion) -> Finding:
    """The finding for one contrast, with its variable; a table need not know its variables' units."""
    variable = getattr(table, "variables", {}).get(contrast.variable)
    unit = "" if variable is None else variable.unit
    return replace(_judged(contrast, table, criterion), variable=contrast.variable, unit=unit)


def _judged(contrast: Contrast, table: Measured, criterion: Criterion) -> Finding:
    """The numbers and the outcome of a contrast, at its share of the criterion's rate."""
    name, least = contrast.name, contrast.least
    try:
        by_seed = _combined(contrast, contrast.variable, table)
    except KeyError as missing:
        return Finding(name, least, note=f"not measured: {missing.args[0]}")
    there = np.isfinite(by_seed)
    seeds, planned = int(there.sum()), len(by_seed)
    value = float(by_seed[there].mean()) if seeds else math.nan
    if seeds < planned:
        return Finding(name, least, value, seeds=seeds, note=f"{seeds} of {planned} seeds are there")
    if seeds < 2:
        return Finding(name, least, value, seeds=seeds, note="one seed has no error")
    texts = _texts(contrast, table, criterion.degrees)
    found = Finding(name, least, value, seeds=seeds)
    if texts is None or criterion.degrees == "satterthwaite":
        return _tested(found, *_error(by_seed, texts), criterion)
    old = _tested(found, crossed_error(*texts), seeds - 1, criterion)
    new = _tested(found, *_error(by_seed, _texts(contrast, table, "satterthwaite")), criterion)
    return replace(old, by_cluster=(new.low, new.high, new.degrees))


def _tested(found: Finding, error: float, free: float, criterion: Criterion) -> Finding:
    """The finding for a mean with its standard error and degrees of freedom."""
    from scipy import stats  # at first use, since the import is slow

    if not error > 0:
        note = "no spread over the seeds, as at a floor or a ceiling: nothing can be told"
        return replace(found, error=error, note=note)
    value, least, count = found.value, found.least, criterion.contrasts
    quantile = float(stats.t.isf(criterion.rate / count / 2, free))
    low, high = value - quantile * error, value + quantile * error
    p = min(1.0, count * 2 * float(stats.t.sf(abs(value - least) / error, free)))
    outcome = "shown" if low > least else "refuted" if high < least else "undecided"
    visible = error * _reach(quantile, free)
    return replace(
        found, error=error, low=low, high=high, p=p, visible=visible, degrees=free, outcome=outcome
    )


def _reach(quantile: float, free: float) -> float:
    """The true difference, in standard errors, that exceeds the quantile of t in 80 of 100 runs."""
    from scipy import optimize, stats

    def missed(distance: float) -> float:
        return float(stats.nct.cdf(quantile, free, distance)) - (1 - POWER)

    return float(optimize.brentq(missed, 0.0, 4 * quantile + 10))


def _combined(contrast: Contrast, variable: str, table: Measured) -> NDArray[np.float64]:
    """The weighted sum of the terms, along the seeds and the axes that the labels leave."""
    parts = [weight * table.select(variable, **labels) for weight, labels in contrast.terms]
    return np.asarray(sum(parts), np.float64)


def _texts(
    contrast: Contrast, table: Measured, degrees: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """The contrast of each seed and text, and the texts' clusters or files; None without texts."""
    by_text = f"{contrast.variable}_by_text"
    if by_text not in table.arrays:
        return None
    clustered = degrees == "satterthwaite" and "text_cluster" in table.arrays
    ids = table.arrays["text_cluster" if clustered else "text_file"]
    ids = ids.reshape(-1, ids.shape[-1])
    first = ids[np.isfinite(ids).all(-1)][0]  # all models read the same texts
    return _combined(contrast, by_text, table), first


def _error(
    by_seed: NDArray[np.float64], texts: tuple[NDArray[np.float64], NDArray[np.float64]] | None
) -> tuple[float, float]:
    """The standard error of the mean, and its degrees of freedom; see :func:`judge`."""
    seeds = len(by_seed)
    if texts is None:
        return float(by_seed.std(ddof=1) / math.sqrt(seeds)), seeds - 1
    values, ids = texts
    _, where, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    error = crossed_error(values, ids)
    if not error > 0:
        return error, math.nan
    away = np.bincount(where, values.mean(0) - values.mean()) / len(ids)
    of_clusters = len(sizes) / (len(sizes) - 1) * np.square(away).sum()
    parts = np.array([by_seed.var(ddof=1) / seeds, of_clusters])
    free = np.array([seeds - 1, max(1.0, len(ids) ** 2 / np.square(sizes).sum() - 1)])
    return error, float(parts.sum() ** 2 / np.sum(parts**2 / free))


def _table(findings: tuple[Finding, ...]) -> str:
    beside = ("by cluster",) if any(each.by_cluster for each in findings) else ()
    header = ("difference", "of", "margin", "mean", "error", "interval", "df", "p", "visible", "seeds")
    return to_text((*header, *beside, "verdict"), [_row(each, beside) for each in findings])


def _interval(low: float, high: float) -> str:
    return "-" if math.isnan(low) else f"{low:.3g} to {high:.3g}"


def _row(found: Finding, beside: tuple[str, ...]) -> tuple[str, ...]:
    low, high, free = found.by_cluster or (math.nan,) * 3
    cluster = "-" if math.isnan(low) else f"{_interval(low, high)} (df {free:.2g})"
    return (
        found.name,
        f"{found.variable} ({found.unit})" if found.unit else found.variable,
        f"{found.least:g}",
        number_cell(found.value, ".3g"),
        error_cell(found.error, ".2g"),
        _interval(found.low, found.high),
        number_cell(found.degrees, ".2g"),
        number_cell(found.p, ".2g"),
        number_cell(found.visible, ".2g"),
        str(found.seeds),
        *(cluster for _ in beside),
        f"{found.outcome}{f': {found.note}' if found.note else ''}",
    )
