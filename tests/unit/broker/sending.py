"""A store, the parts that sending needs, and a connection that remembers what was written to it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.gate import Gate
from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.admission.overload import Overload
from aerobee.broker.admission.pending_access import PendingAccess
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.consumer.lock_table import LockTable
from aerobee.broker.fastpath.access import FrameAccess
from aerobee.broker.fastpath.choice import PYTHON, BackendChoice, choose_backend
from aerobee.broker.fastpath.fast_path import FastPath
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.pull.pending_pulls import PendingPull, PendingPulls
from aerobee.broker.pull.pull_calls import PullCalls
from aerobee.broker.pull.pull_service import PullService
from aerobee.broker.send.delay_level import delay_level_hook
from aerobee.broker.send.lmq import lmq_entries
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.send.new_topics import NewTopics
from aerobee.broker.send.send_calls import SendCalls
from aerobee.broker.send.send_duplicates import SendDuplicates
from aerobee.broker.send.send_service import SendService
from aerobee.broker.send.unique_key import UniqueKeys
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import configured_role
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import ManualClock
from aerobee.errors import ConfigError, RemoteError
from aerobee.message import Record, decode_record, pack_host
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.request_stats import RequestStats
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.message_store import MessageStore
from aerobee.store.read.reader import record_reader
from tests.fakes import FakePeer

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * 200,
    "max_hash_slot_num": 500,
    "max_index_num": 4_000,
    "commit_log_reserve_bytes": 65_536,
}


_chosen = [choose_backend(PYTHON)]  # the backend of brokers that name none: the last one


def use_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use this backend in brokers that name none; skip the test when it is not there."""
    try:
        choice = choose_backend(name)
    except ConfigError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(sys.modules[__name__], "_chosen", [choice])


