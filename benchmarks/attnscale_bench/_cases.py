# SPDX-License-Identifier: BSD-3-Clause
"""The table of cases: measurements and their targets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from . import _attention_cases as attention
from . import _bfloat16_cases as bfloat16
from . import _gradient_cases as gradient
from . import _in_model_cases as in_model
from . import _jax_cases as jax
from . import _model_cases as model
from . import _normalizer_cases as normalizers
from . import _peer_cases as peer
from . import _process_cases as process
from . import _random_cases as random
from . import _short_cases as short
from . import _solve_cases as solve
from . import _tensor_cases as tensors
from . import _variant_cases as variant
from ._peer_table import ATTENTION_CASES
from ._rows import Row, at_least, at_most
from ._session import Session

__all__ = ["CASES", "Case"]


class Case(NamedTuple):
    """A case that measures one or several rows.

    Only a full run measures `slow` cases; `asked` cases run only if named.
    """

    run: Callable[[Session, str], list[Row]]
    slow: bool = False
    asked: bool = False


_torch = at_least(1.2)
_torch_short = at_least(1.3)
_torch_back = at_least(1.15)

CASES: dict[str, Case] = {
    "forward_64": Case(
        partial(
            attention.forward,
            n=3072,
            head_dim=64,
            share=at_least(0.82),
            against_torch=_torch,
            against_numpy=True,
        )
    ),
    "forward_128": Case(
        partial(attention.forward, n=3072, head_dim=128, share=at_least(0.85), against_torch=_torch)
    ),
    "forward_32": Case(
        partial(attention.forward, n=3072, head_dim=32, share=at_least(0.72), against_torch=_torch)
    ),
    "forward_512_64": Case(partial(attention.forward, n=512, head_dim=64, against_torch=_torch_short)),
    "forward_512_128": Case(partial(attention.forward, n=512, head_dim=128, against_torch=_torch_short)),
    "forward_512_32": Case(partial(attention.forward, n=512, head_dim=32, against_torch=_torch_short)),
    "jax_512": Case(partial(jax.forward, n=512, target=_torch_short), slow=True),
    "jax_3072": Case(partial(jax.forward, n=3072, target=_torch), slow=True),
    "short": Case(partial(attention.forward, n=128, head_dim=64, heads=64, share=at_least(0.65))),
    "causal_4096": Case(partial(attention.causal, n=4096, target=at_least(1.85))),
    "causal_512": Case(partial(attention.causal, n=512, target=at_least(1.6))),
    "backward_64": Case(
        partial(gradient.backward, n=3072, head_dim=64, share=at_least(0.76), against_torch=_torch_back)
    ),
    "backward_128": Case(partial(gradient.backward, n=3072, head_dim=128, share=at_least(0.78))),
    "backward_32": Case(partial(gradient.backward, n=3072, head_dim=32, share=at_least(0.66))),
    "backward_one_head": Case(partial(gradient.backward, n=3072, head_dim=64, heads=1, share=at_least(0.7))),
    "backward_causal_4096": Case(partial(gradient.causal, n=4096, target=at_least(1.8))),
    "backward_causal_512": Case(partial(gradient.causal, n=512, target=at_least(1.5))),
    "backward_on_top": Case(gradient.on_top),
    "step_3072": Case(partial(gradient.step, n=3072, target=at_least(1.25))),
    "step_512": Case(partial(gradient.step, n=512, target=at_least(1.25))),
    "step_sparse": Case(partial(gradient.sparse_step, n=2048), slow=True),
    "training_step": Case(partial(model.training_step, target=at_least(1.0)), slow=True),
    "hybrid_steps": Case(model.hybrid_steps, slow=True),
    "entropy_in_a_loss": Case(
        partial(
            tensors.entropy_in_a_loss, targets={256: at_least(3.5), 1024: at_least(6), 3072: at_least(5)}
        ),
        slow=True,
    ),
    "avx2": Case(process.avx2_level),
    "float64": Case(partial(attention.forward, n=3072, head_dim=64, dtype=np.float64, share=at_least(0.75))),
    "on_top": Case(attention.on_top),
    "entropy_alone": Case(attention.entropy_alone),
    "by_hand": Case(attention.by_hand),
    "decode": Case(attention.decode),
    "decode_16_bits": Case(bfloat16.decode),
    "bfloat16_64": Case(
        partial(bfloat16.forward, n=3072, head_dim=64, target=at_least(1.8), against_torch=at_least(2.4))
    ),
    "bfloat16_128": Case(partial(bfloat16.forward, n=3072, head_dim=128, target=at_least(1.8))),
    "bfloat16_512": Case(
        partial(bfloat16.forward, n=512, head_dim=64, target=at_least(1.6), against_torch=at_least(2.4))
    ),
    "bfloat16_causal": Case(
        partial(bfloat16.forward, n=3072, head_dim=64, is_causal=True, target=at_least(1.7))
    ),
    "bfloat16_on_top": Case(bfloat16.on_top),
    "bfloat16_backward": Case(bfloat16.backward),
    "window": Case(attention.sliding_window),
    "normalizers": Case(partial(normalizers.over_softmax, n=3072, targets=normalizers.NORMALIZERS)),
    "sparse_many": Case(partial(normalizers.over_softmax, n=3072, targets=normalizers.MANY_CANDIDATES)),
    "sparse_decode": Case(
        partial(
            normalizers.decode_over_softmax,
            n=65536,
            targets={"sparsemax": at_most(1.2), "sparsemax_equal": at_most(3)},
        )
    ),
    "sparse_long": Case(
        partial(normalizers.over_softmax, n=12288, targets={"sparsemax": at_most(0.8)}), slow=True
    ),
    "sparse_torch": Case(partial(normalizers.against_entmax, n=3072), slow=True),
    "curve": Case(solve.curve),
    "solve": Case(solve.solve, slow=True),
    "expected": Case(solve.expected),
    "normals": Case(random.normals),
    "products": Case(random.products),
    "rows": Case(random.rows),
    "projection": Case(random.projection),
    "efficient": Case(variant.efficient, slow=True),
    "linear_causal": Case(variant.linear_causal, slow=True),
    "one_head": Case(variant.one_head, slow=True),
    "kattention": Case(variant.kattention),
    "local_global": Case(variant.local_global),
    "family_gradients": Case(variant.gradients, slow=True),
    "two_threads": Case(random.two_threads),
    "memory": Case(process.additional_memory, slow=True),
    "overhead": Case(attention.call_overhead),
    "tensor_overhead": Case(tensors.tensor_overhead),
    "gradients_overhead": Case(tensors.gradients_overhead),
    "tensors_8": Case(partial(tensors.forward_on_tensors, heads=8, targets=tensors.FORWARD_8)),
    "tensors_1": Case(partial(tensors.forward_on_tensors, heads=1, targets=tensors.FORWARD_1)),
    "tensors_step": Case(
        partial(tensors.step_on_tensors, heads=8, head_dim=64, targets=tensors.STEP_8), slow=True
    ),
    "tensors_step_smallest": Case(
        partial(tensors.step_on_tensors, heads=1, head_dim=16, targets=tensors.STEP_16)
    ),
    "options_16": Case(
        partial(
            short.options,
            targets={"mask": at_most(1.5), "mask_law": at_most(2), "softcap": at_most(1.3)},
        )
    ),
    "tensors_mask_16": Case(partial(short.mask_on_tensors, target=at_most(1.1))),
    "tensors_step_16": Case(
        partial(
            short.gradients,
            targets={"plain": at_most(1.2), "mask": at_most(1.5), "entropy": at_most(0.5)},
        )
    ),
    "behind_step": Case(
        partial(
            in_model.steps_behind_operator,
            targets={128: at_least(1.5), 256: at_least(1.4), 512: at_least(1.45), 1024: at_least(1.4)},
        )
    ),
    "behind_decode": Case(partial(in_model.decode_behind_operator, targets=(at_least(0.88), at_least(1.15)))),
    "behind_product": Case(in_model.numpy_behind_product),
    "gpt_step": Case(
        partial(
            in_model.gpt_steps,
            targets={(1, 2048): at_least(1.25), (2, 512): at_least(1.2), (8, 128): at_least(1.08)},
        ),
        slow=True,
    ),
    "gpt_inference": Case(partial(in_model.gpt_inference, targets={(1, 2048): at_least(1.25)}), slow=True),
    "gpt_step_jax": Case(
        partial(
            in_model.gpt_steps_in_jax,
            targets={(1, 2048): at_least(1), (2, 512): at_least(1), (8, 128): at_least(1)},
        ),
        slow=True,
    ),
    "import": Case(process.import_time),
    "version": Case(partial(process.version_time, target=at_most(1.4))),
    "interrupt": Case(process.interrupted),
    **{
        name: Case(
            partial(peer.beside, work=case.work, n=case.n, head_dim=case.head_dim, dtype=case.dtype),
            asked=True,
        )
        for name, case in ATTENTION_CASES.items()
    },
}
