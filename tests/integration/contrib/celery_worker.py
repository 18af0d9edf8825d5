"""A `celery worker` process for tests, and waiting for what it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[3]
APP = "tests.integration.contrib.celery_app"
WITHIN_S = 60.0


def until(condition: Callable[[], bool], what: str, *, within_s: float = WITHIN_S) -> None:
    """Wait for a condition of another process."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


def worker_environment(directory: Path, nameserver: str, virtual_host: str = "") -> dict[str, str]:
    """What celery_app reads: the broker, results in files of `directory`, and notes there."""
    (directory / "results").mkdir()
    return {
        "CELERY_TEST_BROKER": f"aerobee://{nameserver}/{virtual_host}",
        "CELERY_TEST_BACKEND": f"file://{directory / 'results'}",
        "CELERY_TEST_NOTES": str(directory / "notes"),
    }


class Worker:
    """`with Worker(directory, environment) as worker`: one worker with its pool, ended with the block."""

    def __init__(self, directory: Path, environment: dict[str, str], name: str = "w1", *options: str) -> None:
        self.name = f"{name}@test"
        self.log = directory / f"{name}.log"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)}
        self._options = options or ("--concurrency", "2")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it says that it is ready."""
        command = [sys.executable, "-m", "celery", "-A", APP, "worker", "-n", self.name, "-l", "INFO", "-E"]
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                [*command, *self._options],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until(lambda: b" ready." in self.log.read_bytes()[begin:], f"{self.name} is ready: {self.text()}")

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9 of the worker and its pool."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Warm shutdown by SIGTERM, cold by SIGQUIT, as by an operator; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(WITHIN_S)
