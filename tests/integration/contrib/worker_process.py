"""A framework's worker as a separate process group, for tests that kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.integration.contrib.celery_worker import ROOT, WITHIN_S, until


class WorkerProcess:
    """`with WorkerProcess(log, environment, "taskiq", "worker", …) as worker`: `python -m taskiq worker …`."""

    def __init__(self, log: Path, environment: Mapping[str, str], *arguments: str, ready: str) -> None:
        """`ready`: what it logs when it consumes."""
        self.log = log
        self._ready = ready
        self._arguments = arguments
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Start it, and wait until it consumes."""
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until(lambda: self._ready in self.text()[begin:], f"{self._ready}: {self.text()}")

    def kill(self) -> None:
        """kill -9 of the process and its children."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> int:
        """SIGTERM, as by an operator; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(WITHIN_S)
