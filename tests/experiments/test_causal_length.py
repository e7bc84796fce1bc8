"""T15: a causal language model of prose, read beyond its training length."""

from __future__ import annotations

import gzip
import math
import random
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from attnscale import SweepError  # noqa: E402
from studies import stored  # noqa: E402
from studies.causal_length import CausalLength  # noqa: E402
from studies.data.corpus import package_of  # noqa: E402
from studies.data.prose import PACKAGES, prose_files  # noqa: E402
from studies.models.causal import (  # noqa: E402
    POSITIONS,
    SCALES,
    CausalModel,
    in_short_windows,
    row_factor,
)
from studies.models.clipped import clipped_rows, clipped_scores  # noqa: E402
from studies.models.transformer import rotate  # noqa: E402
from torch.nn import functional  # noqa: E402

pytestmark = pytest.mark.torch

SMALL = replace(
    CausalLength.reduced(), vocabulary=300, width=16, steps=3, batch=2, length=128, windows=2, clip=20
)
WORDS = ("in", "reader", "writes", "about", "many", "small", "things", "near", "rivers", "houses", "trees")


def sentence(rng):
    return f"The {' '.join(rng.choices(WORDS, k=9))} of it."


@pytest.fixture
def corpus(tmp_path):
    """Thirty files of sentences; every tenth is held out."""
    rng = random.Random(0)
    for i in range(30):
        text = "\n\n".join(sentence(rng) for _ in range(60))
        (tmp_path / f"{i}.txt").write_text(text)
    return str(tmp_path)


def model(positions="none", trained="standard", implementation="attnscale"):
    kind = {"train_length": 32, "implementation": implementation}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = CausalModel(50, 2, 32, 2, positions=positions, trained=trained, **kind)
        for block in found.blocks:
            torch.nn.init.normal_(block.project.weight, std=0.5)  # rows that are not even
        torch.nn.init.uniform_(found.slopes, 0.2, 0.6)
        if found.taps is not None:
            torch.nn.init.uniform_(found.smear, -2, 2)
    return found


def text(n=129):
    return torch.randint(50, (n,), generator=torch.Generator().manual_seed(1))


def test_prose_is_what_paragraphs_say_once(tmp_path):
    rng = random.Random(0)
    kept = [sentence(rng) for _ in range(60)]
    page = "<html><head><title>the and of a to in it</title></head><body>" + "".join(
        f"<p>{each[:20]}<em>{each[20:]}</em></p><pre>{sentence(rng)}</pre><p>Next Up Home</p>"
        for each in kept
    )
    (tmp_path / "page.html.gz").write_bytes(gzip.compress(page.encode()))
    (tmp_path / "short.txt").write_text(sentence(rng))
    (tmp_path / "table.txt").write_text(
        "\n\n".join("x1 y2 z3 Montag Sonne Garten 10 20 30 40" * 9 for _ in range(9))
    )
    (found,) = prose_files(str(tmp_path))
    assert found == ("page.html.gz", "\n".join(kept).encode())
    (tmp_path / "again.txt").write_text("\n\n".join(each.upper() for each in kept))
    assert len(prose_files(str(tmp_path))) == 1


def test_a_corpus_that_is_not_there_is_named_with_a_remedy(tmp_path):
    said = f"got '{tmp_path}', which has none; .* apt-get download"
    with pytest.raises(SweepError, match=said) as caught:
        replace(SMALL, corpus=str(tmp_path)).run(seeds=1, progress=False)
    assert all(each in str(caught.value) for each in PACKAGES)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("trained", SCALES)
def test_a_reading_has_the_scales_of_the_training(positions, trained):
    one, tokens = model(positions, trained), text(41)[None]
    losses, entropies = one.losses(tokens)
    with torch.no_grad():
        wanted = functional.cross_entropy(one(tokens[:, :-1]).mT, tokens[:, 1:], reduction="none")
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-5)
    assert (entropies[0] <= torch.arange(1, 41).log() + 1e-5).all()
    theirs, _ = model(positions, trained, "torch").losses(tokens)
    torch.testing.assert_close(losses, theirs, rtol=1e-4, atol=1e-5)


