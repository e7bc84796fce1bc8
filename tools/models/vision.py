# SPDX-License-Identifier: BSD-3-Clause
"""Models of timm and torchvision with random weights, watched beside an oracle of plain torch.

A process of its own runs this: ``python -m tools.models.vision FOLDER``, where FOLDER holds the two packages.
The build of torchvision that the package index has is for GPUs, and its operators do not load with a PyTorch
for CPUs. Nothing here calls them, but torchvision says how they would look, so they have to have names; and
transformers, once it finds torchvision, imports it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

#: Options that make a timm model small, and the size of its images, by name.
TIMM: dict[str, tuple[dict[str, Any], int]] = {
    "vit_tiny_patch16_224": ({"img_size": 64, "depth": 2}, 64),
    "vit_base_patch16_siglip_224": ({"img_size": 64, "depth": 1, "embed_dim": 48, "num_heads": 3}, 64),
    "beit_base_patch16_224": ({"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3}, 64),
    "coatnet_nano_rw_224": ({"img_size": 64}, 64),
    "crossvit_tiny_240": ({}, 240),
    "convit_tiny": ({"img_size": 64}, 64),
    "edgenext_xx_small": ({}, 64),
    "eva02_tiny_patch14_224": ({"img_size": 56, "depth": 2}, 56),
    "levit_128s": ({"img_size": 64}, 64),
    "maxvit_nano_rw_256": ({"img_size": 64}, 64),
    "mobilevit_xxs": ({}, 128),
    "mobilevitv2_050": ({}, 64),
    "mvitv2_tiny": ({"img_size": 64}, 64),
    "pvt_v2_b0": ({}, 64),
    "resnet18": ({}, 64),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)},
        56,
    ),
    "swinv2_tiny_window8_256": (
        {"img_size": 64, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)},
        64,
    ),
    "twins_svt_small": ({"img_size": 64}, 64),
    "xcit_nano_12_p16_224": ({"img_size": 64, "depth": 2}, 64),
}
#: Models that run a second time with the softmax that timm writes out without fused attention.
WRITTEN_OUT = (
    "vit_tiny_patch16_224",
    "vit_base_patch16_siglip_224",
    "beit_base_patch16_224",
    "coatnet_nano_rw_224",
    "crossvit_tiny_240",
)


def name_operators() -> Any:
    """Names for torchvision's operators, where its build does not fit that of PyTorch; to be kept alive."""
    names = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        names.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return names


def models() -> Iterator[tuple[str, Any, int]]:
    """Models by name, with the size of their images."""
    import timm
    from timm.layers import set_fused_attn
    from torchvision.models import SwinTransformer, VisionTransformer

    for fused, names in ((True, TIMM), (False, WRITTEN_OUT)):
        set_fused_attn(fused)
        for name in names:
            keys, size = TIMM[name]
            yield f"timm {name}{'' if fused else ', written out'}", timm.create_model(name, **keys), size
    yield "torchvision vit", VisionTransformer(32, 8, 2, 3, 48, 96), 32
    yield "torchvision swin", SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4]), 32


def compared(model: Any, size: int) -> dict[str, Any]:
    """Oracle and package on one model: modules, ways and the largest difference."""
    import attnscale as at

    from .eager import entropies, weights_of

    model.eval()
    pixels = torch.randn(2, 3, size, size)
    seen = weights_of(model, {"x": pixels})
    wanted = {name: entropies(each.weights).numpy() for name, each in seen.items()}
    with torch.no_grad():
        plain = model(pixels)
        try:
            with at.torch.record(model) as log:
                watched = model(pixels)
        except ValueError as error:
            return {"wanted": [*wanted], "said": str(error)}
    found = {name: log["entropy"][name] for name in log.modules}
    off = [
        np.abs(rows - wanted[name].reshape(rows.shape)).max()
        for name, rows in found.items()
        if name in wanted
    ]
    return {
        "wanted": [*wanted],
        "found": [*found],
        "ways": sorted(set(log.ways.values())),
        "off": float(max(off)),
        "same_output": bool(torch.equal(plain, watched)),
    }


def main() -> None:
    """Print one line of JSON for each model."""
    sys.path.append(sys.argv[1])
    kept = name_operators()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, model, size in models():
        print(json.dumps({"name": name, **compared(model, size)}), flush=True)
    del kept


if __name__ == "__main__":
    main()
