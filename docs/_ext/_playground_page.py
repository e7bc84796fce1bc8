# SPDX-License-Identifier: BSD-3-Clause
"""Code of the playground page: the core in WebAssembly and the scripts around it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from attnscale._report.page import core_parts, has_core

OWN = Path(__file__).parents[1] / "_playground"
SHARED = files("attnscale") / "_report" / "files"
MISSING = """<p class="admonition warning" role="note">This copy of the site was built without the core in
WebAssembly: <code>make docs</code> in a checkout builds both, and then things can be tried here.</p>
"""


def playground():
    """The end of the page, as HTML; its text is in playground.md."""
    if not has_core():
        return MISSING
    own = {each.name: each.read_text(encoding="utf-8") for each in OWN.iterdir()}
    figures, *scripts, core = (
        (SHARED / name).read_text(encoding="utf-8")
        for name in ("figures.css", "svg.js", "export.js", "core.js")
    )
    return f"""<style>
{figures}{own["page.css"]}</style>
{core_parts(own["worker.js"])}
<script>
(function () {{
"use strict";
{"".join(scripts)}
function newCore() {{
{core}
return {{ ask, stop: stopWorker, starts: link.worker !== null }};
}}
{own["page.js"]}
}})();
</script>
"""
