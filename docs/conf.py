# SPDX-License-Identifier: BSD-3-Clause
"""Sphinx: ``make docs``, or ``sphinx-build -W -b html docs docs/_build/html``."""

from __future__ import annotations

import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import attnscale

project = "attnscale"
author = "The attnscale developers"
copyright = author
release = attnscale.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx_design", "numpydoc"]
exclude_patterns = [
    "_build",
    "_declared",
    "_example",
    "_ext",
    "_measured",
    "_playground",
    "**.ipynb_checkpoints",
]
html_theme = "furo"
html_title = f"attnscale {release}"
# MathJax as one file with all its extensions and glyphs: pages load no further parts or fonts.
MATHJAX = files("sphinx-mathjax-offline") / "static" / "mathjax" / "tex-svg-full.js"
html_static_path = ["_static", str(MATHJAX)]
html_extra_path = ["_example"]  # copied unchanged beside index.html
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
mathjax_path = MATHJAX.name
mathjax4_config = {"options": {"enableMenu": False}}  # from Sphinx 9 on also for MathJax 3, used here

myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
# The notebooks are stored with their outputs; tests/package/test_notebooks.py checks them against the code.
nb_execution_mode = "off"
nb_code_prompt_show = "Show what is asserted"
nb_code_prompt_hide = "Hide what is asserted"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
# attnscale.torch is also documented if they are not installed.
autodoc_mock_imports = [name for name in ("torch", "transformers") if find_spec(name) is None]
numpydoc_show_class_members = False
# numpydoc would turn the words of a parameter's type into references that do not exist.
numpydoc_xref_param_type = False

# Sphinx reads only docs/: notebooks are copied there, and pages of laws and C++ headers, lists and pictures
# are generated from the package. None of these files is in git.
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "notebooks")]
from _cpp_pages import cpp_index, write_cpp_pages  # noqa: E402
from _declared_tables import declared_texts  # noqa: E402
from _example_report import example_report  # noqa: E402
from _generated import write_generated  # noqa: E402
from _law_pages import write_law_pages  # noqa: E402
from _law_table import law_table  # noqa: E402
from _model_tables import model_texts  # noqa: E402
from _multiples_tables import multiples_texts  # noqa: E402
from _notebook_pages import notebook_page  # noqa: E402
from _pictures import pictures  # noqa: E402
from _playground_page import playground  # noqa: E402
from _run_tables import run_texts  # noqa: E402
from _speed_history import speed_history  # noqa: E402
from _speed_table import speed_table, variants_table  # noqa: E402
from _verdict_tables import verdict_texts  # noqa: E402

write_law_pages(HERE / "laws")
declared = {**declared_texts(), **verdict_texts(), **run_texts(), **multiples_texts(), **model_texts()}
declared |= {
    "laws.md": law_table(),
    "speed.md": speed_table(),
    "speed-history.md": speed_history(),
    "variants-cost.md": variants_table(),
    "cpp-headers.md": cpp_index(HERE.parent / "cpp"),
    "playground.html": playground(),
}
write_generated(HERE / "_declared", declared)
write_generated(HERE / "_drawn", pictures())
write_cpp_pages(HERE / "cpp", HERE.parent / "cpp")
write_generated(HERE / "_example", example_report())
notebooks = (HERE.parent / "notebooks").glob("*.ipynb")
write_generated(
    HERE / "tutorials", {each.name: notebook_page(each.read_text(encoding="utf-8")) for each in notebooks}
)


def _give_captions_a_level(app, page, template, context, tree):
    """Add the missing level to captions of page lists, which are marked as headings."""
    for part in ("body", "furo_navigation_tree"):
        if part in context:
            context[part] = context[part].replace('role="heading">', 'role="heading" aria-level="2">')


def setup(app):
    app.connect(
        "html-page-context", _give_captions_a_level, priority=900
    )  # after the theme, which writes the tree
