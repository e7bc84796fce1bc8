# SPDX-License-Identifier: BSD-3-Clause
"""calibrate: beta that keeps the entropy, against theory on spheres, and the ranking of laws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from attnscale.cli import main
from cases import random_inputs

# T12: beta that keeps E[H] of n = 512, beta = 1 for keys uniform on a sphere, head_dim 64.
INVARIANT = {1024: 1.58696, 4096: 2.43330}


def on_sphere(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Vectors uniform on the sphere of radius sqrt(d)."""
    x = rng.standard_normal(shape)
    return (x * np.sqrt(shape[-1]) / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def test_equals_the_theory_on_spheres() -> None:
    """T12 holds within five standard errors of the mean over independent heads."""
    rng = np.random.default_rng(12)
    heads = 24
    query, key = on_sphere(rng, (heads, 128, 64)), on_sphere(rng, (heads, 4096, 64))
    found = at.calibrate(query, key, lengths=[512, *INVARIANT], laws=["log_n", "annealed"])
    assert found.n0 == 512
    np.testing.assert_allclose(found.beta[:, 0], 1, atol=1e-5)
    for index, (n, beta) in enumerate(INVARIANT.items(), start=1):
        seen = found.beta[:, index]
        error = seen.std(ddof=1) / np.sqrt(heads)
        assert error < 0.01
        assert abs(seen.mean() - beta) < 5 * error, n
    # T10: log_512 n does not keep the entropy; annealed, the first order of T12, does better.
    errors = found.entropy_error.mean(-1)
    assert errors[1] < 0.5 * errors[0]
    assert (found.best == 1).all()
    assert "use annealed, one constant per head: it misses by 0." in found.recommendation


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_against_the_twin(dtype: str) -> None:
    q, k, _ = random_inputs(1, heads=3, n_queries=64, n_keys=64, dtype=dtype)
    found = at.calibrate(q, k, n0=32, lengths=[16, 32, 64])
    truth = reference.calibrate(q, k, 32, [16, 32, 64])
    np.testing.assert_allclose(found.target, truth.target, atol=2e-6)
    np.testing.assert_allclose(found.beta, truth.beta, rtol=1e-5)
    entropy = reference.attention_entropy(q, k).mean(-1)
    np.testing.assert_allclose(found.standard_entropy[:, 2], entropy, atol=2e-6)


def test_the_measured_beta_keeps_the_entropy() -> None:
    q, k, _ = random_inputs(2, batch=(2,), heads=4, kv_heads=2, n_queries=96, n_keys=96, dtype="float64")
    found = at.calibrate(q, k, n0=48, lengths=[48, 72, 96], enable_gqa=True)
    assert found.beta.shape == (2, 4, 3)
    for index, n in enumerate(found.lengths):
        scale = found.beta[..., index, None] / 4
        entropy = at.attention_entropy(q[..., :n, :], k[..., :n, :], scale=scale, enable_gqa=True)
        np.testing.assert_allclose(entropy.mean(-1), found.target, atol=2e-9)
    turned = (x.swapaxes(1, 2) for x in (q, k))
    swapped = at.calibrate(*turned, n0=48, lengths=[48, 72, 96], enable_gqa=True, layout="bshd")
    np.testing.assert_array_equal(swapped.beta, found.beta)


def test_causal_rows_are_those_that_see_about_n_keys() -> None:
    q, k, _ = random_inputs(3, n_queries=128, n_keys=128, dtype="float64")
    found = at.calibrate(q, k, n0=64, is_causal=True, laws=["standard", "log_n"])
    np.testing.assert_array_equal(found.lengths, [16, 32, 64, 128])
    whole = at.attention_entropy(q, k, is_causal=True)
    np.testing.assert_allclose(found.target, whole[:, 56:64].mean(-1), atol=1e-12)
    scale = found.beta[:, 3, None] / 4
    kept = at.attention_entropy(q, k, scale=scale, is_causal=True)[:, 112:]
    np.testing.assert_allclose(kept.mean(-1), found.target, atol=2e-9)
    law = found.amplitude[1][:, None] * at.laws.LogN(base=64).scale(np.arange(113, 129), 16)
    under_law = at.attention_entropy(q[:, 112:], k, scale=law, causal="bottom_right").mean(-1)
    np.testing.assert_allclose(found.law_entropy[1, :, 3], under_law, atol=1e-12)


def test_which_laws_are_compared_and_how_they_are_fitted() -> None:
    rng = np.random.default_rng(4)
    q, k = rng.standard_normal((2, 2, 64, 16))
    found = at.calibrate(q, k, n0=32, lengths=[8, 16, 32, 64])
    names = [law.name for law in found.laws]
    assert names[0] == "standard"
    assert {"log_n", "annealed", "qwen_log_n", "grok_temperature", "critical_scale"} <= set(names)
    assert not {"unscaled", "mup", "yarn", "scale_invariant", "kappa"} & set(names)
    assert found.laws[names.index("annealed")] == at.laws.Annealed(n0=32)
    flat = at.calibrate(q, k, n0=32, lengths=[32], laws=["standard", "log_n"])
    # One length: any law fits with its amplitude.
    np.testing.assert_allclose(flat.law_beta, 1, atol=1e-6)
    assert (flat.entropy_error < 1e-6).all()
    np.testing.assert_allclose(flat.amplitude[0], 1, atol=1e-6)


def test_real_heads() -> None:
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query, data.key, n0=64, lengths=[64, 128, 256, 512])
    assert np.isfinite(found.beta).all()
    np.testing.assert_allclose(found.beta[:, 0], 1, atol=1e-4)
    assert (np.median(found.beta, 0)[1:] > np.median(found.beta, 0)[:-1]).all()
    names = [law.name for law in found.laws]
    error = dict(zip(names, found.entropy_error.mean(-1), strict=True))
    assert error["log_n"] < 0.6 * error["standard"]
    assert error["annealed"] < 0.6 * error["standard"]
    assert found.recommendation.startswith("To keep the entropy of n = 64 over n = 64 to 512, use ")
    ranking = found.ranking
    assert list(ranking.values()) == sorted(ranking.values())
    assert "log_n(base=64) = natural_log_n = ssmax" in ranking
    assert set(found.best.tolist()) <= set(range(len(names)))
    of_the_best = np.take_along_axis(found.entropy_error, found.best[None], 0)[0]
    np.testing.assert_array_equal(of_the_best, found.entropy_error.min(0))


