"""Real processes on their own machines, killed, stopped, cut off and filled up under load: nothing acknowledged is lost.

    python tests/survival/cluster_faults.py [--kills 200] [--pauses 50] [--partitions 50] [--slow-links 20] [--full-disks 5]
                                            [--rolling] [--mixed] [--minutes M] [--seed N] [--out FILE]

Two NameServers, three controllers and two groups of three brokers, each in a network namespace, on one bridge; all of it in a
network, mount and process namespace of this script, which needs root and ends with it. Producers send with sync replication
(inSyncReplicas 2 of 3) and a consumer reads while a fault after the other happens to the master of each group; every fifth takes
a controller or a NameServer along, one at a time:

    kill         SIGKILL, started again immediately or after some seconds
    pause        SIGSTOP for up to 10 s
    partition    packets of a master to and from all other machines are dropped; its clients reach it
    slow link    a master's link carries half of what its replicas need: packets wait for up to 3 s, and then are dropped
    full disk    a file takes all that is left of a broker's file system

--mixed sends and consumes every kind of message besides (mixed_load.py): ordered, delayed, transactional, deduplicated, batch-queue and POP
load, and a topic that is deleted and created again.

--rolling restarts every process in order, one after the other, after the faults: no send of a producer with defaults fails.

In the end every message is read from the masters and judged as in the simulation (aerobee/simulation/checks.py), and the logs
of a group's replicas are compared byte by byte. The time without service of a fault is the longest pause between two
acknowledgements of that group around it; a fault in which all of this script's processes stood still together has none. After
--minutes no further fault begins; all that happened until then is judged. Ends with 1 at a bug, with 2 where namespaces cannot be made.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aerobee.client import (
    Admin,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from aerobee.errors import AerobeeError
from aerobee.message import Message, MessageQueue, parse_offset_message_id
from aerobee.ops.commands.ha import opened
from aerobee.simulation.broken import Broken
from aerobee.simulation.checks import (
    check_acknowledged,
    check_nothing_unsent,
    check_order,
)
from aerobee.simulation.clients import Sent
from tests.survival.cluster_machines import DISK_MIB, GROUPS, Machine, Machines, enter, why_not
from tests.survival.mixed_load import SETTINGS as MIXED_SETTINGS
from tests.survival.mixed_load import MixedLoad

TOPIC, GROUP = "orders", "survivors"
QUEUES = 2
SEND_PAUSE_S = 0.02
WAIT_S = 120.0
SETTLE_S = 1.0  # of service between two faults
KINDS = ("kill", "pause", "partition", "slow link", "full disk")
WHOLE_SHARE = 0.8  # of the faults come when all replicas of the group are in sync
AWAY = ", maybe with a replica away"
COMPANION_EVERY = 5  # so often a fault takes a controller or a NameServer along
TICK_S = 0.05
STOOD_STILL_S = 5.0  # a tick that long: we were stopped from outside, and so was the cluster


class Clock:
    """Time in which this process ran: `now_s` continues by no more than a second a tick. `stops` are times by time.monotonic()."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.stops: list[float] = []

    async def run(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if now - last > STOOD_STILL_S:
                self.stops.append(now)
            self.now_s += min(now - last, 1.0)
            last = now


CLOCK = Clock()


@dataclass(slots=True)
class Figures:
    """What happened. `without_service_s`: by kind of fault."""

    faults: dict[str, int] = field(default_factory=dict)
    without_service_s: dict[str, list[float]] = field(default_factory=dict)
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    received: int = 0
    mixed: dict[str, dict[str, int]] = field(default_factory=dict)  # by kind of message
    companion: asyncio.Lock = field(
        default_factory=asyncio.Lock
    )  # held while a controller or a NameServer is down


class Load:
    """Producers, one a queue, and a consumer; what they were answered.

    Each group has a producer that sends to the group's first queue, each message once, and an ordinary one, which sends to any
    queue of any group and sends again what failed.
    """

    def __init__(self, nameservers: str) -> None:
        self._nameservers = nameservers
        self.sent: dict[str, list[Sent]] = {group: [] for group in GROUPS}
        self.received: set[bytes] = set()
        self.is_sending = True
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        works: list[Coroutine[Any, Any, None]] = [
            self._produce(group, queue) for group in GROUPS for queue in range(QUEUES)
        ]
        works.append(self._consume())
        self._tasks = [asyncio.create_task(work) for work in works]

    async def end_producers(self) -> None:
        self.is_sending = False
        await asyncio.gather(*self._tasks[:-1])

    async def end(self) -> None:
        self._tasks[-1].cancel()
        await asyncio.gather(self._tasks[-1], return_exceptions=True)

    async def _produce(self, group: str, queue: int) -> None:
        name, count, retries = f"{group}{queue}", 0, bool(queue)
        config = ProducerConfig() if retries else ProducerConfig(retry_count_max=0)
        fixed = None if retries else MessageQueue(TOPIC, group, queue)
        async with Producer(self._nameservers, f"P-{name}", config=config) as producer:
            while self.is_sending:
                count += 1
                body = f"{name}-{count}-".encode() + b"x" * (count % 300)
                sent = Sent(body, time.monotonic(), queue, is_once=not retries)
                try:
                    result = await producer.send(Message(TOPIC, body), queue=fixed)
                except AerobeeError as error:
                    sent.error = str(error)
                    self.sent[group].append(sent)
                    await asyncio.sleep(SEND_PAUSE_S)
                    continue
                self.sent[result.queue.broker_name].append(sent)
                if result.status.value == "SEND_OK":
                    sent.queue_id = result.queue.queue_id
                    sent.offset, sent.answered_at = result.queue_offset, time.monotonic()
                    sent.broker = parse_offset_message_id(result.offset_message_id)[0][0]
                else:
                    sent.error = result.status.value
                await asyncio.sleep(SEND_PAUSE_S)

    async def _consume(self) -> None:
        async def handle(message: ReceivedMessage) -> None:
            self.received.add(message.body)

        async with PushConsumer(
            self._nameservers,
            GROUP,
            subscriptions={TOPIC: "*"},
            handler=handle,
            config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
        ):
            await asyncio.Event().wait()

    def acknowledged(self, group: str) -> int:
        return sum(each.offset >= 0 for each in self.sent[group])

    def last_broker(self, group: str) -> str:
        """Who acknowledged last: the master."""
        return next((each.broker for each in reversed(self.sent[group]) if each.offset >= 0), "")

    def longest_pause_s(self, group: str, since: float) -> float:
        """Between two acknowledgements, from just before `since` on."""
        times = sorted(each.answered_at for each in self.sent[group] if each.offset >= 0)
        near = [each for each in times if each >= since - 1.0]
        return max((b - a for a, b in itertools.pairwise(near)), default=0.0)


async def _until(condition: Any, what: str, seconds: float = WAIT_S) -> None:
    end = CLOCK.now_s + seconds
    while not condition():
        if CLOCK.now_s > end:
            raise AssertionError(f"after {seconds:.0f} s: {what}")
        await asyncio.sleep(TICK_S)


async def _companion(machines: Machines, rng: random.Random, busy: asyncio.Lock) -> None:
    """A controller or a NameServer dies and comes back, one at a time."""
    async with busy:
        machine = rng.choice([*machines.controllers, *machines.nameservers])
        machine.kill()
        await asyncio.sleep(rng.uniform(0.0, 5.0))
        machine.start()
        await asyncio.sleep(SETTLE_S)  # until it is one of the quorum again


async def _faults(
    kinds: list[str],
    group: str,
    machines: Machines,
    load: Load,
    rng: random.Random,
    figures: Figures,
    end_s: float,
) -> None:
    """One after the other, to whoever is master of the group; none begins after `end_s` of CLOCK."""
    busy = figures.companion
    for number, kind in enumerate(kinds, 1):
        if CLOCK.now_s > end_s:
            return
        alone = number % COMPANION_EVERY or busy.locked()
        companion = None if alone else asyncio.create_task(_companion(machines, rng, busy))
        is_whole = rng.random() < WHOLE_SHARE
        if is_whole:
            await _well(machines, group)
        await _one_fault(kind, "" if is_whole else AWAY, group, machines, load, rng, figures)
        if companion is not None:
            figures.faults["companion"] = figures.faults.get("companion", 0) + 1
            await companion


async def _one_fault(
    kind: str,
    circumstance: str,
    group: str,
    machines: Machines,
    load: Load,
    rng: random.Random,
    figures: Figures,
) -> None:
    master = machines.at(load.last_broker(group))
    began, count = time.monotonic(), load.acknowledged(group)
    if kind == "kill":
        master.kill()
        await asyncio.sleep(rng.choice((0.0, 0.0, rng.uniform(0.5, 5.0))))
        master.start()
    elif kind == "pause":
        master.signal(signal.SIGSTOP)
        await asyncio.sleep(rng.uniform(0.5, 10.0))
        master.signal(signal.SIGCONT)
    elif kind == "partition":
        machines.cut_off(master)
        await asyncio.sleep(rng.uniform(1.0, 10.0))
        machines.open(master)
    elif kind == "slow link":
        machines.slow(master)
        await asyncio.sleep(rng.uniform(2.0, 10.0))
        machines.quick(master)
    else:
        await _fill(master)
    await asyncio.sleep(0.5)
    await _until(
        lambda: load.acknowledged(group) > count + 20, f"nothing acknowledged by {group} after a {kind}"
    )
    await asyncio.sleep(SETTLE_S)
    figures.faults[kind] = figures.faults.get(kind, 0) + 1
    name = kind + circumstance
    without_s = load.longest_pause_s(group, began)
    if not any(stop >= began for stop in CLOCK.stops):
        figures.without_service_s.setdefault(name, []).append(without_s)
    print(
        f"{time.strftime('%H:%M:%S')} {name} of {master.name}: {without_s:.2f} s without service; "
        f"{group} is led by {machines.at(load.last_broker(group)).name}",
        flush=True,
    )


async def _fill(machine: Machine) -> None:
    """A file takes what is left for 8 s; a broker whose disk failed is started again by who looks after it."""
    path = machine.directory / machine.name / "filler"
    chunk = bytes(1 << 20)
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):  # ENOSPC ends it
        while file.write(chunk) == len(chunk):
            pass
    await asyncio.sleep(8.0)
    path.unlink()
    machine.kill()
    machine.start()


