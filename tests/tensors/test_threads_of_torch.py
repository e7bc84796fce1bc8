# SPDX-License-Identifier: BSD-3-Clause
"""Calls on PyTorch's own threads: which threads work, and how many, in fresh processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc"),
    pytest.mark.skipif(
        "OpenMP" not in torch.__config__.parallel_info().split("ATen parallel backend:")[-1],
        reason="this PyTorch has other threads",
    ),
    pytest.mark.skipif(at.get_num_threads() < 2, reason="needs two CPUs"),
]

BEGIN = """
import os
import numpy as np, torch, attnscale as at
torch.set_num_threads(2)
def threads():
    return len(os.listdir("/proc/self/task"))
def work(x, f=at.attention):
    return f(x, x, x)
x = torch.randn(1, 8, 512, 64)
"""


def output_of(code: str) -> list[str]:
    """Words that code prints in a new interpreter, which imports PyTorch for a second."""
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_call_uses_the_threads_of_pytorch() -> None:
    code = """
    x @ x.mT
    before = threads()
    work(x), at.attention(x.numpy(), x.numpy(), x.numpy(), num_threads=2)
    import attnscale.torch
    work(x, at.torch.attention)
    print(threads() - before, at.show_config()["threads_library"] in open("/proc/self/maps").read())
    """
    assert output_of(code) == ["0", "True"]


def test_results_do_not_depend_on_whose_threads_compute() -> None:
    code = """
    own = at.attention_statistics(x.numpy(), x.numpy(), x.numpy(), num_threads=2)
    there = at.attention_statistics(x, x, x)
    same = [(there.output.numpy() == own.output).all(), (there.entropy.numpy() == own.entropy).all()]
    print(at.show_config()["threads_library"] != "attnscale", *same)
    """
    assert output_of(code) == ["True"] * 3


@pytest.mark.parametrize("how", ["torch.set_num_threads(1)", "at.set_num_threads(1)"])
def test_one_thread_of_pytorch_is_one_thread(how: str) -> None:
    """A process that was given one thread, as a worker of a DataLoader is, starts no others."""
    code = f"""
    import attnscale.torch
    {how}
    before = threads()
    work(x), work(x, at.torch.attention), work(x.numpy())
    print(threads() - before, at.get_num_threads())
    """
    assert output_of(code) == ["0", "1"]


def test_a_number_that_was_set_holds() -> None:
    code = """
    import attnscale.torch
    at.set_num_threads(3)
    work(x)  # on threads of its own: PyTorch has two
    print(at.get_num_threads())
    before = threads()
    torch.set_num_threads(1)
    work(x)
    print(at.get_num_threads(), threads() - before)
    """
    assert output_of(code) == ["3", "3", "0"]


def test_a_worker_of_a_dataloader_takes_one_thread() -> None:
    code = """
    import attnscale.torch
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 4
        def __getitem__(self, i):
            at.torch.attention(x, x, x)
            return at.get_num_threads(), threads() - before
    work(x, at.torch.attention)
    before = 0
    def count_threads(worker):
        global before
        before = threads()
    print(*next(iter(torch.utils.data.DataLoader(Data(), num_workers=1, worker_init_fn=count_threads,
                                                 batch_size=None, multiprocessing_context="fork"))))
    """
    assert output_of(code) == ["1", "0"]


def test_the_child_of_a_fork_computes_on_threads_of_its_own() -> None:
    code = """
    import attnscale.torch, signal
    x @ x.mT
    before = work(x, at.torch.attention).numpy().tobytes()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        same = work(x, at.torch.attention).numpy().tobytes() == before
        os._exit(0 if same and threads() == 2 else 1)
    print(os.waitpid(child, 0)[1])
    """
    assert output_of(code) == ["0"]


def test_ctrl_c_ends_a_call_on_the_threads_of_pytorch() -> None:
    code = """
    import attnscale.torch, signal, time
    x = torch.randn(1, 8, 30_000, 64)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        work(x, at.torch.attention)
        print("finished")
    except KeyboardInterrupt:
        print("interrupted")
    print(bool((work(x[:, :, :600], at.torch.attention) == at.attention(*[x[:, :, :600].numpy()] * 3)).all()))
    """
    assert output_of(code) == ["interrupted", "True"]
