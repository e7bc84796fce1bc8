# SPDX-License-Identifier: BSD-3-Clause
"""Write a probe: a folder of small checkpoints, one a kind of layer, with prompts and expected answers."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._base.checks import InputError, choose, refusal
from .._base.hints import hinted
from .._files.gguf_writer import KINDS as GGUF_KINDS
from .._files.safetensors import write_safetensors
from ..audit import LayerPlan, ScalePlan, resolve
from ..audit._keys import read_config
from . import _layout as lay
from ._ask import SCRIPT
from ._expected import expected_of, same_answer, turning_points, unscaled_rotation
from ._families import Family
from ._gguf import convert, write_gguf
from ._head import Head, Strength, columns, norm_weights, strength_of
from ._questions import KINDS, Pair, Prompt, Subject, cap_strength, edge_strength, pairs_of, prompts_of
from ._shrink import family_of, small_config, text_config
from ._tensors import SINK, Tensors, norms_of, tensors_of, weight_of_one

FORMAT = 1
#: Types of numbers that the config of a checkpoint may name.
DTYPES = ("float32", "bfloat16", "float16")
_LONGEST = 16640


class Checkpoint(NamedTuple):
    """A checkpoint before it is written."""

    name: str
    config: dict[str, Any]
    tensors: Tensors
    prompts: list[Prompt]
    expected: dict[str, Any]


def checkpoints(
    config: Any,
    *,
    kinds: Iterable[str] | None = None,
    layer: int | None = None,
    longest: int = _LONGEST,
    dtype: str = "float32",
) -> list[Checkpoint]:
    """One checkpoint for each kind of layer, or for one layer."""
    choose("dtype", dtype, DTYPES)
    asked = KINDS if kinds is None else tuple(choose("kinds", each, KINDS) for each in kinds)
    given = text_config(read_config(config))
    family = family_of(given)
    small = small_config(given, family, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the audit of the whole config has warned
        whole, cut = resolve(given), resolve(small)
    chosen = [whole.layer(layer).index] if layer is not None else _spoken(whole)
    for number in chosen:
        if whole[number].refusal is not None:
            raise InputError(f"layer {number} ({whole[number].kind}): {whole[number].refusal}")
        if not same_answer(whole, cut, number):
            raise InputError(
                f"layer {number}: a small model with this config would multiply scores otherwise"
            )
    return [_checkpoint(given, small, family, whole, number, asked, longest) for number in chosen]


def _spoken(plan: ScalePlan) -> list[int]:
    """The first layer of each kind."""
    first: dict[Any, int] = {}
    for each in plan:
        if each.refusal is None:
            rotation = each.rotation
            same = (
                each.kind,
                each.head_dim,
                each.rotated,
                each.window,
                each.softcap,
                each.sink,
                repr(each.base),
                repr(each.terms),
            )
            first.setdefault((same, None if rotation is None else (rotation.kind, rotation.base)), each.index)
    if not first:
        raise InputError("config must have a layer with a scale, but the audit refuses every layer")
    return list(first.values())


def _head(plan: LayerPlan, small: Mapping[str, Any], family: Family, asked: int) -> Head:
    adjacent = family.adjacent and bool(small.get("rope_interleave", True))
    if family.latent:
        value = small.get("v_head_dim") or 128
        return Head(plan.head_dim, value, plan.rotated, plan.head_dim - plan.rotated, adjacent, asked)
    return Head(plan.head_dim, plan.head_dim, plan.rotated, 0, adjacent, asked)


def _strength(
    plan: LayerPlan, small: Mapping[str, Any], family: Family, normed: float
) -> tuple[Strength, tuple[float, float]]:
    """Amplitudes of queries and keys, and the weights of their norms."""
    channels = plan.channel_kinds[0]
    scale = float(plan.multipliers(np.zeros(1, np.int64), channels)[0])
    if family.qk_norm == "no weights":
        if plan.qk_norm == "none":
            return strength_of(scale, normed, None), (1.0, 1.0)
        return strength_of(scale, normed, float(plan.head_dim)), (1.0, 1.0)
    if not family.qk_norm:
        return strength_of(scale, normed, None), (1.0, 1.0)
    heads, groups = small["num_attention_heads"], small["num_key_value_heads"]
    many = math.sqrt(heads * groups) if family.qk_norm == "all" else 1.0
    roots = plan.head_dim * many
    gains = norm_weights(scale, roots)
    return strength_of(scale, normed, roots * gains[0] * gains[1]), gains


def _checkpoint(
    given: dict[str, Any],
    small: dict[str, Any],
    family: Family,
    whole: ScalePlan,
    layer: int,
    kinds: tuple[str, ...],
    longest: int,
) -> Checkpoint:
    plan = whole.layer(layer)
    norms = norms_of(small, family)
    # Behind a latent a word has the coordinate 1; a rotated key comes straight from the norm.
    tall = family.latent and small.get("q_lora_rank") is not None
    query_normed = 1.0 if tall else norms.normed
    normed = math.sqrt(query_normed * norms.normed)
    strength, gains = _strength(plan, small, family, normed)
    unscaled = unscaled_rotation(plan, whole)
    angles = unscaled.frequencies(1)
    if angles is None:
        raise InputError(f"layer {layer}: the config does not give the frequencies of its rotary positions")
    head = _head(plan, small, family, 2 * len(angles))
    gain = query_normed / normed**2 if family.latent else 1.0
    subject = Subject(
        head,
        strength,
        angles,
        plan.window,
        plan.kind == "chunked_attention",
        plan.softcap,
        plan.sink,
        turning_points(plan, longest),
        longest,
        kinds,
        [],
        gain,
    )
    pairs = pairs_of(subject)
    prompts = prompts_of(subject, pairs)
    expected = _about(given, small, family, whole, plan, subject, pairs, prompts)
    digest = hashlib.sha256(json.dumps([FORMAT, small, expected], sort_keys=True).encode()).hexdigest()[:16]
    prints = [int(digest[number], 16) % 8 - 4 for number in range(len(lay.PRINT))]
    spoken = columns(head, strength, pairs, cap_strength(subject), edge_strength(strength), prints, normed)
    tensors = tensors_of(small, family, head, spoken, layer, gains)
    return Checkpoint(
        f"layer-{layer}", small, tensors, prompts, {"checkpoint": digest, "prints": prints, **expected}
    )


def _about(
    given: dict[str, Any],
    small: dict[str, Any],
    family: Family,
    whole: ScalePlan,
    plan: LayerPlan,
    subject: Subject,
    pairs: list[Pair],
    prompts: list[Prompt],
) -> dict[str, Any]:
    """The content of expected.json."""
    from .. import __version__

    layers = [each.index for each in whole if each.refusal is None and _alike(each, plan)]
    return {
        "format": FORMAT,
        "attnscale": __version__,
        "model_type": str(given.get("model_type")),
        "layers": layers,
        **expected_of(given, plan, whole, subject, pairs, prompts),
        "sink_logit": SINK if plan.sink else None,
        "weight_of_one": weight_of_one(small, family, norms_of(small, family)),
        "final_cap": given.get("final_logit_softcapping"),
        "prompts": {prompt.name: prompt.record() for prompt in prompts},
    }


def _alike(here: LayerPlan, there: LayerPlan) -> bool:
    return (here.kind, here.base, here.terms, here.window, here.rotated) == (
        there.kind,
        there.base,
        there.terms,
        there.window,
        there.rotated,
    )


@hinted
def write(
    config: Any,
    folder: str | os.PathLike[str],
    *,
    kinds: Iterable[str] | None = None,
    layer: int | None = None,
    longest: int = _LONGEST,
    dtype: str = "float32",
    gguf: str | Iterable[str] | None = None,
    converter: str | os.PathLike[str] | None = None,
) -> Path:
    """Write small checkpoints whose log-probabilities reveal what an engine multiplies a score by.

    One checkpoint for each kind of layer, in folders ``layer-N`` after the layer that speaks: config.json,
    model.safetensors, a tokenizer whose words are the ids (``<p12>``), ``prompts.jsonl`` and
    ``expected.json``. Beside them lie ``probe.json`` and ``ask.py``, which asks a server without this package.

    Parameters
    ----------
    config : mapping, str, path or transformers config
        The config of a model, as :func:`attnscale.audit.resolve` takes it; of a composite one the language
        model. All its keys stay but sizes: head sizes, depth, kinds of layers and the quotient of width and
        heads are the model's, since engines infer scales from them. The audit of the small config must give
        the answer of the whole one.
    folder : path
        New, empty, or a probe, which is replaced as a whole.
    kinds : sequence of {"scale", "angles", "cap", "window", "sink", "temperature"}, optional
        What to ask; default: everything.
    layer : int, optional
        Ask this layer only, counted from 0.
    longest : int, default: 16640
        Largest number of words of a prompt. Windows and temperatures beyond it are not asked, and the reading
        says so.
    dtype : {"float32", "bfloat16", "float16"}
        The type that config.json names, for servers that follow it.
    gguf : str or sequence of str, optional
        Types of GGUF files to write as well: "f32", "f16", "bf16", "q8_0".
    converter : path, optional
        A convert_hf_to_gguf.py of llama.cpp to write them, since it is half of what is tested; default: keys
        and tensors as that program writes them.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ValueError
        If the config is not readable, its model type has no row in the table of families, no layer has an
        answer, or ``folder`` holds other files.

    Notes
    -----
    Word t has the embedding of one coordinate, so norms are known factors. One head of one layer speaks: a
    key of class c adds its weight to the coordinate of a word that is read. The logarithm of the quotient of
    two logits is then the score of that key, whatever norms and soft-caps follow.

    Examples
    --------
    >>> import attnscale as at, pathlib, tempfile
    >>> config = {"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28,
    ...           "num_key_value_heads": 4, "num_hidden_layers": 28, "rope_theta": 1000000.0}
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = at.probe.write(config, pathlib.Path(place) / "probe")
    ...     sorted(each.name for each in folder.iterdir())
    ['ask.py', 'layer-0', 'probe.json']
    """
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise refusal(InputError, "folder", f"must be a folder, got the file {root}")
    if root.exists() and any(root.iterdir()) and not (root / "probe.json").is_file():
        raise refusal(InputError, "folder", f"must be new, empty or a probe, got {root}")
    formats = [gguf] if isinstance(gguf, str) else list(gguf or ())
    for each in formats:
        choose("gguf", each, tuple(GGUF_KINDS))
    if converter is not None and not formats:
        raise refusal(InputError, "converter", "must come with gguf, the types of the files")
    made = checkpoints(config, kinds=kinds, layer=layer, longest=longest, dtype=dtype)
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as place:
        new = Path(place) / "probe"
        new.mkdir()
        for each in made:
            _write_checkpoint(each, new / each.name, formats, None if converter is None else Path(converter))
        about = {"format": FORMAT, "checkpoints": [each.name for each in made]}
        (new / "probe.json").write_text(json.dumps(about) + "\n")
        shutil.copyfile(SCRIPT, new / "ask.py")
        shutil.rmtree(root, ignore_errors=True)
        new.rename(root)
    return root


def _write_checkpoint(made: Checkpoint, folder: Path, formats: list[str], converter: Path | None) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(made.config, indent=1) + "\n")
    write_safetensors(folder / "model.safetensors", made.tensors)
    lines = [
        {"prompt": each.name, "ids": each.tokens, "text": lay.text_of(each.tokens)} for each in made.prompts
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "expected.json").write_text(json.dumps(made.expected) + "\n")
    for name, content in _tokenizer().items():
        (folder / name).write_text(json.dumps(content) + "\n")
    for each in formats:
        if converter is None:
            write_gguf(made.config, made.tensors, folder / f"{each}.gguf", each)
        else:
            convert(folder, folder / f"{each}.gguf", converter, each)


def _tokenizer() -> dict[str, Any]:
    """The files of a tokenizer whose words are the numbers of the tokens."""
    special = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, text in enumerate(lay.SPECIAL)
    ]
    words = {lay.word(number): number for number in range(lay.VOCABULARY)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": lay.SPECIAL[lay.UNKNOWN]}
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": special,
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": model,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": lay.SPECIAL[lay.UNKNOWN],
            "bos_token": lay.SPECIAL[lay.BOS],
            "eos_token": lay.SPECIAL[lay.EOS],
        },
    }
