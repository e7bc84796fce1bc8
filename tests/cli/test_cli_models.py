# SPDX-License-Identifier: BSD-3-Clause
"""``diagnose`` and ``report`` on an encoder-decoder and several texts, against the model's own weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnscale.cli import main

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

# transformers and torch warn about their own affairs while they load and run.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

TEXTS = {"long": range(4, 44), "short": range(4, 44, 2), "decoder": range(5, 14)}  # 40, 20 and 9 words
NAMES = ("encoder.layers.{}.self_attn", "decoder.layers.{}.self_attn", "decoder.layers.{}.encoder_attn")
KEYS = ("encoder_attentions", "decoder_attentions", "cross_attentions")


@pytest.fixture
def bart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with a small random encoder-decoder, and texts of 40, 20 and 9 words beside it."""
    torch.manual_seed(0)
    sizes = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = transformers.BartConfig(vocab_size=50, d_model=32, init_std=0.3, pad_token_id=1, **sizes)
    config.encoder_ffn_dim = config.decoder_ffn_dim = 16
    config.decoder_start_token_id = 0
    transformers.BartModel(config).save_pretrained(tmp_path / "bart")
    words = {
        name: i for i, name in enumerate(["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(4, 50))])
    }
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, **special).save_pretrained(tmp_path / "bart")
    for name, numbers in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(" ".join(f"w{i}" for i in numbers), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "bart"


def tokens(name: str) -> list[int]:
    """Of a text, with what the tokenizer puts around it."""
    text = Path(f"{name}.txt").read_text(encoding="utf-8")
    return list(transformers.AutoTokenizer.from_pretrained("bart")(text)["input_ids"])


def expected(texts: list[list[int]], decoder: list[int]) -> dict[str, np.ndarray]:
    """Mean entropy of each head, (heads,), over the real rows of each module, from eager weights."""
    model = transformers.AutoModel.from_pretrained("bart", attn_implementation="eager").eval()
    width = max(map(len, texts))
    ids = torch.tensor([each + [1] * (width - len(each)) for each in texts])
    start = torch.tensor([decoder] * len(texts))
    with torch.no_grad():
        given = {"attention_mask": (ids != 1).long(), "decoder_input_ids": start}
        weights = model(input_ids=ids, **given, output_attentions=True)
    found = {}
    for key, name in zip(KEYS, NAMES, strict=True):
        for layer, each in enumerate(weights[key]):
            p = each.double().numpy()
            rows = -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1)
            real = (ids != 1).numpy() if key == "encoder_attentions" else np.ones(rows[:, 0].shape, bool)
            found[name.format(layer)] = np.moveaxis(rows, 1, -1)[real].mean(0)
    return found


def diagnosed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["diagnose", "bart", *arguments, "--json"]) == 0
    return {row["module"]: row for row in json.loads(capsys.readouterr().out)["rows"]}


def test_an_encoder_decoder(bart: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The text goes to the encoder, and the decoder has its start token or a text of its own."""
    start = ["--text", "long.txt", "--n", "32"]
    whole, alone = tokens("long")[:32], diagnosed(start, capsys)
    both = diagnosed([*start, "--decoder-text", "decoder.txt"], capsys)
    for rows, decoder in ((alone, [0]), (both, tokens("decoder"))):
        for name, values in expected([whole], decoder).items():
            np.testing.assert_allclose(rows[name]["entropy_by_head"], values, atol=1e-4)
            assert rows[name]["kind"] == ("cross" if "encoder_attn" in name else "self")
    cross = diagnosed([*start, "--kind", "cross", "--modules", "*.1.*"], capsys)
    assert list(cross) == ["decoder.layers.1.encoder_attn"]


def test_texts_of_several_lengths_are_padded_and_only_real_rows_count(
    bart: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["--text", "long.txt", "short.txt", "--n", "32"]
    rows = diagnosed([*start, "--decoder-text", "decoder.txt"], capsys)
    for name, values in expected([tokens("long")[:32], tokens("short")], tokens("decoder")).items():
        np.testing.assert_allclose(rows[name]["entropy_by_head"], values, atol=1e-4)
    assert main(["diagnose", "bart", *start]) == 0
    left_out = 32 - len(tokens("short"))
    assert f"{left_out} of 64 rows are padding, and no part of any number" in capsys.readouterr().out


def test_a_page_has_both_towers_and_cross_attention(bart: str, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["report", "bart", "--text", "long.txt", "--lengths", "32", "--laws", "log_n", "--json"]
    assert main([*start, "--decoder-text", "decoder.txt"]) == 0
    content = json.loads(capsys.readouterr().out)
    groups = [
        "encoder, self-attention",
        f"decoder, self-attention, {len(tokens('decoder'))} keys",
        "decoder, cross-attention",
    ]
    assert [*dict.fromkeys(content["groups"])] == groups
    values = expected([tokens("long")[:32]], tokens("decoder"))
    of_modules = np.array(content["entropy"])[:, 0, 0].reshape(-1, 2)
    for name, found in zip(content["modules"][::2], of_modules, strict=True):
        if "decoder" not in name or "encoder_attn" in name:  # a page has the last eighth of causal rows
            np.testing.assert_allclose(found, values[name], atol=1e-4)
    assert main([*start, "--kind", "cross"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert {*content["groups"]} == {""}
    assert {*content["modules"]} == {NAMES[2].format(0), NAMES[2].format(1)}
