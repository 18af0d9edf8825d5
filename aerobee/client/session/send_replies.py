"""Processes the replies to sends in one read from a connection: frames in, finished futures out. Pure.

A burst hook (remoting/connection.py). It handles ordinary replies to sends of Producer.send, and stops at the first
other frame: a failure, another call's response, a request, a partial frame, invalid bytes. The general frame handler
then handles that frame; it covers every case and is only slower. An ordinary reply has:

    JSON header, no body | flag 1 | code 0, 10, 11 or 12 | extFields of text alone, with queueId, queueOffset, msgId
    | a call is pending under its opaque whose note is (queue, unique id)
"""

from __future__ import annotations

from asyncio import Future
from struct import Struct
from typing import Any, Protocol

import orjson

from aerobee.client.base.results import SendResult
from aerobee.client.session.send_header import STATUS
from aerobee.message import MessageQueue
from aerobee.remoting.protocol import LEVEL_FIELD

ANSWER_BYTES_MAX = 64 * 1024  # maximum header size of an ordinary reply, far above every actual one
_HEAD = Struct(">II")
_HEAD_BYTES = _HEAD.size
_unpack_head = _HEAD.unpack_from
_loads = orjson.loads
_ONLY_TEXT = frozenset((str,))


class Pending(Protocol):
    """The part of Connection used here. Each call: (future, started, deadline, request, note)."""

    pending: dict[int, tuple[Future[Any], float, float, str, Any]]


def take_send_replies(connection: Pending, data: bytes | bytearray, position: int) -> int:
    """Finish the sends whose ordinary replies are in `data` from `position` on; return the position of the first other
    byte."""
    pending = connection.pending
    end = len(data)
    while end - position >= _HEAD_BYTES:
        length, header_length = _unpack_head(data, position)
        stop = position + 4 + length
        if length != header_length + 4 or stop > end or length > ANSWER_BYTES_MAX:
            break
        try:
            fields = _loads(data[position + 8 : stop])
            ext, opaque, code, version = (
                fields["extFields"],
                fields["opaque"],
                fields["code"],
                fields["version"],
            )
            # Identity, not equality: the general handler refuses 1.0 and true.
            if type(opaque) is not int or type(code) is not int or type(fields["flag"]) is not int:
                break
            if fields["flag"] != 1 or type(version) is not int or not -0x80000000 <= version <= 0x7FFFFFFF:
                break
            if (
                not _ONLY_TEXT.issuperset(map(type, ext.values()))
                or type(fields.get("remark", "")) is not str
            ):
                break
            if LEVEL_FIELD in ext:
                break
            future, _, _, _, (queue, unique_id) = pending[opaque]
            queue_id = int(ext["queueId"])
            result = SendResult(
                STATUS[code],
                unique_id,
                ext["msgId"],
                queue
                if queue_id == queue.queue_id
                else MessageQueue(queue.topic, queue.broker_name, queue_id),
                int(ext["queueOffset"]),
                ext.get("transactionId", ""),
                ext.get("recallHandle", ""),
                ext.get("MSG_REGION", ""),
                ext.get("TRACE_ON") != "false",
                "duplicate" in ext,
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            break
        del pending[opaque]
        if not future.done():
            future.set_result(result)
        position = stop
    return position