class Sending:
    """The parts around a store in `path`. Broker `broker-a` of `DefaultCluster` at 127.0.0.2:20911."""

    def __init__(
        self,
        path: Path,
        config: BrokerConfig | None = None,
        *,
        choice: BackendChoice | None = None,
        gate: Gate | None = None,
        **store_settings: Any,
    ) -> None:
        """With `gate`, access control is on."""
        self.gate = gate
        self.clock = ManualClock()
        self.store_config = StoreConfig(store_path_root_dir=str(path), **{**SMALL, **store_settings})
        host = pack_host("127.0.0.2", 20_911)
        self.store = MessageStore(
            self.store_config, disk=RealDisk(), clock=self.clock, store_host=lambda: host
        )
        self.store.load()
        self.config = config or BrokerConfig(broker_name="broker-a")
        self.live = LiveConfig(self.config)
        self.topics = TopicTable(file=None, clock=self.clock)
        self.topics.create_system_topics(self.config)
        for name in ("TopicNormal", "TopicOrder", "TopicBatch", "TopicDelay", "TopicReadOnly"):
            self.topics.put(TopicConfig(name, 4, 4))
        self._make_shared(host)
        self._make_sends()
        self._make_pulls()
        self._make_fast_path(choice)

    def _make_shared(self, host: bytes) -> None:
        self.identity = BrokerIdentity(
            cluster="DefaultCluster",
            name="broker-a",
            broker_id=self.config.broker_id,
            address="127.0.0.2:20911",
            ha_address="127.0.0.2:20912",
            store_host=host,
        )
        self.role = configured_role(self.identity, self.store_config.broker_role)
        self.stats = BrokerStats(clock=self.clock, cluster="DefaultCluster")
        self.groups = GroupTable(clock=self.clock, live=self.live)
        self.locks = LockTable(clock=self.clock)
        self.soon: list[Callable[[], None]] = []
        self.requests = RequestStats()
        self.from_threads: list[Callable[[], None]] = []
        access = None
        if self.gate is not None:
            access = PendingAccess(
                self.gate.look_again,
                clock=self.clock,
                call_soon=self.soon.append,
                call_from_thread=self.from_threads.append,
            )
            self.gate.on_change(access.changed)
        self.pending_pulls = PendingPulls(
            access=access,
            clock=self.clock,
            call_soon=self.soon.append,
            record_at=record_reader(self.store.queues, self.store.log),
            requests=self.requests,
        )
        self.store.on_arrival(self.pending_pulls.on_appended)
        self.ack = AckPolicy(
            store=self.store,
            clock=self.clock,
            timeout_ms=self.store_config.sync_flush_timeout,
            requests=self.requests,
        )
        self.overload = Overload(wait_limit_ms=200, pending_limit_bytes=1 << 20, pending_bytes=lambda: 0)

    def _make_sends(self) -> None:
        self.writer = MessageWriter(self.store, lmqs=lmq_entries(self.store))
        self.writer.add_hook(delay_level_hook(len(self.store_config.delay_levels_ms())))
        self.duplicates = SendDuplicates(live=self.live, clock=self.clock)
        service = SendService(
            store=self.store,
            writer=self.writer,
            topics=self.topics,
            groups=self.groups,
            locks=self.locks,
            stats=self.stats,
            live=self.live,
            identity=self.identity,
            role=self.role,
            overload=self.overload,
            unique_keys=UniqueKeys(ip=b"\x7f\0\0\2", process_id=1, salt=2),
            duplicates=self.duplicates,
            clock=self.clock,
            pick_queue=lambda count: 0,
        )
        self.sends = SendCalls(
            service=service,
            new_topics=NewTopics(topics=self.topics, groups=self.groups, live=self.live),
            live=self.live,
            identity=self.identity,
            ack=self.ack,
        )

    def _make_pulls(self) -> None:
        self.offsets = ConsumerOffsets(clock=self.clock)
        self.offsets.on_reset(self.pending_pulls.reset)
        self.consumers = ConsumerRegistry(clock=self.clock, call_soon=lambda run: run())
        self.spawned: list[Coroutine[Any, Any, None]] = []
        reading = PullService(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            consumers=self.consumers,
            offsets=self.offsets,
            stats=self.stats,
            pending_pulls=self.pending_pulls,
            expressions=Expressions(),
            live=self.live,
            identity=self.identity,
            role=self.role,
            clock=self.clock,
        )
        self.pulls = PullCalls(service=reading, pending_pulls=self.pending_pulls, spawn=self.spawned.append)

    def _make_fast_path(self, choice: BackendChoice | None) -> None:
        self.fast_path = FastPath(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            consumers=self.consumers,
            offsets=self.offsets,
            stats=self.stats,
            requests=self.requests,
            ack=self.ack,
            overload=self.overload,
            pending_pulls=self.pending_pulls,
            resume_pull=lambda pull: self.resume(pull),
            live=self.live,
            identity=self.identity,
            role=self.role,
            clock=self.clock,
            choice=choice or _chosen[-1],
            access=None if self.gate is None else FrameAccess(self.gate),
        )

    def resume(self, pull: PendingPull) -> None:
        """What the fast path calls for a pending pull that it cannot answer."""
        self.pulls.resume(pull)

    def close(self) -> None:
        asyncio.run(self.store.stop())

    def run_soon(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def handle(self, connection: FakePeer, frame: bytes) -> RemotingCommand | None:
        """Give a frame to the handler, as if there were no fast path."""
        request = decode_frame(frame)
        try:
            reply = self.sends.handlers()[request.code](connection, request)  # type: ignore[arg-type]
        except RemoteError as error:  # as ServedRequests answers it
            return request.reply(error.code, remark=error.remark, ext=error.ext)
        assert reply is None or isinstance(reply, RemotingCommand)
        return reply

    def run_told(self) -> None:
        """The loop hears of what threads have told it."""
        while self.from_threads:
            self.from_threads.pop(0)()

    def stored(self) -> list[Record]:
        """Every record of the log."""
        records = []
        at = 0
        while at < self.store.log.end:
            data = self.store.read_record(at)
            if data is None:
                break
            records.append(decode_record(data))
            at += len(data)
        return records


def send_frame(
    topic: str = "TopicNormal",
    body: bytes = b"body",
    *,
    queue: object = "1",
    properties: str = "UNIQ_KEY\x01U1\x02WAIT\x01true\x02",
    opaque: int = 7,
    flag: int = 0,
    code: int = 310,
    **fields: object,
) -> bytes:
    """A V2 send request. `fields` are one-character names that replace or, with None, remove the usual ones."""
    ext: dict[str, Any] = {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": queue, "f": "0", "g": "1700000000000", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "true" if code == 320 else "false", "n": "broker-a",
    }  # fmt: skip
    ext.update(fields)
    command = RemotingCommand(
        code, {key: value for key, value in ext.items() if value is not None}, body, opaque=opaque, flag=flag
    )
    return encode_frame(command)


def batch_body(*messages: tuple[bytes, str]) -> bytes:
    """The body of a batch: (body, properties) each."""
    parts = []
    for body, properties in messages:
        text = properties.encode()
        size = 22 + len(body) + len(text)
        parts.append(
            size.to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big") + body
            + len(text).to_bytes(2, "big") + text
        )  # fmt: skip
    return b"".join(parts)
