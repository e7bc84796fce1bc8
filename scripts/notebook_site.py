# SPDX-License-Identifier: BSD-3-Clause
"""Build a site whose notebooks run in the reader's browser: JupyterLite with Pyodide.

    python scripts/notebook_site.py docs/_build/html/lite wheelhouse/attnscale-*-pyemscripten_*.whl

Needs jupyterlite-core[contents], jupyterlite-pyodide-kernel and ipywidgets. Notebooks that need PyTorch or
the studies are left out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
#: Pyodide has no PyTorch, and a wheel no studies.
_NOT_THERE = re.compile(r"^\s*(?:import|from) (?:torch|studies)\b", re.MULTILINE)
INSTALL = '%pip install -q "attnscale[plot]" ipywidgets'


def runnable(folder: Path = NOTEBOOKS) -> dict[str, dict[str, Any]]:
    """Notebooks by name, each with a first cell that installs its imports."""
    found = {}
    for path in sorted(folder.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        if not any(map(_NOT_THERE.search, code)):
            install = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
            notebook["cells"].insert(0, install | {"id": "install", "source": INSTALL})
            found[path.name] = notebook
    return found


def main(site: str, wheel: str) -> None:
    """Build the site, in which `%pip install attnscale` installs the wheel."""
    with tempfile.TemporaryDirectory() as contents:
        for name, notebook in runnable().items():
            Path(contents, name).write_text(json.dumps(notebook), encoding="utf-8")
        command = ["jupyter", "lite", "build", "--contents", contents]
        options = ["--piplite-wheels", Path(wheel).resolve(), "--output-dir", Path(site).resolve()]
        subprocess.run([*command, *options], cwd=contents, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
