# SPDX-License-Identifier: BSD-3-Clause
"""The frame of the experiments: seeds, store, checkpoints, results."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attnscale import SweepError, SweepInterrupted, experiments  # noqa: E402
from attnscale.experiments import Training, TrainingResult, find  # noqa: E402
from tiny import Checkpoints, Loop, Tiny, units  # noqa: E402

pytestmark = pytest.mark.torch

HERE = Path(__file__).parent


def train(study=None, seeds=2, **options):
    return (study or Tiny()).run(seeds, progress=False, **options)


def failing(error):
    """A measurement of Tiny that raises if the slope is negative."""
    measure = Tiny.measure

    def measured(study, cell, seed, training):
        if cell["slope"] < 0:
            raise error
        return measure(study, cell, seed, training)

    return measured


def same(one, other):
    return all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)


def test_the_seed_decides():
    first = train()
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    again = train()
    assert same(first, again)
    assert torch.equal(state, torch.random.get_rng_state())  # and nobody else's numbers are touched
    assert len(np.unique(first.arrays["last"])) == 4
    assert first.complete


def test_a_model_does_not_depend_on_the_others():
    alone = train(seeds=[1], only="slope=-2.0")
    one, other = (each.select("loss", slope=-2.0, seed=1) for each in (alone, train()))
    assert np.array_equal(one, other)
    assert not alone.complete
    assert "1 of 2 models are not trained" in str(alone)


def test_mean_and_error():
    result = train(seeds=3)
    values = result.arrays["last"]
    assert np.allclose(result["last"].value, values.mean(1))
    assert np.allclose(result["last"].standard_error, values.std(1, ddof=1) / 3**0.5)
    assert np.isnan(train(seeds=1)["last"].standard_error).all()


_KILLED = """
import os, signal, sys
sys.path.insert(0, {here!r})
from tiny import Loop, Tiny
advance = Loop.advance
def dying(loop):
    if loop.step == {step} and loop.schedule.steps == {of}:
        os.kill(os.getpid(), signal.SIGKILL)
    advance(loop)
