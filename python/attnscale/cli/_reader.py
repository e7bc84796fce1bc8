# SPDX-License-Identifier: BSD-3-Clause
"""What a model reads when a command runs it: texts, a start for its decoder, images."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._io import InputError
from ._options import add_option

if TYPE_CHECKING:
    from ..torch import AttentionLog


def add_reading(parser: Any, text: str) -> None:
    """Add the options of a command that runs a model; `text` says what ``--text`` is to it."""
    add_option(parser, "--text", action="extend", help=text)
    add_option(parser, "--decoder-text", help="what the decoder reads, where the text goes to an encoder")
    add_option(parser, "--images", help="what a model of images looks at (default: random pixels)")
    kinds = "self-attention, or attention to an encoder (default: both)"
    add_option(parser, "--kind", choices=("self", "cross"), help=kinds)
    for flag in ("--modules", "--device", "--dtype"):
        add_option(parser, flag)


@dataclass
class Reader:
    """A model and what it reads.

    Attributes
    ----------
    model : transformers.PreTrainedModel
    texts : sequence of list of int
        Numbers of the tokens of each text; none for a model of images alone.
    padding : int
        The number of the token that fills shorter texts.
    decoder : list of int
        What the decoder reads, in a model that has one.
    pixels : Tensor or None, shape (images, channels, height, width)
    notes : list of str
        What a reader of the results should know.
    """

    model: Any
    texts: Sequence[list[int]] = ()
    padding: int = 0
    decoder: list[int] = field(default_factory=list)
    pixels: Any = None
    notes: list[str] = field(default_factory=list)

    @property
    def longest(self) -> int:
        """The number of tokens of the longest text."""
        return max(map(len, self.texts), default=0)

    @property
    def positions(self) -> int | None:
        """How many tokens have a position in a table that the model learned; None: it has no such table."""
        from torch import nn

        config = self.model.config.get_text_config()
        most, words = (getattr(config, name, None) for name in ("max_position_embeddings", "vocab_size"))
        sizes = []
        for module in self.model.modules():
            if isinstance(module, nn.Embedding) and isinstance(most, int) and module.num_embeddings != words:
                # Some tables begin with rows that are no positions of a text: those of padding.
                first = getattr(module, "offset", 0 if module.padding_idx is None else module.padding_idx + 1)
                sizes += [module.num_embeddings - first] * (0 <= module.num_embeddings - most <= first)
        return min(sizes, default=None)

    def most(self, files: Sequence[Path]) -> tuple[int, str]:
        """The most tokens of a text that can be measured, and what bounds them."""
        limits = [(self.longest, f"the tokens of {', '.join(map(str, files))}")]
        limits += [] if self.positions is None else [(self.positions, "the positions of the model")]
        return min(limits)

    def run(self, n: int) -> None:
        """Run the model on the first n tokens of each text."""
        import torch

        try:
            with torch.no_grad():
                self.model(**{name: x.to(self.model.device) for name, x in self.inputs(n).items()})
        except IndexError as error:  # of a table of positions or words
            name = type(self.model).__name__
            raise InputError(f"MODEL {name}: has no room for what it should read ({error})") from error

    def inputs(self, n: int) -> dict[str, Any]:
        """The arguments of the model for the first n tokens of each text; shorter ones are padded behind."""
        import torch

        given: dict[str, Any] = {}
        # Every text with every image, equally often, where a batch has both.
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


def check_lengths(lengths: Sequence[int] | None, most: int, what: str, option: str) -> None:
    """Refuse lengths that are more than there is."""
    if lengths is not None and max(lengths) > most:
        raise InputError(f"{option} must be at most {most}, {what}, got {max(lengths)}")


def chosen_of(log: AttentionLog, kinds: Sequence[str] | None, modules: Sequence[str] | None) -> AttentionLog:
    """The calls of attention that --kind and --modules name."""
    kind = kinds[0] if kinds and len(set(kinds)) == 1 else None
    try:
        return log.select(kind, modules)
    except ValueError:
        given = [f"--kind {kind}"] * (kind is not None) + [f"--modules {' '.join(modules or ())}"] * bool(
            modules
        )
        listed = [f"{name} ({each})" for name, each in log.kinds.items()]
        there = f"{', '.join(listed[:4])}{f' and {len(listed) - 4} more' if listed[4:] else ''}"
        raise InputError(f"{' and '.join(given)}: no call of attention is of it, there is {there}") from None


def pixels_for(model: Any, folder: Path | None) -> tuple[Any, str]:
    """Images as the model's config wants them, and what is said about them; random ones without a folder."""
    import torch

    sizes = dict(_numbers(model.config, ("image_size", "num_channels")))
    side = sizes.get("image_size", 224)
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    if folder is None:
        generator = torch.Generator().manual_seed(0)
        random = torch.randn(1, sizes.get("num_channels", 3), height, width, generator=generator)
        return random, "the model looked at random pixels: --images FOLDER gives it images"
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
    """The values that a config or a part of it has under the names."""
    for part in (getattr(config, "vision_config", None), config):
        for name in names:
            if (value := getattr(part, name, None)) is not None:
                yield name, value
