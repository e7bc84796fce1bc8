#!/bin/sh
# MultiHeadAttention of ONNX Runtime: with more keys than queries, the causal mask leaves the last query open.
#
# com.microsoft.MultiHeadAttention takes unidirectional=1, and keys that are more than the queries. Query i then
# sees the keys 0 to i, all but the last query: it sees every key, as if aligned at the end. No alignment gives
# both. As many keys as queries is right, so that a test of self-attention passes; with a cache (past_key) it is
# right as well.
#
# Seen with 1.32.0, 3 queries and 5 keys: keys seen are 1, 2 and 5. Fails if the behaviour changes.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.1
"$folder/venv/bin/python" - <<'EOF'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper


def keys_seen(queries, keys, past=0):
    """How many keys each query sees: scores are 0, and values are the columns of an identity."""
    feeds = {
        "q": np.zeros((1, queries, keys + past), np.float32),
        "k": np.zeros((1, keys, keys + past), np.float32),
        "v": np.eye(keys + past, dtype=np.float32)[None, past:],
    }
    names = ["q", "k", "v"]
    outputs = ["y"]
    if past:
        feeds["past_k"] = np.zeros((1, 1, past, keys + past), np.float32)
        feeds["past_v"] = np.eye(keys + past, dtype=np.float32)[None, None, :past]
        names += ["", "", "", "past_k", "past_v"]
        outputs += ["present_k", "present_v"]
    node = helper.make_node(
        "MultiHeadAttention", names, outputs, domain="com.microsoft", num_heads=1, unidirectional=1
    )
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in feeds.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([node], "attention", inputs, results), opset_imports=opsets, ir_version=8
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return (session.run(["y"], feeds)[0][0] > 0).sum(-1).tolist()


found = {(3, 5): keys_seen(3, 5), (5, 5): keys_seen(5, 5), (5, 3): keys_seen(5, 3)}
print("onnxruntime", onnxruntime.__version__)
for (queries, keys), seen in found.items():
    print(f"{queries} queries, {keys} keys: keys seen {seen}")
cached = keys_seen(3, 3, past=2)
print(f"3 queries, 3 keys behind 2 in a cache: keys seen {cached}")
assert found[3, 5] == [1, 2, 5]
assert found[5, 5] == [1, 2, 3, 4, 5]
assert cached == [3, 4, 5]
EOF
