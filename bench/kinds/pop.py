"""Server CPU of POP: messages popped and acknowledged one by one, with all the work that follows in the timer.

    python bench/kinds/pop.py [--servers aerobee,rocketmq] [--messages 20000] [--rounds 3] [--json FILE]

A topic of 8 queues is filled; then everything is popped (8 pops in flight, 32 or 1 messages a pop) and acknowledged
(ACK_MESSAGE, one a message, at most 64 in flight), as RocketMQ's clients do. The check points and acknowledgements of
both products wait in their timers until the invisible time (10 s) expires, so the figure is taken after that: server CPU
from the first pop until the timer has done with the last acknowledgement, less what the idle server takes in that
time, divided by the messages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench import results_file, servers
from bench.kinds.filter import Wire
from bench.load.server import process_cpu_s
from bench.servers import Server

GROUP = "bench-pop"
QUEUES = 8
POPS, ACKS = 8, 64
INVISIBLE_MS = 10_000
SETTLE_S = 4.0
IDLE_S = 4.0
SEND_BATCH, CREATE_TOPIC, POP_MESSAGE, ACK_MESSAGE = 320, 17, 200050, 200051
SERVERS = {
    "aerobee": servers.aerobee,
    "aerobee-python": servers.aerobee_python,
    "aerobee-buffer": lambda: servers.aerobee(extra={"enablePopBufferMerge": "true"}),
    "before": servers.before,
    "before-python": servers.before_python,
    "rocketmq": servers.rocketmq,
    "rocketmq-buffer": lambda: servers.rocketmq(extra={"enablePopBufferMerge": "true"}),
}
SHAPES = (("pop of 32, one ack a message", 32), ("pop of 1, one ack a message", 1))


def batch_body(first: int, count: int) -> bytes:
    parts = []
    for number in range(first, first + count):
        text, body = (
            f"KEYS\x01k{number}\x02UNIQ_KEY\x017F00000100002A9F0001{number:012X}\x02".encode(),
            b"x" * 128,
        )
        size = 22 + len(body) + len(text)
        parts.append(
            size.to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big") + body
            + len(text).to_bytes(2, "big") + text
        )  # fmt: skip
    return b"".join(parts)


def fill(wire: Wire, topic: str, count: int) -> None:
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
           "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    _, code, _ = wire.call(CREATE_TOPIC, ext)
    assert code == 0, code
    for number, first in enumerate(range(0, count, 50)):
        send = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0",
                "g": str(int(time.time() * 1000)), "h": "0", "i": f"UNIQ_KEY\x01{first:032X}\x02WAIT\x01true\x02",
                "j": "0", "k": "false", "m": "true"}  # fmt: skip
        _, code, _ = wire.call(SEND_BATCH, send, batch_body(first, 50))
        assert code == 0, code


def pop_and_ack(pops: Wire, acks: Wire, topic: str, batch: int, count: int) -> int:
    """Consume `count` messages; return how many pops it took."""
    waiting: deque[str] = deque()
    asked = got = acked = in_flight = pop_count = 0
    while acked < count:
        while asked < POPS and got + asked * batch < count:
            ext = {
                "consumerGroup": GROUP, "topic": topic, "queueId": "-1", "maxMsgNums": str(batch),
                "invisibleTime": str(INVISIBLE_MS), "pollTime": "0", "bornTime": str(int(time.time() * 1000)),
                "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
            }  # fmt: skip
            pops.send(POP_MESSAGE, ext)
            asked += 1
        while waiting and in_flight < ACKS:
            handle = waiting.popleft()
            tokens = handle.split(" ")
            ext = {
                "consumerGroup": GROUP,
                "topic": topic,
                "queueId": tokens[6],
                "extraInfo": handle,
                "offset": tokens[7],
            }
            acks.send(ACK_MESSAGE, ext)
            in_flight += 1
        if asked:
            fields, code, _ = pops.receive()
            asked -= 1
            pop_count += 1
            if code == 0:
                taken = handles(fields)
                waiting.extend(taken)
                got += len(taken)
        elif in_flight:
            _, code, _ = acks.receive()
            assert code == 0, code
            in_flight -= 1
            acked += 1
        elif got < count:
            continue
        while in_flight >= ACKS // 2 or (in_flight and not waiting and got >= count):
            _, code, _ = acks.receive()
            assert code == 0, code
            in_flight -= 1
            acked += 1
    return pop_count


def handles(fields: dict[str, str]) -> list[str]:
    starts = dict(piece.rsplit(" ", 1) for piece in fields["startOffsetInfo"].split(";"))
    found = []
    for piece in fields["msgOffsetInfo"].split(";"):
        retry, queue, offsets = piece.split(" ")
        start = starts[f"{retry} {queue}"]
        found += [
            f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} {retry} "
            f"{servers_name} {queue} {offset}"
            for offset in offsets.split(",")
        ]
    return found


servers_name = "broker-a"


def cpu_s(server: Server) -> float:
    return sum(map(process_cpu_s, server.pids))


def measure(
    server: Server, wires: tuple[Wire, Wire], shape: tuple[str, int], number: int, count: int
) -> tuple[float, float]:
    """(us of CPU a message, of them while popping and acknowledging)."""
    batch = shape[1]
    topic = f"popped{number}x{batch}"
    fill(wires[0], topic, count)
    time.sleep(1)
    before, begin = cpu_s(server), time.monotonic()
    time.sleep(IDLE_S)
    idle = (cpu_s(server) - before) / (time.monotonic() - begin)
    before, begin = cpu_s(server), time.monotonic()
    pop_and_ack(*wires, topic, batch, count)
    direct = cpu_s(server) - before
    time.sleep(INVISIBLE_MS / 1000 + SETTLE_S)
    elapsed = time.monotonic() - begin
    return (cpu_s(server) - before - idle * elapsed) / count * 1e6, direct / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", default="aerobee,rocketmq")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--warm", type=int, default=20_000, help="messages through a server before the first round"
    )
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with ExitStack() as stack:
        running = []
        for name in options.servers.split(","):
            server = stack.enter_context(SERVERS[name]())
            address = ("127.0.0.1", server.port)
            wires = (Wire(address), Wire(address))
            fill(wires[0], "warm", options.warm)
            pop_and_ack(*wires, "warm", 32, options.warm)
            running.append((name, server, wires))
        time.sleep(INVISIBLE_MS / 1000 + SETTLE_S)
        for number in range(options.rounds):
            for shape in SHAPES:
                for name, server, wires in running:
                    figures = measure(server, wires, shape, number, options.messages)
                    found.setdefault(name, {}).setdefault(shape[0], []).append(figures)
                    print(
                        f"{name}, {shape[0]}: {figures[0]:.1f} us a message, {figures[1]:.1f} of them immediately",
                        file=sys.stderr,
                    )
    first = next(iter(found))
    print("server CPU, us a message (of them while popping and acknowledging)\n")
    print("| POP | " + " | ".join(found) + " |\n|---|" + "---|" * len(found))
    for shape_name, _ in SHAPES:
        cells = []
        for figures in found.values():
            total, direct = (statistics.median(each[i] for each in figures[shape_name]) for i in (0, 1))
            own = statistics.median(each[0] for each in found[first][shape_name])
            ratio = "" if figures is found[first] else f", {first} takes {own / total:.2f} x"
            cells.append(f"{total:.1f} ({direct:.1f}){ratio}")
        print(f"| {shape_name} | " + " | ".join(cells) + " |")
    medians = {
        shape: {name: statistics.median(each[0] for each in found[name][shape]) for name in found}
        for shape, _ in SHAPES
    }
    rows = [
        results_file.kind_row(shape, values, goal="<= 0.5 x", base=values.get("rocketmq"))
        for shape, values in medians.items()
    ]
    results_file.write_kind("pop", "POP and acknowledgement", rows, found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
