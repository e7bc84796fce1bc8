# SPDX-License-Identifier: BSD-3-Clause
"""Angles of rotary positions: frequencies against transformers, and reports of differences."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.cli import main
from audit_configs import GEMMA2, LLAMA, resolve, sizes, typed
from versions import written_for

#: Distances at which gaps are given by default.
DISTANCES = [1, 64, 4096]
LLAMA31 = {
    **LLAMA,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
PLAIN = {name: value for name, value in LLAMA31.items() if name != "rope_scaling"}
SIZES = sizes(512, 8, 4, max_position_embeddings=65536)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
LISTS = {
    "short_factor": [1.0 + 0.1 * i for i in range(32)],
    "long_factor": [2.0 + 0.5 * i for i in range(32)],
}
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 4096, **LISTS}
PHI = {"rope_scaling": LONG, "original_max_position_embeddings": 4096}
PHI_SHORT = {**PHI, "rope_scaling": {**LONG, "long_factor": LISTS["short_factor"]}}
ALPHA = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}

SPELLINGS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"rope_theta": 500000.0}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 30000.0}}),
    ("llama", {"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("llama", {"rope_scaling": {**LLAMA31["rope_scaling"], "rope_theta": 20000.0}}),
    ("llama", {"rope_theta": 500000.0, "rope_scaling": LLAMA31["rope_scaling"]}),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}),
    ("qwen2", {"rope_theta": 1e6, "rope_scaling": YARN}),
    ("qwen2", {"rope_theta": 1e6, "rope_scaling": {**YARN, "beta_fast": 16, "beta_slow": 2}}),
    ("gpt_oss", {"head_dim": 64, "rope_parameters": {**YARN, "rope_theta": 150000.0, "truncate": False}}),
    ("gpt_neox", {"rotary_pct": 0.25, "rotary_emb_base": 20000}),
    ("phi3", PHI),
    ("glm", {"head_dim": 64, "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    ("gemma3_text", {"head_dim": 64}),
    ("gemma3_text", {"head_dim": 64, "rope_theta": 2e6, "rope_local_base_freq": 20000.0}),
    ("gemma3_text", {"head_dim": 64, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("modernbert", {"global_rope_theta": 150000.0, "local_rope_theta": 15000.0}),
    pytest.param(
        "olmo3", {"rope_theta": 400000.0}, marks=written_for(f"transformers=={at.audit.TRANSFORMERS}")
    ),
    ("hunyuan_v1_dense", {"head_dim": 64, "rope_scaling": ALPHA}),
]


def theirs(kind: str, keys: dict[str, Any], layer: str, length: int) -> tuple[np.ndarray, float]:
    """Frequencies of transformers, and its factor of cos and sin."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.AutoConfig.for_model(kind, **json.loads(json.dumps({**SIZES, **keys})))
    parameters = config.rope_parameters
    nested = layer if layer in parameters else None
    entry = parameters[nested] if nested else parameters
    kind_of_rope = entry["rope_type"]
    share = entry.get("partial_rotary_factor", 1.0)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if kind_of_rope == "default" or "alpha" in entry:
        turned = int(size * share)
        base = entry["rope_theta"] * entry.get("alpha", 1.0) ** (turned / (turned - 2))
        return base ** -(np.arange(0, turned, 2) / turned), 1.0
    options = {"head_dim_key": "global_head_dim"} if kind_of_rope == "proportional" else {}
    function = ROPE_INIT_FUNCTIONS[kind_of_rope]
    found, factor = function(config, "cpu", seq_len=length, layer_type=nested, **options)
    return found.double().numpy(), factor


@pytest.mark.parametrize(("kind", "keys"), SPELLINGS)
@pytest.mark.parametrize("length", [100, 70000])
def test_frequencies_are_those_of_transformers(kind: str, keys: dict[str, Any], length: int) -> None:
    for layer in resolve(typed(kind, **SIZES, **keys)):
        assert layer.rotation is not None
        found = layer.rotation.frequencies(length)
        expected, _ = theirs(kind, keys, layer.kind, length)
        assert found is not None
        assert found.size == np.count_nonzero(expected)
        np.testing.assert_allclose(found, expected[: found.size], rtol=3e-6)


def test_proportional_angles() -> None:
    """Gemma 4 turns a quarter of the pairs of a head, at their frequencies in a head where all turn."""
    keys = {"head_dim": 64, "global_head_dim": 128, "num_hidden_layers": 6}
    plan = resolve(typed("gemma4_text", **{**SIZES, **keys}))
    full = plan[5].rotation
    assert full is not None
    np.testing.assert_allclose(full.frequencies(), 1e6 ** -(np.arange(0, 32, 2) / 128), rtol=1e-12)


