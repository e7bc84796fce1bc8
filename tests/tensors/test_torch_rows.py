# SPDX-License-Identifier: BSD-3-Clause
"""Rows of recorded calls: which are real, what they attend to, where their texts begin."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from tests.tensors import recording  # noqa: E402

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
    """Rows are those of the side of the queries, whose mask may be missing."""
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


def test_each_step_of_generation_is_a_pass_with_cross_attention_to_a_cache() -> None:
    model = transformers.BartForConditionalGeneration(bart().config).eval()
    with torch.no_grad(), at.torch.record(model) as log:
        model.generate(input_ids=IDS, attention_mask=MASK, max_new_tokens=3, min_new_tokens=3, num_beams=1)
    assert len(log) == 4  # the encoder alone, then three tokens
    assert all(name.startswith("model.encoder") for name in log.passes[0])
    assert len(log.modules) == 4
    assert [log.kinds[name] for name in log.modules] == ["self", "cross"] * 2
    assert {each.shape for each in log["entropy"].values()} == {(2, 4, 1)}
    assert log.rows.all()


def test_rows_of_two_towers_are_told_apart() -> None:
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
def test_a_decoder_with_given_encoder_states(own: str, memory: str) -> None:
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


class Layer(nn.Module):
    """A layer of a decoder with a submodule for cross-attention."""

    class Crossing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, hidden_states: Any, key_value_states: Any, attention_mask: Any) -> Any:
            hidden = None if attention_mask is None else attention_mask == 0
            return self.attention(hidden_states, key_value_states, key_value_states, key_padding_mask=hidden)[
                0
            ]

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.crossing = nn.MultiheadAttention(32, 4, batch_first=True), self.Crossing()

    def forward(
        self, hidden_states: Any, attention_mask: Any, encoder_hidden_states: Any, encoder_attention_mask: Any
    ) -> Any:
        future = torch.ones(12, 12, dtype=torch.bool).triu(1)
        own = self.attention(hidden_states, hidden_states, hidden_states, attn_mask=future)[0]
        return self.crossing(own, encoder_hidden_states, encoder_attention_mask)


class OneText(nn.Module):
    """Queries of the model's own attend to a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.queries, self.layer = (
            nn.Embedding(99, 32),
            nn.Parameter(torch.randn(12, 32)),
            Layer(),
        )

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        memory = self.embed(input_ids)
        return self.layer(self.queries.expand_as(memory), None, memory, attention_mask)


class TwoTexts(nn.Module):
    """The layer gets masks under its own names."""

    class Renamed(Layer):
        def forward(self, rows: Any, hides: Any, encoder_rows: Any, encoder_hides: Any) -> Any:
            return super().forward(rows, hides, encoder_rows, encoder_hides)

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(99, 32), self.Renamed()

    def forward(
        self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, decoder_attention_mask: Any
    ) -> Any:
        rows, memory = self.embed(decoder_input_ids), self.embed(input_ids)
        return self.layer(rows, decoder_attention_mask, memory, attention_mask)


def test_the_mask_of_encoder_states_is_not_that_of_the_rows() -> None:
    x, memory, whole = torch.randn(2, 12, 32), torch.randn(2, 12, 32), torch.ones_like(IDS)
    for log, mask in (
        (recorded(Layer(), x, DECODED, memory, MASK), DECODED),
        (recorded(Layer(), x, DECODED, memory, None), DECODED),
        (recorded(OneText(), IDS, MASK), whole),
        (recorded(TwoTexts(), IDS, MASK, IDS, DECODED), DECODED),
        (recorded(TwoTexts(), IDS, MASK, IDS, None), whole),
    ):
        assert [*log.kinds.values()] == ["self", "cross"]
        for name in log.modules:
            np.testing.assert_array_equal(log.rows[name], mask.bool().numpy(), err_msg=name)


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
    """A query of each head with keys of padding and text agrees with the text alone."""
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


