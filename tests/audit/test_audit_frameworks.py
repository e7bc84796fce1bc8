# SPDX-License-Identifier: BSD-3-Clause
"""Reports of frameworks that compute another scale, each with a config that shows it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import attnscale as at
import numpy as np
import pytest
from audit_configs import (
    DEEPSEEK,
    GEMMA2,
    LLAMA,
    LLAMA4,
    MAMBA,
    MINISTRAL,
    NO_YARN,
    PHI4_MINI,
    ROOT,
    YARN,
    resolve,
    sizes,
    typed,
    yarn,
)
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


def recorded(name: str, part: str) -> at.audit.Defect:
    """The record whose words contain `part`."""
    (defect,) = (each for each in at.audit.FRAMEWORKS[name].defects if part in each.what)
    return defect


def shown(name: str, part: str) -> tuple[at.audit.ScalePlan, at.audit.ScalePlan]:
    """Plans of a record's config by the model and by the framework; the record's words contain `part`."""
    defect = recorded(name, part)
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
    plan = quietly(defect.config)
    for release in filter(None, (*(each.release for each in defect.seen), defect.since, defect.before)):
        theirs, found = at.audit.as_framework(plan, f"{name}-{release}")
        assert theirs.warnings == plan.warnings  # none is newer than the record
        assert (defect in found) == (release != defect.before)
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
    ("llama.cpp", "LongRoPE, of Phi-3", "rotated", 1 / (1 + math.log(32) / math.log(4096))),
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


def test_angles() -> None:
    """Scalings that are dropped, and YaRN's bounds in whole pairs: 1.02, 1.09 and 1.76 were measured."""
    plan, theirs = shown("mlx-lm", "linear scaling")
    here, there = (each[0].rotation.frequencies() for each in (plan, theirs))
    assert there / here == pytest.approx(np.full(64, 4.0), rel=1e-12)
    assert theirs[0].rotation.kind == "default"
    for name in ("mlx-lm", "llama.cpp", "vllm", "sglang"):
        plan, theirs = shown(name, "truncate")
        here, there = (each[0].rotation.frequencies()[[5, 11, 14, 17, 25]] for each in (plan, theirs))
        assert there / here == pytest.approx([1, 1.02, 1.09, 1.76, 1], abs=5e-3)
    plan, theirs = shown("mlx-lm", "long_factor")
    assert [each[0].rotation.frequencies()[0] for each in (plan, theirs)] == [1.0, 0.25]
    assert plan[0].rotation.frequencies(10**5).tolist() == theirs[0].rotation.frequencies().tolist()
    plan, theirs = shown("mlx-lm", "pairs channels")
    (found,) = plan.differences(theirs)
    assert (found.what, found.here, found.there) == ("pairs", "rope_interleave = True", "as usual")


def test_windows_and_layers_without_rotation() -> None:
    plan, theirs = shown("mlx-lm", "sliding window")
    assert (plan.window(0), theirs.window(0)) == (4096, None)
    plan, theirs = shown("llama.cpp", "EXAONE 4")
    assert [(each.window, each.rotated) for each in plan.layers[2:4]] == [(4096, 128), (None, 0)]
    assert {(each.window, each.rotated) for each in theirs.layers} == {(None, 128)}
    assert theirs[3].rotation == plan[2].rotation
    whole = {**recorded("llama.cpp", "EXAONE 4").config, "num_hidden_layers": 64, "layer_types": None}
    assert at.audit.as_framework(quietly(whole), "llama.cpp")[1] == ()


def test_padding_is_counted() -> None:
    plan, theirs = shown("transformers", "padding")
    (found,) = plan.differences(theirs)
    assert (found.what, found.here, found.there) == ("padding counts", False, True)


#: (framework with a release, the records of a Gemma 2).
RELEASES = [
    ("onnxruntime-genai-0.4.9", 1),
    ("onnxruntime-genai-0.5", 0),
    ("onnxruntime-genai-0.5.0", 0),
    ("onnxruntime-genai-0.6", 0),
    ("onnxruntime-genai", 0),
    ("flashinfer-0.1.6", 0),
    ("flashinfer-0", 1),
    ("flashinfer-0.2", 1),
    ("flashinfer-v0.2.3", 1),
    ("flashinfer", 1),
]


@pytest.mark.parametrize(("name", "count"), RELEASES)
def test_a_release_is_answered_by_the_record_of_then(name: str, count: int) -> None:
    assert len(at.audit.as_framework(resolve(GEMMA2), name)[1]) == count


