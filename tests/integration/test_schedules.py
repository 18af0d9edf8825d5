"""Recurring schedules at a running broker: requests, restarts, the command line, and a broker without cronsim."""

from __future__ import annotations

import builtins
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import cronsim
import pytest

from aerobee.client import Admin
from aerobee.errors import QueryNotFound, RecordInvalid, RemoteError, StoreFull, TopicNotExist, UsageError
from aerobee.message import Record, decode_record
from aerobee.recurrence import Recurrence
from aerobee.remoting.body.recurring_schedule import RecurringSchedule
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.testing import LocalCluster, ThreadedCluster
from tests.cli import Run, make_run
from tests.waiting import wait_until

TOPIC = "ticks"
MINUTE_S = 60


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.nameserver_address, clock=cluster.clock) as admin:
        await admin.create_topic(TOPIC, queue_count=4)
        yield admin


def stored(cluster: LocalCluster) -> list[Record]:
    store = cluster.broker().store
    found = []
    for (name, _), queue in store.queues.items():
        if name == TOPIC:
            for offset in range(queue.max_offset):
                entry = queue.entry(offset)
                assert isinstance(entry, tuple)
                found.append(decode_record(store.log.read(entry[0], entry[1])))
    return found


def each_minute(name: str = "each-minute", **fields: Any) -> RecurringSchedule:
    return RecurringSchedule(name=name, topic=TOPIC, cron="* * * * *", **fields)


async def test_a_tick_has_the_schedules_message_in_one_queue(cluster: LocalCluster, admin: Admin) -> None:
    await admin.create_schedule(each_minute(tag="t", keys="k1 k2", properties={"colour": "red"}), b"the body")
    for _ in range(2):
        count = len(stored(cluster))
        await cluster.advance_clock(MINUTE_S)
        await wait_until(lambda count=count: len(stored(cluster)) == count + 1, "the tick is delivered")
    first, second = stored(cluster)
    assert (first.body, first.tag, first.properties["KEYS"]) == (b"the body", "t", "k1 k2")
    assert first.properties["colour"] == "red"
    assert first.properties["AEROBEE_SCHEDULE"] == "each-minute"
    ticks = [int(record.properties["AEROBEE_TICK"]) for record in (first, second)]
    assert ticks[1] - ticks[0] == MINUTE_S * 1000
    assert first.queue_id == second.queue_id
    assert first.properties["UNIQ_KEY"] != second.properties["UNIQ_KEY"]
    (info,) = await admin.schedules()
    assert (info.schedule.delivered, info.schedule.last_tick_ms) == (2, ticks[1])
    assert info.next_tick_ms == ticks[1] + MINUTE_S * 1000


async def test_a_restarted_broker_delivers_missed_ticks_once(cluster: LocalCluster, admin: Admin) -> None:
    await admin.create_schedule(each_minute(), b"x")
    await admin.create_schedule(each_minute("only-the-last", missed="latest"), b"x")
    await cluster.stop_broker()
    await cluster.advance_clock(5 * MINUTE_S)
    await cluster.start_broker()

    def of(name: str) -> list[int]:
        return [
            int(each.properties["AEROBEE_TICK"])
            for each in stored(cluster)
            if each.properties["AEROBEE_SCHEDULE"] == name
        ]

    await wait_until(lambda: len(of("each-minute")) >= 5, "all missed ticks")
    await wait_until(lambda: bool(of("only-the-last")), "the last missed tick")
    ticks = of("each-minute")
    assert ticks == [ticks[0] + number * MINUTE_S * 1000 for number in range(len(ticks))]
    assert of("only-the-last")[0] >= ticks[4]


