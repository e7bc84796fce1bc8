# SPDX-License-Identifier: BSD-3-Clause
"""Messages have one line for any value: arrays and long values are described, not printed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws, normalizers
from attnscale import montecarlo as mc
from attnscale import variants as V

Q = np.ones((2, 3, 4))
LONG = np.arange(60.0).reshape(3, 20)

CALLS: dict[str, Callable[[Any], Any]] = {
    "set_num_threads": at.set_num_threads,
    "num_threads": lambda x: at.attention(Q, Q, Q, num_threads=x),
    "num_threads of an experiment": lambda x: mc.max_cosine(8, 4, samples=2, num_threads=x),
    "is_causal": lambda x: at.attention(Q, Q, Q, is_causal=x),
    "is_causal and causal": lambda x: at.attention(Q, Q, Q, is_causal=True, causal=x),
    "layout": lambda x: at.attention_state(Q, Q, Q, layout=x),
    "normalizer": lambda x: at.attention(Q, Q, Q, normalizer=x),
    "softcap": lambda x: at.attention(Q, Q, Q, softcap=x),
    "window": lambda x: at.attention(Q, Q, Q, window=x),
    "normalizers.get": normalizers.get,
    "a parameter of a normalizer": lambda x: normalizers.get("entmax", alpha=x),
    "Sigmoid": normalizers.Sigmoid,
    "Entmax": normalizers.Entmax,
    "TopK": normalizers.TopK,
    "SoftmaxN": normalizers.SoftmaxN,
    "ReLU": normalizers.ReLU,
    "Softpick": normalizers.Softpick,
    "laws.get": laws.get,
    "radius": lambda x: V.local_global_attention(Q, Q, Q, radius=x),
    "no causal form": lambda x: V.linformer_attention(Q, Q, Q, np.ones((2, 3)), causal=x),
    "base": lambda x: V.apply_rotary(Q, base=x),
    "kinds": lambda x: V.hybrid(Q, Q, Q, x),
    "rows": lambda x: V.attention_jacobian_norms(Q, np.ones((4, 4)), np.ones((4, 4)), rows=x + 0.5),
    "rng": lambda x: mc.max_cosine(8, 4, rng=x - 1.5, samples=2),
    "progress": lambda x: mc.max_cosine(8, 4, progress=x, samples=2),
    "progress of a sweep": lambda x: at.sweep(lambda n: n, {"n": [1]}, progress=x),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_array_in_the_wrong_place_is_described_in_one_line(name: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        CALLS[name](LONG)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    assert "truth value" not in text


@pytest.mark.parametrize("name", ["set_num_threads", "num_threads", "num_threads of an experiment"])
def test_more_threads_than_the_core_counts(name: str) -> None:
    for n in (2**31, 2**64, 10**300):
        with pytest.raises(ValueError, match=r"must be at most 2147483647, got \d{10,80}(\.\.\.)?$"):
            CALLS[name](n)


def test_messages_show_what_they_got_by_the_one_helper() -> None:
    """``got {x!r}`` prints pages where x is an array. Paths are shown whole: the end tells them apart."""
    places = [
        f"{path.name}: {found}"
        for path in Path(at.__file__).parent.rglob("*.py")
        for found in re.findall(r"got \{(?!str\()[^{}]*!r[^{}]*\}", path.read_text(encoding="utf-8"))
    ]
    assert places == []


MEANT: dict[str, tuple[Callable[[], Any], str]] = {
    "attention law": (lambda: at.attention(Q, Q, Q, law="log_n"), "scale"),  # type: ignore[arg-type]
    "attention mask": (lambda: at.attention(Q, Q, Q, mask=None), "attn_mask"),  # type: ignore[arg-type]
    "statistics laws": (lambda: at.attention_statistics(Q, Q, laws="log_n"), "scale"),  # type: ignore[arg-type]
    "entropy causal": (lambda: at.attention_entropy(Q, Q, is_casual=True), "is_causal"),  # type: ignore[arg-type]
    "curve law": (lambda: at.entropy_curve(Q, Q, law="log_n"), "scales"),  # type: ignore[call-arg]
    "calibrate n": (lambda: at.calibrate(Q, Q, n=[3]), "lengths"),  # type: ignore[call-arg]
    "solve target": (lambda: at.solve_scale(Q, Q, target=1.0), "target_entropy"),  # type: ignore[call-arg]
    "theory lengths": (lambda: at.theory.expected_entropy(lengths=3, beta=1), "n"),  # type: ignore[call-arg]
    "experiment scale": (lambda: mc.entropy_vs_length(4, scale="log_n"), "law"),  # type: ignore[call-arg]
    "audit": (lambda: at.audit.resolve({}, parts="decoder"), "part"),  # type: ignore[call-arg]
    "sweep": (lambda: at.sweep(len, {}, seed=3), "rng"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", MEANT)
def test_a_keyword_of_another_function_is_answered_by_that_of_this_one(name: str) -> None:
    call, meant = MEANT[name]
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '\w+'; did you mean '{meant}'\?$"):
        call()


@pytest.mark.parametrize("name", ["attention", "attention_statistics", "attention_entropy"])
@pytest.mark.parametrize("package", ["torch", "jax"])
@pytest.mark.parametrize(("said", "meant"), [("law", "scale"), ("laws", "scale"), ("mask", "attn_mask")])
def test_functions_of_tensors_and_of_jax_have_the_same_hints(
    package: str, name: str, said: str, meant: str
) -> None:
    numbers = pytest.importorskip("torch" if package == "torch" else "jax.numpy").ones((2, 3, 4))
    function = getattr(getattr(at, package), name, None)
    if function is None:
        assert (package, name) == ("torch", "attention_entropy")
        return
    given = (numbers,) * (3 if name == "attention" else 2)
    message = rf"^{name}\(\) got an unexpected keyword argument '{said}'; did you mean '{meant}'\?$"
    with pytest.raises(TypeError, match=message):
        function(*given, **{said: "log_n"})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'out'$"):  # layout= is another thing
        function(*given, out=numbers)
    assert "unknown" not in inspect.signature(function).parameters


def test_a_type_error_inside_a_function_is_not_taken_for_a_keyword() -> None:
    with pytest.raises(TypeError, match="num_threads must be an integer, got '2'"):
        at.entropy_curve(Q, Q, [1.0], num_threads="2")  # type: ignore[arg-type]


SAID: dict[str, tuple[Callable[[], Any], str]] = {
    "few tokens": (
        lambda: at.calibrate(np.ones((1, 10, 4)), np.ones((1, 10, 4))),
        "key must have at least 24 keys, or n0 and laws be given, got 10 keys",
    ),
    "sizes": (
        lambda: at.theory.expected_entropy([5, 6], [1.0, 2.0, 3.0]),
        "the shapes must broadcast, got n (2,), beta (3,), head_dim ()",
    ),
    "n of a law": (lambda: laws.get("log_n").multiplier("a", head_dim=4), "n must be numbers, got 'a'"),
    "axes": (lambda: at.plot.attention_map(np.eye(3), ax=3), "ax must be Axes of matplotlib or None, got 3"),
    "no model type": (
        lambda: at.audit.resolve({}),
        "num_hidden_layers is missing, and there is no model_type with a default",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_the_argument_the_rule_and_what_was_seen(name: str) -> None:
    call, message = SAID[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert str(caught.value) == message


def test_tensors_get_advice_for_tensors() -> None:
    torch = pytest.importorskip("torch")
    whole = torch.ones(2, 3, 4, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"got int64; use query.float\(\)$"):
        at.attention(whole, whole, whole)
    with pytest.raises(TypeError, match=r"attnscale.torch.Sink takes logits that are learned$"):
        normalizers.Sink(torch.zeros(2, requires_grad=True))


def calls_that_lose_a_gradient(q: Any) -> dict[str, Callable[[], object]]:
    """Calls of functions of arrays on a tensor that requires grad, by their paths."""
    part = [q.shape[-2] - 1, 1]
    return {
        "attention": lambda: at.attention(q, q, q),
        "attention_statistics": lambda: at.attention_statistics(Q, Q, q),
        "attention_entropy": lambda: at.attention_entropy(q, Q),
        "attention_divergence": lambda: at.attention_divergence(q, q, q, q),
        "attention_mass": lambda: at.attention_mass(q, q, [0]),
        "attention_spans": lambda: at.attention_spans(q, q, part),
        "head_kinds": lambda: at.head_kinds(q, q),
        "top_keys": lambda: at.top_keys(q, q, 1),
        "cosformer_attention": lambda: at.variants.cosformer_attention(q, q, q, max_length=64),
        "differential_attention": lambda: at.variants.differential_attention(q, q, q, q, q, lam=0.5),
        "efficient_attention": lambda: at.variants.efficient_attention(q, q, q),
        "linear_attention": lambda: at.variants.linear_attention(q, q, q),
        "performer_attention": lambda: at.variants.performer_attention(q, q, q),
        "relay_attention": lambda: at.variants.relay_attention(q, q),
        "ssd": lambda: at.variants.ssd(q, q, q, -np.ones(q.shape[:-1])),
    }


def test_a_gradient_that_would_be_lost_is_led_to_the_call_that_keeps_it() -> None:
    torch = pytest.importorskip("torch")
    calls = calls_that_lose_a_gradient(torch.ones(2, 3, 4, requires_grad=True))
    twins = {name for name in at.torch.__all__ if hasattr(at, name) or hasattr(at.variants, name)}
    assert set(calls) == twins - {"AttentionStatistics", "identify_entropy", "identify_lse"}
    for name, call in calls.items():
        keeps = rf"attnscale\.torch\.{name} keeps the gradient, \1\.detach\(\) drops it$"
        with pytest.raises(TypeError, match=rf"(\w+) requires grad, and an array has none; {keeps}"):
            call()


def test_a_gradient_that_nothing_keeps_is_to_be_dropped() -> None:
    torch = pytest.importorskip("torch")
    q = torch.ones(2, 32, 4, requires_grad=True)
    for call in (
        lambda: at.calibrate(q, q),  # it calls attention_entropy, which has a twin, and has none itself
        lambda: at.attention_weights(q, q),
        lambda: at.identify_lse(q, q, q[..., 0]),
        lambda: at.identify_entropy(q, q, q[..., 0]),
        lambda: at.entropy_curve(q, q, [1.0]),
    ):
        said = r"query requires grad, and an array has none; use query\.detach\(\)$"
        with pytest.raises(TypeError, match=said):
            call()


@pytest.mark.jax
def test_what_jax_traces_is_led_to_the_call_that_can_be_traced() -> None:
    jax = pytest.importorskip("jax")
    x, traced = np.ones((2, 32, 4), np.float32), "query is traced by JAX, and .*;"
    with pytest.raises(TypeError, match=rf"{traced} attnscale\.jax\.attention_entropy can be"):
        jax.grad(lambda q: at.attention_entropy(q, x).sum())(x)
    with pytest.raises(TypeError, match=rf"{traced} call this outside of jit, grad and vmap\b"):
        jax.jit(lambda q: at.attention_weights(q, x))(x)


def test_a_name_that_is_nearly_right_is_said_first():
    with pytest.raises(ValueError, match=r"^did you mean 'entropy'\? statistics must be among "):
        at.attention_statistics(np.ones((1, 2, 4)), np.ones((1, 2, 4)), statistics="entropi")
    with pytest.raises(ValueError, match=r"^did you mean 'sphere'\? model must be "):
        at.montecarlo.entropy_vs_length(8, model="spher")


def test_a_file_that_cannot_be_read_is_named_by_its_argument():
    with pytest.raises(FileNotFoundError, match=r"^path must be a file to read, got 'nofile': No such file"):
        at.montecarlo.ExperimentResult.load("nofile")
