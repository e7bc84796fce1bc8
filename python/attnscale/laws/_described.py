# SPDX-License-Identifier: BSD-3-Clause
"""A law in words: its formula, the meaning of n, its source and users."""

from __future__ import annotations

import textwrap
from typing import Any

from ._meaning import meaning_of


def description(law: Any) -> list[str]:
    """The lines of an explanation below its title: of a law, or of a class whose parameters are not known."""
    form: dict[str, Any] = {"width": 98, "break_long_words": False, "break_on_hyphens": False}
    indented = (
        textwrap.wrap(text, initial_indent=f"  {title:7}  ", subsequent_indent=" " * 11, **form)
        for title, text in facts(law)
    )
    return [line for lines in indented for line in lines]


def facts(law: Any) -> list[tuple[str, str]]:
    """What is known of a law: titles and texts."""
    found = [
        ("scale", law.formula),
        ("n", f"{law.n_means}: {meaning_of(law.n_means).description}"),
        ("length", "" if law.length_parameter is None else f"{law.length_parameter}: train_length= sets it"),
        ("on", "" if law.channels == "all" else f"the {law.channels} channels"),
        ("layers", "" if law.layers == "all" else law.layers),
        ("source", law.source),
        ("used by", law.used_by),
        ("config", ", ".join(law.config_keys)),
        ("note", law.remark),
    ]
    return [(title, text) for title, text in found if text]
