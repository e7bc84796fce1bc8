# SPDX-License-Identifier: BSD-3-Clause
"""at.torch.nn.MultiheadAttention in PyTorch's encoder, decoder and Transformer.

What of PyTorch's tests of these does not apply, test_torch_nn.py says.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any
from unittest import mock

import attnscale as at
import pytest
from torch_modules import HEADS, LENGTH, WIDTH, N, close, future, padding
from versions import written_for

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.usefixtures("fixed_seed"),
]


def model_pair(model: Any, **options: Any) -> tuple[Any, Any]:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model, at.torch.replace_attention(copy.deepcopy(model), **options)


def layer_of(kind: str = "Encoder", **options: Any) -> Any:
    options = {"dropout": 0.0, "batch_first": True, **options}
    return getattr(torch.nn, f"Transformer{kind}Layer")(WIDTH, HEADS, 24, **options)


def same(models: tuple[Any, Any], *inputs: Any, hidden: Any = None, **options: Any) -> None:
    """Compare in training and inference, with and without gradients; hidden rows may differ."""
    for mode in (True, False):
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                found, want = (model.train(mode)(*inputs, **options) for model in models)
            if hidden is not None:
                found, want = (x.masked_fill(hidden[..., None], 0.0) for x in (found, want))
            close(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("options", [
    {}, {"activation": "gelu"}, {"norm_first": True}, {"batch_first": False}, {"bias": False},
], ids=lambda options: ", ".join(options) or "none")  # fmt: skip
def test_encoder(options: dict[str, Any], nested: bool) -> None:
    norm = torch.nn.LayerNorm(WIDTH)
    models = model_pair(
        torch.nn.TransformerEncoder(layer_of(**options), 2, norm, enable_nested_tensor=nested)
    )
    x, hidden = torch.randn(N, LENGTH, WIDTH), padding()
    flipped = options.get("batch_first") is False
    if flipped:
        x = x.transpose(0, 1)
    same(models, x)
    same(models, x, hidden=hidden.T if flipped else hidden, src_key_padding_mask=hidden)
    same(models, x, mask=future())
    same(models, x, mask=torch.nn.Transformer.generate_square_subsequent_mask(LENGTH), is_causal=True)
    same(models, x, mask=future(), src_key_padding_mask=hidden)


def test_an_encoder_with_a_mask_that_is_not_left_aligned_and_an_empty_sequence() -> None:
    models = model_pair(torch.nn.TransformerEncoder(layer_of(), 2))
    x = torch.randn(N, LENGTH, WIDTH)
    hidden = torch.tensor([[False, True, False, False, True], [False, False, True, False, False]])
    same(models, x, hidden=hidden, src_key_padding_mask=hidden)
    hidden = padding()
    hidden[1] = True
    found, want = (model.eval() for model in models)
    with torch.no_grad():
        close(found(x, src_key_padding_mask=hidden)[0], want(x, src_key_padding_mask=hidden)[0])


@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_an_encoder_takes_nested_tensors(layout: str) -> None:
    theirs, ours = model_pair(torch.nn.TransformerEncoder(layer_of(), 2))
    rows = [torch.randn(n, WIDTH) for n in (3, 5)]
    x = torch.nested.nested_tensor(rows, layout=getattr(torch, layout))
    with torch.no_grad():
        found = ours.eval()(x)
        want = [theirs.eval()(row[None])[0] for row in rows]
    assert found.layout == x.layout
    close(list(found.unbind()), want, rtol=1e-4, atol=1e-5)


def test_the_law_counts_keys_without_padding() -> None:
    """Inference without gradients, where the encoder makes nested tensors, agrees with other modes."""
    _, model = model_pair(torch.nn.TransformerEncoder(layer_of(), 2), law="log_n", statistics=["entropy"])
    x = torch.randn(N, LENGTH, WIDTH)
    model.eval()
    with_gradients = model(x, src_key_padding_mask=padding())
    entropy = model.layers[1].self_attn.rows.entropy
    with torch.no_grad():
        without = model(x, src_key_padding_mask=padding())
    close(with_gradients.masked_fill(padding()[..., None], 0.0), without)
    close(model.layers[1].self_attn.rows.entropy[1, :, :3], entropy[1, :, :3].detach())
    alone = model(x[1:, :3])
    close(without[1:, :3], alone)


@pytest.mark.parametrize("norm_first", [True, False])
def test_decoder(norm_first: bool) -> None:
    models = model_pair(torch.nn.TransformerDecoder(layer_of("Decoder", norm_first=norm_first), 2))
    assert all(
        isinstance(attention, at.torch.nn.MultiheadAttention)
        for layer in models[1].layers
        for attention in (layer.self_attn, layer.multihead_attn)
    )
    x, memory = torch.randn(N, 3, WIDTH), torch.randn(N, LENGTH, WIDTH)
    same(models, x, memory)
    hidden = torch.tensor([[False, False, True], [False, True, True]])
    options = {"tgt_mask": future(3), "tgt_key_padding_mask": hidden}
    same(models, x, memory, **options, memory_key_padding_mask=padding())
    same(models, x, memory, tgt_mask=future(3), tgt_is_causal=True, memory_mask=torch.randn(3, LENGTH))


def test_transformer() -> None:
    model = torch.nn.Transformer(WIDTH, HEADS, 1, 1, 24, dropout=0.0, batch_first=True)
    models = model_pair(model)
    x, y = torch.randn(N, LENGTH, WIDTH), torch.randn(N, 3, WIDTH)
    same(models, x, y, tgt_mask=model.generate_square_subsequent_mask(3))
    same(models, x, y, src_key_padding_mask=padding(), memory_key_padding_mask=padding())


def test_no_fast_path_passes_by_it() -> None:
    _, model = model_pair(torch.nn.TransformerEncoder(layer_of(), 2))
    x = torch.randn(N, LENGTH, WIDTH)
    with (
        mock.patch("torch._transformer_encoder_layer_fwd") as of_layer,
        mock.patch("torch._native_multi_head_attention") as of_module,
        torch.no_grad(),
    ):
        for module in (model.eval(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            with torch.inference_mode():
                module(x, src_key_padding_mask=padding())
            module(x)
            module(x, src_key_padding_mask=padding())
            module(x, mask=future())
    assert not of_layer.called
    assert not of_module.called


@written_for("torch>=2.13")  # PyTorch 2.6 cannot trace its own encoder with padding
def test_a_compiled_encoder_with_padding() -> None:
    theirs, ours = model_pair(torch.nn.TransformerEncoder(layer_of(), 1))
    x = torch.randn(N, LENGTH, WIDTH)
    compiled = torch.compile(ours.eval(), fullgraph=True, backend="aot_eager")
    found, want = (model(x, src_key_padding_mask=padding()) for model in (compiled, theirs.eval()))
    close(*(each.masked_fill(padding()[..., None], 0.0) for each in (found, want)), rtol=1e-4, atol=1e-5)
