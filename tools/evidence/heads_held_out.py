# SPDX-License-Identifier: BSD-3-Clause
"""The predictions that tools/evidence/measure_heads.py judges, and the tables of their errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import attnscale as at
import numpy as np
from attnscale import laws, theory
from scipy import stats

#: Digits of the stored numbers.
DIGITS = 4
#: Quantiles of the power of ln n over the heads, for the tables.
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
#: Names of the predictions in the tables.
OWN, LOG, POWER, SINK, SPECTRUM, VARIANCE, MEASURED = (
    *("the head's own variance", "log n", "a power of log n, fitted to each head", "first key apart"),
    *("spectrum", "variance of the scores alone", "entropy measured on the texts of the fit"),
)


class Heads(NamedTuple):
    """Queries and keys of the heads of a model on some texts.

    Attributes
    ----------
    name : str
    query, key : ndarray of float32, shape (texts, heads, n, head_dim)
    is_causal : bool
        Query i sees the keys 0 ... i. The rows at a length are then its last eighth.
    n0, fitted : int, tuple of int
        The length whose entropy is to be kept, and the lengths at which constants are fitted.
    facts : dict
        The model and the names of its texts.
    """

    name: str
    query: np.ndarray
    key: np.ndarray
    is_causal: bool
    n0: int
    fitted: tuple[int, ...]
    facts: dict[str, Any]

    @property
    def n(self) -> int:
        """Tokens of a text, the length at which predictions are judged."""
        return int(self.key.shape[-2])

    def of(self, *, fit: bool) -> Heads:
        """Every second text: the texts for the fit, or those for judging."""
        chosen = slice(0 if fit else 1, None, 2)
        return self._replace(query=self.query[chosen], key=self.key[chosen])


class Rows(NamedTuple):
    """Rows of some tokens of all texts: their queries, and their keys with the first key of the text."""

    query: np.ndarray
    key: np.ndarray
    causal: str | None

    @property
    def n(self) -> float:
        """Mean number of keys that a row sees."""
        queries, keys = self.query.shape[-2], self.key.shape[-2]
        return float(keys if self.causal is None else keys - (queries - 1) / 2)

    def entropy(self, scale: Any = None) -> np.ndarray:
        """Mean entropy of the rows, shape (texts, heads)."""
        rows = at.attention_entropy(self.query, self.key, scale=scale, causal=self.causal)
        return np.asarray(rows.mean(-1, dtype=np.float64))

    def first(self) -> np.ndarray:
        """The weight of the first key in each row, shape (heads, rows of all texts)."""
        pairs = zip(self.query, self.key, strict=True)
        weights = [at.attention_weights(q, k, causal=self.causal)[..., 0] for q, k in pairs]
        return np.concatenate(weights, axis=-1).astype(np.float64)

    def spectrum(self, *, skip: int = 0) -> np.ndarray:
        """The spectrum over all texts, without the first `skip` keys, shape (heads, head_dim).

        A common mean of a text's keys cancels in its rows, so each text's keys are centred.
        """
        key = self.key[..., skip:, :].astype(np.float64)
        parts = (self.query.astype(np.float64), key - key.mean(-2, keepdims=True))
        return np.asarray(theory.score_spectrum(*(np.concatenate(list(each), axis=-2) for each in parts)))

    def cumulants(self) -> np.ndarray:
        """The second and third cumulant of the scores, mean over rows and texts, shape (heads, 2)."""
        scores = self.query.astype(np.float64) @ self.key.swapaxes(-1, -2).astype(np.float64)
        scores /= np.sqrt(self.query.shape[-1])
        hidden = 0 if self.causal is None else self.query.shape[-2] - 1
        seen = [scores.shape[-1] - max(hidden - i, 0) for i in range(scores.shape[-2])]
        rows = [theory.score_cumulants(scores[..., i, :n], order=3) for i, n in enumerate(seen)]
        return np.mean(rows, axis=(0, 1))


def rows_of(heads: Heads, start: int, stop: int) -> Rows:
    """The rows over the tokens from `start` to `stop` and the first token."""
    first = stop - (stop - start) // 8 if heads.is_causal else start
    tokens = slice(start, stop)
    key = heads.key[..., tokens, :]
    if start:
        key = np.concatenate([heads.key[..., :1, :], key], axis=-2)
    return Rows(heads.query[..., first:stop, :], key, "bottom_right" if heads.is_causal else None)


def law_misses(heads: Heads, power: np.ndarray) -> dict[str, np.ndarray]:
    """Error of each law in the entropy to keep, at the whole length, shape (judged texts, heads).

    `power` is the power of ln n, fitted to each head.
    """
    fit, judged = heads.of(fit=True), heads.of(fit=False)
    short, long = rows_of(fit, 0, heads.n0), rows_of(judged, 0, heads.n)
    target, cumulants = short.entropy().mean(0), short.cumulants()
    n0, standard = short.n, laws.Standard()
    third = theory.cumulant_beta(long.n, n0=n0, cumulants=cumulants, on_infeasible="nan")
    options: dict[str, Any] = {"n0": heads.n0, "is_causal": heads.is_causal}
    there = at.calibrate(fit.query, fit.key, lengths=[heads.n], laws=[standard], **options)
    chosen = {
        "unchanged": standard,
        "annealed": laws.Annealed(n0),
        "root of log n": laws.LogPower(base=n0),
        LOG: laws.LogN(n0),
        POWER: ((np.log(long.n) / np.log(n0)) ** power).tolist() * standard,
        OWN: laws.Annealed(n0, variance=cumulants[:, 0].tolist()),
        "its variance and third cumulant": np.where(np.isnan(third), 1.0, third).tolist() * standard,
    }
    last = np.nanmedian(there.beta[..., 0], axis=0).tolist() * standard
    misses = {name: long.entropy(law) - target for name, law in chosen.items()}
    misses["its variance and third cumulant"][:, np.isnan(third)] = np.nan
    for law in ("log_n", "annealed"):
        model = at.LawCalibrator(lengths=heads.fitted, laws=law, **options).fit(fit.query, fit.key)
        shown = {"log_n": LOG, "annealed": "annealed"}[law]
        name = f"{shown} times a constant fitted at {', '.join(map(str, heads.fitted))}"
        misses[name] = model.misses(judged.query, judged.key, [heads.n])[..., 0]
    return {**misses, f"a constant measured at {heads.n}": long.entropy(last) - target}


def powers(heads: Heads) -> dict[str, np.ndarray]:
    """The power p with which beta = (ln n / ln n0)^p keeps a head's entropy, shape (heads,).

    ``measured`` on the judging texts, at the whole length; ``fitted`` on the other texts, at the shorter
    lengths, by least squares of ln beta; ``predicted`` from the variance of the scores on their short rows.
    NaN for a head whose entropy no scale keeps.
    """
    fit, judged = heads.of(fit=True), heads.of(fit=False)
    short = rows_of(fit, 0, heads.n0)
    variance = short.cumulants()[:, 0]

    def wanted(part: Heads, lengths: Sequence[int]) -> np.ndarray:
        logs = np.array([np.log(np.log(rows_of(part, 0, n).n) / np.log(short.n)) for n in lengths])
        options: dict[str, Any] = {"n0": heads.n0, "is_causal": heads.is_causal, "laws": ["standard"]}
        beta = np.log(at.calibrate(part.query, part.key, lengths=lengths, **options).beta)
        return np.asarray(np.nanmedian(beta @ logs / (logs @ logs), axis=0))

    long = rows_of(judged, 0, heads.n).n
    annealed = 0.5 * np.log1p(2 * np.log(long / short.n) / variance)
    return {
        "measured": wanted(judged, [heads.n]),
        "fitted": wanted(fit, [n for n in heads.fitted if n > heads.n0]),
        "predicted": annealed / np.log(np.log(long) / np.log(short.n)),
    }


def splits(heads: Heads, whole: Rows) -> Iterator[tuple[str, Rows, Rows]]:
    """Rows to fit a spectrum, and rows to judge it; `whole` are all rows of the fitting texts."""
    fit, judged, n = heads.of(fit=True), heads.of(fit=False), heads.n
    yield "in sample", whole, whole
    yield "other texts", whole, rows_of(judged, 0, n)
    yield "other texts, other half of the tokens", rows_of(fit, 0, n // 2), rows_of(judged, n // 2, n)
    yield f"other texts, {n} for {heads.n0} tokens", rows_of(fit, 0, heads.n0), rows_of(judged, 0, n)


def predicted(fit: Rows, n: float) -> dict[str, np.ndarray]:
    """Predictions of each head's entropy at the standard scale in rows of n keys, shape (heads,)."""
    spectrum, d = fit.spectrum(), fit.query.shape[-1]
    rest = theory.spectrum_entropy(n - 1, spectrum=fit.spectrum(skip=1))
    first = theory.sink_weight(fit.first(), n=n, n0=fit.n)
    return {
        "independent keys": theory.expected_entropy(n, 1, head_dim=d),
        VARIANCE: theory.expected_entropy(n, np.sqrt(spectrum.sum(-1)), model="gaussian"),
        SPECTRUM: theory.spectrum_entropy(n, spectrum=spectrum),
        SINK: theory.sink_entropy(first, rest[:, None]).mean(-1),
        MEASURED: fit.entropy().mean(0) + np.log(n / fit.n),
    }


