# SPDX-License-Identifier: BSD-3-Clause
"""A config in each form that users hand over (mapping, file, config object), copied within limits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._checks import shown
from ..._io import InputError

#: Limits, each far above any config that there is, so that no file keeps `resolve` long.
_DEEPEST, _MOST_VALUES, _MOST_BYTES = 32, 500_000, 2**24


class ConfigError(InputError):
    """A configuration that has no answer; the text of the error names the key and what was seen."""


def read_config(config: Any) -> dict[str, Any]:
    """The keys of a config, copied into new dicts and lists.

    Parameters
    ----------
    config : mapping, str, path or transformers config
        As for :func:`attnscale.audit.resolve`.
    """
    if isinstance(config, (str, os.PathLike)):
        config = _read_file(Path(config))
    elif hasattr(config, "to_dict") and not isinstance(config, Mapping):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        kind = type(config).__name__
        raise TypeError(
            f"config must be a mapping, a path or a transformers config, got {kind}: {shown(config)}"
        )
    copied: dict[str, Any] = _copied(config, "", _Budget())
    return copied


class _Budget:
    """The number of values that may still be copied."""

    left = _MOST_VALUES

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ConfigError(f"config must have at most {_MOST_VALUES} values")


def _copied(value: Any, name: str, budget: _Budget, depth: int = 0) -> Any:
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if depth > _DEEPEST:
        raise ConfigError(f"{name[:60]} must be nested at most {_DEEPEST} deep")
    budget.spend(len(value))
    if isinstance(value, Mapping):
        return {
            str(key): _copied(each, f"{name}.{key}" if name else str(key), budget, depth + 1)
            for key, each in value.items()
        }
    return [_copied(each, name, budget, depth + 1) for each in value]


def _read_file(path: Path) -> Mapping[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{file} must have at most {_MOST_BYTES} bytes")
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such file") from None
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{file} must hold one JSON object, got {type(content).__name__}")
    return content
