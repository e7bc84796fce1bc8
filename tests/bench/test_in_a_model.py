# SPDX-License-Identifier: BSD-3-Clause
"""Cases of calls in a model: known times, and the same results with each attention."""

from __future__ import annotations

from functools import partial

import attnscale as at
import numpy as np
import pytest
from attnscale_bench import _in_model_cases, _models, _peers, _tensor_cases
from attnscale_bench._rows import at_least
from attnscale_bench._session import Measured, Session, random_heads
from attnscale_bench._timing import Estimate, Samples


def test_the_time_of_the_operator_is_taken_off_where_it_ran():
    wall = {
        "operator": [1.0, 2.0, 1.0],
        "attnscale": [3.0, 6.0, 3.0],  # 2, 4, 2 without the operator
        "torch": [7.0, 14.0, 7.0],
        "read": [1.0, 2.0, 1.0],
        "alone": [1.0, 2.0, 1.0],
    }
    measured = Measured(Samples(wall, wall), peak_flops=1.0, threads=1)
    ratio = partial(_in_model_cases.behind_ratio, measured=measured)
    assert ratio("torch", "attnscale") == Estimate(3.0, 0.0)
    assert ratio("read", "attnscale") == Estimate(0.5, 0.0)
    assert ratio("attnscale", "alone") == Estimate(2.0, 0.0)


def test_without_torch_each_row_says_so():
    session, target = Session(threads=1), at_least(1)
    rows = [
        *_in_model_cases.steps_behind_operator(session, "step", targets={128: target}),
        *_in_model_cases.decode_behind_operator(session, "decode", targets=(target, target)),
        *_in_model_cases.gpt_steps(session, "gpt", targets={(2, 16): target}),
    ]
    assert [row.name for row in rows] == ["step_128", "decode", "decode_torch", "gpt_2_16"]
    assert {(row.estimate, row.note) for row in rows} == {(None, "torch is not installed")}


@pytest.fixture
def torch():
    """PyTorch as a peer on one thread: on busy cores, its threads wait for each other in every operator."""
    found = _peers.load_torch()
    if found is None:
        pytest.skip("torch is not installed")
    with _peers.limit_threads(1, found):
        yield found


def losses(torch, steps):
    for attend in (at.torch.attention, torch.fused):
        step, infer = _models.torch_gpt(torch.module, partial(attend, is_causal=True), 2, 16)
        assert infer().shape == (2, 16, _models.VOCABULARY)
        yield [float(step()) for _ in range(steps)]


def test_a_step_of_the_small_gpt_has_the_loss_of_either_attention(torch):
    ours, theirs = losses(torch, 3)
    assert ours[0] > ours[1] > ours[2]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.slow
def test_the_small_gpt_is_the_same_model_in_jax(torch):
    jax = pytest.importorskip("jax")
    ours, _ = losses(torch, 1)
    attends = (partial(at.jax.attention, layout="bshd"), jax.nn.dot_product_attention)
    for attend in attends:
        loss, weights = _models.jax_gpt_step(partial(attend, is_causal=True), 2, 16)()
        np.testing.assert_allclose(float(loss), ours[0], rtol=1e-5)
        assert not np.array_equal(weights[-1], _models.gpt_weights(16)[-1])


def test_output_and_entropy_in_a_loss_have_the_gradients_by_hand(torch):
    arrays = random_heads(2, 16, 8)
    ours = _tensor_cases.output_and_entropy_step(torch, arrays)()
    for found, wanted in zip(ours, torch.output_and_entropy_step(*arrays)(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
