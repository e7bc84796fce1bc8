# SPDX-License-Identifier: BSD-3-Clause
"""at.torch.Monitor: recordings of a model in training, which stays as it is, and alarms."""

from __future__ import annotations

import csv
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from tests.models.spellings import WIDTH, fused, products  # noqa: E402
from tests.tensors.recording import calls, readings, tally  # noqa: E402
from tools.audit import oracle  # noqa: E402

# transformers and torch warn about their own affairs while they load and run.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]

IDS = torch.arange(3, 63).repeat(2, 1) * torch.tensor([[7], [11]]) % 60 + 3  # two texts of 60 tokens
STATISTICS = ("entropy", "max_score", "concentration", "lse")
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("gpt2", "sdpa", {}),
    ("gpt2", "eager", {}),
    ("gpt2", "attnscale", {}),
    ("llama", "sdpa", {}),  # grouped queries
    ("mistral", "sdpa", {"sliding_window": 16}),
    ("mistral", "attnscale", {"sliding_window": 16}),
    ("gemma2", "eager", {"sliding_window": 16, "attn_logit_softcapping": 5.0}),
    ("gpt_oss", "eager", {"sliding_window": 16}),  # sinks
    ("bert", "sdpa", {}),
    ("t5", "eager", {}),  # a relative position bias
]


def label(case: Any) -> str:
    return case if isinstance(case, str) else ",".join(case)


def build(kind: str, implementation: str = "sdpa", **keys: Any) -> Any:
    model, _ = oracle.build(kind, **keys)
    model = model.encoder if kind == "t5" else model
    at.torch.register()
    model.set_attn_implementation(implementation)
    return model.eval()


