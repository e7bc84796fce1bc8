# SPDX-License-Identifier: BSD-3-Clause
"""The scale that keeps the entropy of given heads, measured, and the law that comes closest to it."""

from __future__ import annotations

import operator
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import boolean
from .._base.drawing import drawn_by
from .._base.hints import hinted
from .._base.tabled import Labelled, Sheet, Tabled, nats_per, row_dims
from .._call.call import Call
from ..exact.results import coordinates_of, labelled_as

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray

    from .._call.named import AxesOfRows
    from .._call.types import Dims, Layout
    from .._grid.progress import Progress
    from ..laws import Law
    from .fit import Length

__all__ = ["Calibration", "calibrate"]

#: The axes of the arrays of a Calibration, where axes have names.
_AXES: dict[str, AxesOfRows] = {
    **dict.fromkeys(("target", "equal_scores"), (...,)),
    **dict.fromkeys(("beta", "standard_entropy", "median_entropy"), (..., "n")),
    "amplitude": ("law", ...),
    **dict.fromkeys(("law_beta", "law_entropy"), ("law", ..., "n")),
}
RESOLUTION = 1e-6  # nats: an entropy in float32 this near to that of equal weights is equal to it


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Tabled):
    """Beta that each head needs at each length, and how closely laws give it.

    Beta is the scale times sqrt(head_dim); 1 is ordinary attention. If the axes of query and key have names,
    the arrays are labelled, also by "law" and "n".

    Attributes
    ----------
    n0 : int
        The length whose entropy is kept.
    lengths : ndarray of int64, shape (n_lengths,)
    target : ndarray, shape (..., heads)
        Mean entropy of the rows at n0 under the standard scale, in nats.
    beta : ndarray, shape (..., heads, n_lengths)
        Measured: at this beta the mean entropy at that length is the target. NaN where no beta reaches it
        (usually a target above ln n), and for heads that see a NaN.
    standard_entropy : ndarray, shape (..., heads, n_lengths)
        Mean entropy under the standard scale.
    laws : tuple of Law
        The compared laws, no two equal; tables and labels show their ``spelling``.
    amplitude : ndarray, shape (n_laws, ..., heads)
        The constant that each law is multiplied by: the least-squares fit to ``beta``.
    law_beta : ndarray, shape (n_laws, ..., heads, n_lengths)
        Mean over the rows of the amplitude times the law's multiplier.
    law_entropy : ndarray, shape (n_laws, ..., heads, n_lengths)
        Mean entropy under the amplitude times the law, computed at each length.
    median_entropy : ndarray, shape (..., heads, n_lengths)
        Mean entropy under :attr:`median_law`; NaN where no law is determined.
    equal_scores : ndarray of bool, shape (..., heads)
        Heads whose entropy at n0 is that of equal weights: no beta changes it, and their ``beta`` is NaN.
    is_causal : bool
        Whether a mean entropy covers the last eighth of the queries instead of all.
    """

    n0: int
    lengths: NDArray[np.int64]
    target: NDArray[np.float64]
    beta: NDArray[np.float64]
    standard_entropy: NDArray[np.float64]
    laws: tuple[Law, ...]
    amplitude: NDArray[np.float64]
    law_beta: NDArray[np.float64]
    law_entropy: NDArray[np.float64]
    median_entropy: NDArray[np.float64]
    equal_scores: NDArray[np.bool_]
    is_causal: bool = False

    @property
    def rows(self) -> str:
        """The rows that a mean entropy covers, in words."""
        return rows_that_count(is_causal=self.is_causal)

    @property
    def beta_error(self) -> NDArray[np.float64]:
        """Root mean square over the lengths of law_beta - beta, shape (n_laws, ..., heads)."""
        bare = _bare(self)
        return labelled_as(self.amplitude, _root_mean_square(bare.law_beta - bare.beta), "beta_error")

    @property
    def entropy_error(self) -> NDArray[np.float64]:
        """Root mean square over the lengths of law_entropy - target in nats, shape (n_laws, ..., heads).

        Lengths at which no beta gives the target do not count.
        """
        bare = _bare(self)
        misses = bare.law_entropy - bare.target[..., None] + 0 * bare.beta
        return labelled_as(self.amplitude, _root_mean_square(misses), "entropy_error", "nat")

    @property
    def determined(self) -> NDArray[np.bool_]:
        """Heads with a beta at two lengths or more, shape (..., heads); at one length every law fits."""
        several = np.isfinite(np.asarray(self.beta)).sum(-1) > 1
        return labelled_as(self.target, np.asarray(several), "determined")

    @property
    def best(self) -> NDArray[np.int64]:
        """Index into ``laws`` of the least entropy_error of each head; -1 where it is not determined."""
        bare = _bare(self)
        errors = np.where(np.isnan(bare.entropy_error), np.inf, bare.entropy_error)
        found = np.where(bare.determined & np.isfinite(errors.min(0)), errors.argmin(0), -1)
        return labelled_as(self.target, found, "best")

    @property
    def ranking(self) -> dict[str, float]:
        """Laws and the root mean square of their entropy_error over the determined heads, least first.

        Keys are spellings; laws that are equal up to the amplitude are joined by " = ". Empty where no head
        is determined.
        """
        spelled = [law.spelling for law in self.laws]
        return {" = ".join(spelled[i] for i in sorted(group)): error for group, error in ranked(self)}

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Indices into ``laws`` of each entry of the ranking, in its order."""
        return tuple(tuple(sorted(group)) for group, _ in ranked(self))

    @property
    def first(self) -> int:
        """Index into ``laws`` of the first of the ranking."""
        groups = self.groups
        if not groups:
            raise ValueError(f"no law is determined: {self.recommendation}")
        return groups[0][0]

    @property
    def fitted_law(self) -> Law:
        """The first law of the ranking times its amplitude of each head, for ``scale=``.

        A head that is not determined gets the median of the others; over batch axes the median counts as
        well. Its ``spelling`` is text to paste.

        Raises
        ------
        ValueError
            If no head is determined.
        """
        first = self.laws[self.first]
        bare = _bare(self)
        known = np.where(bare.determined, bare.amplitude[self.first], np.nan)
        if not known.ndim:
            return float(known) * first
        columns = (column[~np.isnan(column)] for column in known.reshape(-1, known.shape[-1]).T)
        every = float(np.nanmedian(known))
        return [float(np.median(each)) if each.size else every for each in columns] * first

    @property
    def median_law(self) -> Law:
        """The recommended law with one amplitude for all heads, the median, to four digits."""
        return median_law(self)

    @property
    def median_error(self) -> float:
        """Root mean square of median_entropy - target over the determined heads and lengths, in nats."""
        bare = _bare(self)
        misses = bare.median_entropy - bare.target[..., None] + 0 * bare.beta
        each = _root_mean_square(misses)[bare.determined]
        return float(np.sqrt((each**2).mean())) if each.size else float("nan")

    @property
    def recommendation(self) -> str:
        """The recommended law and its errors in words, for these heads and lengths only."""
        return describe(_bare(self))

    def _variables(self) -> dict[str, Labelled]:
        heads = getattr(self.target, "dims", row_dims(self.target.ndim, ("head",)))
        by_length, by_law = (*heads, "n"), ("law", *heads)
        return {
            "target": Labelled(heads, self.target, "nat"),
            "beta": Labelled(by_length, self.beta),
            "standard_entropy": Labelled(by_length, self.standard_entropy, "nat"),
            "amplitude": Labelled(by_law, self.amplitude),
            "law_beta": Labelled(("law", *by_length), self.law_beta),
            "law_entropy": Labelled(("law", *by_length), self.law_entropy, "nat"),
            "median_entropy": Labelled(by_length, self.median_entropy, "nat"),
            "equal_scores": Labelled(heads, self.equal_scores),
            "beta_error": Labelled(by_law, self.beta_error),
            "entropy_error": Labelled(by_law, self.entropy_error, "nat"),
        }

    def _coordinates(self) -> dict[str, Any]:
        spelled = [law.spelling for law in self.laws]
        return {**coordinates_of([self.target]), "law": spelled, "n": self.lengths}

    def _attributes(self) -> dict[str, Any]:
        return {"n0": self.n0}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        bare, target = _bare(self), self.target
        axes = [target[name].values for name in target.dims] if hasattr(target, "dims") else None
        rows = [
            (
                ", ".join(map(str, head if axes is None else map(operator.getitem, axes, head))) or "0",
                f"{bare.target[head] / nats:.3f}",
                *(f"{beta:.3f}" if np.isfinite(beta) else "-" for beta in bare.beta[head]),
                "-" if best < 0 else self.laws[best].spelling,
            )
            for head, best in np.ndenumerate(bare.best)
        ]
        header = ("head", f"target ({unit})", *(f"beta at {n}" for n in self.lengths), "best law")
        title = f"Calibration: beta that keeps the entropy of n = {self.n0} ({self.target.size} heads)"
        title += f", a mean over {self.rows}"
        return Sheet(title, header, rows, tuple(textwrap.wrap(describe(bare, unit), 100)))

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Measured beta of every head against n, and the best laws; see attnscale.plot."""
        axes: Axes = drawn_by("calibrated_beta")(self, ax=ax)
        return axes


