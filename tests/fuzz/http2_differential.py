"""HTTP/2 cores compared: Python's, the native one, and Python's over the package h2.

The same bytes at the same times give the same events, the same bytes and the same ends.

    python tests/fuzz/http2_differential.py [--rounds 100000] [--seconds 60] [--seed 1] [--short] [--alone]

A round is a connection: frames of a client that are ordinary, odd (padding, priorities, trailers, continuations, settings,
windows, compressed messages, malformed headers) or damaged, in pieces; answers of services, large ones too; time that passes,
drain and loss. After each step the cores must have had the same events, written the same bytes, and keep the same counts.
"""

from __future__ import annotations

import argparse
import gzip
import random
import struct
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from hpack import Encoder

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aerobee.grpc.call import CallEnded, CallStarted, Event, RequestMessage
from aerobee.grpc.core import Http2Core, MakeHttp2
from aerobee.grpc.frame_scanner import GOAWAY, PREFACE
from aerobee.grpc.http2_connection import Http2Connection
from aerobee.grpc.limits import KIB, Http2Limits, Rate
from aerobee.grpc.message_reader import frame_message
from aerobee.grpc.status import GrpcStatus
from tests.fuzz.http2_reference import Http2Reference

PATHS = ("/apache.rocketmq.v2.MessagingService/SendMessage", "/a", "", "/\xe9")
# Headers that may make a request malformed, and those that always do.
BREAKING = ("content-length", "host", "x-bytes")
MALFORMED = [
    ("x", " padded"), ("x", "padded\t"), ("x", "two\nlines"), ("x", "\r"), ("x", "nul\0"), ("with space", "x"), ("\xe4", "x"),
    ("colon:inside", "x"), (":", "x"), ("\x7f", "x"), ("te", "Trailers"), ("te", " trailers"), ("host", "broker"),
]  # fmt: skip
WIDE = Rate(1_000_000, 0.0)
LIMITS = (
    Http2Limits(),
    Http2Limits(
        concurrent_streams_max=3,
        header_block_bytes_max=300,
        header_list_bytes_max=600,
        header_table_bytes_max=4 * KIB,
        message_bytes_max=2_000,
        receiving_bytes_max=3_000,
        unsent_bytes_max=1_000,
        unsent_bytes_end=50_000,
        stream_window_bytes=5_000,
        connection_window_bytes=70_000,
        resets=Rate(3, 1.0),
        pings=Rate(3, 1.0),
        settings=Rate(3, 1.0),
        empty_frames=Rate(5, 1.0),
    ),
    Http2Limits(
        message_bytes_max=64 * KIB, resets=WIDE, pings=WIDE, settings=WIDE, empty_frames=WIDE, preface_s=2.5
    ),
)


class Disagreement(Exception):
    """The cores differ; the text says in what."""


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


