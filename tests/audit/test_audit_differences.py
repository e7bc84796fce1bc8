# SPDX-License-Identifier: BSD-3-Clause
"""Differences between two plans: the table, the data frame, and the keys that they come from."""

from __future__ import annotations

import attnscale as at
import pytest
from audit_configs import GEMMA2, LLAMA, MINISTRAL, PHI4_MINI, QWEN25, YARN, resolve, tempered, yarn


def test_equal_plans_have_no_differences() -> None:
    plan = resolve(GEMMA2)
    differences = plan.differences(resolve(dict(GEMMA2)))
    assert differences == ()
    assert not differences
    assert repr(differences) == "no difference"
    assert isinstance(differences, at.audit.Differences)


def test_a_revision_of_a_config() -> None:
    """Gemma 2 9B was published with 224 in query_pre_attn_scalar and corrected to 256."""
    first, second = (resolve({**GEMMA2, "query_pre_attn_scalar": scalar}) for scalar in (224, 256))
    differences = first.differences(second)
    assert differences == at.audit.compare(first, second)
    (only,) = differences
    assert (only.what, only.first_position, only.layers) == ("rotated", 0, tuple(range(46)))
    assert only.ratio == pytest.approx((256 / 224) ** 0.5, rel=1e-12)
    assert only.keys_here == ("query_pre_attn_scalar = 224",)
    assert only.keys_there == ("query_pre_attn_scalar = 256",)
    text = differences.table()
    assert text.startswith("1 difference\n")
    assert "from query_pre_attn_scalar = 224 here, query_pre_attn_scalar = 256 there" in text


def test_the_config_of_training_against_that_of_serving() -> None:
    """The served config has YaRN, for longer texts than the model was trained on."""
    trained = resolve({**QWEN25, "rope_scaling": None})
    only, angles = trained.differences(resolve(QWEN25))
    assert (only.what, angles.what) == ("rotated", "angles")
    assert only.ratio == pytest.approx(yarn(4) ** -2, rel=1e-12)
    assert only.keys_here == ()
    assert "rope_scaling" in only.keys_there[0]
    assert only.source.startswith("from no key here, ")


def test_each_thing_that_is_not_a_multiplier() -> None:
    plan = resolve(GEMMA2)
    layer = plan[3]
    for change, what, here, there in (
        ({"softcap": None, "softcap_key": ""}, "softcap", 50.0, None),
        ({"sink": True}, "sink", False, True),
        ({"qk_norm": "after rotation"}, "norm", "none", "after rotation"),
        ({"kind": "chunked_attention"}, "kind", layer.kind, "chunked_attention"),
        ({"rotated": 0}, "channels", "128 of 128 rotated", "0 of 128 rotated"),
        ({"refusal": "a weight"}, "refusal", "has a multiplier", "a weight"),
    ):
        changed = type(layer)(**{**vars(layer), **change})
        other = plan.with_layers((*plan.layers[:3], changed, *plan.layers[4:]))
        (only,) = plan.differences(other)
        assert (only.layers, only.what, only.here, only.there) == ((3,), what, here, there)
        assert only.ratio is None
        assert only.first_position is None
        assert str(only).startswith(f"layers 3, {what}: ")


def test_numbers_of_rotated_channels() -> None:
    """Both plans have rotated and unrotated channels with the same multipliers; their numbers differ."""
    ropes = ({"rope_type": "default", "partial_rotary_factor": share} for share in (0.5, 0.25))
    half, quarter = (resolve({**LLAMA, "model_type": "glm", "rope_parameters": rope}) for rope in ropes)
    only, angles = half.differences(quarter)
    assert (only.what, only.here, only.there) == ("channels", "64 of 128 rotated", "32 of 128 rotated")
    assert angles.keys_here[-1] == "rope_parameters.partial_rotary_factor = 0.5 (64 of 128 channels turn)"


def test_kinds_of_layers_do_not_split_those_that_are_alike() -> None:
    """Sliding and full layers of Gemma 2 differ from another scale in the same way: one line."""
    kinds = {layer.kind for layer in resolve(GEMMA2)}
    assert kinds == {"sliding_attention", "full_attention"}
    assert len(resolve(GEMMA2).differences(resolve({**GEMMA2, "query_pre_attn_scalar": 128}))) == 1


def test_as_a_data_frame_and_in_a_notebook() -> None:
    pandas = pytest.importorskip("pandas")
    differences = resolve(PHI4_MINI).differences(resolve(MINISTRAL))
    frame = differences.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["what"]) == [each.what for each in differences]
    assert list(frame["here"]) == [each.here for each in differences]
    assert "<table>" in differences._repr_html_()
    assert len(resolve(LLAMA).differences(resolve(LLAMA)).to_pandas()) == 0


def test_compare_finds_the_first_position() -> None:
    plain = resolve({**MINISTRAL, "rope_parameters": {"rope_type": "default"}})
    other = resolve(tempered(100_000))
    (difference,) = at.audit.compare(other, plain)
    assert (difference.layers, difference.what) == (tuple(range(34)), "rotated")
    assert difference.first_position == 100_000
    assert difference.here / difference.there == pytest.approx(1.0693147180559945)
    assert at.audit.compare(other, plain, up_to=100_000) == other.differences(plain, up_to=100_000) == ()
    assert "differs from i = 100000 on" in str(difference)
    (layers,) = at.audit.compare(plain, resolve({**LLAMA, "rope_theta": 1e6}))  # the base of Ministral 3
    assert (layers.what, layers.here, layers.there) == ("layers", 34, 4)
    found = at.audit.compare(resolve({**LLAMA, "rope_scaling": YARN}), plain)
    assert [each.what for each in found] == ["layers", "rotated", "angles"]
    assert found[1].layers == (0, 1, 2, 3)