def test_lengths_at_which_no_beta_helps() -> None:
    """A target of ln 4 is below the entropy of 64 keys; a NaN breaks its head only."""
    q, k, _ = random_inputs(5, heads=3, n_queries=64, n_keys=64)
    q *= np.float32(0.1)
    k[2, 50] = np.nan
    found = at.calibrate(q, k, n0=32, lengths=[4, 32, 64], laws=["standard"])
    np.testing.assert_array_equal(np.isnan(found.beta[:2]), [[True, False, False]] * 2)
    np.testing.assert_array_equal(np.isnan(found.beta[2]), [True, False, True])
    assert np.isfinite(found.entropy_error).all()
    k[2, 3] = np.nan
    broken = at.calibrate(q, k, n0=32, lengths=[4, 32, 64], laws=["standard"])
    np.testing.assert_array_equal(broken.best, [0, 0, -1])
    assert np.isnan(broken.law_entropy[:, 2]).all()
    nothing = at.calibrate(q[:2], k[:2], n0=32, lengths=[4], laws=["standard"])
    assert nothing.recommendation == "No head keeps its entropy of n = 32 at any beta over n = 4."


def test_to_xarray() -> None:
    pytest.importorskip("xarray")
    q, k, _ = random_inputs(6, batch=(2,), heads=3, n_queries=40, n_keys=40)
    table = at.calibrate(q, k, n0=20, laws=["standard", "log_n"]).to_xarray()
    assert dict(table.sizes) == {"batch": 2, "head": 3, "n": 2, "law": 2}
    assert table["beta"].dims == ("batch", "head", "n")
    assert table["law_entropy"].sel(law="log_n(base=20)", n=40).shape == (2, 3)
    one = at.calibrate(q[0, 0], k[0, 0], n0=20, laws=["standard"]).to_xarray()
    assert one["beta"].dims == ("n",)


def test_plot() -> None:
    pytest.importorskip("matplotlib")
    q, k, _ = random_inputs(7, n_queries=64, n_keys=64)
    ax = at.calibrate(q, k, n0=32, laws=["standard", "log_n", "annealed", "info_scale"]).plot()
    assert "keeps the entropy of $n = 32$" in " ".join(ax.get_ylabel().split())
    named = [*ax.texts, *(ax.get_legend().get_texts() if ax.get_legend() else ())]
    assert {text.get_text() for text in named} > {"measured, median", "log_n(base=32)"}
    ax.figure.canvas.draw()

    ax.figure.canvas.draw()
    without = at.calibrate(0.01 * q, k, n0=32, lengths=[4, 32, 64], laws=["standard"])
    assert np.isnan(without.beta[:, 0]).all()  # no head has a beta at this length
    without.plot().figure.canvas.draw()


