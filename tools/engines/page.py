# SPDX-License-Identifier: BSD-3-Clause
"""The page of engines, docs/reference/engines.md, from the answers alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).resolve().parent / "answers.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "engines.md"
#: Most letters in the lines of a table.
WIDTH = 110
#: Moves of weights or numbers from one engine to another that are told in full.
MOVES = (
    ("torch", "onnx-reference"),
    ("torch", "onnxruntime"),
    ("torch", "openvino"),
    ("torch", "executorch"),
    ("torch", "tvm"),
    ("torch", "iree"),
    ("torch", "ncnn"),
    ("torch", "ggml"),
    ("torch", "mlx"),
    ("torch", "jax"),
    ("torch", "paddle"),
    ("torch", "tinygrad"),
    ("torch", "torch-flex"),
    ("torch", "torch-mha"),
    ("torch", "transformers-eager"),
    ("torch", "x-transformers"),
    ("onnx-reference", "onnxruntime"),
    ("onnxruntime", "onnxruntime-gqa"),
    ("onnxruntime", "onnxruntime-mha"),
    ("jax", "flax"),
    ("jax", "mlx"),
    ("keras", "keras-jax"),
    ("keras-jax", "keras-torch"),
    ("x-transformers", "x-transformers-flash"),
)
_HEAD = """\
# What attention engines do

<!-- `make engines` writes this page from tools/engines/answers.json. -->

{count} engines were asked {questions} questions that documents leave open, each by a few tiny calls on
the CPU. Nothing is said that was not run. `attnscale conformance ENGINE` asks again, whatever
[release](../how-to/check-an-engine.md) is installed.

