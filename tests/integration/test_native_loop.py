"""The event loop that waits in native code: all that asyncio does goes on while connections are served below it."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.direct import DirectNetwork, DirectTransport
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.native_loop import NativeEventLoop, _NativeSelector
from tests.integration import test_native_sockets, test_remoting
from tests.integration.test_native_sockets import GROUP, QUEUES, TOPIC, peer_of, runtime_info, send, serving
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
    test_native_sockets.test_a_peer_that_does_not_read_its_pulls_holds_up_nobody_and_gets_them_later,
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
            async with asyncio.timeout(20):
                await asyncio.gather(tick(), load())
            thread.join()
            assert await asyncio.to_thread(time.thread_time) >= 0

    run(case())


def test_a_broker_without_requests_is_sampled_rarely_and_one_request_changes_that() -> None:
    async def case() -> None:
        async with serving() as broker, peer_of(broker) as peer:
            overload = broker.overload
            await wait_until(lambda: overload.is_idle, "rare samples: waiting for bytes asks nobody")
            peer.writer.write(send(1))
            await peer.replies(1)
            assert not overload.is_idle
            await wait_until(lambda: overload.is_idle, "rare samples: waiting for bytes asks nobody")

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
        self._socket = socket.create_connection((host, int(port)), timeout=20)
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
        for at in range(pulls):  # the first pulls are the handler's: nobody has asked for this group yet
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
        async with asyncio.timeout(5):
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
                patch.setattr(broker.stats, "topic_put", fail)
                one.writer.write(send(2))
                assert [reply.opaque for reply in await one.replies(1)] == [2]  # stored, hence answered
            assert "not noted to their end" in caplog.text
            with monkeypatch.context() as patch:
                patch.setattr(DirectTransport, "serve", fail)
                one.writer.write(runtime_info(3))
                await one.replies(1)
                assert await one.is_closed()
            two.writer.write(send(4))
            assert [reply.opaque for reply in await two.replies(1)] == [4]

    run(case())


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
    selector = _NativeSelector(MAKE_SOCKETS(), lambda: (0.0, None, None))
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