def spectrum_misses(heads: Heads) -> dict[str, dict[str, np.ndarray]]:
    """Error of each prediction, by the judging rows, shape (judged texts, heads)."""
    found, kept = {}, predicted(whole := rows_of(heads.of(fit=True), 0, heads.n), whole.n)
    for name, fit, judged in splits(heads, whole):
        predictions = kept if fit is whole else predicted(fit, judged.n)
        measured = judged.entropy()
        found[name] = {prediction: each - measured for prediction, each in predictions.items()}
    return found


def misses(heads: Heads) -> dict[str, Any]:
    """Error of each prediction for each head on each judging text, as lists of rounded numbers."""
    of_heads = powers(heads)
    return {
        "laws": _listed(law_misses(heads, of_heads["fitted"])),
        "powers": {name: _rounded(each) for name, each in of_heads.items()},
        "spectrum": {rows: _listed(found) for rows, found in spectrum_misses(heads).items()},
    }


def _listed(found: dict[str, np.ndarray]) -> dict[str, list[list[float | None]]]:
    """Arrays of shape (texts, heads) in JSON types; None for a head without a prediction."""
    return {name: [_rounded(text) for text in values] for name, values in found.items()}


def _rounded(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(x) else round(float(x), DIGITS) for x in values]


def errors_of(missed: dict[str, Any]) -> dict[str, Any]:
    """Errors of all predictions, and differences of some, from a model's :func:`misses`."""
    own = {name: np.array(each, np.float64) for name, each in missed["laws"].items()}
    spectra = {
        rows: {name: np.array(each, np.float64) for name, each in found.items()}
        for rows, found in missed["spectrum"].items()
    }
    constants = [name for name in own if name.startswith(("log n times", "annealed times"))]
    others = [LOG, "annealed", *constants]
    return {
        "laws": _errors(own),
        "powers": _powers({name: np.array(each, np.float64) for name, each in missed["powers"].items()}),
        "own law less": {other: _numbers(at.held_out_error(own[OWN], less=own[other])) for other in others},
        "spectrum": {name: _errors(each) for name, each in spectra.items()},
        "spectrum less": {
            name: {
                f"{one} less {other}": _numbers(at.held_out_error(each[one], less=each[other]))
                for one, other in ((SPECTRUM, VARIANCE), (SINK, SPECTRUM), (SINK, MEASURED))
            }
            for name, each in spectra.items()
        },
    }


