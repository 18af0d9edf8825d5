"""What peers that are no controllers and no brokers can cost a controller."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.clock import ManualClock
from aerobee.ha.controller import controller as controller_module
from aerobee.ha.controller import liveness as liveness_module
from aerobee.ha.controller import masters as masters_module
from aerobee.ha.controller.commands import ApplyBrokerId
from aerobee.ha.controller.config import ControllerConfig, LiveControllerConfig
from aerobee.ha.controller.controller import Controller
from aerobee.ha.controller.liveness import Heartbeat
from aerobee.ha.controller.masters import Masters
from aerobee.ha.controller.membership_calls import BROKERS_SHOWN_MAX, _shown
from aerobee.ha.controller.state import ControllerState, Group, Replica
from aerobee.ha.packed import pack, pack_checked
from aerobee.ha.raft.raft_service import RaftStatus
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from tests.fakes import FakePeer
from tests.waiting import wait_until

ENTRIES = tuple((index, 1, 3, pack(([], []))) for index in range(1, 1_000))


def controller_of(tmp_path: Path) -> Controller:
    return Controller(
        ControllerConfig(
            controller_d_leger_group="quorum",
            controller_d_leger_peers="n0-127.0.0.1:1;n1-10.1.0.1:1;n2-10.1.0.2:1",
            controller_d_leger_self_id="n0",
            controller_store_path=str(tmp_path),
        )
    )


def raft_frame(source: str) -> RemotingCommand:
    values = (2, "quorum", 3, source, "n0", 5, "", "", 0, 0, 0, 0, ENTRIES)
    return RemotingCommand(RequestCode.AEROBEE_RAFT_MESSAGE, body=pack_checked(values))


async def test_an_untrusted_raft_frame_is_refused_undecoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decoded: list[object] = []
    real = controller_module.decode_message

    def counted(data: bytes, group: str, *, bytes_max: int) -> object:
        decoded.append(data)
        return real(data, group, bytes_max=bytes_max)

    monkeypatch.setattr(controller_module, "decode_message", counted)
    controller = controller_of(tmp_path)
    take = controller.handlers[RequestCode.AEROBEE_RAFT_MESSAGE]
    with caplog.at_level(logging.WARNING, "aerobee.controller"):
        for source in ("n1", *(f"untrusted{number}" for number in range(50))):
            answer = take(FakePeer(), raft_frame(source))
            assert isinstance(answer, RemotingCommand)
            assert answer.code == ResponseCode.NO_PERMISSION
    assert not decoded
    assert len(caplog.records) == 2, "one line for n1 from elsewhere, one for all untrusted peers"
    assert take(FakePeer(("10.1.0.1", 1)), raft_frame("n1")) is not None
    assert len(decoded) == 1, "of the host of its source it is taken"
    await controller._peer_check.stop()  # type: ignore[union-attr]


async def test_frames_that_are_none_of_this_quorum_are_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    take = controller_of(tmp_path).handlers[RequestCode.AEROBEE_RAFT_MESSAGE]
    with caplog.at_level(logging.WARNING, "aerobee.controller"):
        for _ in range(50):
            peer = FakePeer()
            assert take(peer, RemotingCommand(RequestCode.AEROBEE_RAFT_MESSAGE, body=b"no message")) is None
            assert not peer.is_open
    assert len(caplog.records) == 1


class Heard:
    """The masters of a controller without followers, and brokers with the ids 1 to `brokers` of one name."""

    def __init__(self, tmp_path: Path, brokers: int) -> None:
        self.clock = ManualClock()
        state = ControllerState()
        for broker_id in range(1, brokers + 1):
            code = f"10.0.0.1:{broker_id};{broker_id}"
            state.carry_out(
                ApplyBrokerId(broker_name="a", cluster_name="c", broker_id=broker_id, check_code=code)
            )
        self.masters = Masters(
            config=LiveControllerConfig(controller_of(tmp_path).config),
            state=state,
            raft=cast(Any, SimpleNamespace(status=RaftStatus(), is_leading_surely=False)),
            client=cast(Any, None),
            clock=self.clock,
        )

    def beat(self, peer: FakePeer, broker_id: int, name: str = "a", timeout_ms: int = 600_000) -> None:
        beat = Heartbeat(broker_name=name, broker_id=broker_id, timeout_ms=timeout_ms)
        self.masters.on_heartbeat(cast(Any, peer), beat, False)


async def test_heartbeats_of_unassigned_ids_take_no_slot(tmp_path: Path) -> None:
    heard = Heard(tmp_path, 1)
    peer = FakePeer()
    for number in range(100):
        heard.beat(peer, 1, name=f"thought-out-{number}")
        heard.beat(peer, 2 + number)
    heard.beat(peer, 1)
    assert len(heard.masters.liveness._last) == 1
    assert heard.masters.is_alive("a", 1)


async def test_a_connection_brings_heartbeats_of_a_bounded_number_of_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(masters_module, "KEYS_OF_PEER_MAX", 20)
    heard = Heard(tmp_path, 50)
    peer, other = FakePeer(), FakePeer()
    with caplog.at_level(logging.INFO, "aerobee.controller"):
        for broker_id in range(1, 51):
            heard.beat(peer, broker_id)
        heard.beat(peer, 1)
        heard.beat(other, 50)
        assert len(caplog.records) == 1
        assert heard.masters.alive("a") == (*range(1, 21), 50)
        peer.close()
    assert heard.masters.alive("a") == (50,)
    assert len(caplog.records) == 2, "one line for all that are gone"
    assert "and 12 more" in caplog.text


async def test_brokers_that_were_not_heard_for_longest_make_room_for_one_that_connects_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(liveness_module, "BROKERS_MAX", 10)
    heard = Heard(tmp_path, 50)
    broker, attacker = FakePeer(), FakePeer()
    heard.beat(broker, 1)
    for broker_id in range(2, 50):
        heard.clock.advance(0.1)
        heard.beat(attacker, broker_id)
        if not broker_id % 5:
            heard.beat(broker, 1)
        assert heard.masters.is_alive("a", 1), "it continues, so it stays"
    heard.beat(FakePeer(), 50)
    assert heard.masters.is_alive("a", 50)
    assert len(heard.masters.alive("a")) == 10
    assert len(heard.masters._via) == len(heard.masters._first) == 10
    assert sum("more brokers than" in each.message for each in caplog.records) == 1


async def test_all_brokers_that_fell_silent_are_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard(tmp_path, 600)
    for broker_id in range(1, 601):
        heard.beat(FakePeer(), broker_id, timeout_ms=1)
    heard.masters.start()
    try:
        heard.clock.advance(10)
        await wait_until(lambda: heard.clock.advance(5) or not heard.masters._via)
    finally:
        await heard.masters.stop()
    assert [each.message for each in caplog.records if "silent" in each.message] == [
        "silent for too long: " + ", ".join(f"broker {each} of a" for each in range(1, 9)) + " and 592 more"
    ]


def test_the_state_of_a_quorum_is_bounded_and_shows_groups_with_a_master_first() -> None:
    thought_out = [
        Group(
            cluster_name="c",
            broker_name=f"n{number}",
            replicas={each: Replica(f"10.0.0.1:{each}", "") for each in range(1, 1_025)},
        )
        for number in range(12)
    ]
    real = Group(cluster_name="c", broker_name="real", master_id=1, replicas={1: Replica("10.0.0.1:1", "")})
    shown, left_out = _shown([*thought_out, real])
    assert shown[0] is real
    assert sum(len(group.replicas) for group in shown) <= BROKERS_SHOWN_MAX
    assert (len(shown), left_out) == (8, 5)
    assert _shown([real]) == ([real], 0)


async def test_elections_without_room_begin_when_another_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masters that all fail together, some of them thought out, keep no group waiting until the next look."""
    masters = Heard(tmp_path, 1).masters
    begun: list[str] = []
    may_continue = asyncio.Event()

    async def find_master(self: Masters, broker_name: str) -> None:
        begun.append(broker_name)
        await may_continue.wait()
        self._wanted.discard(broker_name)

    monkeypatch.setattr(masters_module, "GROUP_TASKS_MAX", 2)
    monkeypatch.setattr(Masters, "_find_master", find_master)
    monkeypatch.setattr(Masters, "_needs_master", lambda self, broker_name: True)
    monkeypatch.setattr(masters._raft, "status", RaftStatus(is_serving=True))
    names = [f"n{number}" for number in range(7)]
    for name in names:
        masters.consider(name)
    await asyncio.sleep(0)
    assert begun == names[:2]
    may_continue.set()
    await wait_until(lambda: begun == names, "all of them begin")
    await wait_until(lambda: not masters._tasks)
    may_continue.clear()
    for name in names:
        masters.consider(name)
    await masters.stop()
    assert not masters._tasks, "none begins any more"