def test_mistakes_are_explained() -> None:
    q, k, _ = random_inputs(8)
    mistakes: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
        ({"n0": 512}, ValueError, "n0 must be between 2 and the number of keys, 33, got 512"),
        ({"lengths": [1]}, ValueError, "lengths must be between 2 and the number of keys, 33, got 1"),
        ({"lengths": []}, ValueError, "lengths must name at least one length, got none"),
        ({"lengths": 3}, TypeError, "lengths must be integers, got 3"),
        ({"n0": 16.5}, TypeError, r"n0 must be an integer, got 16\.5"),
        ({"laws": []}, ValueError, "laws must name at least one law, got none"),
        ({"laws": "xyz"}, ValueError, "the name of a law must be one of"),
        ({"laws": ["kappa"]}, TypeError, "law 'kappa' needs kappa"),
        ({"is_causal": 1}, TypeError, "is_causal must be True or False, got 1"),
        ({"is_causal": True}, ValueError, r"is_causal=True needs as many queries as keys, got 17 .* 33 keys"),
    )
    for options, error, message in mistakes:
        with pytest.raises(error, match=message):
            at.calibrate(q, k, **{"n0": 16, **options})


# --- reports and their limits ------------------------------------------------------------------------------


def test_one_length_determines_no_law() -> None:
    """Each law has a constant for the head, so at one length all laws fit."""
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query, data.key, n0=64, lengths=[512, 512], laws=["standard", "log_n"])
    assert found.lengths.tolist() == [512]
    assert not found.determined.any()
    assert (found.best == -1).all()
    assert found.ranking == {}
    assert found.recommendation.startswith("Undetermined: no head keeps its entropy of n = 64 at two lengths")
    for name in ("fitted_law", "median_law", "first"):
        with pytest.raises(ValueError, match="no law is determined: Undetermined: no head keeps"):
            getattr(found, name)
    assert np.isnan(found.median_error)


def test_heads_with_one_length_are_not_ranked() -> None:
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query, data.key, n0=512, laws=["standard", "log_n"])
    lonely = np.isfinite(found.beta).sum(-1) == 1
    assert lonely.tolist() == [i in (0, 1, 12, 14) for i in range(18)]
    np.testing.assert_array_equal(found.determined, ~lonely)
    np.testing.assert_array_equal(found.best == -1, lonely)
    errors = found.entropy_error[:, ~lonely]
    assert found.ranking["log_n"] == pytest.approx(np.sqrt((errors[1] ** 2).mean()))
    assert "over 14 heads" in found.recommendation
    assert "undetermined for 4" in found.recommendation


def test_the_fitted_law_is_the_law_with_its_constants() -> None:
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query, data.key, n0=64, laws=["standard", "log_n", "annealed"])
    assert found.laws[found.first].name == "log_n"
    assert found.fitted_law == found.amplitude[1].tolist() * at.laws.LogN(base=64)
    assert found.median_law == float(f"{np.median(found.amplitude[1]):.4g}") * at.laws.LogN(base=64)
    for scale in (found.fitted_law, found.fitted_law.spelling):
        rows = at.attention_entropy(data.query, data.key, scale=scale)
        np.testing.assert_allclose(rows.mean(-1), found.law_entropy[1, :, -1], atol=1e-5)
    misses = found.median_entropy - found.target[:, None]
    misses[np.isnan(found.beta)] = np.nan
    assert found.median_error == pytest.approx(np.sqrt(np.nanmean(misses**2, axis=1).mean()))
    assert found.median_error > found.ranking["log_n(base=64)"]
    # The law without its constant is another law, so the constant is shown.
    assert np.abs(at.attention_entropy(data.query, data.key, scale="log_n") - rows).max() > 0.1


def test_a_head_without_a_fit_has_the_median_of_the_others() -> None:
    q, k, _ = random_inputs(5, batch=(2,), heads=3, n_queries=64, n_keys=64)
    k[1, 0] = np.nan
    k[:, 2] = np.nan
    found = at.calibrate(q, k, n0=32, lengths=[32, 64], laws=["log_n"])
    known = [found.amplitude[0, 0, 0], np.median(found.amplitude[0, :, 1])]
    every = np.median([found.amplitude[0, 0, 0], *found.amplitude[0, :, 1]])
    np.testing.assert_allclose(found.fitted_law.amplitude, [*known, every])
    one = at.calibrate(q[0, 0], k[0, 0], n0=32, lengths=[32, 64], laws=["log_n"])
    assert isinstance(one.fitted_law.amplitude, float)
    assert one.fitted_law.amplitude == pytest.approx(known[0])
    assert one.median_law.amplitude == pytest.approx(known[0], rel=1e-3)


