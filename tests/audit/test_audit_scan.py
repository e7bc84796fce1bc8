# SPDX-License-Identifier: BSD-3-Clause
"""No family of the installed transformers with a rule of its own for the scale is overlooked."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import attnscale as at
import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")

import audit_oracle as oracle  # noqa: E402
import audit_scan  # noqa: E402
from attnscale.audit._keys import known_types  # noqa: E402
from attnscale.audit._rules.families import FAMILIES  # noqa: E402
from audit_models import CASES  # noqa: E402
from audit_types import NOT_RUN  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

#: Signs that are no scale of an attention over the layers of a model type.
ELSEWHERE = {
    "d_fine": "offsets of sampling points",
    "dab_detr": "1/sqrt(head size), as float(hidden_dim / heads)",
    "deimv2": "offsets of sampling points",
    "evolla": "of the part that reads proteins, which is none of the layers; 1/sqrt(head size) there",
    "groupvit": "patches are assigned to groups, by a Gumbel softmax over groups",
    "rt_detr_v2": "offsets of sampling points",
    "speecht5": "a term of the loss",
    "swiftformer": "weights of queries, added up; no softmax over keys",
}


@pytest.mark.maintainer
@pytest.mark.slow
def test_every_sign_of_a_rule_is_accounted_for() -> None:
    found = audit_scan.scan(Path(transformers.__file__).parent / "models")
    types = {
        kind: package(kind) for kind in {*known_types(), *(kind for row in FAMILIES for kind in row.types)}
    }
    run = known_types() - set(NOT_RUN) | {"cvt", "t5_gemma_module"}  # those two have a test of their own
    rows = {kind for row in FAMILIES for kind in row.types}
    compared = {types[kind] for kind in {kind for kind, _ in CASES} | (rows & run)}
    refusing = {types[kind] for row in FAMILIES for kind in row.types if refuses(kind)}
    overlooked = set(found) - compared - refusing - set(ELSEWHERE)
    assert {name: found[name] for name in overlooked} == {}
    assert set(ELSEWHERE) <= set(found)
    if transformers.__version__ == at.audit.TRANSFORMERS:  # the numbers in docs/reference/audit-coverage.md
        kinds = (found.keys() & compared, found.keys() & (refusing - compared), ELSEWHERE)
        assert (len(found), *map(len, kinds)) == (82, 69, 5, 8)
        assert (len(known_types()), len(known_types() - set(NOT_RUN))) == (333, 281)


def package(kind: str) -> str:
    """The folder of transformers with the model type's code; empty if it has none."""
    try:
        return oracle.config_class(kind).__module__.split(".")[-2]
    except KeyError:
        return ""


def refuses(kind: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.audit.AuditWarning)
        try:
            plan = at.audit.resolve(
                {"model_type": kind, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
            )
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
    assert audit_scan.scan(tmp_path) == ({} if sign is None else {"new": {sign}})
