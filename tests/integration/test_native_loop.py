"""The event loop that waits in native code: all that asyncio does continues while connections are served below it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.message import decode_records
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.direct import DirectNetwork, DirectTransport
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.native_loop import NativeEventLoop, NativeSockets, _NativeSelector
from aerobee.testing import LocalCluster
from tests.integration import test_native_sockets, test_remoting
from tests.integration.native_broker import (
    GROUP,
    QUEUES,
    TOPIC,
    peer_of,
    runtime_info,
    send,
    serving,
    stored,
)
from tests.waiting import wait_until

MAKE_SOCKETS = choose_backend().make_sockets

pytestmark = pytest.mark.skipif(MAKE_SOCKETS is None, reason="only the native backend on Linux has sockets")


def run(case: Coroutine[Any, Any, None]) -> None:
    assert MAKE_SOCKETS is not None
    make_sockets = MAKE_SOCKETS
    with asyncio.Runner(loop_factory=lambda: NativeEventLoop(make_sockets())) as runner:
        runner.run(case)


CASES: list[Callable[[], Awaitable[None]]] = [
    test_remoting.test_many_calls_at_once_get_their_own_replies,
    test_remoting.test_a_peer_that_does_not_read_is_not_read_from,
    test_remoting.test_waiting_handlers_are_bounded_by_pausing_the_reads,
    test_remoting.test_requests_while_stopping_are_answered_go_away_to_those_who_know_it,
    test_remoting.test_a_burst_hook_that_stops_when_congested_is_called_again_when_the_peer_drained,
    test_remoting.test_a_lost_connection_fails_each_pending_call_once,
    test_remoting.test_idle_connections_are_closed_and_busy_ones_are_not,
    test_native_sockets.test_many_connections_share_a_turn_and_each_gets_its_own_replies,
    test_native_sockets.test_a_peer_that_stops_reading_delays_no_other_peer,
    test_native_sockets.test_a_peer_that_goes_with_half_a_frame_leaves_nothing_behind,
    lambda: test_native_sockets.test_frames_cut_anywhere_are_each_answered_once(1, "ASYNC_FLUSH"),
    lambda: test_native_sockets.test_frames_cut_anywhere_are_each_answered_once(2, "SYNC_FLUSH"),
]


@pytest.mark.parametrize("case", CASES)
def test_connections_are_served_as_on_any_loop(case: Callable[[], Coroutine[Any, Any, None]]) -> None:
    assert MAKE_SOCKETS is not None
    make_sockets = MAKE_SOCKETS
    test_remoting.NETWORKS.append(lambda: DirectNetwork(make_sockets))
    try:
        run(case())
    finally:
        test_remoting.NETWORKS.pop()


def test_timers_callbacks_and_threads_have_their_turn_while_messages_are_served() -> None:
    async def case() -> None:
        loop = asyncio.get_running_loop()
        ticks: list[float] = []
        woken: asyncio.Future[None] = loop.create_future()
        async with serving() as broker, peer_of(broker) as peer:

            async def tick() -> None:
                while len(ticks) < 20:
                    await asyncio.sleep(0.005)
                    ticks.append(loop.time())

            async def load() -> None:
                opaque = 1
                while len(ticks) < 20 or not woken.done():
                    peer.writer.write(send(opaque) + (runtime_info(opaque + 1) if opaque % 7 == 0 else b""))
                    opaque += 2
                    await peer.replies(2 if (opaque - 2) % 7 == 0 else 1)

            thread = threading.Timer(0.05, lambda: loop.call_soon_threadsafe(woken.set_result, None))
            thread.start()
            async with asyncio.timeout(60):
                await asyncio.gather(tick(), load())
            thread.join()
            assert await asyncio.to_thread(time.thread_time) >= 0

    run(case())


def test_a_broker_without_requests_is_sampled_rarely_and_one_request_changes_that() -> None:
    async def case() -> None:
        async with serving() as broker, peer_of(broker) as peer:
            overload = broker.overload
            await wait_until(lambda: overload.is_idle, "rare samples: waiting for bytes triggers no sample")
            peer.writer.write(send(1))
            await peer.replies(1)
            assert not overload.is_idle
            await wait_until(lambda: overload.is_idle, "rare samples: waiting for bytes triggers no sample")

    run(case())


def committing_pull(opaque: int, offset: int, commit: int, *, queue: int = 0) -> bytes:
    ext = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset), "maxMsgNums": "2",
        "sysFlag": "5", "commitOffset": str(commit), "suspendTimeoutMillis": "1000", "subscription": "*",
        "subVersion": "1", "expressionType": "TAG",
    }  # fmt: skip
    return encode_frame(RemotingCommand(RequestCode.PULL_MESSAGE.value, ext, opaque=opaque))


class ThreadPeer:
    """A connection of another thread: the broker's loop has nothing to do for it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._file = self._socket.makefile("rb")

    def ask(self, frame: bytes) -> RemotingCommand:
        self._socket.sendall(frame)
        head = self._file.read(4)
        return decode_frame(head + self._file.read(struct.unpack(">I", head)[0]))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def test_turns_of_native_code_alone_leave_the_numbers_that_single_requests_leave() -> None:
    sends, pulls = 120, 10

    def client(address: str) -> None:
        one, two = ThreadPeer(address), ThreadPeer(address)
        for opaque in range(1, sends + 1):
            assert (one, two)[opaque % 2].ask(send(opaque)).code == 0
        for at in range(pulls):  # the first pulls are the handler's: this group is not authorized yet
            reply = one.ask(committing_pull(at, at * 2, at * 2))
            assert (reply.code, reply.remark) == (0, "FOUND")
        assert two.ask(committing_pull(1, 0, 4, queue=1)).code == 0
        assert two.ask(committing_pull(2, 2, 3, queue=1)).code == 0  # goes back
        assert one.ask(committing_pull(3, 4, 10**9, queue=1)).code == 0  # no offset of this queue: not taken
        for opaque in range(pulls):
            assert one.ask(send(opaque, queue=0)).ext["queueOffset"] == str(sends // QUEUES + opaque)  # type: ignore[index]
        one.close()
        two.close()

    async def case() -> None:
        async with serving() as broker:
            await asyncio.to_thread(client, broker.address)
            queues = [broker.store.max_offset(TOPIC, queue) for queue in range(QUEUES)]
            assert queues == [sends // QUEUES + pulls, *[sends // QUEUES] * (QUEUES - 1)]
            stats, offsets = broker.stats, broker.offsets
            assert (stats.put_total, stats.put_latency.count) == (sends + pulls, sends + pulls)
            counters = dict(stats.counters("GROUP_GET_NUMS"))[f"{TOPIC}@{GROUP}"]
            assert (counters.count, counters.times) == (2 * (pulls + 3), pulls + 3)
            assert stats.get_latency.count == pulls + 3
            assert [offsets.query(GROUP, TOPIC, queue) for queue in (0, 1)] == [2 * (pulls - 1), 3]
            assert [offsets.query_pulled(GROUP, TOPIC, queue) for queue in (0, 1)] == [2 * pulls, 6]

    run(case())


def test_descriptors_processes_and_signals_work_as_on_asyncios_loop() -> None:
    async def case() -> None:
        loop = asyncio.get_running_loop()
        one, two = socket.socketpair()
        one.setblocking(False)
        two.setblocking(False)
        with one, two:
            await loop.sock_sendall(one, b"hello")
            assert await loop.sock_recv(two, 100) == b"hello"
            big = bytes(4 << 20)
            sending = asyncio.create_task(loop.sock_sendall(one, big))
            received = 0
            while received < len(big):
                received += len(await loop.sock_recv(two, 1 << 20))
            await sending
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('from a process')", stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert out == b"from a process\n"
        signalled: asyncio.Future[None] = loop.create_future()
        loop.add_signal_handler(signal.SIGUSR1, signalled.set_result, None)
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(60):
            await signalled
        loop.remove_signal_handler(signal.SIGUSR1)

    run(case())


def test_a_fault_of_ours_in_a_turn_stops_neither_the_loop_nor_other_connections(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case() -> None:
        async with serving() as broker, peer_of(broker) as one, peer_of(broker) as two:
            for peer in (one, two):
                peer.writer.write(send(1))
                await peer.replies(1)

            def fail(*_: object) -> None:
                raise ZeroDivisionError("a fault")

            with monkeypatch.context() as patch:
                patch.setattr(broker._serving.fast_path, "_burst_done", fail)
                one.writer.write(send(2))
                assert [reply.opaque for reply in await one.replies(1)] == [2]  # stored, hence answered
                await wait_until(lambda: "not recorded completely" in caplog.text)  # after a run of turns
            with monkeypatch.context() as patch:
                patch.setattr(DirectTransport, "serve", fail)
                one.writer.write(runtime_info(3))
                await one.replies(1)
                assert await one.is_closed()
            two.writer.write(send(4))
            assert [reply.opaque for reply in await two.replies(1)] == [4]

    run(case())


LATE_MAX_S = 0.05
ROUNDS_MAX = 10


def test_a_late_timer_is_late_by_a_turn_and_no_more_while_many_connections_keep_sending() -> None:
    """As late as the machine makes it: the median of many, in the best of some rounds, for the others may meet what else runs."""

    async def case() -> None:
        loop = asyncio.get_running_loop()

        async def median_late_s() -> float:
            late_s = []
            for _ in range(40):
                due = loop.time() + 0.01
                await asyncio.sleep(0.01)
                late_s.append(loop.time() - due)
            return sorted(late_s)[len(late_s) // 2]

        async with serving() as broker, AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(peer_of(broker)) for _ in range(4)]
            done = threading.Event()
            threads = [threading.Thread(target=flood, args=(broker.address, done)) for _ in range(2)]
            for thread in threads:
                thread.start()
            try:
                await wait_until(lambda: stored(broker) > 1_000, "the flood is there")
                medians_s = [await median_late_s()]
                while medians_s[-1] >= LATE_MAX_S and len(medians_s) < ROUNDS_MAX:
                    medians_s.append(await median_late_s())
                for peer in peers:
                    peer.writer.write(send(1))
                    await peer.replies(1)
            finally:
                await asyncio.to_thread(done.set)
                for thread in threads:
                    await asyncio.to_thread(thread.join)
            assert min(medians_s) < LATE_MAX_S, medians_s

    run(case())


def flood(address: str, done: threading.Event) -> None:
    """Keep 300 sends under way on one connection."""
    host, _, port = address.rpartition(":")
    frames = b"".join(send(opaque) for opaque in range(1, 301))
    with socket.create_connection((host, int(port))) as connection:
        reader = connection.makefile("rb")
        connection.sendall(frames)
        while not done.is_set():
            connection.sendall(frames)
            for _ in range(300):
                reader.read(struct.unpack(">I", reader.read(4))[0])


def test_connections_that_a_full_turn_has_left_come_first_in_the_next() -> None:
    assert MAKE_SOCKETS is not None
    sockets = MAKE_SOCKETS()
    # More than a turn reads from all of them: 2 MiB.
    pairs = [socket.socketpair() for _ in range(24)]
    owners = [object() for _ in pairs]
    try:
        for (ours, theirs), owner in zip(pairs, owners, strict=True):
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            theirs.setblocking(False)
            ours.setblocking(False)
            sockets.add(ours.detach(), owner)
        read: dict[int, int] = dict.fromkeys(range(len(pairs)), 0)
        for _ in range(12):
            for _, theirs in pairs:
                fill(theirs)
            events = one_turn(sockets)
            assert len(events) < len(pairs), "a turn reads everything: nothing is tested"
            for owner, _, _ in events:
                read[owners.index(owner)] += 1
        assert min(read.values()) >= 2, read
    finally:
        for _, theirs in pairs:
            theirs.close()


def fill(sending: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            sending.send(bytes(1 << 16))


def one_turn(sockets: NativeSockets) -> list[Any]:
    return sockets.run(
        None,
        0.0,
        turn_count_max=1,
        takes_sends=False,
        takes_pulls=False,
        now_ms=None,
        loop_ready=None,
        loop_timers=None,
    ).events


def test_what_fails_after_a_turn_loses_no_bytes_of_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    async def case() -> None:
        # Long work is reported immediately: among others, to begin the next file of the log.
        async with serving(mapped_file_size_commit_log=1 << 20) as broker, peer_of(broker) as peer:
            peer.writer.write(send(1))
            await peer.replies(1)
            with monkeypatch.context() as patch:
                patch.setattr(broker.stats, "put_took", fail)
                opaque = 2
                while "a fault" not in caplog.text:
                    frames = [send(opaque + number, size=4_000) for number in range(12)]
                    peer.writer.write(b"".join(frames) + runtime_info(opaque + 12))
                    replies = await peer.replies(13)
                    assert {reply.opaque for reply in replies} == set(range(opaque, opaque + 13))
                    opaque += 13

    run(case())


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("number", ["end", "last_record_offset"])
def test_numbers_that_cannot_be_written_end_sends_with_a_sentence_and_a_restart_shows_all(
    number: str, flush: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`number` is the log's, or the appender's: written at the end of a run, after its replies have left."""

    async def case() -> None:
        async with LocalCluster(store_config={"flush_disk_type": flush}) as cluster:
            await cluster.create_topic(TOPIC, QUEUES)
            broker = cluster.broker()
            acknowledged = []
            async with peer_of(broker) as peer, peer_of(broker) as other:
                peer.writer.write(b"".join(send(opaque) for opaque in range(1, 9)))
                acknowledged += [reply.opaque for reply in await peer.replies(8) if not reply.code]
                owner = broker.store.log if number == "end" else broker.store.appender
                with monkeypatch.context() as patch:
                    patch.setattr(type(owner), number, broken(getattr(owner, number)), raising=False)
                    peer.writer.write(b"".join(send(opaque) for opaque in range(9, 17)))
                    if flush == "ASYNC_FLUSH":
                        acknowledged += [reply.opaque for reply in await peer.replies(8) if not reply.code]
                        assert len(acknowledged) == 16
                    else:
                        assert await peer.is_closed()
                    await wait_until(lambda: not broker.store.is_writable, "the store refuses")
                    other.writer.write(send(17))
                    (refusal,) = await other.replies(1)
                assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "were not noted" in (refusal.remark or "")
                assert "Restart the broker: recovery finds them" in (refusal.remark or "")
            await cluster.stop_broker()
            await cluster.start_broker()
            broker = cluster.broker()
            found = []
            for queue in range(QUEUES):
                end = broker.store.max_offset(TOPIC, queue)
                records = list(decode_records(broker.store.get_messages(TOPIC, queue, 0, count_max=32).body))
                assert [record.queue_offset for record in records] == list(range(end))
                found += [record.properties["UNIQ_KEY"] for record in records]
            assert sorted(found) == [f"{opaque:032X}" for opaque in range(1, len(found) + 1)]
            assert len(found) >= len(acknowledged)
            async with peer_of(broker) as peer:
                peer.writer.write(send(18))
                assert [reply.code for reply in await peer.replies(1)] == [0]

    run(case())


def broken(value: int) -> property:
    """An attribute that is read and cannot be written."""

    def refuse(_: object, value: int) -> None:
        raise ZeroDivisionError("a fault")

    return property(lambda _: value, refuse)


def test_a_second_network_on_the_loop_has_an_epoll_of_its_own() -> None:
    async def case() -> None:
        async with serving() as first, serving() as second, peer_of(first) as one, peer_of(second) as two:
            for number in range(1, 20):
                one.writer.write(send(number))
                two.writer.write(send(number))
                assert [reply.opaque for reply in await one.replies(1)] == [number]
                assert [reply.opaque for reply in await two.replies(1)] == [number]
        async with serving() as third, peer_of(third) as again:  # what the first one gave back is lent again
            again.writer.write(send(1))
            await again.replies(1)

    run(case())


def test_the_selector_keeps_the_rules_of_pythons_selectors() -> None:
    assert MAKE_SOCKETS is not None
    selector = _NativeSelector(MAKE_SOCKETS(), lambda: (0.0, None, None), lambda: (None, None))
    one, two = socket.socketpair()
    with one, two:
        key = selector.register(one, selectors.EVENT_READ, "data")
        assert selector.get_key(one) is key is selector.get_key(one.fileno())
        with pytest.raises(KeyError, match="already registered"):
            selector.register(one, selectors.EVENT_READ)
        began = time.monotonic()
        assert selector.select(0.02) == []
        assert time.monotonic() - began >= 0.02
        two.send(b"x")
        assert selector.select() == [(key, selectors.EVENT_READ)]
        changed = selector.modify(one, selectors.EVENT_READ | selectors.EVENT_WRITE, "other")
        assert selector.select(5) == [(changed, selectors.EVENT_READ | selectors.EVENT_WRITE)]
        selector.unregister(one)
        assert selector.select(0) == []
        with pytest.raises(KeyError, match="not registered"):
            selector.unregister(one)
        selector.register(two, selectors.EVENT_READ)
    assert selector.unregister(two).fileobj is two  # closed meanwhile: found all the same
    selector.close()
    with pytest.raises(OSError):
        selector.register(10_000, selectors.EVENT_READ)
