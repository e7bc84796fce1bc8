# SPDX-License-Identifier: BSD-3-Clause
"""What the gradients of the results of a row say of every score of the row.

For x = ln p of an outcome, be it a key or a sink, with lse, the entropy H, the variance V and the
concentration C of the row, the derivatives by a score are

    lse            p
    entropy       -p (x + H)
    mean_score     p (1 + x + H)
    score_variance p ((x + H)^2 - V + 2 (x + H))
    concentration  2 p (p - C)
    max_weight     w (1 - p) at the key of the largest score, whose weight is w, and -w p at the others
    max_score      1 at the key of the largest score

and that of the output o through the weights p (do . v - do . o). All together they are a polynomial in x and
p.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ._gradient_tiles import Terms
from ._problem import Problem

_NEEDED = {
    "entropy": ("entropy",),
    "mean_score": ("entropy",),
    "score_variance": ("entropy", "score_variance"),
    "concentration": ("concentration",),
    "max_score": ("argmax",),
    "max_weight": ("argmax", "max_weight"),
}
#: Statistics whose gradients are more than linear in x.
_CURVED = {"score_variance", "concentration", "max_weight", "max_score"}


def needed_rows(gradients: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The statistics that the gradients of these are made of."""
    found = ["lse", *(each for name in gradients for each in _NEEDED.get(name, ()))]
    return tuple(dict.fromkeys(found))


def row_terms(
    problem: Problem, rows: Mapping[str, Tensor], gradients: Mapping[str, Tensor], of_output: Tensor | None
) -> Terms:
    """The numbers of each row, float32 and contiguous, but for the scale; `of_output` is do . o."""
    shape = problem.row_shape
    zero = rows["lse"].new_zeros(())
    constant, slope = zero if of_output is None else -of_output, zero
    curve = share = peak = zero
    if (g := gradients.get("lse")) is not None:
        constant = constant + g
    if (g := gradients.get("entropy")) is not None:
        constant, slope = constant - g * rows["entropy"], slope - g
    if (g := gradients.get("mean_score")) is not None:
        constant, slope = constant + g * (1 + rows["entropy"]), slope + g
    if (g := gradients.get("score_variance")) is not None:
        h = rows["entropy"]
        constant, slope = constant + g * (h * h - rows["score_variance"] + 2 * h), slope + 2 * g * (h + 1)
        curve = curve + g
    if (g := gradients.get("concentration")) is not None:
        constant, share = constant - 2 * g * rows["concentration"], share + 2 * g
    if (g := gradients.get("max_score")) is not None:
        peak = peak + g
    if (g := gradients.get("max_weight")) is not None:
        constant, peak = constant - g * rows["max_weight"], peak + g * rows["max_weight"]
    linear = (x.expand(shape).contiguous() for x in (constant, slope))
    scale, lse = problem.scale.expand(shape), rows["lse"].contiguous()
    if not _CURVED & gradients.keys():
        return Terms(scale, lse, *linear)
    argmax = rows["argmax"] if "argmax" in rows else torch.full_like(lse, -1)
    curved = (x.expand(shape).contiguous() for x in (curve, share, peak, argmax))
    return Terms(scale, lse, *linear, *curved)


def sink_gradient(problem: Problem, terms: Terms) -> Tensor:
    """The gradient of the sink of each row: of one more outcome, whose value is 0."""
    assert problem.sink is not None
    x = problem.sink.expand(problem.row_shape) - terms.lse
    p = x.exp()
    of_row = terms.constant + terms.slope * x
    if terms.curve is not None:
        of_row = of_row + terms.curve * x * x + terms.share * p
    found: Tensor = p * of_row
    return found