# ---- the recommendation in words --------------------------------------------------------------------------


def describe(found: Calibration, unit: str = "nats") -> str:
    """The recommended law, its constants and errors, preferences of heads, beta of the median head."""
    told = _verdict(found, nats_per(unit), unit[:-1]) if found.determined.any() else _nothing(found)
    return " ".join([*_equal_scores(found), *told])


def _nothing(found: Calibration) -> list[str]:
    lengths = np.isfinite(found.beta).sum(-1)
    if not lengths.any():
        return [f"No head keeps its entropy of n = {found.n0} at any beta over {_span(found)}."]
    return [
        f"Undetermined: no head keeps its entropy of n = {found.n0} at two lengths or more, and at one "
        "length every law does so with a constant of the head. Give more lengths, or another n0.",
        *_beta_of_the_median(found),
    ]


def _verdict(found: Calibration, nats: float, unit: str) -> list[str]:
    """The law that comes closest and its error; errors are divided by `nats` and named `unit`."""
    determined = found.determined.ravel()
    group, least = next(iter(found.ranking.items()))
    first = found.laws[found.first]
    misses, of_median = f"{least / nats:.3f} {unit}", f"{found.median_error / nats:.3f} {unit}"
    constants = found.amplitude[found.first].ravel()[determined]
    low, middle, high = np.quantile(constants, [0.25, 0.5, 0.75])
    return [
        f"To keep the entropy of n = {found.n0} over {_span(found)}, use {group}, one constant per head: "
        f"it misses by {misses} (root mean square over {determined.sum()} heads and the lengths). "
        f"The constants of {first.spelling} are {low:.3f} to {high:.3f} for the middle half of the heads. "
        f"With the median, {middle:.3f}, for all of them it misses by {of_median}.",
        f"{_order(found, nats)}.",
        f"Best head by head: {_preferences(found)}.",
        *_beta_of_the_median(found),
    ]


