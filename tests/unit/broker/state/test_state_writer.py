"""The thread that writes small files: order, the newest content only, what the disk refuses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from aerobee.broker.state.state_writer import StateWriter
from aerobee.errors import StoreError


class Held(Executor):
    """Runs its work on command; also when it is shut down, as a thread pool does."""

    def __init__(self) -> None:
        self.given: list[Callable[[], Any]] = []
        self.is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.given.append(lambda: fn(*args, **kwargs))
        return Future()

    def run_all(self) -> None:
        while self.given:
            self.given.pop(0)()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_closed = True
        if wait:
            self.run_all()


def refuse() -> None:
    raise StoreError("the disk is full")


def test_of_one_file_the_newest_content_is_written_and_files_keep_their_order() -> None:
    held, written = Held(), list[str]()
    writer = StateWriter(held)
    for number in range(1000):
        writer.write_soon("a", lambda number=number: written.append(f"a{number}"))  # type: ignore[misc]
    writer.write_soon("b", lambda: written.append("b"))
    writer.run(lambda: written.append("once"))
    assert len(held.given) == 3, "a disk that hangs does not gather writes"
    held.run_all()
    assert written == ["a999", "b", "once"]


def test_what_the_disk_refuses_is_tried_again_unless_newer_content_came(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held, written = Held(), list[str]()
    writer = StateWriter(held)
    writer.write_soon("a", refuse)
    writer.write_soon("b", refuse)
    held.run_all()
    writer.retry()
    held.run_all()
    assert sorted(writer.refused_paths) == ["a", "b"]
    assert len(caplog.records) == 2, "said once for each file, not at each try"
    writer.write_soon("a", lambda: written.append("newer"))
    writer.retry()
    held.run_all()
    assert written == ["newer"]
    assert writer.refused_paths == ["b"]
    assert "a is written again" in caplog.text


def test_the_end_writes_what_waits_and_tries_what_was_refused() -> None:
    held, written, answers = Held(), list[str](), [refuse, lambda: written.append("a")]
    writer = StateWriter(held)
    writer.write_soon("a", lambda: answers.pop(0)())
    held.run_all()
    writer.write_soon("b", lambda: written.append("b"))
    writer.close(wait=True)
    assert written == ["b", "a"]
    assert writer.refused_paths == []


async def test_awaited_writes_overtake_background_writes() -> None:
    written: list[str] = []
    is_running, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        is_running.set()
        may_end.wait()

    writer = StateWriter()
    writer.write_soon("large", hold)
    writer.write_soon("a", lambda: written.append("a"))
    await asyncio.to_thread(is_running.wait)
    await asyncio.gather(*(writer.write(lambda n=n: written.append(n)) for n in "12"))  # type: ignore[misc]
    assert written == ["1", "2"]
    may_end.set()
    writer.close(wait=True)
    assert written == ["1", "2", "a"]


async def test_a_write_after_the_end_is_an_error_that_says_so() -> None:
    writer = StateWriter()
    done: list[int] = []
    await writer.write(lambda: done.append(1))
    assert done == [1]
    with pytest.raises(StoreError, match="disk is full"):
        await writer.write(refuse)
    writer.close(wait=True)
    with pytest.raises(StoreError, match="stopping"):
        await writer.write(lambda: done.append(2))
