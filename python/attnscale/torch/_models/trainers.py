# SPDX-License-Identifier: BSD-3-Clause
"""Callbacks that let the trainers of transformers and of Lightning drive a monitor and log what it sees.

A trainer that is at hand has been imported, and so has the package with the class of its callbacks.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..._checks import shown

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def attach(monitor: Any, trainer: Any, *, by: str) -> Any:
    """Give the trainer a callback that records its steps and logs the scalars; return the callback."""
    homes = [each.__module__ for each in type(trainer).__mro__]
    if any(home.startswith("transformers.") for home in homes) and hasattr(trainer, "add_callback"):
        callback = _of_transformers(monitor, trainer, by)
        trainer.add_callback(callback)
        return callback
    for package in _LIGHTNING:
        if any(home.startswith(f"{package}.") for home in homes) and hasattr(trainer, "callbacks"):
            callback = _of_lightning(monitor, package, by)
            trainer.callbacks.append(callback)
            return callback
    raise TypeError(f"trainer must be a Trainer of transformers or of Lightning, got {shown(trainer)}")


def _of_transformers(monitor: Any, trainer: Any, by: str) -> Any:
    from transformers import TrainerCallback

    class MonitorCallback(TrainerCallback):
        """Records the steps, which the trainer counts from 0, and logs before the weights change."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % monitor.every == 0:
                monitor.begin(trained=True)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if monitor.is_recording:
                monitor.end(state.global_step)
                trainer.log(monitor.scalars(by=by))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            monitor.cancel()

    return MonitorCallback()


def _of_lightning(monitor: Any, package: str, by: str) -> Any:
    base: Any = importlib.import_module(package).Callback

    class MonitorCallback(base):
        """Records the steps, which the trainer counts from 0, and logs before the weights change."""

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            # With accumulated gradients several batches are one step.
            if trainer.global_step % monitor.every == 0 and not monitor.is_recording:
                monitor.begin(trained=True)

        def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
            if monitor.is_recording:
                monitor.end(trainer.global_step)
                for logger in trainer.loggers:
                    logger.log_metrics(monitor.scalars(by=by), step=trainer.global_step)

        def on_exception(self, *_: Any) -> None:
            monitor.cancel()

        def on_train_end(self, *_: Any) -> None:
            monitor.cancel()

    return MonitorCallback()
