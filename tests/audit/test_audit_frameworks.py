# SPDX-License-Identifier: BSD-3-Clause
"""Reports of frameworks that compute another scale, each with a config that shows it."""

from __future__ import annotations

import math
import re
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.audit._releases import is_release, release_of
from audit_configs import DEEPSEEK, GEMMA2, LLAMA, MAMBA, NO_YARN, PHI4_MINI, ROOT, resolve, tempered, yarn
from pages import with_lists

from tools.audit import quietly

RECORDS = [(name, defect) for name, framework in at.audit.FRAMEWORKS.items() for defect in framework.defects]
FOLDER = {"vllm": "vllm", "sglang": "sglang", "mlx-lm": "mlx_lm"}
NAMED = [pytest.param(name, defect, id=f"{name}: {defect.what}") for name, defect in RECORDS]


def of_release(name: str, defect: at.audit.Defect) -> str:
    """The framework with the last release in which the defect was seen, or with one before it was mended."""
    if defect.seen:
        return f"{name}-{defect.seen[-1].release}"
    return f"{name}-0.0.1" if defect.before else name


def shown(name: str, part: str) -> tuple[at.audit.ScalePlan, at.audit.ScalePlan]:
    """Plans of a record's config by the model and by the framework; the record's words contain `part`."""
    (defect,) = (each for each in at.audit.FRAMEWORKS[name].defects if part in each.what)
    plan = quietly(defect.config)  # one of them is of a model type that transformers does not have
    return plan, at.audit.as_framework(plan, of_release(name, defect))[0]


@pytest.mark.parametrize(("name", "defect"), NAMED)
def test_the_config_shows_the_defect_and_no_other(name: str, defect: at.audit.Defect) -> None:
    plan = quietly(defect.config)
    theirs, found = at.audit.as_framework(plan, of_release(name, defect))
    assert found == (defect,)
    assert plan.differences(theirs)
    assert theirs.warnings == plan.warnings
    unread = "rope_scaling.attn_factor" if "attn_factor," in defect.what else "model_type"
    assert all(warning.startswith(unread) for warning in plan.warnings)


@pytest.mark.parametrize(("name", "defect"), NAMED)
def test_each_has_a_source_and_releases(name: str, defect: at.audit.Defect) -> None:
    thread = r"https://github\.com/[\w.-]+/[\w.-]+/((pull|issues)/\d+|commit/[0-9a-f]{40})"
    ways = {each.how for each in defect.seen}
    if not re.fullmatch(thread, defect.reference):  # then it was read or run here
        folder = defect.reference.partition("/")[0]
        assert (ROOT / defect.reference).is_file() if "run" in ways else folder == FOLDER[name]
        assert ways <= {"read", "run"}
    assert not defect.mended or re.fullmatch(thread, defect.mended)
    assert ways <= {"reported", "read", "run"}
    newest = release_of(at.audit.FRAMEWORKS[name].newest)
    for release in (*(each.release for each in defect.seen), *filter(None, [defect.since, defect.before])):
        assert is_release(release)
        assert not newest.is_before(release_of(release))
    assert all(defect.concerns(release_of(each.release)) for each in defect.seen)
    assert str(defect).startswith(f"{defect.what} ({defect.reference}; {defect.versions}")
    assert ("; mended" in str(defect)) == bool(defect.mended)
    texts = {
        name: getattr(defect, name) for name in ("what", "reference", "versions", "mended", "since", "before")
    }
    assert texts.items() <= defect.to_dict().items()


def test_no_report_is_recorded_twice() -> None:
    assert len({(name, each.reference, each.what) for name, each in RECORDS}) == len(RECORDS)


