"""Signatures: a value known from elsewhere, real frames of the C++ client, and what must not pass."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.errors import ConfigError
from aerobee.remoting.command import RemotingCommand, SerializeType
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.signature import (
    ACCESS_KEY,
    SIGNATURE,
    Credentials,
    is_signed_with,
    signature,
    signed_content,
)
from tests.captures import capture_names, captured

KEYS = Credentials("alice", "alicesecret")


def test_a_known_value() -> None:
    assert signature("12345678", b"RocketMQ") == "IUc8rrO/0gDch8CjObLQsW2rsiA="


def test_the_c_client_without_keys_signs_with_the_empty_one() -> None:
    signed = 0
    for name in capture_names():
        if not name.startswith("cpp-"):
            continue
        for frame in captured(name):
            command = decode_frame(frame.data)
            if command.is_response or SIGNATURE not in (command.ext or {}):
                continue
            assert is_signed_with(command, "")
            signed += 1
    assert signed > 10


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=20), max_size=6),
    st.binary(max_size=50),
    st.sampled_from([SerializeType.JSON, SerializeType.ROCKETMQ]),
)
def test_a_frame_and_its_command_are_signed_alike(
    ext: dict[str, str], body: bytes, kind: SerializeType
) -> None:
    for name in (ACCESS_KEY, SIGNATURE):
        ext.pop(name, None)
    command = RemotingCommand(310, dict(ext), body, opaque=7, serialize_type=kind)
    signed = decode_frame(KEYS.sign_frame(encode_frame(command)))
    assert (signed.body, signed.opaque, signed.code) == (body, 7, 310)
    KEYS.sign(command)
    assert signed.ext == command.ext
    assert is_signed_with(signed, "alicesecret")
    assert not is_signed_with(signed, "another secret")


@pytest.mark.parametrize("change", ["body", "value", "added", "signature", "key"])
def test_whatever_is_changed_breaks_it(change: str) -> None:
    command = RemotingCommand(310, {"b": "orders", "i": "x"}, b"body")
    KEYS.sign(command)
    assert is_signed_with(command, "alicesecret")
    assert command.ext is not None
    if change == "body":
        command.body = b"bodz"
    elif change == "value":
        command.ext["b"] = "bills"
    elif change == "added":
        command.ext["z"] = "1"
    elif change == "key":
        command.ext[ACCESS_KEY] = "root"
    else:
        command.ext[SIGNATURE] = ""
    assert not is_signed_with(command, "alicesecret")


def test_values_move_between_fields_unseen_for_names_are_not_signed() -> None:
    """A property of the protocol, which docs/access-control.md says."""
    one, other = RemotingCommand(10, {"a": "12", "b": "3"}), RemotingCommand(10, {"a": "1", "b": "23"})
    assert signed_content(one) == signed_content(other)


def test_clients_of_4_9_3_leave_one_field_out() -> None:
    old = RemotingCommand(12, {"key": "k", "_UNIQUE_KEY_QUERY": "true"}, version=399)
    new = RemotingCommand(12, {"key": "k", "_UNIQUE_KEY_QUERY": "true"}, version=400)
    assert (signed_content(old), signed_content(new)) == (b"k", b"truek")


def test_a_secret_does_not_show() -> None:
    assert "alicesecret" not in repr(KEYS)
    with pytest.raises(ConfigError, match="secret key"):
        Credentials("alice", "")


def test_a_frame_that_is_signed_stays() -> None:
    frame = KEYS.sign_frame(encode_frame(RemotingCommand(105, {"topic": "t"})))
    assert KEYS.sign_frame(frame) == frame
    assert orjson.loads(frame[8:])["extFields"]["topic"] == "t"
