"""Repeated output in a terminal: on the alternate screen, which leaves the scrollback alone."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

from aerobee.ops.terminal.watching import ALTERNATE, CLEAR, MAIN

PROGRAM = """
import time
from aerobee.ops.terminal.watching import begin_look
for number in range(2):
    begin_look("top", 2.0, as_json=False, number=number)
    print("sample", number, flush=True)
time.sleep(60 if {waits} else 0)
"""


def shown(*, waits: bool) -> tuple[str, int]:
    """What the terminal got, and the exit code; with `waits` the process ends by Ctrl-C."""
    near, far = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(waits=waits)], stdout=far, env={**os.environ, "TERM": "xterm"}
    )
    os.close(far)
    text = ""
    while True:
        try:
            read = os.read(near, 4096)
        except OSError:  # the process has ended
            break
        if not read:
            break
        text += read.decode()
        if waits and "sample 1" in text:
            waits = False
            process.send_signal(signal.SIGINT)
    os.close(near)
    return text, process.wait(timeout=120)


def test_samples_are_on_the_alternate_screen_until_the_end() -> None:
    text, code = shown(waits=False)
    assert code == 0
    assert (text.count(ALTERNATE), text.count(CLEAR), text.count(MAIN)) == (1, 2, 1)
    assert text.startswith(ALTERNATE)
    assert text.endswith(MAIN)


def test_ctrl_c_gives_the_screen_back() -> None:
    text, code = shown(waits=True)
    assert code == 130
    assert text.endswith(MAIN)