@pytest.mark.parametrize(
    ("name", "last"),
    [("vllm-0.33.1", "0.33.0"), ("vllm-1", "0.33.0"), ("sglang-0.5.23.post1", "0.5.23")]
    + [(f"llama.cpp-{each}", "b11549") for each in ("b11550", "2026.11.11550", "2027.1.12000.1")],
)
def test_a_release_after_the_last_on_record_is_answered_with_a_warning(name: str, last: str) -> None:
    stem = name.partition("-")[0]
    for config in (LLAMA, EQUAL_MSCALES):
        plan = resolve(config)
        theirs, found = at.audit.as_framework(plan, name)
        assert (theirs.layers, found) == (at.audit.as_framework(plan, stem)[0].layers, found)
        (said,) = theirs.warnings
        assert said.endswith(f"is newer than any release on record: last seen in {last}")
        (said,) = at.audit.survey(["no such file"], framework=name).warnings
        assert said.endswith(f"last seen in {last}")
    for known in (stem, f"{stem}-{last}"):
        assert at.audit.as_framework(plan, known)[0].warnings == ()
        assert at.audit.survey(["no such file"], framework=known).warnings == ()


def test_builds_have_their_order() -> None:
    """llama.cpp counts builds; its package xllamacpp has the year and month before the build."""
    plan = quietly(recorded("llama.cpp", "LongRoPE, of Phi-3").config)
    counts = {"b9728": 1, "9872": 1, "2026.6.9713": 1, "b9873": 0, "2026.7.9873": 0, "2026.4.8672.1": 1}
    for release, count in counts.items():
        for name in ("llama.cpp", "xllamacpp"):
            assert len(at.audit.as_framework(plan, f"{name}-{release}")[1]) == count, release


