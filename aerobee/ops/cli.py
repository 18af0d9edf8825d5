"""Entry point of the console script, without a traceback for Ctrl-C during the imports.

The imports take some tenths of a second, and a Ctrl-C meanwhile would show a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType

from aerobee.collector import own_process

INTERRUPTED = 130  # ExitCode.INTERRUPTED


def main() -> None:
    """Load the commands, run one, and exit with its exit code."""
    own_process()
    previous = signal.signal(signal.SIGINT, _leave)
    _open_standard_streams()
    commands = import_module("aerobee.ops.commands.tree")
    signal.signal(signal.SIGINT, previous)
    sys.exit(commands.run_cli(sys.argv[1:]))


def _open_standard_streams() -> None:
    """Open the null device for a closed standard stream: otherwise the next file or socket gets its descriptor number.

    uvloop aborts in that case, and output would go to a peer. Python has no stream object for a closed stream either.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  for the whole run


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
