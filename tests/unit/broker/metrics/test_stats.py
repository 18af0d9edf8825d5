"""Counters and their windows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from aerobee.broker.metrics import stats as broker_stats
from aerobee.broker.metrics.metrics import SIZE_ENDS
from aerobee.broker.metrics.stats import (
    GROUP_GET_NUMS,
    ITEMS_MAX,
    TOPIC_PUT_NUMS,
    BrokerStats,
    HandedOut,
    Stored,
    windows_json,
)
from aerobee.clock import ManualClock, Timer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stats(clock: ManualClock) -> BrokerStats:
    stats = BrokerStats(clock=clock, cluster="C")
    stats.start()
    return stats


def test_an_item_that_was_never_counted_does_not_exist(stats: BrokerStats) -> None:
    assert stats.windows("TOPIC_PUT_NUMS", "T") is None
    assert stats.minute_tps("TOPIC_PUT_NUMS", "T") == 0.0


def test_the_minute_window_holds_the_last_60_seconds(stats: BrokerStats, clock: ManualClock) -> None:
    stats.topic_put("T", 6, 600)
    clock.advance(10)
    windows = stats.windows("TOPIC_PUT_NUMS", "T")
    assert windows is not None
    minute = windows["statsMinute"]
    assert (minute.sum, minute.tps, minute.average) == (6, 0.6, 1.0)
    clock.advance(50)
    assert stats.minute_tps("TOPIC_PUT_NUMS", "T") == pytest.approx(6 / 60)
    clock.advance(10)
    assert stats.minute_tps("TOPIC_PUT_NUMS", "T") == 0.0
    assert stats.windows("TOPIC_PUT_NUMS", "T")["statsHour"].sum == 0  # type: ignore[index]


class SlowTimers(ManualClock):
    """Timers that are due immediately run when they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[..., object]] = []

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> Timer:
        if seconds:
            return super().call_later(seconds, callback, *args)
        self.waiting.append(callback)
        return super().call_later(1e9, callback)


def test_snapshots_of_many_items_are_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_stats, "SLICE_ITEMS", 10)
    clock = SlowTimers()
    stats = BrokerStats(clock=clock, cluster="C")
    stats.start()
    topics = [f"T{number}" for number in range(33)]
    for topic in topics:
        stats.topic_put(topic, 6, 600)
    clock.advance(10)
    rates, turns = [], 0
    while clock.waiting:
        rates.append(sum(stats.minute_tps("TOPIC_PUT_NUMS", topic) == 0.6 for topic in topics))
        turns += 1
        if turns == 2:
            stats.remove_topic("T32")
            stats.topic_put("new", 1, 1)
        clock.waiting.pop()()
    assert rates == [8, 18, 28]  # two of the first slice are the broker's own
    assert all(stats.minute_tps("TOPIC_PUT_NUMS", topic) == 0.6 for topic in topics[:-1])
    assert stats.windows("TOPIC_PUT_NUMS", "T32") is None
    clock.advance(10)
    assert len(clock.waiting) == 1
    clock.advance(10)  # no caller took the remaining slices: no other snapshots begin
    assert len(clock.waiting) == 1
    stats.stop()


def test_hour_and_day_windows_take_longer_steps(stats: BrokerStats, clock: ManualClock) -> None:
    stats.topic_put("T", 7, 70)
    clock.advance(600)
    windows = stats.windows("TOPIC_PUT_NUMS", "T")
    assert windows is not None
    assert windows["statsHour"].sum == 7
    assert windows["statsDay"].sum == 0
    clock.advance(3_000)
    assert stats.windows("TOPIC_PUT_NUMS", "T")["statsDay"].sum == 7  # type: ignore[index]
    clock.advance(3_600)
    windows = stats.windows("TOPIC_PUT_NUMS", "T")
    assert windows is not None
    assert (windows["statsHour"].sum, windows["statsDay"].sum) == (0, 7)


