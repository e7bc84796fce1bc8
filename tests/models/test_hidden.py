# SPDX-License-Identifier: BSD-3-Clause
"""Keys that a large negative number hides, filled in or added: in statistics, laws, means and reports."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.models.spellings import HEAD_DIM, WIDTH, Right, Spelling  # noqa: E402
from tests.models.spellings.base import causal, hide  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fixed_seed")]

BATCH, N, LENGTHS = 3, 10, (10, 6, 3)
LAW = "log_n(base=4)"
SCALE = HEAD_DIM**-0.5
TYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
#: How far statistics may be off, of scores in the type.
NEAR = {"float32": 1e-5, "float64": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}


def texts() -> Any:
    """True where a text has tokens, (batch, n)."""
    return torch.arange(N) < torch.tensor(LENGTHS)[:, None]


def number_of(name: str, dtype: Any) -> float:
    if name == "lowest":
        return float(torch.finfo(dtype).min)
    return float(torch.finfo(dtype).min) / 2 if name == "half of the lowest" else float(name)


def filled(scores: Any, seen: Any, lowest: float) -> Any:
    return scores.masked_fill(~seen, lowest)


def filled_in_place(scores: Any, seen: Any, lowest: float) -> Any:
    return scores.masked_fill_(~seen.expand_as(scores), lowest)


def chosen(scores: Any, seen: Any, lowest: float) -> Any:
    return torch.where(seen, scores, torch.tensor(lowest, dtype=scores.dtype))


def chosen_by_a_mask_of_numbers(scores: Any, seen: Any, lowest: float) -> Any:
    return torch.where(seen.to(scores) > 0.5, scores, lowest)


def put(scores: Any, seen: Any, lowest: float) -> Any:
    scores[~seen.expand_as(scores)] = lowest
    return scores


def added(scores: Any, seen: Any, lowest: float) -> Any:
    return scores + torch.zeros(seen.shape, dtype=scores.dtype).masked_fill(~seen, lowest)


def added_in_place(scores: Any, seen: Any, lowest: float) -> Any:
    scores += torch.zeros(seen.shape, dtype=scores.dtype).masked_fill(~seen, lowest)
    return scores


def taken_off(scores: Any, seen: Any, lowest: float) -> Any:
    return scores - torch.zeros(seen.shape, dtype=scores.dtype).masked_fill(~seen, -lowest)


def added_as_a_multiple(scores: Any, seen: Any, lowest: float) -> Any:
    return scores + (1.0 - seen.to(scores)) * lowest


def added_by_alpha(scores: Any, seen: Any, lowest: float) -> Any:
    return torch.add(scores, 1 - seen.to(scores), alpha=lowest)


WAYS = (
    *(filled, filled_in_place, chosen, chosen_by_a_mask_of_numbers, put, added, added_in_place, taken_off),
    *(added_as_a_multiple, added_by_alpha),
)


class Model(Spelling):
    """Attention with a mask of keys, over one product or over two."""

    def __init__(self, way: Any, lowest: float, seen: Any, two: bool = False) -> None:
        super().__init__()
        self.way, self.lowest, self.seen, self.two = way, lowest, seen, two

    def forward(self, x: Any) -> Any:
        q, k, v = self.split(x)
        scores = torch.matmul(q, k.mT) * SCALE
        if self.two:
            scores = scores + torch.matmul(q, k.flip(-2).mT) * SCALE
        return self.joined(self.way(scores, self.seen, self.lowest).softmax(-1) @ v)

    def answer(self, x: Any) -> Right:
        """Rows of the module, in float64."""
        q, k = (self.four(layer, x) for layer in (self.to_q, self.to_k))
        product = q @ (k + k.flip(-2) * self.two).mT * SCALE
        rows = torch.ones_like(self.seen[:, 0, 0]) if self.seen.shape[0] == 1 else texts()
        return Right(product.detach(), lambda y: hide(y, self.seen), real=rows.expand(BATCH, N))


def padding() -> Any:
    return texts()[:, None, None]


def padding_of_all_rows() -> Any:
    return padding() & texts()[:, None, :, None]


MASKS = {
    "causal": lambda: causal(N)[None, None],
    "padding": padding,
    "padding of rows, too": padding_of_all_rows,
    "both": lambda: causal(N) & padding(),
}


def rows_of(values: Any, real: Any) -> Any:
    return np.moveaxis(np.asarray(values, np.float64), 1, -1)[real.numpy()]


@pytest.mark.parametrize("two", [False, True], ids=["one product", "two products"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", ["-1e4", "-1e9", "-inf", "lowest", "half of the lowest"])
def test_a_key_that_a_number_hides_is_hidden_everywhere(name: str, way: Any, mask: str, two: bool) -> None:
    if name == "-inf" and way in (added_as_a_multiple, added_by_alpha):
        pytest.skip("zero times infinity")
    x = torch.randn(BATCH, N, WIDTH)
    model = Model(way, number_of(name, torch.float32), MASKS[mask](), two)
    right = model.answer(x)
    p, real = right.weights(), right.real
    scores = right.after(right.product)
    wanted = {
        "n_visible": right.n_visible(),
        "entropy": right.entropy(),
        "min_score": scores.masked_fill(scores == -torch.inf, torch.inf).amin(-1),
        "mean_score": (p * right.product).sum(-1),
        "concentration": p.square().sum(-1),
    }
    has_law = not two and way not in (put, added_by_alpha)
    with torch.no_grad(), at.torch.record(model, statistics=[*wanted], laws=[LAW] * has_law) as log:
        output = model(x)
    mixed = (p @ model.four(model.to_v, x)).transpose(1, 2).flatten(-2).float()
    torch.testing.assert_close(output[real], model.to_out(mixed)[real].detach(), rtol=0, atol=1e-4)
    if has_law:
        factor = right.n_visible().clamp(min=1).double().log()[..., None] / np.log(4)
        wanted[f"entropy under {LAW}"] = right.entropy(factor)
    np.testing.assert_array_equal(log.rows[""], real)
    for statistic, values in wanted.items():
        found = rows_of(log[statistic][""], real)
        np.testing.assert_allclose(found, rows_of(values, real), rtol=0, atol=1e-5, err_msg=statistic)


@pytest.mark.parametrize("way", [filled, chosen, added, taken_off], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", ["-1e4", "-inf", "lowest", "half of the lowest"])
@pytest.mark.parametrize("dtype", TYPES)
def test_it_is_so_in_every_type(dtype: str, name: str, way: Any) -> None:
    x = torch.randn(BATCH, N, WIDTH).to(TYPES[dtype])
    model = Model(way, number_of(name, TYPES[dtype]), padding()).to(TYPES[dtype])
    right = model.answer(x)
    with torch.no_grad(), at.torch.record(model, statistics=["n_visible", "entropy"], laws=[LAW]) as log:
        model(x)
    np.testing.assert_array_equal(log.rows[""], right.real)
    np.testing.assert_array_equal(
        rows_of(log["n_visible"][""], right.real), rows_of(right.n_visible(), right.real)
    )
    factor = right.n_visible().double().log()[..., None] / np.log(4)
    for statistic, values in (("entropy", right.entropy()), (f"entropy under {LAW}", right.entropy(factor))):
        found, wanted = (rows_of(y, right.real) for y in (log[statistic][""], values))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=NEAR[dtype], err_msg=statistic)


@pytest.mark.parametrize("way", [filled, added], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", ["-1e4", "-1e9", "lowest"])
def test_a_monitor_counts_so_too(name: str, way: Any) -> None:
    x = torch.randn(BATCH, N, WIDTH)
    model = Model(way, number_of(name, torch.float32), padding())
    monitor = at.torch.Monitor(model, every=1, rows=None, statistics=["n_visible", "entropy", "min_score"])
    with monitor.step():
        model(x)
    right = model.answer(x)
    real = right.real
    wanted = {
        "n_visible": rows_of(right.n_visible(), real).mean(0),
        "entropy": rows_of(right.entropy(), real).mean(0),
        "min_score": rows_of(hide(right.product, model.seen).nan_to_num(neginf=9e9).amin(-1), real).min(0),
    }
    for statistic, values in wanted.items():
        np.testing.assert_allclose(monitor[statistic][0, 0], values, rtol=0, atol=1e-5, err_msg=statistic)


@pytest.mark.parametrize("way", [filled, added], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", ["-1e4", "-1e9", "lowest"])
def test_a_report_and_the_kinds_of_heads_count_so_too(name: str, way: Any) -> None:
    """A padded text has the report of the text alone."""
    x = torch.randn(1, N, WIDTH)
    seen = (torch.arange(N) < 6)[None, None, None]
    padded, alone = Model(way, number_of(name, torch.float32), seen), Model(filled, -torch.inf, seen[..., :6])
    alone.load_state_dict(padded.state_dict())
    found = []
    for model, given in ((padded, x), (alone, x[:, :6])):
        with torch.no_grad(), at.torch.record(model, keep_heads=True, laws=[LAW]) as log:
            model(given)
        found.append(log)
    one, other = (log.report(laws=[LAW]) for log in found)
    assert one.summary == other.summary
    for name in ("lengths", "entropy", "uniform_entropy", "first_key_weight", "received_by", "by_position"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=0, atol=1e-5, err_msg=name)
    kinds, wanted = (log.head_kinds()[""] for log in found)
    np.testing.assert_allclose(kinds.first, wanted.first, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[0].mean_entropy(), found[1].mean_entropy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[0].mean_entropy(LAW), found[1].mean_entropy(LAW), rtol=0, atol=1e-5)


def test_keys_hidden_by_an_added_number_are_reported() -> None:
    """Once, in a line of the log; one that was filled in, or is -inf, needs no word."""
    x = torch.randn(BATCH, N, WIDTH)

    def lines(way: Any, lowest: float) -> int:
        with torch.no_grad(), at.torch.record(model := Model(way, lowest, padding())) as log:
            model(x)
        return len(str(log).splitlines())

    plain = lines(filled, -torch.inf)
    assert lines(added, -1e4) == lines(added, -1e9) == plain + 1
    assert lines(filled, -1e4) == lines(filled, -1e9) == lines(added, -torch.inf) == plain


@pytest.mark.parametrize("slope", [0.5, 3.0])
def test_a_bias_that_fades_hides_nothing(slope: float) -> None:
    """Numbers that differ between keys are not a mask if they leave a weight."""
    place = torch.arange(N)
    bias = -slope * (place[:, None] - place).abs().float()

    def faded(scores: Any, seen: Any, lowest: float) -> Any:
        return scores + bias

    x = torch.randn(BATCH, N, WIDTH)
    with (
        torch.no_grad(),
        at.torch.record(
            model := Model(faded, 0.0, torch.ones(1, 1, 1, N, dtype=torch.bool)), statistics=["n_visible"]
        ) as log,
    ):
        model(x)
    np.testing.assert_array_equal(log["n_visible"][""], np.full((BATCH, 4, N), N))


def test_a_number_that_hides_no_key_is_none() -> None:
    """All keys of a row are moved alike, which changes no weight; and -100 in one type leaves some."""
    x = torch.randn(BATCH, N, WIDTH)
    model = Model(added, -1e4, torch.zeros(1, 1, 1, N, dtype=torch.bool))
    with torch.no_grad(), at.torch.record(model, statistics=["n_visible", "entropy"]) as log:
        model(x)
    q, k = (model.four(layer, x) for layer in (model.to_q, model.to_k))
    entropy = torch.special.entr((q @ k.mT * SCALE).softmax(-1)).sum(-1).detach()
    np.testing.assert_allclose(log["entropy"][""], entropy, rtol=0, atol=2e-3)  # float32 at -1e4
    np.testing.assert_array_equal(log["n_visible"][""], np.full((BATCH, 4, N), N))
