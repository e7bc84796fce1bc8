# SPDX-License-Identifier: BSD-3-Clause
"""The example report of the site, measured when the site is built."""

from __future__ import annotations

import attnscale as at
from attnscale._report.page import has_core


def example_report():
    """The report on the shipped heads, by file name."""
    data = at.datasets.minilm_qk()
    found = at.report(
        *(data.query, data.key),
        lengths=[64, 128, 256, 512],
        labels=zip(data.layers.tolist(), data.heads.tolist(), strict=True),
        tokens=data.tokens,
        about={name: data.provenance[name] for name in ("model", "text")},
        with_heads=has_core(),  # `make wasm` builds it
    )
    return {"example-report.html": found.to_html()}
