"""Both backends of the client's codec: which one is taken, and the short form of tests/fuzz/client_differential.py."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from aerobee.client.base.results import SendResult, SendStatus
from aerobee.client.base.unique_id import UniqueIds
from aerobee.client.session import codec
from aerobee.client.session.codec import NATIVE, PYTHON, Codec, choose_codec, native_codec, python_codec
from aerobee.client.session.send_header import SendTemplate
from aerobee.errors import ConfigError
from aerobee.message import Message, MessageQueue
from tests.fuzz.client_differential import QUEUE, Disagreement, run, seen_by_callers

ROUNDS = int(os.environ.get("AEROBEE_CODEC_ROUNDS", "1500"))
ANSWER = (
    b'{"code":%d,"extFields":{"queueId":"%d","transactionId":"T","msgId":"M","queueOffset":"%d",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"JAVA","opaque":%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":513}'
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)  # peers that break the protocol
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(params=[PYTHON, NATIVE])
def backend(request: pytest.FixtureRequest) -> Codec:
    try:
        return choose_codec(request.param)
    except ConfigError as error:
        pytest.skip(str(error))


def answer(opaque: int, *, code: int = 0, queue_id: int = 1, queue_offset: int = 7) -> bytes:
    header = ANSWER % (code, queue_id, queue_offset, opaque)
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def stored(opaque: int, **changes: Any) -> SendResult:
    result = SendResult(SendStatus.SEND_OK, f"id-{opaque}", "M", QUEUE, 7, "T", "", "DefaultRegion")
    return replace(result, **changes)


def both() -> list[Codec]:
    try:
        return [python_codec(), native_codec()]
    except ConfigError as error:
        pytest.skip(str(error))


def test_both_codecs_agree_on_random_messages_and_replies() -> None:
    run(ROUNDS, int(os.environ.get("AEROBEE_CODEC_SEED", "20")), both())


@pytest.mark.parametrize("part", ["take_send_replies", "decode_messages", "ids", "template"])
def test_a_part_that_differs_is_noticed(part: str) -> None:
    """The check detects a difference in each part of a backend."""
    real = python_codec()

    def hook(connection: Any, data: bytes | bytearray, position: int) -> int:
        for opaque, (future, *times, note) in list(connection.pending.items()):
            if note is not None:
                connection.pending[opaque] = (future, *times, (note[0], note[1] + "x"))
        return real.take_send_replies(connection, data, position)

    other: dict[str, Any] = {
        "take_send_replies": hook,
        "decode_messages": lambda data, queue: real.decode_messages(data, queue)[1:],
        "ids": lambda ids: UniqueIds(ip="10.0.0.1", process_id=1, salt=0),
        "template": lambda _: SendTemplate(
            group="g", queue=QUEUE, default_topic="TBW102", default_queue_count=5
        ),
    }
    with pytest.raises(Disagreement, match=r"seed 3, round \d+"):
        run(200, 3, [real, replace(real, **{part: other[part]})])


async def test_eligible_replies_of_a_read_finish_their_sends(backend: Codec) -> None:
    data = answer(1) + answer(2, code=12, queue_offset=8) + answer(3, queue_id=5)
    *seen, is_closed, pending, unread = seen_by_callers(
        backend.take_send_replies, [1, 2, 3, 4], set(), [data]
    )
    assert seen == [
        stored(1),
        stored(2, status=SendStatus.FLUSH_SLAVE_TIMEOUT, queue_offset=8),
        stored(3, queue=MessageQueue(QUEUE.topic, QUEUE.broker_name, 5)),
        "no answer",
    ]
    assert (is_closed, pending, unread) == (False, [4], b"")


async def test_the_hook_takes_eligible_replies_and_leaves_others(backend: Codec) -> None:
    class Calls:
        pending: dict[int, Any]

    calls, loop = Calls(), asyncio.get_running_loop()
    calls.pending = {opaque: (loop.create_future(), 0.0, 9.0, "", (QUEUE, "id")) for opaque in (1, 2, 3)}
    calls.pending[3][0].cancel()
    calls.pending[9] = (loop.create_future(), 0.0, 9.0, "", None)
    first, second = answer(1), answer(2)
    for left in (answer(2, code=1), answer(8), answer(9), second[:-1], b"", b"\x00" * 8, second + b"x"):
        calls.pending[1] = (loop.create_future(), 0.0, 9.0, "", (QUEUE, "id"))
        used = len(first) + (len(second) if left == second + b"x" else 0)
        assert backend.take_send_replies(calls, b"ahead" + first + left, 5) == 5 + used
        assert 1 not in calls.pending
    assert backend.take_send_replies(calls, bytearray(answer(3)), 0) == len(
        answer(3)
    )  # its caller has given up
    assert sorted(calls.pending) == [9]


def test_a_frame_and_its_id(backend: Codec) -> None:
    ids = backend.ids(UniqueIds(ip="10.0.0.1", process_id=1, salt=2))
    template = backend.template(
        SendTemplate(group="g", queue=QUEUE, default_topic="TBW102", default_queue_count=4)
    )
    frame, unique_id = template.begin(ids, 7, 1, 1_790_000_000_000, Message("orders", b"body", tag='"a"'))
    assert frame.endswith(b'"opaque":7,"serializeTypeCurrentRPC":"JSON","version":513}body')
    assert f"UNIQ_KEY\\u0001{unique_id}\\u0002".encode() in frame
    assert b'TAGS\\u0001\\"a\\"\\u0002"' in frame
    assert ids.next_id(1_790_000_000_000) == unique_id[:-4] + "0002"
    frame, _ = template.begin(ids, 8, 1, 1_790_000_000_000, Message("orders", b"body", ack="flushed"))
    assert b"ACK_LEVEL\\u0001flushed\\u0002" in frame


def test_the_native_codec_is_taken_when_it_is_there_in_this_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(codec.VARIABLE, raising=False)
    assert choose_codec("python").name == "python"
    with pytest.raises(ConfigError, match="must be python, native or empty"):
        choose_codec("rust")
    monkeypatch.setattr(codec, "native", None)
    assert choose_codec().name == "python"
    with pytest.raises(
        ConfigError, match=r"AEROBEE_CLIENT_CODEC is native, but .*no native module.*make native"
    ):
        choose_codec("native")
    monkeypatch.setattr(codec, "native", type("Old", (), {"CODEC_VERSION": -1}))
    assert choose_codec().name == "python"
    with pytest.raises(ConfigError, match="codec version -1"):
        choose_codec("native")
