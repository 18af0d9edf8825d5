"""Threads that run from the start: work given later starts none, and a machine without threads fails immediately."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from aerobee.errors import StoreError
from aerobee.thread_pool import start_threads


def no_thread(*_arguments: object) -> None:
    raise RuntimeError("can't start new thread")


def test_work_needs_no_thread_that_was_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(3, "started") as pool:
        start_threads(pool, 3)
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        # Three that wait for each other need three threads simultaneously; a fourth waits for one of them.
        together = threading.Barrier(3)
        held = [pool.submit(together.wait, 60) for _ in range(4)]
        held += [pool.submit(together.wait, 60) for _ in range(2)]
        assert sorted(each.result(60) for each in held) == [0, 0, 1, 1, 2, 2]


def test_a_machine_without_threads_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(2, "refused") as pool:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(
            StoreError, match=r"cannot start its 2 threads: can't start new thread. Raise the limit"
        ):
            start_threads(pool, 2)
