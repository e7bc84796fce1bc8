# SPDX-License-Identifier: BSD-3-Clause
"""at.torch.nn.MultiheadAttention against torch.nn.MultiheadAttention, and its additions.

The behaviours are those of PyTorch's test/nn/test_multihead_attention.py and, in test_torch_nn_models.py, of
the encoder, decoder and Transformer in its test/test_transformers.py. Outputs, weights and gradients are
compared with those of PyTorch's module with the same weights.

Parts of those tests that do not apply:

- torch.jit.script and torch.jit.trace (test_script_encoder_subclass, test_transformerencoderlayer_subclass):
  the operators take lists and optional numbers made in Python; torch.compile and torch.export work.
- saved keys and values (static_k, static_v; "bias cannot be added to static key"): arguments of
  torch.nn.functional.multi_head_attention_forward, which the module does not have.
- that a fast path is taken (test_mask_check_fastpath, test_multihead_self_attn_two_masks_fast_path_mock): it
  is PyTorch's softmax attention, and must not be taken; the tests here see to that.
- the types and words of errors: they are this package's, ValueError for what does not fit and TypeError for
  a mask of integers, where PyTorch has AssertionError and RuntimeError.
- NaN of a query whose keys are all hidden, with need_weights=True: it is 0 here, as with need_weights=False.
- is_causal without a mask ("Need attn_mask if specifying the is_causal hint"): it is causal here.
- is_causal with add_bias_kv or add_zero_attn and need_weights=False: PyTorch hides the added keys then, and
  with need_weights=True it does not; here no query has them hidden.
- second derivatives (gradgradcheck of test_modules): there are none, by name.
- CUDA and other devices: refused by name.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import attnscale as at
import pytest
from torch_modules import HEADS, LENGTH, WIDTH, N, close, future, padding
from versions import written_for

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.usefixtures("fixed_seed"),
]


def pair(**options: Any) -> tuple[Any, Any]:
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, **options)
    for parameter in theirs.parameters():  # biases are zeros at first
        torch.nn.init.normal_(parameter, std=0.2)
    ours = at.torch.nn.MultiheadAttention(WIDTH, HEADS, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


MASKS = {
    "none": dict,
    "bool": lambda: {"attn_mask": future()},
    "of heads": lambda: {"attn_mask": torch.randn(N * HEADS, LENGTH, LENGTH)},
    "padding": lambda: {"key_padding_mask": padding()},
    "both": lambda: {"attn_mask": future(), "key_padding_mask": padding()},
    "both float": lambda: {
        "attn_mask": torch.randn(LENGTH, LENGTH),
        "key_padding_mask": torch.zeros(N, LENGTH).masked_fill(padding(), -torch.inf),
    },
}
OPTIONS = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "no bias": {"bias": False},
    "added keys": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
    "widths": {"kdim": 6, "vdim": 10},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_weights_and_gradients(name: str, mask: str) -> None:
    options = OPTIONS[name]
    theirs, ours = pair(**options)
    axes = (N, LENGTH) if options.get("batch_first") else (LENGTH, N)
    widths = (WIDTH, options.get("kdim", WIDTH), options.get("vdim", WIDTH))
    inputs = [torch.randn(*axes, width, requires_grad=True) for width in widths]
    masks = MASKS[mask]()
    for wanted in ({"average_attn_weights": False}, {}, {"need_weights": False}):
        parts = [module(*inputs, **masks, **wanted) for module in (ours, theirs)]
        gradients = []
        for module, (output, weights) in zip((ours, theirs), parts, strict=True):
            loss = output.sin().sum() + (0 if weights is None else weights.square().sum())
            gradients.append(torch.autograd.grad(loss, [*inputs, *module.parameters()]))
        close(parts[0], parts[1])
        close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", ["bool", "padding", "of heads"])
def test_without_a_batch(mask: str) -> None:
    for batch_first in (False, True):
        theirs, ours = pair(batch_first=batch_first, add_zero_attn=True)
        x, y = torch.randn(LENGTH, WIDTH), torch.randn(LENGTH, WIDTH)
        masks = MASKS[mask]()
        if "key_padding_mask" in masks:
            masks["key_padding_mask"] = masks["key_padding_mask"][1]
        if mask == "of heads":
            masks["attn_mask"] = masks["attn_mask"][:HEADS]
        for average in (False, True):
            close(*(each(x, y, y, **masks, average_attn_weights=average) for each in (ours, theirs)))


def test_a_mask_of_heads_is_one_of_each_entry() -> None:
    _, ours = pair(batch_first=True)
    query, key = torch.randn(N, 3, WIDTH), torch.randn(N, LENGTH, WIDTH)
    masks = torch.rand(N, 3, LENGTH) < 0.4
    every, _ = ours(query, key, key, attn_mask=masks.repeat_interleave(HEADS, 0))
    for i in range(N):
        one, _ = ours(query[i : i + 1], key[i : i + 1], key[i : i + 1], attn_mask=masks[i])
        close(every[i : i + 1], one)


def test_a_query_that_sees_no_key() -> None:
    theirs, ours = pair(batch_first=True)
    x = torch.randn(N, LENGTH, WIDTH, requires_grad=True)
    hidden = padding()
    hidden[0] = True
    options = {"key_padding_mask": hidden, "need_weights": False}
    close(ours(x, x, x, **options)[0], theirs(x, x, x, **options)[0])
    output, weights = ours(x, x, x, key_padding_mask=hidden)
    close(output[0], ours.out_proj.bias.expand(LENGTH, WIDTH))
    assert not weights[0].any()
    (gradient,) = torch.autograd.grad(output.sum() + weights.sum(), x)
    assert bool(gradient.isfinite().all())


def test_the_hint_of_a_causal_mask() -> None:
    theirs, ours = pair(batch_first=True)
    x = torch.randn(N, LENGTH, WIDTH)
    for options in ({}, {"need_weights": False}, {"key_padding_mask": padding()}):
        masks = {"attn_mask": future(), "is_causal": True}
        close(ours(x, x, x, **masks, **options), theirs(x, x, x, **masks, **options))
        close(ours(x, x, x, is_causal=True, **options), theirs(x, x, x, **masks, **options))


def test_added_keys_are_seen_by_causal_queries() -> None:
    theirs, ours = pair(batch_first=True, add_bias_kv=True, add_zero_attn=True)
    x = torch.randn(N, LENGTH, WIDTH)
    want = theirs(x, x, x, attn_mask=future(), average_attn_weights=False)
    close(ours(x, x, x, is_causal=True, average_attn_weights=False), want)
    masks = {"attn_mask": future(), "key_padding_mask": padding()}
    close(ours(x, x, x, is_causal=True, **masks), theirs(x, x, x, **masks))


@pytest.mark.parametrize(("inputs", "options", "message"), [
    (((4, 4, 4), (4, 4), (4, 4, 4)), {}, r"must have 3 axes each, or 2 without a batch, got 3, 2, 3"),
    (((4, 4), (4, 4, 4), (4, 4)), {}, r"got 2, 3, 2"),
    (((4,), (4,), (4,)), {}, r"got 1, 1, 1"),
    (((3, 2, 5), (3, 2, 4), (3, 2, 4)), {}, r"query must have embed_dim = 4 channels, got shape \(3, 2, 5\)"),
    (((3, 2, 4), (3, 2, 4), (3, 2, 3)), {}, r"value must have vdim = 4 channels, got shape \(3, 2, 3\)"),
    (((3, 2, 4), (5, 2, 4), (6, 2, 4)), {}, r"key and value must have the same length"),
    (((3, 2, 4), (5, 1, 4), (5, 1, 4)), {}, r"all the same batch.*with batch_first=False"),
    (((3, 2, 4), (5, 2, 4), (5, 2, 4)), {"attn_mask": (5, 3)}, r"attn_mask must have shape.*= \(3, 5\) or"),
    (((3, 2, 4), (5, 2, 4), (5, 2, 4)), {"attn_mask": (2, 3, 5)}, r"= \(8, 3, 5\), got \(2, 3, 5\)"),
    (((4, 4), (4, 4), (4, 4)), {"attn_mask": (4,)}, r"= \(4, 4, 4\), got \(4,\)"),
    (((3, 2, 4), (5, 2, 4), (5, 2, 4)), {"key_padding_mask": (5,)}, r"n_keys\) = \(2, 5\), got \(5,\)"),
    (((4, 4), (4, 4), (4, 4)), {"key_padding_mask": (1, 4)}, r"\(n_keys,\) = \(4,\), got \(1, 4\)"),
])  # fmt: skip
def test_shapes_that_do_not_fit(inputs: Any, options: dict[str, Any], message: str) -> None:
    module = at.torch.nn.MultiheadAttention(4, 4)
    masks = {name: torch.zeros(shape, dtype=torch.bool) for name, shape in options.items()}
    with pytest.raises(ValueError, match=message):
        module(*(torch.randn(shape) for shape in inputs), **masks)


def test_a_mask_of_integers_is_refused() -> None:
    module = at.torch.nn.MultiheadAttention(4, 4)
    x = torch.randn(3, 2, 4)
    for name, shape in (("attn_mask", (3, 3)), ("key_padding_mask", (2, 3))):
        with pytest.raises(TypeError, match=f"{name} must be bool.*got torch.uint8"):
            module(x, x, x, **{name: torch.zeros(shape, dtype=torch.uint8)})


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_types(dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    theirs, ours = (module.to(getattr(torch, dtype)) for module in pair(batch_first=True))
    x = torch.randn(N, LENGTH, WIDTH, dtype=getattr(torch, dtype))
    for need in (True, False):
        found, want = (
            each(x, x, x, key_padding_mask=padding(), need_weights=need) for each in (ours, theirs)
        )
        close(
            found, want, rtol=1e-5 if dtype == "float64" else 0.02, atol=1e-6 if dtype == "float64" else 0.02
        )


def test_a_bias_of_another_type() -> None:
    theirs, ours = (module.double() for module in pair(batch_first=True))
    for module in (theirs, ours):
        module.in_proj_bias = torch.nn.Parameter(module.in_proj_bias.half())
    x = torch.randn(N, LENGTH, WIDTH, dtype=torch.float64)
    close(ours(x, x, x), theirs(x, x, x))


def test_autocast() -> None:
    pytest.importorskip("ml_dtypes")
    theirs, ours = pair(batch_first=True, add_bias_kv=True)
    ours.dropout = 0.1
    x = torch.randn(N, LENGTH, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        for need in (True, False):
            options = {"attn_mask": future(), "key_padding_mask": padding(), "need_weights": need}
            found, want = ours.eval()(x, x, x, **options), theirs(x, x, x, **options)
            close(found, want, rtol=0.02, atol=0.02)
            output, _ = ours.train()(x, x, x, **options)
            assert output.dtype == torch.bfloat16
            output.float().sum().backward()


# ---- nested tensors ----------------------------------------------------------------------------------


def test_a_nested_tensor_has_the_outputs_of_pytorchs_fast_path() -> None:
    theirs, ours = (module.eval() for module in pair(batch_first=True))
    x = torch.nested.nested_tensor([torch.randn(n, WIDTH) for n in (3, 5)])
    for average in (False, True):
        with torch.no_grad():
            found, weights = ours(x, x, x, average_attn_weights=average)
            want, exact = theirs(x, x, x, average_attn_weights=average)
        assert found.is_nested
        close(list(found.unbind()), list(want.unbind()))
        close(weights, exact)


@pytest.mark.parametrize("layout", ["strided", "jagged"])
@pytest.mark.parametrize(
    "options", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=["", "added keys"]
)
def test_nested_queries_and_keys_of_other_lengths(layout: str, options: dict[str, bool]) -> None:
    theirs, ours = pair(batch_first=True, **options)
    rows = [[torch.randn(n, WIDTH, requires_grad=True) for n in lengths] for lengths in ((4, 2), (1, 5))]
    x, y = (torch.nested.as_nested_tensor(each, layout=getattr(torch, layout)) for each in rows)
    found, weights = ours(x, y, y)
    assert found.layout == x.layout
    assert weights.shape[:2] == (2, 4)
    want = [theirs(q, k, k)[0] for q, k in zip(*rows, strict=True)]
    close(list(found.unbind()), want)
    leaves = [*rows[0], *rows[1]]
    loss = torch.stack([each.sin().sum() for each in found.unbind()]).sum()
    close(torch.autograd.grad(loss, leaves), torch.autograd.grad(sum(x.sin().sum() for x in want), leaves))


def test_nested_tensors_that_do_not_fit() -> None:
    _, ours = pair(batch_first=True)
    x = torch.nested.nested_tensor([torch.randn(n, WIDTH) for n in (3, 5)])
    y = torch.nested.nested_tensor([torch.randn(n, WIDTH) for n in (4, 5)])
    plain = torch.randn(2, 5, WIDTH)
    empty = torch.nested.nested_tensor([])
    for inputs, options, message in (
        ((x, plain, plain), {}, r"must all be nested tensors, or none of them, got \[True, False, False\]"),
        ((x, x, y), {}, r"same lengths.*got lengths \[3, 5\], \[3, 5\] and \[4, 5\]"),
        ((x, x, x), {"key_padding_mask": padding()}, r"key_padding_mask must be None for nested tensors"),
        ((x, x, x), {"attn_mask": future()}, r"attn_mask must be None for nested tensors"),
        ((empty, empty, empty), {}, r"a nested query must have the axes \(batch, n, embed_dim\), got 1 axes"),
    ):
        with pytest.raises(ValueError, match=message):
            ours(*inputs, **options)
    ours.batch_first = False
    with pytest.raises(ValueError, match="batch_first must be True for nested tensors, got False"):
        ours(x, x, x)


# ---- what modules can ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_state_dict_goes_there_and_back(options: dict[str, Any]) -> None:
    theirs, ours = pair(**options)
    back = torch.nn.MultiheadAttention(WIDTH, HEADS, **options)
    back.load_state_dict(ours.state_dict())
    close(back.state_dict(), theirs.state_dict(), rtol=0, atol=0)


def test_a_copy_after_a_pass_with_statistics() -> None:
    module = at.torch.nn.MultiheadAttention(WIDTH, HEADS, statistics=("entropy",), law="ssmax")
    x = torch.randn(LENGTH, N, WIDTH)
    module(x, x, x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other.rows is None
        close(other(x, x, x)[0], module(x, x, x)[0])
    assert module.rows is not None


def test_compiled_with_weights() -> None:
    theirs, ours = pair(batch_first=True)
    x = torch.randn(N, LENGTH, WIDTH)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    output, weights = compiled(x, x, x, key_padding_mask=padding())
    close((output, weights), theirs(x, x, x, key_padding_mask=padding()))
    (output.sin().sum() + weights.square().sum()).backward()
    found = ours.in_proj_weight.grad
    output, weights = theirs(x, x, x, key_padding_mask=padding())
    (output.sin().sum() + weights.square().sum()).backward()
    close(found, theirs.in_proj_weight.grad, rtol=1e-4, atol=1e-5)


@written_for("torch>=2.13")  # PyTorch 2.6 exports the module with strict=False alone
def test_exported() -> None:
    theirs, ours = pair(batch_first=True)
    x = torch.randn(N, LENGTH, WIDTH)
    program = torch.export.export(ours.eval(), (x, x, x)).module()
    close(program(x, x, x), theirs(x, x, x))


def test_under_torch_func() -> None:
    theirs, ours = pair(batch_first=True)
    x = torch.randn(N, LENGTH, WIDTH)
    gradients = []
    for module in (ours, theirs):

        def loss(parameters: Any, module: Any = module) -> Any:
            output, weights = torch.func.functional_call(module, parameters, (x, x, x))
            return output.sin().sum() + weights.square().sum()

        gradients.append(torch.func.grad(loss)(dict(module.named_parameters())))
    close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
    each = torch.func.vmap(lambda row: ours(row, row, row))(x[:, None])
    close(each[0][:, 0], ours(x, x, x)[0])
    close(each[1][:, 0], ours(x, x, x)[1])


# ---- additions --------------------------------------------------------------------------------------


def test_masks_hide_by_low_numbers() -> None:
    """Low numbers hide as True does: in sums of masks of two types, with dropout, in rows without keys."""
    theirs, ours = pair(batch_first=True)
    x, hidden = torch.randn(N, LENGTH, WIDTH), padding()

    def low(mask: Any, dtype: Any) -> Any:
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, torch.finfo(dtype).min)

    for more in ({"need_weights": False}, {"key_padding_mask": low(hidden, x.dtype)}):
        options = {"attn_mask": low(future(), torch.float32), **more}
        close(ours(x, x, x, **options), theirs(x, x, x, **options))
    hidden[0] = True
    dropping = at.torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dropout=0.4)
    for module in (ours, dropping):
        found = []
        for dtype in (None, torch.float16, torch.bfloat16):
            torch.manual_seed(5)
            masks = {"attn_mask": future(), "key_padding_mask": hidden}
            if dtype is not None:
                masks = {"attn_mask": low(future(), dtype), "key_padding_mask": low(hidden, x.dtype)}
            found.append(module(x, x, x, **masks)[0])
        assert torch.equal(found[1], found[0])
        assert torch.equal(found[2], found[0])


def test_a_law_a_learned_scale_and_rotary_positions() -> None:
    options = {"law": "ssmax(s=1)", "learnable_scale": "head", "rotary_base": 10000.0, "batch_first": True}
    module = at.torch.nn.MultiheadAttention(32, 4, statistics=("entropy",), **options)
    x = torch.randn(2, 9, 32)
    output, _ = module(x, x, x, need_weights=False)
    (output.square().mean() + module.rows.entropy.mean()).backward()
    assert module.scale_factor.shape == module.scale_factor.grad.shape == (4,)
    assert bool((module.scale_factor.grad != 0).all())
    with torch.no_grad():
        shifted = module(x, x, x, need_weights=False)[0]
        again = module(x.roll(1, dims=1), x.roll(1, dims=1), x.roll(1, dims=1), need_weights=False)[0]
    assert not torch.allclose(shifted.roll(1, dims=1), again, atol=1e-4)  # positions matter


def test_parameters_of_the_law_learn() -> None:
    options = {"law": "ssmax(s=0.5, floor=2)", "learnable_law": ("s", "b"), "batch_first": True}
    module = at.torch.nn.MultiheadAttention(32, 4, learnable_scale="head", **options)
    learned = {name: x for name, x in module.named_parameters() if name.startswith("law_parameters")}
    assert {name: x.tolist() for name, x in learned.items()} == {
        "law_parameters.s": [0.5] * 4,
        "law_parameters.b": [0.0] * 4,
    }
    x = torch.randn(2, 9, 32)
    other = at.torch.nn.MultiheadAttention(32, 4, law=options["law"], batch_first=True)
    other.load_state_dict(module.state_dict(), strict=False)
    torch.testing.assert_close(module(x, x, x)[0], other(x, x, x)[0])
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = module(x, x, x, need_weights=False, is_causal=True)[0].square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
    assert all((x - first).abs().min() > 0 for x, first in zip(learned.values(), (0.5, 0.0), strict=True))
    assert not torch.allclose(module(x, x, x)[1], other(x, x, x)[1])  # the weights follow


def test_a_parameter_that_is_one_number_for_all_heads() -> None:
    module = at.torch.nn.MultiheadAttention(32, 4, law="log_n(base=8)", learnable_law="base")
    assert module.law_parameters["base"].shape == ()
    assert set(at.torch.nn.MultiheadAttention(32, 4).state_dict()) == set(
        torch.nn.MultiheadAttention(32, 4).state_dict()
    )


def test_rotary_products_depend_on_distances_alone() -> None:
    """Scores from the weights of a head whose projections are the identity."""
    options = {"rotary_base": 1e4, "statistics": "lse", "batch_first": True, "bias": False}
    module = at.torch.nn.MultiheadAttention(8, 1, dtype=torch.float64, **options)
    module.in_proj_weight.data[:] = torch.eye(8).repeat(3, 1)
    q, k = torch.randn(2, 8, dtype=torch.float64)
    weights = module(*(x.expand(1, 12, 8) for x in (q, k, k)))[1][0]
    rows = (weights.log() + module.rows.lse[0, 0, :, None]) * 8**0.5
    for distance in (-5, 0, 3):
        diagonal = rows.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    torch.testing.assert_close(rows[0, 0], q @ k)


def test_compiled_with_all_that_is_learned() -> None:
    module = at.torch.nn.MultiheadAttention(
        *(32, 4),
        batch_first=True,
        law="ssmax",
        learnable_scale="head",
        learnable_law=("s",),
        statistics=("entropy",),
        rotary_base=1e4,
    )
    x = torch.randn(2, 9, 32)
    want = module(x, x, x, need_weights=False)[0]
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    found = compiled(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(found, want)
    found.sum().backward()
    assert module.scale_factor.grad is not None
    assert module.law_parameters["s"].grad is not None


@pytest.mark.parametrize(("options", "message"), [
    ({"learnable_scale": "row"}, "learnable_scale must be 'head' or None, got 'row'"),
    ({"learnable_law": ("s",)}, "law 'standard' has a gradient of"),
    ({"rotary_base": 0.5}, "rotary_base must be above 1 and head_dim even, got 0.5 and 8"),
    ({"law": "log_m"}, "log_m"),
    ({"normalizer": "softmin"}, "softmin"),
    ({"statistics": ("entropie",)}, "entropie"),
])  # fmt: skip
def test_arguments_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        at.torch.nn.MultiheadAttention(32, 4, **options)
