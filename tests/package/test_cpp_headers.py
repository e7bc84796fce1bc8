# SPDX-License-Identifier: BSD-3-Clause
"""The pages that are written from the C++ headers: all that is declared, and nothing that is misread."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CPP, DOCS = ROOT / "cpp", ROOT / "docs"

if not CPP.exists():
    pytest.skip("not a source tree", allow_module_level=True)


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    import _cpp_pages

    return _cpp_pages


SAMPLE = """// SPDX-License-Identifier: BSD-3-Clause
//
// What it is.
#pragma once

#include <vector>

namespace attnscale {
namespace detail {
struct hidden { int x; };  // "}" in a string: {
}  // namespace detail

/// Two of them
/// on two lines.
enum class kind : int { one, two };
struct pair {  ///< with a comment here
  pair(int a, std::vector<int> b) : a_(a), b_{b} { a_ = f({1, 2}); }
  /// Of a.
  int a() const { return a_; }  ///< and behind
  std::vector<int> open{1, 2};
  int last = 3;

 private:
  int a_;
};

/// Of two forms.
template <class A, class B = pair<int>>
requires std::same_as<A, B>
auto call(const A& a, B b = {1, ';'}) -> int {
  return "}" ? 1 : '{';
}
double call(double x);

double call(float x) noexcept;

inline constexpr double number = 0.5;  ///< a half,
                                       ///< exactly
namespace inner {

/// A table.
inline constexpr std::array<int, 2> table{{
    1,
    2,
}};
using name = pair;
}  // namespace inner

// Without its namespace, too.
using inner::name;
}  // namespace attnscale
"""


def test_a_header_is_read(pages):
    header = pages.read_header(SAMPLE)
    assert header.text == ["", "What it is."]
    assert [(each.names, each.text) for each in header.entries] == [
        (["kind"], ["Two of them", "on two lines."]),
        (["pair"], ["with a comment here"]),
        (["call"], ["Of two forms."]),
        (["number"], ["a half,", "exactly"]),
        (["inner::table", "inner::name"], ["A table."]),
    ]
    kind, pair, call, number, table = (each.code for each in header.entries)
    assert kind == ["enum class kind : int { one, two };"]
    assert pair == [
        """struct pair {
  pair(int a, std::vector<int> b);
  /// Of a.
  int a() const;  ///< and behind
  std::vector<int> open{1, 2};
  int last = 3;
};"""
    ]
    assert call == [
        "template <class A, class B = pair<int>>\nrequires std::same_as<A, B>\n"
        "auto call(const A& a, B b = {1, ';'}) -> int;",
        "double call(double x);",
        "double call(float x) noexcept;",
    ]
    assert number == ["inline constexpr double number = 0.5;"]
    assert table == ["inline constexpr std::array<int, 2> table;", "using name = pair;"]


@pytest.mark.parametrize(
    ("wrong", "line", "message"),
    [
        ("int f();", 4, "f has no comment"),
        ("/// Of f.\nint f();\n\nint g();", 7, "g has no comment, and is no other form"),
        ("/// Of nothing.\n\nint f();", 5, "a comment without a declaration"),
        ("/// Of f.\nint f() { return 1;", 5, "a bracket is not closed"),
        ("/// Of f.\nint f()", 5, "a declaration has no end"),
        ("/// Of f.\nunion f { int a; };", 5, "no declaration that is known here: 'union f"),
        ("/// Of f.\nint f(); int g();", 5, "a second declaration stands on a line: 'int g();'"),
        ("  /// Of f.\n  int f();", 4, "stands where a declaration begins"),
        ("/// Of it.\nnamespace more {\n}", 5, "a comment stands before a namespace"),
        ("/// Of it.\n#include <vector>", 5, "a comment precedes a directive"),
        ("namespace more {", 4, "ends within a namespace"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(pages, wrong, line, message):
    text = f"// Top.\n#pragma once\n\n{wrong}\n"
    with pytest.raises(ValueError, match=rf"^x\.hpp:{line}: .*{re.escape(message)}"):
        pages.read_header(text, "x.hpp")
    with pytest.raises(ValueError, match=r"^x\.hpp: there is no '#pragma once'$"):
        pages.read_header(wrong, "x.hpp")


def test_every_public_header_has_a_page_with_all_of_its_types(pages, tmp_path):
    (tmp_path / "of_a_header_that_is_gone.md").write_text("# Gone", encoding="utf-8")
    pages.write_cpp_pages(tmp_path, CPP)
    written = {page.stem: page.read_text(encoding="utf-8") for page in tmp_path.glob("*.md")}
    readme = (CPP / "README.md").read_text(encoding="utf-8")
    listed = pages.read_index(readme)
    assert written.keys() == {name.removesuffix(".hpp") for name in listed}
    own = set(re.findall(r"`(\w+\.hpp)`", readme.split("for these headers alone")[1].split("## src")[0]))
    public = CPP / "include" / "attnscale"
    assert {path.name for path in public.glob("*.hpp")} - {"attnscale.hpp"} == listed.keys()
    assert {path.name for path in (public / "detail").glob("*.hpp")} == own
    for name, page in written.items():
        source = (CPP / "include" / "attnscale" / f"{name}.hpp").read_text(encoding="utf-8")
        source = source.replace("ATTNSCALE_EXPORT ", "")
        source = re.sub(r"^namespace detail \{.*?^\}  // namespace detail$", "", source, flags=re.M | re.S)
        types = re.findall(r"^(?:enum class|struct|class|using) (\w+)\b(?!::)", source, re.M)
        calls = re.findall(r"^(?:inline |constexpr |const )*[\w:<>&]+ (\w+)\(", source, re.M)
        for each in (*types, *calls):
            assert re.search(rf"^## .*`(\w+::)?{each}`", page, re.M), (name, each)
        code = page.split("## Example")[1].split("\n## ")[1:]
        assert "return " not in "".join("".join(re.findall(r"```cpp\n(.*?)```", each, re.S)) for each in code)
        assert "detail {" not in page
        assert "private:" not in page


def test_a_comment_is_no_markup(pages):
    assert pages._escaped("a_b * `c_d`\n- x\n2. y\n% z\n1) w\n2.5") == (
        "a\\_b \\* `c_d`\n\\- x\n2\\. y\n\\% z\n1\\) w\n2.5"
    )
    assert pages._prose(["of", "  model   x", "  other   y", "", "end"]) == (
        "of\n\n```cpp\nmodel   x\nother   y\n```\n\nend"
    )