def small(**keys: Any) -> Any:
    """A model with a loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=32, n_head=2, n_layer=2, vocab_size=64, bos_token_id=0, eos_token_id=0, **keys)
    return GPT2LMHeadModel(config)


def padded() -> Any:
    """The first text has padding behind it, the second in front of it."""
    mask = torch.ones_like(IDS)
    mask[0, 50:] = 0
    mask[1, :10] = 0
    return mask


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(("kind", "implementation", "keys"), CASES, ids=label)
def test_monitor_agrees_with_record(
    kind: str, implementation: str, keys: dict[str, Any], masked: bool
) -> None:
    model = build(kind, implementation, **keys)
    inputs = {"input_ids": IDS} | ({"attention_mask": padded()} if masked else {})
    some, whole = (
        at.torch.Monitor(model, every=1, rows=rows, statistics=STATISTICS, max_score=None)
        for rows in (5, None)
    )
    with torch.no_grad():
        with some.step(), whole.step():
            model(**inputs)
        with at.torch.record(model, statistics=STATISTICS) as log:
            model(**inputs)
    real = padded().bool().numpy() if masked else np.ones(IDS.shape, bool)
    spread = (
        [9, 19, 29, 39, 49] if masked else [11, 23, 35, 47, 59]
    )  # the padding of the first text is behind
    for name in STATISTICS:
        rows = np.moveaxis(log[name].astype(float), 2, -1)[:, real]
        want = rows.max(axis=1) if name == "max_score" else rows.mean(axis=1)
        np.testing.assert_allclose(whole[name][0], want, rtol=2e-5, atol=2e-5)
        first = log[name][:, 0][..., spread].astype(float)
        want = first.max(-1) if name == "max_score" else first.mean(-1)
        np.testing.assert_allclose(some[name][0], want, rtol=2e-5, atol=2e-5)
    assert some.modules == [*log.modules]


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "attnscale"])
def test_the_model_computes_the_same_bits(implementation: str) -> None:
    found = []
    at.torch.register()
    for watched in (False, True):
        torch.manual_seed(1)
        model = small()  # with dropout, whose masks are drawn in order
        model.set_attn_implementation(implementation)
        monitor = at.torch.Monitor(model, every=2)
        with monitor.step(0 if watched else 1):
            loss = model(input_ids=IDS, labels=IDS).loss
        assert monitor.steps == [0] * watched
        loss.backward()
        found.append([loss, *(each.grad for each in model.parameters())])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_steps_are_counted_and_only_requested_ones_are_recorded() -> None:
    model = small()
    monitor = at.torch.Monitor(model, every=3)
    for _ in range(8):
        with monitor.step():
            model(input_ids=IDS)
    with monitor.step(30):
        model(input_ids=IDS)
    model(input_ids=IDS)  # outside of a step: an evaluation
    assert monitor.steps == [0, 3, 6, 30]
    assert monitor["entropy"].shape == (4, 2, 2)
    assert len(monitor) == 4


def test_forward_passes_of_a_step_are_one_recording() -> None:
    """Accumulated gradients: means over all rows, the largest of the scores."""
    model = small().eval()
    one, other, both = (at.torch.Monitor(model, every=1) for _ in range(3))
    with both.step():
        with one.step():
            model(input_ids=IDS[:1])
        with other.step():
            model(input_ids=IDS[1:])
    np.testing.assert_allclose(both["entropy"], (one["entropy"] + other["entropy"]) / 2, rtol=1e-12)
    np.testing.assert_array_equal(both["max_score"], np.maximum(one["max_score"], other["max_score"]))


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_by_checkpointing_is_not_recorded_again(reentrant: bool) -> None:
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = small(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0).train()
        if checkpointing:
            old = model.gradient_checkpointing_enable
            getattr(model, "activation_checkpointing_enable", old)({"use_reentrant": reentrant})
        monitor = at.torch.Monitor(model, every=1)
        with monitor.step():
            model(input_ids=IDS, labels=IDS).loss.backward()
        found.append((monitor["entropy"], [each.grad for each in model.parameters()]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other)


def test_an_error_in_a_step_leaves_nothing_behind() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model = small()
    before = dict(ALL_ATTENTION_FUNCTIONS)
    monitor = at.torch.Monitor(model, every=1)
    for where in (model.lm_head, torch.nn.Identity()):
        with (
            where.register_forward_pre_hook(lambda *_: stop()),
            pytest.raises(RuntimeError, match="stop"),
            monitor.step(),
        ):
            torch.nn.Sequential(model, where)(IDS)  # an error inside of the model, or behind it
        assert dict(ALL_ATTENTION_FUNCTIONS) == before
        assert ALL_ATTENTION_FUNCTIONS._local_mapping == {}
        assert not model._forward_hooks
        assert not model._forward_pre_hooks
    assert monitor.steps == []
    with monitor.step():
        model(input_ids=IDS)
    assert monitor.steps == [2]  # the steps that failed count


def stop() -> None:
    raise RuntimeError("stop")


def test_another_model_that_runs_in_between_is_not_recorded() -> None:
    model, other = small().eval(), small().eval()
    with torch.no_grad():
        other.transformer.h[0].attn.c_attn.weight *= 100
    alone, beside = (at.torch.Monitor(model, every=1) for _ in range(2))
    with alone.step():
        model(input_ids=IDS)
    with model.lm_head.register_forward_pre_hook(lambda *_: other(input_ids=IDS) and None), beside.step():
        model(input_ids=IDS)
    np.testing.assert_array_equal(alone["max_score"], beside["max_score"])


def test_parts_of_a_larger_module_are_found() -> None:
    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, ids: Any) -> Any:
            return self.inner(input_ids=ids).logits

    model = Whole()
    monitor = at.torch.Monitor(model, every=1)
    with monitor.step():
        model(IDS)
    assert monitor.modules == ["inner.transformer.h.0.attn", "inner.transformer.h.1.attn"]
    with monitor.step():
        model.inner(input_ids=IDS)  # a part, called from outside
    assert len(monitor.modules) == 2
    message = "no attention of Whole was recorded in step 2: the model did not run in the step"
    with pytest.raises(ValueError, match=message), monitor.step():
        pass


def sharpened(model: Any, layer: int, factor: float) -> None:
    """Multiply the scores of the layer's first head."""
    with torch.no_grad():
        model.transformer.h[layer].attn.c_attn.weight[:, :16] *= factor


def test_a_head_that_collapses_is_called_out_once_until_it_is_back() -> None:
    model = small(initializer_range=0.2).eval()
    monitor = at.torch.Monitor(model, every=1, min_entropy=0.01, max_score=None)
    for factor in (1, 1e5, 1, 1e-5, 1e5):
        sharpened(model, 1, factor)
        with warnings.catch_warnings(), monitor.step():
            warnings.simplefilter("ignore")
            model(input_ids=IDS)
    assert [(each.step, each.module, each.head, each.statistic) for each in monitor.alarms] == [
        (1, "transformer.h.1.attn", 0, "entropy"),
        (4, "transformer.h.1.attn", 0, "entropy"),
    ]