Loop.advance = dying
Tiny().run(1, store={store!r}, checkpoint_seconds=0.0, progress=False)
"""


@pytest.mark.parametrize(("step", "of"), [(7, 12), (2, 3)])
def test_killed_in_the_middle_it_ends_equal(tmp_path, step, of):
    code = _KILLED.format(here=str(HERE), step=step, of=of, store=str(tmp_path / "store"))
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ended.returncode == -signal.SIGKILL
    kept = [path.name for path in (tmp_path / "store" / "checkpoints").glob("*.pt")]
    assert len(kept) == (1 if of == 12 else 2)
    resumed = train(seeds=1, store=tmp_path / "store")
    assert same(resumed, train(seeds=1))
    assert not list((tmp_path / "store" / "checkpoints").glob("*.pt"))


def test_a_resumed_training_does_not_begin_again(tmp_path, monkeypatch):
    code = _KILLED.format(here=str(HERE), step=7, of=12, store=str(tmp_path / "store"))
    subprocess.run([sys.executable, "-c", code])
    steps = []
    advance = Loop.advance
    monkeypatch.setattr(Loop, "advance", lambda loop: (steps.append(loop.step), advance(loop)))
    train(seeds=1, only="slope=1.0", store=tmp_path / "store")
    assert steps == [*range(7, 12), 0, 1, 2]


def test_a_store_is_not_computed_again(tmp_path, monkeypatch):
    first = train(store=tmp_path)
    monkeypatch.setattr(Tiny, "measure", lambda *_: pytest.fail("measured again"))
    assert same(first, train(store=tmp_path))


def test_processes_share_a_store(tmp_path):
    train(store=tmp_path, only="seed=0")
    train(store=tmp_path, only=["slope=1.0,seed=1", "slope=-2.0,seed=1"])
    assert same(train(store=tmp_path), train())


def test_a_store_of_another_config_is_refused(tmp_path):
    train(Tiny(steps=3), store=tmp_path, seeds=1)
    with pytest.raises(ValueError, match="config has 'steps' = 3 and not 12; choose another directory"):
        train(store=tmp_path, seeds=1)


def test_unknown_models_are_refused():
    with pytest.raises(ValueError, match="only must name models of the experiment, got 'slope=7'"):
        train(only="slope=7")
    with pytest.raises(ValueError, match=r"written AXIS=LABEL,\.\.\. with axes slope, seed, got 'x'"):
        train(only="x")


@pytest.mark.parametrize("seeds", [0, [], [1, 1], [-1]])
def test_bad_seeds(seeds):
    with pytest.raises(ValueError, match="seeds must be"):
        train(seeds=seeds)


def test_what_is_measured_is_checked(monkeypatch):
    monkeypatch.setattr(Tiny, "measure", lambda *_: {"last": 1.0})
    with pytest.raises(SweepError, match="measure must return"):
        train()


def test_saved_and_loaded(tmp_path):
    result = train()
    result.save(tmp_path / "tiny.json")
    loaded = TrainingResult.load(tmp_path / "tiny.json")
    assert loaded.axes == result.axes
    assert loaded.facts == {"rows": 8}
    assert loaded.provenance[0]["models"] == 4
    assert np.allclose(loaded.arrays["loss"], result.arrays["loss"], rtol=1e-5)
    assert str(loaded) == str(result)
    assert loaded.to_xarray()["loss"].sel(slope=1.0, seed=0).shape == (12,)


def test_models_that_are_trained_come_with_the_error_of_the_others(monkeypatch):
    monkeypatch.setattr(Tiny, "measure", failing(ArithmeticError("downhill")))
    with pytest.raises(SweepError) as raised:
        train(seeds=1)
    assert str(raised.value) == (
        "1 of 2 models failed, the first at slope=-2.0, seed=0: ArithmeticError: downhill "
        "(1 are finished; store=DIR keeps them)"
    )
    assert not raised.value.partial.complete
    assert np.isfinite(raised.value.partial.to_xarray()["loss"].sel(slope=1.0)).all()


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'stor'; did you mean 'store'"):
        train(stor="x")


def test_processes_make_no_difference():
    assert same(train(n_jobs=2), train())


def test_ctrl_c_leaves_what_is_finished(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Tiny, "measure", failing(KeyboardInterrupt()))
        result = train(seeds=1, store=tmp_path)
        assert result.interrupted
        assert not result.complete
        with pytest.raises(SweepInterrupted, match="0 of 1 models are finished; store=DIR keeps them"):
            train(seeds=1, only="slope=-2.0")
    assert same(train(seeds=1, store=tmp_path), train(seeds=1))


def test_a_model_of_another_process_is_left_to_it(tmp_path):
    holder = (
        "import fcntl, sys, time; stream = open(sys.argv[1], 'a'); fcntl.lockf(stream, fcntl.LOCK_EX);"
        "print('held', flush=True); time.sleep(60)"
    )
    train(seeds=1, store=tmp_path, only="slope=1.0")
    _, cases = units(Tiny(), 1)
    path = tmp_path / "checkpoints" / f"{cases[1].digest[:32]}.lock"
    with subprocess.Popen([sys.executable, "-c", holder, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        result = train(seeds=1, store=tmp_path)
        process.kill()
    assert not result.complete
    assert train(seeds=1, store=tmp_path).complete


def test_a_figure_has_a_line_for_each_point():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    result = train()
    try:
        ax = result.plot("weight")
        assert ax.get_legend_handles_labels()[1] == ["slope 1", "slope -2"]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("feature", "weight")
        line = ax.containers[1].lines[0]
        assert np.array_equal(line.get_ydata(), result["weight"].value[1])
        line = result.plot("weight", x="slope", feature=2).containers[0].lines[0]
        assert np.array_equal(line.get_ydata(), result["weight"].value[::-1, 2])  # from -2 to 1
        assert result.plot("loss", slope=1.0).get_ylabel() == "loss (nat)"
        with pytest.raises(KeyError, match="slope must be one of"):
            result.plot("loss", slope=7)
        with pytest.raises(ValueError, match="x must be one of slope, step, got 'seed'"):
            result.plot("loss", x="seed")
    finally:
        pyplot.close("all")


def test_select_names_what_is_wrong():
    result = train()
    assert result.select("loss", slope=-2.0, step=3).shape == (2,)
    with pytest.raises(KeyError, match="'losses'; tiny measures last, loss, weight"):
        result.select("losses")
    with pytest.raises(KeyError, match="'n' is no axis of loss, which has slope, seed, step"):
        result.select("loss", n=3)


def test_a_loss_that_is_not_finite_ends_the_training():
    training = Training(seed=0)
    weight = torch.nn.Linear(1, 1)

    def loss(step):
        return weight.weight.sum() * (float("inf") if step >= 5 else 1.0)

    history = training.fit(weight, loss, steps=200)
    assert history.diverged
    assert np.isfinite(history.loss[:5]).all()
    assert np.isnan(history.loss[5:]).all()
    with pytest.raises(ValueError, match="name must differ for each training of a unit"):
        training.fit(weight, lambda step: weight.weight.sum(), steps=1)


def test_a_run_that_is_not_stored_is_told_from_those_that_are():
    said = r"^did you mean 'sizes'\? run of hybrids must be one of 'full', 'cpu', .*'sizee'$"
    with pytest.raises(ValueError, match=said):
        find("hybrids").stored("sizee")
    assert find("context").stored("lengths").claim == find("context").stored().claim
    with pytest.raises(ValueError, match=r"run of tiny must be stored, got 'full': there is no .*tiny"):
        Tiny.stored()
    with pytest.raises(ValueError, match="result must be one of tiny, got one of recall"):
        Tiny.completed(find("recall").stored())


def test_every_study_of_the_repository_is_the_one_of_its_file():
    for name in experiments.names():
        study = find(name)
        assert (study.name, study.__module__) == (name, f"studies.{name}")
        assert study().question
        assert not study().is_reduced()
        assert study.reduced().is_reduced()


TWO = """
from dataclasses import dataclass
from tiny import Tiny

