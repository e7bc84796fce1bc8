# SPDX-License-Identifier: BSD-3-Clause
"""Run notebooks and store them with their outputs and compact figures.

    python scripts/run_notebooks.py                              # all of them
    python scripts/run_notebooks.py notebooks/05_phases.py ...

Edit the .py; the documentation and readers without Python show the paired .ipynb. A figure of lines has few
colours: a palette makes it a third as large and looks the same. If it would look different, as for a colour
map, the figure keeps all colours.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
# A page with a widget loads its script from a network, so a stored notebook has no widgets, nor tqdm's
# warning about that.
_NO_WIDGETS = "raise ImportError('a stored notebook has no widgets')\n"
_QUIET = {"PYTHONWARNINGS": "ignore:IProgress not found"}
_COLOURS = (128, 256)
_SAME = 32  # of 255: largest change of a colour, in all but a thousandth of the pixels


def main() -> None:
    """Run the notebooks, and shrink the figures of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: all of notebooks/")
    files = parser.parse_args().files or sorted(NOTEBOOKS.glob("[0-9]*.py"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ipywidgets.py").write_text(_NO_WIDGETS, encoding="utf-8")
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))
        for source in files:
            execute(source, os.environ | _QUIET | {"PYTHONPATH": path})


def execute(source: Path, variables: dict[str, str]) -> None:
    """Run one notebook with these variables of the environment, and shrink its figures.

    jupytext passes the cells to nbconvert, which starts an ipykernel.
    """
    command = [sys.executable, "-m", "jupytext", "--to", "ipynb", "--execute", str(source)]
    subprocess.run(command, check=True, env=variables)
    before, after = shrink(source.with_suffix(".ipynb"))
    print(f"{source.stem}: figures of {before / 1e3:.0f} kB, stored as {after / 1e3:.0f} kB")


def shrink(notebook: Path) -> tuple[int, int]:
    """Give the figures of a stored notebook a palette; return their sizes before and after."""
    stored = json.loads(notebook.read_text(encoding="utf-8"))
    before = after = 0
    for cell in stored["cells"]:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                large = base64.b64decode(output["data"]["image/png"])
                small = with_palette(large)
                before, after = before + len(large), after + len(small)
                output["data"]["image/png"] = base64.b64encode(small).decode() + "\n"
    text = json.dumps(stored, indent=1, ensure_ascii=False, sort_keys=True)
    notebook.write_text(text + "\n", encoding="utf-8")
    return before, after


def with_palette(png: bytes) -> bytes:
    """A picture on white with as few colours as look the same, or the original if that is smaller."""
    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    chosen = flat
    for count in _COLOURS:
        few = flat.quantize(count, dither=Image.Dither.NONE)
        moved = np.abs(np.asarray(flat, int) - np.asarray(few.convert("RGB"), int)).max(-1)
        if np.quantile(moved, 0.999) <= _SAME:
            chosen = few
            break
    out = io.BytesIO()
    chosen.save(out, "png", optimize=True)
    return min(out.getvalue(), png, key=len)


if __name__ == "__main__":
    main()