def test_scores_are_those_of_the_definition():
    q, k, v = torch.randn(3, 1, 2, 12, 16, generator=torch.Generator().manual_seed(0))
    distance = torch.arange(12)[:, None] - torch.arange(12)
    products = {
        "none": q @ k.mT / 4,
        "rotary": rotate(q) @ rotate(k).mT / 4,
        "plain rotary": rotate(q) @ rotate(k).mT / 4,
        "alibi": q @ k.mT / 4 - torch.tensor([1 / 16, 1 / 256])[:, None, None] * distance,
    }
    for positions, scores in products.items():
        mix = model(positions).mix
        mix.scales, mix.smear = [0.25], None
        wanted = scores.masked_fill(distance < 0, -math.inf).softmax(-1) @ v
        torch.testing.assert_close(mix(q, k, v, 0), wanted, rtol=1e-4, atol=1e-5)
    mix = model().mix
    mix.scales, mix.smear = [0.25], torch.tensor([[0.0, math.log(3)]])  # shares 1/2 and 3/4
    before = functional.pad(k, (0, 0, 1, 0))[..., :-1, :]
    share = torch.tensor([0.5, 0.75])[:, None, None]
    scores = (q @ ((1 - share) * k + share * before).mT / 4).masked_fill(distance < 0, -math.inf)
    torch.testing.assert_close(mix(q, k, v, 0), scores.softmax(-1) @ v, rtol=1e-4, atol=1e-5)
    scale = torch.linspace(0.1, 0.4, 24).view(2, 12)
    scores = (clipped_scores(q, k, 5) * scale[..., None]).masked_fill(distance < 0, -math.inf)
    output, entropy = clipped_rows(q, k, v, scale=scale, clip=5, backend="core", causal=True)
    torch.testing.assert_close(output, scores.softmax(-1) @ v, rtol=1e-4, atol=1e-5)
    wanted = torch.special.entr(scores.softmax(-1)).sum(-1)
    torch.testing.assert_close(entropy, wanted, rtol=1e-4, atol=1e-4)


def test_a_row_begins_by_looking_at_its_like_and_sees_no_later_token():
    one, tokens = model(), text(41)[None]
    with torch.random.fork_rng(devices=[]):
        options = {"positions": "none", "trained": "ssmax", "implementation": "torch"}
        fresh = CausalModel(50, 1, 32, 2, train_length=32, **options)
    query, key, _ = fresh.blocks[0].project.weight.chunk(3)
    assert torch.equal(query, key)
    other = tokens.clone()
    other[0, 20:] = 7
    with torch.no_grad():
        assert torch.equal(one(tokens)[:, :20], one(other)[:, :20])


def test_a_law_acts_beyond_the_training_length_alone():
    one, tokens = model("rotary"), text(97)[None]
    plain, _ = one.losses(tokens)
    for law in ("log_n", "yarn"):
        factor = row_factor(law, 96, 32, 16)
        assert (np.diff(factor[31:]) > 0).all()
        changed, _ = one.losses(tokens, factor=factor)
        assert torch.equal(changed[:, :32], plain[:, :32])
        assert (changed[:, 33:] != plain[:, 33:]).any()
    clipped, _ = one.losses(tokens, clip=20)
    torch.testing.assert_close(clipped[:, :21], plain[:, :21], rtol=1e-4, atol=1e-5)
    assert (clipped[:, 22:] != plain[:, 22:]).any()


def test_windows_are_what_is_read_alone():
    one, tokens = model("alibi"), text(65)
    losses, _ = in_short_windows(one, tokens, 16)
    assert losses.shape == (64,)
    alone, _ = one.losses(tokens[None, 40:57])  # the window of 16 rows from row 40 on
    torch.testing.assert_close(losses[48:56], alone[0, 8:], rtol=1e-4, atol=1e-5)
    first, _ = one.losses(tokens[None, :17])
    torch.testing.assert_close(losses[:16], first[0], rtol=1e-4, atol=1e-5)


def test_every_reading_that_there_is_is_measured(corpus, tmp_path):
    study = replace(SMALL, corpus=corpus)
    ours, theirs = (
        each.run(seeds=1, progress=False, store=tmp_path / "stores" / each.attention)
        for each in (study, replace(study, attention="torch"))
    )
    for name in ("nll", "entropy", "slope"):
        np.testing.assert_allclose(ours.arrays[name], theirs.arrays[name], rtol=2e-3)
    np.testing.assert_array_equal(ours.select("nll", n=128), ours.select("late"))
    np.testing.assert_allclose(ours.select("late_by_text").mean(-1), ours.select("late"))
    there = np.isfinite(ours.select("late", seed=0)).sum(-1)  # positions, trained
    assert there.tolist() == [[5, 3, 3], [5, 3, 3], [8, 4, 4], [8, 4, 4]]
    notes = [each.note for claim in ours.verdict().claims for each in claim.findings]
    assert set(notes) == {"one seed has no error"}  # all is measured
    assert np.isfinite(ours.select("slope", trained="ssmax")).all()
    assert ours.facts["source"]["held_out"]["files"] == 3
    assert len(ours.facts["source"]["train"]["sha256"]) == 64