class Client:
    """Writes frames of one connection. Each method returns bytes."""

    def __init__(self, pick: random.Random, *, is_calm: bool) -> None:
        """`is_calm`: it breaks no rule of HTTP/2, so that its connection lasts."""
        self.pick = pick
        self.is_calm = is_calm
        self.encoder = Encoder()
        self.next_stream = 1
        self.open: list[int] = []

    def odd(self, probability: float) -> bool:
        """Whether to break a rule here."""
        return not self.is_calm and self.pick.random() < probability

    def headers(self) -> list[tuple[str, bytes | str]]:
        pick = self.pick
        found: list[tuple[str, bytes | str]] = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", pick.choice(PATHS[:2]) if pick.random() < 0.95 else pick.choice(PATHS)),
            (":authority", "broker"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("x-mq-client-id", "client"),
        ]
        odd: list[tuple[str, bytes | str]] = [
            ("grpc-timeout", pick.choice(("3S", "100m", "5H", "1u"))),
            ("grpc-timeout", pick.choice(("", "S", "123456789S", "3s", b"\xd9\xa3S", "-1S"))),
            ("grpc-encoding", pick.choice(("gzip", "deflate", "identity", "snappy", "it's"))),
            ("x-mq-request-id", str(pick.random())),
            ("x-long", "v" * pick.randint(0, 400)),
            ("x-bytes", pick.randbytes(5)),
            ("host", pick.choice(("broker", "broker", "other"))),
            ("x-odd", pick.choice(("\x0bvt", "tab\tinside", "\x7f", "\xa0"))),
            ("content-length", pick.choice(("0", "10", "007", "", "1x", "9" * 30))),
            ("user-agent", "grpc"),
        ]
        for header in odd:
            if pick.random() < 0.1 and not (self.is_calm and header[0] in BREAKING):
                found.append(header)
        if self.odd(0.05):
            found.insert(
                pick.randrange(len(found) + 1),
                pick.choice(
                    [
                        ("Upper", "x"), ("connection", "close"), ("te", "gzip"), (":status", "100"), (":status", "200"),
                        (":method", "POST"), (":other", "x"), ("content-type", "text/plain"), ("", "x"), (":method", "GET"),
                        *MALFORMED,
                    ]
                ),
            )  # fmt: skip
        if self.odd(0.03):
            found.pop(pick.randrange(len(found)))
        return found

    def block(self, headers: list[tuple[str, bytes | str]]) -> bytes:
        pick = self.pick
        encoded = bytes(
            self.encoder.encode(
                [(name, value) for name, value in headers],
                huffman=pick.random() < 0.7,
            )
        )
        if self.odd(0.02):
            encoded = b"\x3f" + bytes((pick.randrange(128),)) + encoded  # another table size
        return encoded

    def padded(self, payload: bytes, flags: int) -> tuple[bytes, int]:
        if self.pick.random() > 0.1:
            return payload, flags
        size = self.pick.choice((0, 1, 7, 255))
        return bytes((size,)) + payload + bytes(size // 2 if self.odd(0.1) else size), flags | 0x8

    def call(self) -> bytes:
        """The headers of a new call."""
        pick = self.pick
        stream, self.next_stream = self.next_stream, self.next_stream + pick.choice((2, 2, 2, 2, 4))
        if self.odd(0.02):
            stream = pick.choice((stream + 1, max(1, stream - 2), 0))
        self.open.append(stream)
        return self.header_frames(stream, self.block(self.headers()), 0x1 if pick.random() < 0.05 else 0)

    def header_frames(self, stream: int, block: bytes, flags: int) -> bytes:
        pick = self.pick
        if pick.random() < 0.1:
            block, flags = struct.pack(">IB", stream if self.odd(0.3) else 0, 9) + block, flags | 0x20
        if pick.random() > 0.1:
            payload, flags = self.padded(block, flags | 0x4)
            return frame(1, payload, flags, stream)
        cut = pick.randint(0, len(block))
        data = frame(1, block[:cut], flags, stream)
        if self.odd(0.1):
            data += frame(9, b"", 0, stream) * pick.choice((1, 62, 70))
        return data + frame(9, block[cut:], 0x4, stream + 2 if self.odd(0.05) else stream)

    def message(self) -> bytes:
        pick = self.pick
        body = pick.randbytes(pick.choice((0, 1, 100, 1_000, 3_000, 20_000)))
        kind = pick.random()
        if kind < 0.85:
            return frame_message(body)
        packed = gzip.compress(body) if kind < 0.93 else zlib.compress(body)
        if kind > 0.97:
            packed = packed[:-3]
        return struct.pack(">BI", 2 if kind > 0.995 else 1, len(packed)) + packed

    def data(self) -> bytes:
        """DATA of an open call, in one frame or more."""
        pick = self.pick
        if self.is_calm and not self.open:
            return b""
        stream = pick.choice(self.open) if self.open and not self.odd(0.03) else pick.randint(0, 20)
        whole = b"".join(self.message() for _ in range(pick.choice((1, 1, 1, 0, 2))))
        if pick.random() < 0.05:
            whole = whole[: pick.randint(0, len(whole))]
        ends = 0x1 if pick.random() < 0.8 else 0
        found = b""
        while len(whole) > 15_000 or (whole and pick.random() < 0.2):
            size = pick.randint(1, min(len(whole), 15_000))
            found += frame(0, whole[:size], 0, stream)
            whole = whole[size:]
        payload, flags = self.padded(whole, ends)
        if ends and stream in self.open and not self.odd(0.1):
            self.open.remove(stream)
        return found + frame(0, payload, flags, stream)

    def trailers(self) -> bytes:
        if not self.open:
            return b""
        flags = 0 if self.odd(0.2) else 0x1
        stream = self.pick.choice(self.open)
        if flags:
            self.open.remove(stream)
        found: list[tuple[str, bytes | str]] = [("a-trailer", "x")]
        if self.odd(0.2):
            found.append(self.pick.choice([(":path", "/a"), ("connection", "close"), *MALFORMED]))
        return self.header_frames(stream, self.block(found), flags)

    def settings(self) -> bytes:
        pick = self.pick
        values = [
            (4, pick.choice((0, 10, 65_535, 100_000, 2**31 - 1, 2**31))),
            (5, pick.choice((16_384, 20_000, 2**24 - 1, 100))),
            (2, pick.choice((0, 1, 2))),
            (1, pick.choice((0, 100, 2**32 - 1))),
            (8, pick.choice((0, 0, 1, 2))),
            (3, 7),
            (99, 7),
        ]
        chosen = (
            pick.sample(values, 3) if self.odd(0.3) else [(4, pick.choice((0, 10, 65_535, 100_000))), (99, 7)]
        )
        payload = b"".join(struct.pack(">HI", name, value) for name, value in chosen)
        flags = 0x1 if pick.random() < 0.1 else 0
        if flags and not self.odd(0.2):
            payload = b""
        return frame(4, payload + (b"x" if self.odd(0.02) else b""), flags)

    def window(self) -> bytes:
        pick = self.pick
        increment = pick.choice((1, 100, 10_000, 65_535, 65_535))
        if self.odd(0.2):
            increment = pick.choice((2**30, 2**31 - 1, 0))
        stream = pick.choice((0, *range(1, self.next_stream + 2 * self.odd(0.02), 2))[-12:])
        return frame(8, struct.pack(">I", increment), 0, stream)

    def any_frame(self) -> bytes:
        pick = self.pick
        stream = pick.randint(0, self.next_stream + 1)
        return frame(
            pick.randint(0, 12),
            pick.randbytes(pick.choice((0, 1, 4, 4, 5, 6, 8, 8, 12))),
            pick.randrange(256),
            stream,
        )

    def step(self) -> bytes:
        """Some frames."""
        pick = self.pick
        kind = pick.random() * (0.93 if self.is_calm else 1.0)
        if kind < 0.3:
            return self.call()
        if kind < 0.65:
            return self.data()
        if kind < 0.75:
            return self.window()
        if kind < 0.8:
            return self.settings()
        if kind < 0.85:
            return frame(6, pick.randbytes(8), pick.choice((0, 0, 1)))
        if kind < 0.9:
            stream = pick.choice(self.open) if self.open else pick.randrange(1, max(2, self.next_stream), 2)
            if self.is_calm and self.next_stream == 1:
                return b""
            return frame(3, struct.pack(">I", 8), 0, stream)
        if kind < 0.93:
            return self.trailers()
        if kind < 0.95:
            return frame(2, struct.pack(">IB", pick.randint(0, 9), 3), 0, pick.randint(1, 9))
        if kind < 0.955:
            payload = pick.choice((struct.pack(">II", 0, 0), struct.pack(">II", 0, 0), b"short"))
            return frame(7, payload, 0, pick.choice((0, 0, 0, 1)))
        if kind < 0.96:
            return frame(5, struct.pack(">I", 2) + b"x", pick.choice((0, 4)), 1)
        return self.any_frame() if kind < 0.98 else b""


def message_bytes_max(path: str) -> int:
    """A bound of one path."""
    return 15_000 if path == "/a" else 1 << 40


class Pair:
    """One connection at both cores."""

    def __init__(self, makers: list[MakeHttp2], limits: Http2Limits, now: float) -> None:
        self.cores: list[Http2Core] = [make(limits, now, message_bytes_max) for make in makers]
        self.calls: list[dict[int, Any]] = [{} for _ in makers]
        self.compare("begin", [[] for _ in makers])

    def do(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of both; the result of the first, where both agree. A `call` is given as its stream id."""
        results: list[Any] = []
        for core, calls in zip(self.cores, self.calls, strict=True):
            own = [calls[each.stream_id] if hasattr(each, "stream_id") else each for each in arguments]
            results.append(getattr(core, name)(*own, **options))
        if name in ("receive", "proceed", "tick", "lost"):
            self.compare(name, results)
        else:
            if not all(result == results[0] for result in results):
                raise Disagreement(f"{name} returns {results}")
            self.compare(name, [[] for _ in self.cores])
        return results[0]

    def compare(self, name: str, events: list[list[Event]]) -> None:
        """Compare what a step did."""
        outs = [core.outgoing() for core in self.cores]
        if not all(out == outs[0] for out in outs):
            raise Disagreement(
                f"after {name} bytes differ:\n{[frames_of(out) for out in outs]}{[core.close_reason for core in self.cores]}"
            )
        for calls, found in zip(self.calls, events, strict=True):
            for event in found:
                if isinstance(event, CallStarted):
                    calls[event.call.stream_id] = event.call
        states = [
            (
                [seen(event, core) for event in found],
                core.is_closed,
                core.has_more,
                core.is_idle,
                0.0 if core.is_closed else core.due(),
                core.receiving_bytes,
                core.unsent_bytes,
                0 if core.is_closed else core.kept_bytes,
                sorted(core.calls),
                core.close_reason if tells_reason(outs[0]) else "",
                [(call.is_over, call.is_finishing) for call in calls.values()],
            )
            for core, found, calls in zip(self.cores, events, self.calls, strict=True)
        ]
        for values in zip(*states, strict=True):
            if not all(value == values[0] for value in values):
                raise Disagreement(
                    f"after {name}: {[repr(value)[:600] for value in values]} {[core.close_reason for core in self.cores]}"
                )


def seen(event: Event, core: Http2Core) -> tuple[Any, ...]:
    """What a service sees of an event."""
    call = event.call
    if isinstance(event, CallStarted):
        return ("started", call.stream_id, call.path, dict(call.metadata), call.started, call.deadline)
    if isinstance(event, RequestMessage):
        return ("message", call.stream_id, event.data)
    if isinstance(event, CallEnded):
        # The texts of violations of the protocol are those of each implementation.
        reason = "closed" if core.is_closed and event.reason == core.close_reason else event.reason
        return ("ended", call.stream_id, reason)
    return (type(event).__name__, call.stream_id)


def frames_of(data: bytes) -> list[tuple[int, int, int, str]]:
    """(type, flags, stream, payload) of written frames."""
    found = []
    while data:
        size = int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size][:60].hex()))
        data = data[9 + size :]
    return found


def tells_reason(data: bytes) -> bool:
    """Whether GOAWAY among the written frames has a text."""
    return any(kind == GOAWAY and len(payload) > 16 for kind, _, _, payload in frames_of(data))


def damaged(data: bytes, pick: random.Random) -> bytes:
    """Some bytes changed, removed or doubled."""
    found = bytearray(data)
    at = pick.randrange(len(found))
    end = min(len(found), at + pick.randint(1, 12))
    kind = pick.randrange(4)
    if kind == 0:
        found[at] = pick.randrange(256)
    elif kind == 1:
        del found[at:end]
    elif kind == 2:
        found[at:at] = found[at:end]
    else:
        found[at] ^= 1 << pick.randrange(8)
    return bytes(found)


def answer(pair: Pair, pick: random.Random, now: float) -> None:
    """What a service does with one of the calls."""
    calls = pair.calls[0]
    if not calls:
        return
    call = calls[pick.choice(list(calls)[-8:])]
    kind = pick.random()
    if kind < 0.1:
        pair.do("start_response", call, may_idle=pick.random() < 0.5)
    if kind < 0.7:
        for _ in range(pick.choice((1, 1, 1, 3))):
            pair.do(
                "send_message", call, pick.randbytes(pick.choice((0, 20, 500, 2_000, 30_000, 70_000))), now
            )
    if kind > 0.98:
        pair.do("cancel", call, "no room")
    elif kind > 0.3:
        status = pick.choice((GrpcStatus.OK, GrpcStatus.OK, GrpcStatus.INTERNAL, GrpcStatus.UNIMPLEMENTED))
        text = pick.choice(("", "", "why\n", "100 %", "ä€😀" * pick.choice((1, 300)), "\ud800"))
        pair.do("finish", call, status, text, now)


def check(
    pick: random.Random,
    makers: list[MakeHttp2],
    inputs: Counter[str],
    *,
    first: bytes | None = None,
    is_short: bool = False,
) -> bool:
    """One connection. `first`: its bytes, in place of generated ones. `is_short`: a few frames, damaged or against the rules. Returns
    whether the connection was still open. `inputs` counts reads, and those of them from peers that break rules.
    """
    now = pick.choice((0.0, 1_000.25))
    limits = pick.choice(LIMITS)
    is_calm = not is_short and pick.random() < 0.5
    pair, client = Pair(makers, limits, now), Client(pick, is_calm=is_calm)
    hurt = 0.5 if is_short else 0.0 if is_calm else pick.choice((0.0, 0.02, 0.2))
    preface = PREFACE + frame(4) if first is None else first
    pending = damaged(preface, pick) if first is None and client.odd(0.02) else preface
    step_count = 5 if first is not None else pick.randint(1, 4 if is_short else 60)
    sizes = (1, 1, 2, 3) if is_short else (*[1] * 40, *[5] * 12, 300)
    for _ in range(step_count):
        core = pair.cores[0]
        if core.is_closed:
            return False
        if first is None:
            step = b"".join(client.step() for _ in range(pick.choice(sizes)))
            pending += damaged(step, pick) if step and pick.random() < hurt else step
        while pending and not core.is_closed:
            size = pick.choice((len(pending), len(pending), 1, 9, 100, 5_000))
            inputs["all"] += 1
            inputs["bad"] += not is_calm or first is not None
            pair.do("receive", pending[:size], now)
            while core.has_more:
                pair.do("proceed", now)
            pending = pending[size:]
            if pick.random() < 0.2:
                answer(pair, pick, now)
        for _ in range(pick.choice((0, 1, 2))):
            answer(pair, pick, now)
        kind = pick.random()
        if kind < 0.2:
            now += pick.choice((0.001, 0.05, 1.0, 25.0, 61.0)) if pick.random() < 0.5 else 0.01
            if core.due() <= now:
                pair.do("tick", now)
        elif kind < 0.21:
            pair.do("go_away", now)
    pair.do("lost", now)
    return True


def run(
    rounds: int, seed: int, makers: list[MakeHttp2], *, seconds: float = 0.0, is_short: bool = False
) -> tuple[int, int, Counter[str]]:
    """(rounds, those whose connection was open to the end, inputs as check() counts them). Raises Disagreement."""
    began, number, open_count = time.monotonic(), 0, 0
    inputs: Counter[str] = Counter()
    while number < rounds and (not seconds or time.monotonic() < began + seconds):
        pick = random.Random(f"{seed}.{number}")
        noise = None
        if pick.random() < 0.05:
            noise = PREFACE * (pick.random() < 0.8) + pick.randbytes(pick.randint(1, 400))
        try:
            open_count += check(pick, makers, inputs, first=noise, is_short=is_short)
        except Disagreement as error:
            raise Disagreement(f"seed {seed}, round {number}: {error}") from None
        number += 1
    return number, open_count, inputs


def main() -> None:
    import aerobee_native

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after that time (default: never)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--alone", action="store_true", help="the native core alone, which only has to survive"
    )
    parser.add_argument(
        "--short", action="store_true", help="connections of a few frames, all of them hostile"
    )
    options = parser.parse_args()
    makers: list[MakeHttp2] = [Http2Reference, Http2Connection, aerobee_native.Http2Connection]
    if options.alone:
        del makers[:2]
    done, open_count, inputs = run(
        options.rounds, options.seed, makers, seconds=options.seconds, is_short=options.short
    )
    print(
        f"{done} connections of seed {options.seed}, {open_count} of them open to the end; {inputs['all']} reads, "
        f"{inputs['bad']} of them from peers that break rules: no difference"
    )


if __name__ == "__main__":
    main()
