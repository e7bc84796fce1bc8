# SPDX-License-Identifier: BSD-3-Clause
"""A tokenizer whose words are the numbers of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def tokenizer_files(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Files of a tokenizer by name; each word is an added one, so no text is cut inside it.

    The first three words are the unknown one, the beginning and the end of a text.
    """
    special = unknown, first, last = words[:3]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    numbers = {word: number for number, word in enumerate(words)}
    added = [
        {"id": number, "content": word, **flags, "special": word in special}
        for word, number in numbers.items()
    ]
    return {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": numbers, "unk_token": unknown},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "unk_token": unknown,
            "pad_token": unknown,
            "bos_token": first,
            "eos_token": last,
        },
    }
