# SPDX-License-Identifier: BSD-3-Clause
"""Every notebook runs, its assertions hold, and its paired .ipynb shows the same cells."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from stamps import Stamp
from versions import written_for

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
# Sections of every notebook.
CLAIMS = {
    "01_attention_and_entropy": ("T3", "T4", "T6"),
    "02_why_scaled": ("T1", "T2", "T3", "T4"),
    "03_entropy_invariance": ("T7", "T8", "T9", "T10", "T11", "T12", "T14"),
    "04_johnson_lindenstrauss": ("T18", "T19", "T20", "T21"),
    "05_phases": ("T12", "T13", "T16"),
    "06_which_n": ("T6",),
    "07_calibrating_a_real_model": ("T4", "T12"),
    "08_efficient_attention": ("T25", "T26"),
    "09_sparse_attention": ("T22", "T23", "T24"),
    "10_limits_of_qk_attention": ("T28", "T29", "T30", "T31", "T32", "T33"),
    "11_gradients": ("T2", "T4"),
    "12_length": ("T15",),
    "13_context": ("T17",),
    "14_hybrids": ("T27",),
    "15_learned_scales": ("T5",),
    "16_layers_and_collapse": ("T34",),
    "17_what_to_keep": (),
    "18_limits_are_far": (),
    "19_heads": ("A12",),
}
SOURCES = sorted(NOTEBOOKS.glob("[0-9]*.py"))


def by_name(path):
    return path.stem


def test_there_are_notebooks():
    assert [path.stem for path in SOURCES] == sorted(CLAIMS)


# A stand-in for ipywidgets, which draws in a browser: every slider at its start and at its minimum.
SLIDERS = """
class IntSlider:
    def __init__(self, value, *, min, max, step=1, description=""):
        assert min <= value <= max
        self.value, self.min = value, min

FloatSlider = IntSlider

def interact(draw, **sliders):
    draw(**{name: slider.value for name, slider in sliders.items()})
    draw(**{name: slider.min for name, slider in sliders.items()})
    print("sliders:", *sliders)
"""


def run_python(folder, stamp, *arguments):
    """Run Python in its own folder, with sliders that need no browser; the stamp learns the imports."""
    (folder / "ipywidgets.py").write_text(SLIDERS)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "agg", **stamp.recording(folder)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=by_name)
def test_runs(source, tmp_path, pytestconfig):
    """Run as a script, as a reader would, without a browser."""
    pytest.importorskip("matplotlib")
    stamp = Stamp(f"notebook-{source.stem}", source)
    stamp.skip_if_unchanged(pytestconfig)
    result = run_python(tmp_path, stamp, str(source))
    assert result.returncode == 0, result.stderr[-2000:]
    assert ("sliders:" in result.stdout) == ("## Play with it" in source.read_text(encoding="utf-8"))
    stamp.keep(tmp_path)


SWITCH = """CHECK = True  # with False no assert stops what you change
if not CHECK:
    from attnscale._base.notebook import skip_asserts

    skip_asserts()
"""


@pytest.mark.parametrize("source", SOURCES, ids=by_name)
def test_the_first_cell_has_the_switch_of_the_asserts(source):
    """Without it a changed notebook would stop at the first assert, and later cells would lack names."""
    first = source.read_text(encoding="utf-8").split("\n# %%\n")[1]
    assert SWITCH in first.split("\n# %%")[0]
    assert "assert" not in first.split(SWITCH)[0]


# Cells as Jupyter runs them; what stopped each.
CELLS = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
results = [shell.run_cell(cell) for cell in json.load(sys.stdin)]
errors = [result.error_before_exec or result.error_in_exec for result in results]
print(json.dumps([type(error).__name__ if error else "" for error in errors]))
"""


@pytest.mark.parametrize("checks", [True, False])
def test_asserts_are_skipped_while_the_switch_is_off(checks):
    """A cell that turns the switch on again counts for later cells, without a new kernel."""
    pytest.importorskip("IPython")
    cells = [
        "import numpy as np\n\n" + (SWITCH if checks else SWITCH.replace("CHECK = True", "CHECK = False")),
        "for n in (1, 2):\n    assert n == 3\nafter = n",
        "np.testing.assert_allclose(after, 5)\nlater = after",
        "def draw():\n    assert later == 5\n    return later\n\nassert draw() == 2",  # in functions, too
        SWITCH,
        "assert later == 5",
    ]
    run = subprocess.run(
        [sys.executable, "-c", CELLS], input=json.dumps(cells), capture_output=True, text=True, check=True
    )
    stopped = json.loads(run.stdout.splitlines()[-1])
    if checks:
        assert stopped == ["", "AssertionError", "NameError", "NameError", "", "NameError"]
    else:
        assert stopped == ["", "", "", "", "", "AssertionError"]


def test_asserts_are_not_skipped_outside_of_a_notebook():
    pytest.importorskip("IPython")
    with pytest.raises(RuntimeError, match="in IPython or Jupyter"):
        exec(SWITCH.replace("CHECK = True", "CHECK = False"), {})


# Cells as Jupyter runs them for a reader who changes a parameter and switches the asserts off.
CHANGED = """
import sys
import jupytext
from IPython.core.interactiveshell import InteractiveShell

source, before, after = sys.argv[1:]
text = open(source, encoding="utf-8").read()
for each in (before, "CHECK = True"):
    assert text.count(each) == 1, each
text = text.replace(before, after).replace("CHECK = True", "CHECK = False")
shell = InteractiveShell.instance()
for cell in jupytext.reads(text, "py:percent")["cells"]:
    if cell["cell_type"] == "code":
        shell.run_cell(cell["source"]).raise_error()
"""


