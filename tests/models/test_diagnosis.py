# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale.torch.diagnose``: a table of a model's entropies, and its arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from attnscale.torch import diagnose, record  # noqa: E402

# transformers and torch give warnings of their own.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

IDS = torch.arange(40)[None] % 7


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_head=2, n_layer=3, vocab_size=50, initializer_range=0.5)
    return transformers.GPT2Model(config).eval()


def test_entropies_are_those_of_a_recording(model: Any) -> None:
    found = diagnose(model, IDS, [40, 10, 40], laws=["standard", "log_n"])
    assert (found.lengths, found.layers) == ((10, 40), (0, 1, 2))
    for index, n in enumerate(found.lengths):
        with torch.no_grad(), record(model, statistics="entropy", laws=["log_n"]) as log:
            model(IDS[:, :n])
        np.testing.assert_array_equal(found.entropy["standard"][index], log.mean_entropy())
        np.testing.assert_array_equal(found.entropy["log_n"][index], log.mean_entropy("log_n"))
        np.testing.assert_allclose(found.uniform_entropy[index], np.log(np.arange(1, n + 1)).mean())


def test_a_function_runs_the_model(model: Any) -> None:
    seen: list[int] = []

    def run(n: int) -> None:
        seen.append(n)
        model(input_ids=IDS[:, :n])

    found = diagnose(model, run, [20, 5])
    assert seen == [5, 20]
    same = diagnose(model, IDS, [5, 20])
    np.testing.assert_array_equal(found.entropy["standard"], same.entropy["standard"])


def test_default_lengths_are_those_that_fit(model: Any) -> None:
    assert diagnose(model, IDS).lengths == (40,)
    assert diagnose(model, torch.zeros(1, 130, dtype=torch.long)).lengths == (64, 128)


def test_the_table_in_every_form(model: Any) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    found = diagnose(model, IDS, [10, 40], per_head=True)
    data = found.to_xarray(unit="bits")
    assert data["entropy"].sizes == {"law": 1, "n": 2, "layer": 3, "head": 2}
    frame = found.to_pandas()
    assert len(frame) == 2 * 3 * 2
    np.testing.assert_allclose(data["entropy"].values.ravel() * np.log(2), frame["entropy"])
    heads = found.heads(bits=4, tokens=5)
    assert list(heads.to_pandas()["head"]) == [row["head"] for row in heads.rows()]
    at_40 = [row for row in heads.rows() if row["n"] == 40]
    np.testing.assert_allclose(np.mean([row["bits"] for row in at_40]), 4)
    assert sum(row["tokens"] for row in at_40) == 5 * 6


def test_some_of_the_calls(model: Any) -> None:
    found = diagnose(model, IDS, [10], select=lambda log: log.select(modules="h.1.*"))
    assert found.modules == ("h.1.attn",)


def test_ctrl_c_keeps_the_finished_lengths(model: Any) -> None:
    def run(n: int) -> None:
        if n == 20:
            raise KeyboardInterrupt
        model(IDS[:, :n])

    found = diagnose(model, run, [10, 20])
    assert (found.lengths, found.interrupted) == ((10,), True)
    with pytest.raises(KeyboardInterrupt):
        diagnose(model, run, [20])


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((IDS, [41]), {}, "lengths must be at most 40, the tokens of inputs, got 41"),
        ((IDS, [0]), {}, "lengths must be at least 1, got 0"),
        ((IDS, []), {}, "lengths must be at least one number of tokens, got none"),
        ((print,), {}, "lengths must be given with a function, got None"),
        ((IDS[0],), {}, r"inputs must be a tensor \(texts, n_tokens\) or a function, got"),
        ((IDS, 10), {}, "lengths must be a sequence of numbers of tokens, got 10"),
        ((IDS,), {"laws": []}, "laws must be at least one law, got none"),
        ((IDS,), {"laws": "log_n"}, "laws must be a sequence of laws, got 'log_n'"),
        ((lambda n: None, [5]), {}, "no attention of GPT2Model was recorded"),
    ],
)
def test_bad_arguments(model: Any, given: Any, options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        diagnose(model, *given, **options)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_lengths_of_any_array_are_integers(model: Any, kind: Any) -> None:
    found = diagnose(model, IDS, kind([10, 10, 20]))
    assert found.lengths == (10, 20)
    assert {type(n) for n in found.lengths} == {int}


def test_heads_need_their_measurements(model: Any) -> None:
    with pytest.raises(ValueError, match="per_head=True"):
        diagnose(model, IDS, [10]).heads()
    with pytest.raises(ValueError, match="bits must be above 0, got 0"):
        diagnose(model, IDS, [10], per_head=True).heads(bits=0)