_ASKED = ({}, {"rope_theta": 77777.0}, {"rope_local_base_freq": 33333.0}, {"rotary_emb_base": 44444.0})
#: Model types whose config does not determine the base of a layer, or has it elsewhere.
_OTHER_PLACES = {"cohere_compass_text", "deepseek_v4", "dots3_note_text", "ultrabert"}


@pytest.mark.maintainer
@pytest.mark.filterwarnings("ignore")
def test_the_base_of_every_model_type() -> None:
    """Bases that the config classes of transformers derive from four configs."""
    transformers = pytest.importorskip("transformers")
    defaults = json.loads((Path(at.audit.__file__).with_name("defaults.json")).read_text("utf-8"))["models"]
    counted = 0
    for kind, entry in defaults.items():
        if "rope_parameters" not in entry["defaults"] or kind in _OTHER_PLACES:
            continue
        for keys in _ASKED:
            try:
                theirs_ = transformers.CONFIG_MAPPING[kind](**keys).rope_parameters
            except (KeyError, AttributeError):  # no class of that name, or none with this key
                continue
            plan = at.audit.resolve(typed(kind, **{"hidden_size": 1024, "num_attention_heads": 8, **keys}))
            for layer in plan:
                if layer.rotation is not None:
                    expected = theirs_.get(layer.kind, theirs_)["rope_theta"]
                    assert layer.rotation.base == expected, (kind, keys, layer.kind)
                    counted += 1
    assert counted > 5000


def test_a_llama_config_without_its_scaling_and_with_another_base() -> None:
    """Angles of each pair, and their gaps between two positions, against plain NumPy."""
    (only,) = resolve(LLAMA31).differences(resolve({**PLAIN, "rope_theta": 10000.0}))
    assert (only.what, only.layers, only.first_position, only.ratio) == ("angles", (0, 1, 2, 3), None, None)
    pairs = np.arange(64)
    plain = 500000.0 ** (-pairs / 64)
    waves = 2 * math.pi / plain
    mixed = (8192 / waves - 1) / 3
    blend = (1 - mixed) * plain / 8 + mixed * plain
    here = np.where(waves > 8192, plain / 8, np.where(waves < 2048, plain, blend))
    there = 10000.0 ** (-pairs / 64)
    most = int(np.abs(here - there).argmax())
    assert (only.here, only.there) == pytest.approx((here[most], there[most]), rel=1e-12)
    assert [gap.distance for gap in only.gaps()] == DISTANCES
    for gap in only.gaps([1, 64, 4096, 100_000]):
        turned = np.abs(np.angle(np.exp(1j * gap.distance * (here - there))))
        assert gap.pairs == np.count_nonzero(turned >= 0.1)
        assert gap.largest == pytest.approx(turned.max(), abs=1e-9)
        assert gap.cosine == pytest.approx(np.cos(turned).mean(), abs=1e-9)
    assert only.keys_here[0] == "rope_theta = 500000.0"
    assert "rope_scaling: type llama3, factor = 8.0, low_freq_factor = 1.0" in only.keys_here[1]
    assert only.keys_there == ("rope_theta = 10000.0",)