@pytest.mark.parametrize(("n_keys", "n0"), [(513, 64), (512, 64), (32, 16), (31, 3), (9, 2)])
def test_the_length_that_is_kept_leaves_others_to_measure(n_keys: int, n0: int) -> None:
    q, k = np.random.default_rng(n_keys).standard_normal((2, n_keys, 4)).astype(np.float32)
    found = at.calibrate(q, k, laws=["standard"])
    assert found.n0 == n0 == found.lengths[0]
    assert len(found.lengths) > 1


@pytest.mark.parametrize("n_keys", [32, 100, 512, 700])
def test_the_lengths_are_those_of_a_report(n_keys: int) -> None:
    """Questions about the same heads have one answer: same lengths, same length to keep, same misses."""
    q, k = np.random.default_rng(n_keys).standard_normal((2, 2, n_keys, 4)).astype(np.float32)
    page = at.report(q, k)
    found = at.calibrate(q, k, laws=page.laws)
    np.testing.assert_array_equal(found.lengths, page.lengths)
    assert found.n0 == page.lengths[0]
    # The page reads beta from its curve, within the tolerance of the search in float32.
    np.testing.assert_allclose(found.entropy_error, page.misses.T, rtol=1e-6, atol=1e-6)
    spoken = at.calibrate(q, k, found.n0, laws=page.laws)  # to say the default changes nothing
    np.testing.assert_array_equal(spoken.lengths, found.lengths)


def test_which_lengths_there_are_beside_one_that_is_kept() -> None:
    q, k = np.random.default_rng(0).standard_normal((2, 2, 512, 4)).astype(np.float32)
    doubled = [64, 128, 256, 512]
    for n0, lengths in {512: doubled, 128: doubled, 100: [100, 200, 400], 16: [16, 32, *doubled]}.items():
        np.testing.assert_array_equal(at.calibrate(q, k, n0, laws=["standard"]).lengths, lengths)
    several = at.calibrate(q, k, lengths=iter([256, 128, 512]), laws=["standard"])
    assert (several.n0, several.lengths.tolist()) == (128, [256, 128, 512])
    assert at.calibrate(q, k, lengths=[512], laws=["standard"]).n0 == 64  # its own entropy needs no search


def test_the_standard_scale_is_named_wherever_it_is() -> None:
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query, data.key)
    names, errors = list(found.ranking), list(found.ranking.values())
    place = [name.split(" = ")[0] for name in names].index("standard")
    assert place >= 4
    told = f"; standard, number {place + 1} of {len(names)}, {errors[place]:.3f}. Best head by head"
    assert told in found.recommendation
    pair = at.calibrate(data.query, data.key, laws=["standard", "log_n"]).recommendation
    assert f"In order: log_n(base=64) {errors[2]:.3f}, standard {errors[place]:.3f}. Best" in pair


