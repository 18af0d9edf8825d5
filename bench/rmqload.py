#!/usr/bin/env python3
"""rmqload: load generator and checker for brokers that speak the RocketMQ remoting protocol.

It spends as little client CPU as Python allows (frames made from one bytes template each, replies
read for code and opaque only, one epoll loop per process), so that the server is what is measured.
On a small shared machine the figure to compare is `server_us_per_msg`: CPU time of the server
process(es) divided by the messages answered meanwhile. Both are read at the same two moments (the
process CPU clock in ns, and counters that the workers share), so that a late wake-up on a starved
machine moves both alike. Wall-clock rates only mean something as a ratio between servers measured
one after another.

Modes (rmqload.py MODE --help shows the options):
  send     SEND_MESSAGE_V2 as the Java client sends it; --batch K makes SEND_BATCH_MESSAGE of K each;
           --delay-level N makes delayed messages; --in-flight is per connection.
  oneway   the same without replies; what was stored is counted by the queues' max offsets.
  txn      half message, then END_TRANSACTION commit (one-way, as Java does), per message; all must
           become visible in the topic.
  pull     read a topic from its minimum offset with PULL_MESSAGE, checking CRC and offsets; a topic
           that is empty, or does not hold --count messages, is a failure.
  e2e      one producer at a fixed rate (open loop: latency counts from the moment a message was due,
           so a stalled server cannot hide), one long-polling consumer; ack and end-to-end latency;
           server_us_per_msg is then for sending and receiving a message.
  verify   send, then read everything back: every acked message exactly once, or exit status 1.
           For crash tests: `send --survive --acked-out F`, kill and restart the server, then
           `verify --acked-in F`.
  topic    only create the topic.   info   only print CPU and memory of --server-pid / --server-port.

Examples:
  rmqload.py send --broker 127.0.0.1:10911 --server-port 10911 --connections 1 --in-flight 64 \\
      --size 128 --duration 10 --warmup 5 --json
  rmqload.py e2e --broker 127.0.0.1:10911 --rate 1000 --duration 20
  rmqload.py pull --broker 127.0.0.1:10911 --topic load --duration 10

Every reply code outside --expect-code (default 0), every missing reply and every broken connection
(unless --survive) ends the run with exit status 1 and a text on stderr.
Message bodies start with 24 bytes: u32 run id, u32 worker, u64 sequence, u64 due time (monotonic ns).
The clock is CLOCK_MONOTONIC, so producer and consumer must be on one machine. Standard library only.
"""

from __future__ import annotations

import argparse
import array
import collections
import ctypes
import dataclasses
import json
import multiprocessing
import os
import random
import re
import resource
import select
import socket
import struct
import sys
import time
import traceback
import zlib
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_pipes
from pathlib import Path

# Request codes, source RequestCode (RocketMQ).
PULL_MESSAGE = 11
UPDATE_AND_CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
END_TRANSACTION = 37
GET_ROUTEINFO_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106
SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320

STORED_CODES = (0, 10, 11, 12)  # success, and stored but not flushed or replicated in time
PULL_FOUND, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, PULL_OFFSET_MOVED = 0, 19, 20, 21
FLAG_ONEWAY = 2
SYS_PREPARED, SYS_COMMIT = 4, 8
PULL_SUSPEND, PULL_SUBSCRIPTION = 2, 4

CLIENT_VERSION = 479  # ordinal of 5.3.3 in MQVersion
OPAQUE_BASE = 1_000_000_000  # every opaque has ten digits, so a reply's can be cut out by width
RECV_BYTES = 512 * 1024
REPLY_TIMEOUT_S = 30.0  # silence after which outstanding requests count as lost
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

STAMP = struct.Struct(">IIQQ")  # run id, worker, sequence, due time in ns
WORDS = struct.Struct(">II")
RECORD_HEAD = struct.Struct(">IIIiiqqi")  # size magic crc queue flag queueOffset physical sysFlag
BATCH_HEAD = struct.Struct(">iiiii")  # size magic crc flag bodyLen
CODE_PATTERN = re.compile(rb'"code"\s*:\s*(-?\d+)')
OPAQUE_PATTERN = re.compile(rb'"opaque"\s*:\s*(-?\d+)')

# Stand-ins of the right width inside a template, replaced by format marks.
BORN_MARK, UNIQ_MARK, OPAQUE_MARK = "4242424242424", "FEDCBA9876543210", 1_999_999_999