#: (framework, words of the record, channels, its multiplier over the model's); a factor of cos and sin is
#: squared.
STATED = [
    ("vllm", "mscale", "rotated", 1.2772588722239782**2),
    ("vllm", "attention_factor", "rotated", 1.4158883083359672**2),
    ("mlx-lm", "attention_factor", "rotated", yarn(64) ** 2),
    ("prime-rl", "attention_factor", "rotated", yarn(64) ** 2),
    ("megatron-lm", "mscale", "unrotated", (yarn(40, 0.5) / yarn(40)) ** 2),
    ("transformers", "mscale_all_dim", "unrotated", 1 / yarn(40, 0.707) ** 2),
    ("sglang", "mscale", "rotated", yarn(16) ** 2),
    ("sglang", "Laguna", "rotated", yarn(64) ** 2),
    ("tensorrt-llm", "Laguna", "rotated", (1 + 0.1 * yarn(64) * math.log(64)) ** 2 / yarn(64) ** 2),
    ("tensorrt-model-connect", "GPT-OSS", "rotated", 1 / yarn(32) ** 2),
    ("vllm-tpu", "latent", "unrotated", 1 / yarn(40) ** 2),
    ("mobius", "latent", "unrotated", 1 / yarn(40, 0.707) ** 2),
    ("executorch", "LongRoPE", "rotated", 1 / (1 + math.log(32) / math.log(4096))),
    ("llama.cpp", "Gemma 2 9B", "rotated", math.sqrt(256 / 224)),
    ("llama.cpp", "LongRoPE", "rotated", 1 / (1 + math.log(32) / math.log(4096))),
    ("ferrox", "Gemma", "rotated", math.sqrt(168 / 128)),
    ("tt-metal", "Gemma", "rotated", math.sqrt(168 / 128)),
    ("mlx-swift", "Gemma", "rotated", math.sqrt(144 / 128)),
    ("ollama", "GLM", "unrotated", math.sqrt(256 / 576)),
    ("mlc-llm", "BERT", "unrotated", 8.0),
    ("vllm", "scale_attn_weights", "unrotated", 1 / math.sqrt(128)),
    ("mlx-lm", "key_multiplier", "rotated", 32.0),
    ("transformers", "OPT", "unrotated", 1 / 8),
    ("llama.cpp", "PLaMo", "unrotated", math.sqrt(128)),
]


@pytest.mark.parametrize(("name", "part", "channels", "factor"), STATED)
def test_the_factor_is_that_of_the_thread(name: str, part: str, channels: Any, factor: float) -> None:
    plan, theirs = shown(name, part)
    here, there = (each.multiplier(layer=0, position=0, channels=channels) for each in (plan, theirs))
    assert there / here == pytest.approx(factor, rel=1e-12)


def test_figures_that_threads_give_in_words() -> None:
    """Per cent and times, rounded as in the threads."""
    assert 100 * (yarn(16) - 1) == pytest.approx(27.7, abs=0.1)  # sglang 22711, vllm 48621
    assert (1 + 0.1 * yarn(64) * math.log(64)) / yarn(64) == pytest.approx(1.122, abs=5e-4)  # TensorRT-LLM
    assert (1 + 0.1 * yarn(32) * math.log(32)) / yarn(32) == pytest.approx(1.089, abs=5e-4)  # 16379
    assert yarn(40, 0.707) ** 2 == pytest.approx(1.59, abs=5e-3)  # mobius 548
    assert yarn(40) ** 2 == pytest.approx(1.87, abs=5e-3)
    plan, theirs = shown("executorch", "LongRoPE")
    here, there = (each.multiplier(layer=0, position=0, channels="rotated") for each in (plan, theirs))
    assert here / there == pytest.approx(1.42, abs=5e-3)


def test_what_grows_with_the_position_differs_from_there_on() -> None:
    for name, part, first in (
        ("vllm", "llama_4_scaling_beta", 16384),
        ("vllm", "logn", 8192),
        ("tensorrt-llm", "logn", 8192),
        ("llama.cpp", "Grok", 1025),
    ):
        plan, theirs = shown(name, part)
        assert {each.first_position for each in plan.differences(theirs)} == {first}


def test_scales_by_the_layer() -> None:
    for name in ("transformer-lens", "deepspeed-inference", "mlc-llm", "transformers"):
        plan, theirs = shown(name, "scale_attn_by_inverse_layer_idx")
        found = ([x.multiplier(layer=i, position=0) for i in range(12)] for x in (theirs, plan))
        ratios = np.divide(*found)
        assert ratios == pytest.approx(np.arange(1, 13), rel=1e-12)


