"""Entry point of the console script: quiet also when Ctrl-C comes before everything is loaded.

Loading takes some tenths of a second, and a Ctrl-C in it would show a traceback of the import.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType

INTERRUPTED = 130  # as ExitCode.INTERRUPTED


def main() -> None:
    """Load the commands, run one, and end with its exit code."""
    previous = signal.signal(signal.SIGINT, _leave)
    commands = import_module("aerobee.ops.commands")
    signal.signal(signal.SIGINT, previous)
    sys.exit(commands.run_cli(sys.argv[1:]))


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
