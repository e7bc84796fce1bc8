# SPDX-License-Identifier: BSD-3-Clause
"""Declarations of a public C++ header, with their comments.

The reader knows only the style of these headers: clang-format's layout, ``///`` before a declaration and
``///<`` behind it, namespaces opened and closed at the beginning of a line. Anything else raises a
HeaderError that names the header and the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_OPEN, _CLOSE = "([{", ")]}"
_NOT_CODE = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"|(?<!\w)\'(?:\\.|[^\'\\])+\'')


class HeaderError(ValueError):
    """An error at a line that the reader does not understand."""


@dataclass
class Entry:
    """A comment and its declaration, or several adjacent ones."""

    names: list[str]
    code: list[str]
    text: list[str]  # lines of the comment


@dataclass
class Header:
    """The comment at the top of a header, and its declarations."""

    text: list[str]
    entries: list[Entry]


# ---- from a header to entries --------------------------------------------------------------------


def read_header(source: str, name: str = "header") -> Header:
    """Read the declarations of a header outside of detail, with comments; export macros are left out."""
    top, once, rest = source.replace("ATTNSCALE_EXPORT ", "").partition("#pragma once\n")
    if not once:
        raise HeaderError(f"{name}: there is no '#pragma once'")
    comment = [line[2:].removeprefix(" ") for line in top.splitlines()]
    reader = _Reader(rest, name, first_line=top.count("\n") + 2)
    reader.run()
    return Header([line for line in comment if not line.startswith("SPDX-")], reader.entries)


class _Reader:
    """Reader of the lines at namespace level."""

    def __init__(self, source: str, name: str, first_line: int) -> None:
        self.source, self.name, self.first_line = source, name, first_line
        self.at = self.start = 0
        self.scopes: list[str] = []
        self.comment: list[str] = []
        self.entries: list[Entry] = []
        self.follows = False  # the line directly follows the previous entry

    def run(self) -> None:
        while self.at < len(self.source):
            self._line(self.source[self.at : self._end_of_line(self.at)])
        if self.scopes or self.comment:
            raise self._error("the header ends within a namespace, or with a comment without a declaration")

    def _line(self, line: str) -> None:
        self.start = self.at
        if line.startswith("///"):
            self.comment.append(line[3:].removeprefix(" "))
            self.at += len(line) + 1
        elif not line or line.startswith("//"):
            if self.comment:
                raise self._error("a comment without a declaration ends here")
            self.follows = False
            self.at += len(line) + 1
        elif line.startswith("#"):
            self._directive()
        elif found := re.fullmatch(r'(?:namespace ([\w:]+)|extern "C") \{', line):
            self._enter(found[1] or "")
        elif re.fullmatch(r"\}(  // .*)?", line) and self.scopes:
            self.scopes.pop()
            self.at += len(line) + 1
        elif line[0].isspace() or line[0] == "}":
            raise self._error(f"this stands where a declaration begins: {line!r}")
        else:
            self._declaration()

    def _enter(self, scope: str) -> None:
        if self.comment:
            raise self._error("a comment stands before a namespace")
        start = self.source.index("{", self.at)
        if scope.split("::")[-1] == "detail":
            self.at = self._end_of_line(_closing(self.source, start, self._error)) + 1
        else:
            self.scopes.append(scope)
            self.at = self._end_of_line(start) + 1
        self.follows = False

    def _directive(self) -> None:
        """Skip #include and conditions; macros become entries."""
        while self.source[(end := self._end_of_line(self.at)) - 1] == "\\":
            self.at = end + 1
        self.at = end + 1
        text = self.source[self.start : end]
        if found := re.match(r"#define (\w+)", text):
            self._add(found[1], text)
        elif self.comment:
            raise self._error("a comment precedes a directive")

    def _declaration(self) -> None:
        end = _end_of_declaration(self.source, self.start, self._error)
        text = self.source[self.start : end]
        self.at = self._end_of_line(end)
        behind = self.source[end : self.at].strip()
        self.at += 1
        if behind.startswith("///<"):
            self.comment.append(behind[4:].strip())
            while found := re.match(r" *///< ?(.*)\n", self.source[self.at :]):
                self.comment.append(found[1])
                self.at += found.end()
        elif behind and not behind.startswith("//"):
            raise self._error(f"a second declaration stands on a line: {behind!r}")
        head = _without_template(text)
        if head.startswith("static_assert") or re.match(
            r"using [\w:]+;", head
        ):  # a name that is declared elsewhere
            return
        names, code, inside = _described(head, text, self._error)
        self.comment += inside
        self._add("::".join([*(each for each in self.scopes[1:] if each), names]), code)

    def _add(self, name: str, code: str) -> None:
        if self.comment or not self.entries:
            if not self.comment:
                raise self._error(f"{name} has no comment")
            self.entries.append(Entry([name], [code], self.comment))
        elif self.follows:
            entry = self.entries[-1]
            entry.names += [name] if name not in entry.names else []
            entry.code.append(code)
        else:
            entry = next((each for each in self.entries if name in each.names), None)
            if entry is None:
                raise self._error(f"{name} has no comment, and is no other form of what has one")
            entry.code.append(code)
        self.comment, self.follows = [], True

    def _end_of_line(self, at: int) -> int:
        end = self.source.find("\n", at)
        return len(self.source) if end < 0 else end

    def _error(self, what: str, at: int | None = None) -> HeaderError:
        line = self.first_line + self.source.count("\n", 0, self.start if at is None else at)
        return HeaderError(f"{self.name}:{line}: {what}")