def test_the_table_says_which_rows_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One head at one length has two means: over the last eighth of the queries, and over all."""
    q, k, _ = random_inputs(12, heads=2, n_queries=64, n_keys=64)
    path = str(tmp_path / "heads.npz")
    np.savez(path, query=q, key=k)
    whole = at.attention_entropy(q, k, is_causal=True, scale=None).astype(np.float64)
    for command, rows, causal in (
        ("calibrate", "all queries", False),
        ("calibrate", "the last eighth of the queries", True),
        ("entropy", "all queries", True),
    ):
        laws = ["--laws", "standard", "log_n"]
        assert main([command, path, *laws, *["--causal"] * causal]) == 0
        out = capsys.readouterr().out
        assert f"over {rows}" in out.splitlines()[0]
        first = whole[0, -8:] if command == "calibrate" else whole[0]
        if causal and command == "entropy":
            assert f"  {first.mean():.3f} " in out
            assert "calibrate and report use the last eighth of the queries only" in out
    found = at.calibrate(q, k, 64, [32, 64], is_causal=True, laws=["standard"])
    assert found.target[0] == pytest.approx(whole[0, -8:].mean(), abs=1e-6)
    assert found.is_causal
    assert "a mean over the last eighth of the queries" in str(found).splitlines()[0]


@pytest.mark.parametrize("laws", [None, ["critical_scale"], ["standard", "log_n"]])
def test_equal_scores_are_one_sentence(laws: list[str] | None) -> None:
    """Heads of equal scores give no warning about a scale and do not change results of other heads."""
    q, k, _ = random_inputs(10, heads=3, n_queries=64, n_keys=64)
    q[0] = 0
    k[2] = k[2, :1]
    found = at.calibrate(q, k, n0=16, laws=laws)
    np.testing.assert_array_equal(found.equal_scores, [True, False, True])
    told = "Heads 0; 2 have equal scores: no beta changes the entropy. To keep"
    assert found.recommendation.startswith(told)
    assert np.isnan(found.beta[[0, 2]]).all()
    alone = at.calibrate(q[1:2], k[1:2], n0=16, laws=laws)
    np.testing.assert_array_equal(found.law_entropy[:, 1], alone.law_entropy[:, 0])
    assert found.ranking == alone.ranking


def test_ties_at_the_top_leave_critical_scale_out() -> None:
    """Two equal keys make the scale of a head infinite: it has no such law, and other heads stay ranked."""
    q, k, _ = random_inputs(11, heads=2, n_queries=64, n_keys=64)
    k[0, 1] = k[0, 0] = 30 * q[0, 0]
    found = at.calibrate(q, k, n0=16, laws=["critical_scale", "log_n"])
    assert np.isnan(found.amplitude[0, 0])
    assert np.isfinite(found.amplitude[1]).all()
    assert list(found.ranking) == ["log_n(base=16)"]
    assert found.best[0] == 1


def test_command_on_equal_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "zeros.npz")
    np.savez(path, query=np.zeros((1, 64, 4)), key=np.ones((1, 64, 4)))
    assert main(["calibrate", path]) == 0
    captured = capsys.readouterr()
    assert "Head 0 has equal scores: no beta changes the entropy." in captured.out
    assert captured.err == ""
    assert main(["calibrate", path, "--laws", "standard", "log_n", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fitted_law"] is report["median_law"] is None
    assert report["heads"][0]["equal_scores"] is True
    assert report["heads"][0]["best"] is None


# --- the command ------------------------------------------------------------------------------------------


def test_command_on_the_shipped_heads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--demo", "--n", "64", "512", "--laws", "standard", "annealed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = "Entropy at n: of the first n queries and keys, the mean over all queries. Beta: multiple of"
    assert lines[:3] == [first, "1/sqrt(head_dim).", ""]
    lines = lines[3:]
    header = "head entropy (nats) at 64 beta at 64 beta at 512 best law constant misses by"
    assert lines[0].split() == header.split()
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query, data.key, 64, [64, 512], laws=["standard", "annealed"])
    assert lines[1].split()[:2] == ["L0", "H0"]
    assert lines[1].split()[3:5] == [f"{beta:.3f}" for beta in found.beta[0]]
    told = " ".join(lines[lines.index("") + 1 :])
    assert told.startswith(f"{found.recommendation}  For all heads:  {found.median_law.spelling} Per head:")
    assert lines[-1] == "'*': the head attends to one key, and almost any large constant keeps it so."
    assert [line.split()[1] for line in lines if line.startswith("L") and "*" in line] == ["H2"]
    assert max(map(len, lines)) <= 100
    # scale= takes the printed law.
    rows = at.attention_entropy(data.query, data.key, scale=found.median_law.spelling)
    np.testing.assert_allclose(rows.mean(-1), found.median_entropy[:, 1], atol=1e-5)


def test_command_on_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    q, k, _ = random_inputs(9, heads=4, kv_heads=2, n_queries=48, n_keys=48)
    path = str(tmp_path / "heads.npz")
    np.savez(path, query=q, key=k)
    options = "--causal --n0 24 --laws log_n log_n(base=9) --json"
    assert main(["calibrate", path, *options.split()]) == 0
    report = json.loads(capsys.readouterr().out)
    found = at.calibrate(q, k, 24, is_causal=True, enable_gqa=True)
    assert report["lengths"] == found.lengths.tolist() == [24, 48]
    assert [head["beta"] for head in report["heads"]] == found.beta.tolist()
    assert report["laws"] == ["LogN(base=24.0, floor=1.0)", "LogN(base=9.0, floor=1.0)"]
    assert list(report["ranking"]) == ["log_n(base=24) = log_n(base=9)"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one FILE, two .npy or .pt FILEs, or --demo"),
        (["--demo", "x.npz"], "give one FILE, two .npy or .pt FILEs, or --demo"),
        (["--demo", "--n0", "513"], "n0 must be between 2 and the number of keys, 512, got 513"),
        (["--demo", "--laws", "no_law"], "no_law"),
        (["--demo", "--laws", "scale_invariant"], "scale_invariant"),
    ],
)
def test_command_on_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnscale: error: ")
    assert error.count("\n") == 1
    assert message in error
