"""AckPolicy: when an append is answered, with which code; and that every way of sending asks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.broker.admission.ack import AckPolicy, Replicated
from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.broker.state.ack_level import LEVELS
from aerobee.clock import ManualClock
from aerobee.errors import ConfigError
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.request_stats import RequestStats
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, batch_body, send_frame

WAYS = ["handler", PYTHON, NATIVE]


class Waiters:
    """A disk or replicas: who waits for which offset, and the verdict when the test gives it."""

    def __init__(self, *, holds_answers: bool = True) -> None:
        self.holds_answers = holds_answers
        self.waiting: list[tuple[int, Callable[..., None]]] = []

    def when(self, offset: int, callback: Callable[..., None]) -> None:
        self.waiting.append((offset, callback))

    def wait_durable(self, offset: int, callback: Callable[[bool], None]) -> None:
        if self.holds_answers:
            self.when(offset, callback)
        else:
            callback(True)

    def wait_flushed(self, offset: int, callback: Callable[[bool], None]) -> None:
        self.when(offset, callback)

    def say(self, verdict: object) -> None:
        waiting, self.waiting = self.waiting, []
        for _, callback in waiting:
            callback(verdict)


class World:
    """A policy over a disk and replicas that say what the test lets them say."""

    def __init__(self, *, holds_answers: bool = True, replicas: bool = True) -> None:
        self.clock = ManualClock()
        self.disk, self.replicas = Waiters(holds_answers=holds_answers), Waiters()
        self.requests = RequestStats()
        self.policy = AckPolicy(store=self.disk, clock=self.clock, timeout_ms=5_000, requests=self.requests)
        if replicas:
            self.policy.set_replication(self.replicas)
        self.peer = FakePeer()

    def answer(self, *, wants_to_wait: bool = True) -> RemotingCommand | None:
        reply = RemotingCommand(0, {"msgId": "M", "MSG_REGION": "r"}, opaque=3, flag=1)
        return self.policy.answer(
            self.peer,  # type: ignore[arg-type]
            reply,
            100,
            request_code=310,
            wants_to_wait=wants_to_wait,
        )

    def answer_at(self, level: str) -> RemotingCommand | None:
        reply = RemotingCommand(0, {"msgId": "M"}, opaque=3, flag=1)
        return self.policy.answer(
            self.peer,  # type: ignore[arg-type]
            reply,
            100,
            request_code=310,
            level=LEVELS[level],
        )

    def codes(self) -> list[int]:
        return [reply.code for reply in self.peer.replies()]


def test_without_sync_flush_and_replicas_an_append_is_answered_at_once() -> None:
    world = World(holds_answers=False, replicas=False)
    assert not world.policy.holds
    assert world.answer() is not None


def test_a_message_that_does_not_want_to_wait_is_answered_at_once() -> None:
    assert World().answer(wants_to_wait=False) is not None


def test_a_level_counts_whatever_the_settings_are() -> None:
    world = World(holds_answers=False, replicas=False)
    copies = Waiters()
    world.policy.set_copies(copies)
    assert world.answer_at("stored") is not None
    assert world.answer_at("flushed") is None
    world.disk.say(True)
    assert world.codes() == [0]
    assert world.answer_at("flushed+replicated") is None
    copies.say(Replicated.ENOUGH)
    assert world.codes() == [0]
    world.disk.say(True)
    assert world.codes() == [0, 0]
    strict = World()
    assert strict.answer_at("stored") is not None


def test_replicated_without_replicas_reports_too_few() -> None:
    world = World(holds_answers=False, replicas=False)
    assert world.answer_at("replicated") is None
    assert world.codes() == [11]


def test_a_master_for_a_time_answers_no_level_without_its_group() -> None:
    """A deposed one whose own disk has the message must not say so."""
    world = World(holds_answers=False)
    world.policy.set_replication(world.replicas, lambda: False)
    assert world.answer_at("flushed") is None
    world.disk.say(True)
    assert world.codes() == []
    world.replicas.say(Replicated.TOO_LATE)
    assert world.codes() == [12]
    reply = world.answer_at("stored")
    assert reply is not None
    assert reply.code == 12


@pytest.mark.parametrize("level", [None, "flushed"])
@pytest.mark.parametrize("is_master", [True, False])
def test_the_verdict_of_the_disk_asks_for_the_lease(is_master: bool, level: str | None) -> None:
    """The group waits for no replica; the process stood still between the append and the end of its flush."""
    leases = {"first": True, "second": True}
    world = World(replicas=False)
    world.policy.set_replication(world.replicas, lambda: leases["first"])
    assert (world.answer() if level is None else world.answer_at(level)) is None
    world.replicas.say(Replicated.HERE)
    leases["first"] = is_master
    # Whatever this broker is by then: what it was when it stored the message is requested.
    world.policy.set_replication(None)
    world.disk.say(True)
    assert world.codes() == [0 if is_master else 12]


def test_what_every_next_master_has_needs_no_lease_when_the_disk_has_it() -> None:
    world = World(replicas=False)
    world.policy.set_replication(world.replicas, lambda: False)
    assert world.answer() is None
    world.replicas.say(Replicated.ENOUGH)
    world.disk.say(True)
    assert world.codes() == [0]


@pytest.mark.parametrize("disk_first", [True, False])
def test_an_answer_leaves_once_when_disk_and_replicas_have_the_record(disk_first: bool) -> None:
    world = World()
    assert world.answer() is None
    for says_disk in (disk_first, not disk_first):
        assert world.codes() == []
        if says_disk:
            world.disk.say(True)
        else:
            world.replicas.say(Replicated.ENOUGH)
    assert world.codes() == [0]
    world.clock.advance(10)
    assert world.codes() == [0]


def test_replicas_alone_are_waited_for_with_asynchronous_flush() -> None:
    world = World(holds_answers=False)
    assert world.answer() is None
    assert world.codes() == []
    world.replicas.say(Replicated.ENOUGH)
    assert world.codes() == [0]


@pytest.mark.parametrize(
    ("disk", "replicas", "code"),
    [
        (False, None, 1),
        (None, Replicated.TOO_FEW, 11),
        (None, Replicated.TOO_LATE, 12),
        (True, Replicated.TOO_LATE, 12),
        (True, Replicated.TOO_FEW, 11),
        (False, Replicated.ENOUGH, 1),
    ],
)
def test_the_first_verdict_that_is_not_good_is_the_answer(
    disk: bool | None, replicas: Replicated | None, code: int
) -> None:
    world = World()
    world.answer()
    if disk is not None:
        world.disk.say(disk)
    if replicas is not None:
        world.replicas.say(replicas)
    world.disk.say(True)
    world.replicas.say(Replicated.ENOUGH)
    world.clock.advance(10)
    assert world.codes() == [code]
    (reply,) = world.peer.replies()
    assert reply.remark
    assert ("msgId" in (reply.ext or {})) == (code != 1)


def test_what_is_late_says_what_was_missing() -> None:
    world = World()
    world.answer()
    world.clock.advance(2)
    world.answer()
    world.clock.advance(3.5)
    assert world.codes() == [10]
    world.disk.say(True)
    world.clock.advance(2)
    assert world.codes() == [10, 12]
    world.replicas.say(Replicated.ENOUGH)
    assert world.codes() == [10, 12]


def test_who_keeps_the_policy_is_told_when_replicas_come_and_go() -> None:
    world = World(holds_answers=False, replicas=False)
    heard: list[bool] = []
    world.policy.on_change(lambda: heard.append(world.policy.holds))
    world.policy.set_replication(world.replicas)
    world.policy.set_replication(None)
    assert heard == [True, False]


# --- every way of sending


def sending_by(way: str, path: Path, **settings: object) -> Sending:
    try:
        return Sending(path, choice=choose_backend(NATIVE if way == NATIVE else PYTHON), **settings)
    except ConfigError as error:
        pytest.skip(str(error))


def send(sending: Sending, way: str, frame: bytes) -> list[int]:
    """The codes of the immediate answers."""
    peer = FakePeer()
    at = 0 if way == "handler" else sending.fast_path.burst(peer, frame, 0)  # type: ignore[arg-type]
    if at < len(frame):
        reply = sending.handle(peer, frame)
        if reply is not None:
            peer.send(reply)
    return [reply.code for reply in peer.replies()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        ("", True),
        ("WAIT\x01true\x02", True),
        ("WAIT\x01false\x02", False),
        ("DO_NOT_WAIT\x01falsework\x02", True),
        ("DO_NOT_WAIT\x01false\x02", True),
        ("note\x01WAIT\x02", True),
    ],
)
def test_only_the_property_wait_asks_for_an_answer_at_once(
    way: str, text: str, is_held: bool, tmp_path: Path
) -> None:
    sending = sending_by(way, tmp_path, flush_disk_type="SYNC_FLUSH")
    properties = "UNIQ_KEY\x01U1\x02" + text
    batch = batch_body((b"x", "UNIQ_KEY\x01K1\x02"))
    for frame in (
        send_frame(properties=properties),
        send_frame(properties=properties, body=batch, code=320),
    ):
        assert send(sending, way, frame) == ([] if is_held else [0])
    assert len(sending.ack._waiting) == (2 if is_held else 0)
    sending.store.flush_now()
    assert not sending.ack._waiting
    sending.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_replicas_are_waited_for_on_every_way(way: str, flush: str, tmp_path: Path) -> None:
    sending = sending_by(way, tmp_path, flush_disk_type=flush)
    replicas = Waiters()
    sending.ack.set_replication(replicas)
    assert send(sending, way, send_frame()) == []
    sending.store.flush_now()
    assert len(sending.ack._waiting) == 1
    replicas.say(Replicated.ENOUGH)
    assert not sending.ack._waiting
    sending.ack.set_replication(None)
    assert send(sending, way, send_frame()) == ([] if flush == "SYNC_FLUSH" else [0])
    sending.store.flush_now()
    sending.close()
