# SPDX-License-Identifier: BSD-3-Clause
"""Pages say of trained heads what tools/evidence/measure_heads.py stored, and how it chooses and cuts."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import attnscale as at
import numpy as np
import pytest
from pages import ROOT, page

MEASURED = ROOT / "docs" / "_measured"


@pytest.fixture(scope="module")
def scripts() -> tuple[ModuleType, ModuleType]:
    """The program, and the module of its predictions and tables."""
    sys.path.insert(0, str(ROOT / "tools" / "evidence"))
    import heads_held_out
    import measure_heads

    sys.path.remove(str(ROOT / "tools" / "evidence"))
    return measure_heads, heads_held_out


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MEASURED / "heads.json").read_text(encoding="utf-8"))
    return found


def test_the_tables_agree_with_the_stored_numbers(scripts: Any, stored: dict[str, Any]) -> None:
    for name, text in scripts[1].tables(stored).items():
        assert (MEASURED / name).read_text(encoding="utf-8") == text, name


def test_the_stored_errors_follow_from_the_stored_misses(scripts: Any, stored: dict[str, Any]) -> None:
    """Misses of each head on each text are kept, so A13 and A14 can be recomputed."""
    every = json.loads((MEASURED / "heads-misses.json").read_text(encoding="utf-8"))
    assert "MiniLM" in every
    for name, missed in every.items():
        assert np.shape(missed["laws"]["annealed"]) == (stored[name]["judged"], stored[name]["heads"])
        for part, found in scripts[1].errors_of(missed).items():
            assert found == stored[name][part], part


def said(found: dict[str, float]) -> str:
    return f"{found['value']:.2f} ± {found['error']:.2f}"


def test_the_pages_agree_with_the_stored_numbers(scripts: Any, stored: dict[str, Any]) -> None:
    names = scripts[1]
    encoder, causal = stored["MiniLM"], stored["causal, seed 0"]
    assert (encoder["heads"], encoder["fitted"], encoder["judged"]) == (72, 12, 12)
    assert (causal["fitted"], causal["judged"], causal["steps"]) == (8, 8, 150)
    results, claims = page("docs/explanation/further-results.md"), page("docs/claims.md")
    other = encoder["spectrum"]["other texts"]
    assert f"{causal['loss']:.2f} nats a token" in results
    for text in (results, claims):
        assert said(encoder["laws"][names.OWN]) in text
        assert said(other[names.SPECTRUM]) in text
        assert said(other[names.SINK]) in text
    constants = [each["value"] for name, each in encoder["laws"].items() if name.startswith("annealed times")]
    for text, numbers in {
        "misses 0.33, but it is fitted": constants,
        "independent isotropic keys are 1.97 off": [other["independent keys"]["value"]],
    }.items():
        assert text in results
        decimals = re.findall(r"\d+\.\d\d", text)
        assert decimals == [f"{number:.2f}" for number in numbers], text
    laws, keys = (claims.split(f"### {name} ")[1].split(" ### ")[0] for name in ("A13", "A14"))
    assert f"{encoder['laws']['log n']['value']:.2f}" in laws
    assert f"{other[names.MEASURED]['value']:.2f}" in keys
    for law in ("annealed", "log n", "unchanged"):
        assert encoder["laws"][names.OWN]["value"] < encoder["laws"][law]["value"]
    for formula in ("independent keys", names.VARIANCE, names.SPECTRUM, names.SINK):
        assert other[names.MEASURED]["value"] < other[formula]["value"]
    longer = encoder["spectrum"]["other texts, 512 for 64 tokens"]
    assert longer[names.SINK]["value"] < longer[names.MEASURED]["value"]
    level = causal["own law less"]["annealed"]
    assert level["low"] < 0 < level["high"]
    gained = encoder["spectrum less"]
    plain = f"{names.SPECTRUM} less {names.VARIANCE}"
    assert f"gain {-gained['other texts'][plain]['value']:.2f} at the same length" in results
    assert f"lose {gained['other texts, 512 for 64 tokens'][plain]['value']:.2f} where rows" in results
    assert -0.01 < gained["other texts"][plain]["high"] < 0
    apart = f"{names.SINK} less {names.SPECTRUM}"
    assert gained["other texts"][apart]["high"] < 0
    assert gained["other texts, other half of the tokens"][apart]["high"] > 0


def test_the_other_encoders_and_the_power_of_each_head(scripts: Any, stored: dict[str, Any]) -> None:
    names, results = scripts[1], page("docs/explanation/further-results.md")
    reactions = [stored[f"reaction {each}"] for each in ("ALBERT", "BERT")]
    encoders = [stored["MiniLM"], *reactions]
    for model in reactions:
        assert model["masked_accuracy"] > 0.75  # it reads these texts
        assert model["own law less"]["log n"]["low"] < 0 < model["own law less"]["log n"]["high"]
        apart = f"{names.SINK} less {names.SPECTRUM}"
        assert model["spectrum less"]["other texts"][apart]["high"] > -0.02
    ranges = ["{:.2f} to {:.2f}".format(*model["powers"]["measured"][1:4:2]) for model in encoders]
    assert (
        "Half of the heads want {} in MiniLM, {} in the ALBERT and {} in the BERT".format(*ranges) in results
    )
    misses = [f"{model['laws'][names.POWER]['value']:.2f}" for model in encoders]
    assert "misses {}, {} and {} nats, about what".format(*misses) in results
    for model in encoders:
        assert model["laws"]["root of log n"]["value"] > model["laws"]["log n"]["value"]
    known = [model["powers"]["order of predicted"] > 0.5 for model in encoders]
    assert known == [True, False, True]
    random_keys = np.log(at.theory.invariant_beta(512, n0=64, head_dim=32)) / np.log(np.log(512) / np.log(64))
    assert f"Random keys of 32 dimensions want {random_keys:.2f} from 64 to 512" in results


def test_powers_of_drawn_heads_follow_from_their_variance(scripts: Any) -> None:
    """Keys of many dimensions have normal scores, of which the first order of theory is near."""
    rng = np.random.default_rng(1)
    query, key = rng.standard_normal((2, 8, 2, 256, 128)).astype(np.float32)
    query *= np.array([0.5, 1.0], np.float32)[:, None, None]
    found = scripts[1].powers(scripts[1].Heads("drawn", query, key, False, 64, (64, 128), {}))
    np.testing.assert_allclose(found["measured"], found["predicted"], rtol=0.1)
    nearer = 0.5 * np.log1p(2 * np.log(2) / np.array([0.25, 1.0])) / np.log(np.log(128) / np.log(64))
    np.testing.assert_allclose(found["fitted"], nearer, rtol=0.15)
    assert found["measured"][0] > 1.5 * found["measured"][1]


def test_texts_that_share_a_run_are_not_chosen_twice(scripts: Any) -> None:
    texts = [("first", list(range(100))), ("short", [7] * 50), ("alike", [*range(200, 230), *range(40, 130)])]
    texts.append(("other", list(range(300, 400))))
    found = scripts[0].choose(iter(texts), 90, 2, set())
    assert [(name, len(tokens)) for name, tokens in found] == [("first", 90), ("other", 90)]
    with pytest.raises(SystemExit, match="only 2 of 3 texts"):
        scripts[0].choose(iter(texts), 90, 3, set())


def test_files_and_docstrings(scripts: Any, tmp_path: Path) -> None:
    for name in ("b.py", "tests/c.py", "a/d.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'"""Of {name}."""\n\n\ndef f():\n    """Inner."""\n')
    found = dict(scripts[0].python_files(tmp_path))
    assert set(found) == {"b.py", "a/d.py"}
    assert scripts[0].docstrings(found["b.py"]) == "Of b.py.\n\nInner."
    assert scripts[0].docstrings("print 'no Python of today'") == ""


def normal_heads(scripts: Any, *, is_causal: bool) -> Any:
    """Heads of queries and keys that are what the spectrum assumes, of different sharpness."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 6, 3, 256, 16)).astype(np.float32)
    query *= np.array([0.4, 0.7, 1.0], np.float32)[:, None, None]
    return scripts[1].Heads("drawn", query, key, is_causal, 64, (64, 128), {})