def _order(found: Calibration, nats: float) -> str:
    """The first four laws with their errors, and the standard scale wherever it ranks."""
    ranking = found.ranking
    told = [f"{name} {error / nats:.3f}" for name, error in [*ranking.items()][:4]]
    order = f"In order: {', '.join(told)}"
    for place, (name, error) in enumerate(ranking.items(), start=1):
        if place > 4 and "standard" in name.split(" = "):
            order += f"; standard, number {place} of {len(ranking)}, {error / nats:.3f}"
    return order


def _preferences(found: Calibration) -> str:
    best = found.best.ravel()
    counts = np.bincount(best[best >= 0], minlength=len(found.laws))
    order = [i for i in np.argsort(-counts, kind="stable") if counts[i]]
    told = [f"{found.laws[i].spelling} for {counts[i]}" for i in order]
    left = int((best < 0).sum())
    return ", ".join([*told, *([f"undetermined for {left}"] if left else [])])


def _beta_of_the_median(found: Calibration) -> list[str]:
    last = found.beta[..., -1]
    beta = f"{np.nanmedian(last):.3f}" if np.isfinite(last).any() else "nothing that exists"
    return [f"The median head needs beta = {beta} at n = {found.lengths[-1]}."]


def _equal_scores(found: Calibration) -> list[str]:
    """A line that names the heads with equal scores, which cannot be calibrated."""
    heads = [", ".join(map(str, index)) for index in np.argwhere(found.equal_scores).tolist()]
    if not heads:
        return []
    named = f"Head {heads[0]} has" if len(heads) == 1 else f"Heads {'; '.join(heads)} have"
    return [f"{named} equal scores: no beta changes the entropy."]


