# SPDX-License-Identifier: BSD-3-Clause
"""Cases that answer one question together."""

from __future__ import annotations

from typing import NamedTuple

from ._peer_table import ATTENTION_CASES

__all__ = ["SETS", "CaseSet"]


class CaseSet(NamedTuple):
    """A question, and the keys of ``CASES`` whose rows answer it."""

    question: str
    cases: tuple[str, ...]


SETS: dict[str, CaseSet] = {
    "forward": CaseSet(
        "How much of the peak does attention reach, and how does it compare with PyTorch and JAX?",
        ("forward_64", "forward_128", "forward_32", "jax_3072"),
    ),
    "short": CaseSet(
        "How fast are calls on short sequences, down to the smallest?",
        ("forward_512_64", "forward_512_128", "forward_512_32", "jax_512", "short", "overhead", "options_16"),
    ),
    "tensors": CaseSet(
        "What overhead do tensors of PyTorch add to short calls?",
        (
            "tensor_overhead",
            "gradients_overhead",
            "tensors_8",
            "tensors_1",
            "tensors_step",
            "tensors_step_smallest",
            "tensors_mask_16",
            "tensors_step_16",
        ),
    ),
    "in_a_model": CaseSet(
        "How fast is a call in a model, behind operators of other libraries?",
        ("behind_step", "behind_decode", "behind_product", "gpt_step", "gpt_inference", "gpt_step_jax"),
    ),
    "masks": CaseSet(
        "How much of the work that a causal mask or a window saves is saved in time?",
        ("causal_4096", "causal_512", "window"),
    ),
    "gradients": CaseSet(
        "How fast is the backward pass, and a training step, beside PyTorch's?",
        (
            "backward_64",
            "backward_128",
            "backward_32",
            "backward_one_head",
            "backward_causal_4096",
            "backward_causal_512",
            "backward_on_top",
            "step_3072",
            "step_512",
            "step_sparse",
            "training_step",
            "entropy_in_a_loss",
        ),
    ),
    "statistics": CaseSet(
        "What do entropy and the other statistics cost, and what would they cost by hand?",
        ("on_top", "entropy_alone", "by_hand"),
    ),
    "normalizers": CaseSet(
        "What do other normalizers cost beside the softmax?",
        ("normalizers", "sparse_many", "sparse_decode", "sparse_long", "sparse_torch"),
    ),
    "scales": CaseSet(
        "What do a search for the scale of each row, a curve of scales and an exact expectation cost?",
        ("solve", "curve", "expected"),
    ),
    "variants": CaseSet(
        "How fast are the linear-time families?",
        (
            "efficient",
            "linear_causal",
            "one_head",
            "kattention",
            "local_global",
            "family_gradients",
            "hybrid_steps",
        ),
    ),
    "decode": CaseSet(
        "How close does one query with many keys come to the read bandwidth?", ("decode", "decode_16_bits")
    ),
    "bfloat16": CaseSet(
        "How much faster are bfloat16 arrays where the CPU multiplies them?",
        (
            "bfloat16_64",
            "bfloat16_128",
            "bfloat16_512",
            "bfloat16_causal",
            "bfloat16_on_top",
            "bfloat16_backward",
        ),
    ),
    "levels": CaseSet(
        "How much of its own peak does the AVX2 level reach, and how much does float64?",
        ("avx2", "float64"),
    ),
    "random": CaseSet(
        "How fast are random numbers, and what is simulated with them?",
        ("normals", "products", "rows", "projection", "two_threads"),
    ),
    "footprint": CaseSet(
        "How much memory does a call need, how much time the import, and how soon does Ctrl-C end a call?",
        ("memory", "import", "version", "interrupt"),
    ),
    "peers": CaseSet(
        "How does attention compare with that of every other installed package, at all lengths?",
        tuple(ATTENTION_CASES),
    ),
}