**Bold**: not what most expect, which stands with the question. –: the engine has no argument for it, or does
not return it. raises: an error of the engine's own. unmasked: as if there was no mask. mean: the mean of all
values. Arrays are float32, if the question does not say otherwise. An answer holds for the shapes asked:
PyTorch's function on a CPU, say, runs other code where value and key have other widths.
"""

#: Subject whose answers are no differences between engines.
_OF_BITS = "The call again"

Kept = Mapping[str, Any]


def page(kept: Kept) -> str:
    """The page as Markdown."""
    atlas = _Atlas(kept)
    head = _HEAD.format(count=len(atlas.titles), questions=len(atlas.questions))
    parts = [head, *atlas.subjects(), *atlas.moves(), *atlas.changes(), *atlas.calls()]
    return "\n".join(parts).rstrip() + "\n"


class _Atlas:
    """Answers of the newest release of each engine, by engine and question."""

    def __init__(self, kept: Kept) -> None:
        self.questions: Mapping[str, Any] = kept["questions"]
        self.engines = {name: each for name, each in kept["engines"].items() if each["releases"]}
        self.left = {name: each["not_run"] for name, each in kept["engines"].items() if "not_run" in each}
        newest = {name: [*each["releases"].items()][-1] for name, each in self.engines.items()}
        self.titles = {name: f"{name} {version}" for name, (version, _) in newest.items()}
        self.answers: dict[str, Mapping[str, Any]] = {name: answers for name, (_, answers) in newest.items()}
        #: Answers that can be compared, by engine and question.
        self.told = {
            name: {x: says for x in self.questions if (says := _plain(answers.get(x))) != "–"}
            for name, answers in self.answers.items()
        }

    def subjects(self) -> Iterator[str]:
        """A section for each subject: its questions, and tables of the answers."""
        subjects = dict.fromkeys(each["subject"] for each in self.questions.values())
        for subject in subjects:
            names = [name for name, each in self.questions.items() if each["subject"] == subject]
            yield f"## {subject}\n"
            yield from (self._asked(self.questions[name]) for name in names)
            for few in self._narrow(names):
                yield ""
                yield from self._table(few)
            yield ""

    def _narrow(self, names: list[str]) -> Iterator[list[str]]:
        """Questions whose answers fit the lines of a table."""
        title = max(map(len, self.titles.values()))
        few, width = [names[0]], title + self._width(names[0])
        for name in names[1:]:
            width += self._width(name)
            if width > WIDTH:
                yield few
                few, width = [], title + self._width(name)
            few.append(name)
        yield few

    def _width(self, name: str) -> int:
        cells = (_plain(answers.get(name)) for answers in self.answers.values())
        return 3 + max(map(len, [self.questions[name]["short"], *cells]))

    def _asked(self, question: Mapping[str, Any]) -> str:
        usual = " or ".join(f"“{each}”" for each in question["usual"])
        return f"- *{question['short']}*: {question['asks']}. Most expect {usual}: {question['rule']}."

    def _table(self, names: list[str]) -> Iterator[str]:
        yield _line("engine", *(self.questions[name]["short"] for name in names))
        yield _line(*["---"] * (len(names) + 1))
        for engine, title in self.titles.items():
            cells = [_cell(self.answers[engine].get(name)) for name in names]
            if set(cells) != {"–"}:
                yield _line(title, *cells)

    def _differences(self, one: str, other: str) -> dict[str, tuple[str, str]]:
        before, after = self.told[one], self.told[other]
        return {
            name: (says, after[name])
            for name, says in before.items()
            if name in after and says != after[name] and self.questions[name]["subject"] != _OF_BITS
        }

    def moves(self) -> Iterator[str]:
        """Differences that meet who moves weights or numbers from one engine to another."""
        pairs = {pair: self._differences(*pair) for pair in combinations(self.titles, 2)}
        equal = sum(not each for each in pairs.values())
        parted = {name: sum(name in each for each in pairs.values()) for name in self.questions}
        most = sorted(parted, key=lambda name: -parted[name])[:5]
        yield "## From one engine to another\n"
        said = "; ".join(f"{self._name(name)} ({parted[name]})" for name in most)
        yield f"Of the {len(pairs)} pairs of engines, {equal} agree wherever both answer. Most pairs are"
        yield f"parted by {said}. Whoever moves weights or compares numbers between two engines meets,"
        yield "of the questions that both answer:\n"
        for pair in MOVES:
            if pair in pairs or pair[::-1] in pairs:
                found = self._differences(*pair)
                title = " → ".join(self.titles[each] for each in pair)
                both = len(self.told[pair[0]].keys() & self.told[pair[1]].keys())
                yield f"- **{title}** ({len(found)} of {both}). {self._by_subject(found) or 'Nothing'}."
        yield ""
        yield "Engines by their answers to these questions:\n"
        for name in most:
            groups: dict[str, list[str]] = {}
            for engine, told in self.told.items():
                if name in told:
                    groups.setdefault(told[name], []).append(engine)
            listed = "; ".join(f"{says}: {', '.join(each)}" for says, each in groups.items())
            yield f"- *{self._name(name)}*. {listed}."
        yield ""

    def _by_subject(self, found: Mapping[str, tuple[str, str]]) -> str:
        """Differences in a sentence, those of a subject behind its name."""
        parts: dict[str, list[str]] = {}
        for name, (before, after) in found.items():
            each = self.questions[name]
            parts.setdefault(each["subject"], []).append(f"{each['short']}: {before} → {after}")
        return "; ".join(f"*{subject}* {', '.join(each)}" for subject, each in parts.items())

    def _name(self, question: str) -> str:
        each = self.questions[question]
        about = each["subject"].partition(",")[0]
        return f"{about if about[1].isupper() else about[0].lower() + about[1:]}, {each['short']}"

    def changes(self) -> Iterator[str]:
        """Answers that differ between the last two releases that were run."""
        several = {
            name: [*x["releases"].items()][-2:] for name, x in self.engines.items() if len(x["releases"]) > 1
        }
        yield "## Changed since the earlier release that was run\n"
        if not several:
            yield "One release of each engine was run.\n"
        same = []
        for name, ((old, before), (new, after)) in several.items():
            pairs = {x: (_plain(before.get(x)), _later(after.get(x))) for x in self.questions}
            found = {x: pair for x, pair in pairs.items() if len(set(pair)) > 1 and "–" not in pair}
            if found:
                yield f"- {name} {old} → {new}: {self._by_subject(found)}."
            else:
                same.append(f"{name} {old} → {new}")
        if same:
            yield f"- No other answer: {', '.join(same)}."
        yield ""

    def calls(self) -> Iterator[str]:
        """Call of each engine, and the reasons why others were not run."""
        yield "## Calls\n"
        yield _line("engine", "package", "call", "adapter")
        yield _line(*["---"] * 4)
        for name, title in self.titles.items():
            each = self.engines[name]
            yield _line(title, each["package"], f"`{each['call']}`", each["notes"] or "–")
        if self.left:
            yield ""
            yield f"Not run: {'; '.join(f'{name} ({why})' for name, why in self.left.items())}."


def _plain(answer: Mapping[str, Any] | None) -> str:
    """An answer in a cell's words, without marks."""
    says = "–" if answer is None else str(answer["says"])
    if says == "none" or says.startswith("refused"):
        return "–"
    return "raises" if says.startswith("error") else says


def _later(answer: Mapping[str, Any] | None) -> str:
    """An answer of a later release, which may refuse what the earlier one answered."""
    return "refused" if answer is not None and answer["says"].startswith("refused") else _plain(answer)


def _cell(answer: Mapping[str, Any] | None) -> str:
    says = _plain(answer)
    return f"**{says}**" if answer is not None and answer["surprising"] else says


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(ANSWERS.read_text("utf-8"))), encoding="utf-8")
