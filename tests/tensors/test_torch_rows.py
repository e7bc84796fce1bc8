# SPDX-License-Identifier: BSD-3-Clause
"""Which rows of a recorded call are of a text, what they attend to, and where their texts begin."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fixed_seed"), pytest.mark.filterwarnings("default")]

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 99,
}
IDS = (torch.arange(24) * 7 % 90 + 5).reshape(2, 12)
MASK = torch.ones_like(IDS)
MASK[1, 8:] = 0
DECODED = torch.ones(2, 12, dtype=torch.long)
DECODED[0, 5:] = 0


def bart() -> Any:
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIDE.items()}
    return transformers.BartModel(transformers.BartConfig(vocab_size=99, d_model=32, **sides))


SIDE = {"layers": 2, "attention_heads": 4, "ffn_dim": 32}
T5 = {"d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "d_ff": 32, "vocab_size": 99}


def recorded(model: nn.Module, *args: Any, **inputs: Any) -> Any:
    with torch.no_grad(), at.torch.record(model.eval()) as log:
        model(*args, **inputs)
    return log


@pytest.mark.parametrize("given", ["both", "encoder", "decoder", "none"])
@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_an_encoder_and_a_decoder_of_one_length(kind: str, given: str) -> None:
    """The rows are those of the side that asks, whose mask may not be there."""
    model = bart() if kind == "bart" else transformers.T5Model(transformers.T5Config(**T5))
    masks = {"attention_mask": MASK, "decoder_attention_mask": DECODED}
    if given in ("encoder", "none"):
        del masks["decoder_attention_mask"]
    if given in ("decoder", "none"):
        del masks["attention_mask"]
    log = recorded(model, input_ids=IDS, decoder_input_ids=IDS, **masks)
    assert len(log.modules) == 6
    for name in log.modules:
        of_decoder = name.startswith("decoder")
        mask = masks.get("decoder_attention_mask" if of_decoder else "attention_mask", torch.ones_like(IDS))
        np.testing.assert_array_equal(log.rows[name], mask.bool().numpy(), err_msg=name)
        crosses = "encoder_attn" in name or "EncDecAttention" in name
        assert log.kinds[name] == ("cross" if crosses else "self")
        want = np.moveaxis(log["entropy"][name], 1, -1)[mask.bool().numpy()].astype(float).mean(0)
        np.testing.assert_allclose(log.select(modules=name).mean_entropy()[0], want, rtol=1e-12)
    towers = {each.tower for each in log.calls.values()}
    assert towers == {"encoder", "decoder"}


def test_each_step_of_generation_is_a_pass_and_crosses_to_what_was_kept() -> None:
    model = transformers.BartForConditionalGeneration(bart().config).eval()
    with torch.no_grad(), at.torch.record(model) as log:
        model.generate(input_ids=IDS, attention_mask=MASK, max_new_tokens=3, min_new_tokens=3, num_beams=1)
    assert len(log) == 4  # the encoder alone, then three tokens
    assert all(name.startswith("model.encoder") for name in log.passes[0])
    assert len(log.modules) == 4
    assert [log.kinds[name] for name in log.modules] == ["self", "cross"] * 2
    assert {each.shape for each in log["entropy"].values()} == {(2, 4, 1)}
    assert log.rows.all()


def test_the_rows_of_one_tower_are_not_those_of_another() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    text = {**sizes, "vocab_size": 99, "eos_token_id": 2, "max_position_embeddings": 16}
    image = {**sizes, "image_size": 33, "patch_size": 11}  # nine patches and a token for the class
    config = transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=16)
    pixels = torch.randn(2, 3, 33, 33)
    ids, mask = IDS[:, :10], MASK[:, :10]
    log = recorded(transformers.CLIPModel(config), input_ids=ids, attention_mask=mask, pixel_values=pixels)
    of_text, of_image = (log.select(modules=f"{tower}_model*").rows[0] for tower in ("text", "vision"))
    np.testing.assert_array_equal(of_text, mask.bool().numpy())
    assert of_image.shape == (2, 10)
    assert of_image.all()
    assert len({each.tower for each in log.calls.values()}) == 2


@pytest.mark.parametrize("trained", [True, False])
def test_pytorchs_own_transformer(trained: bool) -> None:
    model = nn.Transformer(32, 4, 1, 1, 32, 0.0, batch_first=True).train(trained)
    source, target = torch.randn(2, 12, 32), torch.randn(2, 12, 32)
    padding = {"src_key_padding_mask": MASK == 0, "tgt_key_padding_mask": DECODED == 0}
    with torch.no_grad(), at.torch.record(model) as log:
        model(source, target, memory_key_padding_mask=MASK == 0, **padding)
    masks = {"encoder.layers.0.self_attn": MASK} | dict.fromkeys(
        ("decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"), DECODED
    )
    for name, mask in masks.items():
        np.testing.assert_array_equal(log.rows[name], mask.bool().numpy(), err_msg=name)
    assert [*log.kinds.values()] == ["self", "self", "cross"]


def test_a_module_by_itself_is_given_two_texts_or_one() -> None:
    model = nn.MultiheadAttention(32, 4, batch_first=True)
    x, y = torch.randn(2, 12, 32), torch.randn(2, 12, 32)
    assert recorded(model, x, x, x, need_weights=False).kinds[""] == "self"
    assert recorded(model, x, y, y).kinds[""] == "cross"
    log = recorded(model, x, x, x, key_padding_mask=MASK == 0)
    np.testing.assert_array_equal(log.rows[""], MASK.bool().numpy())


def test_an_image_of_as_many_rows_as_the_text_beside_it_attends_to_has_no_padding() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    text = {**sizes, "vocab_size": 99, "max_position_embeddings": 16, "encoder_hidden_size": 32}
    image = {**sizes, "image_size": 33, "patch_size": 11}
    config = transformers.BlipConfig(text_config=text, vision_config=image, projection_dim=16)
    model = transformers.BlipForConditionalGeneration(config)
    ids, mask = IDS[:, :10], MASK[:, :10]
    log = recorded(model, input_ids=ids, attention_mask=mask, pixel_values=torch.randn(2, 3, 33, 33))
    assert [*log.kinds.values()] == ["self", "self", "cross"]
    for name in log.modules:
        want = torch.ones_like(mask) if name.startswith("vision") else mask
        np.testing.assert_array_equal(log.rows[name], want.bool().numpy(), err_msg=name)


@pytest.mark.parametrize("memory", ["whole", "padded"])
@pytest.mark.parametrize("own", ["whole", "padded", "none"])
def test_a_decoder_that_is_given_what_it_crosses_to(own: str, memory: str) -> None:
    config = transformers.BertConfig(**SMALL, is_decoder=True, add_cross_attention=True)
    mask = {"whole": torch.ones_like(IDS), "padded": DECODED, "none": None}[own]
    of_memory = MASK if memory == "padded" else torch.ones_like(MASK)
    log = recorded(
        transformers.BertModel(config),
        input_ids=IDS,
        attention_mask=mask,
        encoder_hidden_states=torch.randn(2, 12, 32),
        encoder_attention_mask=of_memory,
    )
    assert [*log.kinds.values()] == ["self", "cross"] * 2
    want = torch.ones_like(IDS) if mask is None else mask
    for name in log.modules:
        np.testing.assert_array_equal(log.rows[name], want.bool().numpy(), err_msg=name)


def test_queries_that_are_parameters_attend_to_themselves_and_to_an_image() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    config = transformers.Blip2QFormerConfig(**sizes, encoder_hidden_size=24)
    model = transformers.Blip2QFormerModel(config)
    log = recorded(model, query_embeds=torch.randn(2, 10, 32), encoder_hidden_states=torch.randn(2, 10, 24))
    crosses = ["cross" if "crossattention" in name else "self" for name in log.modules]
    assert [*log.kinds.values()] == crosses
    assert {*crosses} == {"self", "cross"}


def test_sums_with_positions_are_one_text_and_values_say_nothing() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, x: Any, y: Any, positions: Any) -> Any:
            return self.attention(x + positions, y + positions, y)[0]

    x, y, positions = torch.randn(3, 2, 12, 32)
    assert recorded(Positions(), x, x, positions).kinds["attention"] == "self"
    assert recorded(Positions(), x, y, positions).kinds["attention"] == "cross"


def test_steps_of_generation_behind_padding() -> None:
    """One query of each head, whose keys are of the padding and of the text, as for the text alone."""
    sizes = {**SMALL, "num_hidden_layers": 1, "num_key_value_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).double().eval()
    mask = torch.ones_like(IDS[:, :8])
    mask[0, :3] = 0
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    laws = ["log_n", "ssmax", "llama4_temperature(floor=4)", "annealed"]
    with torch.no_grad():
        with at.torch.record(model, laws=laws) as log:
            model.generate(input_ids=IDS[:, :8], attention_mask=mask, **options)
        with at.torch.record(model, laws=laws) as alone:
            model.generate(input_ids=IDS[:1, 3:8], **options)
    name = "model.layers.0.self_attn"
    np.testing.assert_array_equal(log.passes[0][name]["entropy"].shape, (2, 4, 8))
    for whole, text in zip(log.passes[1:], alone.passes[1:], strict=True):
        assert whole[name]["entropy"].shape == (2, 4, 1)
        for each in ("entropy", *(f"entropy under {law}" for law in log.laws)):
            np.testing.assert_allclose(whole[name][each][:1], text[name][each], atol=1e-9, err_msg=each)


@pytest.mark.parametrize("how", ["left", "packed"])
def test_laws_count_from_the_beginning_of_each_text(how: str) -> None:
    """Behind padding and behind another text, as for the text alone."""
    model = transformers.LlamaModel(transformers.LlamaConfig(**SMALL, num_key_value_heads=2)).double().eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.3)
    laws = ["log_n", "annealed", "natural_log_n", "ssmax", "llama4_temperature(floor=4)", "lssa"]
    laws += ["ministral_temperature(length=4)", "adaptive_temperature", "norm_softmax", "standard"]
    text, other = IDS[:1, :8], IDS[1:, :4]
    with torch.no_grad():
        with at.torch.record(model, laws=laws) as alone:
            model(input_ids=text)
        with at.torch.record(model, laws=laws) as log:
            if how == "left":
                mask = torch.ones(1, 12, dtype=torch.long)
                mask[0, :4] = 0
                positions = torch.tensor([[1, 1, 1, 1, *range(8)]])
                whole = {"attention_mask": mask, "position_ids": positions}
            else:
                whole = {"position_ids": torch.tensor([[*range(4), *range(8)]])}
            model(input_ids=torch.cat([other, text], 1), use_cache=False, **whole)
    for name in ("entropy", *(f"entropy under {law}" for law in log.laws)):
        np.testing.assert_allclose(log[name][..., 4:], alone[name], rtol=0, atol=1e-9, err_msg=name)
    if how == "left":
        assert log.rows[0].tolist() == [[False] * 4 + [True] * 8]
        np.testing.assert_allclose(log.mean_entropy(), alone.mean_entropy(), atol=1e-9)
