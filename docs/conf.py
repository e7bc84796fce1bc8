# SPDX-License-Identifier: BSD-3-Clause
"""Sphinx: ``make docs``, or ``sphinx-build -W -b html docs docs/_build/html``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import attnscale

project = "attnscale"
author = "The attnscale developers"
copyright = author
release = attnscale.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "numpydoc"]
exclude_patterns = ["_build", "_declared", "_example", "**.ipynb_checkpoints"]
html_theme = "furo"
html_title = f"attnscale {release}"
html_static_path = ["_static"]
html_extra_path = ["_example"]  # goes beside index.html as it is

myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3
# The notebooks come with their outputs, which tests/package/test_notebooks.py keeps up with the code.
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
# attnscale.torch is documented also where they are not installed.
autodoc_mock_imports = [name for name in ("torch", "transformers") if find_spec(name) is None]
numpydoc_show_class_members = False
# numpydoc would turn the words of a parameter's type into references that do not exist.
numpydoc_xref_param_type = False

# Sphinx reads only what lies below docs/: the notebooks are copied in.
HERE = Path(__file__).parent
(HERE / "tutorials").mkdir(exist_ok=True)  # nothing in it is kept in git
# So are the pages of the laws, written from the registry, and those of the C++ headers.
sys.path.insert(0, str(HERE))
from _cpp_pages import write_cpp_pages  # noqa: E402
from _declared_tables import write_declared_tables  # noqa: E402
from _example_report import example_report  # noqa: E402
from _law_pages import write_law_pages  # noqa: E402

write_law_pages(HERE / "laws")
write_declared_tables(HERE / "_declared")
write_cpp_pages(HERE / "cpp", HERE.parent / "cpp")
(HERE / "_example").mkdir(exist_ok=True)
for name, text in example_report().items():
    (HERE / "_example" / name).write_text(text, encoding="utf-8")
for notebook in (HERE.parent / "notebooks").glob("*.ipynb"):
    # Links to pages start from notebooks/ in the repository.
    text = notebook.read_text(encoding="utf-8").replace("](../docs/", "](../")
    (HERE / "tutorials" / notebook.name).write_text(text, encoding="utf-8")
