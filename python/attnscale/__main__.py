# SPDX-License-Identifier: BSD-3-Clause
"""The entry point of ``python -m attnscale``."""

import sys
import warnings


def run() -> int:
    """Import and run the command line, so that Ctrl-C is answered during the import, too.

    Warnings are printed like errors: on one line, without a place in the code.
    """
    warnings.showwarning = lambda message, *_: print(f"attnscale: warning: {message}", file=sys.stderr)
    try:
        from .cli import main
    except KeyboardInterrupt:
        print("attnscale: interrupted", file=sys.stderr)
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(run())