@pytest.mark.parametrize("is_causal", [False, True])
def test_rows_agree_with_attention(scripts: Any, is_causal: bool) -> None:
    heads = normal_heads(scripts, is_causal=is_causal)
    rows = scripts[1].rows_of(heads, 0, 64)
    every = at.attention_entropy(heads.query[..., :64, :], heads.key[..., :64, :], is_causal=is_causal)
    mine = every[..., 56:] if is_causal else every
    np.testing.assert_allclose(rows.entropy(), mine.mean(-1), rtol=1e-5)
    assert rows.n == (np.arange(57, 65).mean() if is_causal else 64)
    later = scripts[1].rows_of(heads, 128, 256)
    weights = at.attention_weights(heads.query, heads.key, is_causal=is_causal)
    seen = np.concatenate([weights[..., :1], weights[..., 128:]], axis=-1)[
        ..., 240 if is_causal else 128 :, :
    ]
    seen /= seen.sum(-1, keepdims=True)
    first = np.concatenate(list(seen[..., 0]), axis=-1)
    np.testing.assert_allclose(later.first(), first, rtol=1e-4)
    last = rows._replace(query=rows.query[:1, :1, -2:], key=rows.key[:1, :1])  # of one head, two rows
    scores = heads.query[0, 0, 62:64] @ heads.key[0, 0, :64].T / 4
    seen = [scores[0, : 63 if is_causal else 64], scores[1]]
    np.testing.assert_allclose(last.cumulants()[0, 0], np.mean([each.var() for each in seen]), rtol=1e-4)


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_holds_by_construction_is_found(scripts: Any, is_causal: bool) -> None:
    """The spectrum of normal queries and keys predicts the entropy, and a head's variance its law."""
    heads = normal_heads(scripts, is_causal=is_causal)
    found = scripts[1].errors_of(scripts[1].misses(heads))
    assert scripts[1].sizes(heads) == {"heads": 3, "fitted": 3, "judged": 3}
    for each in found["spectrum"].values():
        assert each[scripts[1].SPECTRUM]["value"] < 0.12 < 0.2 < each["independent keys"]["value"]
    assert found["laws"][scripts[1].OWN]["value"] < 0.3 < found["laws"][scripts[1].LOG]["value"]
    assert found["own law less"][scripts[1].LOG]["high"] < 0