def _powers(found: dict[str, np.ndarray]) -> dict[str, Any]:
    """Quantiles of the powers over the heads, and how well the order of heads is predicted."""
    known = np.isfinite(list(found.values())).all(0)
    return {
        **{name: [round(x, DIGITS) for x in np.nanquantile(each, SHARES)] for name, each in found.items()},
        "without": int((~known).sum()),
        **{
            f"order of {name}": round(
                float(stats.spearmanr(found[name][known], found["measured"][known]).statistic), DIGITS
            )
            for name in ("fitted", "predicted")
        },
    }


def sizes(heads: Heads) -> dict[str, int]:
    """Numbers of heads, of fitting texts and of judging texts."""
    parts = {"fitted": heads.of(fit=True), "judged": heads.of(fit=False)}
    return {"heads": heads.key.shape[1], **{name: len(each.key) for name, each in parts.items()}}


def _errors(misses: dict[str, np.ndarray]) -> dict[str, Any]:
    """Error and mean miss of each prediction, and the number of heads without one."""
    return {
        name: {
            **_numbers(at.held_out_error(each)),
            "mean": round(float(np.nanmean(each)), DIGITS),
            "without": int(np.isnan(each).any(0).sum()),
        }
        for name, each in misses.items()
    }


def _numbers(found: at.HeldOutError) -> dict[str, float]:
    return {name: round(value, DIGITS) for name, value in dataclasses.asdict(found).items()}


