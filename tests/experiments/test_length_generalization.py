# SPDX-License-Identifier: BSD-3-Clause
"""T15: a model trained at one length and read at others."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from studies.data.corpus import FILE, MASK, library_source, source_files  # noqa: E402
from studies.data.held_out import held_out_texts, other_texts, repeated_tokens  # noqa: E402
from studies.length_generalization import LengthGeneralization  # noqa: E402
from studies.models.clipped import clipped_rows, clipped_scores  # noqa: E402
from studies.models.masked import hide_tokens, masked_loss, read_texts  # noqa: E402
from studies.models.readings import Reading, _clipped_beta, calibrated  # noqa: E402
from studies.models.transformer import Mixing, Transformer, rotate  # noqa: E402
from tiny import TINY_TEXT  # noqa: E402

pytestmark = pytest.mark.torch


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def model(positions="rotary", implementation="attnscale", seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Transformer(40, 2, 16, 2, Mixing(positions=positions, implementation=implementation))
        for block in made.blocks:  # so that weights are not even
            block.project.weight.data.mul_(20)
    return made


def tiny(**changes):
    return LengthGeneralization(**{**TINY_TEXT, "windows": 4, "calibration_windows": 2, **changes})


def test_programs_agree_step_by_step():
    losses = []
    for implementation in ("attnscale", "torch"):
        net = model(implementation=implementation)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        stream, draw = torch.randint(2, 40, (500,), generator=generator()), generator(1)
        losses.append([])
        for _ in range(12):
            optimizer.zero_grad()
            loss = masked_loss(net, stream, 4, 16, 3, draw)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
    assert losses[0][-1] < losses[0][0]


def test_clipped_distances_are_rotary_within_the_clip_and_one_turn_beyond():
    q, k = torch.randn(2, 1, 1, 12, 4, dtype=torch.float64, generator=generator())
    scores = clipped_scores(q, k, 5)[0, 0]
    for i in range(12):
        for j in range(12):
            at = max(-5, min(5, i - j))
            assert scores[i, j] == pytest.approx(float(rotate(q, at=at)[0, 0, i] @ k[0, 0, j]), abs=1e-6)
    plain = (rotate(q) @ rotate(k).transpose(-1, -2))[0, 0]
    assert torch.allclose(clipped_scores(q, k, 11)[0, 0], plain)


@pytest.mark.parametrize("scale", [0.4, torch.tensor([[0.2], [0.9]])])
@pytest.mark.parametrize("clip", [1, 5, 40])
def test_the_merged_parts_are_the_whole(scale, clip):
    q, k, v = torch.randn(3, 2, 2, 33, 8, generator=generator())
    factor = scale[..., None] if isinstance(scale, torch.Tensor) else scale
    weights = (clipped_scores(q, k, clip) * factor).softmax(-1)
    whole = weights @ v, torch.special.entr(weights).sum(-1)
    for backend in ("core", "torch"):
        found = clipped_rows(q, k, v, scale=scale, clip=clip, backend=backend)
        for one, other in zip(found, whole, strict=True):
            assert torch.allclose(one, other, atol=1e-5)


def test_every_length_reads_the_same_masked_tokens():
    windows = torch.randint(2, 40, (5, 64), generator=generator()).numpy()
    texts = hide_tokens(windows, 16, 3, generator())
    assert texts.places.shape == (5, 12)
    assert (texts.tokens == MASK).sum() == 60
    blocks = texts.places // 16
    assert all((blocks == block).sum() == 15 for block in range(4))
    assert (texts.targets != MASK).all()
    net = model("none")
    net.mix = Reading("none", [0.0, 0.0], 5, "attnscale")  # every key alike: a row knows its length alone
    found = {n: read_texts(net, texts, n) for n in (16, 32, 64)}
    assert len({each[1].shape for each in found.values()}) == 1
    for n, (right, nll) in found.items():
        logits = net(texts.tokens.view(-1, n)).view(5, 64, -1).detach()
        there = logits.gather(1, texts.places[..., None].expand(-1, -1, 40)).flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(there, texts.targets.flatten())
        assert float(nll.mean()) == pytest.approx(float(expected), abs=1e-5)
        assert 0 <= float(right.mean()) <= 1


def test_the_two_ways_to_calibrate_agree_where_nothing_is_clipped():
    net = model()
    tokens = torch.randint(2, 40, (3, 64), generator=generator())
    by_calibrate = calibrated(net, tokens, Reading("rotary", [0.35] * 2, 5, "attnscale"), 16, (16, 32, 64))
    by_halving = calibrated(net, tokens, Reading("clipped", [0.35] * 2, 64, "attnscale"), 16, (16, 32, 64))
    assert by_calibrate.shape == (3, 2, 2)
    assert np.allclose(by_calibrate[0], 1, atol=1e-3)
    assert (by_calibrate[2] > 1).all()
    assert np.allclose(by_calibrate, by_halving, atol=5e-3)


def test_no_scale_keeps_an_entropy_that_is_out_of_reach():
    even = torch.zeros(1, 1, 8, 8)
    assert np.isnan(_clipped_beta(even, 4, 4, [8])).all()


def test_source_is_split_by_file():
    corpus = library_source(300, 100_000)
    again = library_source(300, 100_000)
    names = [name for name, _ in source_files(None)]
    assert len(names) > 300
    assert not any(name.startswith(("encodings/", "pydoc_data/")) for name in names)
    assert corpus.facts == again.facts
    assert np.array_equal(corpus.train, again.train)
    facts = corpus.facts
    assert (corpus.train == FILE).sum() == facts["train"]["files"]
    assert (corpus.held_out == FILE).sum() == facts["held_out"]["files"]
    assert corpus.train.max() < corpus.vocabulary <= 300
    assert facts["train"]["sha256"] != facts["held_out"]["sha256"]


def repeated_by_hand(train, held_out, run):
    """Compare every run of tokens with the runs of the training part and of earlier files."""
    seen = {tuple(train[i : i + run]) for i in range(len(train) - run + 1)}
    found, file, of_file = np.zeros(len(held_out), bool), 0, {}
    for i in range(len(held_out) - run + 1):
        file += held_out[i] == FILE
        gram = tuple(held_out[i : i + run])
        if gram in seen or of_file.setdefault(gram, file) < file:
            found[i : i + run] = True
    return found


@pytest.mark.parametrize("run", [1, 3, 6])
def test_a_run_of_tokens_stands_in_one_place_alone(run):
    rng = np.random.default_rng(run)
    train, held_out = (rng.integers(4, size=size) for size in (60, 400))
    copied = held_out[100:130]
    train[20:50] = copied
    held_out[300:330] = copied
    found = repeated_tokens(train, held_out, run)
    assert np.array_equal(found, repeated_by_hand(train, held_out, run))
    assert found[100:130].all()
    assert not repeated_tokens(train, held_out[:2], 3).any()


def test_texts_are_of_one_file_and_not_repeated():
    held_out = np.array([FILE if i % 23 == 22 else 2 + i % 7 for i in range(230)])
    repeated = np.zeros(230, bool)
    repeated[[40, 100, 101]] = True
    streams = {"held_out": held_out, "repeated": repeated}
    texts = held_out_texts(streams, 7, 9)
    places = [np.flatnonzero((held_out[i : i + 7] == FILE) | repeated[i : i + 7]) for i in range(223)]
    allowed = {tuple(held_out[i : i + 7]) for i in range(223) if not len(places[i])}
    assert {tuple(each) for each in texts.tokens} <= allowed
    assert texts.tokens.shape == (9, 7)
    assert (np.diff(texts.files) >= 0).all()
    assert len(set(texts.files)) > 6
    with pytest.raises(ValueError, match="windows must be at most 28 of 7 tokens here, got 29"):
        held_out_texts(streams, 7, 29)
    others = other_texts(streams, 7, 20, 8)
    parted = [*held_out_texts(streams, 7, 20).tokens.tolist(), *others.tokens.tolist()]
    assert sorted(parted) == sorted(held_out_texts(streams, 7, 28).tokens.tolist())
    with pytest.raises(ValueError, match="at most 8 of 7 tokens beside 20 windows here, got 9"):
        other_texts(streams, 7, 20, 9)


def test_what_is_measured():
    result = tiny(trained=("O",)).run(seeds=2, progress=False)
    assert result.complete
    assert result.axes["positions"] == ("rotary", "none")
    standard = result.select("nll", law="standard")
    assert np.isfinite(result.select("nll", positions="rotary")).all()
    assert np.isnan(result.select("nll", positions="none", reading="clipped")).all()
    for law in ("log_n", "annealed", "entropy_invariant", "calibrated", "info_scale", "yarn"):
        assert np.array_equal(result.select("nll", law=law)[..., 0], standard[..., 0], equal_nan=True)
        assert (result.select("nll", law=law, reading="as trained")[..., 1:] != standard[..., 0, 1:]).any()
    by_text = result.select("nll_by_text")
    np.testing.assert_allclose(by_text.mean(-1), result.select("nll"), rtol=1e-6)
    files = result.select("text_file", trained="O")
    assert (files == files[0, 0]).all()  # the same texts for all seeds
    assert files.max() < len(result.facts["source"]["held_out"]["names"])
    gain = result.select("nll_gain", law="log_n") - (result.select("nll", law="log_n") - standard)
    assert np.nanmax(abs(gain)) < 1e-6
    assert result.facts["source"]["train"]["files"] > 5


def test_the_laws_of_a_reading_are_chosen():
    """Results of a law do not depend on the other laws that are read."""
    given = {"trained": ("E",), "positions": ("rotary",)}
    choices = ({}, {"laws": ("standard", "log_n")})
    every, two = (tiny(**given, **laws).run(seeds=1, progress=False) for laws in choices)
    assert two.complete
    assert "beta" not in two.variables
    for law in ("standard", "log_n"):
        assert np.array_equal(two.select("nll_by_text", law=law), every.select("nll_by_text", law=law))


def test_two_ways_to_log_n_are_compared_on_both_sides_of_a_margin():
    levels = {("E", "log_n"): 0.31, ("O", "log_n"): 0.3, ("O", "standard"): 0.25}
    first, equal = LengthGeneralization.primary().criterion().claims
    wanted = ((0.06, 0), (0.01, -0.02), (-0.01, -0.02))
    for contrast, (expected, least) in zip((*first.contrasts, *equal.contrasts), wanted, strict=True):
        value = sum(weight * levels[place["trained"], place["law"]] for weight, place in contrast.terms)
        assert value == pytest.approx(expected)
        assert contrast.least == least
        assert {place["n"] for _, place in contrast.terms} == {256}
    assert equal.needs == "all"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"laws": ("log_n",)}, "laws must begin with 'standard', got \\('log_n',\\)"),
        ({"width": 12}, "width must be a multiple of 2 \\* heads, got 12 and 4"),
        ({"lengths": (64, 100)}, "lengths must be multiples of train_length=64"),
        ({"lengths": (128,)}, "lengths must be multiples of train_length=64, that the first"),
        ({"attention": "flash"}, "attention must be one of 'attnscale', 'torch', got 'flash'"),
        ({"dtype": "half"}, "dtype must be one of 'float32', 'bfloat16', got 'half'"),
        ({"positions": ("alibi",)}, "positions must be one of 'rotary', 'none', got 'alibi'"),
        ({"calibration_windows": 0}, "calibration_windows must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_a_bad_config_is_one_line(changes, message):
    with pytest.raises(ValueError, match=message):
        LengthGeneralization(**changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_device_that_is_not_there_is_one_line():
    with pytest.raises(ValueError, match="device must be one that PyTorch sees here, got 'cuda'"):
        tiny(device="cuda").run(seeds=1, progress=False)
