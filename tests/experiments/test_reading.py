"""Experiments on one layer that reads: context (T17), length_tasks (T15), recall (T27)."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from studies import stored  # noqa: E402
from studies.context import Context, _length  # noqa: E402
from studies.data import graph_data, tasks  # noqa: E402
from studies.length_tasks import LengthTasks  # noqa: E402
from studies.models.reader import Reader  # noqa: E402
from studies.recall import Recall  # noqa: E402

pytestmark = pytest.mark.torch

SMALL = {
    "context": Context(steps=4, batch=8, lengths=(32, 64), tests=100),
    "length_tasks": LengthTasks(stages=(2, 5), batch=8, lengths=(16, 40), tests=50),
    "recall": Recall(pairs=(4, 32), steps=4, batch=8, tests=100),
}


def train(study, seeds=1, **options):
    return study.run(seeds, progress=False, **options)


@pytest.mark.parametrize("name", SMALL)
def test_ours_and_pytorch_train_alike(name):
    ours = train(SMALL[name])
    theirs = train(replace(SMALL[name], attention="torch"))
    assert ours.complete
    for variable in ("nll", "effective_keys"):
        np.testing.assert_allclose(ours.arrays[variable], theirs.arrays[variable], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_decides(name):
    cell = "task=context,trained=log_n" if name == "context" else None
    study = replace(SMALL[name], variants=SMALL[name].variants[:1]) if name != "context" else SMALL[name]
    one, other = (train(study, seeds=2, only=cell) for _ in range(2))
    assert np.array_equal(one.arrays["nll"], other.arrays["nll"], equal_nan=True)
    by_seed = one.arrays["nll"][np.isfinite(one.arrays["nll"])]
    assert len(np.unique(by_seed)) > by_seed.size / 3  # laws agree at the length of the training


def test_laws_share_weights_and_contexts():
    found = train(SMALL["context"], only="task=context,own_key=seen,trained=one length")
    nll = found.select("nll", task="context", own_key="seen", trained="one length", seed=0)
    standard, log_n, annealed, twice = nll
    assert standard[0] == log_n[0] == annealed[0] != twice[0]  # n = 32, where all but the last are 1
    assert len({standard[1], log_n[1], annealed[1], twice[1]}) == 4


def test_weights_that_are_dealt_to_other_tokens():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Reader(features=5, labels=3, width=8, heads=1, law="log_n(base=3)")
    generator = torch.Generator().manual_seed(1)
    query, tokens = (torch.randn(4, n, 5, generator=generator) for n in (1, 9))
    order = torch.rand(4, 9, generator=generator).argsort(-1)
    asks, seen = model.query(model.embed(query)), model.key_value(model.embed(tokens))
    weights = (asks @ seen[..., :8].mT * 2 / 8**0.5).softmax(-1)  # log_3(9) = 2
    dealt = torch.zeros_like(weights).scatter(-1, order[:, None], weights)
    with torch.no_grad():
        found = model(query, tokens, order=order)[0]
        assert torch.allclose(found, model.answer(dealt @ seen[..., 8:]), atol=1e-5)
        assert not torch.allclose(found, model(query, tokens)[0], atol=1e-2)
        equal = [model(query, tokens, law=0.0, order=each)[0] for each in (None, order)]
    assert torch.allclose(*equal, atol=1e-6)


def test_tilt_and_variance_are_told_apart():
    lengths, laws = (32, 64), ("own", "log_n", "annealed")
    small = {"steps": 40, "batch": 8, "tests": 300, "lengths": lengths, "train_lengths": lengths}
    study = replace(Context.many_lengths(), **small)
    found = train(study, only=["trained=log_n", "trained=one length", "trained=ssmax_b"])
    cell = {"task": "context", "own_key": "seen", "seed": 0}
    dealt = found.select("by_weights", trained="one length", **cell)
    accuracy = found.select("accuracy", trained="one length", **cell)
    assert np.array_equal(dealt[0], accuracy)
    assert (dealt[2] == dealt[2, 0]).all()  # equal weights know no law
    assert (dealt[1] != dealt[0]).all()
    np.testing.assert_array_equal(found.select("own_factor", trained="log_n", **cell), [1, 1.2])
    s_and_b = found.select("own_factor", trained="ssmax_b", **cell)
    assert 0 < abs(s_and_b[1] - s_and_b[0]) < 0.5
    under = found.select("nll", trained="log_n", **cell)
    np.testing.assert_allclose(under[0], under[1], rtol=1e-6)  # its own law is log n
    assert under[0, 1] != found.select("nll", trained="one length", **cell)[laws.index("log_n"), 1]


def test_lengths_of_trainings():
    draws = torch.Generator().manual_seed(0)
    for study, expected in (
        (Context(), set(range(8, 33))),
        (Context.many_lengths(), {32, 64, 128, 256, 512, 1024}),
    ):
        assert {_length(study, draws) for _ in range(400)} == expected


def test_neighbours_agree_as_often_in_graphs_and_contexts():
    generator = torch.Generator().manual_seed(0)
    means = graph_data.class_means(generator)
    drawn = graph_data.graph(1024, 256, means, generator)
    assert torch.equal(drawn.neighbours, drawn.neighbours.T)
    assert not drawn.neighbours.diagonal().any()
    degree = drawn.neighbours.sum(1).double().mean()
    assert 250 < degree < 262
    same = drawn.label[0][:, None] == drawn.label[0]
    share = float((same & drawn.neighbours).sum() / drawn.neighbours.sum())
    assert abs(share - (0.22 + 0.78 / 8)) < 0.02
    rows = graph_data.context(2000, 33, torch.eye(8, 16) * 100, generator)
    classes = rows.tokens[..., :8].argmax(-1)
    assert torch.equal(classes[:, 0], rows.label)
    assert abs(float((classes[:, 1:] == rows.label[:, None]).double().mean()) - (0.22 + 0.78 / 8)) < 0.01


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("task", ["context", "graph", "needle"])
def test_a_masked_node_does_not_read_itself(task, seen):
    generator = torch.Generator().manual_seed(0)
    means = graph_data.class_means(generator)
    cell = {"task": task, "own_key": "seen" if seen else "masked"}
    read = graph_data.questions(cell, 32, 5, means, generator, "cpu")
    if task == "graph":
        assert read.mask.diagonal().all() == seen
        assert abs(float(read.mask.sum(1).double().mean()) - 32) < 3
        return
    assert read.tokens.shape[1] == 32
    assert bool((read.tokens == read.query).all(-1).any()) == seen


@pytest.mark.parametrize("n", [2, 3, 16, 101])
@pytest.mark.parametrize("name", tasks.TASKS)
def test_answers_of_the_tasks(name, n):
    task = tasks.TASKS[name]
    query, tokens, label = task.draw(400, n, torch.Generator().manual_seed(n))
    assert query.shape == (400, task.features)
    assert tokens.shape == (400, n, task.features)
    assert len(label.unique()) == task.labels
    if name in ("first", "majority"):
        ones = tokens[..., 1]
        right = ones[:, 0] if name == "first" else ones.mean(1) > 0.5
        assert torch.equal(label, right.long())
        assert name == "first" or (ones.mean(1) != 0.5).all()
    elif name == "needle":
        nearest = (tokens[..., : tasks.CODE] @ query[:, : tasks.CODE, None]).argmax(1)[:, 0]
        found = tokens[torch.arange(400), nearest, tasks.CODE :].argmax(-1)
        assert (found == label).double().mean() > 0.97


@pytest.mark.parametrize(
    ("study", "message"),
    [
        (lambda: Context(tasks=("graphs",)), r"unknown tasks 'graphs'|tasks must be"),
        (lambda: Context(lengths=(16,)), r"lengths must be at least train_length.*\(16,\) and 32"),
        (lambda: Context(steps=0), "steps must be"),
        (lambda: Context(laws=("ssmax",)), "laws must be|unknown laws"),
        (lambda: Context(train_lengths=(4, 8)), r"train_lengths must be at least 8, got \(4, 8\)"),
        (lambda: Context(apart=True), r"apart must be False where tasks has 'graph', got True"),
        (lambda: Context(dtype="float64"), "dtype must be one of 'float32', 'bfloat16', got 'float64'"),
        (lambda: LengthTasks(stages=(5, 5)), r"stages must be growing positive integers, got \(5, 5\)"),
        (lambda: LengthTasks(variants=("softmax",)), "variants"),
        (lambda: Recall(variants=("2 dots",)), "dots"),
        (lambda: Recall(variants=("x dot",)), r"written as in 'dot \+ 3 efficient', got 'x dot'"),
        (lambda: Recall(pairs=(65,)), r"pairs must be between 2 and symbols=64, got \(65,\)"),
        (lambda: Recall(variants=("3 dot",)), "width must be a multiple of the heads, got 64 and '3 dot'"),
    ],
)
def test_bad_fields(study, message):
    with pytest.raises(ValueError, match=message):
        study()


@pytest.mark.maintainer
@pytest.mark.slow
def test_the_reduced_run_is_within_the_stored_error_bars():
    """The reduced runs of contexts and of recall are checked in their notebooks."""
    kept = stored("length_tasks", "reduced")["accuracy"]
    again = train(LengthTasks.reduced(), seeds=[100])["accuracy"].value
    spread = kept.standard_error * np.sqrt(kept.seeds + 1)  # of one model, and of the mean
    assert (abs(again - kept.value) <= 4 * spread + 0.02).all()