def _span(found: Calibration) -> str:
    low, high = found.lengths.min(), found.lengths.max()
    return f"n = {low}" if low == high else f"n = {low} to {high}"


# ---- the measurement --------------------------------------------------------------------------------------


@hinted
def calibrate(
    query: ArrayLike,
    key: ArrayLike,
    n0: int | None = None,
    lengths: Sequence[int] | None = None,
    *,
    laws: Iterable[Law | str | float] | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
    layout: Layout = "bhsd",
    dims: Dims | None = None,
    num_threads: int | None = None,
    progress: Progress = False,
) -> Calibration:
    """Measure the scale that keeps each head's entropy as n grows, and fit laws to it.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attnscale.attention`. At length n the first n keys and the first n queries count (all
        queries, if there are fewer).
    n0 : int, optional
        The length whose mean entropy under the standard scale is the target. Default: the shortest of several
        given lengths, else of the default lengths.
    lengths : sequence of int, optional
        Where beta is measured. Default: as for :func:`attnscale.report`, the number of keys and its halves,
        at most four, none shorter than 16 (with fewer than 32 keys, than 2). If n0 is not among them: n0
        times the powers of 2, from the shortest of them or n0 to the number of keys.
    laws : iterable of str, float or Law, optional
        Laws to compare, as :func:`attnscale.laws.get` takes them; a training length that a spelling leaves
        open is n0. Equal laws count once. Default: every law of :func:`attnscale.laws.names` that gives a row
        one scale and that this determines; of the laws that do not depend on n only "standard", because the
        amplitude makes them equal.
    is_causal : bool, default False
        Query i sees the keys 0 ... i. Then the mean at length n is over the last eighth of the first
        n queries, which see between 7n/8 and n keys.
    enable_gqa, layout, dims, num_threads
        As for :func:`attnscale.attention`.
    progress : bool or callable, default False
        True shows a bar where standard error is a terminal. A function is called with (done, total), in
        pairs of a query and a key, at the start and after each length and each law.

    Returns
    -------
    Calibration

    Raises
    ------
    TypeError, ValueError
        If n0 or a length is not between 2 and the number of keys, or an argument is refused as in attention.

    Notes
    -----
    Each law is multiplied by a constant of the head, since the size of the query and the key can absorb one;
    log_n, natural_log_n and ssmax then are one law. Laws are judged by their effect on the entropy, not by
    their distance from beta: a head with flat weights hardly depends on beta. A head counts if it has a beta
    at two lengths or more: with one, every law fits.

    Examples
    --------
    >>> import attnscale as at
    >>> data = at.datasets.minilm_qk()
    >>> found = at.calibrate(data.query, data.key, n0=128, laws=["standard", "log_n", "annealed"])
    >>> found.lengths
    array([ 64, 128, 256, 512])
    >>> found.beta.shape, found.beta[:, 1].round(3).tolist() == [1.0] * 18
    ((18, 4), True)
    """
    # Imported here: it brings the laws, and `import attnscale` is faster without them.
    from .fit import candidates, cut, listed, read_lengths, read_start

    given = {"enable_gqa": enable_gqa, "layout": layout, "dims": dims, "num_threads": num_threads}
    call = Call(query, key, None, given)
    inputs = call.inputs
    n_keys = inputs.key.shape[-2]
    lengths = listed(lengths)
    start = read_start(n0, lengths, laws, n_keys)
    chosen = read_lengths(lengths, start, n_keys)
    if boolean("is_causal", is_causal) and inputs.query.shape[-2] != n_keys:
        raise ValueError(
            "is_causal=True needs as many queries as keys, "
            f"got {inputs.query.shape[-2]} queries and {n_keys} keys"
        )
    compared = tuple(candidates(laws, start))
    cuts = {n: cut(inputs, n, num_threads, is_causal=is_causal) for n in (start, *chosen)}
    found = calibrate_rows(cuts, start, chosen, compared, progress=progress)
    return call.label(found, _AXES, law=[law.spelling for law in compared], n=found.lengths)