@pytest.mark.slow
@written_for("matplotlib>=3.9")  # earlier ones do not show figures in IPython 9
def test_runs_to_its_end_with_a_changed_parameter(tmp_path, pytestconfig):
    """The switch lets every cell end: each defines what later ones need."""
    name, before, after = "06_which_n", "keys = 1000", "keys = 900"
    pytest.importorskip("jupytext")
    pytest.importorskip("matplotlib")
    source = NOTEBOOKS / f"{name}.py"
    stamp = Stamp(f"notebook-changed-{name}", source)
    stamp.skip_if_unchanged(pytestconfig)
    result = run_python(tmp_path, stamp, "-c", CHANGED, str(source), before, after)
    assert result.returncode == 0, (result.stdout + result.stderr)[-2000:]
    stamp.keep(tmp_path)


@pytest.mark.parametrize("source", SOURCES, ids=by_name)
def test_asserts_its_claims(source):
    text = source.read_text(encoding="utf-8")
    assert text.count("assert") >= 10
    for claim in CLAIMS[source.stem]:
        assert re.search(rf"^# ## .*\b{claim}\b", text, flags=re.MULTILINE), claim


@pytest.mark.parametrize("source", SOURCES, ids=by_name)
def test_ends_with_what_was_shown_and_an_exercise(source):
    headings = re.findall(r"^# ## (.*)$", source.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[-2:] == ["What was shown", "Exercises"]


@pytest.mark.parametrize("source", SOURCES, ids=by_name)
def test_ipynb_has_the_same_cells_and_their_outputs(source):
    jupytext = pytest.importorskip("jupytext")
    paired = source.with_suffix(".ipynb")
    assert paired.stat().st_size < 270_000  # all of them are most of the source distribution
    stored = json.loads(paired.read_text(encoding="utf-8"))["cells"]
    written = jupytext.read(source)["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in stored] == [
        (cell["cell_type"], cell["source"]) for cell in written
    ]
    outputs = [output for cell in stored if cell["cell_type"] == "code" for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    assert not [output for output in outputs if output["output_type"] == "error"]
    # A widget's script would come from a network.
    assert not [output for output in outputs if any("widget" in kind for kind in output.get("data", {}))]
    assert not [output for output in outputs if "site-packages" in "".join(output.get("text", ""))]
    assert not [output for output in outputs if "not installed" in "".join(output.get("text", ""))]


@pytest.mark.parametrize("source", SOURCES, ids=by_name)
def test_links_lead_to_pages(source):
    """Links lead somewhere in the repository and the documentation; other sites are not checked."""
    written = source.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in written if line.startswith("# "))
    for target in re.findall(r"\w`?\]\(([^()\s]+)\)", text):
        if not target.startswith("https://"):
            place = source.parent / target.partition("#")[0]
            assert place.suffix in (".ipynb", ".md"), target  # and not a file that a browser saves
            assert place.exists(), target


@pytest.mark.parametrize("colours", [5, 40_000])
def test_a_palette_does_not_change_a_stored_figure(colours, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.syspath_prepend(str(NOTEBOOKS.parent / "scripts"))
    from run_notebooks import with_palette

    pixels = np.random.default_rng(0).integers(0, 256, (colours, 3), np.uint8)
    pixels = pixels[np.arange(40_000) % colours].reshape(200, 200, 3)
    before = io.BytesIO()
    image.fromarray(pixels).save(before, "png")
    after = with_palette(before.getvalue())
    assert len(after) <= len(before.getvalue())
    np.testing.assert_array_equal(np.asarray(image.open(io.BytesIO(after)).convert("RGB")), pixels)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=by_name)
def test_pages_fold_what_is_asserted(path):
    """A page has the statements of the notebook, and those that only assert in cells that are folded."""
    scope = {}
    exec((NOTEBOOKS.parent / "docs" / "_ext" / "_notebook_pages.py").read_text(encoding="utf-8"), scope)
    stored = path.read_text(encoding="utf-8")
    cells = [json.loads(text)["cells"] for text in (stored, scope["notebook_page"](stored))]
    code = [[each for each in some if each["cell_type"] == "code"] for some in cells]
    before, after = (
        sorted(ast.dump(line) for each in some for line in ast.parse("".join(each["source"])).body)
        for some in code
    )
    assert before == after
    assert sum(len(each["outputs"]) for each in code[0]) == sum(len(each["outputs"]) for each in code[1])
    folded = ["tags" in each["metadata"] for each in code[1]]
    assert any(folded)
    for cell, hidden in zip(code[1], folded, strict=True):
        assert re.match("assert |np.testing|for |with |if ", cell["source"]) if hidden else True
        assert hidden or not re.search(r"^(assert |np\.testing\.assert)", "".join(cell["source"]), flags=re.M)


def test_notebooks_for_the_browser_install_the_package_first():
    """Notebooks left out by scripts/notebook_site.py need PyTorch or the studies."""
    found = runpy.run_path(str(NOTEBOOKS.parent / "scripts" / "notebook_site.py"))["runnable"]()
    assert [int(name[:2]) for name in found] == [*range(1, 11), 17, 18]
    for name, notebook in found.items():
        first, *others = notebook["cells"]
        assert first["source"] == '%pip install -q "attnscale[plot]" ipywidgets'
        assert others == json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]
        nbformat.validate(notebook)
