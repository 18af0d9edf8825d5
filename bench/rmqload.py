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
import collections
import dataclasses
import json
import random
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.load.phase import Run, percentiles, summarize
from bench.load.server import pids_of_port, sample_server
from bench.load.wire import (
    GET_BROKER_CLUSTER_INFO,
    GET_MAX_OFFSET,
    GET_ROUTEINFO_BY_TOPIC,
    STAMP,
    UPDATE_AND_CREATE_TOPIC,
    Link,
    LoadError,
    parse_address,
)
from bench.load.workers import Window, run_pull


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
        result |= {
            "rate": options.rate,
            "sent": producer.total,
            "received": consumer.total,
            "pull_codes": consumer.codes,
        }
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
        parser.error("--server-port refuses connections: start the server first")
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
        figures = ", ".join(
            f"{name} {result[name]}" for name in ("sent", "received", "codes", "pull_codes") if name in result
        )
        text = "messages are missing, duplicated or not as many as they must be"
        print(f"rmqload: {text}{figures and ': '}{figures}", file=sys.stderr)
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
