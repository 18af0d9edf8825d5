"""Selects the backend that encodes and decodes a client's frames: native (module aerobee_native) or Python.

As with the broker's fast path (aerobee/broker/fastpath/choice.py) the Python codec is the reference implementation and always available, and
the native one is used when it is installed and has this version. AEROBEE_CLIENT_CODEC=python or =native forces one.

    ids               unique_id.py     UniqueIds
    frames of sends   send_header.py   SendTemplate
    answers to sends  send_replies.py  take_send_replies
    pulled records    received.py      decode_messages
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from aerobee.client.base.received import ReceivedMessage, decode_messages
from aerobee.client.base.results import SendResult
from aerobee.client.base.unique_id import UniqueIds, month_bounds_ms
from aerobee.client.session.send_header import STATUS, Ids, SendTemplate
from aerobee.client.session.send_replies import take_send_replies
from aerobee.errors import ConfigError
from aerobee.message import Message, MessageQueue
from aerobee.quick_init import open_counterpart

native: ModuleType | None
try:
    import aerobee_native as native
except ImportError:
    native = None

CODEC_VERSION = 2  # version of the arguments and results of the native parts
VARIABLE = "AEROBEE_CLIENT_CODEC"
PYTHON, NATIVE = "python", "native"


class Template(Protocol):
    """SendTemplate of both backends. A protocol: Python and native code implement it."""

    def frame(
        self,
        opaque: int,
        queue_id: int,
        sys_flag: int,
        born_timestamp_ms: int,
        flag: int,
        properties: str,
        body: bytes,
    ) -> bytes: ...

    def begin(
        self, ids: Ids, opaque: int, queue_id: int, now_ms: int, message: Message
    ) -> tuple[bytes, str]: ...


@dataclass(frozen=True, slots=True)
class Codec:
    """`name` is "python" or "native". `ids` and `template` convert the Python part to that backend's part."""

    name: str
    ids: Callable[[UniqueIds], Ids]
    template: Callable[[SendTemplate], Template]
    take_send_replies: Callable[[Any, bytes | bytearray, int], int]
    decode_messages: Callable[[bytes, MessageQueue], list[ReceivedMessage]]


def python_codec() -> Codec:
    return Codec(PYTHON, lambda ids: ids, lambda template: template, take_send_replies, decode_messages)


def native_codec() -> Codec:
    """Load the native backend. Raises ConfigError when it is not installed, or has another version."""
    version = getattr(native, "CODEC_VERSION", None)
    if native is None or version != CODEC_VERSION:
        why = (
            "this installation has no native module"
            if native is None
            else f"the native module has codec version {version}, not {CODEC_VERSION}"
        )
        raise ConfigError(f"{why}: install a wheel of this platform, run `make native` in a checkout")
    return Codec(
        NATIVE,
        lambda ids: native.UniqueIds(ids.prefix, ids.counter, month_bounds_ms),
        native.SendTemplate,
        native.SendReplies(SendResult, open_counterpart(SendResult), MessageQueue, STATUS),
        partial(decode_messages, take_records=native.take_records),
    )


def choose_codec(wanted: str | None = None) -> Codec:
    """The backend to use; `wanted` is AEROBEE_CLIENT_CODEC unless given. Raises ConfigError when it is not available."""
    wanted = os.environ.get(VARIABLE, "") if wanted is None else wanted
    if wanted not in ("", PYTHON, NATIVE):
        raise ConfigError(f"{VARIABLE} is {wanted!r}: it must be {PYTHON}, {NATIVE} or empty")
    if wanted == PYTHON:
        return python_codec()
    try:
        return native_codec()
    except ConfigError as error:
        if wanted == NATIVE:
            raise ConfigError(f"{VARIABLE} is {NATIVE}, but {error}, or unset {VARIABLE}") from error
        return python_codec()
