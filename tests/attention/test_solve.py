# SPDX-License-Identifier: BSD-3-Clause
"""solve_scale: the entropy at its scale, feasible targets, and scales shared by rows."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import bounds, mask_cases, random_inputs, remembering, same

pytestmark = pytest.mark.levels

TOLERANCE = {"float64": 1e-9, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}
WITHOUT_BIAS = [n for n, o in mask_cases(1, 1, 1, 1).items() if "softcap" not in o and "bias" not in n]


def check(q: Any, k: Any, target: Any, *, per: str = "row", **options: Any) -> at.ScaleSolution:
    """Compare with the twin: the float64 entropy at the scale found is the target, to rounding."""
    found = at.solve_scale(q, k, target, per=per, on_infeasible="nan", **options)
    with remembering():
        truth = reference.solve_scale(q, k, target, per=per, **options)
    tolerance = 1e-9 if np.float64 in (q.dtype, k.dtype) else 1e-6
    np.testing.assert_array_equal(found.feasible, truth.feasible)
    np.testing.assert_allclose(found.highest, truth.highest, rtol=3e-7)
    np.testing.assert_allclose(found.lowest, truth.lowest, rtol=3e-7)
    assert found.scale.dtype == np.float64
    assert found.converged[truth.feasible].all()
    for where in (truth.scale == 0, np.isnan(truth.scale)):
        np.testing.assert_array_equal(found.scale[where], truth.scale[where])
    scale = np.where(np.isfinite(found.scale), found.scale, 0)
    form = {name: options[name] for name in ("enable_gqa", "layout") if name in options}
    shape = reference.dot_products(q, k, **form).shape[:-1]
    of_rows = scale.reshape(scale.shape + (1,) * (len(shape) - scale.ndim)) if scale.ndim else scale
    with remembering():
        rows = reference.attention_statistics(q, k, scale=of_rows, **options)
        limit = bounds(q, k, None, rows, scale=of_rows, **options).entropy
    seen = rows.n_visible > 0
    axes: Any = {"row": (), "head": (-1,), "all": tuple(range(-len(shape), 0))}[per]
    count = np.maximum(seen.sum(axes), 1)
    slack = tolerance + np.where(seen, limit, 0).sum(axes) / count
    error = np.where(seen, rows.entropy, 0).sum(axes) / count - target
    searched = truth.feasible & np.isfinite(found.scale) & (found.scale > 0)
    assert (np.abs(error) <= slack)[searched].all(), np.abs(error)[searched].max()
    return found


@pytest.mark.parametrize("n", [2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 191, 192, 193, 385])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sizes(n: int, dtype: str) -> None:
    for n_queries, n_keys in ((n, 40), (7, n)):
        q, k, _ = random_inputs(n, n_queries=n_queries, n_keys=n_keys, head_dim=12, dtype=dtype)
        found = check(q, k, 0.6 * np.log(n_keys))
        assert found.scale.shape == found.entropy.shape == (2, n_queries)
        assert found.entropy.dtype == q.dtype
        assert found.iterations.max() <= 12


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.99, 0.99999])
def test_from_one_hot_to_flat(dtype: str, share: float) -> None:
    q, k, _ = random_inputs(1, n_queries=70, n_keys=250, head_dim=32, dtype=dtype)
    target = share * np.log(250)
    found = check(q.astype(np.float32) if dtype == "bfloat16" else q, k, target)
    assert (np.abs(found.entropy - target) <= TOLERANCE[dtype] + 5e-7 * (dtype != "float64")).all()


@pytest.mark.parametrize("name", WITHOUT_BIAS)
@pytest.mark.parametrize("per", ["row", "head", "all"])
def test_masks(name: str, per: str) -> None:
    options = {key: each for key, each in mask_cases(2, 2, 21, 70)[name].items() if key != "scale"}
    q, k, _ = random_inputs(2, batch=(2,), heads=2, n_queries=21, n_keys=70, dtype="float64")
    check(q, k, 1.2, per=per, **options)
    check(q.astype(np.float32), k.astype(np.float32), 0.4, per=per, **options)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_float_mask_of_zeros_and_minus_infinity_is_a_boolean_one(kind: Any) -> None:
    q, k, _ = random_inputs(3)
    mask = np.random.default_rng(0).random((17, 33)) < 0.5
    hidden = np.where(mask, 0, -np.inf).astype(kind)
    one, two = (at.solve_scale(q, k, 1.0, attn_mask=each) for each in (mask, hidden))
    np.testing.assert_array_equal(one.scale, two.scale)


@pytest.mark.parametrize("per", ["row", "head", "all"])
def test_documents(per: str) -> None:
    q, k, _ = random_inputs(3, batch=(2,), n_queries=30, n_keys=30, dtype="float64")
    ids = np.stack([np.repeat([3, 1, 2, 7], [10, 4, 15, 1]), np.repeat([0, 1, 2, 3], [1, 1, 20, 8])])
    check(q, k, 0.7, per=per, document_ids=ids, is_causal=True)
    target = np.linspace(0.2, 1.2, 30) if per == "row" else 0.9
    check(q, k, target, per=per, document_ids=ids, attn_mask=np.arange(30) % 5 != 2)


def test_grouped_queries_layout_and_targets_that_broadcast() -> None:
    q, k, _ = random_inputs(4, batch=(3,), heads=4, kv_heads=2, dtype="float64")
    target = np.array([0.5, 1.0, 1.5, 2.0])
    found = check(q, k, target[:, None], enable_gqa=True)
    turned = (x.swapaxes(1, 2) for x in (q, k))
    swapped = at.solve_scale(*turned, target[:, None], enable_gqa=True, layout="bshd")
    np.testing.assert_array_equal(swapped.scale, found.scale)
    shared = check(q, k, target, per="head", enable_gqa=True)
    assert shared.scale.shape == shared.entropy.shape == (3, 4)
    for batch in range(3):
        alone = at.solve_scale(q[batch], k[batch], target, per="head", enable_gqa=True)
        np.testing.assert_allclose(shared.scale[batch], alone.scale, rtol=1e-8)
    assert check(q, k, 1.0, per="all", enable_gqa=True).scale.shape == ()
    flat = at.solve_scale(q[0, 0], k[0, 0], 1.0)
    assert flat.scale.shape == (17,)
    np.testing.assert_array_equal(flat.scale, at.solve_scale(q[0, :1], k[0, :1], 1.0).scale[0])


# --- what no scale can reach ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_targets_out_of_reach(dtype: str) -> None:
    """Targets above ln n_visible, and below ln of the number of keys that tie at the top."""
    q = np.ones((3, 2), dtype)
    k = np.array([[1, 2], [2, 1], [0, 0], [1, 1], [3, 0]], dtype)  # three keys with q . k = 3
    found = at.solve_scale(q, k, [np.log(6), np.log(3.5), np.log(2)], on_infeasible="nan")
    np.testing.assert_array_equal(found.feasible, [False, True, False])
    np.testing.assert_array_equal(found.converged, [False, True, False])
    np.testing.assert_array_equal(found.scale[[0, 2]], np.nan)
    np.testing.assert_allclose(found.entropy, np.log([5, 3.5, 3]), atol=1.2e-6)
    np.testing.assert_allclose(found.lowest, np.log(3), rtol=3e-7)
    np.testing.assert_allclose(found.highest, np.log(5), rtol=3e-7)
    np.testing.assert_array_equal(found.iterations[[0, 2]], 0)
    shared = at.solve_scale(q, k, np.log(2), per="head", on_infeasible="nan")
    assert (np.isnan(shared.scale), shared.feasible, shared.converged) == (True, False, False)
    check(q, k, [np.log(6), np.log(3.5), np.log(2)])


def test_a_target_out_of_reach_warns_or_raises_or_gives_nan() -> None:
    q, k, _ = random_inputs(12, n_keys=5)
    message = r"34 of 34 rows the target_entropy: 10 nats at \(0, 0\), which can have 0 to 1.60944"
    with pytest.warns(UserWarning, match=message + r"; the result is NaN there \(on_infeasible=") as seen:
        found = at.solve_scale(q, k, 10.0)
    assert seen[0].filename == __file__
    assert np.isnan(found.scale).all()
    assert not found.feasible.any()
    np.testing.assert_allclose(found.entropy, np.log(5), rtol=1e-6)  # the nearest possible
    with pytest.raises(ValueError, match="scale must be finite"):
        at.attention_entropy(q, k, scale=found.scale)
    assert np.isnan(at.solve_scale(q, k, 10.0, on_infeasible="nan").scale).all()
    refused: tuple[tuple[Any, str], ...] = (
        ("row", f"no scale gives {message}"),
        ("head", "no scale gives 2 of 2 heads the target_entropy"),
        ("all", "no scale gives the rows together the target_entropy: 10 nats, which"),
    )
    for per, said in refused:
        with pytest.raises(ValueError, match=said):
            at.solve_scale(q, k, 10.0, per=per, on_infeasible="raise")
    with pytest.raises(ValueError, match="on_infeasible must be one of 'warn', 'nan', 'raise', got 'flag'"):
        at.solve_scale(q, k, 10.0, on_infeasible="flag")  # type: ignore[arg-type]
    hidden = at.solve_scale(q, k, 1.0, key_lengths=0)  # rows without keys reach every target
    np.testing.assert_array_equal(hidden.scale, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_targets_at_the_ends(dtype: str) -> None:
    q, k, _ = random_inputs(5, dtype=dtype)
    top = at.solve_scale(q, k, np.log(33) + 1e-12)
    np.testing.assert_array_equal(top.scale, 0)
    assert top.converged.all()
    assert top.feasible.all()
    one_hot = at.solve_scale(q, k, 0)
    assert one_hot.converged.all()
    assert np.isfinite(one_hot.scale).all()
    assert (at.attention_entropy(q, k, scale=one_hot.scale) <= 2e-6).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_without_a_choice(dtype: str) -> None:
    """Rows of no key, one key or equal dot products have one entropy at every scale."""
    q, k, _ = random_inputs(6, n_queries=6, n_keys=4, dtype=dtype)
    found = at.solve_scale(q, k, 1e-3, causal="bottom_right", on_infeasible="nan")
    np.testing.assert_array_equal(found.highest[:, :3], 0)
    np.testing.assert_array_equal(found.entropy[:, :3], 0)
    np.testing.assert_array_equal(found.feasible[:, :3], False)
    np.testing.assert_array_equal(found.scale[:, :2], 0)  # no key
    np.testing.assert_array_equal(found.scale[:, 2], np.nan)  # one key: the entropy is 0
    assert found.converged[:, 3:].all()
    zero = at.solve_scale(q, k, 0.0, causal="bottom_right")
    np.testing.assert_array_equal(zero.scale[:, :3], 0)
    np.testing.assert_array_equal(zero.feasible, True)
    equal = at.solve_scale(q * 0, k, [[1.0], [2.0]], on_infeasible="nan")
    np.testing.assert_array_equal(equal.scale, np.nan)
    np.testing.assert_array_equal(equal.feasible, False)
    np.testing.assert_allclose(equal.entropy, np.log(4), rtol=3e-7)


@pytest.mark.parametrize("per", ["row", "head", "all"])
def test_empty_extents(per: Any) -> None:
    q, k, _ = random_inputs(7)
    shapes = {"row": lambda x: x.shape[:-1], "head": lambda x: x.shape[:-2], "all": lambda _: ()}
    for a, b in ((q[:, :0], k), (q[:0], k[:0]), (q, k[:, :0]), (q[..., :0], k[..., :0])):
        found = at.solve_scale(a, b, 0.0, per=per, on_infeasible="nan")
        assert found.scale.shape == shapes[per](a)
        assert found.entropy.shape == shapes[per](a)
    assert (at.solve_scale(q, k[:, :0], 0.0, per=per).scale == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_nan_reaches_the_rows_that_see_it(bad: float, dtype: str) -> None:
    q, k, _ = random_inputs(8, n_queries=100, n_keys=100, dtype=dtype)
    mask = {"causal": 5}  # rows see 6 keys or more: all can have 1 nat
    clean = at.solve_scale(q, k, 1.0, **mask)
    k[0, 75, 3] = bad
    found = at.solve_scale(q, k, 1.0, **mask)
    broken = np.zeros((2, 100), bool)
    broken[0, 70:] = True
    for name in ("scale", "entropy", "lowest", "highest"):
        seen = getattr(found, name)
        np.testing.assert_array_equal(np.isnan(seen), broken, err_msg=name)
        np.testing.assert_array_equal(seen[~broken], getattr(clean, name)[~broken], err_msg=name)
    assert not found.converged[broken].any()
    assert not found.feasible[broken].any()
    shared = at.solve_scale(q, k, 1.0, per="head", **mask)
    np.testing.assert_array_equal(np.isnan(shared.scale), [True, False])
    np.testing.assert_array_equal(shared.converged, [False, True])


def test_hidden_numbers_are_never_read() -> None:
    q, k, _ = random_inputs(9, n_queries=50, n_keys=300)
    clean = at.solve_scale(q, k, 1.5, key_lengths=200)
    k[:, 200:] = np.nan
    np.testing.assert_array_equal(at.solve_scale(q, k, 1.5, key_lengths=200).scale, clean.scale)
    mask = np.arange(300) < 200
    np.testing.assert_allclose(at.solve_scale(q, k, 1.5, attn_mask=mask).scale, clean.scale, rtol=1e-6)


# --- accuracy and promises --------------------------------------------------------------------------------


def test_the_scale_is_that_of_bisection() -> None:
    q, k, _ = random_inputs(10, n_queries=40, n_keys=120, dtype="float64")
    for target in (0.2, 1.0, 3.0, 4.7):
        with remembering():
            truth = reference.solve_scale(q, k, target)
        # To the tolerance over the slope: d entropy / d ln scale = -variance of the score.
        slope = reference.attention_statistics(q, k, scale=truth.scale).score_variance
        found = at.solve_scale(q, k, target, tolerance=1e-12)
        assert found.converged.all()
        assert (np.abs(np.log(found.scale / truth.scale)) <= 4e-12 / slope + 1e-12).all()


def test_scale_is_inverse_to_the_size_of_the_data() -> None:
    q, k, _ = random_inputs(11, dtype="float64")
    plain = at.solve_scale(q, k, 1.0).scale
    for factor in (1e-60, 1e60):
        np.testing.assert_allclose(at.solve_scale(q * factor, k, 1.0).scale * factor, plain, rtol=1e-8)


@pytest.mark.parametrize("data", ["heavy tails", "two clusters", "one far ahead", "offset", "near tie"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hard_rows(data: str, dtype: str) -> None:
    rng = np.random.default_rng(12)
    x = rng.standard_normal((30, 400))
    x = {
        "heavy tails": rng.standard_cauchy((30, 400)),
        "two clusters": np.where(np.arange(400) < 200, x, x - 1000),
        "one far ahead": np.where(np.arange(400) == 7, 300, x),
        "offset": x + 1000,
        "near tie": np.where(np.arange(400) < 2, 5 + 1e-3 * (np.arange(400) == 0), x),
    }[data]
    q, k = np.eye(30, dtype=dtype), np.ascontiguousarray(x.T.astype(dtype))
    for target in (0.3, 1.0, 3.0, 5.5):
        found = check(q, k, target)
        assert found.iterations.max() <= 30


def test_a_shared_scale_far_below_the_first_trial() -> None:
    """At the first trial the entropy is 0 up to rounding, which gives no direction."""
    q = np.full((129, 33), 0.5, np.float32)
    k = (3e9 * np.random.default_rng(53).standard_normal((4, 33))).astype(np.float32)
    found = at.solve_scale(q, k, 0.064, per="head", tolerance=1e-5)
    assert found.converged
    assert found.iterations < 30
    row = at.solve_scale(q[:1], k, 0.064, tolerance=1e-5)
    np.testing.assert_allclose(found.scale, row.scale[0], rtol=1e-3)


@pytest.mark.parametrize("threads", [2, 3])
def test_results_do_not_depend_on_threads(threads: int) -> None:
    q, k, _ = random_inputs(13, n_queries=150, n_keys=500)
    for per in ("row", "head"):
        one, many = (at.solve_scale(q, k, 2.0, per=per, num_threads=n) for n in (1, threads))
        same(one, many, ("scale", "entropy", "iterations"))


def test_no_row_depends_on_its_neighbours() -> None:
    q, k, _ = random_inputs(14, heads=None, n_queries=64, n_keys=300)
    whole = at.solve_scale(q, k, np.linspace(0.5, 5, 64))
    for row in (0, 13, 63):
        alone = at.solve_scale(q[[row]], k, np.linspace(0.5, 5, 64)[row])
        assert alone.iterations == whole.iterations[row]
        np.testing.assert_array_equal(alone.scale, whole.scale[row])


def test_rows_too_long_to_be_kept() -> None:
    """Beyond 16 MiB a panel, products are computed again in each step."""
    n, rng = 2**20 + 5, np.random.default_rng(15)
    q = rng.standard_normal((2, 2)).astype(np.float32)
    k = rng.standard_normal((n, 2)).astype(np.float32)
    mask = np.arange(n) % 1000 != 3
    for options in ({}, {"attn_mask": mask}):
        found = at.solve_scale(q, k, np.log(1000.0), **options)
        assert found.converged.all()
        x = q.astype(np.float64) @ k.astype(np.float64).T
        seen = mask if options else np.ones(n, bool)
        for row in range(2):
            s = found.scale[row] * x[row, seen]
            p = np.exp(s - s.max())
            p /= p.sum()
            assert abs(-(p * np.log(np.maximum(p, 1e-300))).sum() - np.log(1000)) < 1e-5


def test_strides_are_read_in_place() -> None:
    q, k, _ = random_inputs(16, n_queries=40, n_keys=80)
    plain = at.solve_scale(q, k, 1.0)
    found = at.solve_scale(np.asfortranarray(q), k[:, ::-1][:, ::-1], np.full((2, 80), 1.0)[:, ::2])
    np.testing.assert_array_equal(found.scale, plain.scale)


# --- mistakes ---------------------------------------------------------------------------------------------


def test_mistakes_are_explained() -> None:
    q, k, _ = random_inputs(17)
    for target, message in (
        (np.nan, "target_entropy must be finite, got nan"),
        ([[1.0], [np.inf]], "target_entropy must be finite, got inf"),
        (-0.5, "target_entropy must be at least 0, got -0.5"),
        (np.ones((3, 17)), r"target_entropy must broadcast to \(..., heads, n_queries\) = \(2, 17\), got"),
    ):
        with pytest.raises(ValueError, match=message):
            at.solve_scale(q, k, target)
    with pytest.raises(TypeError, match="target_entropy must be a number or an array of numbers, got 'high'"):
        at.solve_scale(q, k, "high")
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"per": "head"}, r"target_entropy must broadcast to \(..., heads\) = \(2,\)"),
        ({"per": "layer"}, "per must be one of 'row', 'head', 'all', got 'layer'"),
        ({"tolerance": 0}, "tolerance must be greater than 0, got 0"),
        ({"softcap": 30.0}, "solve_scale takes no softcap: under it entropy need not fall"),
        ({"attn_mask": np.array(0.5)}, r"with a bias entropy need not fall with the scale.*; got 0.5"),
    )
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            at.solve_scale(q, k, np.ones((2, 17)), **options)
    assert repr(at.solve_scale(q, k, 1.0)).startswith("ScaleSolution per row: (2, 17)\n")


def test_why_a_softcap_is_refused() -> None:
    """Under a soft-cap entropy falls and rises again: two scales have the same one."""
    q, k = np.ones((1, 1)), np.array([[2.0], [8.0]])
    entropy = [at.attention_entropy(q, k, scale=a, softcap=3.0)[0] for a in (0.01, 0.5, 100.0)]
    assert entropy[0] > entropy[1] + 0.1
    assert entropy[2] > entropy[1] + 0.1


def test_why_a_bias_is_refused() -> None:
    """The flattest weights can lie at a scale above 0."""
    q, k, bias = np.ones((1, 1)), np.array([[0.0], [1.0]]), np.array([2.0, 0.0])
    entropy = [at.attention_entropy(q, k, scale=a, attn_mask=bias)[0] for a in (0.0, 2.0, 4.0)]
    assert entropy[1] > entropy[0] + 0.1
    assert entropy[1] > entropy[2] + 0.1


# --- the same problem elsewhere ---------------------------------------------------------------------------


def test_perplexity_search_of_scikit_learn() -> None:
    """t-SNE's conditional probabilities: q . k = -distance^2 + a constant of the row."""
    utils = pytest.importorskip("sklearn.manifold._utils")
    rng = np.random.default_rng(18)
    x = rng.standard_normal((300, 5)).astype(np.float32)
    squared = ((x[:, None] - x) ** 2).sum(-1)
    theirs = utils._binary_search_perplexity(squared, 30.0, 0)
    query = np.concatenate([2 * x, np.full((300, 1), -1, np.float32)], axis=1)
    key = np.concatenate([x, (x**2).sum(1, keepdims=True)], axis=1)
    others = ~np.eye(300, dtype=bool)
    found = at.solve_scale(query, key, np.log(30.0), attn_mask=others)
    ours = at.attention(query, key, np.eye(300, dtype=np.float32), scale=found.scale, attn_mask=others)
    # Their tolerance is 1e-5 nat; d p / p = (x - mean) d scale, a few times that.
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("per", ["row", "head", "all"])
def test_two_axes_with_a_key_length(per: str) -> None:
    q, k, _ = random_inputs(31, heads=None, dtype="float64")
    found = at.solve_scale(q, k, 2.0, per=per, key_lengths=20, is_causal=False)
    alone = at.solve_scale(q, k[:20], 2.0, per=per)
    np.testing.assert_array_equal(found.scale, alone.scale)


@pytest.mark.parametrize("tolerance", [None, 1e-3])
def test_small_entropies_keep_the_promise(tolerance: float | None) -> None:
    """The error is below 2e-6 in float32 even where nearly all weight is on one key."""
    for seed in range(20):
        q, k, _ = random_inputs(seed, n_queries=70, n_keys=64, head_dim=17)
        found = at.solve_scale(q, k, 0.0, tolerance=tolerance)
        scale = np.where(np.isfinite(found.scale), found.scale, 1e30)[..., None]
        scores = scale * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2))
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
        plain = found.scale < 100  # beyond it the rounding of the scores is larger
        np.testing.assert_allclose(found.entropy[plain], entropy[plain], rtol=0, atol=2e-6)


def test_a_mask_of_large_numbers_of_a_wider_type_is_refused() -> None:
    """Such numbers hide no key: they are a bias."""
    q, k, _ = random_inputs(5, n_queries=6, n_keys=9, head_dim=4)
    mask = np.zeros((6, 9))
    mask[:, 7:] = np.finfo(np.float64).min / 4
    with pytest.raises(ValueError, match="attn_mask of solve_scale must be bool"):
        at.solve_scale(q, k, 1.0, attn_mask=mask)