#: Parameters of laws that need some, or that a text of eight tokens would not reach.
PARAMETERS = {
    "constant": "value=1.5",
    "per_head": "values=[1,2,3,4]",
    "layer_index": "layer=3",
    "kappa": "kappa=0.5",
    "asentmax": "delta=0.5,beta=0.1,gamma=1.5",
    "selective_temperature": "strength=0.5",
    "mla_yarn": "factor=4,mscale_all_dim=1",
    "nope_temperature": "slope=0.1,train_length=4",
    "disentangled_scale": "terms=2",
    "retrieval": "gap=0.5",
    "llama4_temperature": "floor=4",
    **dict.fromkeys(("log_n_from_training", "qwen_log_n", "info_scale", "qk_norm_scale"), "train_length=4"),
    **dict.fromkeys(("grok_temperature", "ministral_temperature"), "length=4"),
}
OF_CHANNELS = ("latent_scale", "yarn", "longrope")  # not a scale of a row
#: Every law that is one scale for a row.
LAWS = [
    f"{name}({PARAMETERS[name]})" if name in PARAMETERS else name
    for name in at.laws.names()
    if name not in OF_CHANNELS
]
TEXT, OTHER = IDS[:1, :8], IDS[1:, :4]


def calls_of(model: nn.Module, *args: Any, **inputs: Any) -> list[Any]:
    return recording.watched(model, *args, **inputs)[0]


def sharp(model: nn.Module) -> Any:
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def same_under_every_law(found: Any, alone: Any, rows: slice) -> None:
    """Check that the entropies of the first text equal those of its own call."""
    for law in map(at.laws.get, LAWS):
        seen, want = found.entropy_under(law)[:1, :, rows], alone.entropy_under(law)
        torch.testing.assert_close(seen, want, rtol=0, atol=1e-9, msg=lambda text, law=law: f"{law}: {text}")


