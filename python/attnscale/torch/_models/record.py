# SPDX-License-Identifier: BSD-3-Clause
"""Recording the attention of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ... import laws as law_registry
from ..._checks import boolean
from ..._results import statistic_names
from ...laws import Law
from .interface import NAME, log_to, register
from .lens import is_hooked, recorded
from .log import AttentionLog

__all__ = ["record"]


@contextmanager
def record(
    model: Any,
    *,
    statistics: str | Iterable[str] = ("entropy", "lse", "max_score"),
    laws: str | float | Law | Iterable[str | float | Law] | Mapping[str, str | float | Law] = (),
    keep_heads: bool = False,
) -> Iterator[AttentionLog]:
    """Record statistics of a model's attention for the time of a ``with`` block.

    Parameters
    ----------
    model : transformers.PreTrainedModel or transformer_lens.HookedTransformer
        A model on any device, of any float type. Inside the block the attention of a model of transformers
        runs through this package, afterwards as before. A HookedTransformer computes as ever, with its hooks;
        its queries and keys are taken at its hook points.
    statistics : str or sequence of str, default ("entropy", "lse", "max_score")
        Names of fields of :class:`attnscale.AttentionStatistics`.
    laws : str, float or Law, sequence of them, or mapping of str to them, optional
        Laws whose entropy is measured as well, on the same queries and keys: each multiplies the
        model's own scale. The output of the model does not change. The log names the laws by their
        ``spelling``, or as the mapping does.
    keep_heads : bool, default False
        Whether the log keeps the queries and keys of each call in float32, which its ``report`` needs. A
        layer of 32 heads of 128 channels takes 32 MiB for 1024 tokens.

    Yields
    ------
    AttentionLog

    Raises
    ------
    TypeError
        If the model is none of both.
    ValueError
        If a statistic or law is not known; at the end of the block, if the model ran without a call
        of attention that could be recorded.

    Notes
    -----
    The weights are never materialised: memory grows with the number of queries. Run the model under
    ``torch.no_grad()``. What is recorded, of 16-bit models too in float32, is measured on the model's device
    and kept as arrays in the memory of the CPU.

    Examples
    --------
    >>> import torch
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_embd=32, n_head=2, n_layer=3, vocab_size=50)).eval()
    >>> with torch.no_grad(), record(model, laws=["log_n"]) as log:
    ...     _ = model(torch.arange(20)[None])
    >>> log.mean_entropy().shape, log.mean_entropy("log_n").shape  # (layers, heads)
    ((3, 2), (3, 2))
    """
    listed = (laws,) if isinstance(laws, (str, float, int, Law)) else laws
    if isinstance(listed, Mapping):
        named = {name: law_registry.get(law) for name, law in listed.items()}
    else:
        named = {law.spelling: law for law in map(law_registry.get, listed)}
    wanted = statistic_names(statistics)
    if not (is_hooked(model) or hasattr(model, "set_attn_implementation")):
        kind = type(model).__name__
        raise TypeError(f"model must be a transformers model that can change its attention, got {kind}")
    modules = {id(module): name for name, module in model.named_modules()}
    log = AttentionLog(wanted, named, names=modules, keep_heads=boolean("keep_heads", keep_heads))
    with recorded(model, log) if is_hooked(model) else _through_here(model, log):
        yield log
    if not log.passes:
        raise ValueError(
            f"no attention of {type(model).__name__} was recorded: the model did not run in the block, or "
            f"its layers do not call the attention interface of transformers (name {NAME!r})"
        )


@contextmanager
def _through_here(model: Any, log: AttentionLog) -> Iterator[None]:
    """A model of transformers runs through this package's attention, which writes to the log."""
    before = model.config._attn_implementation
    model.set_attn_implementation(register())
    try:
        with log_to(log):
            yield
    finally:
        model.set_attn_implementation(before)
