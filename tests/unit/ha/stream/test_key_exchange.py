"""Brokers show each other that they have one key: whole, a byte at a time, with another key, and replayed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.errors import MalformedFrame
from aerobee.ha.stream.key_exchange import KeyExchange

KEY, OTHER_KEY = b"k" * 16, b"o" * 16
OF_SLAVE, OF_MASTER = b"s" * 16, b"m" * 16


def sides(slave_key: bytes = KEY, master_key: bytes = KEY) -> tuple[KeyExchange, KeyExchange]:
    return KeyExchange(slave_key, OF_SLAVE, is_master=False), KeyExchange(
        master_key, OF_MASTER, is_master=True
    )


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_both_are_done_and_what_follows_is_kept(size: int) -> None:
    slave, master = sides()
    to_master = slave.begin()
    to_slave = b"".join(master.feed(to_master[at : at + size]) for at in range(0, len(to_master), size))
    assert not master.is_done
    last = b"".join(slave.feed(to_slave[at : at + size]) for at in range(0, len(to_slave), size))
    assert slave.is_done
    assert master.feed(last + b"log bytes") == b""
    assert (master.is_done, master.rest) == (True, b"log bytes")


def test_another_key_is_refused_by_either_side() -> None:
    slave, master = sides(OTHER_KEY)
    with pytest.raises(MalformedFrame, match="another one"):
        slave.feed(master.feed(slave.begin()))
    _, master = sides()
    impostor = KeyExchange(OTHER_KEY, OF_SLAVE, is_master=False)
    master.feed(impostor.begin())
    with pytest.raises(MalformedFrame, match="another one"):
        master.feed(b"\0" * 32)


def test_a_slave_without_a_key_is_told_apart_at_its_first_bytes() -> None:
    _, master = sides()
    with pytest.raises(MalformedFrame, match="haSharedKey is set here"):
        master.feed((0).to_bytes(8, "big"))


def test_an_overheard_proof_cannot_be_replayed() -> None:
    slave, master = sides()
    overheard = slave.feed(master.feed(slave.begin()))
    new_master = KeyExchange(KEY, b"n" * 16, is_master=True)
    new_master.feed(slave.begin())
    with pytest.raises(MalformedFrame):
        new_master.feed(overheard)


@given(st.binary(max_size=200))
def test_random_bytes_open_nothing(data: bytes) -> None:
    for side in sides():
        try:
            side.feed(data)
        except MalformedFrame:
            continue
        assert not side.is_done
