# SPDX-License-Identifier: BSD-3-Clause
"""Compare a model watched by the package to the oracle in plain torch."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import attnscale as at
import numpy as np
import torch

from .eager import Seen, entropies, weights_of
from .zoo import made, runs

NEAR = 1e-4
#: Beside weights below this, others have become 0, as those of hidden keys are.
SMALLEST = 1e-30


def found(kind: str) -> dict[str, Any]:
    """Result of one type: its state, the faults and their text."""
    began = time.perf_counter()
    try:
        model, inputs = made(kind)
    except NotImplementedError as error:
        return {"kind": kind, "state": "not buildable", "faults": [], "reason": str(error)[:1500]}
    answer = {
        "kind": kind,
        "class": type(model).__name__,
        "inputs": {k: _shape(x) for k, x in inputs.items()},
    }
    answer["built_in"] = round(time.perf_counter() - began, 2)
    answer.update(compared(model, inputs))
    answer["seconds"] = round(time.perf_counter() - began, 2)
    return answer


def _shape(x: Any) -> Any:
    return list(x.shape) if isinstance(x, torch.Tensor) else x


def compared(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """The state of the model, "right", "wrong", "refused" or "no attention", and what is wrong."""
    eager = copy.deepcopy(model)
    try:
        if hasattr(eager, "set_attn_implementation"):
            eager.set_attn_implementation("eager")
    except Exception:  # there is no other
        eager = copy.deepcopy(model)
    try:
        wanted = weights_of(eager, inputs)
    except Exception:  # its eager attention does not run: what it computes otherwise
        wanted = weights_of(copy.deepcopy(model), inputs)
    try:
        with at.torch.record(model) as log:
            runs(model, inputs)
    except NotImplementedError as error:
        return {"state": "refused", "faults": ["refused"], "reason": _said(error), "wanted": len(wanted)}
    except Exception as error:
        nothing = isinstance(error, ValueError) and "no attention of" in str(error)
        if nothing and not wanted:
            return {"state": "no attention", "faults": [], "reason": ""}
        word = "lost" if nothing else "unclear"
        detail = [f"{name} {tuple(seen.weights.shape)}" for name, seen in list(wanted.items())[:4]]
        answer = {"state": "wrong", "faults": [word], "reason": _said(error)}
        return {**answer, "wanted": len(wanted), "detail": detail}
    note = ""
    if {"entropy", "mean"} & {*differences(log, wanted, inputs)[0]}:
        plain = weights_of(copy.deepcopy(model), inputs)
        if not differences(log, plain, inputs)[0]:
            wanted, note = plain, "its eager attention computes something else than the one that it runs with"
    finite = all(bool(seen.weights.isfinite().all()) for seen in wanted.values())
    note = note if finite else "weights that are not finite"
    faults, detail = differences(log, wanted, inputs)
    detail += _monitored(model, inputs, log, faults)
    return {
        "state": "wrong" if faults else "right",
        "faults": faults,
        "detail": detail,
        "reason": note,
        "wanted": len(wanted),
        "modules": len(log.modules),
        "ways": sorted(set(log.ways.values())),
        "cross": sum(kind == "cross" for kind in log.kinds.values()),
    }


def differences(log: Any, wanted: dict[str, Seen], inputs: dict[str, Any]) -> tuple[list[str], list[str]]:
    faults: dict[str, None] = {}
    detail = []
    if lost := [name for name in wanted if name not in log.modules]:
        faults["lost"] = None
        detail.append(f"lost {len(lost)}: {[f'{n} {tuple(wanted[n].weights.shape)}' for n in lost[:3]]}")
    if more := [name for name in log.modules if name not in wanted]:
        faults["more"] = None
        detail.append(f"more {len(more)}: {_told(log, more[:3])}")
    for name, seen in wanted.items():
        if name not in log.modules:
            continue
        got = log["entropy"][name]
        right = _as(entropies(seen.weights), got.shape, near=got)
        words = []
        if right is None:
            words.append(f"shape: {got.shape} of weights {tuple(seen.weights.shape)}")
        else:
            right = np.where(
                np.isneginf(log["lse"][name]), 0, right
            )  # uniform weights where all keys are hidden
            real = _real(inputs, got.shape, seen.mask)
            if not seen.cross:
                real = _of_used_keys(real, seen.weights.nan_to_num(0), got.shape, log.rows[name])
            if not np.array_equal(log.rows[name], real):
                words.append(
                    f"rows: {int(log.rows[name].sum())} real of {got.shape}, right {int(real.sum())}"
                )
            error = _largest(got, right, real)
            if not error < NEAR:
                words.append(f"entropy: {error:.3g} off, {log.ways[name]} {got.shape} {seen.way}")
            words += _mean(log, name, right, real)
        if (log.kinds[name] == "cross") != seen.cross:
            words.append(f"kind: {log.kinds[name]} {got.shape} keys {seen.weights.shape[-1]}")
        for word in words:
            faults[word.partition(":")[0]] = None
            if sum(each.partition(" at ")[0].startswith(word.partition(":")[0]) for each in detail) < 2:
                detail.append(f"{word} at {name}")
    return list(faults), detail


def _mean(log: Any, name: str, right: Any, real: Any) -> list[str]:
    try:
        mean = log.select(modules=name.replace("[", "[[]")).mean_entropy()[0]
    except Exception as error:
        return [f"mean: {_said(error)}"]
    rows = np.broadcast_to(real[:, None], right.shape)
    if not np.isfinite(right[rows]).all():  # rows that see no key
        return []
    expected = (right * rows).sum((0, 2)) / rows.sum((0, 2))
    return [] if np.allclose(mean, expected, atol=NEAR, equal_nan=True) else [
        f"mean: {np.abs(mean - expected).max():.3g} off"]  # fmt: skip


def _as(rows: Any, shape: tuple[int, ...], near: Any = None) -> Any:
    """Rows of the oracle in the order of the log, (batch, heads, queries).

    Where axes are equally long, several orders fit: the one whose numbers are nearest to `near` counts.
    """
    found = [*_orders(rows, shape)]
    if near is None or len(found) < 2:
        return found[0] if found else None
    return min(found, key=lambda each: np.abs(np.nan_to_num(each) - np.nan_to_num(near)).sum())


def _orders(rows: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """Each order in which rows have this shape, the likeliest first."""
    if tuple(rows.shape) == shape:
        yield rows.numpy()
        return
    if rows.ndim == 3 and (rows.shape[0], rows.shape[2], rows.shape[1]) == shape:
        yield rows.transpose(1, 2).numpy()
    if rows.ndim == 4 and (rows.shape[0] * rows.shape[2], rows.shape[1], rows.shape[3]) == shape:  # windows
        yield rows.transpose(1, 2).reshape(shape).numpy()
    if rows.ndim == 4 and (*rows.shape[:2], rows.shape[2] * rows.shape[3]) == shape:  # blocks of one text
        yield rows.flatten(2).numpy()
    if rows.numel() == int(np.prod(shape)) and rows.shape[-1] == shape[-1]:
        yield rows.reshape(shape).numpy()


def _real(inputs: dict[str, Any], shape: tuple[int, ...], given: Any) -> Any:
    """Real rows of a call of this shape, by a mask of as many rows or fewer."""
    mask = inputs.get("attention_mask")
    n = 0 if mask is None else mask.shape[1]
    padded_inside = shape[2] > n and not shape[2] % 256
    if n and shape[0] == len(mask) and (shape[2] == n or padded_inside):
        return np.pad(mask.numpy().astype(bool), ((0, 0), (0, shape[2] - n)))
    if given is not None and n and shape[2] > n and shape[0] == len(given):
        return given.numpy()
    return np.ones((shape[0], shape[2]), bool)


def _of_used_keys(real: Any, weights: Any, shape: tuple[int, ...], rows: Any) -> Any:
    """Real rows whose own key has a weight, or all, as the log has it, where weights may have become 0."""
    used = real & _used(weights, shape)
    vanishing = bool((weights[weights > 0] < SMALLEST).any())
    return real if vanishing and np.array_equal(rows, real) else used


def _used(weights: Any, shape: tuple[int, ...]) -> Any:
    """Places whose key has a weight in some row of its text, where every real row has one for its own."""
    used = np.ones((shape[0], shape[2]), bool)
    n = weights.shape[-1]
    if weights.shape[-2] != n or n != shape[2] or weights[..., 0, 0].numel() != shape[0] * shape[1]:
        return used
    own = _as(weights.diagonal(dim1=-2, dim2=-1), shape)
    all_rows = _as(weights.amax(-2), shape)
    if own is None or all_rows is None:
        return used
    found = (all_rows > 0).any(1)
    return found if ((own > 0).any(1) | ~found).all() else used


def _largest(got: Any, right: Any, real: Any) -> float:
    rows = np.broadcast_to(real[:, None], got.shape) & np.isfinite(right)
    return float(np.abs(got - right)[rows].max(initial=0))


def _monitored(model: Any, inputs: dict[str, Any], log: Any, faults: list[str]) -> list[str]:
    try:
        monitor = at.torch.Monitor(model, every=1, rows=None, min_entropy=None, max_score=None)
        with monitor.step():
            runs(model, inputs)
        seen = tuple(monitor.modules)
    except Exception as error:
        faults.append("monitor")
        return [f"monitor: {_said(error)}"]
    if set(seen) != set(log.modules):
        faults.append("monitor")
        return [f"monitor: {len(seen)} modules of {len(log.modules)}"]
    return []


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def _told(log: Any, names: list[str]) -> list[str]:
    return [f"{name} {log['entropy'][name].shape} {log.ways[name]}" for name in names]