async def _stored(nameservers: str, group: str) -> dict[tuple[int, int], bytes]:
    found: dict[tuple[int, int], bytes] = {}
    async with PullConsumer(nameservers, f"judge-{group}") as reader:
        queues = [queue for queue in await reader.queues(TOPIC) if queue.broker_name == group]
        ends = {queue: await reader.end_offset(queue) for queue in queues}
        await reader.assign(queues)
        for queue in queues:
            await reader.seek_to_begin(queue)
        while any((reader.position(queue) or 0) < ends[queue] for queue in queues):
            for message in await reader.poll(2.0):
                found[message.queue.queue_id, message.queue_offset] = message.body
    return found


async def _judge(machines: Machines, load: Load) -> None:
    everything = [each for sent in load.sent.values() for each in sent]
    for group in GROUPS:
        sent = load.sent[group]
        stored = await _stored(machines.nameserver_addresses, group)
        check_acknowledged(sent, stored)
        check_order(sent, stored)
        check_nothing_unsent(everything, {*stored.values(), *load.received})
    wanted = {each.body for sent in load.sent.values() for each in sent if each.offset >= 0}
    await _until(lambda: wanted <= load.received, "the consumer never got all that was acknowledged")


async def _started(machines: Machines) -> None:
    for machine in machines.all:
        machine.start()
    end = CLOCK.now_s + WAIT_S
    async with Admin(machines.nameserver_addresses) as admin:
        while True:
            try:
                found = await admin.brokers()
                masters = {each.broker_name for each in found if each.broker_id == 0}
                if masters == set(GROUPS) and len(found) == 3 * len(GROUPS):
                    await admin.create_topic(TOPIC, queue_count=QUEUES)
                    await asyncio.sleep(SETTLE_S)  # replicas know of a new topic within a second
                    return
            except AerobeeError as error:
                problem = str(error)
            else:
                problem = f"{len(found)} brokers, masters of {sorted(masters)}"
            if CLOCK.now_s > end:
                raise AssertionError(f"the cluster does not come up: {problem}")
            await asyncio.sleep(0.5)