def test_a_warning_says_which_head_in_which_step(recwarn: pytest.WarningsRecorder) -> None:
    model = small(initializer_range=0.2).eval()
    sharpened(model, 0, 1e5)
    monitor = at.torch.Monitor(model, every=1)
    with monitor.step():
        model(input_ids=IDS)
    (said,) = [each for each in recwarn if each.category is UserWarning]
    assert said.filename == __file__
    first, second = str(said.message).split("; ")
    value = monitor["entropy"][0, 0, 0]
    assert first == f"step 0: the entropy of transformer.h.0.attn, head 0, is {value:.3g}, below 0.001"
    score = monitor["max_score"][0, 0, 0]
    assert second == f"step 0: the largest score of transformer.h.0.attn, head 0, is {score:.3g}, above 100"


def test_a_callback_gets_the_alarms_and_its_error_ends_the_step() -> None:
    model = small().eval()
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight.fill_(torch.nan)
    found: list[Any] = []

    def on_alarm(alarms: Any) -> None:
        found.extend(alarms)
        stop()

    monitor = at.torch.Monitor(model, every=1, max_score=None, on_alarm=on_alarm)
    with pytest.raises(RuntimeError, match="stop"), monitor.step():
        model(input_ids=IDS)
    assert [(each.module, each.head) for each in found] == [("transformer.h.1.attn", head) for head in (0, 1)]
    assert str(found[0]) == "step 0: the entropy of transformer.h.1.attn, head 0, is no finite number"
    assert monitor.steps == [0]  # what was seen is kept


@pytest.mark.parametrize("rows", [None, 4])
@pytest.mark.parametrize("where", ["in front", "behind", "a text of its own"])
def test_rows_of_padding_raise_no_alarm(rows: int | None, where: str) -> None:
    model = small(initializer_range=0.2).eval()
    mask = torch.ones_like(IDS)
    mask[{"in front": (0, slice(0, 9)), "behind": (0, slice(50, None)), "a text of its own": 0}[where]] = 0

    def sharpen(module: Any, args: Any, projected: Any) -> Any:
        """Queries of padding have scores beyond all limits."""
        factors = torch.where(mask == 0, 1e6, 1.0)[..., None]
        return torch.cat([projected[..., :32] * factors, projected[..., 32:]], -1)

    model.transformer.h[0].attn.c_attn.register_forward_hook(sharpen)
    alarms: list[Any] = []
    monitor = at.torch.Monitor(model, every=1, rows=rows, on_alarm=alarms.extend)
    with monitor.step():
        model(input_ids=IDS, attention_mask=mask)
    assert not alarms
    assert np.isfinite(monitor["entropy"]).all()
    with monitor.step():
        model(input_ids=IDS)  # without a mask all rows are real
    assert alarms or (where == "in front" and rows is not None)


def test_limits_are_passed_by_numbers_beyond_them() -> None:
    limits = tally.Limits(0.5, 10.0)

    def check(entropy: float, score: float) -> list[str]:
        seen = {"entropy": np.array([entropy]), "max_score": np.array([score])}
        return [each.statistic for each in limits.check(0, {"a": seen})]

    assert check(0.5, 10.0) == []  # at a limit is inside
    assert check(0.4, 11.0) == ["entropy", "max_score"]
    assert check(0.3, np.nan) == []  # still beyond
    assert check(0.6, 9.0) == []
    assert check(np.nan, np.inf) == ["entropy", "max_score"]


def test_modules_and_numbers_agree_with_a_log() -> None:
    """Modules called twice in a pass, and an encoder with a decoder."""
    from transformers import AlbertConfig, AlbertModel, BartConfig, BartModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32}
    sides = {"layers": 2, "attention_heads": 4, "ffn_dim": 32}
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sides.items()}
    albert = AlbertModel(AlbertConfig(**sizes, vocab_size=64, embedding_size=16))
    bart = BartModel(BartConfig(vocab_size=64, d_model=32, **sides))
    for model, given in ((albert, {}), (bart, {"decoder_input_ids": IDS[:, :5]})):
        monitor = at.torch.Monitor(model.eval(), every=1, rows=None)
        with torch.no_grad(), at.torch.record(model) as log, monitor.step():
            model(input_ids=IDS, **given)
        assert sorted(monitor.modules) == sorted(log.modules)
        numbered = [{*zip(each.layers, each.modules, strict=True)} for each in (monitor, log)]
        assert numbered[0] == numbered[1]
        for place, name in enumerate(monitor.modules):
            want = log["entropy"][name].astype(float).mean((0, 2))
            np.testing.assert_allclose(monitor["entropy"][0, place], want, rtol=2e-5)
    assert len(monitor.modules) == 6


