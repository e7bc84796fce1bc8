# SPDX-License-Identifier: BSD-3-Clause
"""at.torch.Monitor in the trainers of transformers and Lightning, with the loggers that they have.

transformers' Trainer needs the package accelerate; Lightning, TensorBoard and wandb are others.
A test whose packages are not installed is skipped.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

# transformers, Lightning and torch warn about their own affairs while they load and run.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]

NAMES = {
    f"attention/{name}/layer_{layer}" for name in ("entropy", "entropy_min", "max_score") for layer in (0, 1)
}


def small() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_embd=32, n_head=2, n_layer=2, vocab_size=64, bos_token_id=0, eos_token_id=0)
    )


def texts() -> list[dict[str, Any]]:
    rows = (torch.arange(40) * (7 + i) % 60 for i in range(16))
    return [{"input_ids": row, "labels": row} for row in rows]


def trained(folder: Path, monitor: Any, model: Any, report_to: list[str], **options: Any) -> Any:
    """A Trainer of transformers after 7 steps of two forward passes each."""
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    sizes = {"max_steps": 7, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    quiet = {"disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "report_to": report_to}
    arguments = TrainingArguments(str(folder), **sizes, **quiet, **options)
    trainer = Trainer(model, arguments, train_dataset=texts(), eval_dataset=texts()[:4])
    monitor.attach(trainer)
    trainer.train()
    return trainer


def events(folder: Path) -> dict[str, dict[int, float]]:
    """The scalars that TensorBoard reads in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: {each.step: each.value for each in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def test_the_trainer_of_transformers_logs_the_steps_to_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path))
    model = small()
    monitor = at.torch.Monitor(model, every=3)
    trainer = trained(tmp_path, monitor, model, ["tensorboard"], eval_strategy="steps", eval_steps=3)
    assert monitor.steps == [0, 3, 6]
    history = [each for each in trainer.state.log_history if each.keys() >= NAMES]
    assert [each["step"] for each in history] == [0, 3, 6]
    (written,) = {path.parent for path in tmp_path.rglob("events.out.tfevents*")}
    logged = events(written)
    for name in NAMES:
        values = {each["step"]: each[name] for each in history}
        assert logged[f"train/{name}"] == pytest.approx(values)
    np.testing.assert_allclose(
        [logged["train/attention/entropy/layer_1"][step] for step in monitor.steps],
        monitor["entropy"][:, 1].mean(-1),
        rtol=1e-6,
    )


def test_an_alarm_can_end_the_training_before_the_weights_change(tmp_path: Path) -> None:
    model = small()
    trainers: list[Any] = []

    def on_alarm(alarms: Any) -> None:
        trainers[0].control.should_training_stop = True

    monitor = at.torch.Monitor(model, every=2, min_entropy=5.0, on_alarm=on_alarm)
    attach = monitor.attach
    monitor.attach = lambda trainer: (trainers.append(trainer), attach(trainer))
    trainer = trained(tmp_path, monitor, model, [])
    assert trainer.state.global_step == 1
    assert monitor.steps == [0]
    assert len(monitor.alarms) == 4


def test_wandb_gets_the_scalars_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    model = small()
    monitor = at.torch.Monitor(model, every=3)
    trained(tmp_path, monitor, model, ["wandb"])
    kept = dict(wandb.run.summary)
    wandb.finish()
    assert kept["train/attention/entropy/layer_1"] == pytest.approx(monitor["entropy"][-1, 1].mean())
    assert list(tmp_path.rglob("*.wandb"))


def fitted(lightning: Any, monitor: Any, model: Any, folder: Path, batches: int, **options: Any) -> Any:
    """A Trainer of Lightning after its steps, with a validation after every batch."""

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(**batch).loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.model(**batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    bare = ("enable_progress_bar", "enable_checkpointing", "enable_model_summary")
    trainer = lightning.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        val_check_interval=1,
        limit_val_batches=1,
        **dict.fromkeys(bare, False),
        **options,
    )
    monitor.attach(trainer)
    train, other = (
        torch.utils.data.DataLoader(each, batch_size=2) for each in (texts()[: 2 * batches], texts()[-2:])
    )
    trainer.fit(Module(), train, other)
    return trainer


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_logs_the_steps_of_its_optimizer_to_every_logger(tmp_path: Path, package: str) -> None:
    lightning = pytest.importorskip(package)
    pytest.importorskip("tensorboard")
    model = small()
    monitor = at.torch.Monitor(model, every=3)
    csv_logger = lightning.loggers.CSVLogger(tmp_path, "csv", flush_logs_every_n_steps=1)
    board = lightning.loggers.TensorBoardLogger(tmp_path, "board")
    options = {"max_steps": 7, "accumulate_grad_batches": 2, "logger": [csv_logger, board]}
    fitted(lightning, monitor, model, tmp_path, 8, **options)
    assert monitor.steps == [0, 3, 6]
    assert not monitor.is_recording
    with (Path(csv_logger.log_dir) / "metrics.csv").open(newline="") as stream:
        lines = [line for line in csv.DictReader(stream) if line["attention/entropy/layer_0"]]
    assert [int(line["step"]) for line in lines] == monitor.steps
    want = monitor["max_score"][:, 1].max(-1)
    np.testing.assert_allclose([float(line["attention/max_score/layer_1"]) for line in lines], want)
    logged = events(Path(board.log_dir))["attention/max_score/layer_1"]
    np.testing.assert_allclose([logged[step] for step in monitor.steps], want, rtol=1e-6)


def test_a_validation_in_the_middle_of_a_step_is_not_recorded(tmp_path: Path) -> None:
    """Lightning validates after each of the two batches that are one step: with other texts."""
    lightning = pytest.importorskip("lightning.pytorch")
    model = small().eval()
    alone, beside = (at.torch.Monitor(model, every=1, rows=None) for _ in range(2))
    with alone.step():
        for first in (0, 2):
            model(input_ids=torch.stack([each["input_ids"] for each in texts()[first : first + 2]]))
    fitted(lightning, beside, model, tmp_path, 2, max_steps=1, accumulate_grad_batches=2, logger=False)
    np.testing.assert_array_equal(alone["entropy"], beside["entropy"])
