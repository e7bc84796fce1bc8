# SPDX-License-Identifier: BSD-3-Clause
"""Recordings and models in several threads, which run in a given order, with right answers in float64."""

from __future__ import annotations

import contextlib
import copy
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.modules import module as every_module  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.models.spellings import WIDTH, Spelling  # noqa: E402
from tests.versions import written_for  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fixed_seed", "_nothing_left")]

#: How long a thread waits for another one before the test fails: it never does when all is well.
PATIENCE = 60
BATCH, N = 2, 5


def left_behind() -> list[Any]:
    """Hooks of all modules, and modes of this thread."""
    hooks = [x for name, x in vars(every_module).items() if name.startswith("_global_") and "hooks" in name]
    found: list[Any] = [each for each in hooks if each]
    found += _get_current_dispatch_mode_stack()
    found += [each] if (each := torch.overrides._get_current_function_mode()) is not None else []
    return found


@pytest.fixture
def _nothing_left() -> Iterator[None]:
    """After each test neither hooks nor modes are left, and this package's attention computes."""
    yield
    assert not left_behind()
    x = torch.randn(1, 2, 3, 4)
    wanted = functional.scaled_dot_product_attention(x, x, x)
    torch.testing.assert_close(at.torch.attention(x, x, x), wanted, rtol=0, atol=1e-6)


class Turns:
    """Threads go on one at a time, in the order of their numbers; without an order they do as they like."""

    def __init__(self, order: Iterable[int] = ()) -> None:
        self.order, self.changed = deque(order), threading.Condition()
        self.me = threading.local()

    def begin(self, number: int) -> None:
        self.me.number = number
        self.wait()

    def wait(self) -> None:
        """Let the others go on, up to the next turn of this thread."""
        number = getattr(self.me, "number", None)
        if number is None:
            return
        with self.changed:
            mine = self.changed.wait_for(lambda: not self.order or self.order[0] == number, PATIENCE)
            assert mine, "the other thread did not come to its turn"
            if self.order:
                self.order.popleft()
            self.changed.notify_all()

    def end(self) -> None:
        """Leave the rest to the others."""
        with self.changed:
            self.order = deque(each for each in self.order if each != self.me.number)
            self.changed.notify_all()
        self.me.number = None


TURNS = Turns()


def pause() -> None:
    """A place where another thread may go on."""
    TURNS.wait()


class Layer(Spelling):
    """Written-out attention, with pauses between its steps."""

    def forward(self, x: Any) -> Any:
        q, k, v = self.split(x)
        pause()
        scores = q @ k.mT * self.scale
        pause()
        weights = scores.softmax(-1)
        pause()
        mixed = weights @ v
        pause()
        return self.joined(mixed)


class FusedLayer(Layer):
    """Fused attention between two pauses."""

    attend = staticmethod(functional.scaled_dot_product_attention)

    def forward(self, x: Any) -> Any:
        q, k, v = self.split(x)
        pause()
        mixed = self.attend(q, k, v)
        pause()
        return self.joined(mixed)


class OurLayer(FusedLayer):
    """Attention of this package between two pauses."""

    attend = staticmethod(at.torch.attention)


class Model(nn.Module):
    """Two layers of attention."""

    def __init__(self, kind: type[Layer] = Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList([kind(), kind()])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Pausing(nn.Module):
    """A module without attention that lets others go on."""

    def forward(self, x: Any) -> Any:
        pause()
        return x.relu()


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Pausing(), nn.Linear(WIDTH, WIDTH), Pausing())


def entropies(model: Model, x: Any) -> dict[str, Any]:
    """The right rows of each layer."""
    found, x = {}, x.double()
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            (right,) = layer.right(x)
            found[f"layers.{number}"] = right.entropy()
            x = x + layer.output([right], x)
    return found


