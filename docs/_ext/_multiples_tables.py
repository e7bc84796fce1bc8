# SPDX-License-Identifier: BSD-3-Clause
"""Tables of the best multiple of a trained scale, evaluated on the stored runs as the site is built."""

from __future__ import annotations

from importlib.util import find_spec

#: Rows of the tables: the experiment, the labels of the reading, and its name on a page.
READINGS = (
    ("text_multiples", {"reading": "clipped"}, "text, distances clipped"),
    ("text_multiples", {"reading": "as trained"}, "text, as trained"),
    ("needle_multiples", {}, "needle"),
)
_WITHOUT_TORCH = "This table needs PyTorch where the site is built."


def multiples_texts():
    """The text of each file to include: best multiples by length, and their growth."""
    if find_spec("torch") is None:
        return {"multiples.md": _WITHOUT_TORCH, "multiples-growth.md": _WITHOUT_TORCH}
    found = [(title, _best(name, labels)) for name, labels, title in READINGS]
    return {"multiples.md": by_length(found), "multiples-growth.md": growth(found)}


def _best(name, labels):
    from studies import stored
    from studies.models.best_multiples import best_multiples

    return best_multiples(stored(name), **labels)


def by_length(found):
    """A row for each reading and length: best multiple, flatness of the loss there, and laws."""
    rows = [
        "| read | n | best multiple | within one error of the least loss | log n |",
        "|---|---|---|---|---|",
    ]
    for title, best in found:
        for n, beta, error, flat, inside, law in zip(
            best.lengths, best.beta.value, best.beta.error, best.flat, best.inside, _log(best), strict=True
        ):
            said = f"{beta:.2f} ± {error:.2f}" if inside else f"{beta:.2f} (the grid ends)"
            near = f"{flat[0]:g}" if flat[0] == flat[1] else f"{flat[0]:g} to {flat[1]:g}"
            rows.append(f"| {title} | {n} | {said} | {near} | {law:.2f} |")
    return "\n".join(rows)


def growth(found):
    """A row for each reading: the exponent of ln n, and the misfit of each shape."""
    shapes = list(found[0][1].misfit)
    rows = [
        f"| read | exponent p | 95 % | {' | '.join(f'misfit of {each}' for each in shapes)} |",
        f"|{'---|' * (3 + len(shapes))}",
    ]
    for title, best in found:
        p = best.exponent
        misfits = [f"{best.misfit['log n']:.3f}"]
        for name in shapes[1:]:
            less = best.misfit_less[name]
            misfits.append(f"{best.misfit[name]:.3f} ({less.value:+.3f} ± {less.error:.3f})")
        interval = f"{p.low:.2f} to {p.high:.2f}"
        rows.append(f"| {title} | {p.value:.2f} ± {p.error:.2f} | {interval} | {' | '.join(misfits)} |")
    return "\n".join(rows)


def _log(best):
    from math import log

    return [log(n) / log(best.lengths[0]) for n in best.lengths]
