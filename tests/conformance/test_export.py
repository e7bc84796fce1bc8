# SPDX-License-Identifier: BSD-3-Clause
"""at.conformance.export: files for FlashInfer-Bench and tests of ONNX nodes."""

from __future__ import annotations

import ast
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.conformance import Case

DTYPES = ("float32", "float16", "bfloat16")


@pytest.fixture(scope="module", params=DTYPES)
def dataset(request: Any, tmp_path_factory: Any) -> Any:
    """Every case as a dataset of FlashInfer-Bench."""
    if request.param == "bfloat16":
        pytest.importorskip("ml_dtypes")
    folder = tmp_path_factory.mktemp("export") / request.param
    return at.conformance.export(folder, form="flashinfer-trace", dtype=request.param)


def definitions(root: Path) -> dict[str, Any]:
    found = [json.loads(file.read_text()) for file in (root / "definitions").rglob("*.json")]
    return {each["name"]: each for each in found}


def workloads(root: Path) -> list[Any]:
    files = (root / "workloads").rglob("*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_dataset_keeps_the_rules_of_its_schema(dataset: Any) -> None:
    """Rules of Definition and Workload in flashinfer-bench 0.1.2, for where that is not installed."""
    known = definitions(dataset.folder)
    assert len(known) > 40
    assert len(dataset.written) == len(workloads(dataset.folder)) > 100
    for each in known.values():
        assert not each["inputs"].keys() & each["outputs"].keys()
        for spec in (*each["inputs"].values(), *each["outputs"].values()):
            assert set(spec["shape"] or ()) <= each["axes"].keys()
        (run,) = (node for node in ast.parse(each["reference"]).body if getattr(node, "name", "") == "run")
        assert isinstance(run, ast.FunctionDef)
        assert [argument.arg for argument in run.args.args] == list(each["inputs"])
    for line in workloads(dataset.folder):
        definition, workload = known[line["definition"]], line["workload"]
        assert line["solution"] is line["evaluation"] is None
        assert workload["axes"].keys() == definition["axes"].keys()
        assert list(workload["inputs"]) == list(definition["inputs"])
        for name, source in workload["inputs"].items():
            assert (source["type"] == "scalar") == (definition["inputs"][name]["shape"] is None)


def arrays_of(dataset: Any, line: Any) -> Any:
    """The stored tensors of a workload."""
    load_file = pytest.importorskip("safetensors.torch").load_file
    return load_file(dataset.folder / line["workload"]["inputs"]["query"]["path"])


def test_the_reference_of_each_definition_gives_the_stored_answer(dataset: Any) -> None:
    torch = pytest.importorskip("torch")
    known, steps = definitions(dataset.folder), {}
    for line in workloads(dataset.folder):
        definition, workload = known[line["definition"]], line["workload"]
        stored = arrays_of(dataset, line)
        for name, spec in (definition["inputs"] | definition["outputs"]).items():
            if spec["shape"] is not None:
                assert list(stored[name].shape) == [workload["axes"][axis] for axis in spec["shape"]]
                assert stored[name].dtype == getattr(torch, spec["dtype"])
        given = [source.get("value", stored.get(name)) for name, source in workload["inputs"].items()]
        space: dict[str, Any] = {}
        exec(definition["reference"], space)
        found, answer = space["run"](*given), stored["output"]
        assert found.dtype == answer.dtype
        step = torch.finfo(answer.dtype).eps * answer.double().abs() + 1e-7
        steps[workload["uuid"]] = float(((found.double() - answer.double()).abs() / step).max())
    assert max(steps.values()) <= 1, max(steps, key=lambda uuid: steps[uuid])


def test_the_package_reads_the_dataset(dataset: Any) -> None:
    data, bench = (pytest.importorskip(f"flashinfer_bench.{name}") for name in ("data", "bench.utils"))
    read = data.TraceSet.from_path(str(dataset.folder))
    assert sum(map(len, read.workloads.values())) == len(dataset.written)
    for name, definition in read.definitions.items():
        for trace in read.workloads[name]:
            stored = bench.load_safetensors(definition, trace.workload, dataset.folder)
            inputs = bench.gen_inputs(definition, trace.workload, "cpu", stored)
            assert definition.get_axes_values_from_inputs(inputs) == trace.workload.axes


def by_the_text(inputs: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """Operator Attention in NumPy, after its text for the opsets 24 and 25."""
    q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
    flat = q.ndim == 3
    if flat:
        counts = [attributes[name] for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        split = [x.reshape(*x.shape[:2], n, -1) for x, n in zip((q, k, v), counts, strict=True)]
        q, k, v = (x.swapaxes(1, 2) for x in split)
    offset: Any = 0
    if "past_key" in inputs:
        offset = inputs["past_key"].shape[2]
        k, v = (np.concatenate([inputs[f"past_{n}"], x], 2) for n, x in (("key", k), ("value", v)))
    lengths = inputs.get("nonpad_kv_seqlen", np.full(len(q), k.shape[2]))[:, None, None, None]
    if "nonpad_kv_seqlen" in inputs:
        offset = lengths - q.shape[2]
    k, v = (x.repeat(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = q @ k.swapaxes(2, 3) * attributes.get("scale", q.shape[3] ** -0.5)
    if cap := attributes.get("softcap"):
        score = cap * np.tanh(score / cap)
    p, j = offset + np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    seen = (j < lengths) & ((j <= p) if attributes.get("is_causal") else True)
    seen = seen & (left < 0 or j >= p - left) & (right < 0 or j <= p + right)
    mask = inputs.get("attn_mask", np.array(True))
    bias = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
    score = np.where(seen, score + bias, -np.inf)
    top = score.max(-1, keepdims=True)
    weights = np.exp(score - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    output = weights @ v / np.where(total == 0, 1, total)
    return output.swapaxes(1, 2).reshape(*inputs["Q"].shape[:2], -1) if flat else output


class Pickled(SimpleNamespace):
    """Content of a file in bytes that the test reads, in place of those of the package onnx."""

    def SerializeToString(self) -> bytes:
        return pickle.dumps(vars(self))


def recorder() -> Any:
    """Parts of the package onnx that a test of a node needs, without their checks."""
    helper = SimpleNamespace(
        make_node=lambda kind, inputs, outputs, **attributes: (kind, inputs, outputs, attributes),
        make_graph=lambda nodes, name, inputs, outputs: (*nodes, inputs, outputs),
        make_model=lambda graph, opset_imports, **about: Pickled(graph=graph, opsets=opset_imports),
        make_tensor_value_info=lambda name, dtype, shape: (name, dtype, shape),
        make_opsetid=lambda domain, number: (domain, number),
        np_dtype_to_tensor_dtype=str,
        find_min_ir_version_for=lambda opsets: 11,
    )
    numbers = SimpleNamespace(from_array=lambda array, name: Pickled(array=array, name=name))
    checker = SimpleNamespace(check_model=lambda model, full_check: None)
    return SimpleNamespace(helper=helper, numpy_helper=numbers, checker=checker)


def test_nodes_mean_what_the_cases_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of the operator by its own text, for each case that is written."""
    monkeypatch.setitem(sys.modules, "onnx", recorder())
    done = at.conformance.export(tmp_path / "tests", form="onnx")
    tests, used = sorted(done.folder.iterdir()), set()
    assert len(tests) == len(done.written) > 50
    for test in tests:
        ((kind, given, names, attributes), *typed), opsets = pickle.loads(
            (test / "model.onnx").read_bytes()
        ).values()
        read = [pickle.loads(file.read_bytes()) for file in sorted(test.glob("test_data_set_0/*put_*.pb"))]
        stored = {each["name"]: each["array"] for each in read}
        assert [list(filter(None, given)), names] == [[name for name, *_ in each] for each in typed]
        assert [x.shape for x in stored.values()] == [shape for each in typed for *_, shape in each]
        output = by_the_text(stored, attributes)
        np.testing.assert_allclose(output, stored["Y"], atol=1e-6, err_msg=test.name)
        assert (kind, opsets) == ("Attention", [("", 25 if "left_window_size" in attributes else 24)])
        used |= {*filter(None, given), *attributes}
    every = "Q K V attn_mask past_key past_value nonpad_kv_seqlen is_causal scale softcap kv_num_heads"
    assert used == {*every.split(), "q_num_heads", "left_window_size", "right_window_size"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_nodes_in_the_reference_of_onnx(tmp_path: Path, dtype: str) -> None:
    onnx, run = pytest.importorskip("onnx"), pytest.importorskip("onnx.reference").ReferenceEvaluator
    done = at.conformance.export(tmp_path / "tests", form="onnx", dtype=dtype)
    tests = sorted(done.folder.iterdir())
    assert len(tests) == len(done.written) > 50
    refused = []
    for test in tests:
        model = onnx.load(test / "model.onnx")
        onnx.checker.check_model(model, full_check=True)
        data = test / "test_data_set_0"
        inputs, answers = (
            [onnx.numpy_helper.to_array(onnx.load_tensor(data / f"{kind}_{i}.pb")) for i in range(len(named))]
            for kind, named in (("input", model.graph.input), ("output", model.graph.output))
        )
        feeds = {each.name: x for each, x in zip(model.graph.input, inputs, strict=True)}
        try:
            found = run(model).run(None, feeds)
        except ValueError:
            refused.append(test.name)
            continue
        allowed = json.loads((test / "data.json").read_text())
        for one, answer in zip(found, answers, strict=True):
            one, answer = (np.asarray(x).astype(np.float64) for x in (one, answer))
            np.testing.assert_allclose(one, answer, allowed["rtol"], allowed["atol"], err_msg=test.name)
    # onnx 1.23.2 refuses a mask of one axis beside a causal mask, though its text allows what is broadcast.
    assert len(refused) <= 4, refused


def test_cases_of_ones_own(tmp_path: Path) -> None:
    own = {
        "Lengths + 2": Case({"key_lengths": np.array([3, 9])}),
        "table": Case({"distance_bias": np.zeros(9)}),
        "lowest": Case({"attn_mask": np.full((7, 9), -1e9)}),
        "law": Case({"scale": "log_n"}),
        "no value": Case({}, value=None),
        "integers": Case({"attn_mask": np.ones((7, 9), np.int64)}),
        "scale": Case({"scale": np.array(0.75)}),
    }
    done = at.conformance.export(tmp_path / "a" / "b", form="flashinfer-trace", cases=own)
    assert done.written == ("Lengths + 2", "scale")
    assert done.left_out["integers"] == "no mask of integers"
    assert done.left_out["table"] == "no distance_bias"
    assert done.left_out["law"] == "one number as scale"
    assert done.left_out["no value"] == "arrays of four axes only"
    assert done.left_out["lowest"].startswith("no mask that hides by a number")
    line, number = sorted(workloads(done.folder), key=lambda each: each["workload"]["uuid"])
    assert number["workload"]["inputs"]["scale"] == {"type": "scalar", "value": 0.75}
    assert line["workload"]["uuid"] == "lengths_and_2"
    assert line["workload"]["axes"]["keys"] == 9
    assert str(done).startswith(f"2 cases as flashinfer-trace in {done.folder}, 5 left out\n  ")


def test_numbers_beyond_a_type_are_left_out(tmp_path: Path) -> None:
    far = {"far": Case(edits=(("value", (0, 0, 0, 0), 1e5),))}
    done = at.conformance.export(tmp_path / "t", form="flashinfer-trace", cases=far, dtype="float16")
    assert done.left_out == {"far": "no numbers beyond float16"}


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "file").touch()
    new, form = tmp_path / "new", "flashinfer-trace"
    two = {"a b": Case(), "a-b": Case()}
    for folder, options, said in (
        (new, {"form": "trace"}, "form must be one of 'flashinfer-trace', 'onnx', got 'trace'"),
        (new, {"form": form, "dtype": "float64"}, "dtype must be one of 'float32', 'float16', 'bfloat16'"),
        (new, {"form": "onnx"}, r"form 'onnx' needs the package onnx \(pip install onnx\)"),
        (tmp_path, {"form": form}, "folder must be new or empty, got .* with files in it"),
        (tmp_path / "file", {"form": form}, "folder must be a folder, got the file"),
        (new, {"form": form, "cases": two}, "differ in their letters and digits, got 'a b' and 'a-b'"),
        (new, {"form": form, "cases": {"+-": Case(), "": Case()}}, "got ''"),
    ):
        with pytest.raises(ValueError, match=said):
            at.conformance.export(folder, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="folder must be a path, got 3"):
        at.conformance.export(3, form=form)  # type: ignore[arg-type]
    assert not new.exists()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
