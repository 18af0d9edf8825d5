"""A message with the DEDUP_KEY of an earlier one is answered with the offset of that one and not stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.send.duplicate_window import DuplicateWindow
from aerobee.broker.send.send_duplicates import KEY_CHARS_MAX
from aerobee.broker.state.config import BrokerConfig
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.store.files.config import FlushDiskType
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, batch_body, send_frame

WINDOW_MS = 60_000


def config(**fields: Any) -> BrokerConfig:
    return BrokerConfig(broker_name="broker-a", **{"dedup_window_millis": WINDOW_MS, **fields})


@pytest.fixture
def sending(tmp_path: Path) -> Iterator[Sending]:
    sending = Sending(tmp_path, config())
    yield sending
    sending.close()


def keyed(key: str, unique_key: str = "U1", more: str = "", **fields: Any) -> bytes:
    return send_frame(properties=f"UNIQ_KEY\x01{unique_key}\x02DEDUP_KEY\x01{key}\x02{more}", **fields)


def window_of(sending: Sending) -> DuplicateWindow:
    return DuplicateWindow(
        duplicates=sending.duplicates, log_files=sending.store.log, live=sending.live, clock=sending.clock
    )


def send(sending: Sending, frame: bytes) -> RemotingCommand:
    reply = sending.handle(FakePeer(), frame)
    assert reply is not None
    return reply


def stored_at(reply: RemotingCommand) -> tuple[str, ...]:
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    assert reply.ext is not None
    return tuple(reply.ext[name] for name in ("msgId", "queueId", "queueOffset", "transactionId"))


def test_a_repetition_is_answered_with_the_ids_of_the_first(sending: Sending) -> None:
    first = send(sending, keyed("order-1", queue=1))
    second = send(sending, keyed("order-1", "U2", queue=2))
    assert stored_at(second) == stored_at(first)
    assert first.ext is not None
    assert second.ext is not None
    assert "duplicate" not in first.ext
    assert second.ext["duplicate"] == "true"
    assert len(sending.stored()) == 1
    assert sending.duplicates.dropped_count == 1


def test_other_keys_and_other_topics_are_other_messages(sending: Sending) -> None:
    for frame in (
        keyed("order-1"),
        keyed("order-2", "U2"),
        keyed("order-1", "U3", topic="TopicOrder"),
        send_frame(),
        send_frame(),
    ):
        send(sending, frame)
    assert len(sending.stored()) == 5


def test_after_the_window_a_key_is_new(sending: Sending) -> None:
    send(sending, keyed("order-1"))
    sending.clock.advance(WINDOW_MS / 1000)
    send(sending, keyed("order-1"))
    assert len(sending.stored()) == 1
    sending.clock.advance(0.001)
    send(sending, keyed("order-1"))
    assert len(sending.stored()) == 2


def test_after_a_corrected_clock_a_key_is_new_after_its_window(sending: Sending) -> None:
    """Store times never go back: those of messages after the correction are years ahead of the clock."""
    year_ms = 365 * 86_400_000
    sending.clock._start_ms += year_ms
    send(sending, keyed("ahead"))
    sending.clock._start_ms -= year_ms
    send(sending, keyed("corrected"))
    stored = len(sending.stored())
    for key in ("ahead", "corrected"):
        send(sending, keyed(key))
    assert len(sending.stored()) == stored
    sending.clock.advance(WINDOW_MS / 1000 + 0.001)
    for key in ("ahead", "corrected"):
        send(sending, keyed(key))
    assert len(sending.stored()) == stored + 2


def test_off_by_default_the_key_means_nothing(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    send(sending, keyed("order-1"))
    send(sending, keyed("order-1"))
    assert len(sending.stored()) == 2
    assert len(sending.duplicates) == 0
    sending.close()


def test_the_fast_path_leaves_keyed_messages_to_the_handler(sending: Sending) -> None:
    connection = FakePeer()
    frame = send_frame() + keyed("order-1") + send_frame()
    used = sending.fast_path.burst(connection, frame, 0)  # type: ignore[arg-type]
    assert used == len(send_frame())


def test_a_restart_reads_the_keys_from_the_log(sending: Sending, tmp_path: Path) -> None:
    first = send(sending, keyed("old"))
    sending.clock.advance(50)
    delayed = send(sending, keyed("later", "U2", "DELAY\x013\x02", queue=3))
    for number in range(20):
        send(sending, send_frame(properties=f"UNIQ_KEY\x01N{number}\x02"))
    kept = send(sending, keyed("kept", "U3"))
    assert stored_at(send(sending, keyed("old"))) == stored_at(first)
    sending.clock.advance(15)
    sending.close()

    again = Sending(tmp_path, config())
    again.clock.advance((sending.clock.now_ms() - again.clock.now_ms()) / 1000)
    window_of(again).load()
    before = len(again.stored())
    assert stored_at(send(again, keyed("kept", "U9"))) == stored_at(kept)
    assert stored_at(send(again, keyed("later", "U9", "DELAY\x013\x02", queue=0))) == stored_at(delayed)
    assert len(again.stored()) == before
    send(again, keyed("old", "U9"))
    assert len(again.stored()) == before + 1, "its window ended before the restart"
    again.close()


def test_a_restart_over_several_log_files_reads_those_of_the_window_only(tmp_path: Path) -> None:
    sending = Sending(
        tmp_path, config(), mapped_file_size_commit_log=1 << 16, commit_log_reserve_bytes=1 << 12
    )
    for number in range(300):
        send(sending, keyed(f"k{number}", f"U{number}", body=b"x" * 1000))
        sending.clock.advance(0.5)
    assert len(sending.store.log.segments) > 4
    known = len(sending.duplicates)
    sending.close()
    again = Sending(tmp_path, config(), mapped_file_size_commit_log=1 << 16, commit_log_reserve_bytes=1 << 12)
    again.clock.advance((sending.clock.now_ms() - again.clock.now_ms()) / 1000)
    window_of(again).load()
    assert abs(len(again.duplicates) - known) <= 2
    before = len(again.stored())
    for number in range(200, 300):
        send(again, keyed(f"k{number}", "V"))
    assert len(again.stored()) == before
    again.close()


def test_transactions_retries_and_batches_are_not_looked_at(sending: Sending) -> None:
    send(sending, keyed("order-1"))
    retry = keyed("order-1", topic="%RETRY%group", queue=0)
    assert send(sending, retry).code == ResponseCode.SUCCESS
    body = batch_body((b"one", "UNIQ_KEY\x01B1\x02DEDUP_KEY\x01order-1\x02"))
    assert send(sending, send_frame(body=body, code=320)).code == ResponseCode.SUCCESS
    assert len(sending.stored()) == 3


def test_keys_are_bounded_and_what_was_forgotten_is_counted(tmp_path: Path) -> None:
    sending = Sending(tmp_path, config(dedup_keys_max=2))
    for number in range(3):
        send(sending, keyed(f"k{number}"))
    assert len(sending.duplicates) == 2
    assert sending.duplicates.forgotten_count == 1
    send(sending, keyed("k0"))
    assert len(sending.stored()) == 4
    sending.close()


def test_a_key_that_is_too_long_is_refused(sending: Sending) -> None:
    reply = send(sending, keyed("k" * (KEY_CHARS_MAX + 1)))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "at most 255" in (reply.remark or "")


def test_with_sync_flush_a_repetition_waits_for_the_first_to_be_durable(tmp_path: Path) -> None:
    sending = Sending(tmp_path, config(), flush_disk_type=FlushDiskType.SYNC_FLUSH)
    first, second = FakePeer(), FakePeer()
    assert sending.handle(first, keyed("order-1")) is None
    assert sending.handle(second, keyed("order-1")) is None
    assert first.replies() == second.replies() == []
    sending.close()


def test_a_window_that_follows_the_log_knows_what_a_restart_would(tmp_path: Path) -> None:
    """At a slave: keys of what is copied are noted a moment later, in pieces; a second look adds nothing."""
    sending = Sending(
        tmp_path, config(), mapped_file_size_commit_log=1 << 16, commit_log_reserve_bytes=1 << 12
    )
    for number in range(150):
        send(sending, keyed(f"k{number}", f"U{number}", body=b"x" * 1000))
        send(sending, send_frame(properties=f"UNIQ_KEY\x01N{number}\x02"))
        sending.clock.advance(0.5)
    known = dict(sending.duplicates._firsts)
    sending.duplicates.cut(0)
    assert len(sending.duplicates) == 0
    window = window_of(sending)
    window.follow()
    for _ in range(100):
        sending.clock.advance(0.2)
    assert window.known_to == sending.store.log.end
    assert sending.duplicates._firsts.keys() <= known.keys()
    assert len(sending.duplicates) > 60
    for name, first in sending.duplicates._firsts.items():
        assert first == known[name]
    window.stop()
    count = len(sending.duplicates)
    asyncio.run(window.take_over())
    assert len(sending.duplicates) == count
    sending.close()


@pytest.mark.parametrize("has_begun", [False, True])
def test_keys_are_known_after_a_mastership_that_ended_before_they_were_read(
    tmp_path: Path, has_begun: bool
) -> None:
    """A slave is made master and slave again before it has a lease, or while it reads; then it leads."""
    sending = Sending(tmp_path, config())
    window = window_of(sending)
    window.load()
    window.follow()
    first = send(sending, keyed("order-1"))
    sending.duplicates.cut(0)  # as if it had been copied: in the log, and not noted yet

    async def begin() -> None:
        taking_over = asyncio.create_task(window.take_over())
        await asyncio.sleep(0)
        taking_over.cancel()

    if has_begun:
        for number in range(200):  # more than is read at a time
            send(sending, keyed(f"k{number}", f"U{number}"))
        last = send(sending, keyed("order-2", "V"))
        sending.duplicates.cut(0)
        asyncio.run(begin())
        assert len(sending.duplicates) < 200
    window.resign()
    window.follow()
    asyncio.run(window.take_over())
    window.start()
    assert stored_at(send(sending, keyed("order-1", "U2"))) == stored_at(first)
    if has_begun:
        assert stored_at(send(sending, keyed("order-2", "U3"))) == stored_at(last)
    sending.close()


def test_a_cut_forgets_the_keys_behind_it(sending: Sending) -> None:
    send(sending, keyed("kept"))
    end = sending.store.log.end
    send(sending, keyed("lost", "U2"))
    window_of(sending).log_cut(end)
    assert [key for _, key in sending.duplicates._firsts] == ["kept"]


def test_a_key_is_new_to_a_follower_after_its_window(sending: Sending) -> None:
    """The second message of a key counts after the window of the first one expired."""
    send(sending, keyed("order-1"))
    sending.clock.advance(WINDOW_MS / 1000 - 1)
    send(sending, keyed("between", "U2"))
    sending.clock.advance(2)
    second = send(sending, keyed("order-1", "U3"))
    sending.duplicates.cut(0)
    window = window_of(sending)
    window.load()
    assert stored_at(send(sending, keyed("order-1", "U4"))) == stored_at(second)


def test_a_keyed_send_is_refused_while_the_keys_are_read(sending: Sending) -> None:
    sending.duplicates._unserved.put(["deduplication"], "it has just become master")
    reply = send(sending, keyed("order-1"))
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert send(sending, send_frame()).code == ResponseCode.SUCCESS
    assert len(sending.stored()) == 1
