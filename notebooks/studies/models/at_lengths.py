# SPDX-License-Identifier: BSD-3-Clause
"""A trained masked model, read at every length under every law, text by text."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from attnscale.experiments import crossed_error
from numpy.typing import NDArray
from torch import Tensor

from .masked import Texts, read_texts
from .readings import Reading, calibrated, multiplier
from .transformer import Transformer

READINGS = ("as trained", "clipped")
#: Laws under which the entropy of every head is stored, with the positions of the training.
BY_HEAD = ("standard", "log_n", "calibrated")


def read_at_lengths(
    study: Any,
    model: Transformer,
    texts: Texts,
    files: NDArray[np.int64],
    found: dict[str, NDArray[np.float64]],
    *,
    base: float,
    positions: str,
    apart: Tensor | None,
) -> None:
    """Enter the measurements of all readings of a model into `found`, arrays by variable.

    Parameters
    ----------
    study : LengthGeneralization
    model : Transformer
    texts : Texts
    files : ndarray, shape (texts,)
        Ids of the texts' files.
    found : dict of str to ndarray
        Filled in place.
    base : float
        Multiplier of the scale in training.
    positions : {"rotary", "none"}
        Only models with rotary positions are also read with clipped distances.
    apart : Tensor of int64, shape (others, n), or None
        Tokens of other texts, to measure the heads' scales; None without the law "calibrated".
    """
    ways = (positions, "clipped") if positions == "rotary" else (positions,)
    found["text_file"][:] = files
    for r, way in enumerate(ways):

        def reading(betas: Any, way: str = way) -> Reading:
            scales = [base * beta / math.sqrt(study.head_dim) for beta in betas]
            return Reading(way, scales, study.clip, study.attention)

        if apart is not None:
            start = reading([1.0] * study.layers)
            found["beta"][r] = calibrated(model, apart, start, study.train_length, study.lengths)
        for i, n in enumerate(study.lengths):
            standard: _Scores | None = None
            measured = None if apart is None else found["beta"][r, i]
            for j, name in enumerate(study.laws):
                betas = _betas(study, name, n, base, measured)
                if standard is not None and all(isinstance(b, float) and b == 1.0 for b in betas):
                    scores = standard  # all laws but natural_log_n are 1 at train_length
                else:
                    model.mix = mix = reading([_tensor(each, texts) for each in betas])
                    right, nll = read_texts(model, texts, n)
                    scores = _Scores(right, nll, mix.entropy())
                standard = scores if standard is None else standard
                _enter(found, (r, j, i), name, scores, standard, files)


class _Scores(NamedTuple):
    """Results of one reading: by masked token, (texts, masked), and entropies, (layers, heads)."""

    accuracy: Tensor
    nll: Tensor
    entropy: NDArray[np.float64]


def _betas(study: Any, name: str, n: int, base: float, measured: Any) -> list[Any]:
    """Multiple of the trained scale for each layer: one number, or one for each head."""
    if name == "calibrated":
        return [1.0] * study.layers if n == study.train_length else list(measured)
    beta = multiplier(name, n, study.train_length, study.head_dim)
    if name == "natural_log_n":  # the whole scale, whatever the scale in training
        beta /= base
    return [1.0 if math.isclose(beta, 1.0, rel_tol=1e-6) else beta] * study.layers


def _tensor(beta: Any, texts: Texts) -> Any:
    if isinstance(beta, float):
        return beta
    return torch.as_tensor(beta, dtype=torch.float32, device=texts.tokens.device)[:, None]


def _enter(
    found: dict[str, NDArray[np.float64]],
    place: tuple[int, int, int],
    law: str,
    scores: _Scores,
    standard: _Scores,
    files: NDArray[np.int64],
) -> None:
    """Enter one reading's numbers; differences are paired by text, over the same masked tokens."""
    for name in ("accuracy", "nll"):
        here, there = (getattr(each, name).double().mean(-1).cpu().numpy() for each in (scores, standard))
        found[f"{name}_by_text"][place] = here
        found[name][place] = here.mean()
        gain = here - there
        found[f"{name}_gain"][place] = gain.mean()
        found[f"{name}_gain_error"][place] = crossed_error(gain[None], files)
    found["entropy"][place] = scores.entropy.mean(-1)
    if "head_entropy" in found and READINGS[place[0]] == "as trained" and law in BY_HEAD:
        found["head_entropy"][BY_HEAD.index(law), place[2]] = scores.entropy
