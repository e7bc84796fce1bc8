# SPDX-License-Identifier: BSD-3-Clause
"""Attention on PyTorch tensors, with gradients, and recording of attention in PyTorch models. Needs torch.

>>> import attnscale as at, torch
>>> q, k, v = torch.ones(3, 2, 20, 8).requires_grad_()  # each (heads, n, head_dim)
>>> at.torch.attention(q, k, v, is_causal=True).shape
torch.Size([2, 20, 8])

Any model can be recorded as it runs, here one of transformers; only ``register`` needs that package:

>>> from transformers import BertConfig, BertModel
>>> sizes = dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=3, vocab_size=50)
>>> model = BertModel(BertConfig(**sizes)).eval()
>>> with torch.no_grad(), at.torch.record(model) as log:
...     _ = model(torch.arange(20)[None])
>>> log.entropy.shape  # (layers, batch, heads, queries)
(3, 1, 2, 20)
"""

from typing import TYPE_CHECKING, Any

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(f"attnscale.torch needs torch ({error}): pip install torch") from error

from .._base.versions import too_old as _too_old

if _reason := _too_old("attnscale.torch", "torch", _torch.__version__, "2.6"):
    raise ImportError(_reason)

from .._base.runtime import use_threads_of_torch
from .._base.statistics import AttentionStatistics
from . import nn
from ._base.learned import Entmax, Learned, Scaled, Sigmoid, Sink
from ._clip import qk_clip_
from ._composed import attention_divergence, differential_attention, relay_attention
from ._functional import attention, attention_entropy, attention_spans, attention_statistics
from ._identify import identify_entropy, identify_lse
from ._models.tally import Alarm
from ._selection import attention_mass, head_kinds, top_keys
from ._variants import cosformer_attention, efficient_attention, linear_attention, performer_attention, ssd
from .nn._replace import replace_attention

if TYPE_CHECKING:
    from ._models.diagnosed_heads import DiagnosedHeads
    from ._models.diagnosis import Diagnosis, diagnose
    from ._models.interface import NAME, register
    from ._models.log import AttentionLog
    from ._models.monitor import Monitor
    from ._models.record import record

__all__ = [
    "NAME",
    "Alarm",
    "AttentionLog",
    "AttentionStatistics",
    "DiagnosedHeads",
    "Diagnosis",
    "Entmax",
    "Learned",
    "Monitor",
    "Scaled",
    "Sigmoid",
    "Sink",
    "attention",
    "attention_divergence",
    "attention_entropy",
    "attention_mass",
    "attention_spans",
    "attention_statistics",
    "cosformer_attention",
    "diagnose",
    "differential_attention",
    "efficient_attention",
    "head_kinds",
    "identify_entropy",
    "identify_lse",
    "linear_attention",
    "nn",
    "performer_attention",
    "qk_clip_",
    "record",
    "register",
    "relay_attention",
    "replace_attention",
    "ssd",
    "top_keys",
]

use_threads_of_torch()

#: Names of the tools for models, and the module of each, imported on first use.
_OF_MODELS = {
    "NAME": "interface",
    "AttentionLog": "log",
    "DiagnosedHeads": "diagnosed_heads",
    "Diagnosis": "diagnosis",
    "Monitor": "monitor",
    "diagnose": "diagnosis",
    "record": "record",
    "register": "interface",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_MODELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"._models.{_OF_MODELS[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ImportError(
            f"attnscale.torch.{name} needs transformers ({error}): pip install transformers"
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
