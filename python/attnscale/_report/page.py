# SPDX-License-Identifier: BSD-3-Clause
"""A self-contained HTML file, from the files in the folder ``files`` and the data of a report."""

from __future__ import annotations

import base64
import html
import json
import os
import warnings
from importlib.resources import files
from pathlib import Path
from typing import Any

from .._files.whole import write_whole

#: Scripts in the order in which a browser runs them: once, then each time the page is made from data.
_START = ("start",)
_SCRIPTS = ("data", "svg", "map", "scatter", "head", "text", "table", "export", "address", "main")
#: Scripts before them in a page that measures.
_CORE, _MEASURING = ("core",), ("measure", "file")
_MODULE = files("attnscale") / "_wasm"
_HEIGHT = 900  # pixels of the frame in a notebook
#: The reason why a page omits requested heads.
NO_CORE = (
    "with_heads: this installation has no kernels for pages, which a wheel brings and `make wasm` builds in "
    "a clone; the page leaves the heads out, and cannot measure again"
)
OF_TWO = "with_heads: a page of two reports cannot measure again, and leaves the heads out"
#: Colours of the page's maps, perceptually even and suitable for colour-blind readers, as stops at equal
#: distances: cividis (Nuñez, Anderton & Renslow 2018, doi 10.1371/journal.pone.0199239) for numbers, and
#: PuOr of ColorBrewer (Brewer 2003) for differences, in ascending order.
_NUMBERS = """
#00224e #00285b #002e6a #053371 #1a386f #273e6e #32436d #3b496c #434e6c
#4b546c #535a6d #5a5f6e #61656f #686a71 #6f7073 #767676 #7d7c78 #848279
#8c8878 #938e78 #9b9476 #a39a74 #aba072 #b4a76f #bcae6c #c4b468 #cdbb63
#d5c25e #dec958 #e7d150 #f0d846 #f9e03a #fee838
"""
_DIFFERENCES = """
#2d004b #532687 #8073ac #b1aad1 #d8daeb #f6f6f7 #fee0b6 #fcb761 #e08214 #b25706 #7f3b08
"""
COLOURS: dict[str, list[str]] = {"numbers": _NUMBERS.split(), "differences": _DIFFERENCES.split()}


class Page:
    """The page of a report: ``save``, and a frame in notebooks."""

    @property
    def _computes(self) -> bool:
        """Whether the page contains the core."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """The content of the page, as JSON types."""
        raise NotImplementedError

    def to_html(self) -> str:
        """The page as text: an HTML document that needs no other file and no network."""
        content = self._content()
        core, measuring = (_CORE, _MEASURING) if self._computes else ((), ())
        parts = {
            "title": html.escape(str(content["title"])),
            "style": _file("figures.css") + _file("report.css"),
            "data": _json(content),
            "colours": _json(COLOURS),
            "start": "\n".join(_file(f"{name}.js") for name in (*_START, *core)),
            "script": "\n".join(_file(f"{name}.js") for name in (*measuring, *_SCRIPTS)),
            "file": _file("file.html") if self._computes else "",
            "measure": _file("measure.html") if self._computes else "",
            "core": core_parts() if self._computes else "",
            "allowed": " 'wasm-unsafe-eval'; worker-src blob:" if self._computes else "",
        }
        before, *pieces = _file("template.html").split("{{")
        filled = (parts[name.strip()] + text for name, text in (each.split("}}", 1) for each in pieces))
        return "".join([before, *filled])

    def _content(self) -> dict[str, Any]:
        """`to_dict`, without the heads if the page cannot measure them."""
        content = self.to_dict()
        reports = content.get("pair", [content])
        if not self._computes and any(each["kept"] for each in reports):
            warnings.warn(OF_TWO if len(reports) > 1 else NO_CORE, UserWarning, stacklevel=3)
            for each in reports:
                each["kept"] = None
        return content

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page to a file, as a whole or not at all.

        Parameters
        ----------
        path : str or Path
            ``.html`` is added to a name without a suffix.
        overwrite : bool, default False
            Whether an existing file may be replaced.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        ValueError
            If the name has a suffix other than ``.html`` or ``.htm``.
        FileExistsError
            If the file exists, and ``overwrite`` is False.
        OSError
            If the file cannot be written.
        """
        target = check_free(path, overwrite=overwrite)
        write_whole(target, self.to_html().encode())
        return target

    def _repr_html_(self) -> str:
        content = html.escape(self.to_html(), quote=True)
        style = f"width: 100%; height: {_HEIGHT}px; border: 0"
        return f'<iframe title="Report of attention heads" srcdoc="{content}" style="{style}"></iframe>'


def has_core() -> bool:
    """Whether the package has the core in WebAssembly: from a wheel, or from `make wasm`."""
    return (_MODULE / "attnscale.wasm.gz").is_file()


def core_parts(tasks: str = "") -> str:
    """Elements of a page with the core in WebAssembly, its module and its worker, which runs `tasks` too."""
    scripts = {
        "core-wasm": base64.b64encode((_MODULE / "attnscale.wasm.gz").read_bytes()).decode(),
        # A page opened from a file may not start a worker that is a module.
        "core-module": (_MODULE / "attnscale.mjs").read_text(encoding="utf-8").replace("\nexport ", "\n"),
        "core-worker": _file("npz.js") + _file("worker.js") + tasks,
    }
    return "\n".join(
        f'<script type="text/plain" id="{name}">\n{text}\n</script>' for name, text in scripts.items()
    )


def _file(name: str) -> str:
    return (files(__package__) / "files" / name).read_text(encoding="utf-8")


def check_free(path: str | Path, *, overwrite: bool) -> Path:
    """The file to write, with its suffix; an error if it exists or cannot be written.

    Another suffix than a page's is refused, since it shows what the caller expects of the file.
    """
    target = Path(path)
    if not (target.suffix or target.is_dir()):
        target = target.with_name(f"{target.name}.html")
    if target.suffix.lower() not in ("", ".html", ".htm"):
        raise ValueError(f"{target} must end in .html, which is what a page is, got {target.suffix}")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder, not a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: there is no folder {target.parent}")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} is there already; overwrite=True replaces it")
    if not os.access(target.parent, os.W_OK | os.X_OK) or (
        target.exists() and not os.access(target, os.W_OK)
    ):
        raise PermissionError(f"{target} cannot be written here")
    return target


def _json(content: Any) -> str:
    """JSON for the inside of a script element: nothing in it ends the element."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