def tables(models: dict[str, Any]) -> dict[str, str]:
    """The tables of the pages, by file name, from the stored numbers of each model."""
    with_heads = {f"{name}, {each['heads']} heads": each for name, each in models.items()}
    return {
        "heads-laws.md": _table("from", with_heads, "laws", _cell),
        "heads-laws-less.md": _table("own variance less", models, "own law less", _difference),
        "heads-powers.md": _power_table(models),
        "heads-spectrum.md": "\n".join(_spectrum(name, each) for name, each in models.items()),
    }


def _table(head: str, models: dict[str, Any], part: str, cell: Callable[[dict[str, Any]], str]) -> str:
    """A column for each model, a row for each entry of its part; constants fitted elsewhere share a row."""
    every = [list(each[part].items()) for each in models.values()]
    rows = [f"| {' | '.join((head, *models))} |", f"|{'---|' * (1 + len(models))}"]
    for same in zip(*every, strict=True):
        shown = " | ".join(cell(found) for _, found in same)
        rows.append(f"| {_shared([name for name, _ in same])} | {shown} |")
    return "\n".join(rows) + "\n"


def _power_table(models: dict[str, Any]) -> str:
    """A row for each model: the powers of its heads, and how well they were predicted."""
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    head = (
        f"| model | {shares} | median from the variance | order known from the variance | from shorter rows |"
    )
    rows = [head, f"|{'---|' * (4 + len(SHARES))}"]
    for name, each in models.items():
        found = each["powers"]
        cells = [f"{p:.2f}" for p in (*found["measured"], found["predicted"][len(SHARES) // 2])]
        orders = [f"{found[f'order of {one}']:.2f}" for one in ("predicted", "fitted")]
        rows.append(f"| {' | '.join([name, *cells, *orders])} |")
    return "\n".join(rows) + "\n"


def _shared(names: list[str]) -> str:
    """A common name for a prediction fitted at different lengths in each model."""
    first = names[0]
    if len(set(names)) == 1:
        return first
    return (
        f"{first.rpartition(' at ')[0]} at {'shorter lengths' if 'fitted' in first else 'the length itself'}"
    )


def _spectrum(name: str, model: dict[str, Any]) -> str:
    """A table of a model: its predictions, and the differences of some of them."""
    columns = [each for each in model["spectrum"] if each != "in sample"]
    rows = [f"| {name}, {model['heads']} heads | {' | '.join(columns)} |", f"|{'---|' * (1 + len(columns))}"]
    for prediction in model["spectrum"][columns[0]]:
        cells = " | ".join(_cell(model["spectrum"][column][prediction]) for column in columns)
        rows.append(f"| {prediction} | {cells} |")
    for pair in model["spectrum less"][columns[0]]:
        cells = " | ".join(_difference(model["spectrum less"][column][pair]) for column in columns)
        rows.append(f"| *{pair}* | {cells} |")
    return "\n".join(rows) + "\n"


def _cell(found: dict[str, Any]) -> str:
    without = f" ({found['without']} without)" if found["without"] else ""
    return f"{found['value']:.2f} ± {found['error']:.2f}{without}"


def _difference(found: dict[str, Any]) -> str:
    return f"{found['value']:+.2f} ({found['low']:+.2f}, {found['high']:+.2f})"
