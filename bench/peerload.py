#!/usr/bin/env python3
"""peerload: the load of rmqload on NATS JetStream, Redis Streams and Kafka, by their own protocols.

For comparing server CPU per message between brokers on one machine; rmqload.py (next to this file)
samples the servers and makes the percentiles. Same message bodies, same in-flight rule, one process.

  peerload.py nats|redis|kafka send|pull --address 127.0.0.1:4222 --server-port 4222 [--in-flight 64]
      [--connections 1] [--size 128] [--queues 4] [--duration 5] [--warmup 1]

send: NATS publishes with a reply inbox and waits for the JetStream ack (file storage, one replica);
Redis runs XADD to one stream per queue. pull: reads all from the start, 32 messages a request, again
and again until the time has ended: NATS through a pull consumer without acks, Redis by XRANGE, Kafka by
Fetch of --fetch-bytes. Kafka: one record batch of --batch records a Produce request (acks=1), one
partition a request, bodies all alike, because a record batch needs a CRC-32C that Python lacks.
"""

from __future__ import annotations

import argparse
import array
import collections
import json
import re
import select
import socket
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.load import server, wire
from bench.load.phase import summarize
from bench.load.wire import STAMP, LoadError
from bench.load.workers import Tally, cpu_seconds


class TextLink:
    """Blocking set-up calls and non-blocking traffic on one socket, with a line-oriented buffer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.inbox = b""
        self.sent: collections.deque[int] = collections.deque()
        self.unwritten = b""

    def write(self, data: bytes) -> None:
        data = self.unwritten + data
        try:
            count = self.sock.send(data)
        except BlockingIOError:
            count = 0
        self.unwritten = data[count:]

    def read(self) -> None:
        try:
            data = self.sock.recv(wire.RECV_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise LoadError("the server closed the connection")
        self.buffer += data


class Nats:
    STREAM = "LOAD"

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.filler = options, b"x" * (options.size - STAMP.size)
        self.number = 0

    def connect(self) -> TextLink:
        link = TextLink(self.options.address)
        link.inbox = b"_INBOX.%d" % link.sock.fileno()  # one per connection: acks must not fan out
        link.sock.sendall(
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
        )
        link.sock.sendall(b"SUB %b.* 1\r\nPING\r\n" % link.inbox)
        while b"PONG\r\n" not in link.buffer:
            link.read()
        link.buffer = link.buffer.split(b"PONG\r\n", 1)[1]
        return link

    def call(self, link: TextLink, subject: str, body: dict) -> dict:
        raw = json.dumps(body).encode()
        link.sock.sendall(b"PUB %s %b.call %d\r\n%s\r\n" % (subject.encode(), link.inbox, len(raw), raw))
        while True:
            for line, payload in self.messages(link):
                if b".call " in line:
                    return json.loads(payload)
            link.read()

    def messages(self, link: TextLink) -> list[tuple[bytes, bytes]]:
        """Whole messages in the buffer as (first line, payload)."""
        data, at, found = link.buffer, 0, []
        while (eol := data.find(b"\r\n", at)) >= 0:
            line = data[at:eol]
            if line.startswith((b"MSG", b"HMSG")):
                size = int(line[line.rfind(b" ") + 1 :])
                if len(data) < eol + 4 + size:
                    break
                found.append((line, data[eol + 2 : eol + 2 + size]))
                at = eol + 4 + size
            elif line == b"PING":
                link.write(b"PONG\r\n")
                at = eol + 2
            elif line.startswith(b"-ERR"):
                raise LoadError(line.decode())
            else:
                at = eol + 2
        link.buffer = data[at:]
        return found

    def set_up(self, link: TextLink) -> None:
        reply = self.call(link, f"$JS.API.STREAM.CREATE.{self.STREAM}", {
            "name": self.STREAM, "subjects": ["load.*"], "storage": "file", "retention": "limits",
            "num_replicas": 1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "discard": "old", "max_consumers": -1,
        })  # fmt: skip
        if "error" in reply and "already in use" not in str(reply):
            raise LoadError(str(reply))

    def make(self, count: int, now: int, link: TextLink) -> bytes:
        queues, size = self.options.queues, self.options.size
        out = []
        for _ in range(count):
            n = self.number = self.number + 1
            out.append(
                b"PUB load.%d %b.%d %d\r\n%b%b\r\n"
                % (n % queues, link.inbox, n, size, STAMP.pack(1, 1, n, now), self.filler)
            )
        return b"".join(out)

    def acks(self, link: TextLink) -> int:
        found = self.messages(link)
        for _line, payload in found:
            if b'"seq":' not in payload:
                raise LoadError(payload.decode())
        return len(found)

    def pull_set_up(self, link: TextLink) -> None:
        self.consumer = f"c{time.time_ns()}"
        reply = self.call(link, f"$JS.API.CONSUMER.DURABLE.CREATE.{self.STREAM}.{self.consumer}", {
            "stream_name": self.STREAM,
            "config": {"durable_name": self.consumer, "ack_policy": "none", "deliver_policy": "all", "replay_policy": "instant"},
        })  # fmt: skip
        if "error" in reply:
            raise LoadError(str(reply))
        self.expected, self.left, self.got = 0, reply["num_pending"], 0

    def pull(self, link: TextLink, _queue: int) -> None:
        link.sock.sendall(
            b'PUB $JS.API.CONSUMER.MSG.NEXT.%s.%s %b.p 28\r\n{"batch":32,"no_wait":true }\r\n'
            % (self.STREAM.encode(), self.consumer.encode(), link.inbox)
        )

    def pulled(self, link: TextLink) -> tuple[int, list[int]]:
        """Messages received, and the queues whose request is finished."""
        count = 0
        for line, _payload in self.messages(link):
            if line.startswith(b"HMSG"):
                continue
            count += 1
        self.expected += count
        done, self.got = divmod(self.got + count, 32)
        if self.left - self.expected < 64 * self.options.queues:
            self.pull_set_up_again = True
        return count, [0] * done


class Redis:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.filler, self.number = options, b"x" * (options.size - STAMP.size), 0
        self.last = {}

    def connect(self) -> TextLink:
        return TextLink(self.options.address)

    def set_up(self, link: TextLink) -> None:
        pass

    def make(self, count: int, now: int, _link: TextLink) -> bytes:
        queues, size = self.options.queues, self.options.size
        out = []
        for _ in range(count):
            n = self.number = self.number + 1
            out.append(
                b"*5\r\n$4\r\nXADD\r\n$6\r\nload:%d\r\n$1\r\n*\r\n$1\r\nb\r\n$%d\r\n%b%b\r\n"
                % (n % queues, size, STAMP.pack(1, 1, n, now), self.filler)
            )
        return b"".join(out)

    def acks(self, link: TextLink) -> int:
        lines = link.buffer.split(b"\r\n")
        count = (len(lines) - 1) // 2
        if lines[0][:1] == b"-":
            raise LoadError(lines[0].decode())
        link.buffer = b"\r\n".join(lines[2 * count :])
        return count

    def pull_set_up(self, link: TextLink) -> None:
        self.order: collections.deque[int] = collections.deque()

    def pull(self, link: TextLink, queue: int) -> None:
        start = self.last.get(queue, b"-")
        link.write(
            b"*6\r\n$6\r\nXRANGE\r\n$6\r\nload:%d\r\n$%d\r\n%b\r\n$1\r\n+\r\n$5\r\nCOUNT\r\n$2\r\n32\r\n"
            % (queue, len(start), start)
        )
        self.order.append(queue)

    def pulled(self, link: TextLink) -> tuple[int, list[int]]:
        data, at, total, done = link.buffer, 0, 0, []
        entry = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nb\r\n\$(\d+)\r\n")
        while (eol := data.find(b"\r\n", at)) >= 0:
            count, at_entry, last = int(data[at + 1 : eol]), eol + 2, b""
            for _ in range(count):
                found = entry.match(data, at_entry)
                if found is None or (at_entry := found.end() + int(found[2]) + 2) > len(data):
                    break
                last = found[1]
            else:
                queue = self.order.popleft()
                self.last[queue] = b"(" + last if count == 32 else b"-"
                total, at = total + count, at_entry
                done.append(queue)
                continue
            break
        link.buffer = data[at:]
        return total, done


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def varint(value: int) -> bytes:
    value, out = (value << 1) ^ (value >> 63), b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


class Kafka:
    TOPIC = b"load"
    PRODUCE, FETCH, METADATA = (0, 3), (1, 4), (3, 4)

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.number = options, 0
        self.topic = b"%s%d-%d" % (self.TOPIC, options.size, options.batch)
        if options.mode == "send":
            batch = self.record_batch()
            self.templates = [
                self.request(self.PRODUCE, struct.pack(">hhii", -1, 1, 30_000, 1) + self.text(self.topic)
                             + struct.pack(">iii", 1, queue, len(batch)) + batch)
                for queue in range(options.queues)
            ]  # fmt: skip

    def record_batch(self) -> bytes:
        records = b""
        for delta in range(self.options.batch):
            value = b"x" * self.options.size
            record = b"\0" + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
            records += varint(len(record)) + record
        count, born = self.options.batch, time.time_ns() // 1_000_000
        body = struct.pack(">hiqqqhii", 0, count - 1, born, born, -1, -1, -1, count) + records
        return struct.pack(">qiibI", 0, len(body) + 9, -1, 2, crc32c(body)) + body

    @staticmethod
    def text(value: bytes) -> bytes:
        return struct.pack(">h", len(value)) + value

    @staticmethod
    def request(api: tuple[int, int], body: bytes, correlation: int = 0) -> bytes:
        payload = struct.pack(">hhih", *api, correlation, 4) + b"load" + body
        return struct.pack(">i", len(payload)) + payload

    def connect(self) -> TextLink:
        return TextLink(self.options.address)

    def call(self, link: TextLink, api: tuple[int, int], body: bytes) -> bytes:
        link.sock.sendall(self.request(api, body))
        while True:
            for reply in self.replies(link):
                return reply
            link.read()

    def replies(self, link: TextLink) -> list[bytes]:
        data, at, found = link.buffer, 0, []
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            found.append(data[at + 4 : end])
            at = end
        link.buffer = data[at:]
        return found

    def set_up(self, link: TextLink) -> None:
        for _ in range(2):  # metadata with auto-creation; the second time the leaders are elected
            self.call(link, self.METADATA, struct.pack(">i", 1) + self.text(self.topic) + b"\1")
            time.sleep(1)

    def make(self, count: int, _now: int, _link: TextLink) -> bytes:
        out = []
        for _ in range(count):
            self.number += 1
            out.append(self.templates[self.number % len(self.templates)])
        return b"".join(out)

    def acks(self, link: TextLink) -> int:
        found, at = self.replies(link), 18 + len(self.topic)
        for reply in found:
            if reply[at : at + 2] != b"\0\0":
                raise LoadError(f"produce error {int.from_bytes(reply[at : at + 2], 'big')}")
        return len(found)

    def pull_set_up(self, link: TextLink) -> None:
        self.offsets = [0] * self.options.queues
        self.order: collections.deque[int] = collections.deque()

    def pull(self, link: TextLink, queue: int) -> None:
        size = self.options.fetch_bytes
        link.write(self.request(self.FETCH, struct.pack(">iiiibi", -1, 100, 1, 50 << 20, 0, 1) + self.text(self.topic)
                                + struct.pack(">iiqi", 1, queue, self.offsets[queue], size)))  # fmt: skip
        self.order.append(queue)

    def pulled(self, link: TextLink) -> tuple[int, list[int]]:
        total, done = 0, []
        for reply in self.replies(link):
            queue = self.order.popleft()
            error, high = struct.unpack_from(">hq", reply, 22 + len(self.topic))
            at, start = 22 + len(self.topic) + 10 + 8 + 4 + 4, self.offsets[queue]
            if error:
                raise LoadError(f"fetch error {error}")
            while len(reply) - at >= 61:
                base, length = struct.unpack_from(">qi", reply, at)
                if at + 12 + length > len(reply):
                    break
                self.offsets[queue] = base + struct.unpack_from(">i", reply, at + 23)[0] + 1
                at += 12 + length
            total += self.offsets[queue] - start
            if self.offsets[queue] == start and high > start:
                raise LoadError("fetch returned no whole batch: raise --fetch-bytes")
            if self.offsets[queue] >= high:
                self.offsets[queue] = 0
            done.append(queue)
        return total, done


def run(options: argparse.Namespace) -> dict[str, object]:
    peer = {"nats": Nats, "redis": Redis, "kafka": Kafka}[options.peer](options)
    links = [peer.connect() for _ in range(options.connections)]
    pulling = options.mode == "pull"
    (peer.pull_set_up if pulling else peer.set_up)(links[0])
    poll, by_number = select.epoll(), {}
    for link in links:
        link.sock.setblocking(False)
        by_number[link.sock.fileno()] = link
        poll.register(link.sock, select.EPOLLIN)
    start = time.monotonic_ns()
    measure, end = start + int(options.warmup * 1e9), start + int((options.warmup + options.duration) * 1e9)
    latencies, messages, total = array.array("I"), 0, 0
    before, busy = None, 0.0
    cpu_start = cpu_seconds()
    if pulling:
        for queue in range(options.queues):
            peer.pull(links[queue % len(links)], queue)
    else:
        for link in links:
            link.sent.extend([start] * options.in_flight)
            link.write(peer.make(options.in_flight, start, link))
    while (now := time.monotonic_ns()) < end:
        if before is None and now >= measure:
            before, busy, cpu_start, clock = (
                server.sample_server(options.server_pid),
                server.machine_busy_s(),
                cpu_seconds(),
                now,
            )
        for number, _event in poll.poll(1):
            link = by_number[number]
            link.read()
            now = time.monotonic_ns()
            if pulling:
                count, done = peer.pulled(link)
                if getattr(peer, "pull_set_up_again", False):
                    peer.pull_set_up_again = False
                    link.sock.settimeout(5)
                    peer.pull_set_up(link)  # messages of the old consumer still on the way are dropped
                    link.sock.setblocking(False)
                    done = list(range(options.queues))
                for queue in done:
                    peer.pull(link, queue)
            else:
                count = peer.acks(link)
                if count:
                    if before is not None:
                        latencies.extend([(now - link.sent.popleft()) // 1000 for _ in range(count)])
                    else:
                        for _ in range(count):
                            link.sent.popleft()
                    link.sent.extend([now] * count)
                    link.write(peer.make(count, now, link))
                elif link.unwritten:
                    link.write(b"")
                count *= options.batch
            total += count
            if before is not None:
                messages += count
    after = server.sample_server(options.server_pid)
    figures = {
        "server_cpu_s": after.cpu_s - before.cpu_s, "server_messages": messages, "machine_busy_s": server.machine_busy_s() - busy,
        "measured_s": (time.monotonic_ns() - clock) / 1e9, "rss_mb": after.rss_mb,
        "rss_anon_mb": after.anon_mb, "rss_peak_mb": after.peak_mb,
    }  # fmt: skip
    tally = Tally(messages=messages, total=messages, client_cpu_s=cpu_seconds() - cpu_start,
                          latency=dict(collections.Counter(latencies)))  # fmt: skip
    options.topic = "LOAD"
    return {"peer": options.peer} | summarize(options, [tally], figures)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("peer", choices=("nats", "redis", "kafka"))
    add("mode", choices=("send", "pull"))
    add("--address", required=True, help="host:port")
    add("--server-port", type=int, required=True)
    add("--connections", type=int, default=1)
    add("--in-flight", type=int, default=64)
    add("--size", type=int, default=128)
    add("--queues", type=int, default=4)
    add("--duration", type=float, default=5.0)
    add("--warmup", type=float, default=1.0)
    add("--batch", type=int, default=1, help="kafka: records per Produce request")
    add("--fetch-bytes", type=int, default=1 << 20, help="kafka: partition_max_bytes")
    add("--json", action="store_true")
    options = parser.parse_args(argv)
    options.address = wire.parse_address(options.address)
    options.server_pid = server.pids_of_port(options.server_port)
    try:
        result = run(options)
    except (LoadError, OSError) as error:
        print(f"peerload: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
