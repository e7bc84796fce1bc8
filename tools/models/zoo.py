# SPDX-License-Identifier: BSD-3-Clause
"""A small random model of any model type of transformers, with inputs that make it run.

Sizes are made small by the names of a configuration's parameters, those of its parts as well. What neither
the names nor several ways to shrink say is in ``KEYS``, one line a type.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

from ..audit.kinds import KEYS as AUDIT_KEYS
from ..audit.oracle import SIZES, config_class

VOCABULARY = 160
LENGTH, SHORTER = 24, 15
LARGEST = 40_000_000

#: Keys on top of the sizes, where the class of a configuration asks for more than its names say.
KEYS: dict[str, dict[str, Any]] = {
    "gemma3": {"mm_tokens_per_image": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    # Four neighbouring patches become one vector.
    "llama4_vision_model": {
        "intermediate_size": 256,
        "projector_input_dim": 64,
        "projector_output_dim": 64,
        "vision_output_dim": 64,
    },
}

#: Stand-in for a backbone of timm.
_BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 16, 32, 32],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
}
#: Sizes that have no default in some classes, and which models cannot do without.
_FILLED = {
    "vocab_size": VOCABULARY,
    "head_dim": 16,
    "n_shared_experts": 1,
    "pad_token_id": 0,
    "prediction_length": 4,
}
_WIDTH = re.compile(
    r"hidden|width|embd|dim$|dim_|d_model|d_ff|inner|intermediate|_channels|projection|proj_size"
)
_NO_WIDTH = re.compile(r"head_dim|rope|rank|kernel|vocab|group|num_|conv_dim|layer|token|rotary|scale|state")
_LAYERS = re.compile(r"layers?$|^depth$|num_blocks$|_depth$|blocks$")
_NO_LAYERS = re.compile(r"feature|interval|window|dense|adapter|idx|vision_feature")
_HEADS = re.compile(r"heads?$|num_attention_heads$|nhead$")
_TOKEN = re.compile(
    r"(token|_id$|index$|pad|bos|eos|boi|eoi|start|end).*(id|index|idx)$|^(pad|bos|eos|unk)_index$"
)


def small(cls: Any, level: int) -> dict[str, Any]:
    """Parameters that make a configuration of this class small, less of them at each level."""
    try:
        default = cls()
    except Exception:
        default = None
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        value = parameter.default if level else _attribute(default, name, parameter.default)
        if level == 1 and value is None:
            value = _FILLED.get(name)
        size = size_of(name, value, level)
        if size is not None:
            found[name] = size
    if _attribute(default, "num_key_value_heads", 0) == _attribute(default, "num_attention_heads", 1):
        found["num_key_value_heads"] = found["num_attention_heads"]
    for name in getattr(cls, "sub_configs", {}):
        part = _attribute(default, name, None)
        if "timm" in getattr(part, "model_type", ""):
            found |= {"use_timm_backbone": False, "backbone": None, name: _BACKBONE}
        elif part is not None and not isinstance(part, dict):
            found[name] = {"model_type": part.model_type, **small(type(part), level)}
    rope = _attribute(default, "rope_parameters", None)
    if isinstance(rope, dict) and "mrope_section" in rope:
        found["rope_parameters"] = {**rope, "mrope_section": _sections(rope, found.get("head_dim", 16))}
    return {**found, **_keys(getattr(cls, "model_type", ""))}


def _attribute(config: Any, name: str, default: Any) -> Any:
    """Attribute of a configuration, if it is the same for all layers."""
    try:
        return getattr(config, name, default)
    except Exception:
        return default


def _keys(kind: str) -> dict[str, Any]:
    return {**AUDIT_KEYS.get(kind, {}), **KEYS.get(kind, {})}


def _sections(rope: dict[str, Any], head_dim: int) -> list[int]:
    """The sections of a rotation in parts, for heads of this size."""
    pairs = int(head_dim * rope.get("partial_rotary_factor", 1.0)) // 2
    old = rope["mrope_section"]
    new = [max(1, x * pairs // sum(old)) for x in old]
    return [*new[:-1], pairs - sum(new[:-1])]


def size_of(name: str, default: Any, level: int) -> Any:
    """A small size for a parameter of this name, None where it may stay as it is."""
    if isinstance(default, bool) or not isinstance(default, (int, list, tuple)):
        return None
    if isinstance(default, (list, tuple)):
        return _sizes_of(name, default) if level < 1 else None
    if _TOKEN.search(name):
        return default if default < VOCABULARY else 100 + sum(map(ord, name)) % 50
    if name == "vocab_size" or name.endswith("vocab_size") or name.startswith("vocab_size"):
        return min(default, VOCABULARY)
    if name == "num_hidden_layers":
        return min(default, 4)
    if name in SIZES and name not in ("max_position_embeddings", "sliding_window"):
        return min(SIZES[name], default) if default else default
    if _HEADS.search(name):
        return min(default, 2 if "key_value" in name or "kv" in name else 4)
    if _LAYERS.search(name) and not _NO_LAYERS.search(name):
        return min(default, 2)
    if _WIDTH.search(name) and not _NO_WIDTH.search(name):
        return min(default, 64) if level < 3 else None
    if name in ("image_size", "max_source_positions", "max_target_positions") and level < 1:
        return min(default, 64)
    return SIZES[name] if name == "sliding_window" and default else None


def _sizes_of(name: str, default: Any) -> Any:
    if not default or not all(isinstance(x, int) and not isinstance(x, bool) for x in default):
        return None
    if name == "image_size":
        return type(default)(min(x, 64) for x in default)
    if name in ("depths", "num_layers", "layers"):
        return type(default)(min(x, 2) for x in default)
    return None


def configs(kind: str) -> Iterator[Any]:
    """Configurations of this type, the smallest first."""
    cls = config_class(kind)
    for level in range(5):
        try:
            yield cls(**small(cls, level)) if level < 4 else cls(**_keys(kind))
        except Exception as error:
            yield error


def model_classes(config: Any) -> list[Any]:
    """Classes of models of this configuration, the plain one first."""
    from transformers import MODEL_MAPPING, PreTrainedModel

    cls = type(config)
    if cls in MODEL_MAPPING:
        found = MODEL_MAPPING[cls]
        return [found[0] if isinstance(found, tuple) else found]
    module = import_module(cls.__module__.replace("configuration_", "modeling_"))
    fitting = [
        each
        for name, each in vars(module).items()
        if inspect.isclass(each)
        and issubclass(each, PreTrainedModel)
        and getattr(each, "config_class", None) is cls
        and not name.endswith("PreTrainedModel")
        and "forward" in {key for base in each.__mro__[:3] for key in vars(base)}
    ]
    return sorted(fitting, key=lambda each: ("For" in each.__name__, len(each.__name__)))[:3]


def spread(model: Any) -> None:
    """Set random weights so large that attention is not a mean over all keys."""
    for parameter in model.parameters():
        if not parameter.is_floating_point() or not parameter.requires_grad:
            continue
        if parameter.ndim >= 2:
            fan_in = max(1, parameter[0].numel())
            parameter.data = torch.randn_like(parameter) * 1.5 / fan_in**0.5
        elif not bool(parameter.isfinite().all()) or parameter.ndim == 0:
            parameter.data = torch.ones_like(parameter)
        else:
            parameter.data = parameter.data + torch.randn_like(parameter) * 0.05


_BINS = (
    *("num_mel_bins", "feature_size", "num_mel_bin", "input_dim", "input_feat_per_channel"),
    *("feature_projection_input_dim", "input_channels", "mel_bins", "n_mels"),
)

# ---- inputs ------------------------------------------------------------------------------------------


def find(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these keys that the configuration or one of its parts has."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    for part in getattr(config, "sub_configs", {}):
        if (inner := getattr(config, part, None)) is not None and not isinstance(inner, dict):
            value = find(inner, *names)
            if value is not None:
                return value
    return default


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, dict):
        size = (size.get("height", 64), size.get("width", 64))
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))


def text(image_token: int | None = None, images: int = 0, length: int = LENGTH) -> dict[str, Any]:
    """Two texts of different length, right-padded, each with this many tokens of an image."""
    ids = torch.randint(4, 90, (2, length + images))
    mask = torch.ones_like(ids)
    mask[1, SHORTER + images :] = 0
    ids[1, SHORTER + images :] = 0
    if images:
        ids[:, 1 : 1 + images] = image_token
    return {"input_ids": ids, "attention_mask": mask}


def _sounds(config: Any) -> Iterator[torch.Tensor]:
    bins = find(config, *_BINS, default=80)
    positions = find(config, "max_source_positions", default=0)
    yield torch.randn(2, 8000)
    yield torch.randn(2, 1, 8000)
    for frames in dict.fromkeys(x for x in (2 * positions, 128, 1024, 3000) if x):
        yield torch.randn(2, bins, frames)
        yield torch.randn(2, frames, bins)
        yield torch.randn(2, 1, frames, bins)


def _images(config: Any) -> Iterator[dict[str, torch.Tensor]]:
    channels = find(config, "num_channels", "in_channels", "in_chans", "num_channels_in", default=3)
    channels = channels if isinstance(channels, int) else 3
    sizes = [_pair(x) for x in (find(config, "image_size", "img_size"), 64, 224) if x is not None]
    for high, wide in dict.fromkeys(sizes):
        yield {"pixel_values": torch.randn(2, channels, high, wide)}
    frames = find(config, "num_frames", default=4)
    for high, wide in dict.fromkeys(sizes):
        for count in dict.fromkeys((frames, 2)):
            yield {"pixel_values": torch.randn(2, count, channels, high, wide)}
        yield {"pixel_values_videos": torch.randn(2, frames, channels, high, wide)}
    patch = find(config, "patch_size", default=16)
    if isinstance(patch, int):
        deep = channels * patch**2 * find(config, "temporal_patch_size", default=1)
        grid = torch.tensor([[1, 4, 4], [1, 4, 4]])
        yield {"pixel_values": torch.randn(32, deep), "image_grid_thw": grid}
        yield {"hidden_states": torch.randn(32, deep), "grid_thw": grid}
        yield {"pixel_values": torch.randn(32, deep), "grid_thw": grid}


def inputs_of(model: Any) -> Iterator[dict[str, Any]]:
    """Inputs that may fit the signature of the model, the fullest first."""
    parameters = inspect.signature(model.forward).parameters
    names, config = set(parameters), model.config
    needed = {
        name for name, x in parameters.items() if x.default is x.empty and x.kind == x.POSITIONAL_OR_KEYWORD
    }
    fixed: dict[str, Any] = {"use_cache": False} if "use_cache" in names else {}
    if "decoder_input_ids" in names:
        fixed["decoder_input_ids"] = torch.randint(4, 90, (2, 7))
    extra = {
        name: make(config)
        for name, make in EXTRA.items()
        if name in names and (name in needed or name not in ("position_ids", "actions"))
    }
    fixed |= {name: x for name, x in extra.items() if name in needed}
    mains = list(_mains(config, names))
    for main in mains:
        yield {**main, **fixed, **extra}
        yield {**fixed, **main}
    for first in mains[:3]:  # two kinds together
        for second in mains:
            if not set(first) & set(second):
                yield {**fixed, **first, **second}


def _mains(config: Any, names: set[str]) -> Iterator[dict[str, Any]]:
    token = find(config, "image_token_id", "image_token_index", "image_token")
    images = [each for each in _images(config) if set(each) <= names]
    plain = names & {"image", "images", "pixel_embeds", "x"}
    images += [
        {name: each["pixel_values"]}
        for name in plain
        for each in _images(config)
        if [*each] == ["pixel_values"]
    ]
    if "input_ids" in names:
        for image in images:
            for tokens in (0,) if token is None else (4, 0):
                yield {**text(token, tokens), **image}
        yield text()
        yield text(length=16)
    for name in ("input_features", "input_values", "audio_values", "spectrogram", "past_values"):
        if name in names:
            for sound in _sounds(config):
                yield {name: sound}
                if "input_features_mask" in names and sound.ndim == 3:
                    yield {
                        name: sound,
                        "input_features_mask": torch.ones(2, sound.shape[1], dtype=torch.bool),
                    }
    yield from images
    width = find(config, "hidden_size", "d_model", default=64)
    for name in ("hidden_states", "inputs_embeds", "query_embeds", "inputs"):
        if name in names:
            yield {name: torch.randn(2, LENGTH, width)}


def _boxes(config: Any) -> torch.Tensor:
    return torch.tensor([1, 2, 30, 40]).expand(2, LENGTH, 4).clone()


EXTRA: dict[str, Any] = {
    "bbox": _boxes,
    "encoder_hidden_states": lambda config: torch.randn(
        2, 9, find(config, "cross_hidden_size", "encoder_hidden_size", "hidden_size", "d_model", default=64)
    ),
    "codebook_idx": lambda config: 1,
    "states": lambda config: torch.randn(2, LENGTH, find(config, "state_dim", default=17)),
    "actions": lambda config: torch.randn(2, LENGTH, find(config, "act_dim", default=4)),
    "returns_to_go": lambda config: torch.randn(2, LENGTH, 1),
    "timesteps": lambda config: torch.arange(LENGTH).expand(2, -1),
    "position_ids": lambda config: torch.arange(LENGTH).expand(2, -1),
    "visual_feats": lambda config: torch.randn(2, 5, find(config, "visual_feat_dim", default=64)),
    "visual_pos": lambda config: torch.rand(2, 5, 4),
}
_COUNTED = re.compile(r"tokens: (\d+).*?features:? (\d+)", re.S)


def _fitted(model: Any, inputs: dict[str, Any], error: Exception) -> dict[str, Any] | None:
    """The inputs with as many image tokens as the model says it has features of images."""
    counts = _COUNTED.search(str(error))
    token = find(model.config, "image_token_id", "image_token_index", "image_token")
    if counts is None or token is None or "input_ids" not in inputs:
        return None
    features = int(re.findall(r"\d+", counts.group(2))[0])
    return {**inputs, **text(token, features // 2)}


def runs(model: Any, inputs: dict[str, Any]) -> Any:
    """Run a pass, from the same random numbers each time."""
    torch.manual_seed(0)
    with torch.no_grad():
        return model(**inputs)


def made(kind: str) -> tuple[Any, dict[str, Any]]:
    """A model of this type and inputs with which it runs.

    Raises
    ------
    NotImplementedError
        If none was found, with the reasons of each way that was tried.
    """
    reasons: Counter[str] = Counter()
    for config in configs(kind):
        if isinstance(config, Exception):
            reasons[f"config: {_said(config)}"] += 1
            continue
        classes = model_classes(config)
        if not classes:
            raise NotImplementedError("no class of models has this configuration")
        for cls in classes:
            torch.manual_seed(0)
            try:
                with torch.device("meta"):
                    size = sum(each.numel() for each in cls(config).parameters())
            except Exception:
                size = 0  # known when it is built
            if size > LARGEST:
                reasons[f"{cls.__name__}: {size / 1e6:.0f} million parameters"] += 1
                continue
            try:
                model = cls(config).eval()
            except Exception as error:
                reasons[f"{cls.__name__}: {_said(error)}"] += 1
                continue
            spread(model)
            torch.manual_seed(1)
            if (inputs := _that_run(model, reasons)) is not None:
                return model, inputs
    raise NotImplementedError(" | ".join(reasons))


def _that_run(model: Any, reasons: Counter[str]) -> dict[str, Any] | None:
    """The first inputs with which the model runs, not many that fail for the same reason."""
    here: Counter[frozenset[str]] = Counter()  # how often inputs of these names failed
    for inputs in inputs_of(model):
        tried: dict[str, Any] | None = inputs
        while tried is not None and here[frozenset(tried)] < 24:
            try:
                runs(model, tried)
                return tried
            except Exception as error:
                here[frozenset(tried)] += 1
                reasons[f"inputs {', '.join(tried)}: {_said(error)}"] += 1
                tried = _fitted(model, inputs, error) if tried is inputs else None
    return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
