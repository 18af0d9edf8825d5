"""Counting the messages of a batch body: the short way for messages of one size says what cutting them says."""

from __future__ import annotations

import random
import struct

import pytest

from aerobee.broker.send import send_header
from aerobee.broker.send.send_header import (
    ENTRIES_PER_TURN,
    batch_count,
    batch_pieces,
    parse_batch,
    takes_turns,
)
from aerobee.errors import MalformedRecord


def entry(body: int, properties: int) -> bytes:
    size = 22 + body + properties
    return struct.pack(">iiiii", size, 0, 0, 7, body) + bytes(body) + struct.pack(">H", properties) + bytes(properties)  # fmt: skip


def counted(body: bytes) -> int | str:
    try:
        return batch_count(body)
    except MalformedRecord as error:
        return str(error)


def cut(body: bytes) -> int | str:
    try:
        return len(parse_batch(body))
    except MalformedRecord as error:
        return str(error)


def bodies(seed: int) -> list[bytes]:
    draw = random.Random(seed)
    found = []
    for _ in range(300):
        sizes = (draw.choice((0, 1, 100)), draw.choice((0, 1, 70, 700, 32_767)))
        body = entry(*sizes) * draw.choice((0, 1, 2, 3, 64, 511, 512, 513) if sum(sizes) < 900 else (1, 2, 3))
        if draw.random() < 0.3:
            body += entry(draw.randrange(3), draw.randrange(3))
        if body and draw.random() < 0.4:
            changed = bytearray(body)
            changed[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
            body = bytes(changed)
        found.append(body[: draw.randrange(len(body) + 1)] if draw.random() < 0.1 else body)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_is_counted_as_it_is_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [(counted(body), takes_turns(body)) for body in bodies(seed)]
    monkeypatch.setattr(send_header, "_alike_sizes", lambda body: None)
    assert quick == [(cut(body), takes_turns(body)) for body in bodies(seed)]


def test_messages_of_one_size_are_not_cut_to_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_header, "_entries", None)
    assert batch_count(entry(128, 70) * 64) == 64
    assert not takes_turns(entry(128, 70) * 64)


def test_a_batch_of_one_size_takes_turns_by_its_properties() -> None:
    for count in (46, 47, 48, ENTRIES_PER_TURN):
        body = entry(10, 700) * count
        assert takes_turns(body) is (len(list(batch_pieces(body))) > 1)
    assert takes_turns(entry(10, 700) * 48)
    assert not takes_turns(entry(10, 700) * 47)
