# SPDX-License-Identifier: BSD-3-Clause
"""The files of a checkout: digests of their bytes, digests of their code, and what each imports.

Code is a Python file without comments, docstrings and layout. So a changed docstring changes the bytes of a
file and not its code: a test that imports it has nothing new to find, and one that reads it as text has.

Imports are read from the source, those in functions too. A string that names a module counts, since it may be
imported by its name, and one that names a file where files are run or loaded. A folder that is linked counts
whole: its files have other names then.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any, TypedDict, TypeGuard

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "stamps"
NAME = "attnscale"
# Folders whose modules are imported by their names, first to last.
ROOTS = ("python", ".", "tests", "benchmarks", "notebooks")
# Commands print the first lines of laws, and a probe's script its own text: there a docstring is code.
PRINTED = ("python/attnscale/laws/", "python/attnscale/probe/_ask/")
# Modules that import another one only for what a library has made: it counts where tests name the library.
BEHIND = {("python/attnscale/device.py", "python/attnscale/torch/__init__.py"): "torch"}
# Folders of tools, which change with every run of theirs; others are left out since they are large.
_OF_TOOLS = frozenset({"__pycache__", ".git", ".venv", ".hypothesis", ".cache"})
_LARGE = frozenset({"build", "dist", "third_party", "_build"})
_PAGES = (".md", ".ipynb", ".png", ".svg")
_CALLS = frozenset({"import_module", "__import__", "importorskip"})
_CALLS_WITH_A_FILE = frozenset({"run_path", "spec_from_file_location"})
# Processes of these start without an event of their own, and some serve one file of tests after another.
_PROCESSES = frozenset({"ProcessPoolExecutor", "get_context", "n_jobs"})
_DOCSTRINGS = frozenset({"__doc__", "getdoc", "testmod", "DocTestFinder"})


class Facts(TypedDict):
    """Facts of one source, wherever the file lies."""

    code: str
    imports: list[tuple[int, str, str]]  # dots before, module, name
    for_types: list[tuple[int, str, str]]
    lazy: bool  # the module has a __getattr__
    dynamic: bool  # it imports by a name that is computed
    used: list[str] | None  # names of the package; all of them if None
    docstrings: bool  # it reads those of others
    processes: bool  # it starts some


class Sources:
    """The facts of sources by the digest of their bytes, kept in a file: parsing all takes seconds."""

    def __init__(self, path: Path = PLACE / "sources.json") -> None:
        self._path = path
        self._reader = f"{sys.version} {sha256(Path(__file__))}"  # another one finds other facts
        kept = read(path)
        known = isinstance(kept, dict) and kept.get("reader") == self._reader
        self._facts: dict[str, Facts] = kept["facts"] if known else {}
        self._asked: set[str] = set()

    def facts(self, file: Path, digest: str) -> Facts:
        if digest not in self._facts:
            self._facts[digest] = facts_of(file.read_text(encoding="utf-8"))
        self._asked.add(digest)
        return self._facts[digest]

    def code(self, file: Path) -> str:
        """Digest of the code of a Python file."""
        return self.facts(file, sha256(file))["code"]

    def keep(self) -> None:
        """Write the facts that were asked for."""
        facts = {key: self._facts[key] for key in sorted(self._asked)}
        write(self._path, {"reader": self._reader, "facts": facts})


def sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return "not there"


def read(path: Path) -> Any:
    """Content of a JSON file; None if it has nothing, or is not there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write(path: Path, content: object) -> None:
    """Replace a JSON file at once: two processes may write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
    temporary.replace(path)


def facts_of(source: str) -> Facts:
    """Facts of a source; one that does not parse has its text for code."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {
            "code": hashlib.sha256(source.encode()).hexdigest(),
            "imports": [],
            "for_types": [],
            "lazy": False,
            "dynamic": True,
            "used": None,
            "docstrings": True,
            "processes": True,
        }
    nodes = list(ast.walk(tree))
    skipped = [each for node in nodes if _is_for_types(node) for each in node.body]
    for_types = [each for statement in skipped for each in ast.walk(statement)]
    hidden = set(map(id, for_types))
    seen = [node for node in nodes if id(node) not in hidden] if hidden else nodes
    calls = [node for node in seen if isinstance(node, ast.Call)]
    by_name = [call for call in calls if _name(call.func) in _CALLS]
    named = _named(seen, by_name) | _named_files(seen, calls) | _linked(calls)
    if any(isinstance(node, ast.Attribute) and node.attr == "__path__" for node in seen):
        named.add(f"{NAME}.")  # each module
    return {
        "imports": [*_imports(seen), *((0, name, "") for name in sorted(named))],
        "for_types": list(_imports(for_types)),
        "lazy": any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body),
        "dynamic": any(call.args and not isinstance(call.args[0], ast.Constant) for call in by_name),
        "used": _used(seen),
        "docstrings": any(map(_is_of_docstrings, seen)),
        "processes": not _PROCESSES.isdisjoint(map(_name, seen)),
        "code": _code(tree, nodes),  # last, since it takes the docstrings out
    }


