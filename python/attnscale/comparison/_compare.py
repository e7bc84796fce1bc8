# SPDX-License-Identifier: BSD-3-Clause
"""The comparison of two runs of attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._base.checks import refusal, shown
from ._pair import pairs_of
from ._result import RunComparison, result_of
from ._sources import is_model, runs_of_models, stored_run


def compare(a: Any, b: Any, *, inputs: Mapping[str, Any] | None = None) -> RunComparison:
    """Find the first layer in which the attention of two runs differs, and why.

    Parameters
    ----------
    a, b : AttentionLog, path or torch.nn.Module
        Two runs on the same tokens: a log of ``attnscale.torch.record(model, to_compare=True)``, the file
        that its ``save`` wrote, a file of heads as for ``attnscale entropy``, or a model, which is run.
    inputs : mapping of str to object, optional
        Keyword arguments of models; default: 64 random tokens of a fixed seed.

    Returns
    -------
    RunComparison
        Its `cause` names kind, layer, heads and factor if one of the known kinds explains most of the first
        difference that is more than rounding; otherwise it is None.

    Raises
    ------
    TypeError, ValueError
        If a run is of another kind, keeps no rows, or the runs have no layers, heads or rows in common.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> from transformers import LlamaConfig, LlamaModel
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 50}
    >>> model = LlamaModel(LlamaConfig(**sizes, num_hidden_layers=3)).eval()
    >>> tokens = torch.arange(40)[None]
    >>> with torch.no_grad(), at.torch.record(model, to_compare=True) as right:
    ...     _ = model(tokens)
    >>> model.layers[1].self_attn.scaling *= 1.3
    >>> with torch.no_grad(), at.torch.record(model, to_compare=True) as wrong:
    ...     _ = model(tokens)
    >>> at.compare(right, wrong).cause.sentence
    'layer 1 (layers.1.self_attn): the scores of b are 1.3 times those of a'
    """
    models = [run for run in (a, b) if is_model(run)]
    if len(models) == 1 and inputs is None:
        rule = "must be given to compare a model with a stored run: what that run was given, got None"
        raise refusal(ValueError, "inputs", rule)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise refusal(TypeError, "inputs", f"must be a mapping of keyword arguments, got {shown(inputs)}")
    ran = iter(runs_of_models(models, inputs))
    runs = [next(ran) if is_model(run) else stored_run(name, run) for name, run in (("a", a), ("b", b))]
    return result_of(pairs_of(*runs))