LLAMA3 = LLAMA31["rope_scaling"]
MROPE = {"type": "mrope", "mrope_section": [8, 12, 12]}
CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("llama", {}, {"rope_theta": 20000.0}, "rope_theta"),
    ("llama", {}, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "factor"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, {}, "factor"),
    ("llama", {"rope_scaling": LLAMA3}, {"rope_scaling": {**LLAMA3, "high_freq_factor": 2.0}}, "high_freq"),
    ("qwen2", {"rope_scaling": YARN}, {"rope_scaling": {**YARN, "beta_fast": 8}}, "beta_fast"),
    ("glm", {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
    ("gpt_neox", {"rotary_pct": 0.5}, {"rotary_pct": 0.25}, "rotary_pct"),
    ("gptj", {"rotary_dim": 32}, {"rotary_dim": 64}, "rotary_dim"),
    ("phi3", PHI, PHI_SHORT, "long_factor"),
    ("gemma3_text", {"head_dim": 64}, {"head_dim": 64, "rope_local_base_freq": 2e4}, "rope_local_base_freq"),
    ("novel", {"rope_theta": 10000.0}, {"rope_theta": 20000.0}, "rope_theta"),
    (
        "qwen2_vl_text",
        {"rope_scaling": MROPE},
        {"rope_scaling": {**MROPE, "mrope_section": [12, 12, 8]}},
        "mrope_section",
    ),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("kind", "one", "other", "key"), CHANGES)
def test_each_key_that_changes_angles_is_named(
    kind: str, one: dict[str, Any], other: dict[str, Any], key: str
) -> None:
    first, second = (at.audit.resolve(typed(kind, **SIZES, **keys)) for keys in (one, other))
    found = [each for each in first.differences(second) if each.what in ("angles", "pairs")]
    assert found
    assert key in " ".join((*found[0].keys_here, *found[0].keys_there))
    assert key in found[0].source
    assert not [each for each in first.differences(first) if each.what in ("angles", "pairs")]


def test_spellings_of_the_same_angles_do_not_differ() -> None:
    inside = {**PLAIN, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    del inside["rope_theta"]
    assert resolve(PLAIN).differences(resolve(inside)) == ()
    once = {**PLAIN, "rope_scaling": {"type": "linear", "factor": 1.0}}
    assert resolve(PLAIN).differences(resolve(once)) == ()


def test_angles_that_differ_in_long_texts_alone() -> None:
    one, other = (resolve(typed("phi3", **SIZES, **keys)) for keys in (PHI, PHI_SHORT))
    (only,) = one.differences(other)
    assert "in texts of more than 4096 tokens" in str(only)


def test_distances_stay_within_the_window() -> None:
    small = {**GEMMA2, "sliding_window": 512}
    found = resolve(small).differences(resolve({**small, "rope_theta": 20000.0}))
    assert [(each.layers[:2], [gap.distance for gap in each.gaps()]) for each in found] == [
        ((0, 2), [1, 64]),
        ((1, 3), [1, 64, 4096]),
    ]


def test_a_base_that_is_not_a_number_is_not_an_error() -> None:
    """The scale does not depend on the base; two such configs are compared by their keys."""
    for base in ("many", None, -1, [1.0]):
        plan = at.audit.resolve({**LLAMA, "rope_theta": base})
        assert plan.multiplier(layer=0, position=0) == pytest.approx(128**-0.5)
    strange, plain = (at.audit.resolve({**LLAMA, "rope_theta": base}) for base in ("many", 10000.0))
    (only,) = strange.differences(plain)
    assert (only.what, only.gaps()) == ("angles", ())
    assert only.keys_here == ("rope_theta = many",)


Write = Callable[..., list[str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def files(*configs: dict[str, Any]) -> list[str]:
        paths = [tmp_path / f"{number}.json" for number in range(len(configs))]
        for path, config in zip(paths, configs, strict=True):
            path.write_text(json.dumps(config), encoding="utf-8")
        return [str(path) for path in paths]

    return files


def test_the_command_says_it_and_is_strict(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write(LLAMA31, {**PLAIN, "rope_theta": 10000.0})
    assert main(["audit", one, "--against", other, "--strict"]) == 3
    out, err = capsys.readouterr()
    assert err == "attnscale: error: 1 difference (--strict)\n"
    lines = out.splitlines()
    assert lines[0] == "no difference in what multiplies the score; of the angles:"
    assert lines[1].startswith("layers 0-3, angles: 63 of 64 pairs of channels turn otherwise, most of all ")
    assert lines[2].startswith("  from rope_theta = 500000.0; rope_scaling: type llama3")
    assert lines[2].endswith("here, rope_theta = 10000.0 there")
    assert lines[3].startswith("  two positions 1 apart: 9 of 64 pairs differ by 0.1 rad or more")
    assert [line.split(":")[0] for line in lines[3:]] == [f"  two positions {d} apart" for d in DISTANCES]
    main(["audit", one, "--against", other, "--at", "1000"])
    assert "  two positions 1000 apart: " in capsys.readouterr().out
    assert main(["audit", one, "--against", one, "--strict"]) == 0
    assert capsys.readouterr().out == "no difference\n"
    main(["audit", one, "--against", other, "--json"])
    (found,) = json.loads(capsys.readouterr().out)["differences"]
    assert [gap["distance"] for gap in found["angles"]] == DISTANCES
    main(["audit", one, "--against", other, "--csv", "-"])
    assert "two positions 64 apart" in capsys.readouterr().out


def test_angles_and_a_factor_of_the_score(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write(LLAMA31, {**PLAIN, "rope_scaling": YARN})
    main(["audit", one, "--against", other])
    out = capsys.readouterr().out
    assert out.startswith("layers 0-3, rotated channels: differs from i = 0 on")
    assert "\nlayers 0-3, angles: " in out
    assert "no difference" not in out
