# SPDX-License-Identifier: BSD-3-Clause
"""A transformers model named on the command line, and its inputs: texts, images."""

from __future__ import annotations

import argparse
import inspect
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import audit
from .._base.text import by_reason, some_of
from .._files.heads import InputError, check_is_file, read_text
from .._report.text import readable
from ._options import add_option
from ._output import bad_input

if TYPE_CHECKING:
    from ..torch import AttentionLog

_PATIENCE = 10.0  # seconds to find out whether a name leads to a model


def add_reading(parser: Any, text: str) -> None:
    """Add the options of a command that runs a model; `text` is the help of ``--text``."""
    add_option(parser, "--text", action="extend", help=text)
    add_option(parser, "--decoder-text", help="text of the decoder, if the text goes to an encoder")
    add_option(parser, "--images", help="images for an image model (default: random pixels)")
    kinds = "self-attention, or attention to an encoder (default: both)"
    add_option(parser, "--kind", choices=("self", "cross"), help=kinds)
    add_option(parser, "--modules", "--device", "--dtype")


@dataclass
class Reader:
    """A model and its inputs."""

    model: Any
    texts: Sequence[list[int]] = ()  # token ids of each text; empty for a model of images alone
    padding: int = 0  # id of the token that pads shorter texts
    decoder: list[int] = field(default_factory=list)  # token ids for the decoder, in a model with one
    pixels: Any = None  # shape (images, channels, height, width)
    tokenizer: Any = None  # the tokenizer; None without a text
    notes: list[str] = field(default_factory=list)  # remarks for a reader of the results

    @property
    def longest(self) -> int:
        """The number of tokens of the longest text."""
        return max(map(len, self.texts), default=0)

    @property
    def positions(self) -> int | None:
        """Number of positions in the model's learned table; None if it has no such table."""
        from torch import nn

        config = self.model.config.get_text_config()
        most, words = (getattr(config, name, None) for name in ("max_position_embeddings", "vocab_size"))
        sizes = []
        for module in self.model.modules():
            if isinstance(module, nn.Embedding) and isinstance(most, int) and module.num_embeddings != words:
                # Some tables begin with rows for padding, which are not positions of a text.
                first = getattr(module, "offset", 0 if module.padding_idx is None else module.padding_idx + 1)
                sizes += [module.num_embeddings - first] * (0 <= module.num_embeddings - most <= first)
        return min(sizes, default=None)

    def most(self, files: Sequence[Path]) -> tuple[int, str]:
        """The largest number of tokens of a text that can be measured, and what limits it."""
        limits = [(self.longest, f"the tokens of {', '.join(map(str, files))}")]
        limits += [] if self.positions is None else [(self.positions, "the positions of the model")]
        return min(limits)

    def words(self, n: int) -> list[str]:
        """The first n tokens of the first text as the tokenizer writes them, with whole letters."""
        return readable(self.tokenizer.decode, self.texts[0][: n + 8])[:n] if self.texts else []

    def run(self, n: int) -> None:
        """Run the model on the first n tokens of each text."""
        import torch

        made_for = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if isinstance(made_for, int) and n > made_for:
            note = f"the model was made for {made_for} positions (max_position_embeddings); longer texts ran"
            self.notes += [note] * (note not in self.notes)

        try:
            with torch.no_grad():
                self.model(**{name: x.to(self.model.device) for name, x in self.inputs(n).items()})
        except IndexError as error:  # from a table of positions or words
            name = type(self.model).__name__
            raise InputError(f"MODEL {name}: has no room for its input ({error})") from error

    def inputs(self, n: int) -> dict[str, Any]:
        """Arguments of the model for the first n tokens of each text; shorter ones are padded at the end."""
        import torch

        given: dict[str, Any] = {}
        # If a batch has both, every text meets every image equally often.
        images = 0 if self.pixels is None else len(self.pixels)
        size = math.lcm(max(len(self.texts), 1), max(images, 1))
        rows = [tokens[:n] for tokens in self.texts] * (size // max(len(self.texts), 1))
        width = max(map(len, rows), default=0)
        if rows:
            given["input_ids"] = torch.tensor([row + [self.padding] * (width - len(row)) for row in rows])
        if any(len(row) < width for row in rows):
            given["attention_mask"] = torch.tensor(
                [[i < len(row) for i in range(width)] for row in rows]
            ).long()
        if "decoder_input_ids" in inspect.signature(self.model.forward).parameters:
            known = (
                getattr(self.model.config, name, None) for name in ("decoder_start_token_id", "bos_token_id")
            )
            first = next((each for each in known if each is not None), 0)
            given["decoder_input_ids"] = torch.tensor([self.decoder or [first]] * size)
        if self.pixels is not None:
            pixels = self.pixels.to(self.model.dtype)
            given["pixel_values"] = pixels.repeat(size // images, 1, 1, 1)
        return given


def load(name: str, options: argparse.Namespace) -> Reader:
    """The model and its inputs; by default on the CPU, in float32."""
    decoder_text, images = options.decoder_text, options.images
    texts = [_words(each, "--text") for each in options.text or ()]
    for_decoder = None if decoder_text is None else _words(decoder_text, "--decoder-text")
    if images is not None and not images.is_dir():
        raise InputError(f"--images {images}: must be a folder with images")
    if Path(name).is_file():
        raise InputError(f"MODEL {name}: is a file; give the folder that holds the model")
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise InputError(f"MODEL {name}: no such folder")  # not a name to search for
    if not Path(name).is_dir():
        line = f"there is no folder {name} here: looking for a model of this name elsewhere"
        print(f"attnscale: {line}", file=sys.stderr, flush=True)
        _check_reachable(name)  # before the slow import of torch and transformers
    else:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tokenizer, model = _read(
        name, _placed(options.device, options.dtype), with_text=bool(texts or for_decoder)
    )

    def numbers(text: str) -> list[int]:
        return list(tokenizer(text, truncation=False, verbose=False)["input_ids"])

    if for_decoder is not None and "decoder_input_ids" not in inspect.signature(model.forward).parameters:
        raise InputError(
            f"--decoder-text {decoder_text}: {type(model).__name__} has no decoder beside its encoder"
        )
    padding = getattr(tokenizer, "pad_token_id", None) or 0
    found = Reader(model, [*map(numbers, texts)], padding, numbers(for_decoder) if for_decoder else [])
    found.tokenizer = tokenizer
    _see(found, name, images)
    return found


def _read(name: str, place: Mapping[str, Any], *, with_text: bool) -> tuple[Any, Any]:
    """The tokenizer, or None without a text, and the model."""
    _make_silent(name)
    from transformers import AutoModel, AutoTokenizer

    with _as_stored(name):
        # By default transformers would ask at the terminal whether to run the model's own code.
        tokenizer: Any = None
        if with_text:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model = AutoModel.from_pretrained(name, trust_remote_code=False).to(**place).eval()
    return tokenizer, model


def model_of(folder: Path) -> Any:
    """The model in a folder, in the type that it is stored in."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    name = str(folder)
    _make_silent(name)
    from transformers import AutoModel

    with _as_stored(name, "must be a folder with a model of transformers"):
        return AutoModel.from_pretrained(name, dtype="auto", trust_remote_code=False).eval()


def _make_silent(name: str) -> None:
    """Check that there is transformers, and a model in a folder, and quiet its messages."""
    try:
        import torch as torch
        from transformers.utils import logging
    except ImportError:
        raise InputError("a model needs torch and transformers: pip install torch transformers") from None
    if Path(name).is_dir() and not any(Path(name).glob("*config.json")):
        raise InputError(f"MODEL {name}: must be a folder with a model, and has no config.json")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel(ERROR)  # it would warn at each of several tries


_A_MODEL = "must be a folder with a model of transformers and its tokenizer, or a name that leads to one"


@contextmanager
def _as_stored(name: str, rule: str = _A_MODEL) -> Iterator[None]:
    """Block in which a model that cannot be read is bad input."""
    try:
        yield
    except Exception as error:  # formats of weights have their own errors
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"MODEL {name}: {rule} ({first})") from error


def _words(file: Path, option: str) -> str:
    check_is_file(file, option)
    text = read_text(file)
    if not text.strip():
        raise InputError(f"{option} {file}: there is no word in it")
    return text


def _see(found: Reader, name: str, images: Path | None) -> None:
    """Check that the model accepts its inputs, and give it images if it does not run without."""
    kind, takes = type(found.model).__name__, inspect.signature(found.model.forward).parameters
    if not {"input_ids", "pixel_values"} & takes.keys():
        what = found.model.main_input_name
        raise InputError(
            f"MODEL {name}: {kind} reads {what}, no text and no images; record of attnscale.torch measures it"
        )
    if found.texts and "input_ids" not in takes:
        raise InputError(f"--text must be left out: {kind} reads no text")
    if "pixel_values" not in takes:
        if images is not None:
            raise InputError(f"--images {images}: {kind} looks at no images")
        if not found.texts:
            raise InputError(f"MODEL {name}: {kind} reads a text, which --text FILE gives")
        return
    if images is None and found.texts and _runs(found) is None:
        found.notes.append("the model read the text alone, without images")
        return
    found.pixels, note = _pixels_for(found.model, images)
    if refused := _runs(found):
        given = "--text and images" if found.texts else "images alone"
        raise InputError(f"MODEL {name}: {kind} does not run on {given} ({refused})")
    found.notes.append(note)


def _runs(found: Reader) -> str | None:
    """The model's error on the start of its input; None if it runs."""
    try:
        found.run(1)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    return None


def _check_reachable(name: str) -> None:
    """Refuse a name that leads nowhere, by a single request: transformers would retry for a minute.

    Files that an earlier run downloaded need no request.
    """
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache
    except ImportError:  # it comes with transformers, whose absence has its own message
        return
    try:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            HfApi().model_info(name, timeout=_PATIENCE)
    except Exception as error:  # from the network, the service, or the name itself
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        rule = "must be a folder with a model of transformers and its tokenizer, or a name that leads to one"
        raise InputError(f"MODEL {name}: {rule} ({first})") from None


def _placed(device: str | None, dtype: str | None) -> dict[str, Any]:
    """Arguments of ``model.to``, checked before the model is loaded."""
    from ..torch._base.device import device_named, dtype_named

    with bad_input():
        return {"device": device_named(device or "cpu"), "dtype": dtype_named(dtype or "float32")}


class Plan(NamedTuple):
    """The audit's plan of the model's config as text and content; without content for an unknown model."""

    text: str
    content: dict[str, Any] | None


def plan_of(model: Any) -> Plan:
    """The plan of the model's scales."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", audit.AuditWarning)  # the plan's text has the warnings
        try:
            found = audit.resolve(model.config)
        except ValueError as error:
            return Plan(
                f"The audit does not know what multiplies the scores of {type(model).__name__}: {error}", None
            )
    return Plan(found.explain(), found.to_dict())


def check_lengths(lengths: Sequence[int] | None, most: int, what: str, option: str) -> None:
    """Refuse lengths beyond the available one."""
    if lengths is not None and max(lengths) > most:
        raise InputError(f"{option} must be at most {most}, {what}, got {max(lengths)}")


def check_measured(log: AttentionLog, name: str) -> None:
    """Refuse a model whose attention was seen but could not be measured anywhere."""
    if not log.passes:
        why = "; ".join(by_reason(log.unmeasured))
        raise InputError(f"MODEL {name}: attention was seen, and none could be measured: {why}")


def chosen_of(log: AttentionLog, kinds: Sequence[str] | None, modules: Sequence[str] | None) -> AttentionLog:
    """The calls of attention selected by --kind and --modules."""
    kind = kinds[0] if kinds and len(set(kinds)) == 1 else None
    try:
        return log.select(kind, modules)
    except ValueError:
        given = [f"--kind {kind}"] * (kind is not None) + [f"--modules {' '.join(modules or ())}"] * bool(
            modules
        )
        there = some_of([f"{name} ({each})" for name, each in log.kinds.items()])
        lost = "".join(f"; seen, not measured: {each}" for each in by_reason(log.unmeasured))
        rule = "no call of attention matches, there is"
        raise InputError(f"{' and '.join(given)}: {rule} {there}{lost}") from None


def _pixels_for(model: Any, folder: Path | None) -> tuple[Any, str]:
    """Images in the form that the model's config asks for, and a remark; random without a folder."""
    import torch

    sizes = dict(_numbers(model.config, ("image_size", "num_channels")))
    side = sizes.get("image_size", 224)
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    if folder is None:
        generator = torch.Generator().manual_seed(0)
        random = torch.randn(1, sizes.get("num_channels", 3), height, width, generator=generator)
        return random, "the model's images are random pixels: --images FOLDER gives it images"
    from PIL import Image

    names = sorted(
        each for each in folder.iterdir() if each.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp")
    )
    if not names:
        raise InputError(f"--images {folder}: must have images (.png, .jpg, .webp), got none")
    arrays = [
        np.asarray(Image.open(each).convert("RGB").resize((width, height)), np.float32) for each in names
    ]
    pixels = torch.from_numpy(np.stack(arrays)).movedim(-1, 1) / 127.5 - 1
    return pixels, f"images: {len(names)} of {folder}, as {width} x {height} pixels from -1 to 1"


def _numbers(config: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Values under these names in a config or its parts."""
    for part in (getattr(config, "vision_config", None), config):
        for name in names:
            if (value := getattr(part, name, None)) is not None:
                yield name, value
