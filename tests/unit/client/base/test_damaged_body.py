"""A body that does not match its CRC is not given to a handler as if nothing were."""

from __future__ import annotations

import pytest

from aerobee.client.base.received import decode_messages, decode_stored_messages
from aerobee.client.base.verdict import give_back_after
from aerobee.errors import MessageDamaged
from aerobee.message import MessageQueue, encode_record

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
QUEUE = MessageQueue("orders", "broker-a", 3)


def record(body: bytes) -> bytes:
    return encode_record(
        topic=b"orders", queue_id=3, queue_offset=7, physical_offset=900, body=body, properties=b"", flag=0,
        sys_flag=0, born_timestamp=1, born_host=HOST, store_timestamp=2, store_host=HOST, reconsume_times=0,
        prepared_transaction_offset=0,
    )  # fmt: skip


@pytest.mark.parametrize("bit", range(0, 8 * 5, 7))
def test_one_flipped_bit_is_noticed_and_says_which_message_it_is(bit: int) -> None:
    data = bytearray(record(b"whole") + record(b"next"))
    at = data.index(b"whole") + bit // 8
    data[at] ^= 1 << bit % 8
    damaged, following = decode_messages(bytes(data), QUEUE)
    with pytest.raises(
        MessageDamaged, match=r"message 7 of queue 3 of orders at broker broker-a .* log byte 900"
    ):
        _ = damaged.body
    assert following.body == b"next"
    with pytest.raises(MessageDamaged):
        _ = decode_stored_messages(bytes(data), "broker-a")[0].body


def test_it_goes_to_the_dead_letters_at_once_with_the_reason() -> None:
    verdict = give_back_after(MessageDamaged("the body of message 7"))
    assert verdict.is_dead
    assert verdict.reason == "the body is damaged"


@pytest.mark.parametrize("kind", [1, 1 | 1 << 8, 1 | 2 << 8, 1 | 3 << 8])
def test_a_body_that_does_not_decompress_is_named_and_shown_as_stored(kind: int) -> None:
    data = encode_record(
        topic=b"orders", queue_id=3, queue_offset=7, physical_offset=900, body=b"no stream", properties=b"", flag=0,
        sys_flag=kind, born_timestamp=1, born_host=HOST, store_timestamp=2, store_host=HOST, reconsume_times=0,
        prepared_transaction_offset=0,
    )  # fmt: skip
    (message,) = decode_messages(data, QUEUE)
    with pytest.raises(
        MessageDamaged,
        match=r"message 7 of queue 3 of orders at broker broker-a cannot be read: .*decompress",
    ):
        _ = message.body
    assert message.body_or_stored()[0] == b"no stream"
