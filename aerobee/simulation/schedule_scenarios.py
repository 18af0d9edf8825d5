"""Recurring schedules while masters change: every tick is in the log once, none early, none late while a master leads."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict

from aerobee.client import Admin, ClientConfig
from aerobee.client.admin.schedules import ScheduleInfo
from aerobee.errors import AerobeeError
from aerobee.message import decode_record
from aerobee.property_names import SCHEDULE_NAME, SCHEDULE_TICK
from aerobee.remoting.body.recurring_schedule import RecurringSchedule
from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.change_of_master import ChangeOfMaster
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.names import LOCAL, NAMESERVER_ADDRESSES

TICKS = "ticks"
TICK_QUEUES = 2
CHANGES = 6
TRIES_MAX = 4  # for each change of master: a try may find no successor
SCHEDULES = (
    RecurringSchedule(name="each-second", topic=TICKS, interval_ms=1_000),
    RecurringSchedule(name="quick", topic=TICKS, interval_ms=230),
    RecurringSchedule(name="spread", topic=TICKS, interval_ms=1_700, jitter_ms=1_500),
)
SETTLE_S = 30.0
QUIET_S_MAX = 3.0
LOOK_S = 0.02
LATE_S = 1.0  # while a master leads: reading the log, requests before the ticks; measured at most 0.4 s


async def schedules_over_changes(
    cluster: Cluster,
    rng: random.Random,
    changes: int = CHANGES,
    schedules: tuple[RecurringSchedule, ...] = SCHEDULES,
) -> None:
    """Create schedules, change the master that often, and check all ticks in the log. Raises Broken."""
    await cluster.until(lambda: cluster.master() is not None, SETTLE_S, "no master")
    await cluster.create_topic(TICKS, TICK_QUEUES)
    await _create(cluster, rng, schedules)
    led = _Led(cluster)
    watching = asyncio.create_task(led.watch())
    try:
        tries, first = 0, cluster.changes
        while cluster.changes - first < changes:
            tries += 1
            if tries > TRIES_MAX * changes:
                raise Broken(
                    Checker.PROGRESS, f"{cluster.changes - first} changes of master in {tries} tries"
                )
            await cluster.clock.sleep(rng.uniform(0.05, QUIET_S_MAX))
            name, work = ChangeOfMaster(cluster, random.Random(rng.getrandbits(64))).chosen()
            cluster.story.tell(name)
            await work()
        await cluster.until(lambda: cluster.master() is not None, SETTLE_S, "no master")
        await cluster.clock.sleep(2 * LATE_S)
        await cluster.until(lambda: cluster.master() is not None, SETTLE_S, "no master")
        found, table = _ticks(cluster), await _table(cluster, rng)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    for schedule in schedules:
        _check(table[schedule.name], found[schedule.name], led)


async def _create(cluster: Cluster, rng: random.Random, schedules: tuple[RecurringSchedule, ...]) -> None:
    async with _admin(cluster, rng) as admin:
        for schedule in schedules:
            for _ in range(100):
                try:
                    await admin.create_schedule(schedule, schedule.name.encode())
                    break
                except AerobeeError as error:  # the route of the new topic, or a change of master
                    cluster.story.tell(f"{schedule.name} is not created yet: {error}")
                    await cluster.clock.sleep(0.5)
            else:
                raise Broken(Checker.PROGRESS, f"schedule {schedule.name} could not be created")


async def _table(cluster: Cluster, rng: random.Random) -> dict[str, ScheduleInfo]:
    """The schedules as the master lists them."""
    async with _admin(cluster, rng) as admin:
        for _ in range(100):
            with contextlib.suppress(AerobeeError):  # the route of the last master
                return {info.schedule.name: info for info in await admin.schedules()}
            await cluster.clock.sleep(0.5)
    raise Broken(Checker.PROGRESS, "the schedules could not be listed")


def _admin(cluster: Cluster, rng: random.Random) -> Admin:
    return Admin(
        NAMESERVER_ADDRESSES,
        client=ClientConfig(instance="scheduler", client_ip=LOCAL, require_nameserver=False),
        clock=cluster.clock,
        network=cluster.network.endpoint("scheduler"),
        random=random.Random(rng.getrandbits(64)),
    )


class _Led:
    """The times at which a master led, in steps of LOOK_S of the simulation's clock, ms."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._looks: list[int] = []

    async def watch(self) -> None:
        while True:
            node = self._cluster.master()
            if node is not None and not node.is_paused and node.process.replication.mode.may_answer():
                self._looks.append(self._cluster.clock.now_ms())
            await self._cluster.clock.sleep(LOOK_S)

    def seconds(self, start_ms: int, end_ms: int) -> float:
        """For how long a master led in this time."""
        return LOOK_S * sum(start_ms < look < end_ms for look in self._looks)


def _ticks(cluster: Cluster) -> dict[str, list[tuple[int, int]]]:
    """The ticks of each schedule in the log of the master, with the times at which they were stored."""
    master = cluster.master()
    assert master is not None
    store = master.process.store
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for queue_id in range(TICK_QUEUES):
        queue = store.queues.get((TICKS, queue_id))
        for offset in range(queue.max_offset if queue is not None else 0):
            start, size, *_ = queue.entry(offset)
            record = decode_record(store.log.read(start, size))
            name, tick = record.properties[SCHEDULE_NAME], int(record.properties[SCHEDULE_TICK])
            found[name].append((tick, record.store_timestamp))
    return found


def _check(info: ScheduleInfo, found: list[tuple[int, int]], led: _Led) -> None:
    """Every tick from the creation to the listing is in the log once, in order, none early, none late while a master led."""
    schedule = info.schedule
    name, recurrence, before = schedule.name, schedule.recurrence, schedule.created_ms
    for tick, stored_ms in found:
        if tick <= before:
            raise Broken(Checker.EXACTLY_ONCE, f"schedule {name}: tick {tick} is delivered behind {before}")
        following = recurrence.next_after(before)
        if tick != following:
            raise Broken(Checker.DELIVERED, f"schedule {name}: behind {before} comes {tick}, not {following}")
        before, due_ms = tick, recurrence.due_ms(tick)
        if stored_ms < due_ms:
            raise Broken(
                Checker.NOT_EARLY, f"schedule {name}: tick {tick}, due {due_ms}, is stored {stored_ms}"
            )
        led_s = led.seconds(due_ms, stored_ms)
        if led_s > LATE_S:
            raise Broken(
                Checker.PROGRESS,
                f"schedule {name}: tick {tick} is {stored_ms - due_ms} ms late, of which a master led for {led_s:.1f} s",
            )
    missing_ms = info.next_due_ms - recurrence.due_ms(recurrence.next_after(before))
    if info.trouble or missing_ms > LATE_S * 1000 or schedule.delivered < len(found):
        raise Broken(
            Checker.DELIVERED,
            f"schedule {name}: {len(found)} ticks up to {before} are in the log, its broker says {info}",
        )
