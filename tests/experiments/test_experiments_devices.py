# SPDX-License-Identifier: BSD-3-Clause
"""Trainings on another device, and with products in bfloat16."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import other_device  # noqa: E402
from attnscale.experiments import Training, find  # noqa: E402
from tiny import units  # noqa: E402

pytestmark = pytest.mark.torch


def test_products_are_in_the_type_of_the_training_and_weights_are_not():
    seen = set()
    training = Training(seed=0, dtype="bfloat16")
    model = torch.nn.Linear(3, 1)

    def loss(step):
        found = model(torch.ones(2, 3))
        seen.add(found.dtype)
        return found.square().mean()

    training.fit(model, loss, steps=3)
    assert (seen, model.weight.dtype) == ({torch.bfloat16}, torch.float32)


#: Changes that leave few steps to experiments that train.
SMALL = {
    "context": {"steps": 2, "tests": 64, "lengths": (32,)},
    "recall": {"steps": 2, "tests": 8},
    "collapse": {"steps": 20},
    "hybrids": {"steps": 2},
    "learned_scales": {"steps": 100},
    "length_tasks": {"tests": 8},
    "two_heads": {"steps": 3, "tests": 8, "lengths": (16,)},
}
NAMES = [
    name if name in ("context", "recall") else pytest.param(name, marks=pytest.mark.maintainer)
    for name in SMALL
]


@cache
def first_model(name, **changes):
    """Arrays of the first model of an experiment."""
    study = replace(find(name).reduced(), **SMALL[name], **changes)
    case = units(study, 1)[1][0]
    only = ",".join(f"{axis}={label}" for axis, label in case.parameters.items())
    return study.run(1, progress=False, only=only).arrays


@pytest.mark.parametrize("name", NAMES)
def test_another_device_gives_the_same_numbers(name):
    other_device.need()
    if name == "collapse":  # trains at the edge of stability: another order of sums shows after five steps
        assert first_model(name, device=other_device.NAME).keys() == first_model(name).keys()
        return
    here, there = first_model(name), first_model(name, device=other_device.NAME)
    for each, values in here.items():
        # Training enlarges rounding errors of float32.
        np.testing.assert_allclose(there[each], values, rtol=2e-2, atol=2e-2, err_msg=each)


@pytest.mark.parametrize("name", NAMES)
def test_products_in_bfloat16_train_nearly_the_same_model(name):
    wide, narrow = first_model(name), first_model(name, dtype="bfloat16")
    steps = 5 if name == "collapse" else None  # later ones are at the edge of stability, as above
    for each in wide.keys() & {"nll", "loss", "error"}:
        pair = narrow[each][..., :steps], wide[each][..., :steps]
        np.testing.assert_allclose(*pair, rtol=0.1, atol=0.05, err_msg=each)
    assert any(not np.array_equal(narrow[each], wide[each], equal_nan=True) for each in wide)


def test_a_store_of_float32_has_no_field_for_the_type(tmp_path):
    """Stores from before the field are continued."""
    study = replace(find("recall").reduced(), **SMALL["recall"])
    for dtype, refused in (("float32", False), ("bfloat16", True)):
        options = {"progress": False, "store": tmp_path}
        if refused:
            with pytest.raises(ValueError, match="store must be of this training"):
                replace(study, dtype=dtype).run(1, **options)
        else:
            replace(study, dtype=dtype).run(1, **options)
    (mark,) = (path for path in tmp_path.iterdir() if path.suffix == ".json")
    assert "dtype" not in mark.read_text()