async def _well(machines: Machines, group: str = "") -> None:
    """Wait until every process serves and every broker is in sync; with `group` only until its brokers are."""
    end = CLOCK.now_s + WAIT_S
    while True:
        try:
            problem = await (_out_of_sync(machines, group) if group else _what_is_missing(machines))
        except AerobeeError as error:
            problem = str(error)
        if not problem:
            return
        if CLOCK.now_s > end:
            raise AssertionError(f"not well after {WAIT_S:.0f} s: {problem}")
        await asyncio.sleep(0.2)


async def _what_is_missing(machines: Machines) -> str:
    leaders = set()
    for address in machines.controller_addresses.split(";"):
        async with opened(address) as controller:
            leaders.add(await controller.leader())
    if len(leaders) > 1:
        return f"the controllers name {len(leaders)} leaders"
    for address in machines.nameserver_addresses.split(";"):
        async with Admin(address) as admin:
            if len(await admin.brokers()) < 3 * len(GROUPS):
                return f"brokers at {address}"
    return await _out_of_sync(machines)


async def _out_of_sync(machines: Machines, name: str = "") -> str:
    async with opened(machines.controller_addresses) as quorum:
        seen = await quorum.status()
    return ", ".join(
        each["address"]
        for group in seen["brokerGroups"]
        for each in group["brokers"]
        if name in ("", group["brokerName"]) and not (each["isAlive"] and each["isInSync"])
    )


