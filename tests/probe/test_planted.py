# SPDX-License-Identifier: BSD-3-Clause
"""Faults planted into transformers are named, and transformers as it is raises no alarm."""

import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from tools.probe.planted import PLANTED  # noqa: E402
from tools.probe.run_planted import Outcome, planted, quick, untouched  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.maintainer, pytest.mark.filterwarnings("default")]

#: Families whose windows are short or absent; among them is every kind of layer and of rotation.
FAMILIES = ("llama", "ministral3", "qwen3", "gemma3_text", "gpt_oss", "glm4", "smollm3", "deepseek_v3")


@pytest.fixture(autouse=True)
def one_thread():
    """One thread: small matrices take longest on many."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", quick(), ids=lambda case: f"{case.family}: {case.slip}")
def test_a_planted_fault_is_named(case, dtype):
    (outcome,) = planted([case], dtype)
    assert outcome.slips == (case.slip,)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_as_it_is_raises_no_alarm(family):
    found = [*untouched([family], ["yarn", "temperature"], "float32")]
    assert found
    assert [each for each in found if each.wrong or each.slips] == []


def test_faults_are_many_and_of_most_families():
    assert len(PLANTED) >= 60
    assert len({case.family for case in PLANTED}) >= 18
    assert len({(case.slip, case.family, case.scaling, case.layer) for case in PLANTED}) == len(PLANTED)


def test_an_outcome_is_right_only_with_the_one_name():
    named = Outcome("llama", "yarn", "0", "YaRN dropped", ("YaRN dropped",), True)
    assert named.right
    assert not named._replace(slips=()).right
    assert not named._replace(slips=("YaRN dropped", "cap absent")).right
    assert not named._replace(wanted="").right
    assert named._replace(wanted="", slips=(), wrong=False).right
