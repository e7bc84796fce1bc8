# SPDX-License-Identifier: BSD-3-Clause
"""Families of the installed transformers that the audit overlooks, and configs that it reads wrongly.

Every modeling file is parsed for signs in classes of attention. A sign is a scale other than
(head size)^-1/2, or a name with a rule of its own: a soft-cap, sinks, a multiplier of the config, a
temperature, a learned scale.

Changed configs are a sample of those whose models ``make audit-scan`` builds.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attnscale as at
import pytest
from versions import written_for

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")

from audit_configs import FAMILIES, IN_ROWS, KNOWN_TYPES, sizes, typed  # noqa: E402

from tools.audit import oracle, quietly  # noqa: E402
from tools.audit.cases import CASES  # noqa: E402
from tools.audit.changes import changes, saved_forms  # noqa: E402
from tools.audit.kinds import NOT_RUN  # noqa: E402
from tools.audit.measure import judge  # noqa: E402
from tools.audit.scan import COVERAGE, _changed, _defaults, measure_one, news, quiet  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

_SCALE = re.compile(r"scal|softmax_scale|norm_factor|normalize_fact")
_SIZE = r"[\w.]*(?:head_dim|head_size|d_head|dim_head|key_dim|head_width|hidden_dim|qk_head_dim)"
_PLAIN = re.compile(
    rf"{_SIZE} \*\* \(?-0\.5\)?"
    rf"|1(?:\.0)? / (?:math\.sqrt\({_SIZE}\)|{_SIZE} \*\* 0\.5)"
    rf"|math\.sqrt\({_SIZE}\)"  # a divisor
    rf"|qk_scale or {_SIZE} \*\* \(-0\.5\)"
    r"|\(self\.internal_dim // config\.num_attention_heads\) \*\* \(-0\.5\)"
    r"|1 / math\.sqrt\(self\.hidden_size / self\.n_heads\)"
    r"|scale"  # an argument that callers give
)
_NAMES = re.compile(
    r"attention_multiplier|key_multiplier|qk_scale_factor|query_pre_attn_scalar|yarn_apply_mscale|softmax_scaling"
    r"|scale_attn_weights|inverse_layer_idx|logit_scale|per_dim_scale|temperature_tuning|attn_scales?\b|log_scaling"
    r"|get_llama_4_attn_scale|scaled_size_sqrt|lora_scale|scale_(?:q|kv)_lora|\btau\b|attention_scaling\b"
)


def scan(models: Path) -> dict[str, set[str]]:
    """Signs by the name of the modeling file."""
    found: dict[str, set[str]] = {}
    for file in sorted(models.glob("*/modeling_*.py")):
        signs = set(_signs(ast.parse(file.read_text(encoding="utf-8"))))
        if signs:
            found[file.stem.removeprefix("modeling_")] = signs
    return found


def _signs(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and re.search("Attention|Attn|MLA", node.name):
            for part in ast.walk(node):
                yield from _of(part)
        elif isinstance(node, ast.ClassDef) and "Rotary" in node.name:
            names = (part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute))
            yield from (name for name in names if "mscale" in name)


def _of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        text = ast.unparse(node.value)
        names = (target.attr for target in node.targets if isinstance(target, ast.Attribute))
        yield from (f"{x} = {text}" for x in names if _SCALE.search(x) and not _PLAIN.fullmatch(text))
    elif isinstance(node, ast.keyword) and node.arg in ("softcap", "s_aux"):
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield f"{node.arg}={ast.unparse(node.value)}"
    elif isinstance(node, ast.keyword) and node.arg == "softmax_scale":
        yield f"softmax_scale={ast.unparse(node.value)}"
    elif isinstance(node, ast.Attribute) and _NAMES.search(node.attr):
        yield node.attr
    elif isinstance(node, ast.Name) and _NAMES.search(node.id):
        yield node.id


#: Signs that are not the scale of an attention in the layers of a model type.
ELSEWHERE = {
    "d_fine": "offsets of sampling points",
    "dab_detr": "1/sqrt(head size), as float(hidden_dim / heads)",
    "deimv2": "offsets of sampling points",
    "evolla": "1/sqrt(head size) in the part that reads proteins, which is not one of the layers",
    "groupvit": "patches are assigned to groups, by a Gumbel softmax over groups",
    "rt_detr_v2": "offsets of sampling points",
    "speecht5": "a term of the loss",
    "swiftformer": "weights of queries, added up; no softmax over keys",
}


@pytest.mark.maintainer
@pytest.mark.slow
def test_every_sign_of_a_rule_is_accounted_for() -> None:
    found = scan(Path(transformers.__file__).parent / "models")
    types = {kind: package(kind) for kind in {*KNOWN_TYPES, *IN_ROWS}}
    run = KNOWN_TYPES - set(NOT_RUN) | {"cvt", "t5_gemma_module"}  # the two have tests of their own
    compared = {types[kind] for kind in {kind for kind, _ in CASES} | (run & {*IN_ROWS})}
    refusing = {types[kind] for kind in IN_ROWS if refuses(kind)}
    overlooked = set(found) - compared - refusing - set(ELSEWHERE)
    assert {name: found[name] for name in overlooked} == {}
    assert set(ELSEWHERE) <= set(found)
    if transformers.__version__ == at.audit.TRANSFORMERS:  # the numbers in docs/reference/audit-coverage.md
        kinds = (found.keys() & compared, found.keys() & (refusing - compared), ELSEWHERE)
        assert (len(found), *map(len, kinds)) == (83, 69, 6, 8)
        assert (len(KNOWN_TYPES), len(KNOWN_TYPES - set(NOT_RUN))) == (341, 288)


@pytest.mark.maintainer
@written_for(f"transformers=={at.audit.TRANSFORMERS}")  # of which the table is
def test_the_scan_says_what_another_version_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed table stands for another version: a type is new, another is gone, a default differs."""
    assert news() == ([], [])
    table = _defaults()
    models = {kind: entry for kind, entry in table["models"].items() if kind != "llama"}
    changed = {**models["qwen2"], "defaults": {**models["qwen2"]["defaults"], "hidden_size": 1}}
    older = {**table, "models": {**models, "qwen2": changed, "lost": {}}}
    monkeypatch.setattr("tools.audit.scan._defaults", lambda: older)
    assert news() == (
        ["llama"],
        ["models: llama is new", "models: lost is gone", "models: qwen2: defaults: hidden_size: 1 -> 4096"],
    )


