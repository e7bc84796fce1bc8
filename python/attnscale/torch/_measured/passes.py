# SPDX-License-Identifier: BSD-3-Clause
"""Passes of a model over a short text at chosen positions, with the queries and keys of each layer.

A pass keeps of each call of attention only what :mod:`.origins` and :mod:`.turns` need of one or two heads.
Outputs of modules are held from one call of attention to the next, those of about one layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.overrides import TorchFunctionMode

from ..._base.checks import refusal
from .._models.calls import SeenCall
from .._models.watch import Watch

#: Tokens of the text: a prime, so that no other axis of a tensor has this length by its meaning.
TOKENS = 61
#: Largest number of features of a module whose output is kept.
_WIDEST = 1 << 17


class Output(NamedTuple):
    """Output of a module, with the tokens first: shape (tokens, features)."""

    module: str
    values: Tensor


#: Function called with each call of self-attention and the outputs of modules since the call before.
Show = Callable[[SeenCall, list[Output]], None]


class Text:
    """Random tokens for a model, and the arguments to run them at given positions."""

    def __init__(self, model: torch.nn.Module, seed: int = 0) -> None:
        self._model = model
        self._accepted = _accepted(model)
        if "input_ids" not in self._accepted:
            raise refusal(
                NotImplementedError,
                "model",
                f"must read input_ids, {type(model).__name__} reads {', '.join(self._accepted)}",
            )
        words = _words(model)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(words), generator=generator)
        order = order.repeat(-(-TOKENS // len(words)))[:TOKENS]
        self._ids = words[order][None].to(next(model.parameters()).device)

    @property
    def takes_positions(self) -> bool:
        """Whether positions can be handed in."""
        return "position_ids" in self._accepted

    def after(self, length: int) -> dict[str, Any]:
        """Arguments with the tokens in order, behind so many others that they do not see."""
        name = next((each for each in ("cache", "past_key_values") if each in self._accepted), None)
        if name is None:
            raise LookupError("the model takes no cache")
        return {"input_ids": self._ids, "use_cache": True, name: _forgotten(length)}

    def arguments(self, position: int | None = None) -> dict[str, Any]:
        """Arguments with all tokens at one position; None for positions in order."""
        given: dict[str, Any] = {"input_ids": self._ids}
        if position is not None:
            # A mask, since transformers takes equal positions for the beginnings of packed texts.
            given["position_ids"] = torch.full_like(self._ids, position)
            given["attention_mask"] = torch.ones_like(self._ids)
        if "decoder_input_ids" in self._accepted:
            given["decoder_input_ids"] = self._ids
        optional = {"use_cache": False, "attention_mask": torch.ones_like(self._ids)}
        for name, value in optional.items():
            if name in self._accepted:
                given.setdefault(name, value)
        return {name: value for name, value in given.items() if name in self._accepted}


def _accepted(model: torch.nn.Module) -> set[str]:
    """Names of arguments that a model takes; one with ``**kwargs`` hands them to a model inside."""
    outer = inspect.signature(model.forward).parameters
    found = set(outer)
    if "input_ids" in outer and any(each.kind is each.VAR_KEYWORD for each in outer.values()):
        for module in model.modules():
            inner = set(inspect.signature(module.forward).parameters)
            if {"input_ids", "position_ids"} <= inner:
                return found | inner
    return found


def unwrapped(model: Any) -> Any:
    """The model itself, without what compiles it or runs replicas of it."""
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        model = model.module
    return getattr(model, "_orig_mod", model)


def _words(model: torch.nn.Module) -> Tensor:
    """Token ids that stand for words: none of the config's special ones."""
    try:
        count = model.get_input_embeddings().num_embeddings
    except (AttributeError, NotImplementedError):
        rule = f"must have a table of words, got none in {type(model).__name__}"
        raise refusal(NotImplementedError, "model", rule) from None
    special = set(_special(getattr(model, "config", None)))
    kept = [number for number in range(count) if number not in special]
    return torch.tensor(kept or [*range(count)])


def _special(config: Any) -> Iterator[int]:
    keys = config.to_dict() if hasattr(config, "to_dict") else {}
    for part in (keys, *(value for value in keys.values() if isinstance(value, dict))):
        for name, value in part.items():
            if str(name).endswith(("token_id", "token_index")):
                yield from (x for x in (value if isinstance(value, list) else [value]) if isinstance(x, int))


def _forgotten(length: int) -> Any:
    """A cache of transformers that counts tokens which it does not hold, and keeps none."""
    try:
        from transformers import DynamicCache
    except ImportError:
        raise LookupError("transformers is not installed") from None

    class Forgotten(DynamicCache):
        def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
            return length

        def get_mask_sizes(self, query_length: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
            return query_length, length

        def update(self, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            return key, value

    return Forgotten()


class SinksRead(TorchFunctionMode):
    """Names of a model's sinks that some function reads while this is open."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._names = {id(x): name for name, x in model.named_parameters() if "sink" in name.lower()}
        self.names: set[str] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._names:
            self.names |= {self._names[id(x)] for x in args if id(x) in self._names}
        return function(*args, **(kwargs or {}))


def run(model: torch.nn.Module, arguments: Mapping[str, Any], show: Show) -> dict[str, str]:
    """Run one pass; returns the modules whose attention was not shown, with the reason."""
    kept: list[Output] = []
    lost: dict[str, str] = {}

    def see(call: SeenCall) -> None:
        if call.kind == "self":
            show(call, kept)
        else:
            lose(str(call.place), "it attends to other rows")
        kept.clear()

    def lose(module: str, why: str) -> None:
        lost.setdefault(module, why)

    with ExitStack() as open_hooks, evaluated(model), torch.no_grad():
        for name, module in model.named_modules():
            hook = module.register_forward_hook(partial(_keep, kept, name))
            open_hooks.callback(hook.remove)
        open_hooks.enter_context(Watch(model, see, None, lose))
        model(**arguments)
    return lost


def _keep(kept: list[Output], name: str, module: Any, args: Any, out: Any) -> None:
    tensors = [x for x in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(x, Tensor)]
    found = (by_token(x) for x in tensors if x.is_floating_point())
    kept.extend(Output(name, each) for each in found if each is not None)


def by_token(x: Tensor) -> Tensor | None:
    """A copy of a tensor as (tokens, features); None if no axis, or more than one, counts the tokens."""
    axes = [axis for axis, size in enumerate(x.shape) if size == TOKENS]
    if len(axes) != 1 or x.numel() > TOKENS * _WIDEST:
        return None
    return x.detach().movedim(axes[0], 0).reshape(TOKENS, -1).clone()  # some models change it in place


@contextmanager
def evaluated(model: torch.nn.Module) -> Iterator[None]:
    """Block in which no module is in training; afterwards numbers, buffers and modes are as before.

    Rotary positions with dynamic scaling keep the longest text that they saw.
    """
    before = [(module, dict(module._buffers), _numbers(module)) for module in model.modules()]
    for module in model.modules():
        module.training = False
    try:
        yield
    finally:
        for module, buffers, numbers in before:
            module._buffers.update(buffers)
            for name, value in numbers.items():
                if module.__dict__.get(name, value) is not value:
                    module.__dict__[name] = value


def _numbers(module: torch.nn.Module) -> dict[str, Any]:
    """Attributes of a module that are numbers, truth values or texts."""
    return {name: x for name, x in vars(module).items() if isinstance(x, (bool, int, float, str))}
