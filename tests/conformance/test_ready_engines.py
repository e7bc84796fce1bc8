# SPDX-License-Identifier: BSD-3-Clause
"""Ready adapters of other engines: their records, and those that PyTorch and Transformers suffice for."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.conformance.engines import Engine, engines, find_engine
from versions import ready

#: Engines of PyTorch and Transformers, and options that each serves besides none at all.
WITH_TORCH: dict[str, tuple[dict[str, Any], ...]] = {
    "torch": ({"is_causal": True}, {"scale": 0.3}, {"attn_mask": "bool"}, {"attn_mask": "float"}),
    "torch-fused": ({"is_causal": True}, {"scale": 0.3}, {"attn_mask": "float"}),
    "torch-flex": (
        {"causal": 2, "window": (2, 1)},
        {"softcap": 2.0, "attn_mask": "float"},
        {"attn_mask": "bool"},
    ),
    "torch-mha": (
        {"is_causal": True},
        {"key_lengths": [5, 3]},
        {"attn_mask": "bool"},
        {"attn_mask": "float"},
    ),
    "torch-mha-fused": ({"is_causal": True}, {"key_lengths": [5, 3]}, {"attn_mask": "bool"}),
    "torch-causal-bias": ({"is_causal": True}, {"causal": "bottom_right"}),
    "torch-onnx": ({"is_causal": True}, {"softcap": 2.0}, {"attn_mask": "float"}),
    "transformers-eager": (
        {"is_causal": True},
        {"window": (2, 0)},
        {"window": (2, 2)},
        {"key_lengths": [5, 3], "is_causal": True},
        {"document_ids": [0, 0, 0, 1, 1, 2, 2]},
        {"softcap": 2.0},
        {"normalizer": "sink(logits=[0.5, 1.0, -1.0, 2.0])"},
        {"normalizer": "softmax_n(n=2)"},
        {"attn_mask": "float"},
    ),
    "transformers-flex": ({"is_causal": True}, {"window": (2, 0)}, {"softcap": 2.0}),
    "transformers-sdpa": (
        {"is_causal": True},
        {"window": (2, 0)},
        {"key_lengths": [5, 3]},
        {"attn_mask": "bool"},
    ),
}
WITHOUT_PLAIN = {"torch-causal-bias"}  # serves only calls with a causal mask
CALLS = [
    (name, options)
    for name, served in WITH_TORCH.items()
    for options in (*(() if name in WITHOUT_PLAIN else ({},)), *served)
]


def arrays() -> list[Any]:
    """Query, key and value of (2, 4, 7, 8), each of its own numbers."""
    return list(np.random.default_rng(7).standard_normal((3, 2, 4, 7, 8), np.float32))


def filled(options: dict[str, Any]) -> dict[str, Any]:
    """Options with a mask in place of its kind; each row keeps a key."""
    seen = np.random.default_rng(8).random((2, 1, 7, 7)) > 0.4
    seen[..., 0] = True
    masks = {"bool": seen, "float": np.where(seen, 0.5, -np.inf).astype(np.float32)}
    return {
        name: masks.get(given, given) if name == "attn_mask" else given for name, given in options.items()
    }


@pytest.mark.parametrize("name", engines())
def test_the_record_of_an_engine_is_complete(name: str) -> None:
    engine = engines()[name]
    assert engine.name == name
    assert re.fullmatch(r"[a-z][a-z0-9-]*", name)
    assert engine.call
    assert not engine.notes or engine.notes.endswith(".")
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", each) for each in engine.requirements)
    if engine.requirements:
        assert f"{engine.package}=={engine.run_with}" in engine.requirements


def test_no_package_is_imported_before_its_engine_is_called() -> None:
    code = (
        "import sys, attnscale\n"
        "before = set(sys.modules)\n"
        "found = attnscale.conformance.engines.engines()\n"
        "others = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "others -= {'attnscale', 'numpy', 'cython_runtime'} | set(sys.stdlib_module_names)\n"
        "print(len(found), sorted(name for name in others if name[0] != '_'))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"{len(engines())} []\n"


def test_an_absent_package_is_named() -> None:
    absent = Engine(
        "no-such", "none", "no-such-package", "1.0", lambda *_: None, ("no-such-package==1.0", "b==2")
    )
    assert absent.installed is None
    with pytest.raises(
        ModuleNotFoundError, match=r"'no-such' needs no-such-package: pip install no-such-package==1[.]0 b"
    ):
        absent.need()
    Engine("own", "none", "numpy", np.__version__, lambda *_: None).need()


def test_a_package_without_the_name_that_is_needed_is_too_old() -> None:
    there, here = ("numpy", np.__version__, lambda *_: None), {"requirements": ("numpy==9",)}
    for uses in ("numpy.linalg.no_such", "numpy.no_such.name"):
        with pytest.raises(
            ImportError, match=rf"^the engine 'e' needs {uses}, which numpy \S+ lacks: pip install"
        ):
            Engine("e", "none", *there, uses=uses, **here).need()  # type: ignore[arg-type]
    Engine("e", "none", *there, uses="numpy.linalg.norm", **here).need()  # type: ignore[arg-type]


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'torch-flex'[?] engine must be one of"):
        find_engine("torch_flex")


@pytest.mark.torch
def test_what_an_engine_has_not_is_refused() -> None:
    pytest.importorskip("torch")
    attend = find_engine("torch")
    attend(*arrays(), window=None)
    with pytest.raises(NotImplementedError, match="no softcap, no window"):
        attend(*arrays(), window=(1, 0), softcap=2.0)
    with pytest.raises(NotImplementedError, match="arrays of 4 axes only"):
        attend(*(x[0, 0] for x in arrays()))
    with pytest.raises(NotImplementedError, match="no normalizer but the softmax"):
        find_engine("transformers-eager")(*arrays(), normalizer="sparsemax")


@pytest.mark.torch
@pytest.mark.parametrize(("name", "options"), CALLS)
def test_an_engine_gives_the_output(name: str, options: dict[str, Any]) -> None:
    given = filled(options)
    found = ready(name)(*arrays(), **given)
    want = at.attention_statistics(*arrays(), statistics="lse", **given)
    np.testing.assert_allclose(found["output"], want.output, atol=2e-6)
    if "lse" in found:
        np.testing.assert_allclose(found["lse"], want.lse, atol=2e-6)
    if "weights" in found:
        weights = at.attention_weights(*arrays()[:2], **given)
        np.testing.assert_allclose(found["weights"], weights, atol=2e-6)


@pytest.mark.torch
@pytest.mark.parametrize(("name", "options"), CALLS)
def test_an_engine_gives_its_gradients(name: str, options: dict[str, Any]) -> None:
    given = filled(options)
    found = ready(name)(*arrays(), **given)
    grad = np.random.default_rng(9).standard_normal(found["output"].shape, np.float32)
    if "gradients" not in found:
        assert name in {"torch-flex", "torch-onnx", "transformers-flex"}
        return
    want = at.attention_gradients(*arrays(), grad, **given)
    for got, one in zip(found["gradients"](grad), (want.query, want.key, want.value), strict=True):
        np.testing.assert_allclose(got, one, atol=5e-6)


@pytest.mark.torch
@pytest.mark.parametrize("name", WITH_TORCH)
def test_an_engine_leaves_its_arrays_alone(name: str) -> None:
    given, options = arrays(), filled(WITH_TORCH[name][0])
    ready(name)(*given, **options)
    for one, other in zip(given, arrays(), strict=True):
        np.testing.assert_array_equal(one, other)