def test_scalars_are_of_layers_or_of_heads() -> None:
    model = small().eval()
    monitor = at.torch.Monitor(model, every=1)
    with pytest.raises(ValueError, match="nothing was recorded yet"):
        monitor.scalars()
    with monitor.step():
        model(input_ids=IDS)
    entropy, score = monitor["entropy"][0], monitor["max_score"][0]
    layers = monitor.scalars()
    assert layers == {
        f"attention/{name}/layer_{layer}": value
        for layer in range(2)
        for name, value in (
            ("entropy", entropy[layer].mean()),
            ("entropy_min", entropy[layer].min()),
            ("max_score", score[layer].max()),
        )
    }
    heads = monitor.scalars(by="head")
    assert heads["attention/entropy/layer_1/head_0"] == entropy[1, 0]
    assert len(heads) == 8


def test_the_recording_as_csv_as_a_dataset_and_as_a_table(tmp_path: Path) -> None:
    model = small().eval()
    monitor = at.torch.Monitor(model, every=2, statistics="max_weight")
    assert str(monitor.table()) == "Monitor: nothing was recorded yet"
    for _ in range(3):
        with monitor.step():
            model(input_ids=IDS)
    path = monitor.save(tmp_path / "heads.csv")
    with path.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert [*lines[0]] == ["step", "layer", "module", "head", "max_weight", "entropy", "max_score"]
    assert len(lines) == 2 * 2 * 2
    assert float(lines[-1]["max_weight"]) == monitor["max_weight"][1, 1, 1]
    assert (lines[-1]["step"], lines[-1]["module"]) == ("2", "transformer.h.1.attn")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        monitor.save(path)
    assert {*monitor.to_pandas().columns} == {*lines[0]}
    assert [*monitor.to_pandas()["module"]] == [line["module"] for line in lines]
    dataset = pytest.importorskip("xarray") and monitor.to_xarray(unit="bits")
    np.testing.assert_allclose(dataset["entropy"], monitor["entropy"] / np.log(2))
    assert list(dataset["step"]) == [0, 2]
    assert "2 steps recorded, every 2; the last one" in repr(monitor)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "gpt2"}, TypeError, "model must be a torch.nn.Module, got 'gpt2'"),
        ({"every": 0}, ValueError, "every must be at least 1, got 0"),
        ({"rows": 0}, ValueError, "rows must be at least 1, got 0"),
        ({"statistics": "entropie"}, ValueError, "statistics must be among"),
        ({"statistics": "argmax"}, ValueError, "must have a mean over rows, got 'argmax'"),
        ({"min_entropy": -1}, ValueError, "min_entropy must be at least 0, got -1"),
        ({"max_score": "100"}, TypeError, "max_score must be a number, got '100'"),
        ({"on_alarm": 3}, TypeError, "on_alarm must be callable, got 3"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"model": small()} | change
    with pytest.raises(error, match=message):
        at.torch.Monitor(given.pop("model"), **given)


def test_an_object_without_callbacks_is_not_a_trainer() -> None:
    monitor = at.torch.Monitor(small())
    with pytest.raises(TypeError, match=r"trainer must be a Trainer of transformers or of Lightning, got 3"):
        monitor.attach(3)
    with pytest.raises(ValueError, match="by must be one of 'layer', 'head', got 'row'"):
        monitor.attach(3, by="row")


@pytest.mark.maintainer  # it trains the two models of the page
def test_the_page_agrees_with_its_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    cells = [line.split("|")[2:-1] for line in page.splitlines() if line[:3] in {f"| {i}" for i in range(11)}]
    written = [[cell.strip() for cell in row] for row in cells if len(row) == 6]
    assert len(written) == 6
    runs = [(names[run], names[loss]) for run, loss in (("healthy", "losses"), ("collapsed", "lost"))]
    for place, row in enumerate(written):
        found = [
            value
            for monitor, losses in runs
            for value in (
                losses[monitor.steps[place]],
                monitor["entropy"][place].min(),
                monitor["max_score"][place].max(),
            )
        ]
        for text, value in zip(row, found, strict=True):
            if text == "below 0.001":
                assert value < 0.001
            elif text == "above 1000":
                assert value > 1000
            else:  # another CPU rounds otherwise, which a run that diverges enlarges
                assert float(text) == pytest.approx(value, rel=0.1, abs=0.06)
    assert names["alarms"][0].step == 20
    assert names["alarms"][0].value < 1e-3


