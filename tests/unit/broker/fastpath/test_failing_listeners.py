"""A listener that fails when a message is stored: handler and fast paths answer, and nothing is stored twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.errors import ConfigError, StoreFull
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, batch_body, send_frame

FAULTS = [ValueError("of a listener"), StoreFull("of a listener"), RuntimeError("of a listener")]
WAYS = ["handler", PYTHON, NATIVE]


def sending_by(way: str, path: Path, fault: Exception) -> Sending:
    try:
        sending = Sending(path, choice=choose_backend(NATIVE if way == NATIVE else PYTHON))
    except ConfigError as error:
        pytest.skip(str(error))

    def fail(*_: object) -> None:
        raise fault

    sending.store.on_arrival(fail)
    sending.pending_pulls.watch("TopicNormal", 1)  # so that this queue's messages are announced
    return sending


def serve(sending: Sending, way: str, frames: list[bytes]) -> list[int]:
    """Give the frames to the broker as a connection does; return the codes of the replies."""
    connection = FakePeer()
    data, at = b"".join(frames), 0
    while at < len(data):
        if way != "handler":
            at = sending.fast_path.burst(connection, data, at)  # type: ignore[arg-type]
        if at < len(data):
            frame = data[at : at + 4 + int.from_bytes(data[at : at + 4], "big")]
            reply = sending.handle(connection, frame)
            if reply is not None:
                connection.send(reply)
            at += len(frame)
    return [reply.code for reply in connection.replies()]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("way", WAYS)
def test_each_message_is_stored_once_and_answered(way: str, fault: Exception, tmp_path: Path) -> None:
    sending = sending_by(way, tmp_path, fault)
    frames = [send_frame(body=b"%d" % number, opaque=number) for number in range(5)]
    assert serve(sending, way, frames) == [0] * 5
    assert [record.body for record in sending.stored()] == [b"0", b"1", b"2", b"3", b"4"]
    assert sending.store.max_offset("TopicNormal", 1) == 5
    sending.close()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_is_stored_once_and_answered(way: str, fault: Exception, tmp_path: Path) -> None:
    sending = sending_by(way, tmp_path, fault)
    body = batch_body(*((b"%d" % number, f"UNIQ_KEY\x01K{number}\x02") for number in range(4)))
    assert serve(sending, way, [send_frame(body=body, code=320), send_frame(body=b"4")]) == [0, 0]
    assert [record.body for record in sending.stored()] == [b"0", b"1", b"2", b"3", b"4"]
    sending.close()