def _is_for_types(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING"


def _name(node: ast.AST) -> str:
    """Last part of a name, or the name of an argument."""
    found = getattr(node, {ast.Name: "id", ast.Attribute: "attr", ast.keyword: "arg"}.get(type(node), ""), "")
    return found or ""


def _is_of_docstrings(node: ast.AST) -> bool:
    own = isinstance(node, ast.Name) and node.id == "__doc__"
    return _name(node) in _DOCSTRINGS and not own


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, node.module or "", alias.name) for alias in node.names)


def _named(nodes: Iterable[ast.AST], calls: Iterable[ast.Call]) -> set[str]:
    """Modules named by strings: those of the package anywhere, others where they are imported."""
    texts = _texts(nodes)
    given = {call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)}
    begins = f"{NAME}."
    of_package = {text for text in texts if text.startswith(begins) and text != begins}
    return {text for text in of_package if text.replace(".", "").isidentifier()} | given


def _named_files(nodes: Iterable[ast.AST], calls: Iterable[ast.Call]) -> set[str]:
    """Modules of the files named by strings, where files are run or loaded."""
    if not any(_name(call.func) in _CALLS_WITH_A_FILE for call in calls):
        return set()
    return {Path(text).stem for text in _texts(nodes) if re.search(r"\w\.py$", text)}


def _linked(calls: Iterable[ast.Call]) -> set[str]:
    """Names of folders to which links are made, each with a slash."""
    given = [each for call in calls if _name(call.func) == "symlink_to" for each in call.args]
    return {f"{text}/" for each in given for text in _texts(ast.walk(each)) if text.isidentifier()}


def _texts(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _used(nodes: list[ast.AST]) -> list[str] | None:
    """Attributes of the package that the source has; None if it uses the package in another way."""
    aliases = {
        alias.asname or NAME
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == NAME or (alias.name.startswith(f"{NAME}.") and alias.asname is None)
    }
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id in aliases]
    taken = [node for node in nodes if isinstance(node, ast.Attribute) and _name(node.value) in aliases]
    owners = {id(node.value) for node in taken if isinstance(node.value, ast.Name)}
    names = {node.attr for node in taken if id(node.value) in owners}
    if any(id(node) not in owners for node in uses) or names & {"__all__", "__dict__", "__path__", "__dir__"}:
        return None
    return sorted(names)


def _code(tree: ast.Module, nodes: Iterable[ast.AST]) -> str:
    for node in nodes:
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if documented and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.copy_location(ast.Pass(), node.body[0])]
    return hashlib.sha256(repr(_parts(compile(tree, "", "exec", dont_inherit=True))).encode()).hexdigest()