@dataclass(frozen=True)
class One(Tiny):
    question = "one?"

@dataclass(frozen=True)
class Other(Tiny):
    question = "other?"
"""


def test_a_file_has_the_study_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    two, none = tmp_path / "two_of_them.py", tmp_path / "none_of_them.py"
    two.write_text(TWO)
    none.write_text("from tiny import Tiny\n")
    assert find(f"{two}:Other").question == "other?"
    assert find(HERE / "tiny.py") is Tiny
    for text, said in {
        str(two): r"one class of attnscale.experiments.Study, got 2: One, Other; write .*:CLASS",
        f"{two}:Otherr": "did you mean 'Other'",
        str(none): "with one class of attnscale.experiments.Study, got 0$",
        str(tmp_path / "absent.py"): "study must be a file, got '.*absent.py', which does not exist",
        "recalls": "did you mean 'recall'",
    }.items():
        with pytest.raises(ValueError, match=said):
            find(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="; run it in a clone of the repository, got the working directory"):
        find("recall")


def test_a_registration_is_of_the_files_that_a_study_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "own"
    folder.mkdir()
    for name, text in {"a_study": f"import part_of_it\n{TWO}", "part_of_it": "", "not_of_it": ""}.items():
        (folder / f"{name}.py").write_text(text)
    study = find(f"{folder / 'a_study.py'}:One")()
    hashes = []
    for changed in (None, "not_of_it", "part_of_it"):
        if changed is not None:
            (folder / f"{changed}.py").write_text("x = 1\n")
        hashes.append(study.register(tmp_path / "plan.json"))
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_class_that_is_no_study_is_refused():
    with pytest.raises(TypeError, match="Mute must have a question, as text, got none"):
        type("Mute", (experiments.Study,), {})
    with pytest.raises(TypeError, match="abstract method"):
        type("Empty", (experiments.Study,), {"question": "?"})()
    with pytest.raises(ValueError, match="Other has no reduced run"):
        type("Other", (experiments.Study,), {"question": "?"}).reduced()


def test_ctrl_c_in_a_step_keeps_that_step(tmp_path):
    model = torch.nn.Linear(2, 1)

    def loss(step):
        if step == 5:
            signal.raise_signal(signal.SIGINT)
        return model(torch.ones(1, 2)).square().mean()

    checkpoints = Checkpoints(tmp_path, "unit", seconds=1e9)  # none is due
    with pytest.raises(KeyboardInterrupt):
        Training(0, checkpoints=checkpoints).fit(model, loss, steps=20)
    assert checkpoints.read("fit")["step"] == 6
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