def test_sizes_and_pulls_are_counted_with_the_messages(stats: BrokerStats, clock: ManualClock) -> None:
    stats.topic_put("T", 2, 100)
    stats.group_get("g", "T", 32, 3_200)
    clock.advance(10)
    sizes = stats.windows("TOPIC_PUT_SIZE", "T")
    pulls = stats.windows("GROUP_GET_NUMS", "T@g")
    assert sizes is not None
    assert pulls is not None
    assert (sizes["statsMinute"].sum, sizes["statsMinute"].average) == (100, 50.0)
    assert (pulls["statsMinute"].sum, pulls["statsMinute"].average) == (32, 32.0)
    assert stats.windows("BROKER_PUT_NUMS", "C") is not None
    assert stats.windows("BROKER_PUT_NUMS", "another cluster") is None


def test_the_body_of_the_admin_call_has_rocketmqs_form(stats: BrokerStats, clock: ManualClock) -> None:
    stats.topic_put("T", 1, 10)
    clock.advance(10)
    windows = stats.windows("TOPIC_PUT_NUMS", "T")
    assert windows is not None
    assert list(windows_json(windows)) == ["statsDay", "statsHour", "statsMinute"]
    assert windows_json(windows)["statsMinute"] == {"avgpt": 1.0, "sum": 1, "tps": 0.1}


def test_rates_appear_when_the_broker_has_run_that_long(stats: BrokerStats, clock: ManualClock) -> None:
    assert stats.runtime_info()["putTps"] == "  "
    assert stats.runtime_info()["getTotalTps"] == "0.0 0.0 0.0"
    stats.topic_put("T", 20, 200)
    stats.get_miss(5)
    clock.advance(10)
    assert stats.runtime_info()["putTps"] == "2.0  "
    assert stats.runtime_info()["getTotalTps"] == "0.5 0.0 0.0"
    clock.advance(50)
    first, second, third = stats.runtime_info()["putTps"].split(" ")
    assert (first, float(second), third) == ("0.0", pytest.approx(20 / 60), "")


def test_totals_of_the_day_move_at_midnight(stats: BrokerStats, clock: ManualClock) -> None:
    stats.topic_put("T", 3, 30)
    clock.advance(24 * 3600)
    info = stats.runtime_info()
    assert (info["msgPutTotalTodayMorning"], info["msgPutTotalTodayNow"]) == ("3", "3")
    assert info["runtime"] == "[ 1 days, 0 hours, 0 minutes, 0 seconds ]"


def test_put_times_fall_into_buckets(stats: BrokerStats) -> None:
    for elapsed_s in (0, 0.003, 0.0105, 0.011, 50):
        stats.put_took(elapsed_s)
    text = stats.runtime_info()["putMessageDistributeTime"]
    assert re.findall(r":(\d+) ", text) == ["1", "2", "1", "0", "0", "0", "0", "0", "0", "0", "0", "0", "1"]
    assert stats.runtime_info()["putMessageEntireTimeMax"] == "50000"


def test_deleted_topics_and_groups_are_forgotten(stats: BrokerStats) -> None:
    stats.topic_put("T", 1, 1)
    stats.group_get("g", "T", 1, 1)
    stats.group_get("h", "U", 1, 1)
    stats.send_back("h", "U")
    stats.remove_topic("T")
    assert stats.windows("TOPIC_PUT_NUMS", "T") is None
    assert stats.windows("GROUP_GET_NUMS", "T@g") is None
    stats.remove_group("h")
    assert stats.windows("GROUP_GET_NUMS", "U@h") is None
    assert stats.windows("SNDBCK_PUT_NUMS", "U@h") is None


@dataclass(frozen=True)
class Whom:
    group: str
    topic: str


