# SPDX-License-Identifier: BSD-3-Clause
"""Models of transformers through this package's attention. Needs torch and transformers.

>>> import attnscale as at, torch
>>> from transformers import BertConfig, BertModel
>>> sizes = dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=3, vocab_size=50)
>>> model = BertModel(BertConfig(**sizes)).eval()
>>> with torch.no_grad(), at.torch.record(model) as log:
...     _ = model(torch.arange(20)[None])
>>> log.entropy.shape  # (layers, batch, heads, queries)
(3, 1, 2, 20)
"""

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"attnscale.torch needs torch and transformers ({error}): pip install torch transformers"
    ) from error

from ._forward import NAME, register
from ._log import AttentionLog
from ._record import record

__all__ = ["NAME", "AttentionLog", "record", "register"]
