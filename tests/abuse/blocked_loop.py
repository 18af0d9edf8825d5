"""How long single requests of hostile size block the event loop, in CPU time of its thread.

    python tests/abuse/blocked_loop.py [--case NAME]

Each case is sent by a plain connection to a broker, or a NameServer, whose loop runs in a separate thread: once as large as
an attacker made it, which the bounds refuse, and once as large as the bounds allow. Where a bound is a setting of size, it is
raised to what was attacked as well. Printed: the answer's code, the loop's CPU for the request, and its longest piece: what
every other client waits at most. No disk, no network and no other process is in these figures; the machine's speed is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee.broker.assembly.broker import Broker
from aerobee.message import MessageQueue
from aerobee.nameserver import NameServer
from aerobee.nameserver.config import NameServerConfig
from aerobee.remoting.body.heartbeat import ConsumerData, HeartbeatData
from aerobee.remoting.body.message_queue import queue_to_dict
from aerobee.remoting.body.subscription import EXPRESSION_CHARS_MAX, SubscriptionData
from aerobee.remoting.command import RemotingCommand
from aerobee.store.log.stored_message import StoredMessage
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at

QUEUES_ATTACKED = 65_536
LOCKS_ATTACKED = 50_000
KEYS_ATTACKED = 100_000
MILLION = 1_000_000


@dataclass
class Pieces:
    """CPU time of the loop's thread."""

    total_s: float = 0.0
    longest_s: float = 0.0


class LoopThread:
    """An event loop in a thread; each callback's CPU time is measured."""

    def __init__(self) -> None:
        self.pieces = Pieces()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        original = asyncio.events.Handle._run
        loop, owner = self.loop, self

        def run(handle: Any) -> None:
            if handle._loop is not loop:
                original(handle)
                return
            began = time.thread_time()
            original(handle)
            took = time.thread_time() - began
            owner.pieces.total_s += took
            owner.pieces.longest_s = max(owner.pieces.longest_s, took)

        asyncio.events.Handle._run = run  # type: ignore[method-assign]

    async def call(self, work: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await work

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self.loop))


@asynccontextmanager
async def broker(thread: LoopThread, **config: Any) -> AsyncIterator[tuple[Broker, UntrustedPeer]]:
    """A broker in `thread`, and a connection to it from here."""
    with tempfile.TemporaryDirectory(prefix="held-loop-") as path:
        context = broker_at(Path(path), **config)
        started = await thread.call(context.__aenter__())
        try:
            async with UntrustedPeer(started.address) as peer:
                yield started, peer
        finally:
            await thread.call(context.__aexit__(None, None, None))


async def measure(thread: LoopThread, name: str, call: Callable[[], Awaitable[RemotingCommand]]) -> None:
    await asyncio.sleep(0.3)  # deferred work of the case ends
    thread.pieces = Pieces()
    reply = await call()
    await asyncio.sleep(0.3)  # what it left for later counts
    pieces, remark = thread.pieces, (reply.remark or "").split("\n")[0][:60]
    print(
        f"{name:<62} code {reply.code:>5}  CPU {pieces.total_s * 1000:8.1f} ms  longest {pieces.longest_s * 1000:7.1f} ms"
        f"  {remark if reply.code else ''}"
    )


def heartbeat(groups: int, topics: int = 1) -> bytes:
    names = [f"group-{number}-{'x' * 40}" for number in range(groups)]
    subscriptions = tuple(SubscriptionData(f"topic-{number}") for number in range(topics))
    return HeartbeatData(
        "c", (), tuple(ConsumerData(n, subscription_data_set=subscriptions) for n in names)
    ).encode()


async def heartbeats(thread: LoopThread) -> None:
    async with broker(thread) as (_, peer):
        attack = heartbeat(41_000)
        await measure(thread, f"heartbeat of {len(attack) / 1e6:.1f} MB", lambda: peer.call(34, {}, attack))
        groups = 900
        while len(allowed := heartbeat(groups, 1)) > 1_000_000:
            groups -= 50
        await measure(
            thread,
            f"heartbeat of {len(allowed) / 1e6:.2f} MB, {groups} new groups",
            lambda: peer.call(34, {}, allowed),
        )
        await measure(thread, "the same again", lambda: peer.call(34, {}, allowed))


