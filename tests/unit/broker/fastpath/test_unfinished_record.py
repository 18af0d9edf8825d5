"""A record that could not be finished: nothing may follow it, by either backend, and the sender hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.errors import StoreError
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.queue.consume_queue import ConsumeQueue
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, send_frame, use_backend


@pytest.mark.parametrize("backend", [PYTHON, NATIVE])
def test_a_store_with_an_unfinished_record_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    use_backend(backend, monkeypatch)
    sending = Sending(tmp_path)
    try:
        peer = FakePeer()

        def fail(queue: ConsumeQueue, physical_offset: int) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as broken:
            broken.setattr(ConsumeQueue, "mark_dirty", fail)
            with pytest.raises(StoreError, match=r"the record at 0 was not finished.*a bug"):
                sending.fast_path.burst(peer, send_frame(), 0)  # type: ignore[arg-type]
        assert not sending.store.is_writable
        assert "was not finished" in sending.store.writability.reason
        frame = send_frame()
        assert sending.fast_path.burst(peer, frame, 0) == 0, "what comes next is for the handlers"  # type: ignore[arg-type]
        reply = sending.handle(peer, frame)
        assert reply is not None
        assert reply.code != 0
        assert "was not finished" in (reply.remark or "")
    finally:
        sending.close()


@pytest.mark.parametrize("backend", [PYTHON, NATIVE])
def test_a_record_that_would_not_continue_the_log_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """The assertion before a write: an offset that leaves a hole."""
    use_backend(backend, monkeypatch)
    sending, position_of = Sending(tmp_path), CommitLog.reserve
    try:
        with monkeypatch.context() as broken:
            broken.setattr(CommitLog, "reserve", lambda log, size: position_of(log, size) + 8)
            with pytest.raises(StoreError, match=r"the record at 8 was not finished: AssertionError"):
                sending.fast_path.burst(FakePeer(), send_frame(), 0)  # type: ignore[arg-type]
        assert sending.store.log.end == 0
        assert not any(sending.store.log.buffer[:1000])
        assert not sending.store.is_writable
    finally:
        sending.close()


@pytest.mark.parametrize("backend", [PYTHON, NATIVE])
def test_a_record_that_is_not_what_was_written_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """The assertion behind a burst: its newest record is read again."""
    use_backend(backend, monkeypatch)
    sending = Sending(tmp_path)
    try:

        def spoil(queue: ConsumeQueue, physical_offset: int) -> None:
            sending.store.log.buffer[physical_offset + 3] ^= 1  # the record's size

        with monkeypatch.context() as broken:
            broken.setattr(ConsumeQueue, "mark_dirty", spoil)
            with pytest.raises(AssertionError):
                sending.fast_path.burst(FakePeer(), send_frame(), 0)  # type: ignore[arg-type]
        assert not sending.store.is_writable
    finally:
        sending.close()


def test_an_entry_that_is_not_of_its_record_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of the newest queue entry, in Python; the native one is read again in its debug build."""
    use_backend(PYTHON, monkeypatch)
    sending = Sending(tmp_path)
    try:

        def spoil(queue: ConsumeQueue, physical_offset: int) -> None:
            queue.tail_buffer[11] ^= 1  # the size in the first entry

        with monkeypatch.context() as broken:
            broken.setattr(ConsumeQueue, "mark_dirty", spoil)
            with pytest.raises(AssertionError):
                sending.fast_path.burst(FakePeer(), send_frame(), 0)  # type: ignore[arg-type]
        assert not sending.store.is_writable
    finally:
        sending.close()