class LoadError(Exception):
    """The server answered wrongly, did not answer, or cannot be reached."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """When a run starts, and the part of it that is measured (monotonic ns; end 0 = by count)."""

    start_ns: int
    measure_ns: int
    end_ns: int


# ---------------------------------------------------------------------------------------- wire


def encode_frame(code: int, ext: dict[str, str], body: bytes = b"", *, opaque: int, flag: int = 0) -> bytes:
    """One request with a JSON header: int32 length | uint8 type 0, uint24 header length | ..."""
    header = json.dumps(
        {
            "code": code,
            "extFields": ext,
            "flag": flag,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": CLIENT_VERSION,
        },
        separators=(",", ":"),
    ).encode()
    return WORDS.pack(4 + len(header) + len(body), len(header)) + header + body


def reply_code(kind: int, header: bytes) -> int:
    if kind == 1:
        return int(struct.unpack_from(">h", header)[0])
    if header.startswith(b'{"code":0,'):
        return 0
    found = CODE_PATTERN.search(header)
    if found is None:
        raise LoadError(f"reply without a code: {header[:200]!r}")
    return int(found[1])


def reply_opaque(kind: int, header: bytes) -> int:
    if kind == 1:
        return int(struct.unpack_from(">i", header, 5)[0])
    at = header.rfind(b'"opaque":') + 9
    digits = header[at : at + 10]
    if digits.isdigit():
        return int(digits)
    found = OPAQUE_PATTERN.search(header)  # blanks after the colon, or not ours
    if found is None:
        raise LoadError(f"reply without an opaque: {header[:200]!r}")
    return int(found[1])


def reply_fields(kind: int, header: bytes) -> tuple[dict[str, str], str]:
    """extFields and remark of a reply in either header form."""
    if kind == 0:
        parsed = json.loads(header)
        return parsed.get("extFields") or {}, parsed.get("remark") or ""
    (remark_size,) = struct.unpack_from(">i", header, 13)
    remark = header[17 : 17 + remark_size].decode()
    at = 17 + remark_size
    (ext_size,) = struct.unpack_from(">i", header, at)
    at += 4
    end, ext = at + ext_size, {}
    while at < end:
        (size,) = struct.unpack_from(">h", header, at)
        key = header[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from(">i", header, at)
        ext[key] = header[at + 4 : at + 4 + size].decode()
        at += 4 + size
    return ext, remark


class Link:
    """One non-blocking connection that returns whole frames as (header kind, header, body)."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.sent: dict[int, int] = {}  # opaque -> time it was sent or due, ns
        self.unwritten = bytearray()
        self._tail = b""

    def write(self, data: bytes) -> None:
        if self.unwritten:
            self.unwritten += data
            return
        try:
            count = self.sock.send(data)
        except BlockingIOError:
            count = 0
        if count < len(data):
            self.unwritten += memoryview(data)[count:]

    def flush(self) -> None:
        try:
            del self.unwritten[: self.sock.send(self.unwritten)]
        except BlockingIOError:
            pass

    def read(self) -> list[tuple[int, bytes, bytes]]:
        try:
            data = self.sock.recv(RECV_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("the server closed the connection")
        if self._tail:
            data = self._tail + data
        frames, at, size = [], 0, len(data)
        while size - at >= 8:
            length, word = WORDS.unpack_from(data, at)
            end = at + 4 + length
            if end > size:
                break
            body_at = at + 8 + (word & 0xFFFFFF)
            frames.append((word >> 24, data[at + 8 : body_at], data[body_at:end]))
            at = end
        self._tail = data[at:]
        return frames

    def call(
        self, code: int, ext: dict[str, str], body: bytes = b"", *, expect: tuple[int, ...] = (0,)
    ) -> tuple[int, dict[str, str], bytes]:
        """One request and its reply, for set-up work."""
        opaque = OPAQUE_BASE + random.randrange(900_000_000)
        self.sock.settimeout(15)
        try:
            self.sock.sendall(encode_frame(code, ext, body, opaque=opaque))
            while True:
                for kind, header, reply_body in self.read():
                    if reply_opaque(kind, header) != opaque:
                        continue
                    got = reply_code(kind, header)
                    fields, remark = reply_fields(kind, header)
                    if got not in expect:
                        raise LoadError(f"request {code} {ext}: code {got} {remark}")
                    return got, fields, reply_body
        finally:
            self.sock.setblocking(False)


def parse_records(body: bytes) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield (queue id, queue offset, crc, body start, body size, record end) of each record.

    Raises LoadError for a record that does not fit. Layout: remoting notes, section 14.1.
    """
    at, size = 0, len(body)
    while at < size:
        total, _magic, crc, queue, _flag, offset, _physical, sys_flag = RECORD_HEAD.unpack_from(body, at)
        # born time 8, born host 8 or 20, store time 8, store host 8 or 20, reconsume 4, prepared 8
        place = at + 40 + 8 + (20 if sys_flag & 16 else 8) + 8 + (20 if sys_flag & 32 else 8) + 12
        (body_size,) = struct.unpack_from(">i", body, place)
        if total < 91 or at + total > size or place + 4 + body_size > at + total:
            raise LoadError(f"bad record in queue {queue} at offset {offset}: size {total}")
        yield queue, offset, crc, place + 4, body_size, at + total
        at += total


# ----------------------------------------------------------------------------------- templates


class MessageFactory:
    """Make request frames of one worker out of one bytes template per queue."""

    def __init__(self, options: argparse.Namespace, worker: int, *, code_flag: int = 0) -> None:
        self.options, self.worker = options, worker
        self.batch = max(1, options.batch)
        filler = "".join(random.Random(worker).choices("abcdefghijklmnopqrstuvwxyz012345", k=options.size))
        self._filler = filler.encode()[STAMP.size :]
        self._uniq = f"{options.run_id:08X}{worker:08X}{UNIQ_MARK}"
        props = f"UNIQ_KEY\x01{self._uniq}\x02WAIT\x01true\x02"
        if options.tags:
            props += f"TAGS\x01{options.tags}\x02"
        if options.keys:
            props += f"KEYS\x01k{UNIQ_MARK}\x02"
        if options.delay_level:
            props += f"DELAY\x01{options.delay_level}\x02"
        if options.mode == "txn":
            props += f"TRAN_MSG\x01true\x02PGROUP\x01{options.group}\x02"
        self._props = props
        self._entry = self._batch_entry_template()
        self._templates = [self._template(queue, code_flag) for queue in range(options.queues)]

    def _batch_entry_template(self) -> bytes:
        props = self._props.encode()
        size = BATCH_HEAD.size + self.options.size + 2 + len(props)
        head = BATCH_HEAD.pack(size, 0, 0, 0, self.options.size)
        tail = self._filler + struct.pack(">h", len(props)) + props
        return escape(head) + b"%b" + escape(tail).replace(UNIQ_MARK.encode(), b"%016X")

    def _template(self, queue: int, flag: int) -> bytes:
        options = self.options
        ext = {
            "a": options.group, "b": options.topic, "c": "TBW102", "d": "4", "e": str(queue),
            "f": str(SYS_PREPARED if options.mode == "txn" else 0), "g": BORN_MARK, "h": "0",
            "i": self._props, "j": "0", "k": "false", "l": "0",
            "m": "true" if self.batch > 1 else "false", "n": options.broker_name,
        }  # fmt: skip
        if self.batch > 1:
            ext["i"] = f"UNIQ_KEY\x01{self._uniq}\x02WAIT\x01true\x02"
            body_size = self.batch * len(self._entry % ((b"\0" * STAMP.size, 0, 0)[: self._entry_marks()]))
            code = SEND_BATCH_MESSAGE
        else:
            body_size, code = options.size, SEND_MESSAGE_V2
        frame = encode_frame(code, ext, b"\0" * body_size, opaque=OPAQUE_MARK, flag=flag)
        head = escape(frame[: len(frame) - body_size])
        head = head.replace(BORN_MARK.encode(), b"%d").replace(str(OPAQUE_MARK).encode(), b"%d")
        head = head.replace(UNIQ_MARK.encode(), b"%016X")
        return head if self.batch > 1 else head + b"%b" + escape(self._filler)

    def _entry_marks(self) -> int:
        return 2 + (1 if self.options.keys else 0)

    def make(self, first: int, count: int, due_ns: int) -> bytes:
        """Frames of `count` requests whose request numbers start at `first`, back to back."""
        born = time.time_ns() // 1_000_000
        templates, run_id, worker = self._templates, self.options.run_id, self.worker
        queues, pack, keys = len(templates), STAMP.pack, self.options.keys
        if self.batch == 1 and not keys:
            return b"".join([
                templates[n % queues] % (born, n, OPAQUE_BASE + n, pack(run_id, worker, n, due_ns))
                for n in range(first, first + count)
            ])  # fmt: skip
        frames = []
        for n in range(first, first + count):
            head = templates[n % queues]
            if self.batch == 1:
                frames.append(head % (born, n, n, OPAQUE_BASE + n, pack(run_id, worker, n, due_ns)))
                continue
            frames.append(head % (born, n, OPAQUE_BASE + n))
            for m in range(n * self.batch, (n + 1) * self.batch):
                stamp = pack(run_id, worker, m, due_ns)
                frames.append(self._entry % ((stamp, m, m) if keys else (stamp, m)))
        return b"".join(frames)


def escape(raw: bytes) -> bytes:
    return raw.replace(b"%", b"%%")


# ------------------------------------------------------------------------------------- workers


@dataclasses.dataclass(slots=True)
class Tally:
    """What one worker hands back. Latencies are microseconds -> count."""

    messages: int = 0  # inside the measured window
    total: int = 0  # whole run, drain included
    next_sequence: int = 0
    last_ns: int = 0
    codes: dict[int, int] = dataclasses.field(default_factory=dict)
    latency: dict[int, int] = dataclasses.field(default_factory=dict)
    second_latency: dict[int, int] = dataclasses.field(default_factory=dict)
    not_acked: list[int] = dataclasses.field(default_factory=list)
    bytes: int = 0
    client_cpu_s: float = 0.0
    note: str = ""


# One counter a worker: messages answered so far. Made before the fork, read by the parent.
PROGRESS: ctypes.Array[ctypes.c_longlong] = (ctypes.c_longlong * 1)()


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def sleep_until(moment_ns: int) -> None:
    while (left := moment_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def run_send(options: argparse.Namespace, worker: int, window: Window) -> Tally:
    """Keep --in-flight requests outstanding on each connection of this worker."""
    expect = set(options.expect_code)
    factory = MessageFactory(options, worker)
    batch, survive = factory.batch, options.survive
    transactions = options.mode == "txn"
    links = {}
    poll = select.epoll()
    for _ in range(options.connections_of[worker]):
        link = Link(options.address)
        links[link.sock.fileno()] = link
        poll.register(link.sock, select.EPOLLIN)
    quota = options.count_of[worker] // batch if options.count else 1 << 62
    tally, codes, latencies = Tally(), collections.Counter[int](), array.array("I")
    next_request = 0
    refused: list[int] = []
    measure_ns = window.measure_ns
    end_ns = window.end_ns or 1 << 62

    def issue(link: Link, count: int, now: int) -> None:
        nonlocal next_request
        count = min(count, quota - next_request)
        if count <= 0:
            return
        first, next_request = next_request, next_request + count
        link.sent.update(dict.fromkeys(range(OPAQUE_BASE + first, OPAQUE_BASE + first + count), now))
        link.write(factory.make(first, count, now))

    def drop(number: int, link: Link, error: Exception) -> None:
        if not survive:
            raise LoadError(f"connection failed: {error}")
        refused.extend(opaque - OPAQUE_BASE for opaque in link.sent)
        poll.unregister(link.sock)
        link.sock.close()
        del links[number]
        tally.note = f"connection lost: {error}"

    sleep_until(window.start_ns)
    cpu_start = cpu_seconds()
    for number, link in list(links.items()):
        issue(link, options.in_flight, time.monotonic_ns())
        if link.unwritten:
            poll.modify(number, select.EPOLLIN | select.EPOLLOUT)
    quiet_since = time.monotonic_ns()
    running = True
    while links:
        events = poll.poll(0.5)
        now = time.monotonic_ns()
        if running and now >= end_ns:
            running, quota = False, next_request
        if not events and now - quiet_since > REPLY_TIMEOUT_S * 1e9:
            missing = sum(len(link.sent) for link in links.values())
            raise LoadError(f"{missing} requests without a reply for {REPLY_TIMEOUT_S} s")
        for number, event in events:
            link = links[number]
            try:
                if event & ~select.EPOLLOUT:
                    frames = link.read()
                    quiet_since = now = time.monotonic_ns()
                    measured = measure_ns <= now < end_ns
                    stored = 0
                    for kind, header, _body in frames:
                        opaque = reply_opaque(kind, header)
                        sent_ns = link.sent.pop(opaque, None)
                        if sent_ns is None:
                            raise LoadError(f"reply to an unknown opaque: {header[:300]!r}")
                        code = reply_code(kind, header)
                        if code:
                            codes[code] += 1
                            if code not in expect:
                                remark = reply_fields(kind, header)[1]
                                raise LoadError(f"send answered with code {code}: {remark}")
                            if code not in STORED_CODES:
                                refused.append(opaque - OPAQUE_BASE)
                                continue
                        stored += 1
                        if transactions:
                            link.write(commit_frame(options, kind, header, opaque, worker))
                        if measured:
                            latencies.append((now - sent_ns) // 1000)
                    tally.total += stored * batch
                    PROGRESS[worker] = tally.total
                    tally.last_ns = now
                    if measured:
                        tally.messages += stored * batch
                    issue(link, len(frames), now)
                elif link.unwritten:
                    link.flush()
                if link.unwritten or event & select.EPOLLOUT:
                    poll.modify(number, select.EPOLLIN | (select.EPOLLOUT if link.unwritten else 0))
            except OSError as error:
                drop(number, link, error)
        if next_request >= quota and not any(link.sent or link.unwritten for link in links.values()):
            break
    tally.client_cpu_s = cpu_seconds() - cpu_start
    codes[0] = tally.total // batch - sum(codes[code] for code in STORED_CODES)
    tally.codes = {code: count for code, count in codes.items() if count}
    tally.latency = dict(collections.Counter(latencies))
    tally.next_sequence = next_request * batch
    tally.not_acked = [n * batch + m for n in refused for m in range(batch)]
    tally.bytes = tally.messages * options.size
    return tally


def commit_frame(options: argparse.Namespace, kind: int, header: bytes, opaque: int, worker: int) -> bytes:
    """END_TRANSACTION commit for the half message that this reply acknowledges."""
    fields, _remark = reply_fields(kind, header)
    unique = f"{options.run_id:08X}{worker:08X}{opaque - OPAQUE_BASE:016X}"
    ext = {
        "topic": options.topic, "producerGroup": options.group,
        "tranStateTableOffset": fields["queueOffset"],
        "commitLogOffset": str(int(fields["msgId"][-16:], 16)), "commitOrRollback": str(SYS_COMMIT),
        "fromTransactionCheck": "false", "msgId": unique,
        "transactionId": fields.get("transactionId") or unique, "bname": options.broker_name,
    }  # fmt: skip
    return encode_frame(END_TRANSACTION, ext, opaque=opaque, flag=FLAG_ONEWAY)


def run_oneway(options: argparse.Namespace, worker: int, window: Window) -> Tally:
    """Write one-way sends, paced by --rate (all workers together) or as fast as the socket takes."""
    factory = MessageFactory(options, worker, code_flag=FLAG_ONEWAY)
    links = [Link(options.address) for _ in range(options.connections_of[worker])]
    quota = options.count_of[worker] // factory.batch if options.count else 1 << 62
    rate = options.rate / options.processes / factory.batch
    tally, sent = Tally(), 0
    sleep_until(window.start_ns)
    cpu_start, end_ns = cpu_seconds(), window.end_ns or 1 << 62
    while (now := time.monotonic_ns()) < end_ns and sent < quota:
        allowed = quota - sent if not rate else min(quota, int((now - window.start_ns) * rate / 1e9)) - sent
        if allowed <= 0:
            time.sleep(0.0005)
            continue
        link = links[sent // 32 % len(links)]
        count = min(32, allowed)
        link.write(factory.make(sent, count, now))
        sent += count
        PROGRESS[worker] = sent * factory.batch
        if now >= window.measure_ns:
            tally.messages += count * factory.batch
        while link.unwritten:
            select.select([], [link.sock], [], REPLY_TIMEOUT_S)
            link.flush()
    tally.client_cpu_s = cpu_seconds() - cpu_start
    tally.last_ns, tally.total, tally.next_sequence = (
        time.monotonic_ns(),
        sent * factory.batch,
        sent * factory.batch,
    )
    for link in links:  # a close with unread input would reset the connection and drop what is in it
        link.sock.shutdown(socket.SHUT_WR)
    deadline = time.monotonic() + 5
    for link in links:
        link.sock.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            while link.sock.recv(65536):
                pass
        except OSError:
            pass
    return tally


def pull_frame(options: argparse.Namespace, queue: int, offset: int, *, opaque: int, wait: bool) -> bytes:
    ext = {
        "consumerGroup": options.consumer_group, "topic": options.topic, "queueId": str(queue),
        "queueOffset": str(offset), "maxMsgNums": str(options.pull_count),
        "sysFlag": str(PULL_SUBSCRIPTION | (PULL_SUSPEND if wait else 0)), "commitOffset": "0",
        "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": str(options.sub_version),
        "expressionType": "TAG", "maxMsgBytes": str(options.pull_bytes), "bname": options.broker_name,
    }  # fmt: skip
    return encode_frame(PULL_MESSAGE, ext, opaque=opaque)


def run_pull(options: argparse.Namespace, worker: int, window: Window) -> Tally:
    """Read this worker's queues from min to max offset, one pull outstanding per queue.

    With --duration the queues are read again from the start until the time is over, and no further.
    """
    queues = [q for q in range(options.queues) if q % options.processes == worker]
    links = [Link(options.address) for _ in range(max(1, min(len(queues), options.connections_of[worker])))]
    poll = select.epoll()
    by_number = {link.sock.fileno(): link for link in links}
    for link in links:
        poll.register(link.sock, select.EPOLLIN)
    bounds = {queue: queue_bounds(links[0], options.topic, queue) for queue in queues}
    position = {queue: bounds[queue][0] for queue in queues}
    tally, latencies, opaque = Tally(), array.array("I"), OPAQUE_BASE
    codes = collections.Counter[int]()
    asked: dict[int, int] = {}  # opaque -> queue
    seen, check_crc, run_id = options.seen, not options.no_crc, options.run_id
    end_ns = window.end_ns or 1 << 62
    sleep_until(window.start_ns)
    cpu_start = cpu_seconds()

    def ask(queue: int, now: int) -> None:
        nonlocal opaque
        low, high = bounds[queue]
        if now >= end_ns:
            return
        if position[queue] >= high:
            if not window.end_ns or low == high:
                return
            position[queue] = low
        opaque += 1
        asked[opaque] = queue
        link = links[queue // options.processes % len(links)]
        link.sent[opaque] = now
        link.write(pull_frame(options, queue, position[queue], opaque=opaque, wait=False))

    for queue in queues:
        ask(queue, time.monotonic_ns())
    while asked:
        events = poll.poll(REPLY_TIMEOUT_S)
        if not events:
            raise LoadError(f"{len(asked)} pulls without a reply for {REPLY_TIMEOUT_S} s")
        for number, _event in events:
            link = by_number[number]
            frames = link.read()
            now = time.monotonic_ns()
            for kind, header, body in frames:
                got = reply_opaque(kind, header)
                queue = asked.pop(got)
                sent_ns = link.sent.pop(got)
                code = reply_code(kind, header)
                codes[code] += 1
                measured = window.measure_ns <= now < end_ns
                if code not in (PULL_FOUND, PULL_RETRY_IMMEDIATELY):
                    remark = reply_fields(kind, header)[1]
                    raise LoadError(f"pull of queue {queue} at {position[queue]}: code {code} {remark}")
                if code == PULL_RETRY_IMMEDIATELY:
                    position[queue] = int(reply_fields(kind, header)[0]["nextBeginOffset"])
                    ask(queue, now)
                    continue
                expected, count = position[queue], 0
                for record_queue, offset, crc, body_at, body_size, _end in parse_records(body):
                    if record_queue != queue or offset != expected:
                        raise LoadError(
                            f"queue {queue}: got queue {record_queue} offset {offset}, expected {expected}"
                        )
                    expected, count = expected + 1, count + 1
                    if check_crc and zlib.crc32(body[body_at : body_at + body_size]) & 0x7FFFFFFF != crc:
                        raise LoadError(f"queue {queue} offset {offset}: body does not match its CRC")
                    if seen is not None and body_size >= STAMP.size:
                        stamp_run, stamp_worker, sequence, _due = STAMP.unpack_from(body, body_at)
                        if stamp_run == run_id:
                            cells = seen[stamp_worker]
                            if sequence >= len(cells):
                                raise LoadError(f"message {stamp_worker}/{sequence} was never sent")
                            cells[sequence] = min(255, cells[sequence] + 1)
                if not count:
                    raise LoadError(f"queue {queue} at {expected}: FOUND without records")
                position[queue] = expected
                tally.total += count
                PROGRESS[worker] = tally.total
                tally.last_ns = now
                if measured:
                    tally.messages += count
                    tally.bytes += len(body)
                    latencies.append((now - sent_ns) // 1000)
                ask(queue, now)
    tally.client_cpu_s = cpu_seconds() - cpu_start
    tally.codes, tally.latency = dict(codes), dict(collections.Counter(latencies))
    return tally


def queue_bounds(link: Link, topic: str, queue: int) -> tuple[int, int]:
    ext = {"topic": topic, "queueId": str(queue)}
    low = int(link.call(GET_MIN_OFFSET, ext)[1]["offset"])
    return low, int(link.call(GET_MAX_OFFSET, ext)[1]["offset"])


def run_e2e_producer(
    options: argparse.Namespace, window: Window, shared: dict[str, multiprocessing.Value]
) -> Tally:
    """Send message n when start + n/rate is due, whatever the replies do; latency counts from then."""
    factory = MessageFactory(options, 0)
    link = Link(options.address)
    tally, latencies, codes, sent = Tally(), array.array("I"), collections.Counter[int](), 0
    interval_ns, expect, refused = 1e9 / options.rate, set(options.expect_code), 0
    planned = int((window.end_ns - window.start_ns) / interval_ns)
    sleep_until(window.start_ns)
    cpu_start, quiet_since = cpu_seconds(), time.monotonic_ns()
    while sent < planned or link.sent or link.unwritten:
        now = time.monotonic_ns()
        if now - quiet_since > REPLY_TIMEOUT_S * 1e9:
            raise LoadError(f"{len(link.sent)} sends without a reply for {REPLY_TIMEOUT_S} s")
        frames = []
        while sent < planned and (due := window.start_ns + int(sent * interval_ns)) <= now:
            frames.append(factory.make(sent, 1, due))
            link.sent[OPAQUE_BASE + sent] = due
            sent += 1
        if frames:
            link.write(b"".join(frames))
        next_due = window.start_ns + int(sent * interval_ns) if sent < planned else now + 100_000_000
        wait_s = max(0.0, (next_due - time.monotonic_ns()) / 1e9)
        readable, _, _ = select.select([link.sock], [link.sock] if link.unwritten else [], [], wait_s)
        if link.unwritten:
            link.flush()
        if not readable:
            continue
        replies = link.read()
        quiet_since = now = time.monotonic_ns()
        for kind, header, _body in replies:
            due = link.sent.pop(reply_opaque(kind, header))
            code = reply_code(kind, header)
            codes[code] += 1
            if code not in expect:
                raise LoadError(f"send answered with code {code}: {reply_fields(kind, header)[1]}")
            if code not in STORED_CODES:
                refused += 1
            else:
                PROGRESS[0] += 1
                if window.measure_ns <= due < window.end_ns:
                    latencies.append(max(0, now - due) // 1000)
    shared["sent"].value = sent - refused
    tally.client_cpu_s = cpu_seconds() - cpu_start
    tally.total, tally.messages, tally.next_sequence = sent - refused, len(latencies), sent
    tally.codes, tally.latency = dict(codes), dict(collections.Counter(latencies))
    return tally


def run_e2e_consumer(
    options: argparse.Namespace, window: Window, shared: dict[str, multiprocessing.Value]
) -> Tally:
    """Long-poll every queue on one connection, as a push consumer does."""
    link = Link(options.address)
    position = {queue: queue_bounds(link, options.topic, queue)[1] for queue in range(options.queues)}
    tally, latencies, opaque = Tally(), array.array("I"), OPAQUE_BASE
    codes, run_id, asked = collections.Counter[int](), options.run_id, dict[int, int]()
    cpu_start, last_ns = cpu_seconds(), time.monotonic_ns()

    def ask(queue: int) -> None:
        nonlocal opaque
        opaque += 1
        asked[opaque] = queue
        link.write(pull_frame(options, queue, position[queue], opaque=opaque, wait=True))

    for queue in position:
        ask(queue)
    shared["ready"].value = 1
    while True:
        readable, _, _ = select.select([link.sock], [link.sock] if link.unwritten else [], [], 0.1)
        now = time.monotonic_ns()
        sent = shared["sent"].value
        if sent and tally.total >= sent:
            break
        if sent and now - last_ns > 10e9:
            tally.note = f"{sent - tally.total} messages not received 10 s after the last one"
            break
        if link.unwritten:
            link.flush()
        if not readable:
            continue
        replies = link.read()
        now = time.monotonic_ns()
        for kind, header, body in replies:
            queue = asked.pop(reply_opaque(kind, header))
            code = reply_code(kind, header)
            codes[code] += 1
            if code == PULL_FOUND:
                for _queue, offset, _crc, body_at, _size, _end in parse_records(body):
                    if offset != position[queue]:
                        raise LoadError(f"queue {queue}: got offset {offset}, expected {position[queue]}")
                    position[queue] += 1
                    stamp_run, _worker, _sequence, due = STAMP.unpack_from(body, body_at)
                    if stamp_run != run_id:
                        continue
                    tally.total += 1
                    last_ns = now
                    if window.measure_ns <= due < window.end_ns:
                        latencies.append(max(0, now - due) // 1000)
            elif code in (PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, PULL_OFFSET_MOVED):
                position[queue] = int(reply_fields(kind, header)[0]["nextBeginOffset"])
            else:
                raise LoadError(f"pull answered with code {code}: {reply_fields(kind, header)[1]}")
            ask(queue)
    tally.client_cpu_s = cpu_seconds() - cpu_start
    tally.codes, tally.second_latency = dict(codes), dict(collections.Counter(latencies))
    tally.messages = len(latencies)
    return tally


# -------------------------------------------------------------------------------------- server


@dataclasses.dataclass(slots=True)
class ServerSample:
    cpu_s: float = 0.0
    messages: int = 0  # answered so far, by the workers' counters
    rss_mb: float = 0.0  # resident, mapped files included
    anon_mb: float = 0.0  # resident without mapped files: heap, stacks, malloc
    peak_mb: float = 0.0  # VmHWM


def process_cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process, ns resolution: Linux' per-process CPU clock."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9


def sample_server(pids: list[int]) -> ServerSample:
    # Count, clock, count again: if the parent lost the processor in between, take both again.
    for _attempt in range(50):
        answered = sum(PROGRESS)
        began = time.monotonic_ns()
        sample = ServerSample(cpu_s=sum(process_cpu_s(pid) for pid in pids if Path(f"/proc/{pid}").exists()))
        if time.monotonic_ns() - began < 2_000_000:
            break
    sample.messages = (answered + sum(PROGRESS)) // 2
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        sizes = dict(re.findall(r"^(VmRSS|RssAnon|VmHWM):\s+(\d+) kB", status, re.M))
        sample.rss_mb += int(sizes.get("VmRSS", 0)) / 1024
        sample.anon_mb += int(sizes.get("RssAnon", 0)) / 1024
        sample.peak_mb += int(sizes.get("VmHWM", 0)) / 1024
    return sample


def pids_of_port(port: int) -> list[int]:
    """Processes that listen on a TCP port, by socket inode."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            targets = {os.readlink(descriptor) for descriptor in (entry / "fd").iterdir()}
        except OSError:
            continue
        if targets & inodes:
            pids.append(int(entry.name))
    return sorted(pids)


def machine_busy_s() -> float:
    """CPU seconds of the whole machine that were neither idle nor waiting for the disk."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / TICKS_PER_S


# -------------------------------------------------------------------------------------- parent


def child(
    target: str, options: argparse.Namespace, worker: int, window_pipe: Connection, shared: dict
) -> None:
    """Body of a worker process: say ready, take the window, run, hand back a Tally or an error."""
    try:
        window_pipe.send("ready")
        window = window_pipe.recv()
        if target == "producer":
            tally = run_e2e_producer(options, window, shared)
        elif target == "consumer":
            tally = run_e2e_consumer(options, window, shared)
        else:
            tally = {"pull": run_pull, "oneway": run_oneway}.get(target, run_send)(options, worker, window)
        window_pipe.send(tally)
    except LoadError as error:
        window_pipe.send(f"worker {worker}: {error}")
    except BaseException:
        window_pipe.send(f"worker {worker}: {traceback.format_exc()}")


class Run:
    """Start the workers of one phase, time it, sample the server, gather the tallies."""

    def __init__(self, options: argparse.Namespace, targets: list[str]) -> None:
        self.options = options
        global PROGRESS
        self._context = multiprocessing.get_context("fork")
        PROGRESS = self._context.RawArray(ctypes.c_longlong, len(targets))
        self.shared = {name: self._context.Value("q", 0) for name in ("sent", "ready")}
        self._workers = []
        for worker, target in enumerate(targets):
            ours, theirs = self._context.Pipe()
            number = 0 if target in ("producer", "consumer") else worker
            process = self._context.Process(target=child, args=(target, options, number, theirs, self.shared))
            process.start()
            theirs.close()
            self._workers.append((process, ours, target))

    def _take(self, pipe: Connection) -> object:
        try:
            answer = pipe.recv()
        except EOFError:
            answer = "a worker died"
        if isinstance(answer, str) and answer != "ready":
            for process, _pipe, _target in self._workers:
                process.kill()
            raise LoadError(answer)
        return answer

    def measure(self) -> tuple[list[Tally], dict[str, float]]:
        options = self.options
        for _process, pipe, _target in self._workers:
            self._take(pipe)
        start = time.monotonic_ns() + 150_000_000 + 30_000_000 * len(self._workers)
        if any(target == "consumer" for _p, _c, target in self._workers):
            start += 1_000_000_000  # the consumer parks its pulls first
        by_count = bool(options.count) or (options.mode == "pull" and not options.duration)
        warm_ns = 0 if by_count else int(options.warmup * 1e9)
        end = 0 if by_count else start + warm_ns + int(options.duration * 1e9)
        window = Window(start, start + warm_ns, end)
        for _process, pipe, _target in self._workers:
            pipe.send(window)
        sleep_until(window.measure_ns)
        before, busy_before, clock_before = (
            sample_server(options.server_pid),
            machine_busy_s(),
            time.monotonic(),
        )
        rss_peak = anon_peak = 0.0
        waiting = [pipe for _process, pipe, _target in self._workers]
        tallies: list[Tally] = []
        after, busy_after, clock_after = before, busy_before, clock_before
        frozen = False
        while waiting:
            left = (end - time.monotonic_ns()) / 1e9 if end else 0.25
            for pipe in wait_for_pipes(waiting, timeout=min(0.25, max(0.0, left)) if not frozen else 1.0):
                tallies.append(self._take(pipe))  # type: ignore[arg-type]
                waiting.remove(pipe)  # type: ignore[arg-type]
            if not frozen:
                after, busy_after, clock_after = (
                    sample_server(options.server_pid),
                    machine_busy_s(),
                    time.monotonic(),
                )
                rss_peak, anon_peak = max(rss_peak, after.rss_mb), max(anon_peak, after.anon_mb)
                frozen = bool(end) and time.monotonic_ns() >= end
        for process, _pipe, _target in self._workers:
            process.join()
        figures = {
            "server_cpu_s": after.cpu_s - before.cpu_s,
            "server_messages": after.messages - before.messages,
            "machine_busy_s": busy_after - busy_before,
            "measured_s": clock_after - clock_before,
            "rss_mb": rss_peak,
            "rss_anon_mb": anon_peak,
            "rss_peak_mb": after.peak_mb,
        }
        return tallies, figures


def percentiles(counts: collections.Counter[int]) -> dict[str, float]:
    """p50, p90, p99, p99.9, max and mean in milliseconds of microseconds -> count."""
    total = sum(counts.values())
    if not total:
        return {}
    wanted = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    result, passed = {}, 0
    for value in sorted(counts):
        passed += counts[value]
        for name in [name for name, share in wanted.items() if passed >= share * total]:
            result[name] = value / 1000
            del wanted[name]
    result["max"] = max(counts) / 1000
    result["mean"] = round(sum(value * count for value, count in counts.items()) / total / 1000, 3)
    return result


def merge(parts: list[dict[int, int]]) -> collections.Counter[int]:
    merged = collections.Counter[int]()
    for part in parts:
        merged.update(part)
    return merged


def summarize(
    options: argparse.Namespace, tallies: list[Tally], figures: dict[str, float]
) -> dict[str, object]:
    messages = sum(tally.messages for tally in tallies)
    seconds = figures["measured_s"] or 1e-9
    client_cpu_s = sum(tally.client_cpu_s for tally in tallies)
    result: dict[str, object] = {
        "mode": options.mode, "topic": options.topic, "size": options.size, "queues": options.queues,
        "connections": options.connections, "in_flight": options.in_flight, "batch": options.batch,
        "messages": messages, "total": sum(tally.total for tally in tallies),
        "seconds": round(seconds, 3), "msg_per_s": round(figures["server_messages"] / seconds, 1),
        "codes": dict(merge([tally.codes for tally in tallies])),
        "latency_ms": percentiles(merge([tally.latency for tally in tallies])),
    }  # fmt: skip
    if not result["latency_ms"]:
        del result["latency_ms"]
    notes = [tally.note for tally in tallies if tally.note]
    if notes:
        result["notes"] = notes
    all_cpu_share = messages / max(1, sum(tally.total for tally in tallies))
    result["client_us_per_msg"] = round(client_cpu_s * all_cpu_share / max(1, messages) * 1e6, 2)
    if options.server_pid:
        others = figures["machine_busy_s"] - figures["server_cpu_s"] - client_cpu_s * all_cpu_share
        result |= {
            "server_us_per_msg": round(figures["server_cpu_s"] / max(1, figures["server_messages"]) * 1e6, 3),
            "server_cpu_percent": round(figures["server_cpu_s"] / seconds * 100, 1),
            "other_cpu_percent": round(max(0.0, others) / seconds * 100, 1),
            "server_rss_mb": round(figures["rss_mb"], 1),
            "server_rss_anon_mb": round(figures["rss_anon_mb"], 1),
            "server_rss_peak_mb": round(figures["rss_peak_mb"], 1),
        }
    return result


def set_up_topic(options: argparse.Namespace) -> None:
    """Find the broker, create the topic there, learn the broker's name."""
    if options.namesrv and not options.broker:
        link = Link(parse_address(options.namesrv))
        _code, _ext, body = link.call(GET_BROKER_CLUSTER_INFO, {})
        table = re.search(rb'"brokerAddrs":\{"?0"?:"([^"]+)"', body)
        if table is None:
            raise LoadError(f"{options.namesrv} knows no master broker: {body[:300]!r}")
        options.broker = table[1].decode()
    options.address = parse_address(options.broker or "127.0.0.1:10911")
    link = Link(options.address)
    if not options.no_create:
        link.call(UPDATE_AND_CREATE_TOPIC, {
            "topic": options.topic, "defaultTopic": "TBW102", "readQueueNums": str(options.queues),
            "writeQueueNums": str(options.queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
        })  # fmt: skip
    if options.namesrv:
        deadline = time.monotonic() + 10
        while True:
            nameserver = Link(parse_address(options.namesrv))
            code, _ext, body = nameserver.call(
                GET_ROUTEINFO_BY_TOPIC, {"topic": options.topic}, expect=(0, 17)
            )
            found = re.search(rb'"brokerName":"([^"]+)"', body)
            if code == 0 and found:
                options.broker_name = found[1].decode()
                break
            if time.monotonic() > deadline:
                raise LoadError(f"no route for {options.topic} at {options.namesrv}")
            time.sleep(0.3)
    link.sock.close()


def max_offset_sum(options: argparse.Namespace) -> int:
    link = Link(options.address)
    total = sum(
        int(link.call(GET_MAX_OFFSET, {"topic": options.topic, "queueId": str(queue)})[1]["offset"])
        for queue in range(options.queues)
    )
    link.sock.close()
    return total


def settled_offset_sum(options: argparse.Namespace, wanted: int) -> int:
    """The sum of max offsets once it reaches `wanted`, or once it has not grown for two seconds.

    Queue entries are made after the ack, so the first look may be too early.
    """
    reached, grown_at = max_offset_sum(options), time.monotonic()
    while reached < wanted and time.monotonic() - grown_at < 2:
        time.sleep(0.2)
        if (now := max_offset_sum(options)) > reached:
            reached, grown_at = now, time.monotonic()
    return reached


def run_mode(options: argparse.Namespace) -> tuple[dict[str, object], bool]:
    """Run one mode; return its figures and whether everything was as it must be."""
    if options.mode == "topic":
        return {"mode": "topic", "topic": options.topic, "queues": options.queues}, True
    if options.mode == "e2e":
        tallies, figures = Run(options, ["consumer", "producer"]).measure()
        producer = next(tally for tally in tallies if tally.latency)
        consumer = next(tally for tally in tallies if tally is not producer)
        result = summarize(options, [producer], figures)
        result["client_us_per_msg"] = round(
            (producer.client_cpu_s + consumer.client_cpu_s) / max(1, producer.total) * 1e6, 2
        )
        result["ack_latency_ms"] = result.pop("latency_ms")
        result["e2e_latency_ms"] = percentiles(collections.Counter(consumer.second_latency))
        result |= {"rate": options.rate, "received": consumer.total, "pull_codes": consumer.codes}
        return result, not consumer.note and consumer.total == producer.total
    if options.mode == "oneway":
        stored_before, cpu_before = max_offset_sum(options), sample_server(options.server_pid).cpu_s
        tallies, figures = Run(options, ["oneway"] * options.processes).measure()
        sent = sum(tally.total for tally in tallies)
        stored = settled_offset_sum(options, stored_before + sent) - stored_before
        cpu_s = sample_server(options.server_pid).cpu_s - cpu_before
        result = summarize(options, tallies, figures)
        result |= {"sent": sent, "stored": stored, "lost": sent - stored}
        if options.server_pid:
            result["server_us_per_msg"] = round(cpu_s / max(1, stored) * 1e6, 2)
        return result, True
    if options.mode == "pull":
        tallies, figures = Run(options, ["pull"] * options.processes).measure()
        read = sum(tally.total for tally in tallies)  # an empty topic must not pass for a healthy one
        return summarize(options, tallies, figures), read == options.count if options.count else read > 0
    acked: dict[str, object] = {}
    result: dict[str, object] = {}
    offsets_before = 0
    if options.acked_in:
        acked = json.loads(Path(options.acked_in).read_text())
        options.topic, options.queues, options.run_id = acked["topic"], acked["queues"], acked["run_id"]
    else:
        offsets_before = max_offset_sum(options) if options.mode == "txn" else 0
        tallies, figures = Run(options, ["send"] * options.processes).measure()
        result = summarize(options, tallies, figures)
        acked = {
            "topic": options.topic, "queues": options.queues, "run_id": options.run_id,
            "sent": [tally.next_sequence for tally in tallies],
            "not_acked": [sorted(tally.not_acked) for tally in tallies],
        }  # fmt: skip
    if options.mode == "txn":
        result["visible"] = (
            settled_offset_sum(options, offsets_before + int(result["total"])) - offsets_before
        )
        return result, result["visible"] == result["total"]
    if options.acked_out:
        Path(options.acked_out).write_text(json.dumps(acked))
    if options.mode != "verify":
        return result, bool(result["messages"])
    found, healthy = read_back(options, acked)
    return result | found, healthy


def read_back(options: argparse.Namespace, acked: dict) -> tuple[dict[str, object], bool]:
    """Read the whole topic and compare it with what was acked. One process: it shares `seen`."""
    options.seen = [bytearray(count + 1) for count in acked["sent"]]
    options.processes, options.connections_of = 1, [min(4, options.queues)]
    options.no_crc = False
    settled_offset_sum(options, 1 << 62)
    now = time.monotonic_ns()
    tally = run_pull(options, 0, Window(now, now, 0))
    lost: list[tuple[int, int]] = []
    duplicated = unacked_found = 0
    for worker, count in enumerate(acked["sent"]):
        cells, not_acked = options.seen[worker], set(acked["not_acked"][worker])
        for sequence in range(count):
            times = cells[sequence]
            duplicated += times > 1
            if sequence in not_acked:
                unacked_found += times > 0
            elif not times:
                lost.append((worker, sequence))
    result: dict[str, object] = {
        "verified": sum(acked["sent"]) - sum(map(len, acked["not_acked"])), "read": tally.total,
        "lost": len(lost), "duplicated": duplicated, "unacked_found": unacked_found,
    }  # fmt: skip
    if lost:
        result["first_lost"] = lost[:10]
    return result, not lost and not duplicated


# ----------------------------------------------------------------------------------------- CLI


def parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary + "\n\n" + rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("mode", choices=("send", "oneway", "txn", "pull", "e2e", "verify", "topic", "info"))
    add("--broker", help="host:port of the broker (default 127.0.0.1:10911, or the namesrv's first master)")
    add("--namesrv", help="host:port; also waits until the topic has a route there")
    add("--broker-name", default="broker-a", help="value of the header's bname field")
    add("--topic", help="default: load for pull, else a fresh load-<run id>")
    add("--queues", type=int, default=4, help="queues of the topic (default 4)")
    add("--no-create", action="store_true", help="do not send the create-topic request")
    add("--group", default="load_producer", help="producer group")
    add("--consumer-group", default="load_consumer")
    add("--connections", type=int, default=1, help="connections over all processes")
    add("--in-flight", type=int, default=64, help="requests outstanding per connection")
    add("--processes", type=int, default=1, help="client processes")
    add("--size", type=int, default=128, help="body bytes, at least 24")
    add("--batch", type=int, default=1, help="messages per SEND_BATCH_MESSAGE request")
    add("--tags", default="", help="TAGS property")
    add("--keys", action="store_true", help="give each message a distinct KEYS property")
    add("--delay-level", type=int, default=0)
    add("--duration", type=float, default=0.0, help="measured seconds (default 10, pull: one pass)")
    add("--warmup", type=float, default=0.0, help="seconds before the measured window")
    add(
        "--count",
        type=int,
        default=0,
        help="number of messages instead of a duration, no warm-up then; pull: how many there must be",
    )
    add(
        "--rate",
        type=float,
        default=0.0,
        help="messages per second: e2e (default 1000), oneway (0 = no pacing)",
    )
    add("--pull-count", type=int, default=32, help="maxMsgNums of a pull")
    add("--pull-bytes", type=int, default=262_144, help="maxMsgBytes of a pull")
    add("--no-crc", action="store_true", help="pull: do not check body CRCs")
    add("--expect-code", default="0", help="comma list of reply codes that do not end the run")
    add("--survive", action="store_true", help="send, verify: a broken connection only ends that connection")
    add("--acked-out", help="send: write what was acked to this file")
    add("--acked-in", help="verify: read that file instead of sending")
    add("--server-pid", default="", help="comma list of processes to sample")
    add(
        "--server-port", type=int, action="append", default=[], help="sample whoever listens here; repeatable"
    )
    add("--json", action="store_true", help="one line of JSON on stdout")
    options = parser.parse_args(argv)
    if options.size < STAMP.size:
        parser.error(f"--size must be at least {STAMP.size}")
    if options.mode == "txn" and options.batch > 1:
        parser.error("a transaction message cannot be a batch")
    if options.mode in ("e2e",) and options.batch > 1:
        parser.error("e2e sends single messages")
    options.run_id = random.SystemRandom().getrandbits(32)
    options.sub_version = time.time_ns() // 1_000_000
    options.expect_code = [int(code) for code in options.expect_code.split(",")]
    options.server_pid = [int(pid) for pid in options.server_pid.split(",") if pid]
    for port in options.server_port:
        options.server_pid += pids_of_port(port)
    if options.server_port and not options.server_pid:
        parser.error("nobody listens on --server-port")
    if not options.topic:
        options.topic = "load" if options.mode == "pull" else f"load-{options.run_id:08x}"
    if options.mode == "pull":
        options.no_create = True
    if options.mode == "e2e" and not options.rate:
        options.rate = 1000.0
    if not options.duration and not options.count and options.mode != "pull":
        options.duration = 10.0
    options.processes = max(1, min(options.processes, options.connections if options.mode != "e2e" else 1))
    share, extra = divmod(options.connections, options.processes)
    options.connections_of = [share + (worker < extra) for worker in range(options.processes)]
    share, extra = divmod(options.count, options.processes)
    options.count_of = [share + (worker < extra) for worker in range(options.processes)]
    options.seen = None
    return options


def main(argv: list[str]) -> int:
    options = parse_arguments(argv)
    try:
        if options.mode == "info":
            result: dict[str, object] = {"pids": options.server_pid} | dataclasses.asdict(
                sample_server(options.server_pid)
            )
            healthy = True
        else:
            if not options.acked_in:
                set_up_topic(options)
            else:
                options.address = parse_address(options.broker or "127.0.0.1:10911")
            result, healthy = run_mode(options)
    except (LoadError, OSError) as error:
        print(f"rmqload: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:20} {value}")
    if not healthy:
        print("rmqload: messages are missing, duplicated or not as many as they must be", file=sys.stderr)
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