BY_PACKAGE = ("one", "two")


@pytest.fixture
def packages(tmp_path):
    """Three packages, one of them in usr/share, without repeated sentences."""
    rng = random.Random(0)
    for i, place in enumerate(("doc/one", "doc/two/html", "three")):
        folder = tmp_path / "prose" / "usr" / "share" / place
        folder.mkdir(parents=True)
        for j in range(4):
            text = "\n\n".join(sentence(rng) for _ in range(60))
            (folder / f"{i}{j}.txt").write_text(text)
    return str(tmp_path / "prose")


def test_whole_packages_are_held_out_and_are_the_clusters(packages, tmp_path):
    names = ("vocabulary", "width", "heads", "steps", "batch", "train_length", "length")
    small = {name: getattr(SMALL, name) for name in names}
    small |= {"corpus": packages, "packages": BY_PACKAGE, "windows": 4}
    study = replace(CausalLength.by_package(), **small)
    found = study.run(seeds=2, progress=False, store=tmp_path / "store")
    source = found.facts["source"]
    assert source["train"]["files"] == 4
    held_out = source["held_out"]["names"]
    assert {package_of(name) for name in held_out} == {*BY_PACKAGE}
    files, clusters = (found.arrays[name][0, 0, 0] for name in ("text_file", "text_cluster"))
    assert clusters.tolist() == [0, 0, 1, 1]
    assert [package_of(held_out[int(each)]) for each in files] == ["one", "one", "two", "two"]
    windows, same = (found.select("late", reading=each) for each in ("windows", "windows x 1.3"))
    assert (windows != same).all()
    judged = [each for claim in found.verdict().claims for each in claim.findings]
    assert len(judged) == 9
    assert all(1 <= each.degrees <= 2 and each.by_cluster is None for each in judged)
    with pytest.raises(SweepError, match=r"windows must be at most .* of 129 tokens for 'one', got 50"):
        replace(study, windows=100).run(seeds=1, progress=False)


def test_the_roots_of_the_logarithm_that_models_are_trained_under_and_read_under():
    one = model(trained="root_log")
    rows = one._rows(0, 64, None)[0].double() * 4  # the head has 16 components
    wanted = torch.arange(1, 65).log().add(1).div(1 + math.log(32)).sqrt()
    torch.testing.assert_close(rows, wanted.double(), rtol=1e-6, atol=0)
    factor = row_factor("root_log", 64, 32, 16)
    np.testing.assert_allclose(factor, np.maximum(1, wanted.numpy()), rtol=1e-6)
    tokens = text(65)
    sharper, _ = one.losses(tokens[None, :17], factor=np.full(16, 1.3))
    in_windows, _ = in_short_windows(one, tokens, 16, 1.3)
    torch.testing.assert_close(in_windows[:16], sharper[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_length": 96}, "train_length must be a power of two from 64 on, got 96"),
        ({"length": 64}, "length must be train_length=64 times a power of two, got 64"),
        ({"width": 30}, "width must be a multiple of 2 \\* heads, got 30 and 2"),
        ({"positions": ("learned",)}, "positions must be"),
        ({"packages": BY_PACKAGE, "windows": 3}, "windows must be a multiple of 2 packages, got 3"),
        ({"readings": ("windows / 4",)}, "readings must be like .* got 'windows / 4'"),
    ],
)
def test_bad_fields_are_named(changes, said):
    with pytest.raises(ValueError, match=said):
        replace(SMALL, **changes)


@pytest.mark.maintainer
@pytest.mark.slow
def test_some_of_the_reduced_models_are_within_the_stored_error_bars(tmp_path):
    kept = stored("causal_length", "reduced")["late"]
    some = ("none,trained=standard", "alibi,trained=ssmax", "plain rotary,trained=standard")
    # The store keeps the tokens for all models.
    options = {"only": [f"positions={each}" for each in some], "progress": False, "store": tmp_path}
    again = CausalLength.reduced().run(seeds=[100], **options)["late"].value
    spread = kept.standard_error * np.sqrt(kept.seeds + 1)  # of one model, and of the mean
    there = np.isfinite(again)
    assert there.sum() == 5 + 3 + 8
    assert (abs(again - kept.value)[there] <= 5 * spread[there] + 0.02).all()


def test_the_reduced_design_can_evaluate_its_criterion():
    study = CausalLength.reduced()
    assert {*study.positions} == {*POSITIONS}
    assert study.criterion() == CausalLength().criterion()