async def test_a_tick_that_the_store_refuses_is_delivered_once(
    cluster: LocalCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is full between the record of the tick and its message; requests are served in between."""
    await admin.create_schedule(each_minute(), b"x")
    append, refused = MessageStore.append, []

    def refuse(store: MessageStore, message: StoredMessage, **named: Any) -> AppendResult:
        if message.topic == TOPIC and len(refused) < 2:
            refused.append(message)
            raise StoreFull("the disk is full")
        return append(store, message, **named)

    monkeypatch.setattr(MessageStore, "append", refuse)
    await cluster.advance_clock(MINUTE_S)
    await wait_until(lambda: refused, "the store refuses")
    await admin.create_schedule(RecurringSchedule(name="other", topic=TOPIC, interval_ms=86_400_000), b"y")
    await cluster.advance_clock(5)
    await wait_until(lambda: stored(cluster), "the tick is delivered")
    await cluster.stop_broker()
    await cluster.start_broker()
    await cluster.advance_clock(MINUTE_S)
    await wait_until(lambda: len(stored(cluster)) >= 2, "the next tick is delivered")
    ticks = [int(each.properties["AEROBEE_TICK"]) for each in stored(cluster)]
    assert ticks == [ticks[0] + number * MINUTE_S * 1000 for number in range(len(ticks))]


async def test_a_tick_without_its_message_is_delivered_after_two_restarts(
    cluster: LocalCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log ends between the record of a tick and its message. Until the tick can be delivered, other records follow."""
    await admin.create_schedule(each_minute(), b"x")
    append, refused = MessageStore.append, []

    def refuse(store: MessageStore, message: StoredMessage, **named: Any) -> AppendResult:
        if message.topic == TOPIC or refused:
            refused.append(message)
            raise RuntimeError("this broker is lost")
        return append(store, message, **named)

    monkeypatch.setattr(MessageStore, "append", refuse)
    await cluster.advance_clock(MINUTE_S)
    await wait_until(lambda: refused, "a tick's record without its message")
    lost = refused[0].properties.decode().split("AEROBEE_TICK\x01")[1].split("\x02")[0]
    await admin.delete_topic(TOPIC)
    await cluster.stop_broker()
    monkeypatch.undo()
    await cluster.start_broker()
    await admin.create_topic("others", queue_count=1)
    await admin.create_schedule(RecurringSchedule(name="other", topic="others", interval_ms=86_400_000), b"y")
    await cluster.stop_broker()
    await cluster.start_broker()
    await admin.create_topic(TOPIC, queue_count=4)
    await cluster.advance_clock(11)
    await wait_until(lambda: stored(cluster), "a tick")
    assert stored(cluster)[0].properties["AEROBEE_TICK"] == lost


async def test_an_invalid_message_of_one_schedule_hides_no_tick(
    cluster: LocalCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of one schedule is refused as invalid, another schedule delivers right after it."""
    await admin.create_schedule(each_minute("a"), b"x")
    await admin.create_schedule(each_minute("b"), b"x")
    append, refused = MessageStore.append, []

    def refuse(store: MessageStore, message: StoredMessage, **named: Any) -> AppendResult:
        if message.topic == TOPIC and b"AEROBEE_SCHEDULE\x01a\x02" in message.properties:
            refused.append(message)
            raise RecordInvalid("the record is invalid")
        return append(store, message, **named)

    monkeypatch.setattr(MessageStore, "append", refuse)
    await cluster.advance_clock(MINUTE_S - cluster.clock.now_ms() % 60_000 / 1000 + 0.01)
    await wait_until(lambda: stored(cluster), "the other schedule delivers")
    invalid = refused[0].properties.decode().split("AEROBEE_TICK\x01")[1].split("\x02")[0]
    await cluster.stop_broker()
    monkeypatch.undo()
    await cluster.start_broker()
    await cluster.advance_clock(1)

    def ticks() -> list[str]:
        return [
            each.properties["AEROBEE_TICK"]
            for each in stored(cluster)
            if each.properties["AEROBEE_SCHEDULE"] == "a"
        ]

    await wait_until(lambda: ticks(), "a tick")
    assert ticks()[0] == invalid


async def test_a_paused_schedule_sends_nothing_and_forgets_the_pause(
    cluster: LocalCluster, admin: Admin
) -> None:
    await admin.create_schedule(each_minute(), b"x")
    await admin.change_schedule("each-minute", "pause")
    await cluster.advance_clock(5 * MINUTE_S)
    await admin.create_schedule(each_minute("other"), b"x")
    await cluster.advance_clock(MINUTE_S)
    await wait_until(lambda: len(stored(cluster)) == 1, "the tick of the other one")
    await admin.change_schedule("each-minute", "resume")
    await cluster.advance_clock(MINUTE_S)
    await wait_until(lambda: len(stored(cluster)) == 3, "one tick of each")
    assert await admin.change_schedule("each-minute", "delete") == 1
    with pytest.raises(QueryNotFound, match="no schedule"):
        await admin.change_schedule("each-minute", "delete")
    (info,) = await admin.schedules()
    assert info.schedule.name == "other"


async def test_a_repeated_creation_succeeds_and_another_one_is_refused(admin: Admin) -> None:
    await admin.create_schedule(each_minute(), b"x")
    await admin.create_schedule(each_minute(), b"x")
    with pytest.raises(RemoteError, match="another schedule each-minute"):
        await admin.create_schedule(each_minute(), b"y")
    assert len(await admin.schedules()) == 1


@pytest.mark.parametrize(
    ("fields", "body", "says"),
    [
        ({"cron": "61 * * * *"}, b"x", "no cron expression"),
        ({"cron": "0 0 30 2 *"}, b"x", "no cron expression"),
        ({"time_zone": "Mars/Olympus"}, b"x", "time zone"),
        ({"properties": {"DELAY": "3"}}, b"x", "belongs to clients and brokers"),
        ({"properties": {"TIMER_DELAY_MS": "3"}}, b"x", "belongs to clients and brokers"),
        ({"properties": {"DEDUP_KEY": "3"}}, b"x", "belongs to clients and brokers"),
        ({"name": "a b"}, b"x", "the schedule's name"),
        ({"jitter_ms": -1}, b"x", "the jitter"),
        ({"missed": "some"}, b"x", "missed"),
        ({}, b"", "0 bytes"),
        ({}, b"x" * 16_385, "16385 bytes"),
        ({"keys": "k" * 17_000}, b"x", "more than 16384 bytes"),
    ],
)
async def test_a_broker_refuses_an_invalid_schedule(
    admin: Admin, fields: dict[str, Any], body: bytes, says: str
) -> None:
    schedule = RecurringSchedule(**{"name": "bad", "topic": TOPIC, "cron": "* * * * *", **fields})
    with pytest.raises((RemoteError, UsageError), match=says):
        await admin.create_schedule(schedule, body)
    assert await admin.schedules() == ()


async def test_a_schedule_needs_its_topic_and_waits_for_a_deleted_one(
    cluster: LocalCluster, admin: Admin
) -> None:
    missing = RecurringSchedule(name="none", topic="no-such-topic", interval_ms=1000)
    with pytest.raises(TopicNotExist):
        await admin.create_schedule(missing, b"x", broker="broker-a")
    await admin.create_schedule(each_minute(), b"x")
    await admin.delete_topic(TOPIC)
    await cluster.advance_clock(MINUTE_S)

    async def is_in_trouble() -> bool:
        return bool((await admin.schedules())[0].trouble)

    await wait_until(is_in_trouble, "it cannot deliver")
    (info,) = await admin.schedules()
    assert "topic ticks does not exist" in info.trouble
    await admin.create_topic(TOPIC, queue_count=4)
    await cluster.advance_clock(11)
    await wait_until(lambda: stored(cluster), "the tick that waited")
    (info,) = await admin.schedules()
    assert not info.trouble


async def test_a_broker_without_cronsim_serves_intervals(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def without(name: str, *args: Any, **named: Any) -> Any:
        if name == "cronsim":
            raise ImportError(name)
        return load(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RemoteError, match=r"aerobee\[schedule\]"):
        await admin.create_schedule(each_minute(), b"x")
    await admin.create_schedule(RecurringSchedule(name="plain", topic=TOPIC, interval_ms=1000), b"x")
    assert len(await admin.schedules()) == 1


def test_ticks_follow_the_time_zone_over_changes_of_clocks() -> None:
    nightly = Recurrence(cron="30 2 * * *", time_zone="Europe/Berlin")
    spring, autumn = 1_774_569_600_000, 1_792_800_000_000  # 27 March and 24 October 2026, 00:00 UTC
    ticks = [spring]
    for _ in range(4):
        ticks.append(nightly.next_after(ticks[-1]))
    hours = [(tick - spring) / 3_600_000 for tick in ticks[1:]]
    assert hours == [1.5, 25.5, 49.0, 72.5], "02:30 does not exist on 29 March: right after the change"
    first = nightly.next_after(autumn)
    second = nightly.next_after(first)
    assert [(each - autumn) / 3_600_000 for each in (first, second)] == [0.5, 24.5]
    assert nightly.next_after(second) - autumn == 49.5 * 3_600_000, "the repeated hour counts once"


def test_the_latest_tick_is_found_without_a_walk() -> None:
    quick = Recurrence(cron="* * * * * *")
    assert quick.latest_until(0, 1_800_000_000_500) == 1_800_000_000_000
    interval = Recurrence(interval_ms=700, anchor_ms=100)
    assert interval.latest_until(100, 10_000) == 9_900
    assert interval.latest_until(9_900, 10_000) == 10_600, "none is missed: the next one"


@pytest.mark.parametrize("cron", ["* * * * 1 *", "0 0 1 1 *", "*/7 * * * *", "30 2 * * 0", "0 0 29 2 *"])
def test_the_latest_of_many_missed_ticks_takes_few_looks(cron: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was down over January walked through 2.7 million ticks, and served nothing meanwhile."""
    recurrence, looks = Recurrence(cron=cron, time_zone="Europe/Berlin"), []
    after = Recurrence.next_after

    def counted(self: Recurrence, after_ms: int) -> int:
        looks.append(after_ms)
        return after(self, after_ms)

    monkeypatch.setattr(Recurrence, "next_after", counted)
    for until_ms in (1_800_000_000_000, 1_799_999_999_999, 1_772_322_360_000, 1_774_746_000_500):
        found = recurrence.latest_until(1_600_000_000_000, until_ms)
        assert found <= until_ms < after(recurrence, found)
    assert len(looks) < 200


def test_rare_ticks_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Monday that is February 29 comes every 28 years: each search of one reads 10,000 days."""
    searched = []

    class Counted(cronsim.CronSim):
        def __init__(self, *args: Any) -> None:
            searched.append(args)
            super().__init__(*args)

    monkeypatch.setattr(cronsim, "CronSim", Counted)
    rare = Recurrence(name="rare", cron="0 0 * 2 1#5")
    begin_ms = 1_700_000_000_777
    first = rare.next_after(begin_ms)
    assert rare.latest_until(begin_ms, first + 1) == first
    assert len(searched) == 2, "that tick, and that the next one is later"
    assert rare.latest_until(begin_ms, first + 2) == first
    assert Recurrence(name="other", cron=rare.cron).next_after(begin_ms) == first
    assert len(searched) == 2


# --- the command line


@pytest.fixture(scope="module")
def threaded() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as started:
        yield started


@pytest.fixture
def run_command(
    threaded: ThreadedCluster,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Run:
    monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", threaded.nameserver_address)
    return make_run(capfdbinary, request)


def test_the_command_creates_lists_and_deletes(run_command: Run) -> None:
    assert run_command("topic", "create", TOPIC)[0] == 0
    code, out, error = run_command(
        "schedule", "create", "s", TOPIC, "x", "--cron", "0 9 * * MON", "--tz", "Asia/Tokyo"
    )
    assert (code, error) == (0, "")
    assert "schedule s is created at" in out
    (row,) = json.loads(run_command("schedule", "list", "--json")[1])
    assert (row["name"], row["state"], row["ticks"]) == ("s", "active", "0 9 * * MON (Asia/Tokyo)")
    code, out, _ = run_command("schedule", "next", "s", "--count", "2", "--json")
    ticks = [each["tick_ms"] for each in json.loads(out)]
    assert ticks[1] - ticks[0] == 7 * 86_400_000
    assert run_command("schedule", "pause", "s")[0] == 0
    assert json.loads(run_command("schedule", "list", "--json")[1])[0]["state"] == "paused"
    assert run_command("schedule", "resume", "s")[0] == 0
    assert run_command("schedule", "delete", "s", "--yes")[0] == 0
    code, _, error = run_command("schedule", "delete", "s", "--yes")
    assert code == 4
    assert "no broker has a schedule s" in error


def test_the_command_says_what_is_missing(run_command: Run) -> None:
    for arguments in (
        ("create", "s", TOPIC, "x"),
        ("create", "s", TOPIC, "x", "--every", "5m", "--cron", "* * * * *"),
        ("create", "s", TOPIC, "--every", "5m"),
        ("next",),
        ("next", "--cron", "61 * * * *"),
    ):
        code, _, error = run_command("schedule", *arguments)
        assert code == 2, error
