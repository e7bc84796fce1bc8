# SPDX-License-Identifier: BSD-3-Clause
"""The grammar of laws: a Law, a number, a name, or a name with parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws
from attnscale.cli import main

plt = pytest.importorskip("matplotlib.pyplot")

Q, K = np.random.default_rng(0).standard_normal((2, 2, 16, 4))

SPELLINGS = {
    "ssmax(s=0.43)": laws.SSMax(s=0.43),
    "log_n": laws.LogN(),
    "log_n(train_length=64)": laws.LogN(base=64),
    "0.25": laws.Constant(0.25),
    "1.5 * log_n(base=64)": laws.Scaled(laws.LogN(base=64), 1.5),
}


def of_montecarlo(law: Any) -> Any:
    return at.montecarlo.entropy_vs_length(16, law=law, head_dim=4, samples=8, rng=0).value


def of_saturation(law: Any) -> Any:
    found = at.montecarlo.softmax_saturation(head_dim=4, n=16, law=law, samples=8, rng=0)
    return found["gradient_norm"].value


def of_comparison(laws_: Any) -> Any:
    return np.asarray(at.plot.law_comparison(laws_, [16, 64, 256]).get_lines()[0].get_ydata())


def of_phases(laws_: Any) -> Any:
    axes = at.plot.phase_diagram([16, 64], [0.5, 1, 4], np.ones((2, 3)), laws=laws_)
    return np.asarray(axes.get_lines()[1].get_ydata())


PYTHON: dict[str, Callable[[Any], Any]] = {
    "get": lambda law: laws.get(law).multiplier(16, 4),
    "explain": lambda law: np.array(laws.explain(law)),
    "attention": lambda law: at.attention(Q, K, K, scale=law),
    "attention_statistics": lambda law: at.attention_statistics(Q, K, scale=law).entropy,
    "attention_entropy": lambda law: at.attention_entropy(Q, K, scale=law),
    "attention_state": lambda law: at.attention_state(Q, K, K, scale=law).lse,
    "reference": lambda law: at.reference.attention_entropy(Q, K, scale=law),
    "kattention": lambda law: at.variants.kattention_heads(Q, K, K, scale=law),
    "montecarlo": of_montecarlo,
    "saturation": of_saturation,
    "calibrate": lambda law: at.calibrate(Q, K, 8, laws=[law]).law_entropy,
    "law_comparison": lambda law: of_comparison([law]),
    "law_comparison of one": of_comparison,
    "phase_diagram": lambda law: of_phases([law]),
    "phase_diagram of one": of_phases,
    "calibrate for one": lambda law: at.calibrate(Q, K, 8, laws=law).law_entropy,
}


@pytest.fixture(autouse=True)
def no_figures_left() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("take", PYTHON.values(), ids=PYTHON)
def test_a_spelling_is_the_law(take: Callable[[Any], Any], spelling: str) -> None:
    found, wanted = take(spelling), take(SPELLINGS[spelling])
    if np.asarray(wanted).dtype.kind == "f":  # calibrate() gives log_n its n0: the same law, last bits apart
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    else:
        assert found == wanted


@pytest.mark.parametrize("take", PYTHON.values(), ids=PYTHON)
def test_a_number_is_the_multiplier_of_q_k(take: Callable[[Any], Any]) -> None:
    np.testing.assert_array_equal(take(0.25), take(laws.Constant(0.25)))


@pytest.mark.parametrize(("typo", "meant"), [("logn", "log_n"), ("LOG_N", "log_n"), ("log-n", "log_n")])
@pytest.mark.parametrize("take", PYTHON.values(), ids=PYTHON)
def test_what_was_meant_comes_first(take: Callable[[Any], Any], typo: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"^did you mean '{meant}'.* got '{typo}'$"):
        take(typo)


@pytest.fixture
def heads(tmp_path: Any) -> str:
    path = tmp_path / "heads.npz"
    np.savez(path, query=Q, key=K)
    return str(path)


#: Commands that take a law as their last argument; HEADS is a file.
COMMANDS = (
    "entropy HEADS --laws",
    "calibrate HEADS --n0 8 --laws",
    "theory --n 16 --laws",
    "mc entropy_vs_length --n 16 --samples 8 --seed 0 --laws",
    "mc softmax_saturation --head-dim 4 --samples 8 --laws",
    "laws --n 16 --laws",
    "explain",
)


def run(command: str, law: str, heads: str) -> int:
    return main([*(heads if word == "HEADS" else word for word in command.split()), law])


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_take_the_same(command: str, spelling: str, heads: str, capsys: Any) -> None:
    assert run(command, spelling, heads) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_say_what_was_meant(command: str, heads: str, capsys: Any) -> None:
    assert run(command, "logn", heads) == 2
    assert capsys.readouterr().err.startswith("attnscale: error: did you mean 'log_n'?")


def test_a_number_means_the_same_in_two_commands(heads: str, capsys: Any) -> None:
    found = []
    for text in ("0.25", "constant(value=0.25)"):
        assert main(["entropy", heads, "--laws", text, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["rows"])
    assert found[0] == found[1]
    assert {row["law"] for row in found[0]} == {"0.25"}


WITH_LENGTH = "log_n log_n_from_training qwen_log_n grok_temperature ministral_temperature beam_temperature"
WITH_LENGTH += " info_scale annealed entropy_invariant sparsity_invariant variance_invariant longrope"


@pytest.mark.parametrize("name", WITH_LENGTH.split())
def test_every_length_has_one_name(name: str) -> None:
    others = {"ministral_temperature": {"beta": 0.2}, "longrope": {"factor": 4.0}}.get(name, {})
    law = laws.get(name, train_length=99, **others)
    assert law.length_parameter is not None
    assert getattr(law, law.length_parameter) == 99
    assert laws.get(name, **{law.length_parameter: 99}, **others) == law
    assert "train_length" in law.explain()
    if law.length_parameter != "train_length":
        said = f"train_length is {law.length_parameter} of law '{name}': give one"
        with pytest.raises(TypeError, match=said):
            laws.get(name, train_length=99, **{law.length_parameter: 99})


def test_laws_without_a_length_refuse_one() -> None:
    said = "law 'ssmax' has no parameter 'train_length'; its parameters: s, b, floor"
    with pytest.raises(TypeError, match=said):
        laws.get("ssmax", train_length=99)


@pytest.mark.parametrize(
    ("law", "spelling"),
    [
        (laws.Standard(), "standard"),
        (laws.LogN(), "log_n"),
        (laws.LogN(base=64, floor=1.5), "log_n(base=64, floor=1.5)"),
        (laws.SSMax(s=[0.4, 2]), "ssmax(s=[0.4, 2])"),
        (laws.Constant(0.1), "0.1"),
        (laws.Constant(64), "64"),
        (2 * laws.Constant(0.1), "2.0 * 0.1"),
        (laws.YaRN(16, channels="all"), "yarn(factor=16, channels='all')"),
        (laws.InklingTemperature(over_head_dim=True), "inkling_temperature(over_head_dim=True)"),
        (laws.AdaptiveTemperature(threshold=1e-30), "adaptive_temperature(threshold=1e-30)"),
        (2 * laws.LogN(base=64), "2.0 * log_n(base=64)"),
        (laws.Annealed() * [0.5, 1], "[0.5, 1.0] * annealed"),
        (np.array([0.5, 1]) * laws.Annealed(), "[0.5, 1.0] * annealed"),
        (2 * (3 * laws.LogN()), "2.0 * 3.0 * log_n"),
    ],
    ids=str,
)
def test_the_shortest_spelling_is_read_back(law: laws.Law, spelling: str) -> None:
    assert law.spelling == spelling
    assert laws.get(spelling) == law
    assert laws.from_json(law.to_json()) == law
    assert eval(repr(law), vars(laws)) == law


def test_a_registered_law_has_a_spelling() -> None:
    laws.register("spelled_test")(lambda n, head_dim, *, n0=512: n / n0)
    assert laws.get("spelled_test", n0=64).spelling == "spelled_test(n0=64)"
    assert laws.get("2 * spelled_test(n0=64)").scale(128, 9) == 4


def test_a_number_times_a_law() -> None:
    """A factor is one number or one for each head; n, channels and sources are those of the law."""
    law = [1.0, 2.0] * laws.LogN(base=16)
    rows = at.attention_entropy(Q, K, scale=law, is_causal=True)
    one, two = (at.attention_entropy(Q, K, scale=c * laws.LogN(base=16), is_causal=True) for c in (1, 2))
    np.testing.assert_array_equal(rows, [one[0], two[1]])
    np.testing.assert_array_equal(one, at.attention_entropy(Q, K, scale=laws.LogN(base=16), is_causal=True))
    positions = 3 * laws.GrokTemperature(4)
    assert positions.n_means == "query position"
    assert positions.multiplier_at(17, 4) == pytest.approx(6)  # position 16 = 4^2
    assert (2 * laws.YaRN(16)).channels == "rotated"
    assert "scale    amplitude * (" in law.explain()
    measured = at.attention_entropy(Q, K, scale=2 * laws.CriticalScale())
    assert np.isfinite(measured).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: 2 * laws.ScaleInvariant(), ValueError, "law 'scale_invariant' adds to the score as well"),
        (lambda: "2" * laws.LogN(), TypeError, "amplitude must be a number, got '2'"),
        (lambda: laws.get("x * log_n"), ValueError, "a number times a law is written '1.2 * NAME', got"),
        (lambda: laws.get("2 * logn"), ValueError, "did you mean 'log_n'?"),
        (lambda: laws.get("nan * log_n"), ValueError, "a number times a law is written '1.2 * NAME', got"),
        (lambda: laws.get("2 * log_n", base=3), TypeError, "parameters stand in the name or beside it, got"),
    ],
)
def test_products_that_are_none(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        make()
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("returned", [None, "0.1", [1, "a"]])
def test_a_registered_law_returns_numbers(returned: Any) -> None:
    laws.register("returns_something")(lambda n, head_dim: returned)
    with pytest.raises(TypeError, match="law 'returns_something' must return the scale as numbers, got"):
        at.attention_entropy(Q, K, scale="returns_something")


@pytest.mark.parametrize(("value", "seen"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_a_registered_law_returns_finite_numbers(value: float, seen: str) -> None:
    laws.register("is_finite_beyond")(lambda n, head_dim, *, n0=3: np.where(n > n0, -0.1, value))
    counted = "keys that the query may see, after every mask"
    message = rf"law 'is_finite_beyond' must return finite numbers, got {seen} at n = {{}} \({counted}\)"
    for spelling in ("is_finite_beyond", "2 * is_finite_beyond"):
        with pytest.raises(ValueError, match=message.format(1)):
            at.attention(Q, K, K, scale=spelling, is_causal=True)
        with pytest.raises(ValueError, match=message.format(1)):
            at.attention_gradients(Q, K, K, np.ones_like(Q), scale=spelling, is_causal=True)
    law = laws.get("is_finite_beyond")
    with pytest.raises(ValueError, match=message.format(3)):
        law.multiplier([512, 3], 64)
    with pytest.raises(ValueError, match=message.format(3)):
        at.montecarlo.entropy_vs_length(3, law=law, samples=1)
    # A scale may be negative, and every n is valid here.
    assert np.isfinite(at.attention(Q, K, K, scale=laws.get("is_finite_beyond", n0=0), is_causal=True)).all()


def test_a_registered_law_of_what_is_infinite_may_be_infinite() -> None:
    """Keys that tie for the top have no gap: n is infinite there, as it is for critical_scale."""
    laws.register("of_gaps", n_means="row gaps")(lambda n, head_dim: n)
    assert laws.get("of_gaps").scale(np.inf, 64) == np.inf


def test_the_file_of_a_sweep_takes_the_same(tmp_path: Any, capsys: Any) -> None:
    pytest.importorskip("xarray")
    pytest.importorskip("joblib")
    text = """
        function = "attnscale.montecarlo:entropy_vs_length"
        [grid]
        law = [{}]
        [constants]
        n = 16
        head_dim = 4
        samples = 8
        rng = 0
    """
    path = tmp_path / "sweep.toml"
    for law in SPELLINGS:
        path.write_text(text.format(repr(law)), encoding="utf-8")
        assert main(["sweep", str(path), "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert row["value"] == pytest.approx(of_montecarlo(SPELLINGS[law]), rel=1e-12)
    path.write_text(text.format("0.25"), encoding="utf-8")
    assert main(["sweep", str(path), "--json"]) == 0


@pytest.mark.parametrize("text", ["1/8", "", "0.1x"])
def test_what_is_no_name_may_have_been_meant_as_a_number(text):
    with pytest.raises(ValueError, match=r"^a law must be a number, as 0\.125, or a name, as 'log_n', got"):
        laws.get(text)