# ---- unmeasured attention, and passes of other threads -------------------------------------------


class Parts(torch.nn.Module):
    """Modules of attention one after another."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Any) -> Any:
        for part in self.children():
            x = x + part(x)
        return x


OPAQUE = "its weights stay inside of the operator attnscale_tests::flash_attn_forward"


def test_unmeasured_modules_are_listed_beside_recorded_ones() -> None:
    model = Parts(plain=products.Matmul(), closed=fused.Opaque(), other=fused.Opaque())
    monitor = at.torch.Monitor(model, every=2)
    for _ in range(3):
        with monitor.step():
            model(torch.randn(2, 5, WIDTH))
    assert monitor.steps == [0, 2]
    assert monitor.modules == ["plain"]
    assert monitor.unmeasured == {"closed": OPAQUE, "other": OPAQUE}
    assert f"  seen, not measured: closed, other: {OPAQUE}" in str(monitor.table()).splitlines()


def test_the_error_of_a_step_without_rows_names_attention_that_cannot_be_measured() -> None:
    model = Parts(closed=fused.Opaque(), other=fused.Opaque())
    monitor = at.torch.Monitor(model, every=1)
    seen = f"it was seen, and none could be measured: closed, other: {OPAQUE}"
    said = f"no attention of Parts was recorded in step 7: {seen}"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"), monitor.step(7):
        model(torch.randn(2, 5, WIDTH))
    assert monitor.unmeasured == {"closed": OPAQUE, "other": OPAQUE}
    assert f"  seen, not measured: closed, other: {OPAQUE}" in str(monitor.table()).splitlines()


def test_a_softmax_that_is_not_used_is_named_as_one() -> None:
    """An unused softmax is known only at the end of a pass, before the end of the step."""

    class Unused(products.Matmul):
        def forward(self, x: Any) -> Any:
            q, k, _ = self.split(x)
            self.last = (q @ k.mT).softmax(-1)
            return x

    model = Parts(idle=Unused())
    monitor = at.torch.Monitor(model, every=1)
    with pytest.raises(ValueError, match="none could be measured: idle: its weights"), monitor.step():
        model(torch.randn(2, 5, WIDTH))


def test_the_error_of_a_step_that_ran_in_another_thread_says_so() -> None:
    model = products.Matmul()
    monitor = at.torch.Monitor(model, every=1)
    message = "in step 0: the model ran in another thread than the one that records"
    thread = threading.Thread(target=model, args=(torch.randn(2, 5, WIDTH),))
    step = monitor.step()
    step.__enter__()
    thread.start()
    thread.join()
    with pytest.raises(ValueError, match=message):
        step.__exit__(None, None, None)
    with monitor.step():
        model(torch.randn(2, 5, WIDTH))
    assert monitor.steps == [1]


def test_the_error_of_a_step_of_validations_says_so() -> None:
    model = products.Matmul()
    monitor = at.torch.Monitor(model, every=1)
    monitor.begin(trained=True)
    with torch.no_grad():
        model(torch.randn(2, 5, WIDTH))
    with pytest.raises(ValueError, match="in step 3: no pass had a gradient"):
        monitor.end(3)


def test_the_error_of_a_step_of_padding_says_so() -> None:
    model = small()
    monitor = at.torch.Monitor(model, every=1)
    with pytest.raises(ValueError, match="none of its rows counts: all are padding"), monitor.step():
        model(input_ids=IDS, attention_mask=torch.zeros_like(IDS))


def test_rows_that_are_of_no_known_head_are_not_recorded() -> None:
    product = readings.Product(*torch.randn(2, 4, 1, 5, 4), {"scale": 1.0})
    place, both = calls.Place("mixed", 0), (product, product)
    call = calls.SeenCall(place, "softmax", "self", (0,), *both, has_known_axes=False)
    monitor = at.torch.Monitor(Parts(plain=products.Matmul()), every=1)
    with monitor.step():
        monitor._model(torch.randn(2, 5, WIDTH))
        monitor._see(call)
    assert monitor.modules == ["plain"]
    assert monitor.unmeasured == {
        "mixed": "texts and heads cannot be told apart, so no row belongs to a head"
    }
