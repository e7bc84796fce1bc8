# SPDX-License-Identifier: BSD-3-Clause
"""A model of transformers and a text for it, as a command line names them."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any, NamedTuple

from .. import audit
from .._io import InputError, check_is_file, read_text
from ._output import bad_input
from ._reader import Reader, pixels_for

_PATIENCE = 10.0  # seconds for the one question whether a name leads to a model


def load(
    name: str,
    text_files: Sequence[Path],
    device: str | None = None,
    dtype: str | None = None,
    *,
    decoder_text: Path | None = None,
    images: Path | None = None,
) -> Reader:
    """The model, and what it reads; device and type None: on the CPU, in float32."""
    texts = [_words(each, "--text") for each in text_files]
    for_decoder = None if decoder_text is None else _words(decoder_text, "--decoder-text")
    if images is not None and not images.is_dir():
        raise InputError(f"--images {images}: must be a folder with images")
    if Path(name).is_file():
        raise InputError(f"MODEL {name}: is a file; give the folder that holds the model")
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise InputError(f"MODEL {name}: no such folder")  # not a name to look for elsewhere
    if not Path(name).is_dir():
        line = f"there is no folder {name} here: looking for a model of this name elsewhere"
        print(f"attnscale: {line}", file=sys.stderr, flush=True)
        _check_reachable(name)  # before torch and transformers, whose import takes long
    else:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tokenizer, model = _read(name, _placed(device, dtype), with_text=bool(texts or for_decoder))

    def numbers(text: str) -> list[int]:
        return list(tokenizer(text, truncation=False, verbose=False)["input_ids"])

    if for_decoder is not None and "decoder_input_ids" not in inspect.signature(model.forward).parameters:
        raise InputError(
            f"--decoder-text {decoder_text}: {type(model).__name__} has no decoder beside its encoder"
        )
    padding = getattr(tokenizer, "pad_token_id", None) or 0
    found = Reader(model, [*map(numbers, texts)], padding, numbers(for_decoder) if for_decoder else [])
    _see(found, name, images)
    return found


def _read(name: str, place: Mapping[str, Any], *, with_text: bool) -> tuple[Any, Any]:
    """The tokenizer, None without a text, and the model."""
    try:
        import torch as torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise InputError("a model needs torch and transformers: pip install torch transformers") from None
    if Path(name).is_dir() and not any(Path(name).glob("*config.json")):
        raise InputError(f"MODEL {name}: must be a folder with a model, and has no config.json")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel(ERROR)  # its warnings are one for each of several tries
    try:
        # Left open, transformers would ask at the terminal whether to run code that comes with the model.
        tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False) if with_text else None
        model = AutoModel.from_pretrained(name, trust_remote_code=False).to(**place).eval()
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        rule = "must be a folder with a model of transformers and its tokenizer, or a name that leads to one"
        raise InputError(f"MODEL {name}: {rule} ({first})") from None
    return tokenizer, model


def _words(file: Path, option: str) -> str:
    check_is_file(file, option)
    text = read_text(file)
    if not text.strip():
        raise InputError(f"{option} {file}: there is no word in it")
    return text


def _see(found: Reader, name: str, images: Path | None) -> None:
    """Check that the model takes what is there for it, and give it images where it does not run without."""
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
    found.pixels, note = pixels_for(found.model, images)
    if refused := _runs(found):
        given = "--text and images" if found.texts else "images alone"
        raise InputError(f"MODEL {name}: {kind} does not run on {given} ({refused})")
    found.notes.append(note)


def _runs(found: Reader) -> str | None:
    """What the model says against the start of what it should read; None: nothing."""
    try:
        found.run(1)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    return None


def _check_reachable(name: str) -> None:
    """Refuse a name that leads nowhere by one question: transformers would ask again and again for a minute.

    What an earlier run downloaded needs no question.
    """
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache
    except ImportError:  # it comes with transformers, whose absence has a message of its own
        return
    try:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            HfApi().model_info(name, timeout=_PATIENCE)
    except Exception as error:  # of the network, of the service, or of the name itself
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        rule = "must be a folder with a model of transformers and its tokenizer, or a name that leads to one"
        raise InputError(f"MODEL {name}: {rule} ({first})") from None


def _placed(device: str | None, dtype: str | None) -> dict[str, Any]:
    """What is given to ``model.to``, checked before the model is read."""
    from ..torch._device import device_named, dtype_named

    with bad_input():
        return {"device": device_named(device or "cpu"), "dtype": dtype_named(dtype or "float32")}


class Plan(NamedTuple):
    """What the audit says of the model's config; where it does not know the model, why, and no content."""

    text: str
    content: dict[str, Any] | None


def plan_of(model: Any) -> Plan:
    """The plan of the model's scales."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", audit.AuditWarning)  # the warnings are part of the plan's text
        try:
            found = audit.resolve(model.config)
        except ValueError as error:
            return Plan(
                f"The audit does not know what multiplies the scores of {type(model).__name__}: {error}", None
            )
    return Plan(found.explain(), found.to_dict())
