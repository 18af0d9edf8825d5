"""What a process of rmqload does: send, pull, or one end of a measurement of latency, within a window of time."""

from __future__ import annotations

import argparse
import array
import collections
import ctypes
import dataclasses
import multiprocessing
import resource
import select
import socket
import time
import zlib

from bench.load.wire import (
    END_TRANSACTION,
    FLAG_ONEWAY,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    OPAQUE_BASE,
    PULL_FOUND,
    PULL_MESSAGE,
    PULL_NOT_FOUND,
    PULL_OFFSET_MOVED,
    PULL_RETRY_IMMEDIATELY,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    REPLY_TIMEOUT_S,
    STAMP,
    STORED_CODES,
    SYS_COMMIT,
    Link,
    LoadError,
    MessageFactory,
    encode_frame,
    parse_records,
    reply_code,
    reply_fields,
    reply_opaque,
)

LOST_NS = 60e9  # without a message; a busy machine or disk may pause for 10 s


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """When a run starts, and the part of it that is measured (monotonic ns; end 0 = by count)."""

    start_ns: int
    measure_ns: int
    end_ns: int


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


# One counter a worker: messages answered so far. Made before the fork (count_in), read by the parent.
_counters: ctypes.Array[ctypes.c_longlong] = (ctypes.c_longlong * 1)()


def count_in(counters: ctypes.Array[ctypes.c_longlong]) -> None:
    """Let the workers that are forked from now on count there."""
    global _counters
    _counters = counters


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
                    _counters[worker] = tally.total
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
        _counters[worker] = sent * factory.batch
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

    With --duration the queues are read again from the start until the deadline, and no further.
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
                _counters[worker] = tally.total
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
                _counters[0] += 1
                if window.measure_ns <= due < window.end_ns:
                    latencies.append(max(0, now - due) // 1000)
    shared["sent"].value = sent - refused
    tally.client_cpu_s = cpu_seconds() - cpu_start
    tally.total, tally.messages, tally.next_sequence = sent - refused, len(latencies), sent
    tally.codes, tally.latency = dict(codes), dict(collections.Counter(latencies))
    return tally


def run_e2e_consumer(options: argparse.Namespace, shared: dict[str, multiprocessing.Value]) -> Tally:
    """Long-poll every queue on one connection, as a push consumer does; the window is that in `shared`."""
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
    with shared["ready"].get_lock():
        shared["ready"].value += 1
    while True:
        readable, _, _ = select.select([link.sock], [link.sock] if link.unwritten else [], [], 0.1)
        now = time.monotonic_ns()
        sent = shared["sent"].value
        if sent and tally.total >= sent:
            break
        if sent and now - last_ns > LOST_NS:
            tally.note = (
                f"{sent - tally.total} messages not received {LOST_NS / 1e9:.0f} s after the last one"
            )
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
                    if shared["measure_ns"].value <= due < shared["end_ns"].value:
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
