# SPDX-License-Identifier: BSD-3-Clause
"""Replacement of PyTorch's attention in a model by this package's."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module

from ..._base.checks import shown
from ._multihead import MultiheadAttention


def replace_attention(model: Module, **options: Any) -> Module:
    """Put :class:`attnscale.torch.nn.MultiheadAttention` in place of every PyTorch one in a model.

    Parameters
    ----------
    model : torch.nn.Module
        The model, changed in place. Parameters stay the same objects, so an optimizer goes on; modes, hooks
        and names of modules stay, so an earlier state_dict loads.
    **options
        Options of every new module: law, normalizer, learnable_scale, learnable_law, statistics, rotary_base
        and backend, as for :class:`attnscale.torch.nn.MultiheadAttention`. Without options results stay the
        same. Learned parameters are new and must be added to the optimizer.

    Returns
    -------
    torch.nn.Module
        The model, or a new module if the model is itself a ``torch.nn.MultiheadAttention``.

    Raises
    ------
    TypeError
        If the model is not a module, an option is unknown, or a module is of a class derived from
        ``torch.nn.MultiheadAttention``, whose forward pass may differ.
    ValueError
        If there is no ``torch.nn.MultiheadAttention`` in the model, or an option is out of range. After an
        error the model is unchanged.

    Notes
    -----
    Modules of this package's class stay as they are.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2)
    >>> model = at.torch.replace_attention(model, law="log_n", statistics=["entropy"])
    >>> _ = model(torch.zeros(2, 10, 32))
    >>> model.layers[0].self_attn.rows.entropy.shape
    torch.Size([2, 4, 10])
    """
    if not isinstance(model, Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    new: dict[Module, MultiheadAttention] = {}
    for name, module in model.named_modules():
        if type(module) is torch.nn.MultiheadAttention:
            new[module] = MultiheadAttention._of(module, **options)
        elif isinstance(module, torch.nn.MultiheadAttention) and not isinstance(module, MultiheadAttention):
            raise TypeError(
                f"model must have torch.nn.MultiheadAttention itself, not a class derived from it, got "
                f"{type(module).__module__}.{type(module).__qualname__} at {name or 'its top'}"
            )
    if not new:
        raise ValueError(
            f"model must have a torch.nn.MultiheadAttention, got {type(model).__name__} without one"
        )
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in new:
                parent._modules[name] = new[child]
    return new.get(model, model)