def test_soft_caps_and_sinks() -> None:
    for name in ("vllm-metal", "sglang", "flashinfer", "onnxruntime-genai", "mlx-swift"):
        plan, theirs = shown(name, "soft-cap")
        assert (plan.softcap(0), theirs.softcap(0)) == (50.0, None)
    plan, theirs = shown("vllm-transformers", "sinks")
    assert (plan.sink(0), theirs.sink(0)) == (True, False)


def test_padding_is_counted() -> None:
    plan, theirs = shown("transformers", "padding")
    (found,) = plan.differences(theirs)
    assert (found.what, found.here, found.there) == ("padding counts", False, True)


def test_versions() -> None:
    plan = resolve(GEMMA2)
    counts = {"onnxruntime-genai": ("", "-0.4.9"), "flashinfer": ("", "-0.2", "-v0.2.3")}
    others = {"onnxruntime-genai": ("-0.5", "-0.5.0", "-0.6"), "flashinfer": ("-0.1.6",)}
    for count, versions in ((1, counts), (0, others)):
        for name in (f"{framework}{each}" for framework, some in versions.items() for each in some):
            assert len(at.audit.as_framework(plan, name)[1]) == count, name
    for name in ("vllm", "vllm-0.9", "vllm-0.25"):
        assert len(at.audit.as_framework(resolve(tempered(16384)), name)[1]) == 1, name


def test_a_version_behind_the_last_that_a_report_is_about() -> None:
    plan = quietly(at.audit.FRAMEWORKS["llama.cpp"].defects[2].config)
    assert len(at.audit.as_framework(plan, "llama.cpp-b9728")[1]) == 1
    with pytest.raises(ValueError, match=r"framework 'llama\.cpp' is on record up to version 9728, got"):
        at.audit.as_framework(plan, "llama.cpp-b9729")


def test_models_that_the_report_is_not_about() -> None:
    for name, config in (
        ("sglang", {**LLAMA, "rope_scaling": NO_YARN}),
        ("tensorrt-llm", {**LLAMA, "rope_scaling": NO_YARN}),
        ("llama.cpp", GEMMA2),
        ("llama.cpp", PHI4_MINI),
        ("mlc-llm", LLAMA),
        ("maxtext", LLAMA),
        ("vllm", LLAMA),
        ("vllm", DEEPSEEK),  # which has a code path of its own there
        ("megatron-lm", DEEPSEEK),  # both weights are 1
        ("transformers", DEEPSEEK),
        ("vllm-tpu", {**DEEPSEEK, "rope_scaling": None}),
    ):
        plan = resolve(config)
        assert at.audit.as_framework(plan, name) == (plan, ()), name


def test_frameworks_that_are_not_on_record() -> None:
    for name, message in (
        ("nobody", "framework must be one of 'vllm'"),
        ("vllm-0.26", "on record up to version 0.25"),
        ("sglang-0.5", "on record without a version"),
    ):
        with pytest.raises(ValueError, match=message):
            at.audit.as_framework(resolve(LLAMA), name)


def test_layers_without_an_answer_stay_without_one() -> None:
    plan = resolve(MAMBA)
    for name in at.audit.FRAMEWORKS:
        assert at.audit.as_framework(plan, name) == (plan, ())


def test_the_page_has_every_record_and_no_other() -> None:
    page = ROOT / "docs" / "reference" / "audit-frameworks.md"
    found = re.findall(r"^\| `(.+?)` \| (.+) \| (.+) \| (.+) \| (.*) \| (.*) \|$", with_lists(page), re.M)
    assert [(name, what, kind) for name, what, kind, *_ in found] == [
        (name, each.what, each.config["model_type"]) for name, each in RECORDS
    ]
    for (*_, thread, versions, mended), (_, each) in zip(found, RECORDS, strict=True):
        assert thread.endswith(f"]({each.reference})")
        assert (versions or "versions not known") == each.versions
        where = "there" if each.mended == each.reference else f"]({each.mended})"
        assert mended.endswith(where) if each.mended else not mended
