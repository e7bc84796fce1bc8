# SPDX-License-Identifier: BSD-3-Clause
"""Recording the attention of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ... import laws as law_registry
from ..._base.checks import boolean, shown
from ..._base.statistics import statistic_names
from ...laws import Law
from .kept import LastPass
from .log import AttentionLog
from .watch import Watch


@contextmanager
def record(
    model: Any,
    *,
    statistics: str | Iterable[str] = ("entropy", "lse", "max_score"),
    laws: str | float | Law | Iterable[str | float | Law] | Mapping[str, str | float | Law] = (),
    keep_heads: bool = False,
    to_compare: bool = False,
) -> Iterator[AttentionLog]:
    """Record statistics of a model's attention during a ``with`` block.

    Parameters
    ----------
    model : torch.nn.Module
        Any model of PyTorch, on any device, of any float type. It computes as before, with its own attention;
        the statistics are computed in addition. Attention is seen in any spelling: calls of
        ``scaled_dot_product_attention``, ``flex_attention`` or this package, and a softmax written out over
        products of two tensors and then multiplied with values; also in programs of ``torch.export``,
        scripted functions and under ``torch.vmap``.
    statistics : str or sequence of str, default ("entropy", "lse", "max_score")
        Names of fields of :class:`attnscale.AttentionStatistics`.
    laws : str, float or Law, sequence of them, or mapping of str to them, optional
        Laws whose entropy is measured as well, on the same queries and keys: each multiplies the model's own
        scale. The output of the model does not change. The log names the laws by their ``spelling``, or by
        the keys of the mapping.
    keep_heads : bool, default False
        Whether the log keeps the queries and keys of each call in float32, which its ``report`` needs. A
        layer of 32 heads of 128 channels takes 32 MiB for 1024 tokens.
    to_compare : bool, default False
        Whether the log keeps, of the last pass, what :func:`attnscale.compare` needs: of 16 rows of the first
        text the queries, the keys at their places, what the rows see, and the rows of the module's input and
        output. A layer of 32 heads of 128 channels takes 1 MiB. ``log.save`` writes it to a file.

    Yields
    ------
    AttentionLog

    Raises
    ------
    TypeError
        If the model is not a module, or has a module compiled by TorchScript.
    ValueError
        If a statistic or law is unknown; at the end of the block, if no attention was seen, with the reason.
        (Attention that was seen but cannot be measured is in ``AttentionLog.unmeasured``, without an error.)
    NotImplementedError
        If the model's attention is closed, as flash attention of transformers; in the model's pass, if a law
        or ``keep_heads`` needs queries and keys of scores that are not one product of them.

    Notes
    -----
    A call of the model, or of a part of it from outside, is a pass. Rows of padding, known from the model's
    ``attention_mask``, are recorded but not part of means. Run the model under ``torch.no_grad()``. Where
    attention is fused the weights are never materialised. Statistics, of 16-bit models too in float32, are
    measured on the model's device and kept as arrays in CPU memory.

    A key is hidden if a mask hides it, if its score was replaced by -10000 or less, or if -10000 or less was
    added to its score and leaves it less weight than the rounding of the type; the log says where sums hide
    keys.

    A recording belongs to the thread that opens it, and to those in which PyTorch runs replicas of the model
    for it. Modules made by ``torch.compile`` run uncompiled in the block, in all threads, and code that
    checks ``torch.compiler.is_compiling()`` takes its other branch. Modules that PyTorch runs as one operator
    in evaluation (the fast path of ``nn.TransformerEncoder``) run as their parts, which round otherwise; if
    they compute something else, a warning says so.

    Not seen are a softmax over a list of edges, as in graphs, and computation outside of PyTorch, as in
    NumPy. Rows over a single key may be missed.

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
    check_watched(model)
    last = LastPass() if boolean("to_compare", to_compare) else None
    log = AttentionLog(wanted, named, keep_heads=boolean("keep_heads", keep_heads), to_compare=last)
    with Watch(model, log.add, log.begin_pass, log.lose, None if last is None else last.end) as watch:
        yield log
    if not (log.passes or log.unmeasured):
        raise ValueError(
            f"no attention of {type(model).__name__} was recorded: {why_nothing(watch, 'block')}"
        )


def why_nothing(watch: Watch, block: str) -> str:
    """Reason why a watch has seen no attention in a block or step, for an error."""
    if watch.missed_a_thread:
        return "the model ran in another thread than the one that records"
    return (
        f"the model did not run in the {block}, or none of its attention is a softmax over products of "
        "queries and keys"
    )


def check_watched(model: Any) -> None:
    """Refuse a model that cannot be watched."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"model must not be compiled by TorchScript, got {name or 'the model'} of that kind"
            )
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if isinstance(implementation, str) and "flash" in implementation:
        raise NotImplementedError(
            f"{type(model).__name__} has attn_implementation={implementation!r}, a closed kernel: "
            'model.set_attn_implementation("sdpa") computes the same'
        )