async def _rolling(machines: Machines, load: Load, figures: Figures) -> None:
    """Every process is stopped in order and started again, the masters last."""
    masters = {load.last_broker(group) for group in GROUPS}
    for machine in sorted(machines.all, key=lambda each: each.address in masters):
        before = {group: load.acknowledged(group) for group in GROUPS}
        await machine.stop()
        machine.start()
        await _well(machines)
        await _until(
            lambda before=before: all(load.acknowledged(group) > before[group] + 50 for group in GROUPS),
            f"no service after {machine.name} was restarted",
        )
        await asyncio.sleep(SETTLE_S)
        figures.faults["restart"] = figures.faults.get("restart", 0) + 1


async def _main(arguments: argparse.Namespace, directory: Path) -> Figures:
    rng, figures = random.Random(arguments.seed), Figures()
    ticking = asyncio.create_task(CLOCK.run())
    machines = Machines(directory, MIXED_SETTINGS if arguments.mixed else None, disk_mib=arguments.disk_mib)
    await _started(machines)
    load = Load(machines.nameserver_addresses)
    load.begin()
    mixed = MixedLoad(machines.nameserver_addresses) if arguments.mixed else None
    if mixed is not None:
        await mixed.begin()
    await _until(lambda: all(load.acknowledged(group) > 20 for group in GROUPS), "nothing is acknowledged")
    counts = (
        arguments.kills,
        arguments.pauses,
        arguments.partitions,
        arguments.slow_links,
        arguments.full_disks,
    )
    faults = [kind for kind, count in zip(KINDS, counts, strict=True) for _ in range(count)]
    rng.shuffle(faults)
    end_s = CLOCK.now_s + 60.0 * arguments.minutes
    try:
        async with asyncio.TaskGroup() as groups:
            for number, group in enumerate(GROUPS):
                own = random.Random(rng.getrandbits(64))
                groups.create_task(
                    _faults(faults[number :: len(GROUPS)], group, machines, load, own, figures, end_s)
                )
        if arguments.rolling:
            await _well(machines)
            began = time.monotonic()
            await _rolling(machines, load, figures)
            failed = [
                each
                for sent in load.sent.values()
                for each in sent
                if each.error and each.at >= began and not each.is_once
            ]
            if failed:
                raise AssertionError(
                    f"{len(failed)} sends of ordinary producers failed during the restart, the first one: {failed[0].error}"
                )
    finally:
        await load.end_producers()
        if mixed is not None:
            await mixed.end_producers()
        everything = [each for sent in load.sent.values() for each in sent]
        figures.sent = len(everything)
        figures.acknowledged = sum(each.offset >= 0 for each in everything)
        figures.failed = sum(bool(each.error) for each in everything)
    await _judge(machines, load)
    figures.received = len(load.received)
    await load.end()
    if mixed is not None:
        figures.mixed = mixed.report()
        print(json.dumps(figures.mixed, indent=1), flush=True)
        await mixed.judge(WAIT_S)
        figures.mixed = mixed.report()
        await mixed.end()
    await _compare(machines)
    ticking.cancel()
    return figures