class Totals:
    """Of a fast path."""

    def __init__(self, *all_stats: BrokerStats) -> None:
        self.stored: list[Stored] = []
        self.handed_out: list[HandedOut] = []
        for stats in all_stats:
            stats.count_from(self.take)

    def take(self) -> tuple[list[Stored], list[HandedOut]]:
        taken = self.stored[:], self.handed_out[:]
        self.stored.clear()
        self.handed_out.clear()
        return taken


def note(totals: Totals) -> None:
    """What the fast path notes of some bursts."""
    one, other = Whom("g", "T"), Whom("h", "T")
    larger = [0] * len(SIZE_ENDS)
    larger[3] = 2
    totals.stored += [("T", 2, 100, 2, ()), ("T", 3, 50, 1, larger), ("U", 1, 10, 0, ()), ("T", 4, 40, 4, ())]
    totals.handed_out += [(one, 5, 500, 1), (one, 1, 100, 2), (other, 7, 70, 1), (one, 2, 20, 1)]


def count_at_once(stats: BrokerStats) -> None:
    """The same by handlers."""
    stats.topic_put("T", 9, 190, 7, [0, 0, 0, 2] + [0] * (len(SIZE_ENDS) - 4))
    stats.topic_put("U", 1, 10)
    stats.group_get("g", "T", 8, 620, 4)
    stats.group_get("h", "T", 7, 70, 1)


READERS: dict[str, Callable[[BrokerStats], object]] = {
    "put_total": lambda stats: stats.put_total,
    "get_total": lambda stats: stats.get_total,
    "topics": lambda stats: list(stats.counters(TOPIC_PUT_NUMS)),
    "sizes": lambda stats: [each.sizes() for _, each in stats.counters(TOPIC_PUT_NUMS)],
    "groups": lambda stats: list(stats.counters(GROUP_GET_NUMS)),
    "runtime_info": lambda stats: stats.runtime_info(),
    "an item": lambda stats: stats.windows("TOPIC_PUT_SIZE", "T"),
    "an item of a group": lambda stats: stats.windows("GROUP_GET_NUMS", "T@h"),
    "the broker's": lambda stats: stats.windows("BROKER_PUT_NUMS", "C"),
    "a rate": lambda stats: stats.minute_tps("TOPIC_PUT_NUMS", "T"),
}


@pytest.mark.parametrize("first", READERS)
def test_whoever_reads_first_sees_all_that_was_noted(first: str) -> None:
    clock = ManualClock()
    noted, counted = (BrokerStats(clock=clock, cluster="C") for _ in range(2))
    totals = Totals(noted)
    note(totals)
    count_at_once(counted)
    for name in (first, *READERS):
        assert READERS[name](noted) == READERS[name](counted), name
    assert (totals.stored, totals.handed_out) == ([], [])


def test_a_sample_counts_what_was_noted_before_it(stats: BrokerStats, clock: ManualClock) -> None:
    counted = BrokerStats(clock=clock, cluster="C")
    counted.start()
    totals = Totals(stats)
    clock.advance(10)
    note(totals)
    count_at_once(counted)
    clock.advance(10)
    assert (totals.stored, totals.handed_out) == ([], [])
    note(totals)
    count_at_once(counted)
    clock.advance(10)
    for name in READERS:
        assert READERS[name](stats) == READERS[name](counted), name


def test_what_was_noted_of_a_deleted_topic_goes_with_it(stats: BrokerStats) -> None:
    note(Totals(stats))
    stats.remove_topic("T")
    assert [key for key, _ in stats.counters(TOPIC_PUT_NUMS)] == ["U"]
    assert not list(stats.counters(GROUP_GET_NUMS))
    assert (stats.put_total, stats.get_total) == (10, 15)


@pytest.mark.slow
def test_names_from_peers_cannot_fill_the_memory(stats: BrokerStats) -> None:
    for index in range(ITEMS_MAX + 5):
        stats.topic_put(f"T{index}", 1, 1)
    assert sum(1 for _ in stats.counters("TOPIC_PUT_NUMS")) == ITEMS_MAX
    assert stats.put_total == ITEMS_MAX + 5
