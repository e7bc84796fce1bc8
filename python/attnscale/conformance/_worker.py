# SPDX-License-Identifier: BSD-3-Clause
"""``python -m attnscale.conformance._worker``: the other side of `_isolated`."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from functools import partial
from threading import Thread
from typing import Any, BinaryIO

from ._isolated import UnreadError


def _tell(out: BinaryIO, kind: str, content: Any) -> None:
    out.write(pickle.dumps((kind, content)))
    out.flush()


def _end_with_the_other_side(given: int) -> None:
    """End when the input does: the other process is gone."""
    os.read(given, 1)  # no lock, which would end a process that exits with an abort
    os._exit(1)


def _sent(error: Exception) -> Exception:
    """The error, or its text where it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _read(stream: BinaryIO) -> Any:
    """The work, which may name what this process cannot import."""
    try:
        return pickle.load(stream)
    except Exception as error:
        raise UnreadError(str(error)) from None


def main() -> None:
    """Do the work that comes on standard input; messages leave on the first standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side ends this one
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an engine prints goes to standard error
    source = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an engine that reads standard input finds its end
    try:
        work, given, lost = _read(os.fdopen(source, "rb", closefd=False))
        Thread(target=_end_with_the_other_side, args=(source,), daemon=True).start()
        result = work(*given, begin=partial(_tell, out, "begin"), lost=lost)
        _tell(out, "done", result)
    except Exception as error:
        _tell(out, "raised", _sent(error))
    finally:  # at once, even if the engine raised SystemExit: it may not end well otherwise
        sys.stderr.flush()
        os._exit(1 if isinstance(sys.exc_info()[1], BaseException) else 0)


if __name__ == "__main__":
    main()
