"""Sends and pulls each pass a gate of the fast path; a request that fails after bytes were written has no other handler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.admission.ack import Replicated
from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.broker.fastpath.seam import BurstResult, DelaySettings, TransactionSettings
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.role import Role
from aerobee.broker.transaction.fast_path_hooks import DelayFastPath
from aerobee.errors import StoreFull
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.frame import encode_frame
from tests.fakes import FakePeer
from tests.unit.broker.pulling import Pulling, pull_request
from tests.unit.broker.sending import Sending, batch_body, send_frame, use_backend

WAITS = 2 | 4
HALF = "UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02PGROUP\x01PG\x02WAIT\x01true\x02"


@pytest.fixture(params=(PYTHON, NATIVE), autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test holds both backends."""
    use_backend(request.param, monkeypatch)


@pytest.fixture
def pulling(tmp_path: Path) -> Iterator[Pulling]:
    pulling = Pulling(tmp_path, BrokerConfig(broker_name="broker-a"))
    pulling.groups.put(SubscriptionGroupConfig("group"))
    pulling.send(3)
    yield pulling
    pulling.close()


def overload(pulling: Pulling) -> None:
    pulling.overload.observe(1_000, 0)
    pulling.overload.observe(1_000, 0)


def fill_the_disk(pulling: Pulling) -> None:
    pulling.store.writability.note_disk(StoreFull("the disk is full", path="x"))


def close_for_a_minute(pulling: Pulling) -> None:
    pulling.live.replace(start_accept_send_request_time_stamp=pulling.clock.now_ms() + 60_000)


@pytest.mark.parametrize("close", [overload, fill_the_disk, close_for_a_minute])
def test_what_stops_sends_stops_no_pulls(pulling: Pulling, close: Callable[[Pulling], None]) -> None:
    close(pulling)
    connection = FakePeer()
    pull = encode_frame(pull_request(0, opaque=5))
    assert pulling.fast_path.burst(connection, send_frame(), 0) == 0  # type: ignore[arg-type]
    assert pulling.fast_path.burst(connection, pull + send_frame(), 0) == len(pull)  # type: ignore[arg-type]
    (reply,) = connection.replies()
    assert (reply.opaque, reply.remark) == (5, "FOUND")
    assert pulling.store.max_offset("TopicNormal", 1) == 3


