"""Both backends of the client's codec compared: same ids, same frames, same results, same errors.

    python tests/fuzz/client_differential.py [--rounds 100000] [--seed 1]

A round is a message that is sent (ordinary or odd: keys, tags, delays, text that is not Unicode, bodies and numbers at
their limits) and a read of answers (ordinary ones, odd ones, broken ones) that arrives in one piece or in several. For the
answers there is a third one: a connection without any burst hook, on which every answer takes the usual way. What a caller
sees must be the same for all three. And the records of a pull answer, whole and broken.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import struct
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.unique_id import UniqueIds
from aerobee.client.session.codec import Codec, native_codec, python_codec
from aerobee.client.session.send_header import SendTemplate, decode_send_reply
from aerobee.errors import AerobeeError
from aerobee.message import Message, MessageQueue, encode_record, pack_host
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection, Endpoint
from aerobee.remoting.frame import encode_frame
from tests.fakes import FakeTransport

ADDRESS = "127.0.0.1:10911"
QUEUE = MessageQueue("orders", "broker-a", 1)
NOW_MS = 1_790_000_000_000
MONTH_MS = 31 * 24 * 3600 * 1000
UNSEEN = "no answer"
TEXTS = (
    "a",
    "tag",
    'quote"d',
    "back\\slash",
    "tab\tnewline\n",
    "\x00\x1f\x7f",
    "ä€😀",
    "x" * 8000,
    "\ud800",
    "ä" * 9000,
)
NUMBERS = (0, 1, -1, 255, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**64, 10**30)


class Disagreement(Exception):
    """The twins differ; the text has seed, round and both outcomes."""


def outcome_of(call: Callable[[], object]) -> object:
    """What a call returns, or the type and text of what it raises."""
    try:
        return call()
    except AerobeeError as error:
        return type(error).__name__, str(error)


# --- what is sent


def odd_message(pick: random.Random) -> Message | None:
    """A message as a program may make it; None for one that cannot be made."""
    body = pick.choice(
        (b"", b"x" * 128, b"\x00\xff" * pick.randrange(40), b"y" * pick.choice((4096, 70_000)))
    )
    if pick.random() < 0.002:
        body = b"z" * pick.choice((16 * 1024 * 1024 - 600, 16 * 1024 * 1024))
    options: dict[str, Any] = {}
    if pick.random() < 0.4:
        options["tag"] = pick.choice(TEXTS)
    if pick.random() < 0.4:
        options["keys"] = tuple(pick.choice(TEXTS) for _ in range(pick.randrange(4)))
    if pick.random() < 0.2:
        options["properties"] = {pick.choice(TEXTS): pick.choice(TEXTS) for _ in range(pick.randrange(3))}
    if pick.random() < 0.3:
        options["flag"] = pick.choice(NUMBERS)
    if pick.random() < 0.1:
        options["wait_store_ok"] = False
    odd = pick.random()
    if odd < 0.1:
        options["delay_level"] = pick.randrange(1, 19)
    elif odd < 0.2:
        options["deliver_after"] = timedelta(seconds=pick.randrange(100))
    elif odd < 0.25:
        options["deliver_at"] = float(pick.randrange(10**9))
    if pick.random() < 0.1:
        options["priority"] = pick.randrange(10)
    try:
        return Message("orders", body, **options)
    except AerobeeError:
        return None


def check_sends(pick: random.Random, counterparts: list[tuple[Any, Any]]) -> None:
    """One message through both. `twins`: (ids, template)."""
    message = odd_message(pick)
    if message is None:
        return
    now_ms = NOW_MS + pick.choice((0, 0, 0, 1, -1, 5000, MONTH_MS, -MONTH_MS, 40 * MONTH_MS))
    opaque, queue_id = pick.randrange(2**31), pick.randrange(64)
    found = [
        outcome_of(lambda ids=ids, template=template: template.begin(ids, opaque, queue_id, now_ms, message))
        for ids, template in counterparts
    ]
    if found[0] != found[1]:
        raise Disagreement(f"begin of {message!r:.300}: {found[0]!r:.600} and {found[1]!r:.600}")
    numbers = [opaque, queue_id, pick.choice(NUMBERS), now_ms, message.flag]
    text = "".join(pick.choice(TEXTS) for _ in range(pick.randrange(4)))
    frames = [
        outcome_of(lambda t=template: t.frame(*numbers, text, message.body)) for _, template in counterparts
    ]
    if frames[0] != frames[1]:
        raise Disagreement(f"frame of {numbers} {text!r:.300}: {frames[0]!r:.600} and {frames[1]!r:.600}")
    next_ids = [ids.next_id(now_ms) for ids, _ in counterparts]
    if next_ids[0] != next_ids[1]:
        raise Disagreement(f"ids at {now_ms}: {next_ids}")


# --- what is answered


def odd_answer(pick: random.Random, opaque: int) -> bytes:
    """One frame: mostly an answer to a send."""
    ext: dict[str, Any] = {
        "queueId": str(pick.choice((1, 1, 1, 7))),
        "transactionId": "7F000001",
        "msgId": "7F00000100002A9F0000000000000007",
        "queueOffset": str(pick.choice((0, 7, 2**40, 2**63 - 1))),
        "MSG_REGION": pick.choice(("DefaultRegion", "elsewhere", "ä")),
        "TRACE_ON": pick.choice(("true", "false")),
    }
    header: dict[str, Any] = {
        "code": pick.choice((0, 0, 0, 0, 10, 11, 12)),
        "extFields": ext,
        "flag": 1,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }
    body = b""
    for _ in range(pick.choice((0, 0, 0, 1, 1, 2, 3))):
        kind = pick.randrange(14)
        if kind == 0:
            ext.pop(pick.choice(list(ext) or ["-"]), None)
        elif kind == 1:
            ext[pick.choice(("queueId", "queueOffset"))] = pick.choice(
                ("", "-1", "+1", " 7", "1_0", "007", "9" * 18, "9" * 19, "9" * 30, "٣", "1.0", "x")
            )
        elif kind == 2:
            ext[pick.choice((*ext, "new"))] = pick.choice(
                (7, True, None, 1.5, [], {"a": 1}, "", 'q"', "\x01")
            )
        elif kind == 3:
            ext[pick.choice(("duplicate", "recallHandle", "unknown"))] = pick.choice(("true", "", "handle"))
        elif kind == 4:
            header["code"] = pick.choice((1, 2, 14, 17, 1500, -1, True, 0.0, "0", 2**31, None, 10.0))
        elif kind == 5:
            header["flag"] = pick.choice((0, 2, 3, True, 1.0, "1", None))
        elif kind == 6:
            header["version"] = pick.choice((0, -1, 2**31, True, "513", None, 1.0))
        elif kind == 7:
            header["remark"] = pick.choice(("", "stored", 'with "quotes"', None, 7, ["a"]))
        elif kind == 8:
            header["opaque"] = pick.choice((opaque + 1, -opaque, str(opaque), None, True))
        elif kind == 9:
            header["extFields"] = pick.choice((None, {}, [], "text", 7))
        elif kind == 10:
            header[pick.choice(("extra", "language"))] = pick.choice((7, "PYTHON", None, [1], {"b": 2}))
        elif kind == 11:
            header.pop(pick.choice(list(header)), None)
        elif kind == 12:
            body = b"a body"
        else:
            items = list(header.items())
            pick.shuffle(items)
            header = dict(items)
    try:
        text = orjson.dumps(header, option=orjson.OPT_INDENT_2 if pick.random() < 0.05 else 0)
    except TypeError:
        text = b"{}"
    if pick.random() < 0.03:
        text = text[:-1] + b',"code":0}'
    if pick.random() < 0.03:
        text = text.replace(b'"msgId"', b'"queueId":"1","msgId"').replace(b'"code"', b'"extFields":{},"code"')
    if pick.random() < 0.03:
        text = text.replace(b"7F", pick.choice((b"\\u0037F", b"\xff", b"\x00", b"\\ud800", b"\\x")), 1)
    if pick.random() < 0.02:
        return encode_frame(RemotingCommand(0, {"queueId": "1"}, opaque=opaque, flag=1, serialize_type=1))
    word = len(text) | (pick.choice((0, 0, 1, 2)) << 24 if pick.random() < 0.02 else 0)
    frame = struct.pack(">II", 4 + len(text) + len(body), word) + text + body
    if pick.random() < 0.04:
        changed = bytearray(frame)
        for _ in range(pick.randrange(1, 4)):
            changed[pick.randrange(len(changed))] = pick.randrange(256)
        return bytes(changed)
    return frame


def seen_by_callers(
    hook: Callable[[Any, bytes | bytearray, int], int] | None,
    opaques: list[int],
    given_up: set[int],
    pieces: list[bytes],
) -> list[object]:
    """Send under `opaques`, read `pieces`; what each caller gets, whether the connection is closed, what still waits."""
    wire = FakeTransport(("127.0.0.1", 10911))
    connection = Connection(Endpoint({}, burst=hook), address=ADDRESS, server_side=False)
    connection.connection_made(wire)
    now = asyncio.get_running_loop().time()
    calls = [
        connection.try_call(b"", opaque, now, now + 60.0, "SEND_MESSAGE_V2", (QUEUE, f"id-{opaque}"))
        for opaque in opaques
    ]
    futures = [cast("asyncio.Future[Any]", call) for call in calls]
    for opaque, future in zip(opaques, futures, strict=True):
        if opaque in given_up:
            future.cancel()
    for piece in pieces:
        connection.data_received(piece)
    seen: list[object] = [_seen(future, opaque) for opaque, future in zip(opaques, futures, strict=True)]
    seen += [
        wire.is_closed,
        sorted(connection.pending),
        bytes(connection._decoder.buffer)[connection._decoder.position :],
    ]
    connection.connection_lost(None)
    for future in futures:
        if future.done() and not future.cancelled():
            future.exception()
    return seen


def _seen(future: asyncio.Future[Any], opaque: int) -> object:
    if future.cancelled():
        return "given up"
    if not future.done():
        return UNSEEN
    error = future.exception()
    if error is not None:
        return type(error).__name__
    reply = future.result()
    if not isinstance(reply, RemotingCommand):
        return reply
    return outcome_of(lambda: decode_send_reply(reply, QUEUE, f"id-{opaque}", ADDRESS))


def check_answers(pick: random.Random, codecs: list[Codec]) -> None:
    """One read through the usual way and through both twins."""
    opaques = [100 + number for number in range(pick.randrange(1, 9))]
    answered = [opaque for opaque in opaques if pick.random() < 0.9] + [5] * (pick.random() < 0.05)
    data = b"".join(odd_answer(pick, opaque) for opaque in answered)
    cuts = sorted(pick.randrange(len(data) + 1) for _ in range(pick.choice((0, 0, 0, 1, 2, 5))))
    pieces = [data[at:end] for at, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if at < end]
    given_up = {opaque for opaque in opaques if pick.random() < 0.05}
    usual = seen_by_callers(None, opaques, given_up, pieces)
    for codec in codecs:
        seen = seen_by_callers(codec.take_send_replies, opaques, given_up, pieces)
        if seen != usual:
            raise Disagreement(f"{codec.name}: {seen}\nthe usual way: {usual}\nread: {pieces}")


# --- what is pulled


def odd_records(pick: random.Random) -> bytes:
    """Records as a broker stores them, some of other topics, with IPv6 hosts or as inner batches, some broken."""
    parts = []
    for number in range(pick.randrange(6)):
        host = pack_host("127.0.0.1" if pick.random() < 0.9 else "::1", pick.randrange(65_536))
        part = encode_record(
            topic=b"orders" if pick.random() < 0.9 else pick.choice((b"order", b"orders2", b"o" * 200)),
            queue_id=1,
            queue_offset=pick.choice((number, 2**40, -1)),
            physical_offset=pick.randrange(2**40),
            body=pick.choice((b"", b"x" * 128, b"y" * 5000)),
            properties=pick.choice((b"", b"UNIQ_KEY\x01A\x02", b"\xff\x01\x02", b"K\x01" + b"v" * 30_000)),
            flag=pick.choice((0, 1, -1)),
            sys_flag=pick.choice((0, 0, 0, 1, 0x40, 0x80, 0xC0, -1)),
            born_host=host,
            store_host=host,
        )
        if pick.random() < 0.1:
            changed = bytearray(part)
            changed[pick.randrange(len(part)) if pick.random() < 0.5 else pick.randrange(88)] = (
                pick.randrange(256)
            )
            part = bytes(changed)
        parts.append(part)
    data = b"".join(parts)
    return data[: pick.randrange(len(data) + 1)] if pick.random() < 0.1 else data


def check_records(pick: random.Random, codecs: list[Codec]) -> None:
    """One pull answer through both."""
    data = odd_records(pick)
    queue = MessageQueue(
        pick.choice(("orders", "orders", "orders", "%RETRY%g", "%LMQ%orders")), "broker-a", 1
    )

    def decoded(codec: Codec) -> object:
        messages = outcome_of(lambda: codec.decode_messages(data, queue))
        if not isinstance(messages, list):
            return messages
        fields = [name for name in ReceivedMessage.__slots__ if name != "_head"]
        return [
            [getattr(message, name, None) for name in fields] + [message._fields()] for message in messages
        ]

    found = [decoded(codec) for codec in codecs]
    if found[0] != found[1]:
        raise Disagreement(
            f"records of {queue}: {found[0]!r:.800} and {found[1]!r:.800}\nread: {data!r:.2000}"
        )


async def _run(rounds: int, seed: int, codecs: list[Codec]) -> None:
    pick = random.Random(seed)
    ids = {"ip": pick.choice(("10.0.0.1", "::1")), "process_id": pick.randrange(99_999), "salt": seed}
    template: dict[str, Any] = {"group": 'g"roup', "queue": QUEUE, "default_topic": "TBW102"}
    counterparts = [
        (
            codec.ids(UniqueIds(**ids, counter=65_000)),
            codec.template(SendTemplate(**template, default_queue_count=4)),
        )
        for codec in codecs
    ]
    for number in range(rounds):
        try:
            check_sends(pick, counterparts)
            check_answers(pick, codecs)
            check_records(pick, codecs)
        except Disagreement as error:
            raise Disagreement(f"seed {seed}, round {number}: {error}") from None


def run(rounds: int, seed: int, codecs: list[Codec] | None = None) -> None:
    """Raises Disagreement; ConfigError when there is no native codec."""
    asyncio.run(_run(rounds, seed, codecs or [python_codec(), native_codec()]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    run(options.rounds, options.seed)
    print(f"{options.rounds} rounds of seed {options.seed}, no difference")


if __name__ == "__main__":
    main()