def _parts(code: CodeType) -> tuple[object, ...]:
    """Digest parts of a code object, wherever its lines are."""
    constants = list(map(_constant, code.co_consts))
    named = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_qualname)
    counted = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return (code.co_code, code.co_exceptiontable, *named, *counted, constants)


def _constant(value: object) -> object:
    """A constant whose repr is the same in each process: a set of strings has an order of its own in each."""
    if isinstance(value, CodeType):
        return _parts(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


class Tree:
    """The files of a checkout as they are when this is made.

    Parameters
    ----------
    root : path
        Root of the checkout.
    sources : Sources
        Facts that are known already.
    """

    def __init__(self, root: Path = ROOT, sources: Sources | None = None) -> None:
        self.root = root
        self.sources = Sources(root / "build" / "stamps" / "sources.json") if sources is None else sources
        self.bytes = {name: sha256(root / name) for name in sorted(_files(root))}
        self._edges: dict[str, frozenset[str]] = {}

    def code(self, name: str) -> str:
        """Digest of the code of a Python file; of the bytes of any other."""
        if not name.endswith(".py") or name.startswith(PRINTED) or name not in self.bytes:
            return self.bytes.get(name, "not there")
        return self.sources.facts(self.root / name, self.bytes[name])["code"]

    def text(self, name: str) -> str:
        """Digest of the bytes of a file, also in a large folder that is left out."""
        if name in self.bytes or any(map(_is_of_tools, Path(name).parts)):
            return self.bytes.get(name, "not there")
        return sha256(self.root / name)

    def reads_docstrings(self, names: Iterable[str]) -> bool:
        """Whether one of these, outside of the package, reads docstrings of others."""
        return any(each["docstrings"] for each in map(self._facts, names) if each)

    def starts_processes(self, names: Iterable[str]) -> bool:
        """Whether one of these, below tests, starts processes that no recorder hears."""
        of_tests = (each for each in names if each.startswith("tests/"))
        return any(each["processes"] for each in map(self._facts, of_tests) if each)

    def _facts(self, name: str) -> Facts | None:
        """Facts of a Python file outside of the package; None of any other."""
        if not name.endswith(".py") or name.startswith("python/") or name not in self.bytes:
            return None
        return self.sources.facts(self.root / name, self.bytes[name])

    @cached_property
    def all_code(self) -> str:
        """Digest of the code of all Python files, and of the bytes of others but pages."""
        return digest_of({name: self.code(name) for name in self.bytes if not name.endswith(_PAGES)})

    @cached_property
    def all_pages(self) -> str:
        """Digest of the bytes of all pages."""
        return digest_of({name: self.bytes[name] for name in self.bytes if name.endswith(_PAGES)})

    def listing(self, folder: str) -> str:
        """Digest of the names of the files below a folder."""
        return digest_of([each for each in self.bytes if _is_below(each, folder)])

    def closure(self, *names: str) -> frozenset[str]:
        """Files of the checkout that some import, directly or not, and these themselves."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(self._imported(name))
            if not waiting:
                waiting.extend(self._behind(found) - found)
        return frozenset(found)

    def _behind(self, found: set[str]) -> set[str]:
        """Files that :data:`BEHIND` opens: something outside of the package names the library."""
        outside = [each for each in found if not each.startswith("python/")]
        return {
            second
            for (first, second), library in BEHIND.items()
            if first in found and second in self.bytes
            if any(library in self._libraries(each) for each in outside)
        }

    def _libraries(self, name: str) -> set[str]:
        if not name.endswith(".py") or name not in self.bytes:
            return set()
        facts = self.sources.facts(self.root / name, self.bytes[name])
        return {module.partition(".")[0] for level, module, _ in facts["imports"] if not level}

    def _imported(self, name: str) -> frozenset[str]:
        if name not in self._edges:
            edges = set(self._read_imports(name)) if name.endswith(".py") and name in self.bytes else set()
            self._edges[name] = frozenset(each for each in edges if (name, each) not in BEHIND)
        return self._edges[name]

    def _read_imports(self, name: str) -> Iterator[str]:
        facts = self.sources.facts(self.root / name, self.bytes[name])
        folder = Path(name).parent
        yield from self._parents(name)
        is_package = name == self._package_file
        stated = facts["imports"] + (facts["for_types"] if facts["lazy"] and not is_package else [])
        for level, module, imported in stated:
            yield from self._resolve(folder, level, module, imported)
        if facts["dynamic"] and not is_package and name.startswith("python/"):
            yield from (each for each in self.bytes if each.endswith(".py") and _is_below(each, str(folder)))
        if not is_package and not name.startswith("python/"):
            used = self._lazy_names if facts["used"] is None else facts["used"]
            for each in used:
                yield from self._lazy_names.get(each, ())

    def _resolve(self, folder: Path, level: int, module: str, imported: str) -> Iterator[str]:
        """Files of ``from module import imported``, seen from a folder."""
        if level:
            start = folder.parents[level - 2] if level > 1 else folder
            yield from self._module(start.joinpath(*filter(None, module.split("."))), imported)
            return
        if module.endswith("/"):
            yield from (each for each in self.bytes if each.startswith(module))
            return
        if module.endswith("."):  # the beginning of a name that is computed
            below = f"python/{module.replace('.', '/')}"
            yield from (each for each in self.bytes if each.startswith(below) and each.endswith(".py"))
            return
        found = [each for root in ROOTS for each in self._module(Path(root, *module.split(".")), imported)]
        if not found and "." not in module:  # pytest adds the folder of a file of tests, and that file others
            found = self._helpers.get(module, [])
        if not found and not imported and module.startswith(f"{NAME}."):  # a string with a name in a module
            module, _, imported = module.rpartition(".")
            found = list(self._resolve(folder, 0, module, imported))
        yield from found
        if module == NAME and imported in self._lazy_names:
            yield from self._lazy_names[imported]

    def _module(self, place: Path, imported: str) -> Iterator[str]:
        for each in (place / imported, place) if imported else (place,):
            for file in (each.with_name(f"{each.name}.py"), each / "__init__.py"):
                if str(file) in self.bytes:
                    yield str(file)

    def _parents(self, name: str) -> Iterator[str]:
        """Packages around a module: importing it imports them."""
        for folder in Path(name).parents:
            if str(folder / "__init__.py") in self.bytes:
                yield str(folder / "__init__.py")

    @property
    def _package_file(self) -> str:
        return f"python/{NAME}/__init__.py"

    @cached_property
    def _helpers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for name in self.bytes:
            if name.endswith(".py") and not name.startswith("python/"):
                found[Path(name).stem].append(name)
        return found

    @cached_property
    def _lazy_names(self) -> dict[str, list[str]]:
        """Names that the package loads at first use, with their files: a test has those that it uses."""
        if self._package_file not in self.bytes:
            return {}
        facts = self.sources.facts(self.root / self._package_file, self.bytes[self._package_file])
        folder = Path(self._package_file).parent
        return {
            imported: list(self._resolve(folder, level, module, imported))
            for level, module, imported in facts["for_types"]
            if level
        }


def _is_of_tools(folder: str) -> bool:
    return folder in _OF_TOOLS or folder.endswith("_cache")


def _is_below(name: str, folder: str) -> bool:
    return folder == "." or name.startswith(f"{folder}/")


def _files(root: Path) -> Iterator[str]:
    for folder, inner, names in os.walk(root):
        inner[:] = [each for each in inner if each not in _LARGE and not _is_of_tools(each)]
        for name in names:
            if not name.endswith((".pyc", ".so")):
                yield str(Path(folder, name).relative_to(root))


def digest_of(parts: Any) -> str:
    """One digest of what JSON can write."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