def test_what_differs_in_an_entry() -> None:
    assert _changed({"a": 1, "b": {"c": [1]}}, {"b": {"c": [2]}, "d": 3}) == [
        "a: 1 -> None",
        "b: c: [1] -> [2]",
        "d: None -> 3",
    ]


def test_the_page_has_the_numbers_of_this_table() -> None:
    found = json.loads(COVERAGE.read_text(encoding="utf-8"))
    assert found["transformers"] == at.audit.TRANSFORMERS
    assert found["configs"].get("wrong", 0) == 0
    states = ("compared", "refused", "not built", "not measured")
    assert sum(found["types"].get(state, 0) for state in states) == len(KNOWN_TYPES)


def package(kind: str) -> str:
    """Folder of transformers with the code of a model type; empty if there is none."""
    try:
        return oracle.config_class(kind).__module__.split(".")[-2]
    except KeyError:
        return ""


def refuses(kind: str) -> bool:
    try:
        plan = quietly(typed(kind, **sizes(64, 4, 2)))
    except at.audit.ConfigError:
        return False
    return all(layer.refusal is not None for layer in plan.layers)


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ("self.scaling = self.head_dim ** -0.5", None),
        ("self.scale = 1.0 / math.sqrt(self.attention_head_size)", None),
        ("self.scaling = config.hidden_size ** -0.5", "scaling = config.hidden_size ** (-0.5)"),
        ("self.scaling = 1.0", "scaling = 1.0"),
        ("attend(q, softcap=self.cap)", "softcap=self.cap"),
        ("attend(q, softcap=None)", None),
        ("q = q * self.per_dim_scale", "per_dim_scale"),
    ],
)
def test_what_a_sign_is(tmp_path: Path, line: str, sign: str | None) -> None:
    code = f"class NewAttention:\n    def f(self, q, config):\n        {line}\n"
    ast.parse(code)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "modeling_new.py").write_text(code, encoding="utf-8")
    assert scan(tmp_path) == ({} if sign is None else {"new": {sign}})


# ---- changed configs against the models' code ------------------------------------------------------

_SEED = 12
#: Spellings of rotary positions, one of which each family is tested with.
_SPELLINGS = [f"{each} yarn" for each in ("flat", "legacy type", "legacy rope_type", "nested both")]
_SPELLINGS += ["rope_parameters null"]


def sample() -> list[tuple[str, str]]:
    """(model type, change): two for each row of the table, and two for each of 40 plain types."""
    rng = random.Random(_SEED)
    runs = KNOWN_TYPES - set(NOT_RUN)
    rows = [sorted(runs.intersection(row.types)) for row in FAMILIES]
    kinds = [rng.choice(types) for types in rows if types]
    kinds += rng.sample(sorted(runs - {*IN_ROWS}), 40)
    chosen = []
    for kind in kinds:
        labels = [label for label, _ in changes(kind)]
        spellings = [label for label in _SPELLINGS if label in labels]
        # Some types have no rotary positions, or classes that are not installed.
        chosen += [(kind, rng.choice(each)) for each in (spellings, labels) if each]
    return sorted(set(chosen))


@pytest.mark.maintainer
def test_changed_configs_are_read_as_the_code_reads_them() -> None:
    words: Counter[str] = Counter()
    wrong = []
    with quiet():
        for kind, label in sample():
            keys = dict(changes(kind))[label]
            verdict = judge(*measure_one(kind, keys))
            words[verdict.word] += 1
            if verdict.word == "wrong":
                wrong.append((kind, label, verdict.reason))
    assert not wrong
    assert words.total() > 150
    assert words["agrees"] > 0.7 * words.total(), words


@written_for(f"transformers=={at.audit.TRANSFORMERS}")
def test_saved_configs_are_read_as_the_code_reads_them() -> None:
    """Configs as save_pretrained writes them, with defaults left out and blocks by layer."""
    compared = 0
    with quiet():
        for kind in ("dots3_note_text", "gemma4_text", "neomme", "gpt_oss", "deepseek_v4", "zaya"):
            for label, keys in saved_forms(kind):
                verdict = judge(*measure_one(kind, keys))
                assert verdict.word in ("agrees", "not built"), (kind, label, verdict)
                compared += verdict.word == "agrees"
    assert compared >= 16
