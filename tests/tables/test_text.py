# SPDX-License-Identifier: BSD-3-Clause
"""Tables as text, CSV and JSON."""

from __future__ import annotations

import json

import pytest
from attnscale._base.text import to_csv, to_html, to_json, to_text


def test_numbers_are_flush_right_and_words_flush_left():
    text = to_text(["head", "entropy", "n"], [["L0 H3", "0.20", "-"], ["mean", "14.30", "512"]], indent="> ")
    assert text.splitlines() == [
        "> head   entropy    n",
        "> L0 H3     0.20    -",
        "> mean     14.30  512",
    ]


def test_rows_of_another_length_are_an_error():
    with pytest.raises(ValueError, match="shorter"):
        to_text(["a", "b"], [["1"]])


def test_csv_quotes_what_needs_it():
    rows = [{"law": "ssmax(s=0.4, b=1)", "entropy": 0.1 + 0.2}]
    assert to_csv(rows) == 'law,entropy\n"ssmax(s=0.4, b=1)",0.30000000000000004\n'
    assert to_csv([]) == "\n"


def test_cells_of_a_page_are_text():
    assert "<b>" not in to_html("a <b>", ["<b>"], [["<b>"]], ["<b>"])


def test_json_has_no_nan_and_keeps_every_digit():
    value = {"a": [float("nan"), (1.5, float("-inf"))], "b": 0.1 + 0.2, "c": None, "d": "熵"}
    text = to_json(value)
    assert json.loads(text) == {"a": [None, [1.5, None]], "b": 0.1 + 0.2, "c": None, "d": "熵"}
    assert "熵" in text