async def registrations_by_hand(thread: LoopThread) -> None:
    server = NameServer(NameServerConfig(listen_port=0, bind_address="127.0.0.1"))
    await thread.call(server.start())
    try:
        async with UntrustedPeer(server.address) as peer:
            for count in (34_000, 800):
                entries = [
                    {"brokerName": f"b{n}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
                    for n in range(count)
                ]
                body = json.dumps({"queueDatas": entries}).encode()
                await measure(
                    thread,
                    f"217 of {len(body) / 1e6:.2f} MB at a NameServer",
                    lambda body=body: peer.call(217, {"topic": "t"}, body),  # type: ignore[misc]
                )
    finally:
        await thread.call(server.stop())


async def pulls(thread: LoopThread) -> None:
    async with broker(thread) as (_, peer):
        assert (await peer.send_message("t")).code == 0
        allowed = EXPRESSION_CHARS_MAX // len("t1234||")
        for count in (MILLION, allowed):
            ext = {"consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
                   "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": str(count),
                   "subscription": "||".join(f"t{n}" for n in range(count))}  # fmt: skip
            await measure(
                thread,
                f"pull with {count:,} tags",
                lambda ext=ext: peer.call(11, ext),  # type: ignore[misc]
            )


async def wide_topics(thread: LoopThread) -> None:
    for count in (4_096, QUEUES_ATTACKED):
        async with broker(thread, topic_queue_nums_max=QUEUES_ATTACKED) as (started, peer):
            ext = {"topic": "wide", "readQueueNums": str(count), "writeQueueNums": str(count), "perm": "6",
                   "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
            assert (await peer.call(17, ext)).code == 0
            await measure(
                thread,
                f"202 on {count:,} queues",
                lambda peer=peer: peer.call(202, {"topic": "wide"}),
            )
            pop = {"consumerGroup": "g", "topic": "wide", "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "10000",
                   "pollTime": "0", "bornTime": str(started.clock.now_ms()), "initMode": "0", "exp": "*"}  # fmt: skip
            await measure(
                thread,
                f"POP on {count:,} queues",
                lambda peer=peer, pop=pop: peer.call(200_050, pop),
            )


async def locks(thread: LoopThread) -> None:
    async with broker(thread) as (_, peer):

        def wanted(first: int, count: int) -> bytes:
            queues = [queue_to_dict(MessageQueue("t", "b", n)) for n in range(first, first + count)]
            return json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": queues}).encode()

        attack = wanted(0, LOCKS_ATTACKED)
        await measure(thread, f"{LOCKS_ATTACKED:,} locks in one request", lambda: peer.call(41, {}, attack))
        for first in range(0, LOCKS_ATTACKED, 4_096):
            reply = await peer.call(41, {}, wanted(first, 4_096))
            assert reply.code == 0
        again = wanted(0, 4_096)
        await measure(
            thread, f"4,096 locks again, {LOCKS_ATTACKED:,} are held", lambda: peer.call(41, {}, again)
        )
        await measure(
            thread,
            f"4,096 new ones, {LOCKS_ATTACKED:,} are held",
            lambda: peer.call(41, {}, wanted(60_000, 4_096)),
        )


async def committed_keys(thread: LoopThread) -> None:
    async with broker(thread) as (started, peer):
        assert (await peer.send_message("t")).code == 0

        async def fill() -> None:
            for number in range(KEYS_ATTACKED):
                started.offsets.commit(f"g{number // 4}", "t", number % 4, 0)

        await thread.call(fill())

        async def save() -> None:
            started._base._save_offsets()

        async def saved() -> RemotingCommand:
            await thread.call(save())
            return RemotingCommand(0)

        await measure(thread, f"writing {KEYS_ATTACKED:,} committed keys", saved)
        await measure(thread, f"43, all of {KEYS_ATTACKED:,} committed keys", lambda: peer.call(43))
        commit = {"consumerGroup": "g1", "topic": "t", "queueId": "0", "commitOffset": "1"}
        await measure(thread, "a concurrent commit", lambda: peer.call(15, commit))


async def deletions(thread: LoopThread) -> None:
    async with broker(thread) as (started, peer):
        ext = {"topic": "wide", "readQueueNums": "4096", "writeQueueNums": "4096", "perm": "6",
               "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
        assert (await peer.call(17, ext)).code == 0

        def message(queue_id: int) -> StoredMessage:
            return StoredMessage(
                topic="wide", queue_id=queue_id, body=b"x", properties=b"", born_host=bytes(8)
            )

        async def fill() -> None:
            for queue_id in range(4_096):
                started.store.append(message(queue_id))

        await thread.call(fill())
        await measure(thread, "215 of 4,096 queues", lambda: peer.call(215, {"topic": "wide"}))


CASES = {
    "deletion": deletions,
    "heartbeat": heartbeats,
    "217": registrations_by_hand,
    "pull": pulls,
    "queues": wide_topics,
    "locks": locks,
    "keys": committed_keys,
}


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES)
    chosen = parser.parse_args().case
    logging.disable(logging.WARNING)
    thread = LoopThread()
    for name, case in CASES.items():
        if chosen in (None, name):
            await case(thread)


if __name__ == "__main__":
    asyncio.run(main())
