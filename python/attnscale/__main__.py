# SPDX-License-Identifier: BSD-3-Clause
"""The entry point of ``python -m attnscale``."""

import signal
import sys
import warnings
from typing import Any

#: Exit status of a program that SIGTERM ended, and of one that Ctrl-C did.
_TERMINATED, _INTERRUPTED = 143, 130


def run() -> int:
    """Import and run the command line, so that Ctrl-C is answered during the import, too.

    SIGTERM, by which clusters stop a job, is answered as Ctrl-C is, with another status. Warnings are printed
    like errors: on one line, without a place in the code.
    """
    asked: list[int] = []

    def end(number: int, frame: Any) -> None:
        asked.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, end)
    warnings.showwarning = lambda message, *_: print(f"attnscale: warning: {message}", file=sys.stderr)
    try:
        from .cli import main

        status = main()
    except KeyboardInterrupt:  # before a command began
        print("attnscale: interrupted", file=sys.stderr)
        status = _INTERRUPTED
    return _TERMINATED if asked and status == _INTERRUPTED else status


if __name__ == "__main__":
    sys.exit(run())