@pytest.mark.parametrize("how", ["left", "right", "packed"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager", at.torch.NAME])
def test_laws_count_in_each_text(implementation: str, how: str) -> None:
    """Rows beside padding or behind another text agree with the text alone."""
    # A single layer: eager rows of padding on the left are NaN in float64, which a second would read.
    sizes = {**SMALL, "num_hidden_layers": 1, "num_key_value_heads": 2}
    model = sharp(transformers.LlamaModel(transformers.LlamaConfig(**sizes)))
    at.torch.register()
    model.set_attn_implementation(implementation)
    padding, positions = torch.ones(1, 12, dtype=torch.long), torch.tensor([[*range(4), *range(8)]])
    padding[0, :4] = 0
    ids, rows, whole = torch.cat([OTHER, TEXT], 1), slice(4, 12), {"position_ids": positions}
    if how == "left":
        whole["attention_mask"] = padding
    elif how == "right":
        ids, rows, whole = ids.roll(-4, 1), slice(0, 8), {"attention_mask": padding.flip(1)}
    found, alone = calls_of(model, ids, use_cache=False, **whole), calls_of(model, TEXT)
    for one, other in zip(found, alone, strict=True):
        assert (one.real is None) == (how == "packed")
        torch.testing.assert_close(
            one.statistics(["entropy"])["entropy"][:, :, rows], other.statistics(["entropy"])["entropy"]
        )
        same_under_every_law(one, other, rows)


def test_laws_count_in_each_text_that_sees_all_of_itself() -> None:
    model = sharp(transformers.BertModel(transformers.BertConfig(**SMALL)))
    alone = calls_of(model, TEXT)
    mask = torch.ones(1, 12, dtype=torch.long)
    mask[0, 8:] = 0
    for one, other in zip(calls_of(model, torch.cat([TEXT, OTHER], 1), mask), alone, strict=True):
        same_under_every_law(one, other, slice(0, 8))


class Packed(nn.Module):
    """Attention of texts in one row, which are told apart by where each begins or by their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, hidden_states: Any, cu_seqlens: Any = None, seq_idx: Any = None) -> Any:
        q, k, v = self.project(hidden_states).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        if cu_seqlens is not None:
            seq_idx = torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1), cu_seqlens.diff())[None]
        if seq_idx is not None:
            seen = seen & (seq_idx[:, :, None] == seq_idx[:, None])[:, None]
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


@pytest.mark.parametrize(
    "told",
    [{"cu_seqlens": torch.tensor([0, 4, 12])}, {"seq_idx": torch.tensor([[5] * 4 + [2] * 8])}],
    ids=str,
)
def test_laws_count_in_each_text_that_lengths_or_numbers_tell_apart(told: dict[str, Any]) -> None:
    model, x = sharp(Packed()), torch.randn(1, 12, 32, dtype=torch.float64)
    (found,), (alone,) = calls_of(model, x, **told), calls_of(model, x[:, 4:])
    same_under_every_law(found, alone, slice(4, 12))


def test_a_law_that_lacks_positions_is_refused_by_name() -> None:
    """Rows that see another text, and queries whose places among the keys are unknown."""

    class Numbered(Packed):
        def forward(self, hidden_states: Any, seq_idx: Any) -> Any:
            return super().forward(hidden_states)

    x = torch.randn(1, 12, 32, dtype=torch.float64)
    (found,) = calls_of(sharp(Numbered()), x, torch.tensor([[5] * 4 + [2] * 8]))
    found.entropy_under(at.laws.get("log_n"))  # it counts what is seen
    with pytest.raises(NotImplementedError, match=r"law lssa .* rows see keys of other texts"):
        found.entropy_under(at.laws.get("lssa"))
    model = sharp(nn.MultiheadAttention(32, 4, batch_first=True))
    (found,) = calls_of(model, x[:, :5], x, x)
    with pytest.raises(NotImplementedError, match=r"law scale_invariant .* the places of its queries"):
        found.entropy_under(at.laws.get("scale_invariant"))


def test_a_decoder_does_not_count_padding_of_the_encoder() -> None:
    model, decoded = sharp(bart()), IDS[1:, :7]
    mask = torch.ones(1, 12, dtype=torch.long)
    mask[0, 8:] = 0
    found = calls_of(model, torch.cat([TEXT, OTHER], 1), mask, decoded, use_cache=False)
    alone = calls_of(model, TEXT, None, decoded, use_cache=False)
    for one, other in zip(found, alone, strict=True):
        if one.kind == "cross":
            for law in ("log_n", "ssmax", "natural_log_n", "lssa", "norm_softmax"):
                seen, want = (each.entropy_under(at.laws.get(law)) for each in (one, other))
                torch.testing.assert_close(seen, want, rtol=0, atol=1e-9)


class Told(nn.Module):
    def forward(self, hidden_states: Any, attention_mask: Any = None, context: Any = None) -> None: ...


def context_of(rows: tuple[int, int, int], *given: Any, inside: tuple[Any, ...] = ()) -> Any:
    """The context of a call inside `Told`, which was given these tensors; keys are never projected."""
    stack = [recording.rows.Running(Told(), "", given, {}), *inside]
    return recording.rows.context_of(stack, rows, lambda x: False, lambda: None)


@pytest.mark.parametrize(
    ("hidden", "shown"), [(0.0, 1.0), (0, 7), (-1e4, 0.0), (-torch.inf, 0.0), (False, True)]
)
def test_a_mask_of_numbers_hides_or_is_added(hidden: float, shown: float) -> None:
    mask = torch.where(MASK == 0, torch.tensor(hidden), torch.tensor(shown))
    x, rows = torch.randn(2, 12, 32), (2, 12, 12)
    context = context_of(rows, x, mask)
    assert context.real is not None
    assert torch.equal(context.real, MASK.bool())
    whole = torch.full((2, 12), shown)
    assert context_of(rows, x, whole).real is None


def test_fewer_queries_than_words_without_a_cache_are_not_guessed_to_be_the_last() -> None:
    x, pooled = torch.randn(2, 12, 32), torch.randn(2, 6, 32)
    inner = recording.rows.Running(nn.Identity(), "pooled", (pooled,), {})
    assert context_of((2, 6, 12), x, MASK, inside=(inner,)).real is None
    real = context_of((2, 6, 12), pooled, MASK).real
    assert real is not None
    assert torch.equal(real, MASK[:, -6:].bool())


def test_further_keys_beside_the_queries_are_cross_attention() -> None:
    x, latents = torch.randn(2, 12, 32), torch.randn(2, 4, 32)
    assert context_of((2, 4, 16), latents, None, x).kind == "cross"
    assert context_of((2, 4, 16), latents, None).kind == "self"


def test_a_cache_that_lost_its_first_keys_says_no_position() -> None:
    """A law of visible keys does not ask where they were."""
    sizes = {**SMALL, "num_key_value_heads": 2, "sliding_window": 6}
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes)).eval()
    generate = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    law = "llama4_temperature(floor=4)"
    with torch.no_grad():
        with at.torch.record(model, laws=[law]) as log:
            model.generate(input_ids=IDS[:1, :3], **generate)
        assert len(log) == 4
        message = r"counts n as query position \+ 1, .*: the first keys of its text are gone from the cache"
        with pytest.raises(NotImplementedError, match=message), at.torch.record(model, laws=[law]):
            model.generate(input_ids=IDS[:1, :8], **generate)
        with at.torch.record(model, laws=["log_n"]) as log:
            model.generate(input_ids=IDS[:1, :8], **generate)
    assert log["entropy"][0].shape == (1, 4, 1)
