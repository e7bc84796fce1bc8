# SPDX-License-Identifier: BSD-3-Clause
"""Tables of speed, generated when the site is built: shares and ratios, and costs of variants."""

from __future__ import annotations

import json
from pathlib import Path

_BASELINE = Path(__file__).parents[2] / "benchmarks" / "baseline.json"
_VARIANTS = Path(__file__).parents[1] / "_measured" / "variants.json"

#: Titles of rows, and the rows of the file for each. Bold titles miss a target of the report.
MEASURED = {
    "**forward**, n = 3072, d = 64 / 128 / 32, of the peak": "forward_64 forward_128 forward_32",
    "forward, n = 512, d = 64 / 128 / 32, of the peak": "forward_512_64 forward_512_128 forward_512_32",
    "forward, 64 x 128 x 64, of the peak": "short",
    "forward in float64, n = 3072, of the peak": "float64",
    "forward at level avx2, n = 3072, of the peak of that level": "avx2",
    "forward faster than PyTorch, n = 3072, d = 64 / 128 / 32": (
        "forward_64_torch forward_128_torch forward_32_torch"
    ),
    "forward faster than PyTorch, n = 512, d = 64 / 128 / 32": (
        "forward_512_64_torch forward_512_128_torch forward_512_32_torch"
    ),
    "causal faster than full, n = 4096 / 512": "causal_4096 causal_512",
    "backward, n = 3072, d = 64 / 128 / 32, of the peak": "backward_64 backward_128 backward_32",
    "backward of one head, n = 3072, of the peak": "backward_one_head",
    "backward faster than PyTorch, n = 3072": "backward_64_torch",
    "causal backward faster than full, n = 4096 / 512": "backward_causal_4096 backward_causal_512",
    "forward and backward faster than PyTorch, n = 3072 / 512": "step_3072 step_512",
    "lse and entropy / **all statistics** on top, n = 3072": "on_top_lse_entropy on_top_all",
    "gradients of lse and entropy on top, n = 3072": "backward_on_top",
    "entropy alone faster than output, n = 3072": "entropy_alone",
    "output and entropy faster than by hand, n = 3072, PyTorch / NumPy": "by_hand_torch by_hand_numpy",
    "**bfloat16 forward faster than float32, n = 3072** / 512": "bfloat16_64 bfloat16_512",
    "the same, n = 3072, d = 128 / **causal**": "bfloat16_128 bfloat16_causal",
    "bfloat16 faster than PyTorch's, n = 3072 / 512": "bfloat16_64_torch bfloat16_512_torch",
    "lse and entropy on top of bfloat16, n = 3072": "bfloat16_on_top",
    "bfloat16 backward faster than float32, n = 3072": "bfloat16_backward",
    "decode, 8 x (1, 65536) x 64, float32 / float16 / bfloat16, of the read bandwidth": (
        "decode decode_16_bits_float16 decode_16_bits_bfloat16"
    ),
    "decode, 32 heads of queries on 8 of keys, float32, of the read bandwidth": "decode_grouped",
    "**window of 256, n = 16384, over the ideal**": "window",
    "off by one / sigmoid / softpick, over softmax": (
        "normalizers_softmax_1 normalizers_sigmoid normalizers_softpick"
    ),
    "relu / squared relu, over softmax": "normalizers_relu normalizers_squared_relu",
    "sparsemax / entmax-1.5, over softmax": "normalizers_sparsemax normalizers_entmax15",
    "equal scores, sparsemax, over softmax": "sparse_many_sparsemax_equal",
    "alpha = 1.2 / entmax-1.5 with scale 0.03 / top-k of 600, over softmax": (
        "sparse_many_entmax12 sparse_many_entmax15_flat sparse_many_top600"
    ),
    "one query of 65536 keys, sparsemax / equal scores, over softmax": (
        "sparse_decode_sparsemax sparse_decode_sparsemax_equal"
    ),
    "entropy at 16 scales over one, n = 3072": "curve",
    "a float32 normal number faster than NumPy's Philox generator": "normals_numpy",
    "variance of $10^{6}$ dot products faster than NumPy": "products",
    "entropy of 1000 rows of 16384 random keys faster than NumPy": "rows",
    "**projection 4096 to 256 of 2000 points, all pairs, faster than NumPy**": "projection",
    "**local and global attention over the same work**, n = 4096": "local_global",
    "**two threads faster than one, normal numbers** / rows of random keys": (
        "two_threads_fill two_threads_rows"
    ),
    "tensors, 8 heads, n = 32 / 64 / 128, faster than PyTorch": "tensors_8_32 tensors_8_64 tensors_8_128",
    "tensors, one head, n = 32 / 64 / 128 / 256, faster than PyTorch": (
        "tensors_1_32 tensors_1_64 tensors_1_128 tensors_1_256"
    ),
    "forward and backward on tensors, 1 x 16 x 16, faster than PyTorch": "tensors_step_smallest_16",
}


def speed_table():
    """A row for each title: the numbers and their largest scatter."""
    kept = json.loads(_BASELINE.read_text(encoding="utf-8"))["rows"]
    lines = ["| row | measured | +- |", "|---|---|---|"]
    for title, names in MEASURED.items():
        rows = [kept[each] for each in names.split()]
        numbers = [*(each["value"] for each in rows), max(each["spread"] for each in rows)]
        form = "{:.2f}x" if rows[0]["unit"] == "ratio" else "{:.1%}"
        *shown, spread = (form.format(each).replace("%", " %") for each in numbers)
        lines.append(f"| {title} | {' / '.join(shown)} | {spread} |")
    return "\n".join(lines)


def variants_table():
    """A row for each variant: milliseconds of a call by n, and the power of n of their growth."""
    kept = json.loads(_VARIANTS.read_text(encoding="utf-8"))
    lengths = sorted({each["n"] for each in kept["costs"]})
    lines = [
        "| one call, ms | " + " | ".join(map(str, lengths)) + " | slope | faster than exact from |",
        "|---" * (len(lengths) + 3) + "|",
    ]
    for name, summary in kept["summary"].items():
        times = [each["seconds"] for each in kept["costs"] if each["call"] == name]
        shown = ["-" if each is None else _milliseconds(each) for each in times]
        slope, start = summary["time_slope"], summary["faster_from"]
        ends = ["-" if slope is None else f"{slope:.2f}", "" if start is None else f"{start:.0f}"]
        lines.append(f"| {' | '.join([name, *shown, *ends])} |")
    return "\n".join(lines)


def _milliseconds(seconds):
    value = 1e3 * seconds
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