@pytest.mark.parametrize("close", [overload, fill_the_disk, close_for_a_minute])
def test_what_stops_sends_stops_no_released_long_polls(
    pulling: Pulling, close: Callable[[Pulling], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(pull: object) -> None:
        raise AssertionError("a released pull was left to the handler")

    monkeypatch.setattr(pulling.fast_path._polls, "_resume", never)
    connection = FakePeer()
    pull = encode_frame(pull_request(3, flags=WAITS, opaque=5))
    assert pulling.fast_path.burst(connection, pull, 0) == len(pull)  # type: ignore[arg-type]
    pulling.send(1)
    close(pulling)
    pulling.run_soon()
    assert [(reply.opaque, reply.remark) for reply in connection.replies()] == [(5, "FOUND")]


@pytest.mark.parametrize("reads", [True, False])
def test_a_slave_serves_pulls_when_it_may_and_keeps_no_offsets(tmp_path: Path, reads: bool) -> None:
    master = Pulling(tmp_path, BrokerConfig(broker_name="broker-a"))
    master.send(3)
    master.close()
    slave = Pulling(tmp_path, BrokerConfig(broker_name="broker-a", broker_id=1, slave_read_enable=reads))
    slave.groups.put(SubscriptionGroupConfig("group"))
    pull = encode_frame(pull_request(0, flags=1 | 4, opaque=5))
    connection = FakePeer()
    used = slave.fast_path.burst(connection, pull, 0)  # type: ignore[arg-type]
    assert used == (len(pull) if reads else 0)
    assert len(connection.replies()) == int(reads)
    assert slave.offsets.query("group", "TopicNormal", 1) in (-1, None)
    slave.close()


@pytest.mark.parametrize(
    "properties",
    ["UNIQ_KEY\x01U1\x02DO_NOT_WAIT\x01falsework\x02", "UNIQ_KEY\x01U1\x02WAIT\x01TRUE\x02"],
)
def test_who_does_not_say_otherwise_waits_for_the_disk(tmp_path: Path, properties: str) -> None:
    sending = Sending(tmp_path, flush_disk_type="SYNC_FLUSH")
    connection = FakePeer()
    data = send_frame(properties=properties) + send_frame(
        "TopicBatch", batch_body((b"a", "")), code=320, properties=properties
    )
    assert sending.fast_path.burst(connection, data, 0) == len(data)  # type: ignore[arg-type]
    assert connection.replies() == []
    sending.store.flush_now()
    assert [reply.code for reply in connection.replies()] == [0, 0]
    sending.close()


def test_a_listener_that_fails_gives_no_frame_to_the_handler(pulling: Pulling) -> None:
    def fail(topic: str, queue_id: int, end: int, code: int) -> None:
        raise ValueError("a listener's own fault")

    pulling.store.on_arrival(fail)
    connection = FakePeer()
    pull = encode_frame(pull_request(3, flags=WAITS, opaque=5))
    assert pulling.fast_path.burst(connection, pull, 0) == len(pull)  # type: ignore[arg-type]
    data = send_frame(opaque=6) + send_frame("TopicNormal", batch_body((b"a", "")), code=320, opaque=7)
    assert pulling.fast_path.burst(connection, data, 0) == len(data)  # type: ignore[arg-type]
    assert pulling.store.max_offset("TopicNormal", 1) == 5
    assert [reply.opaque for reply in connection.replies()] == [6, 7]


class FailingHooks:
    """Transaction hooks that fail when they are notified of a message that is stored."""

    def __init__(self, sending: Sending) -> None:
        self._sending = sending
        self.ended = 0

    def takes_halves(self) -> bool:
        return True

    def half_queue(self) -> Any:
        return self._sending.store.queue("RMQ_SYS_TRANS_HALF_TOPIC", 0)

    def open_transactions(self) -> dict[tuple[str, str], Any]:
        return {}

    def began(self, *what: object) -> None:
        raise ValueError("the transaction table's own fault")

    def committed(self, transaction: object) -> None: ...

    def rolled_back(self, transaction: object) -> None: ...

    def burst_done(self) -> None:
        self.ended += 1


def test_a_half_message_whose_table_fails_is_a_fault_and_stored_once(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    hooks = FailingHooks(sending)
    half_topic = TopicConfig("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1)
    sending.fast_path._transactions = TransactionSettings(hooks=hooks, half_topic=half_topic)
    sending.live.replace(region_id="another")  # makes the backend again
    connection = FakePeer()
    data = send_frame(opaque=1) + send_frame(properties=HALF, f="4", opaque=2) + send_frame(opaque=3)
    with pytest.raises(ValueError, match="the transaction table's own fault"):
        sending.fast_path.burst(connection, data, 0)  # type: ignore[arg-type]
    assert [reply.opaque for reply in connection.replies()] == [1], "what was served before is answered"
    assert sending.store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) == 1
    assert sending.store.max_offset("TopicNormal", 1) == 1
    assert hooks.ended == 1
    sending.close()


def test_a_failing_schedule_listener_stops_no_delayed_message(tmp_path: Path) -> None:
    sending = Sending(tmp_path)

    def fail(topic: str, queue_id: int, end: int, due_ms: int) -> None:
        raise KeyError("the schedule's own fault")

    hooks = DelayFastPath(
        takes_delayed=lambda: True, appended=fail, timer_appended=lambda: None, timer_limits=lambda: None
    )
    sending.fast_path._delayed = DelaySettings(
        hooks=hooks,
        schedule_topic=TopicConfig("SCHEDULE_TOPIC_XXXX", 18, 18),
        timer_topic=TopicConfig("rmq_sys_wheel_timer", 1, 1),
        broker_name="broker-a",
        delays_ms=sending.store.config.delay_levels_ms(),
    )
    sending.live.replace(region_id="another")
    connection = FakePeer()
    data = send_frame(properties="UNIQ_KEY\x01U1\x02DELAY\x013\x02") * 2
    assert sending.fast_path.burst(connection, data, 0) == len(data)  # type: ignore[arg-type]
    assert sending.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 2
    assert len(connection.replies()) == 2
    sending.close()


def test_settings_that_change_are_obeyed_by_the_next_burst(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    connection, frame = FakePeer(), send_frame(body=bytes(100))
    assert sending.fast_path.burst(connection, frame, 0) == len(frame)  # type: ignore[arg-type]
    sending.store.reconfigure(dataclasses.replace(sending.store.config, max_message_size=99))
    assert sending.fast_path.burst(connection, frame, 0) == 0  # type: ignore[arg-type]
    sending.store.reconfigure(dataclasses.replace(sending.store.config, max_message_size=100))
    assert sending.fast_path.burst(connection, frame, 0) == len(frame)  # type: ignore[arg-type]
    sending.live.replace(region_id="elsewhere")
    assert sending.fast_path.burst(connection, frame, 0) == len(frame)  # type: ignore[arg-type]
    assert [reply.ext["MSG_REGION"] for reply in connection.replies() if reply.ext] == [
        "DefaultRegion", "DefaultRegion", "elsewhere",
    ]  # fmt: skip
    sending.live.replace(broker_permission=2)
    pull = encode_frame(pull_request(0))
    assert sending.fast_path.burst(connection, pull, 0) == 0  # type: ignore[arg-type]
    sending.close()


def test_a_backend_appends_nothing_while_its_broker_is_fenced(pulling: Pulling) -> None:
    backend = pulling.fast_path._backend

    def burst() -> BurstResult:
        host, now_ms = bytes((127, 0, 0, 1, 0, 0, 0, 9)), pulling.clock.now_ms()
        return backend.burst(send_frame(), 0, host, now_ms, True, True)

    pulling.role.change(Role.FENCED, "another master has taken over")
    fenced = burst()
    assert (fenced.used, fenced.is_slow, fenced.replies) == (0, True, b"")
    assert pulling.store.max_offset("TopicNormal", 1) == 3
    pulling.role.change(Role.MASTER, "it was elected again")
    assert burst().used == len(send_frame())
    assert pulling.store.max_offset("TopicNormal", 1) == 4


class Replicas:
    """A replication watermark that stands still."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Callable[[Replicated], None]]] = []

    def when(self, offset: int, callback: Callable[[Replicated], None]) -> None:
        self.waiting.append((offset, callback))


def test_replies_wait_for_replicas_without_leaving_the_fast_path(pulling: Pulling) -> None:
    replicas, connection, frame = Replicas(), FakePeer(), send_frame()
    pulling.ack.set_replication(replicas)
    assert pulling.fast_path.burst(connection, frame, 0) == len(frame)  # type: ignore[arg-type]
    assert connection.replies() == []
    ((offset, release),) = replicas.waiting
    assert offset == pulling.store.log.end
    release(Replicated.ENOUGH)
    assert [reply.code for reply in connection.replies()] == [0]
    pulling.ack.set_replication(None)
    assert pulling.fast_path.burst(connection, frame, 0) == len(frame)  # type: ignore[arg-type]
    assert [reply.code for reply in connection.replies()] in ([0], [0, 0])
    assert len(replicas.waiting) == 1
