"""A properties text whose separators do not come in turn shows the fast path no names that the message does not have.

In turn are ^A behind each name and ^B behind each value. Read by their number alone, the pieces of `A^Ab^AWAIT^Bfalse^Ax^B` are
a WAIT=false, which is answered before the disk has it, and those of `A^Ab^Ac^BDELAY^A3^B` hide a DELAY. An empty value is no value.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.broker.fastpath.seam import BurstResult
from aerobee.errors import ConfigError
from aerobee.message import pack_host
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, batch_body, send_frame

KEY = "UNIQ_KEY\x01U1\x02"
LOOSE = (
    "A\x01b\x01WAIT\x02false\x01x\x02",
    "A\x01b\x01c\x02DELAY\x013\x02",
    "A\x01b\x01c\x02TRAN_MSG\x01true\x02",
    "A\x01b\x01c\x02INNER_MULTI_DISPATCH\x01%LMQ%x\x02",
    "A\x02b\x01c\x01d\x02",
    "A\x01b\x02rest",
)
# No pair for the handlers, and no value for the fast path: WAIT would be false, TAGS no more what it was before.
EMPTY = (
    "A\x01\x02",
    "\x01\x02",
    "WAIT\x01\x02",
    "A\x01b\x02WAIT\x01",
    "WAIT\x01true\x02WAIT\x01\x02",
    "TAGS\x01T\x02TAGS\x01\x02",
    "UNIQ_KEY\x01\x02",
    "DELAY\x013\x02DELAY\x01\x02",
)
IN_TURN = ("", "A\x01b\x02", "A\x01b", "\x01b\x02", "WAIT\x01TRUE\x02", "A\x01b\x02A\x01c\x02")


def backend_or_skip(name: str) -> str:
    try:
        choose_backend(name)
    except ConfigError as error:
        pytest.skip(str(error))
    return name


def serve(path: Path, name: str, frame: bytes) -> BurstResult:
    sending = Sending(path, choice=choose_backend(backend_or_skip(name)), flush_disk_type="SYNC_FLUSH")
    try:
        backend = sending.fast_path._backend
        now_ms = sending.clock.now_ms()
        return backend.burst(frame, 0, pack_host("10.0.0.1", 1), now_ms, takes_sends=True, takes_pulls=True)
    finally:
        sending.close()


@pytest.mark.parametrize("name", [PYTHON, NATIVE])
@pytest.mark.parametrize("text", LOOSE + EMPTY)
def test_such_a_message_is_for_the_handlers(tmp_path: Path, name: str, text: str) -> None:
    for number, frame in enumerate(
        (
            send_frame(properties=KEY + text),
            send_frame(body=batch_body((b"x", KEY + text), (b"y", KEY)), code=320),
            send_frame(body=batch_body((b"x", KEY), (b"y", KEY)), code=320, properties=KEY + text),
        )
    ):
        result = serve(tmp_path / str(number), name, frame)
        assert result.is_slow
        assert not result.used
        assert not result.stored_count
        assert not result.replies + result.deferred_replies


@pytest.mark.parametrize("name", [PYTHON, NATIVE])
@pytest.mark.parametrize("text", IN_TURN)
def test_others_are_served_and_wait_for_the_disk(tmp_path: Path, name: str, text: str) -> None:
    frame = send_frame(properties=KEY + text)
    result = serve(tmp_path, name, frame)
    assert result.used == len(frame)
    assert result.deferred_replies
    assert not result.replies


async def test_the_handler_reads_it_as_every_consumer_does(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    reply = sending.handle(FakePeer(), send_frame(properties=KEY + LOOSE[0]))
    assert reply is not None
    assert reply.code == 0
    (record,) = sending.stored()
    assert record.properties["A"] == "b\x01WAIT"
    assert "WAIT" not in record.properties
    await sending.store.stop()