def check(rows: Any, wanted: dict[str, Any]) -> None:
    """Check that exactly these calls were recorded, with these rows."""
    assert [*rows] == [*wanted]
    for name, right in wanted.items():
        np.testing.assert_allclose(rows[name], right, rtol=0, atol=1e-5)


def inputs() -> Any:
    return torch.randn(BATCH, N, WIDTH)


def recorded(model: Model, x: Any) -> Any:
    with torch.no_grad(), at.torch.record(model) as log:
        model(x)
    return log


def together(*works: Callable[[], Any], order: Iterable[int]) -> list[Any]:
    """Run each function in its own thread; return the results, or raise the first error."""
    global TURNS
    TURNS = Turns(order)
    found: list[Any] = [None] * len(works)

    def run(number: int, work: Callable[[], Any]) -> None:
        TURNS.begin(number)
        try:
            found[number] = work()
        except BaseException as error:
            found[number] = error
        finally:
            TURNS.end()

    threads = [threading.Thread(target=run, args=each) for each in enumerate(works)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert not any(each.is_alive() for each in threads)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def orders(count: int, turns: int = 24) -> Iterator[list[int]]:
    """Orders of two threads: in turn, one inside of the other, and at random."""
    yield [0, 1] * turns
    yield [0, 0, *[1] * turns]
    yield [0, 0, 0, 1, 0, 0, 0, 0, 1]
    rng = random.Random(0)
    for _ in range(count - 3):
        yield rng.choices((0, 1), k=turns)


def without_watch(model: nn.Module, x: Any) -> Any:
    with torch.no_grad():
        return model(x)


OTHERS: dict[str, Callable[[Model], nn.Module]] = {
    "no attention": lambda model: plain(),
    "the same model": lambda model: model,
    "a copy": copy.deepcopy,
    "fused": lambda model: Model(FusedLayer),
    "this package's": lambda model: Model(OurLayer),
    "PyTorch's encoder": lambda model: nn.Sequential(
        Pausing(), nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True).eval(), Pausing()
    ),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("kind", [Layer, FusedLayer, OurLayer], ids=lambda kind: kind.__name__)
def test_a_model_in_another_thread_is_neither_seen_nor_disturbed(kind: type[Layer], other: str) -> None:
    model, x, y = Model(kind), inputs(), inputs()
    running = OTHERS[other](model)
    wanted, output = entropies(model, x), without_watch(running, y)
    for order in orders(12):
        log, found = together(lambda: recorded(model, x), lambda: without_watch(running, y), order=order)
        check(log["entropy"], wanted)
        assert len(log) == 1
        torch.testing.assert_close(found, output, rtol=0, atol=0)


@pytest.mark.parametrize("same", [True, False], ids=["the same model", "two models"])
def test_two_threads_record_at_once(same: bool) -> None:
    """200 recordings in all, each with its own rows."""
    models = [Model()] * 2 if same else [Model(), Model(FusedLayer)]
    given = inputs(), torch.randn(3, 4, WIDTH)
    wanted = [entropies(model, x) for model, x in zip(models, given, strict=True)]
    for order in orders(100):
        logs = together(
            lambda: recorded(models[0], given[0]), lambda: recorded(models[1], given[1]), order=order
        )
        for log, rows in zip(logs, wanted, strict=True):
            check(log["entropy"], rows)
            assert len(log) == 1


def test_a_block_that_is_open_does_not_see_the_model_in_another_thread() -> None:
    """Between the passes of the one that opened it, too."""
    model, x, y = Model(), inputs(), inputs()

    def passes() -> Any:
        with torch.no_grad(), at.torch.record(model) as log:
            pause()
            model(x)
            pause()
            model(y)
            pause()
        return log

    log, _ = together(
        passes, lambda: [model(x) for _ in range(3)], order=[0, *[1] * 10, *[0] * 10, *[1] * 20]
    )
    assert len(log) == 2
    for each, given in zip(log.passes, (x, y), strict=True):
        check({name: one["entropy"] for name, one in each.items()}, entropies(model, given))


def test_one_recording_inside_of_another() -> None:
    """A recording has the passes of its model that ran while it was open."""
    model, other = Model(), Model(FusedLayer)
    given = [inputs() for _ in range(3)]
    with torch.no_grad(), at.torch.record(model) as outer:
        model(given[0])
        with at.torch.record(model) as inner, at.torch.record(other) as beside:
            model(given[1])
            other(given[1])
        model(given[2])
    check(inner["entropy"], entropies(model, given[1]))
    check(beside["entropy"], entropies(other, given[1]))
    assert (len(outer), len(inner), len(beside)) == (3, 1, 1)
    for each, x in zip(outer.passes, given, strict=True):
        check({name: one["entropy"] for name, one in each.items()}, entropies(model, x))


def test_recordings_of_a_model_and_of_its_part() -> None:
    model, x = Model(), inputs()
    with torch.no_grad(), at.torch.record(model) as whole, at.torch.record(model.layers[1]) as part:
        model(x)
    wanted = entropies(model, x)
    check(whole["entropy"], wanted)
    check(part["entropy"], {"": wanted["layers.1"]})


def test_recordings_that_do_not_end_in_the_order_of_their_beginning() -> None:
    """A monitor that began before a recording ends inside of it."""
    model, x, y = Model(), inputs(), inputs()
    monitor = at.torch.Monitor(model, every=1, rows=None)
    with torch.no_grad():
        monitor.begin()
        with at.torch.record(model) as log:
            model(x)
            monitor.end(0)
            model(y)
        model(x)
    assert len(log) == 2
    check(log["entropy"], entropies(model, y))
    wanted = [rows.mean((0, 2)).numpy() for rows in entropies(model, x).values()]
    np.testing.assert_allclose(monitor["entropy"][0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("same", [True, False], ids=["the same model", "a copy"])
def test_a_trainer_with_generation_in_the_background(same: bool) -> None:
    """60 correct steps, with the weights and the generated output of an unwatched model."""
    torch.manual_seed(0)
    model = Model()
    alone, generating = copy.deepcopy(model), model if same else copy.deepcopy(model)
    texts = [inputs() for _ in range(60)]

    def trained(model: Model, monitor: Any = None) -> Any:
        optimizer, wanted = torch.optim.SGD(model.parameters(), lr=1e-3), []
        for x in texts:
            wanted.append([rows.mean((0, 2)).numpy() for rows in entropies(model, x).values()])
            with monitor.step() if monitor is not None else contextlib.nullcontext():
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return wanted

    def generated() -> None:
        for x in texts:
            without_watch(generating, x[:, -1:])

    monitor = at.torch.Monitor(model, every=1, rows=None, min_entropy=None, max_score=None)
    wanted, _ = together(lambda: trained(model, monitor), generated, order=[*orders(4, 400)][-1])
    np.testing.assert_allclose(monitor["entropy"], wanted, rtol=0, atol=1e-5)
    trained(alone)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_two_trainers_with_monitors() -> None:
    models = [Model(), Model(FusedLayer)]
    monitors = [at.torch.Monitor(each, every=2, rows=None) for each in models]
    given = [[inputs() for _ in range(6)] for _ in models]

    def steps(number: int) -> Any:
        for x in given[number]:
            with monitors[number].step():
                models[number](x).sum().backward()

    together(lambda: steps(0), lambda: steps(1), order=[*orders(4, 100)][-1])
    for monitor, model, texts in zip(monitors, models, given, strict=True):
        wanted = [[rows.mean((0, 2)).numpy() for rows in entropies(model, x).values()] for x in texts[::2]]
        assert monitor.modules == ["layers.0", "layers.1"]
        np.testing.assert_allclose(monitor["entropy"], wanted, rtol=0, atol=1e-5)


# ---- threads that PyTorch starts for the one that records


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "by saved tensors"])
def test_recomputation_in_a_checkpoint_is_recorded_once(reentrant: bool) -> None:
    """Passes that a backward pass repeats add no call, in another thread either, as for a device."""

    class Saving(Model):
        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = x + checkpoint(layer, x, use_reentrant=reentrant)
            return x

    model = Saving()
    x = inputs().requires_grad_()
    with at.torch.record(model) as log:
        loss = model(x).square().sum()
        loss.backward(retain_graph=not reentrant)
        if not reentrant:
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join(PATIENCE)
    assert len(log) == 1
    check(log["entropy"], entropies(model, x.detach()))


def test_another_thread_computes_gradients_through_checkpoints_meanwhile() -> None:
    model, other, x = Model(), Layer(), inputs()

    def backward() -> Any:
        y = x.clone().requires_grad_()
        checkpoint(other, y, use_reentrant=False).square().sum().backward()
        return y.grad

    wanted = backward()
    for order in orders(8):
        log, found = together(lambda: recorded(model, x), backward, order=order)
        check(log["entropy"], entropies(model, x))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``parallel_apply`` take the CPU for its device."""
    from torch.nn.parallel import parallel_apply as run

    where = __import__("sys").modules[run.__module__].torch.accelerator
    monkeypatch.setattr(where, "current_stream", lambda device=None: contextlib.nullcontext())
    monkeypatch.setattr(where, "device_index", lambda device=None: contextlib.nullcontext())
    monkeypatch.setattr(where, "is_available", lambda: True)
    monkeypatch.setattr(where, "current_accelerator", lambda: torch.device("cpu"))


class OnReplicas(nn.Module):
    """Replicas of a module, each in a thread with its part of the batch, as in DataParallel."""

    def __init__(self, module: Model) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        from torch.nn.parallel.parallel_apply import parallel_apply

        return torch.cat(parallel_apply([self.replica() for _ in range(2)], [(each,) for each in x.chunk(2)]))

    def replica(self) -> Any:
        copies = {each: each._replicate_for_data_parallel() for each in self.module.modules()}
        for each, copied in copies.items():
            for name, child in each._modules.items():
                copied._modules[name] = copies[child]
            for name, parameter in each._parameters.items():
                setattr(copied, name, parameter)  # a replica has tensors in their place
        return copies[self.module]


@written_for("torch>=2.13")  # that of 2.6 asks for a driver of CUDA
def test_replicas_in_threads_are_recorded_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu(monkeypatch)
    model, x = OnReplicas(Model()), torch.randn(4, N, WIDTH)
    wanted = entropies(model.module, x)
    output = without_watch(model, x)
    with torch.no_grad(), at.torch.record(model) as log:
        found = model(x)
    torch.testing.assert_close(found, output, rtol=0, atol=0)
    names = [f"module.{name}{call}" for name in wanted for call in ("", "#1")]
    assert sorted(log.modules) == sorted(names)
    for name, right in wanted.items():
        rows = [log["entropy"][f"module.{name}{call}"] for call in ("", "#1")]
        found = np.sort(np.concatenate(rows), axis=0)  # their order is not promised
        np.testing.assert_allclose(found, np.sort(right, axis=0), rtol=0, atol=1e-5)


@written_for("torch>=2.13")
def test_threads_of_others_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas of an unrecorded model run in threads while another model is recorded."""
    on_cpu(monkeypatch)
    model, other, x = Model(), OnReplicas(Model()), torch.randn(4, N, WIDTH)
    output = without_watch(other, x)
    for order in orders(6):
        log, found = together(lambda: recorded(model, x), lambda: without_watch(other, x), order=order)
        check(log["entropy"], entropies(model, x))
        torch.testing.assert_close(found, output, rtol=0, atol=0)


# ---- errors


class Stop(BaseException):
    """An error that no handler of errors catches, like Ctrl-C."""


class Failing(Model):
    """An error between the two layers."""

    error: type[BaseException] = RuntimeError

    def forward(self, x: Any) -> Any:
        x = self.layers[0](x)
        pause()
        raise self.error("stop")


@pytest.mark.parametrize("error", [RuntimeError, Stop])
@pytest.mark.parametrize("deep", [False, True], ids=["model", "part"])
def test_an_error_in_the_model_leaves_nothing_behind(error: type[BaseException], deep: bool) -> None:
    failing = Failing()
    failing.error = error
    model = nn.Sequential(failing) if deep else failing
    x = inputs()
    for _ in range(2):
        with pytest.raises(error, match="stop"), at.torch.record(model):
            model(x)
        assert not left_behind()
        assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    other = Model()
    check(recorded(other, x)["entropy"], entropies(other, x))


def test_an_error_that_the_block_survives_ends_its_pass() -> None:
    """The next pass is recorded as ever."""
    failing, model, x = Failing(), Model(), inputs()
    both = nn.ModuleDict({"failing": failing, "model": model})
    with torch.no_grad(), at.torch.record(both) as log:
        with pytest.raises(RuntimeError, match="stop"):
            failing(x)
        model(x)
    rows = {name.removeprefix("model."): each for name, each in log["entropy"].items()}
    check(rows, entropies(model, x))


@pytest.mark.parametrize("which", ["the one that records", "the other one"])
def test_an_error_in_one_thread_leaves_others_alone(which: str) -> None:
    model, failing, x = Model(), Failing(), inputs()
    output = without_watch(model, x)

    def fails(watched: bool) -> None:
        with pytest.raises(RuntimeError, match="stop"):
            recorded(failing, x) if watched else without_watch(failing, x)

    for order in orders(8):
        if which == "the other one":
            log, _ = together(lambda: recorded(model, x), lambda: fails(False), order=order)
            check(log["entropy"], entropies(model, x))
        else:
            _, found = together(lambda: fails(True), lambda: without_watch(model, x), order=order)
            torch.testing.assert_close(found, output, rtol=0, atol=0)
        assert not left_behind()


def test_an_error_in_a_step_leaves_nothing_behind() -> None:
    failing, model, x = Failing(), Model(), inputs()
    both = nn.ModuleDict({"failing": failing, "model": model})
    monitor = at.torch.Monitor(both, every=1)
    with pytest.raises(RuntimeError, match="stop"), monitor.step():
        failing(x)
    assert not left_behind()
    with monitor.step():
        model(x)
    assert monitor.steps == [1]
    assert monitor.modules == ["model.layers.0", "model.layers.1"]


def test_a_monitor_that_is_forgotten_while_it_records_leaves_nothing_behind() -> None:
    model, x = Model(), inputs()
    monitor = at.torch.Monitor(model, every=1)
    monitor.begin()
    model(x)
    monitor.cancel()
    del monitor
    assert not left_behind()
    check(recorded(model, x)["entropy"], entropies(model, x))


def test_a_thread_may_end_with_its_block_open() -> None:
    """A recording that is never closed keeps to the thread that opened it."""
    model, x = Model(), inputs()
    kept: list[Any] = []

    def opens() -> None:
        block = at.torch.record(model)
        block.__enter__()
        kept.append(block)
        model(x)

    together(opens, order=[])
    output = without_watch(model, x)
    check(recorded(model, x)["entropy"], entropies(model, x))
    kept.pop().__exit__(None, None, None)
    torch.testing.assert_close(without_watch(model, x), output, rtol=0, atol=0)


def test_calls_beside_the_model_in_the_block_are_not_recorded() -> None:
    """Another model before, between and inside of hooks, in the same thread."""
    model, other, x = Model(), Model(FusedLayer), inputs()
    inside = model.layers[0].register_forward_hook(lambda *_: [without_watch(other, x), None][1])
    with torch.no_grad(), at.torch.record(model) as log:
        other(x)
        model(x)
        at.torch.attention(*torch.randn(3, 1, 2, 4, 8))
    inside.remove()
    check(log["entropy"], entropies(model, x))
    assert len(log) == 1
