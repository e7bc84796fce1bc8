# SPDX-License-Identifier: BSD-3-Clause
"""Meaning of masks by their type and shape, and of soft-caps beside them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._asked import Asked, attended, draw, scores, softmax, subject

question = subject("Masks and soft-caps")


def _of_ones(asked: Asked, *types: str) -> str:
    """Meaning of a mask of 1, 1, 0, 0 over equal scores; the first of the types that the engine takes."""
    query, key, value = (np.zeros((1, 1, 4, 8)) for _ in range(3))
    value[:, :, :2] = 1
    for kind in types:
        mask = np.broadcast_to(np.array([1, 1, 0, 0], kind), (1, 1, 4, 4)).copy()
        try:
            found = asked(query, key, value, attn_mask=mask)["output"]
            break
        except NotImplementedError:
            raise
        except Exception:
            if kind == types[-1]:
                raise
    one = np.e / (np.e + 1)
    by_scale = 1 / (1 + np.exp(-1 / np.sqrt(8)))
    named = {"added": one, "as boolean": 1.0, "True hides": 0.0, "not read": 0.5, "added, scaled": by_scale}
    return asked.nearest(found, named)


@question(
    "boolean",
    "A mask of True and False",
    "True shows",
    rule="True takes part, as in PyTorch's scaled_dot_product_attention, JAX and ONNX",
)
def mask_of_booleans(asked: Asked) -> str:
    return _of_ones(asked, "bool").replace("as boolean", "True shows")


@question(
    "integers",
    "A mask of integers 0 and 1",
    "as boolean",
    rule="tokenizers write masks of 1 for a token and 0 for padding; an error is as good",
)
def mask_of_integers(asked: Asked) -> str:
    return _of_ones(asked, "int64", "int32")


@question(
    "float 0 and 1",
    "A mask of the floating-point numbers 0 and 1",
    "added",
    rule="a float mask is added to the scores",
)
def mask_of_floats(asked: Asked) -> str:
    return _of_ones(asked, asked.dtype if asked.dtype != "bfloat16" else "float32")


@question(
    "(queries, 1)",
    "A boolean mask of shape (queries, 1)",
    "broadcast",
    rule="a mask is broadcast to the scores",
)
def mask_of_queries(asked: Asked) -> str:
    arrays = draw()
    found = asked(*arrays, attn_mask=np.array([[True], [False], [True], [False]]))["output"]
    named = {"broadcast": attended(*arrays), "padded with False": arrays[2][:, :, :1] + 0 * arrays[0]}
    return asked.nearest(found[:, :, ::2], {name: x[:, :, ::2] for name, x in named.items()})


_MASK = np.random.default_rng(6).random((1, 1, 4, 4)) > 0.4
_MASK[..., 0] = True


@question(
    "soft-cap",
    "A soft-cap of 0.75",
    "c tanh(s / c)",
    rule="the formula of Gemma 2: c tanh(s / c) of the scaled score s",
)
def soft_cap(asked: Asked) -> str:
    query, key, value = arrays = draw()
    cap, s = 0.75, scores(query, key)
    product = query @ key.swapaxes(-1, -2)
    logits = {
        "c tanh(s / c)": cap * np.tanh(s / cap),
        "not read": s,
        "c tanh(s)": cap * np.tanh(s),
        "before the scale": cap * np.tanh(product / cap) / np.sqrt(query.shape[-1]),
    }
    return asked.nearest(
        asked(*arrays, softcap=cap)["output"], {name: softmax(x) @ value for name, x in logits.items()}
    )


@question(
    "cap and mask",
    "Order of soft-cap and mask",
    "cap, then mask",
    rule="a cap behind the mask would show hidden keys with the score -c",
)
def cap_and_mask(asked: Asked) -> str:
    query, key, value = arrays = draw()
    cap, s = 0.75, scores(query, key)
    low = np.where(_MASK, 0.0, -np.inf)

    def of(shown: Any, logits: Any) -> Any:
        return softmax(logits, shown) @ value

    named = {
        "cap, then mask": of(_MASK, cap * np.tanh(s / cap)),
        "mask, then cap": of(True, cap * np.tanh((s + low) / cap)),
        "mask dropped": of(True, cap * np.tanh(s / cap)),
        "cap dropped": of(_MASK, s),
    }
    found = asked(*arrays, softcap=cap, attn_mask=asked.mask(_MASK))
    return asked.nearest(found["output"], named)