def calibrate_rows(
    rows: Mapping[int, Length],
    n0: int,
    lengths: Sequence[int],
    compared: tuple[Law, ...],
    *,
    progress: Progress = False,
) -> Calibration:
    """The calibration of rows given for each length and for n0; no two laws are equal."""
    from .fit import Passes, fit_laws

    cuts, kept, head_dim = [rows[n] for n in lengths], rows[n0], rows[n0].query.shape[-1]
    standard = 1 / np.sqrt(head_dim)
    target = kept.entropy(standard)
    wanted = np.where(flat := target >= kept.entropy(0.0) - RESOLUTION, np.nan, target)
    with Passes(cuts, len(compared)).reported(progress) as passes:
        beta = np.stack([_beta(each, wanted, head_dim) for each in passes.of_lengths()], axis=-1)
        fits = fit_laws(passes.of_laws(compared), cuts, beta, head_dim)
    found = Calibration(
        n0=n0,
        lengths=np.array(lengths, np.int64),
        target=target,
        beta=beta,
        standard_entropy=np.stack([each.entropy(standard) for each in cuts], axis=-1),
        laws=compared,
        **fits._asdict(),
        median_entropy=np.full(beta.shape, np.nan),
        equal_scores=np.asarray(flat),
        is_causal=kept.options["causal"] is not None,
    )
    if not found.determined.any():
        return found
    law = median_law(found)
    return replace(found, median_entropy=np.stack([each.law_entropy(law) for each in cuts], axis=-1))


def rows_that_count(*, is_causal: bool) -> str:
    """The rows that a mean entropy at a length covers, in words."""
    return "the last eighth of the queries" if is_causal else "all queries"


def _bare(found: Calibration) -> Calibration:
    """A calibration without labels, for arithmetic by position of the axes."""
    plain: Any = {name: np.asarray(x) for name, x in vars(found).items() if hasattr(x, "coords")}
    return replace(found, **plain) if plain else found


def median_law(found: Calibration) -> Law:
    """The first law of the ranking times the median amplitude of the determined heads, to four digits."""
    found = _bare(found)
    constants = np.asarray(found.amplitude[found.first])[found.determined]
    return float(f"{np.median(constants):.4g}") * found.laws[found.first]


def ranked(found: Calibration) -> list[tuple[list[int], float]]:
    """Indices of laws that are equal up to the amplitude, and their error; the least error first."""
    found = _bare(found)
    determined = found.determined.ravel()
    if not determined.any():
        return []
    errors = found.entropy_error.reshape(len(found.laws), -1)[:, determined]
    mean = np.sqrt((errors**2).mean(1))
    groups: list[tuple[list[int], float]] = []
    left = [i for i in np.argsort(mean, kind="stable").tolist() if np.isfinite(mean[i])]
    while left:
        first = left[0]
        same = [i for i in left if np.allclose(found.law_beta[i], found.law_beta[first], equal_nan=True)]
        left = [i for i in left if i not in same]
        groups.append((same, float(mean[first])))
    return groups


def _beta(length: Length, target: NDArray[np.float64], head_dim: int) -> NDArray[np.float64]:
    """Beta of each head; NaN where the target is out of reach."""
    broken = np.isnan(target)
    found = length.solve(np.where(broken, 0.0, target))
    return np.where(found.feasible & ~broken, found.scale * np.sqrt(head_dim), np.nan)


def _root_mean_square(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Root mean square over the last axis, without NaN; NaN where nothing is left."""
    count = np.isfinite(x).sum(-1)
    total = np.where(np.isfinite(x), x, 0.0)
    return np.where(count > 0, np.sqrt((total**2).sum(-1) / np.maximum(count, 1)), np.nan)