async def _compare(machines: Machines) -> None:
    """Stop everything, and compare the logs of each group's replicas: what all of them have is the same."""
    await asyncio.sleep(SETTLE_S)  # the replicas have what the master has
    await asyncio.gather(*(machine.stop() for machine in machines.all))
    for group, members in machines.groups.items():
        logs = {
            machine.name: {path.name: path for path in sorted(_commit_log(machine).iterdir())}
            for machine in members
        }
        names = set.intersection(*(set(files) for files in logs.values()))
        if not names:
            raise AssertionError(f"the replicas of {group} have no file of the log in common: {logs}")
        for name in sorted(names):
            contents = {machine: files[name].read_bytes() for machine, files in logs.items()}
            if len(set(contents.values())) > 1:
                raise AssertionError(
                    f"file {name} of the log of {group} differs between {', '.join(contents)}"
                )


def _commit_log(machine: Machine) -> Path:
    return machine.directory / machine.name / "store" / "commitlog"


def report(figures: Figures) -> dict[str, Any]:
    """Figures for people and files: seconds without service, median and longest."""
    return {
        "faults": figures.faults,
        "sent": figures.sent,
        "acknowledged": figures.acknowledged,
        "failed": figures.failed,
        "received": figures.received,
        **({"mixed": figures.mixed} if figures.mixed else {}),
        "without_service_s": {
            kind: {
                "median": round(statistics.median(times), 2),
                "p99": round(sorted(times)[math.ceil(0.99 * len(times)) - 1], 2),
                "longest": round(max(times), 2),
            }
            for kind, times in figures.without_service_s.items()
        },
    }


def main() -> int:
    """Go into namespaces of our own, run, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--pauses", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--slow-links", type=int, default=20)
    parser.add_argument("--full-disks", type=int, default=5)
    parser.add_argument("--rolling", action="store_true", help="restart every process in order at the end")
    parser.add_argument("--mixed", action="store_true", help="every kind of message besides")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no fault after so long")
    parser.add_argument(
        "--disk-mib",
        type=int,
        default=DISK_MIB,
        help="file system of each broker; an hour of --mixed takes 1024",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the logs and stores where they are")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    missing = why_not()
    if missing:
        print(f"no machines can be made here: {missing}", flush=True)
        return 2
    enter()
    print(f"seed {arguments.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="aerobee-cluster-"))
    try:
        figures = asyncio.run(_main(arguments, directory))
    except (AssertionError, Broken) as error:
        print(f"FAULT: {error}; logs: {directory}", flush=True)
        for path in sorted(directory.glob("*.log")):
            print(f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-8:], sep="\n")
        return 1
    if arguments.keep:
        print(f"logs: {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    found = report(figures)
    print(json.dumps(found, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
