# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale diagnose``: entropy of a model's attention against the length of a text."""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import audit
from .._io import InputError
from .._table import to_text
from ..laws import Law
from ._figure import save_figure
from ._output import emit
from ._spelling import LAW_HELP, read_law

_DESCRIPTION = """\
Runs a model of transformers on the first N tokens of a text, for each N of --lengths, and prints the
mean entropy of its attention in nats, layer by layer: as the model has it, and as it would be with its
scale multiplied by each of --laws, on the same queries and keys. The plan of the audit comes first.
A layer's attention sink counts as one more outcome.
MODEL is a directory, or a name that transformers knows. Nothing is downloaded for a directory.
"""


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "diagnose",
        help="entropy of a model's attention against length, by layer (needs torch and transformers)",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="a text in UTF-8")
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 128, 256, 512], metavar="N")
    parser.add_argument("--laws", nargs="+", default=["standard"], metavar="LAW", help=LAW_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON, with every head")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a figure: .png, .pdf, .svg")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    laws = {text: read_law(text) for text in options.laws}
    lengths = _checked_lengths(options.lengths)
    tokens, model = _load(options)
    if max(lengths) > len(tokens):
        raise InputError(
            f"--lengths must be at most {len(tokens)}, the tokens of {options.text}, got {max(lengths)}"
        )
    longest = getattr(model.config, "max_position_embeddings", None)
    plan = _plan(model)
    if plan.learned_positions and longest is not None and max(lengths) > longest:
        raise InputError(
            f"--lengths must be at most {longest}, the positions of the model, got {max(lengths)}"
        )
    entropy, sinks = measure(model, tokens, lengths, laws)
    if options.plot is not None:
        flat = {law: values.reshape(len(lengths), -1) for law, values in entropy.items()}
        save_figure(options.plot, lambda ax: _draw(flat, lengths, ax))
    text = f"{plan.explain()}\n\n{_table(lengths, entropy, sinks)}"
    emit(options, text, report=_report(options, plan, lengths, entropy, sinks))


def measure(
    model: Any, tokens: list[int], lengths: list[int], laws: dict[str, Law]
) -> tuple[dict[str, NDArray[np.float64]], tuple[int, ...]]:
    """Mean entropy under each law, shape (lengths, layers, heads), and the layers where it counts a sink."""
    import torch

    from ..torch import record

    found: dict[str, list[NDArray[np.float64]]] = {name: [] for name in laws}
    for n in lengths:
        with torch.no_grad(), record(model, statistics=("entropy",), laws=laws) as log:
            model(input_ids=torch.tensor([tokens[:n]]))
        for name in laws:
            found[name].append(log.mean_entropy(name))
    return {name: np.stack(values) for name, values in found.items()}, log.sink_layers


def _checked_lengths(lengths: list[int]) -> list[int]:
    if min(lengths) < 1:
        raise InputError(f"--lengths must be at least 1, got {min(lengths)}")
    return sorted(set(lengths))


def _load(options: argparse.Namespace) -> tuple[list[int], Any]:
    """Token numbers of the text, and the model."""
    text = options.text.read_text(encoding="utf-8")
    if Path(options.model).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise InputError('diagnose needs torch and transformers: pip install "attnscale[torch]"') from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        model = AutoModel.from_pretrained(options.model).float().eval()
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"MODEL {options.model}: {first}") from None
    return list(tokenizer(text, truncation=False, verbose=False)["input_ids"]), model


def _plan(model: Any) -> audit.ScalePlan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", audit.AuditWarning)  # they are part of the plan's text
        return audit.resolve(model.config)


def _table(lengths: list[int], entropy: dict[str, NDArray[np.float64]], sinks: tuple[int, ...]) -> str:
    """One row for each length and layer, then the mean of the layers."""
    rows = []
    for index, n in enumerate(lengths):
        layers = next(iter(entropy.values())).shape[1]
        for layer in [*range(layers), None]:
            chosen = [values[index] if layer is None else values[index, layer] for values in entropy.values()]
            cells = [cell for each in chosen for cell in (f"{each.mean():.3f}", f"{np.exp(each.mean()):.1f}")]
            rows.append([str(n), "mean" if layer is None else str(layer), *cells])
    header = ["n", "layer", *(title for law in entropy for title in (law, "keys"))]
    note = "Mean entropy (nats) of the heads; keys: exp of it. A law multiplies the model's own scale."
    if sinks:
        note += (
            f"\nThe entropy counts the sink as one more outcome in the layers {', '.join(map(str, sinks))}."
        )
    return f"{note}\n\n{to_text(header, rows)}"


def _report(
    options: argparse.Namespace,
    plan: audit.ScalePlan,
    lengths: list[int],
    entropy: dict[str, NDArray[np.float64]],
    sinks: tuple[int, ...],
) -> dict[str, Any]:
    return {
        "model": options.model,
        "text": str(options.text),
        "unit": "nat",
        "plan": plan.to_dict(),
        "rows": [
            {
                "n": n,
                "layer": layer,
                "law": law,
                "entropy_counts_sink": layer in sinks,
                "entropy_by_head": values[index, layer].tolist(),
                "entropy": float(values[index, layer].mean()),
            }
            for index, n in enumerate(lengths)
            for law, values in entropy.items()
            for layer in range(values.shape[1])
        ],
    }


def _draw(entropy: dict[str, NDArray[np.float64]], lengths: list[int], ax: Any) -> None:
    from .. import plot

    plot.entropy_vs_length(entropy, lengths, ax=ax)
