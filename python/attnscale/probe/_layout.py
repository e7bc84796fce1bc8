# SPDX-License-Identifier: BSD-3-Clause
"""The vocabulary of a probe checkpoint: 256 words, and the coordinate of the residual stream of each.

Word t lies on coordinate t. Quantised activations share a scale in blocks of 32 coordinates, so words that
ask, words that are read and silent words lie in different blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Format of the files of a probe and of answers.
FORMAT = 1

VOCABULARY = 256
UNKNOWN, BOS, EOS = 0, 1, 2
SPECIAL = ("<unk>", "<s>", "</s>")

#: Words of zero score that fill a text; their values differ, so that roundings do not agree.
FILLERS = {3: 127, 4: 96, 5: 112, 6: 80, 7: 120, 8: 104, 9: 88, 10: 64}
#: A query of zeros; two keys at the edge of a window, and their query; a query far from the start.
ZERO, EDGE_IN, EDGE_OUT, EDGE, FAR = 11, 12, 13, 14, 15
#: Keys of large scores and their query; a query on channels without rotation. Two queries of unequal strength
#: on one channel lie in different blocks.
CAP_HIGH, CAP_LOW, CAP, PLAIN = 17, 18, 208, 158
#: Words whose values are the digest of the checkpoint.
PRINT = range(20, 24)
#: A word for each pair of channels: its own key; key, query of the cosine and of the sine.
SELF, KEY, COS, SIN = 32, 64, 96, 128
#: Words that are read: one a class of keys, and one for all other keys.
READ, REST = 160, 192
#: Classes of keys after those of pairs.
CLASS_EDGE_IN, CLASS_EDGE_OUT, CLASS_CAP, CLASS_FAR, CLASS_PRINT, CLASS_PLAIN = 12, 13, 14, 15, 16, 20
CLASS_CAP_LOW = 21
#: Keys of the smaller score beside one of the larger, and their amplitude.
CAP_KEYS, CAP_SIZE = 16, 80
#: Largest number of pairs of channels that are asked.
PAIRS = 12

#: The integers of an amplitude that float16, bfloat16 and blocks of 8 bits hold exactly, and their unit.
FULL, UNIT = 127, 128.0
#: Queries of one strength are trimmed to so many units, so that their scores are not rounded alike.
TRIMS = (127, 125, 119, 113, 109, 103, 101, 97, 89, 83, 79, 73)
#: Offset of words that no prompt has.
UNUSED = 16


def class_of(token: int) -> int | None:
    """The class of a key, or None for the rest."""
    for start in (SELF, KEY):
        if start <= token < start + PAIRS:
            return token - start
    if token in PRINT:
        return CLASS_PRINT + token - PRINT.start
    return _CLASSES.get(token)


_CLASSES = {
    EDGE_IN: CLASS_EDGE_IN,
    EDGE_OUT: CLASS_EDGE_OUT,
    CAP_HIGH: CLASS_CAP,
    CAP_LOW: CLASS_CAP_LOW,
    FAR: CLASS_FAR,
    PLAIN: CLASS_PLAIN,
}


def word(token: int) -> str:
    """The text of a word."""
    return SPECIAL[token] if token < len(SPECIAL) else f"<p{token}>"


def words(count: int = VOCABULARY) -> list[str]:
    """The texts of all words."""
    return [*map(word, range(count))]


def text_of(tokens: Iterable[int]) -> str:
    """The text of a prompt, words separated by spaces."""
    return " ".join(map(word, tokens))


def fill(count: int) -> list[int]:
    """A text of fillers."""
    fillers = list(FILLERS)
    return [fillers[number % len(fillers)] for number in range(count)]


def rest_of(tokens: Sequence[int]) -> float:
    """The sum of the values on the coordinate of the rest: 1 for a word of no class, less for fillers."""
    return sum(FILLERS.get(token, FULL) / FULL for token in tokens if class_of(token) is None)
