# SPDX-License-Identifier: BSD-3-Clause
"""Runs announce their cost before they begin; runs that no machine can do are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attnscale import montecarlo as mc
from attnscale.cli import main
from attnscale.montecarlo import _parameters, _run

_DAY = 86400.0


class Told(Exception):
    """Ends a run that would take days."""


def tell(line: str) -> None:
    raise Told(line)


def told(call: Callable[..., Any], *given: Any, **more: Any) -> str:
    """The announcement of a run; the run itself does not begin."""
    with pytest.raises(Told) as raised:
        call(*given, announce=tell, **more)
    return str(raised.value)


TOO_MANY = 2**53 + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: mc.entropy_vs_length(TOO_MANY),
        lambda: mc.needle_dilution([64, TOO_MANY], cosine=0.5),
        lambda: mc.averaging_error(TOO_MANY),
        lambda: mc.softmax_saturation(head_dim=8, n=TOO_MANY),
        lambda: mc.head_dimension(8, n=TOO_MANY),
        lambda: mc.max_cosine(TOO_MANY),
        lambda: mc.sparsity(TOO_MANY),
        lambda: mc.rank_and_sparsity(TOO_MANY),
        lambda: mc.jl_distortion(n=TOO_MANY, dim=2, k=2),
    ],
)
def test_more_than_float64_counts_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=rf"^n must be at most 2\^53, .* got {TOO_MANY}$"):
        call()


@pytest.mark.parametrize(
    ("name", "size", "call"),
    [
        ("n", "954 MiB", lambda: mc.sparsity(125_000_000)),
        ("n", "", lambda: mc.sparsity(2_000_000, model="sphere")),
        ("n", "", lambda: mc.rank_and_sparsity(10_000)),
        ("n", "", lambda: mc.max_cosine(2**42)),
        ("n", "2 GiB", lambda: mc.entropy_vs_length(2**42)),
        ("n", "", lambda: mc.needle_dilution(2**42, cosine=0.5)),
        ("n", "", lambda: mc.jl_distortion(n=10**5, dim=10**5, k=2)),
        ("k", "", lambda: mc.jl_distortion(n=1000, dim=10, k=10**6)),
        ("head_dim", "", lambda: mc.entropy_vs_length(8, head_dim=2**38)),
        ("head_dim", "", lambda: mc.dot_product_variance(head_dim=2**38)),
    ],
)
def test_more_than_memory_is_refused(
    name: str, size: str, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_parameters, "machine_memory", lambda: 2.0**29)
    rule = (
        rf"^{name} must be small enough for the memory of this machine, 512 MiB, got \d+, whose arrays take"
    )
    with pytest.raises(ValueError, match=rf"{rule} .*({size})"):
        call()


def test_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _parameters.machine_memory() > 2**26
    monkeypatch.setattr(_parameters.os, "sysconf", lambda name: 0)
    assert _parameters.machine_memory() == float("inf")


def test_a_trillion_keys_say_their_time() -> None:
    line = told(mc.entropy_vs_length, 10**12)
    assert line.startswith("this takes about ")
    assert line.endswith(": 1000 samples")
    assert " days" in line or " years" in line or " hours" in line
    assert told(mc.entropy_vs_length, [64, 10**12]).endswith(": 1000 samples for each of 2 cases")


def test_a_target_that_takes_days_says_so() -> None:
    line = told(mc.entropy_vs_length, 512, target_error=1e-9, max_samples=10**15, num_threads=1)
    assert " years: 1e+15 samples, and the target error 1e-09 needs about " in line
    assert line.endswith("it will not be reached")
    found = mc.entropy_vs_length(512, samples=1024, rng=0)["entropy"].standard_error
    needed = 1024 * (found / 1e-9) ** 2
    said = float(line.split("needs about ")[1].split(":")[0])
    assert said == pytest.approx(needed, rel=0.3)
    reached = told(mc.entropy_vs_length, 512, target_error=3e-7, max_samples=10**15)
    assert reached.endswith("samples, which the target error 3e-07 needs")
    # A row too long to try: the announcement has the largest allowed number.
    assert told(mc.entropy_vs_length, 10**9, target_error=1e-3).endswith(
        ": 1000000 samples, unless the target error 0.001 is reached before"
    )


def test_the_announced_time_is_the_time_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a factor of a few: a machine may do something else meanwhile."""
    from time import perf_counter

    monkeypatch.setattr(_run, "MINUTE", 1e-3)
    said: list[str] = []
    start = perf_counter()
    mc.entropy_vs_length([512, 4096], samples=10_000, rng=0, announce=said.append)
    seconds = perf_counter() - start
    assert len(said) == 1
    number, unit = said[0].removeprefix("this takes about ").split(":")[0].split()
    assert unit == "seconds"
    assert float(number) / 8 < seconds < 8 * float(number) + 1


def test_a_run_of_a_moment_says_nothing_and_no_number_changes() -> None:
    plain = mc.entropy_vs_length([64, 512], samples=100, rng=5)
    seen = mc.entropy_vs_length([64, 512], samples=100, rng=5, announce=tell)
    assert (seen.value == plain.value).all()
    with pytest.raises(TypeError, match="announce must be None or a function of a text, got True"):
        mc.entropy_vs_length(8, announce=True)  # type: ignore[arg-type]


def test_a_trial_does_not_change_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "MINUTE", 1e-9)
    for target in ({"samples": 512}, {"target_error": 0.02}):
        said: list[str] = []
        seen = mc.entropy_vs_length([64, 512], rng=5, announce=said.append, **target)
        plain = mc.entropy_vs_length([64, 512], rng=5, **target)
        assert said
        assert (seen.value == plain.value).all()
        assert (seen.samples == plain.samples).all()


def test_finished_samples_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "MINUTE", 1e-9)
    before = mc.entropy_vs_length(64, samples=100, rng=0)
    assert told(mc.entropy_vs_length, 64, samples=164, resume=before).endswith(": 64 samples")


def test_the_command_says_it_before_it_begins(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def begin(*_: Any, **__: Any) -> Any:
        assert "attnscale: this takes about " in capsys.readouterr().err
        raise KeyboardInterrupt

    monkeypatch.setattr(_run, "complete", begin)
    assert main(["mc", "entropy_vs_length", "--n", "1e12", "--samples", "64"]) == 130
    assert main(["mc", "max_cosine", "--n", "1e11"]) == 130


def test_the_command_names_refused_options(capsys: Any) -> None:
    assert main(["mc", "dot_product_variance", "--head-dim", str(TOO_MANY)]) == 2
    assert "--head-dim must be at most 2^53, beyond which" in capsys.readouterr().err
    assert main(["mc", "entropy_vs_length", "--n", "8", "--samples", str(TOO_MANY)]) == 2
    assert "samples must be at most 2^53, beyond which float64 skips integers" in capsys.readouterr().err


def test_durations() -> None:
    seconds = (90, 150, 3 * 3600, 5 * _DAY, 3000 * _DAY)
    assert [_run.duration(each) for each in seconds] == [
        *("90 seconds", "2.5 minutes", "3 hours", "5 days", "8.2 years")
    ]