# ---- C++, as far as these headers need it --------------------------------------------------------


@cache
def _code_of(text: str) -> str:
    """The text with comments, strings and characters replaced by spaces."""
    return _NOT_CODE.sub(lambda found: " " * len(found[0]), text)


def _closing(text: str, start: int, error) -> int:
    """Position of the bracket that closes the one at `start`."""
    code, depth = _code_of(text), 0
    for at in range(start, len(code)):
        depth += (code[at] in _OPEN) - (code[at] in _CLOSE)
        if not depth:
            return at
    raise error("a bracket is not closed", start)


def _opens_body(before: str) -> bool:
    """Whether a brace after this code opens the body of a function, not an initialiser."""
    if re.match(r"(enum|struct|class)\b", _without_template(before.lstrip())):
        return False
    if _constructor_list(before) >= 0:
        return before.rstrip()[-1] in ")}"
    return re.search(r"\)(\s*(const|noexcept|override|&&))*(\s*->[^=;]+)?\s*$", before) is not None


def _constructor_list(code: str) -> int:
    """Start of a constructor's member list, the colon after its parameters; -1 if there is none."""
    depth = 0
    for at, each in enumerate(code):
        depth += (each in _OPEN) - (each in _CLOSE)
        alone = each == ":" and ":" not in (code[at - 1], code[at + 1 : at + 2])
        if alone and not depth and code[:at].rstrip().endswith(")"):
            return at
    return -1


def _end_of_declaration(text: str, start: int, error) -> int:
    """Position after the semicolon, or after the body of a function."""
    code, at = _code_of(text), start
    while at < len(code):
        if code[at] == ";":
            return at + 1
        if code[at] in _OPEN:
            body = code[at] == "{" and _opens_body(code[start:at])
            at = _closing(text, at, error)
            if body:
                return at + 1
        elif code[at] in _CLOSE:
            break
        at += 1
    raise error("a declaration has no end", start)


def _without_template(text: str) -> str:
    """A declaration without ``template <...>`` before it."""
    while text.startswith("template <"):
        depth = 0
        for at, each in enumerate(text):
            depth += (each == "<") - (each == ">" and text[at - 1] != "-")
            if each == ">" and not depth:
                text = text[at + 1 :].lstrip()
                break
        else:
            return text
    return text


def _described(head: str, text: str, error) -> tuple[str, str, list[str]]:
    """Name, the text to show, and the comment on the first line of a struct."""
    if found := re.match(r"(?:enum class|struct|class) (\w+)", head):
        return found[1], *_type(text, head.startswith("enum"), error)
    if found := re.match(r"(?:using|concept) (\w+) =", head):
        return found[1], text, []
    code = _code_of(head)
    signature = code
    for at, each in enumerate(code):
        if each == "{" and _opens_body(code[:at]):
            signature = code[:at]
            break
    if found := re.match(r"(?:inline )?(?:constexpr|const) [^=({]*?(\w+)\s*(=|\{)", signature):
        first = text[: len(text) - len(head) + found.start(2)].rstrip() + ";"
        return found[1], first if "\n" in text else text, []
    groups = [at for at, each in _top_level(signature) if each == "("]
    found = re.search(r"(\w+)\s*$", signature[: groups[-1]]) if groups else None
    if found is None:
        raise error(f"this is no declaration that is known here: {head.splitlines()[0]!r}")
    behind = len(head) - len(signature)
    shown = text[: len(text) - behind].rstrip() if behind else text
    return found[1], shown.rstrip(";") + ";", []


def _top_level(code: str):
    """(place, character) outside of all brackets, including opening ones."""
    depth = 0
    for at, each in enumerate(code):
        depth -= each in _CLOSE
        if not depth:
            yield at, each
        depth += each in _OPEN


def _type(text: str, is_enum: bool, error) -> tuple[str, list[str]]:
    """A struct, class or enum as users see it, and the comment on its first line."""
    start = _code_of(text).find("{")
    if start < 0:
        return text, []
    head, body = text[: start + 1], text[start + 1 : text.rindex("}")]
    comment = []
    if found := re.match(r" *///< ?(.*)", body):
        comment, body = [found[1]], body[found.end() :]
    if not is_enum:
        body = _public_members(body, error)
    if "\n" not in body:
        return f"{head}{body}}};", comment
    return head + body.rstrip() + ("\n};" if body.strip() else "};"), comment


def _public_members(body: str, error) -> str:
    """Public members, without bodies of functions."""
    code = _code_of(body)
    private = re.search(r"^ private:$|^ protected:$", code, re.MULTILINE)
    body = body[: private.start()] if private else body
    shown, at, start = "", 0, 0
    while at < len(body):
        each = code[at]
        if (each == ":" and code[start:at].strip() == "public") or each == ";":
            start = at + 1
        elif each in _OPEN:
            end = _closing(body, at, error)
            if each == "{" and _opens_body(code[start:at]):
                members = _constructor_list(code[start:at])
                kept = body[start : at if members < 0 else start + members]
                shown = shown[: len(shown) - (at - start)] + kept.rstrip() + ";"
                at = start = end + 1
                continue
            shown += body[at:end]
            at = end
        shown += body[at]
        at += 1
    return shown
