# SPDX-License-Identifier: BSD-3-Clause
"""Plans from the metadata of GGUF files."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import attnscale as at
import pytest
from attnscale.cli import main
from audit_configs import resolve, yarn

from tools.audit import quietly


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(of: Any) -> bytes:
    """A value behind the number of its type."""
    if isinstance(of, bool):
        return struct.pack("<I?", 7, of)
    if isinstance(of, int):
        return struct.pack("<II", 4, of)
    if isinstance(of, float):
        return struct.pack("<If", 6, of)
    if isinstance(of, str):
        return struct.pack("<I", 8) + text(of)
    first = of[0]
    items = b"".join(value(each)[4:] for each in of)
    return struct.pack("<I", 9) + value(first)[:4] + struct.pack("<Q", len(of)) + items


def header(kind: str, **keys: Any) -> bytes:
    """A file without tensors; __ in the name of a key stands for a point."""
    named = {f"{kind}.{name.replace('__', '.')}": each for name, each in keys.items()}
    pairs = {"general.architecture": kind, **named, "tokenizer.ggml.tokens": ["<s>", "a", "bc"]}
    body = b"".join(text(name) + value(each) for name, each in pairs.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + body


def sizes(**keys: Any) -> dict[str, Any]:
    return {"block_count": 4, "embedding_length": 4096, "attention__head_count": 32, **keys}


def scaling(**keys: Any) -> dict[str, Any]:
    return {f"rope__scaling__{name}": each for name, each in {"type": "yarn", **keys}.items()}


_YARN = scaling(factor=4.0, original_context_length=32768)
_MLA = {"attention__key_length": 576, "attention__key_length_mla": 192, "rope__dimension_count": 64}
_LATENT = sizes(**_MLA, **scaling(factor=40.0, original_context_length=4096, yarn_log_multiplier=0.1))
_MISTRAL = sizes(
    attention__key_length=128,
    attention__temperature_scale=0.125,
    **scaling(factor=16.0, original_context_length=16384, yarn_log_multiplier=1.0),
)
_PHI = sizes(
    embedding_length=3072, **scaling(type="longrope", original_context_length=4096, attn_factor=1.25)
)

FILES: list[tuple[str, dict[str, Any], str, float]] = [
    ("llama", sizes(), "llama", 128**-0.5),
    ("qwen2", sizes(**_YARN), "qwen2", yarn(4) ** 2 / math.sqrt(128)),
    ("qwen3", sizes(attention__key_length=64), "qwen3", 1 / 8),
    ("granite", sizes(attention__scale=0.0078125), "granite", 0.0078125),
    ("granite", sizes(), "granite", 128**-0.5),
    ("gemma", sizes(), "gemma", 128**-0.5),
    ("gpt-oss", sizes(attention__key_length=64), "gpt_oss", 1 / 8),
    ("deepseek2", _LATENT, "deepseek_v3", yarn(40) ** 2 / math.sqrt(192)),
    ("mistral3", _MISTRAL, "ministral3", (1 + 0.125 * math.log(2)) / math.sqrt(128)),
    ("phi3", {**_PHI, "context_length": 131072}, "phi3", 1.25**2 / math.sqrt(96)),
]


@pytest.mark.parametrize(("kind", "keys", "expected", "multiplier"), FILES)
def test_plans(tmp_path: Path, kind: str, keys: dict[str, Any], expected: str, multiplier: float) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(header(kind, **keys))
    plan = resolve(file)
    assert (plan.model_type, len(plan)) == (expected, 4)
    assert plan.multiplier(layer=0, position=16384, channels="rotated") == pytest.approx(multiplier, rel=1e-6)


def test_what_the_metadata_do_not_say_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(header("gemma2", **sizes(attention__key_length=128, attn_logit_softcapping=50.0)))
    plan = quietly(file)
    assert "model_type 'gemma2 of GGUF' is not known" in plan.warnings[0]
    assert plan.softcap(0) == 50
    file.write_bytes(header("qwen2", **sizes(**_YARN, rope__scaling__yarn_attn_factor=1.5)))
    assert "rope_parameters.yarn_attn_factor = 1.5 is not understood" in quietly(file).warnings[0]
    file.write_bytes(header("llama", **sizes(attention__head_count=[32, 16])))
    with pytest.raises(at.audit.ConfigError, match="head_count differs by layer"):
        resolve(file)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(header("llama", **sizes()))
    assert main(["audit", str(file)]) == 0
    assert "llama, 4 layers" in capsys.readouterr().out
    file.write_bytes(b"GGUF")
    assert main(["audit", str(file)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


WHOLE = header("llama", **sizes())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "does not begin with GGUF"),
        (b"PK\x03\x04 an archive", "does not begin with GGUF"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 1), "must be 2 or 3, little endian, got 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "at most 100000 keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "the header is cut"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 99), "of type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 2**61), "is cut"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, 2**63), "is cut"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + b"\x09\0\0\0" + struct.pack("<IQ", 9, 1) * 8,
            "of type 9",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + value("b"),
            "general.architecture must be a name",
        ),
        (
            header("llama", block_count="many", embedding_length=8, attention__head_count=2),
            "must be an integer",
        ),
    ],
)
def test_headers_that_lie_get_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(at.audit.ConfigError, match=said) as caught:
        at.audit.resolve(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", range(4, len(WHOLE), 7))
def test_a_header_that_is_cut_anywhere(tmp_path: Path, length: int) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(WHOLE[:length])
    with pytest.raises(at.audit.ConfigError, match="the header is cut"):
        at.audit.resolve(file)
