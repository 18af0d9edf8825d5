"""What peers that are no controllers and no brokers can cost a controller."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from aerobee.ha.controller import controller as controller_module
from aerobee.ha.controller.config import ControllerConfig
from aerobee.ha.controller.controller import Controller
from aerobee.ha.packed import pack, pack_checked
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from tests.fakes import FakePeer

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


async def test_a_raft_frame_of_a_stranger_is_refused_before_it_is_decoded(
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
        for source in ("n1", *(f"stranger{number}" for number in range(50))):
            answer = take(FakePeer(), raft_frame(source))
            assert isinstance(answer, RemotingCommand)
            assert answer.code == ResponseCode.NO_PERMISSION
    assert not decoded
    assert len(caplog.records) == 2, "one line for n1 from elsewhere, one for all strangers"
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