OLMO3 = typed(
    "olmo3",
    **sizes(4096, 32, 32, max_position_embeddings=65536, sliding_window=4096),
    rope_scaling={**YARN, "rope_type": "yarn", "factor": 8.0, "attention_factor": 1.0},
)
EQUAL_MSCALES = {**LLAMA, "rope_scaling": {**YARN, "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 1.0}}
MINISTRAL_YARN = {
    **MINISTRAL,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
QWEN3_MOE = typed("qwen3_moe", **sizes(2048, 32, 48, head_dim=128), rope_scaling=YARN)
R1_QWEN3 = typed(
    "qwen3",
    **sizes(4096, 32, 36, head_dim=128, max_position_embeddings=131072),
    rope_scaling={**YARN, "attn_factor": 0.8782488562869419},
)
MSCALE_ALONE = {**LLAMA, "rope_scaling": {**YARN, "factor": 8.0, "mscale": 0.707}}
ONE_BASE = {**DEEPSEEK, "rope_scaling": {**YARN, "factor": 4.0}}
PAIRED = (1 + 0.1 * math.log(4)) ** 2

#: (config, framework, multiplier here over there).
RATIOS: list[tuple[dict[str, Any], str, float | None]] = [
    (OLMO3, "vllm-0.33.0", None),
    (OLMO3, "vllm-0.30.0", None),
    (OLMO3, "vllm-0.29", 1 / yarn(8) ** 2),  # 0.685
    (OLMO3, "vllm-0.25", 1 / yarn(8) ** 2),
    (OLMO3, "sglang", 1 / yarn(8) ** 2),
    (R1_QWEN3, "sglang", PAIRED),  # 1.2965
    (R1_QWEN3, "vllm", None),
    (R1_QWEN3, "vllm-0.29.0", PAIRED),
    (MINISTRAL_YARN, "sglang-0.5.23", None),
    (MINISTRAL_YARN, "sglang-0.5.16", None),
    (MINISTRAL_YARN, "sglang-0.5.15.post1", 1 / yarn(16) ** 2),  # 0.613
    (QWEN3_MOE, "mlx-lm", PAIRED),
    (EQUAL_MSCALES, "llama.cpp", 1 / yarn(8) ** 2),
    (EQUAL_MSCALES, "mlx-lm", None),
    (MSCALE_ALONE, "mlx-lm", (yarn(8) / yarn(8, 0.707)) ** 2),  # 1.2079 and 1.1470, squared
    (MSCALE_ALONE, "llama.cpp", None),
    (ONE_BASE, "llama.cpp", 1 / PAIRED),
    (DEEPSEEK, "llama.cpp", None),
]


@pytest.mark.parametrize(("config", "name", "ratio"), RATIOS)
def test_a_checkpoint_and_a_release(config: dict[str, Any], name: str, ratio: float | None) -> None:
    plan = quietly(config)
    theirs, _ = at.audit.as_framework(plan, name)
    found = {each.what: each.ratio for each in plan.differences(theirs)}
    if ratio is None:
        assert found.get("rotated", found.get("softcap")) is None
    else:
        assert found["rotated"] == pytest.approx(ratio, rel=1e-9)


def test_the_temperature_of_llama_4_in_vllm() -> None:
    plan = resolve(LLAMA4)
    theirs, found = at.audit.as_framework(plan, "vllm-0.33.0")
    assert "max_model_len 32768" in found[0].what
    here, there = (each.multiplier(layer=3, position=16384) for each in (plan, theirs))
    assert (here, there) == (pytest.approx(0.0980988, rel=1e-6), pytest.approx(0.0883883, rel=1e-6))


def test_what_gguf_says_is_not_doubted_by_records_of_configs() -> None:
    """The metadata of a file have the factors that llama.cpp reads: they are not those of config.json."""
    by_config, by_file = (
        replace(resolve(EQUAL_MSCALES), architecture=architecture) for architecture in ("", "llama")
    )
    assert len(at.audit.as_framework(by_config, "llama.cpp")[1]) == 1
    assert at.audit.as_framework(by_file, "llama.cpp") == (by_file, ())


def test_models_that_the_report_is_not_about() -> None:
    for name, config in (
        ("sglang", {**LLAMA, "rope_scaling": YARN}),
        ("tensorrt-llm", {**LLAMA, "rope_scaling": NO_YARN}),
        ("llama.cpp", GEMMA2),
        ("llama.cpp", PHI4_MINI),
        ("mlc-llm-0.17", LLAMA),
        ("maxtext-0.0.1", LLAMA),
        ("vllm-0.25", LLAMA),
        ("vllm-0.25", DEEPSEEK),  # which has a code path of its own there
        ("megatron-lm-0.13.0", DEEPSEEK),  # both weights are 1
        ("transformers-5.0.0", DEEPSEEK),
        ("vllm-tpu-0.10", {**DEEPSEEK, "rope_scaling": None}),
    ):
        plan = resolve(config)
        assert at.audit.as_framework(plan, name) == (plan, ()), name


def test_frameworks_that_are_not_on_record() -> None:
    for name, message in (
        ("nobody", "framework must be one of 'vllm'"),
        ("vllm-0.x", "release of framework 'vllm' must be numbers, as in vllm-0.29.0, got '0.x'"),
        ("vllm-", "release of framework 'vllm' must be numbers, as in vllm-0.29.0, got ''"),
        ("vllm-metal-0.5", "framework 'vllm-metal' is on record without a release, got"),
        (None, "framework must be one of 'vllm'"),
    ):
        with pytest.raises(ValueError, match=message):
            at.audit.as_framework(resolve(LLAMA), name)


def test_layers_without_an_answer_stay_without_one() -> None:
    plan = resolve(MAMBA)
    for name, defect in RECORDS:
        assert at.audit.as_framework(plan, of_release(name, defect)) == (plan, ())


def test_the_page_has_every_record_and_no_other() -> None:
    page = ROOT / "docs" / "reference" / "audit-frameworks.md"
    found = re.findall(r"^\| `(.+?)` \| (.+) \| (.+) \| (.+) \| (.*) \| (.*) \|$", with_lists(page), re.M)
    assert [(name, what, kind) for name, what, kind, *_ in found] == [
        (name, each.what, each.config["model_type"]) for name, each in RECORDS
    ]
    for (*_, source, versions, mended), (_, each) in zip(found, RECORDS, strict=True):
        assert source == f"`{each.reference}`" or source.endswith(f"]({each.reference})")
        assert (versions or "releases not known") == each.versions
        where = "there" if each.mended == each.reference else f"]({each.mended})"
        assert mended.endswith(where) if each.mended else not mended


@pytest.mark.parametrize("name", at.audit.FRAMEWORKS)
def test_known_differences_are_differences(name: str) -> None:
    """Keys that are not read make no difference where they give the same number."""
    configs = {id(each.config): each.config for one in at.audit.FRAMEWORKS.values() for each in one.defects}
    for config in configs.values():
        plan = quietly(config)
        theirs, defects = at.audit.as_framework(plan, name)
        assert bool(defects) == bool(plan.differences(theirs))


@pytest.mark.parametrize(
    ("name", "release"),
    [("vllm-0.33.0+cpu", "0.33.0"), ("vllm-0.25rc1", "0.25"), ("VLLM-v0.25.dev3", "0.25")],
)
def test_releases_as_packages_write_them(name: str, release: str) -> None:
    plan = quietly(recorded("vllm", "attention_factor").config)
    assert at.audit.as_framework(plan, name) == at.audit.as_framework(plan, f"vllm-{release}")
