# SPDX-License-Identifier: BSD-3-Clause
"""Colours of the page's maps: even steps look even, and people who see fewer colours see them too."""

from __future__ import annotations

__all__ = ["COLOURS"]

#: Stops at equal distances, between which the page mixes: cividis (Nuñez, Anderton & Renslow 2018,
#: doi 10.1371/journal.pone.0199239) for numbers, and PuOr of ColorBrewer (Brewer 2003) for differences, from
#: less to more.
_NUMBERS = """
#00224e #002e6a #1a386f #32436d #434e6c #535a6d #61656f #6f7073 #7d7c78
#8c8878 #9b9476 #aba072 #bcae6c #cdbb63 #dec958 #f0d846 #fee838
"""
_DIFFERENCES = """
#2d004b #532687 #8073ac #b1aad1 #d8daeb #f6f6f7 #fee0b6 #fcb761 #e08214 #b25706 #7f3b08
"""
COLOURS: dict[str, list[str]] = {"numbers": _NUMBERS.split(), "differences": _DIFFERENCES.split()}
