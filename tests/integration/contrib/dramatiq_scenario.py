"""What dramatiq does at a cluster of either product: messages, delays, and a worker that is killed."""

from __future__ import annotations

import time
from pathlib import Path

import dramatiq

from aerobee.contrib.dramatiq import AerobeeBroker
from tests.integration.contrib.celery_worker import until
from tests.integration.contrib.worker_process import WorkerProcess


def run_killed_worker(directory: Path, nameserver: str, namespace: str) -> None:
    """Messages are processed; a delay is kept; a killed worker loses nothing; SIGTERM ends an idle worker."""
    notes, gate = directory / "notes", directory / "gate"
    environment = {
        "DRAMATIQ_TEST_NAMESERVER": nameserver,
        "DRAMATIQ_TEST_NAMESPACE": namespace,
        "DRAMATIQ_TEST_NOTES": str(notes),
    }

    def noted(text: str) -> int:
        return notes.read_text(encoding="utf-8").count(text) if notes.exists() else 0

    broker = AerobeeBroker(nameserver, namespace=namespace, queue_count=2)

    def nothing(*_: object) -> None: ...

    add = dramatiq.actor(nothing, actor_name="add", broker=broker)
    wait_for = dramatiq.actor(nothing, actor_name="wait_for", broker=broker)
    arguments = ("dramatiq", "tests.integration.contrib.dramatiq_app", "--processes", "1", "--threads", "4")
    worker = WorkerProcess(directory / "worker.log", environment, *arguments, ready="is ready for action")
    try:
        worker.start()
        add.send(2, 3)
        until(lambda: noted("sum 5") > 0, "a message is processed")
        begin = time.time()
        add.send_with_options(args=(20, 30), delay=3_000)
        until(lambda: noted("sum 50") > 0, "a delayed message is processed")
        assert time.time() >= begin + 3
        for name in ("a", "b", "c", "d", "e"):
            wait_for.send(name, str(gate))
        until(lambda: noted("started") == 4, "four messages are processed")
        worker.kill()
        gate.touch()
        worker.start()
        until(lambda: all(noted(f"ended {name}") for name in "abcde"), "none is lost")
        started = [
            line for line in notes.read_text(encoding="utf-8").splitlines() if line.startswith("started")
        ]
        assert len(set(started)) == len("abcde") < len(started), (
            "a duplicate has the id of the first delivery"
        )
        assert worker.stop() == 0
    finally:
        worker.kill()
        broker.close()
