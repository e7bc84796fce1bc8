# SPDX-License-Identifier: BSD-3-Clause
"""``diagnose`` and ``report`` on encoder-decoders and models of images, against their eager attention."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnscale.cli import main

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

# transformers and torch give warnings of their own.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

WORDS = ["names", "refer", "to", "objects", "are", "introduced", "by", "name", "binding", "operations"]
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VISION = {**SIZES, "num_attention_heads": 4, "image_size": 16, "patch_size": 4}


def bart() -> Any:
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 32}
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 4}
    options = {"vocab_size": 20, "decoder_start_token_id": 2, "init_std": 0.5}
    return transformers.BartModel(transformers.BartConfig(**sizes, **layers, **heads, **ENDS, **options))


def t5() -> Any:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    return transformers.T5Model(transformers.T5Config(vocab_size=20, **sizes))


def vit() -> Any:
    return transformers.ViTModel(transformers.ViTConfig(**VISION, initializer_range=0.5))


def clip() -> Any:
    text = {**SIZES, **ENDS, "vocab_size": 20, "max_position_embeddings": 24}
    vision = {**VISION, "num_hidden_layers": 3}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision))


def llava() -> Any:
    words = transformers.LlamaConfig(vocab_size=20, **SIZES)
    seen = transformers.CLIPVisionConfig(**VISION)
    config = transformers.LlavaConfig(text_config=words, vision_config=seen, image_token_id=19)
    return transformers.LlavaModel(config)


def roberta() -> Any:
    options = {**ENDS, "pad_token_id": 1, "vocab_size": 20, "max_position_embeddings": 34}
    return transformers.RobertaModel(transformers.RobertaConfig(**SIZES, **options))


def deberta() -> Any:
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "initializer_range": 0.5}
    options = {"vocab_size": 20, "max_position_embeddings": 32}
    return transformers.DebertaV2Model(transformers.DebertaV2Config(**SIZES, **relative, **options))


def swin() -> Any:
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2]}
    return transformers.SwinModel(transformers.SwinConfig(**sizes, window_size=4))


def whisper() -> Any:
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 16}
    options = {"vocab_size": 20, "max_source_positions": 20, "decoder_start_token_id": 1}
    return transformers.WhisperModel(transformers.WhisperConfig(**layers, **heads, **ENDS, **options))


BUILDERS = (bart, t5, vit, clip, llava, roberta, deberta, swin, whisper)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small random models, each with a tokenizer of ten words, and three texts."""
    folder = tmp_path_factory.mktemp("models")
    vocabulary = {word: place for place, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")
    for build in BUILDERS:
        torch.manual_seed(0)
        build().save_pretrained(folder / build.__name__)
        tokenizer.save_pretrained(folder / build.__name__)
    (folder / "long.txt").write_text(" ".join(WORDS * 6))
    (folder / "short.txt").write_text(" ".join(WORDS[:6]))
    (folder / "decoder.txt").write_text(" ".join(WORDS[:4]))
    return folder


@pytest.fixture
def call(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run a command in the folder of the models and return its output."""
    monkeypatch.chdir(models)

    def run(*arguments: str, status: int = 0) -> str:
        found = main(arguments)
        captured = capsys.readouterr()
        assert found == status, captured.err
        return captured.err if status else captured.out

    return run


def tokens(n: int) -> list[int]:
    return [4 + i % 10 for i in range(n)]


def padded(*lengths: int) -> dict[str, Any]:
    most = max(lengths)
    return {
        "input_ids": torch.tensor([tokens(n) + [0] * (most - n) for n in lengths]),
        "attention_mask": torch.tensor([[int(i < n) for i in range(most)] for n in lengths]),
    }


def eager(folder: Path, inputs: dict[str, Any], field: str, real: Any = None) -> list[np.ndarray]:
    """Mean entropy of the model's own weights for each layer and head, over rows of real tokens."""
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True)[field]
    found = []
    for each in weights:
        rows = torch.special.entr(each.double()).sum(-1).movedim(1, -1)
        found.append(rows[torch.ones(rows.shape[:2]) > 0 if real is None else real].mean(0).numpy())
    return found


def entropies(report: Any) -> dict[str, list[float]]:
    return {row["module"]: row["entropy_by_head"] for row in report["rows"]}


def test_a_text_goes_to_the_encoder_and_the_decoder_begins_or_reads_its_own(call: Any, models: Path) -> None:
    start = ("diagnose", "bart", "--text", "long.txt", "--n", "16", "--json")
    for decoder, more in (([2], ()), (tokens(4), ("--decoder-text", "decoder.txt"))):
        inputs = {"input_ids": torch.tensor([tokens(16)]), "decoder_input_ids": torch.tensor([decoder])}
        found = json.loads(call(*start, *more))
        assert [row["kind"] for row in found["rows"]] == ["self", "self", *["self", "cross"] * 2]
        for field, pattern in (
            ("encoder_attentions", "encoder.layers.{}.self_attn"),
            ("decoder_attentions", "decoder.layers.{}.self_attn"),
            ("cross_attentions", "decoder.layers.{}.encoder_attn"),
        ):
            for layer, own in enumerate(eager(models / "bart", inputs, field)):
                seen = entropies(found)[pattern.format(layer)]
                np.testing.assert_allclose(seen, own, atol=1e-5)
    cross = json.loads(call(*start, "--kind", "cross"))["rows"]
    wanted = [(f"decoder.layers.{layer}.encoder_attn", layer, "cross") for layer in (0, 1)]
    assert [(row["module"], row["layer"], row["kind"]) for row in cross] == wanted
    encoder = json.loads(call(*start, "--modules", "encoder.*", "*.0.encoder_attn"))["rows"]
    names = [*(f"encoder.layers.{layer}.self_attn" for layer in (0, 1)), "decoder.layers.0.encoder_attn"]
    assert [row["module"] for row in encoder] == names


@pytest.mark.parametrize(
    ("model", "field"),
    [("bart", "encoder_attentions"), ("t5", "encoder_attentions"), ("deberta", "attentions")],
)
def test_rows_of_padding_are_left_out_and_counted(call: Any, models: Path, model: str, field: str) -> None:
    given = ("diagnose", model, "--text", "long.txt", "--text", "short.txt", "--n", "16")
    inputs = padded(16, 6)
    begin = {"bart": 2, "t5": 0}
    start = {"decoder_input_ids": torch.full((2, 1), begin[model])} if model in begin else {}
    own = eager(models / model, {**inputs, **start}, field, inputs["attention_mask"] > 0)
    both = entropies(json.loads(call(*given, "--json")))
    names = [name for name in both if name.startswith("encoder")]
    assert len(names) == 2
    for name, each in zip(names, own, strict=True):
        np.testing.assert_allclose(both[name], each, atol=1e-5)
    assert "\n10 of 32 rows are padding, and are left out.\n" in call(*given)


def test_heads_of_several_towers_are_named(call: Any, models: Path) -> None:
    arguments = ("diagnose", "clip", "--text", "short.txt", "--plot", "clip.png")
    said = call(*arguments)
    assert "The model's images are random pixels: --images FOLDER gives it images." in said
    assert (
        "The figure has no line of means, since towers or kinds differ: --kind and --modules choose." in said
    )
    lines = [line.split() for line in said.splitlines()]
    names = [" ".join(line[1:-3]) for line in lines if line[:1] == ["6"]]
    assert names == [
        *(f"vision_model.encoder.layers.{layer}.self_attn" for layer in range(3)),
        *(f"text_model.encoder.layers.{layer}.self_attn" for layer in range(2)),
        *("mean vision_model", "mean text_model"),
    ]
    call("diagnose", "clip", "--text", "short.txt", "--per-head", "--csv", "heads.csv")
    with Path("heads.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 4 + 2 * 2
    assert {row["module"].split(".")[0] for row in rows} == {"vision_model", "text_model"}
    assert {row["kind"] for row in rows} == {"self"}


def test_images_are_those_of_the_folder_or_random_ones(call: Any, models: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = models / "images"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (2, 16, 16, 3), dtype=np.uint8)
    for number, each in enumerate(pixels):
        image.fromarray(each).save(folder / f"{number}.png")
    inputs = {"pixel_values": torch.from_numpy(pixels / 127.5 - 1).movedim(-1, 1).float()}
    own = eager(models / "vit", inputs, "attentions")
    said = call("diagnose", "vit", "--images", "images")
    assert "Images: 2 of images, as 16 x 16 pixels from -1 to 1." in said
    found = json.loads(call("diagnose", "vit", "--images", "images", "--json"))
    np.testing.assert_allclose([*entropies(found).values()], own, atol=1e-5)
    assert {row["n"] for row in found["rows"]} == {0}
    both = json.loads(call("diagnose", "clip", "--text", "short.txt", "--images", "images", "--json"))
    assert len(both["rows"]) == 5
    assert "random pixels" in call("diagnose", "vit", "--plot", "vit.png")
    assert "The audit does not know what multiplies the scores of SwinModel" in call("diagnose", "swin")


def test_a_model_of_text_and_images_reads_a_text_alone_and_says_so(call: Any, models: Path) -> None:
    start = ("diagnose", "llava", "--text", "short.txt")
    own = eager(models / "llava", {"input_ids": torch.tensor([tokens(6)])}, "attentions")
    np.testing.assert_allclose([*entropies(json.loads(call(*start, "--json"))).values()], own, atol=1e-5)
    assert "The model read the text alone, without images." in call(*start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bart --text long.txt --n 33", "--n must be at most 32, the positions of the model, got 33"),
        ("roberta --text long.txt --n 33", "--n must be at most 32, the positions of the model, got 33"),
        ("clip --text long.txt --n 25", "--n must be at most 24, the positions of the model, got 25"),
        ("bart --text short.txt --decoder-text long.txt", "BartModel: has no room for its input"),
        ("vit --text short.txt", "--text must be left out: ViTModel reads no text"),
        ("roberta", "RobertaModel reads a text, which --text FILE gives"),
        ("roberta --text short.txt --images .", "--images .: RobertaModel looks at no images"),
        ("roberta --text short.txt --decoder-text short.txt", "RobertaModel has no decoder beside its enc"),
        ("whisper --text short.txt", "WhisperModel reads input_features, no text and no images"),
        ("clip", "CLIPModel does not run on images alone"),
        (
            "roberta --text short.txt --kind cross",
            "--kind cross: no call of attention matches, there is encoder.la",
        ),
        ("roberta --text short.txt --modules decoder*", "--modules decoder*: no call of attention matches"),
        ("deberta --text short.txt --laws log_n", "more than one product of queries and keys"),
    ],
)
def test_what_a_model_does_not_take_is_one_line(call: Any, arguments: str, message: str) -> None:
    said = call("diagnose", *arguments.split(), status=2)
    assert message in said
    assert said.count("\n") == 1


def test_a_page_has_towers_and_kinds_as_groups(call: Any, models: Path) -> None:
    start = ("--text", "long.txt", "--lengths", "8", "16", "--json", "-o", "page.html")
    for model, groups, note in (
        ("bart", ["encoder, self-attention", "decoder, cross-attention"], None),
        ("t5", ["encoder, self-attention", "decoder, cross-attention"], None),
        ("clip", ["vision_model, 17 keys", "text_model"], "the model's images are random pixels"),
        ("llava", [""], "the model read the text alone, without images"),
    ):
        found = json.loads(call("report", model, *start))
        assert [*dict.fromkeys(found["groups"])] == groups
        assert found["lengths"] == [8, 16]
        assert found["about"].get("note", "").startswith(note or "")
    page = json.loads(call("report", "bart", *start, "--decoder-text", "decoder.txt", "--kind", "cross"))
    begun = {"decoder_input_ids": torch.tensor([tokens(4)])}
    for place, n in enumerate((8, 16)):
        own = eager(models / "bart", {"input_ids": torch.tensor([tokens(n)]), **begun}, "cross_attentions")
        np.testing.assert_allclose(np.array(page["entropy"])[:, place, 0], np.concatenate(own), atol=1e-4)
    assert set(page["modules"]) == {f"decoder.layers.{layer}.encoder_attn" for layer in (0, 1)}
    assert "the page shows 2 of 6 calls of attention; 4 are left out" in page["about"]["note"]
    call("report", "clip", *start, "--modules", "vision_model.*", "--csv", "heads.csv")
    with Path("heads.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["module"] for row in rows} == {f"vision_model.encoder.layers.{i}.self_attn" for i in range(3)}
    assert {row["n"] for row in rows} == {"17"}  # patches and the class
    assert "random pixels" in call("report", "vit", "-o", "page.html")
