# SPDX-License-Identifier: BSD-3-Clause
"""XLA's binary interface as the core declares it, and calls through it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest

from tests.declarations import check_declarations

jax = pytest.importorskip("jax")

pytestmark = pytest.mark.jax

#: Header of XLA, and the folder that a compiler searches.
HEADER = (jax.ffi.include_dir(), "xla/ffi/api/c_api.h")


def extension_struct() -> str:
    """The name of XLA's struct that heads extensions; jaxlib 0.12 renamed it."""
    text = Path(*HEADER).read_text(encoding="utf-8")
    return next(
        name for name in ("XLA_FFI_Extension_Base", "XLA_FFI_InternalExtension") if f"struct {name}" in text
    )


#: Structs that the core declares, those of XLA's header, and the fields of both in order.
STRUCTS = {
    ("extension", extension_struct()): "size=struct_size kind=type next",
    ("interface_version", "XLA_FFI_Api_Version"): "{head} major=major_version minor=minor_version",
    ("error_arguments", "XLA_FFI_Error_Create_Args"): "{head} message code=errc",
    ("functions", "XLA_FFI_Api"): (
        "{head} version=api_version internal=internal_api create_error=XLA_FFI_Error_Create"
    ),
    ("buffer", "XLA_FFI_Buffer"): "{head} type=dtype data rank extents=dims",
    ("buffers", "XLA_FFI_Args"): "{head} count=size kinds=types items=args",
    ("buffers", "XLA_FFI_Rets"): "{head} count=size kinds=types items=rets",
    ("text", "XLA_FFI_ByteSpan"): "data=ptr length=len",
    ("scalar", "XLA_FFI_Scalar"): "type=dtype value",
    ("attributes", "XLA_FFI_Attrs"): "{head} count=size kinds=types names values=attrs",
    ("call_frame", "XLA_FFI_CallFrame"): (
        "{head} api context=ctx stage arguments=args results=rets options=attrs"
    ),
    ("metadata", "XLA_FFI_Metadata"): "size=struct_size version=api_version traits state_type=state_type_id",
    ("metadata_extension", "XLA_FFI_Metadata_Extension"): "base=extension_base answer=metadata",
}
#: How most of them begin.
HEAD = "size=struct_size extensions=extension_start"
NUMBERS = {
    "boolean": "DataType_PRED",
    "int32": "DataType_S32",
    "int64": "DataType_S64",
    "uint32": "DataType_U32",
    "float16": "DataType_F16",
    "float32": "DataType_F32",
    "float64": "DataType_F64",
    "bfloat16": "DataType_BF16",
    "invalid_argument": "Error_Code_INVALID_ARGUMENT",
    "resource_exhausted": "Error_Code_RESOURCE_EXHAUSTED",
    "internal_error": "Error_Code_INTERNAL",
    "scalar_attribute": "AttrType_SCALAR",
    "string_attribute": "AttrType_STRING",
    "execute_stage": "ExecutionStage_EXECUTE",
    "metadata_kind": "Extension_Metadata",
}


def test_the_declarations_agree_with_the_installed_jaxlib(tmp_path: Path) -> None:
    check_declarations(
        tmp_path,
        own=("xla_abi.hpp", "attnscale::bindings::xla"),
        theirs=HEADER,
        structs={names: fields.format(head=HEAD) for names, fields in STRUCTS.items()},
        numbers={own: f"XLA_FFI_{theirs}" for own, theirs in NUMBERS.items()},
    )


def test_the_package_and_its_handlers_need_no_jax() -> None:
    script = (
        "import sys, attnscale\n"
        "assert sorted(attnscale._core.xla_handlers()) == ['attend', 'gradients']\n"
        "assert not {'jax', 'jaxlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_denormal_numbers_are_numbers() -> None:
    """XLA takes them for zero on its threads."""
    q, k = np.random.default_rng(0).standard_normal((2, 2, 9, 8), np.float32)
    v = np.full((2, 9, 4), 1e-41, np.float32)
    found = np.asarray(jax.jit(at.jax.attention)(q, k, v))
    np.testing.assert_array_equal(found, at.attention(q, k, v))
    assert (found > 0).all()


def test_numbers_do_not_depend_on_threads() -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 4, 300, 32), np.float32)

    def both(q: Any, n: int) -> Any:
        call = lambda q: at.jax.attention(q, k, v, num_threads=n).sum()  # noqa: E731
        return jax.jit(jax.value_and_grad(call))(q)

    for one, other in zip(both(q, 1), both(q, 3), strict=True):
        np.testing.assert_array_equal(one, other)


def test_programs_on_several_threads_at_once() -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 8, 2, 40, 16), np.float32)
    call = jax.jit(jax.grad(lambda q, k, v: at.jax.attention(q, k, v, is_causal=True).sum()))
    wanted = [np.asarray(call(*each)) for each in zip(q, k, v, strict=True)]
    found: list[list[Any]] = [[] for _ in wanted]

    def work(i: int) -> None:
        found[i] = [np.asarray(call(q[i], k[i], v[i])) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(wanted))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for rows, exact in zip(found, wanted, strict=True):
        assert len(rows) == 20
        for each in rows:
            np.testing.assert_array_equal(each, exact)


def test_a_compiled_program_has_no_matrix_of_weights() -> None:
    """Neither forward nor backward: the largest array is a query."""
    x = jax.ShapeDtypeStruct((1, 4096, 16), np.float32)
    loss = lambda q, k, v: at.jax.attention(q, k, v, is_causal=True).sum()  # noqa: E731
    memory = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 10 * 4096 * 16 * 4
