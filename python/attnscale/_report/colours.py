# SPDX-License-Identifier: BSD-3-Clause
"""Colours of the page's maps: even steps look even, and people who see fewer colours see them too."""

from __future__ import annotations

#: Stops at equal distances, between which the page mixes: cividis (Nuñez, Anderton & Renslow 2018,
#: doi 10.1371/journal.pone.0199239) for numbers, and PuOr of ColorBrewer (Brewer 2003) for differences, from
#: less to more.
_NUMBERS = """
#00224e #00285b #002e6a #053371 #1a386f #273e6e #32436d #3b496c #434e6c
#4b546c #535a6d #5a5f6e #61656f #686a71 #6f7073 #767676 #7d7c78 #848279
#8c8878 #938e78 #9b9476 #a39a74 #aba072 #b4a76f #bcae6c #c4b468 #cdbb63
#d5c25e #dec958 #e7d150 #f0d846 #f9e03a #fee838
"""
_DIFFERENCES = """
#2d004b #532687 #8073ac #b1aad1 #d8daeb #f6f6f7 #fee0b6 #fcb761 #e08214 #b25706 #7f3b08
"""
COLOURS: dict[str, list[str]] = {"numbers": _NUMBERS.split(), "differences": _DIFFERENCES.split()}
