# SPDX-License-Identifier: BSD-3-Clause
"""Counts, rankings and numbers on pages are those of the package and of the stored runs."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from functools import cache

import attnscale as at
import numpy as np
import pytest
from attnscale.audit._records import FRAMEWORKS
from pages import ROOT, page
from scipy.special import betainc
from stored_runs import run

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.py"))
LENGTHS = (64, 128, 256, 512)


# The shipped heads


@cache
def ranking(lengths):
    """(law, nats off), all laws that can be fitted, least first; of those that are equal the first."""
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query, data.key, n0=64, lengths=list(lengths))
    assert np.all(found.determined)
    errors = np.sqrt((np.asarray(found.entropy_error) ** 2).mean(-1))
    order = np.argsort(errors, kind="stable")
    kept = [i for place, i in enumerate(order) if not place or errors[i] - errors[order[place - 1]] > 1e-6]
    return [(found.laws[i].name, float(errors[i])) for i in kept]


def first_four(lengths):
    return ", ".join(f"{name} {error:.3f}" for name, error in ranking(lengths)[:4])


SHORT = ("docs/claims.md", "docs/faq.md", "notebooks/07_calibrating_a_real_model.py")
ARTICLES = tuple(f"docs/articles/{each}.md" for each in ("000", "004", "zh/000", "zh/004"))


@pytest.mark.parametrize("name", SHORT + ARTICLES)
def test_the_order_of_laws_on_the_shipped_heads(name):
    assert first_four(LENGTHS) in page(name)


def test_the_order_of_laws_that_explain_gives():
    assert first_four(LENGTHS) in at.laws.LogN.remark
    assert at.laws.LogN.remark[-40:] in re.sub(r"\s+", " ", str(at.laws.explain("log_n")))


def test_the_order_of_laws_from_32_tokens_on():
    assert first_four((32, *LENGTHS)) in page("docs/claims.md")


def test_the_numbers_that_the_readme_puts_first():
    log_n = at.laws.get("log_n(base=512)")
    short, long = (
        f"{at.theory.expected_entropy(n, head_dim=64, model='sphere', beta=log_n.multiplier(n, 64)):.2f}"
        for n in (512, 32768)
    )
    assert f"from {short} nats at 512 keys to {long} at 32768" in page("README.md")
    assert f"从 512 个键时的 {short} nat 升到 32768 个键时的 {long} nat" in page("README.zh-CN.md")
    pytest.importorskip("torch")
    here = {"positions": "plain rotary", "trained": "standard"}
    windows, *lost = (
        run("causal_length").select("late", reading=reading, **here).mean()
        for reading in ("windows", "as trained", "clipped")
    )
    whole, clipped = (f"{each - windows:.2f}" for each in lost)
    assert f"loses {whole} nats, of which {clipped} are left" in page("README.md")
    assert f"损失 {whole} nat, 截断距离后只剩 {clipped}" in page("README.zh-CN.md")


@pytest.mark.parametrize("name", ["docs/claims.md", "notebooks/07_calibrating_a_real_model.py"])
def test_laws_that_are_judged_beyond_the_lengths_of_their_fit(name):
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query, data.key, n0=64, lengths=list(LENGTHS[:3]))
    errors = {}
    for law, amplitude in zip(found.laws, found.amplitude, strict=True):
        if law.name in ("log_n_from_training", "annealed", "variance_invariant", "log_n"):
            scale = np.asarray(amplitude)[:, None] * law.scale(512, data.query.shape[-1])
            entropy = at.attention_entropy(data.query, data.key, scale=scale).mean(-1, dtype=float)
            errors[law.name] = np.sqrt(((entropy - found.target) ** 2).mean())
    text = page(name)
    assert " ".join(sorted(errors, key=errors.get)) == "log_n_from_training annealed variance_invariant log_n"
    for law, error in errors.items():
        assert re.search(rf"\b{law} (leaves )?{error:.3f}", text), (law, error)


# Counts

NUMBERS = dict(enumerate("five six seven eight nine ten eleven twelve thirteen fourteen".split(), 5))  # noqa: SIM905


def test_counts():
    fields = [field.name for field in dataclasses.fields(at.AttentionStatistics)]
    more = set(fields) - {"output", "entropy", "lse"}
    readme = page("README.md")
    assert f"Entropy, lse and {NUMBERS[len(more)]} more numbers of each row" in readme
    assert f"where {len(FRAMEWORKS)} frameworks are on record" in readme
    assert f"derives all of this slowly; there are {len(NOTEBOOKS)} of them" in page("docs/five-minutes.md")
    results = (DOCS / "explanation" / "results.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\d+)\. ", results, flags=re.MULTILINE)
    assert sections == [str(i + 1) for i in range(len(sections))]
    assert f"{NUMBERS[len(sections)]} results" in readme
    assert results.split("\n\n")[1].startswith(f"{NUMBERS[len(sections)].capitalize()} results")
    articles = [path for path in (DOCS / "articles").glob("*.md") if path.stem.isdigit()]
    assert f"the {NUMBERS[len(articles)]} web articles" in readme


def test_the_questions_say_that_there_are_gradients():
    text = (DOCS / "faq.md").read_text(encoding="utf-8")
    assert "## Does it have gradients?\n\nYes" in text
    assert callable(at.attention_gradients)
    assert "Nothing here trains" not in text


# Times

MEASURED = {
    "forward, n = 3072, d = 64 / 128 / 32, of the peak": "forward_64 forward_128 forward_32",
    "forward, n = 512, d = 64 / 128 / 32, of the peak": "forward_512_64 forward_512_128 forward_512_32",
    "forward, 64 x 128 x 64, of the peak": "short",
    "forward in float64, n = 3072, of the peak": "float64",
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
    "lse and entropy / all statistics on top, n = 3072": "on_top_lse_entropy on_top_all",
    "gradients of lse and entropy on top, n = 3072": "backward_on_top",
    "entropy alone faster than output, n = 3072": "entropy_alone",
    "output and entropy faster than by hand, n = 3072, PyTorch / NumPy": "by_hand_torch by_hand_numpy",
    "bfloat16 forward faster than float32, n = 3072 / 512": "bfloat16_64 bfloat16_512",
    "the same, n = 3072, d = 128 / causal": "bfloat16_128 bfloat16_causal",
    "bfloat16 faster than PyTorch's, n = 3072 / 512": "bfloat16_64_torch bfloat16_512_torch",
    "lse and entropy on top of bfloat16, n = 3072": "bfloat16_on_top",
    "bfloat16 backward faster than float32, n = 3072": "bfloat16_backward",
    "decode, 8 x (1, 65536) x 64, float32 / float16 / bfloat16, of the read bandwidth": (
        "decode decode_16_bits_float16 decode_16_bits_bfloat16"
    ),
    "window of 256, n = 16384, over the ideal": "window",
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
    "projection 4096 to 256 of 2000 points, all pairs, faster than NumPy": "projection",
    "local and global attention over the same work, n = 4096": "local_global",
    "two threads faster than one, normal numbers / rows of random keys": "two_threads_fill two_threads_rows",
    "tensors, 8 heads, n = 32 / 64 / 128, faster than PyTorch": "tensors_8_32 tensors_8_64 tensors_8_128",
    "tensors, one head, n = 32 / 64 / 128 / 256, faster than PyTorch": (
        "tensors_1_32 tensors_1_64 tensors_1_128 tensors_1_256"
    ),
    "forward and backward on tensors, 1 x 16 x 16, faster than PyTorch": "tensors_step_smallest_16",
}


def test_shares_and_ratios_are_those_of_the_baseline():
    """All rows of the file but that of level avx2, where the page has a later number."""
    kept = json.loads((ROOT / "benchmarks" / "baseline.json").read_text(encoding="utf-8"))["rows"]
    assert sorted(" ".join([*MEASURED.values(), "avx2"]).split()) == sorted(kept)
    text = page("docs/explanation/performance.md")
    for row, names in MEASURED.items():
        rows = [kept[each] for each in names.split()]
        numbers = [*(each["value"] for each in rows), max(each["spread"] for each in rows)]
        form = "{:.2f}x" if rows[0]["unit"] == "ratio" else "{:.1%}"
        *shown, spread = (form.format(each).replace("%", " %") for each in numbers)
        assert f"| {row} | {' / '.join(shown)} | {spread} |" in text


# Constants


def test_the_constants_of_the_lemma_and_of_heads():
    claims = page("docs/claims.md")
    assert f"{4 / (1 - math.log(2)):.2f} or more, $4/(1 - \\ln 2)$" in claims
    shown = {0.47: "cosine 0.47 in {} % of the rows, one of 64 in {} %", 0.40: "cosine 0.40 in {} and {} %"}
    shown[0.30] = "with 0.30 in {} and {} %"
    for cosine, form in shown.items():
        tail = betainc((np.array([50, 64]) - 1) / 2, 0.5, 1 - cosine**2) / 2
        found = 100 * np.exp(511 * np.log1p(-tail))
        assert form.format(*(f"{each:.0f}" for each in found)) in claims


def test_the_bound_of_a_soft_cap_is_the_known_one():
    """Of Cicalese, Gargano and Vaccaro, from the ratio of the largest and the smallest weight."""
    for spread in (0.1, 1.0, 4.0):
        ratio, r = math.exp(spread), spread / math.expm1(spread)
        x = ratio * math.log(ratio) / (ratio - 1)
        assert math.log(r) + 1 - r == pytest.approx(-(x - 1 - math.log(x)), abs=1e-12)


# Words


def test_prior_work_is_cited():
    text = page("docs/explanation/results.md")
    text = " ".join(text.split())  # a line may end between arXiv and the number
    known = ("2008.02217", "2304.14964", "1806.00900", "1712.07906", "2410.01104", "2411.12892", "2511.01292")
    near = ("2512.10656", "2606.05140", "2404.12224", "2603.11487", "2606.08105")
    for source in known + near:
        assert f"arXiv {source}" in text
    assert "Sason" in text
    assert "inverse participation ratio" in text


@pytest.mark.parametrize(
    "path",
    sorted([*(DOCS / "articles" / "zh").glob("*.md"), ROOT / "README.zh-CN.md", *NOTEBOOKS]),
    ids=lambda path: path.name,
)
def test_a_law_has_one_name_in_chinese(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search("缩放律|规律|定律|(?<!缩放)规则", text)


@pytest.mark.parametrize("path", [*DOCS.rglob("*.md"), *NOTEBOOKS], ids=lambda path: path.name)
def test_no_run_is_said_to_have_had_its_criterion_first(path):
    if "_build" not in path.parts:
        assert not re.search(r"written before\s+(?:# )?the run", path.read_text(encoding="utf-8"))
