# SPDX-License-Identifier: BSD-3-Clause
"""The log of a model's attention: by names of modules, of real rows, as one array where layers agree."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.tensors.recording import by_name, calls, readings  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

ENCODER, DECODER = "model.encoder.layers.{}.self_attn", "model.decoder.layers.{}.self_attn"
CROSS = "model.decoder.layers.{}.encoder_attn"


def call(name: str, n_queries: int = 5, n_keys: int = 5, heads: int = 2, **more: Any) -> calls.SeenCall:
    """A call of two texts with random queries and keys that follow from the name."""
    place, _, number = name.partition("#")
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    query = torch.randn(2, heads, n_queries, 4, generator=generator)
    key = torch.randn(2, heads, n_keys, 4, generator=generator)
    kind = "cross" if "encoder_attn" in name else "self"
    product = readings.Product(query, key, {"scale": 0.5})
    given = {"way": "scaled_dot_product_attention", "measured": product, "product": product}
    return calls.SeenCall(
        calls.Place(place, int(number or 0)), kind=kind, key_of=tuple(range(heads)), **{**given, **more}
    )


def written_out(scores: Any) -> dict[str, Any]:
    """Fields of a call whose scores are not a known product."""
    return {"way": "softmax", "measured": readings.of_scores(scores, None), "product": None}


def weights_of(each: calls.SeenCall) -> np.ndarray:
    found: np.ndarray = (0.5 * each.measured.query @ each.measured.key.mT).double().softmax(-1).numpy()
    return found


def entropy_of(each: calls.SeenCall) -> np.ndarray:
    p = weights_of(each)
    found: np.ndarray = -(p * np.log(p)).sum(-1)
    return found


def encoder_decoder(**more: Any) -> list[calls.SeenCall]:
    """Calls of two layers each: 7 rows of the encoder, 5 of the decoder."""
    found = [call(ENCODER.format(layer), 7, 7, **more) for layer in range(2)]
    for layer in range(2):
        found += [call(DECODER.format(layer), **more), call(CROSS.format(layer), 5, 7, **more)]
    return found


def log_of(*passes: list[calls.SeenCall], laws: Any = (), statistics: Any = ("entropy",)) -> Any:
    log = at.torch.AttentionLog(statistics, {law: at.laws.get(law) for law in laws})
    for seen in passes:
        log.begin_pass()
        for each in seen:
            log.add(each)
    return log


def test_every_call_has_a_name_and_a_record() -> None:
    log = log_of(encoder_decoder())
    assert log.modules == (
        *(ENCODER.format(layer) for layer in range(2)),
        *(name.format(layer) for layer in range(2) for name in (DECODER, CROSS)),
    )
    assert [*log.kinds.values()] == ["self", "self", "self", "cross", "self", "cross"]
    assert {each.tower for name, each in log.calls.items() if "encoder.l" in name} == {"model.encoder"}
    assert {each.tower for name, each in log.calls.items() if "decoder.l" in name} == {"model.decoder"}
    assert log.calls[log.modules[0]][:4] == ("self", "scaled_dot_product_attention", 2, 2)
    for each in encoder_decoder():
        np.testing.assert_allclose(log["entropy"][str(each.place)], entropy_of(each), atol=1e-6)
        np.testing.assert_array_equal(log.rows[str(each.place)], True)


def test_layers_of_other_shapes_have_one_mean_and_no_one_array() -> None:
    log = log_of(encoder_decoder())
    expected = [entropy_of(each).mean(axis=(0, 2)) for each in encoder_decoder()]
    np.testing.assert_allclose(log.mean_entropy(), expected, atol=1e-6)
    for whole in (np.asarray, lambda rows: rows[0], lambda rows: rows.shape, np.exp):
        with pytest.raises(ValueError, match=r"differ in shape: \(2, 2, 7\) of .* and 1 more; .*log\.select"):
            whole(log["entropy"])
    narrow = log_of([*encoder_decoder(), call("model.decoder.pool", heads=3)])
    message = r"differ in their heads: 2 heads of .* 3 heads of model.decoder.pool"
    with pytest.raises(ValueError, match=message):
        narrow.mean_entropy()
    assert narrow.select(modules="*pool").mean_entropy().shape == (1, 3)


def test_a_part_of_a_log() -> None:
    log = log_of(encoder_decoder(), encoder_decoder())
    cross = log.select("cross")
    assert len(cross) == 2
    assert cross.entropy.shape == (2, 2, 2, 5)
    assert cross.layers == (0, 1)
    np.testing.assert_array_equal(cross["entropy"][0], log["entropy"][CROSS.format(0)])
    assert {each.tower for each in cross.calls.values()} == {"model.decoder"}  # as in the whole
    both = log.select(modules=["*encoder.layers*", CROSS.format(1)])
    assert both.modules == (ENCODER.format(0), ENCODER.format(1), CROSS.format(1))
    with pytest.raises(ValueError, match=r"kind must be one of 'self', 'cross', got 'both'"):
        log.select("both")
    message = r"kind='cross' and modules='\*encoder.layers\*' must leave a call, got"
    with pytest.raises(ValueError, match=message):
        log.select("cross", "*encoder.layers*")
    with pytest.raises(TypeError, match="modules must be a pattern of names or several, got "):
        log.select(modules=[3])


def test_padding_is_not_in_means() -> None:
    real = torch.tensor([[True] * 5, [False, False, True, True, True]])
    log = log_of([call("layers.0", real=real), call("layers.1", real=real)], laws=["log_n(base=8)"])
    for layer, each in enumerate((call("layers.0"), call("layers.1"))):
        rows = np.concatenate([entropy_of(each)[0], entropy_of(each)[1][:, 2:]], axis=-1)
        np.testing.assert_allclose(log.mean_entropy()[layer], rows.mean(-1), atol=1e-6)
        assert abs(entropy_of(each).mean((0, 2)) - rows.mean(-1)).min() > 1e-3  # so a padding row is seen
        query, key = (x.numpy() for x in each.measured[:2])
        under = at.attention_entropy(query, key, scale="log_n(base=8)")
        rows = np.concatenate([under[0], under[1][:, 2:]], axis=-1)
        np.testing.assert_allclose(log.mean_entropy("log_n(base=8)")[layer], rows.mean(-1), atol=1e-6)
    assert np.array_equal(log.rows, [real, real])
    assert "left out of the means as padding: 2 of 10 rows" in repr(log)
    nothing = log_of([call("layers.0", real=torch.zeros(2, 5, dtype=torch.bool))])
    assert np.isnan(nothing.mean_entropy()).all()


def test_a_pass_begins_where_the_model_is_called() -> None:
    log = log_of([call("layers.0"), call("layers.0#1"), call("layers.0#2")], [], [call("layers.0")])
    assert len(log) == 2
    assert [tuple(each) for each in log.passes] == [("layers.0", "layers.0#1", "layers.0#2"), ("layers.0",)]
    with pytest.raises(ValueError, match=r"the call of layers.0 must be recorded once in a pass"):
        log.add(call("layers.0"))


def test_a_call_that_is_refused_leaves_no_pass() -> None:
    log = at.torch.AttentionLog(("entropy",), {"log_n": at.laws.get("log_n")})
    scores = torch.randn(2, 2, 5, 5)
    with pytest.raises(NotImplementedError, match=r"layers.0 writes its softmax out"):
        log.add(call("layers.0", **written_out(scores)))
    assert len(log) == 0


def test_several_ways_of_measuring_are_listed() -> None:
    scores = torch.randn(2, 2, 5, 5)
    other = call("layers.1", **written_out(scores))
    log = log_of([call("layers.0"), other])
    assert log.ways == {"layers.0": "scaled_dot_product_attention", "layers.1": "softmax"}
    assert "measured at: scaled_dot_product_attention in 1 module, softmax in 1 module" in repr(log)
    assert "measured at" not in repr(log.select(modules="layers.0"))
    p = scores.double().softmax(-1).numpy()
    np.testing.assert_allclose(log["entropy"]["layers.1"], -(p * np.log(p)).sum(-1), atol=1e-6)


def test_old_and_wrong_keys_are_answered_with_the_new_ones() -> None:
    log = log_of([call("layers.3.attn"), call("layers.7.attn")])
    assert log.layers == (3, 7)
    for named in (log.kinds, log.key_heads, log.calls, log.passes[0], log.ways):
        message = r"7: layers are keyed by the name of their module, here 'layers.7.attn'"
        with pytest.raises(KeyError, match=message):
            _ = named[7]
    with pytest.raises(KeyError, match=r"'layers.7.atn' was recorded; there is 'layers.7.attn'"):
        _ = log["entropy"]["layers.7.atn"]
    with pytest.raises(KeyError, match="'argmax' was not recorded; there is entropy"):
        _ = log["argmax"]


def test_rows_are_an_array_where_layers_agree() -> None:
    log = log_of([call("layers.0"), call("layers.1")])
    whole = np.stack([entropy_of(call("layers.0")), entropy_of(call("layers.1"))])
    rows = log["entropy"]
    assert rows.shape == whole.shape
    for found, expected in (
        (rows, whole),
        (rows[1], whole[1]),
        (rows[:, 0, 1], whole[:, 0, 1]),
        (rows - 1, whole - 1),
        (2 * rows, 2 * whole),
        (np.exp(rows), np.exp(whole)),
        (rows.mean(axis=(1, 3)), whole.mean(axis=(1, 3))),
        (np.asarray(rows, np.float64), whole),
        (log.effective_keys, np.exp(whole)),
    ):
        np.testing.assert_allclose(found, expected, atol=2e-6, rtol=2e-6)
    assert list(rows) == ["layers.0", "layers.1"]
    assert "layers.1: 2 x 2 x 5" in repr(rows)


def test_the_map_of_layers_that_differ_in_their_heads() -> None:
    pytest.importorskip("matplotlib")
    ax = log_of([call("text.layers.0", heads=3), call("vision.layers.0")]).plot()
    drawn = np.ma.filled(ax.get_images()[0].get_array(), np.nan)
    assert np.isnan(drawn).tolist() == [[False, False, False], [False, False, True]]


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["h.0.attn", "h.1.attn"], (0, 1)),
        (["model.layers.3.attn", "model.layers.7.attn"], (3, 7)),
        (["block.0.layer.0.SelfAttention", "block.1.layer.0.SelfAttention"], (0, 1)),
        (["stage2.blocks.0.attn", "stage2.blocks.1.attn"], (0, 1)),
        (["groups.0.layers.0.attention", "groups.0.layers.0.attention#1"], (0, 1)),
        (["encoder.0.attn", "decoder.0.attn"], (0, 1)),
        (["decoder.1.attn", "head.attn"], (0, 1)),
        (["attention"], (0,)),
    ],
)
def test_numbers_of_layers(names: list[str], numbers: tuple[int, ...]) -> None:
    assert by_name.layer_numbers(names) == numbers


@pytest.mark.parametrize(
    ("names", "towers"),
    [
        (["h.0.attn", "h.1.attn"], ["", ""]),
        (["encoder.layer.0.attention.self"], [""]),
        (["layers.0.attn", "layers.0.attn#1"], ["", ""]),
        (["layers.0.self_attn", "layers.0.encoder_attn"], ["", ""]),
        (["self_attn", "encoder_attn"], ["", ""]),
        (["model.encoder.layers.0.attn", "model.decoder.layers.0.attn"], ["model.encoder", "model.decoder"]),
        (["a.encoder.layers.0.attn", "a.head.attention"], ["a.encoder", "a.head"]),
        (["down.0.attn", "mid_block.attn", "up.1.attn"], ["down", "mid_block", "up"]),
    ],
)
def test_towers(names: list[str], towers: list[str]) -> None:
    assert [*by_name.towers_of(names).values()] == towers
