"""Levels and timers of a broker that dies at any point: never early, none lost, none twice (timer_world.py).

AEROBEE_SEEDS sets the number of runs, AEROBEE_SEED picks one. Ten thousand take about nine minutes of one core:

    python -m tests.simulation.timer_world 10000
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator

import pytest

from aerobee.broker.delay import schedule
from aerobee.broker.fastpath import delivery
from aerobee.broker.send import timer_properties
from aerobee.broker.timer import slots_at_hand, timer_feature
from aerobee.broker.timer.clock_set_back import ClockSetBack
from aerobee.broker.timer.timer_progress import TimerProgress
from aerobee.broker.timer.timer_saver import TimerSaver
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import TimerLog
from aerobee.store.timer.timer_wheel import TimerWheel
from tests.simulation.timer_world import clocks, crashes

SEEDS = int(os.environ.get("AEROBEE_SEEDS", "1000"))
FIRST_SEED = int(os.environ.get("AEROBEE_SEED", "0"))
MUTATION_SEEDS = 60
KNOWN_TO_NOTICE = 575  # of a timer log that is not synced, what most runs build again from the timer topic


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def live(seeds: Iterable[int]) -> None:
    for seed in seeds:
        print(f"seed {seed}")
        crashes(seed)


def test_delayed_messages_come_once_and_not_early_whenever_the_broker_dies() -> None:
    live([FIRST_SEED] if FIRST_SEED else range(1, SEEDS + 1))


def test_no_delayed_message_is_lost_or_repeated_when_the_clock_is_set() -> None:
    set_clocks([FIRST_SEED] if FIRST_SEED else range(1, max(1, SEEDS // 4) + 1))


def set_clocks(seeds: Iterable[int]) -> None:
    for seed in seeds:
        print(f"seed {seed}")
        clocks(seed)


def forget_marks_of_timers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timer_feature, "delivered_sources", lambda log, start, end: set())


def forget_marks_of_levels(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedule, "delivered_sources", lambda log, start, end: set())


def save_before_the_log_is_safe(patch: pytest.MonkeyPatch) -> None:
    begin = TimerSaver._tick

    def tick(saver: TimerSaver) -> None:
        store = saver._store

        class Eager:
            log = property(lambda self: store.log)
            flushed = property(lambda self: self)
            want_flush = store.want_flush

            def when(self, offset: int, callback: Callable[[bool], None]) -> None:
                callback(True)

        saver._store = Eager()  # type: ignore[assignment]
        begin(saver)
        saver._store = store

    patch.setattr(TimerSaver, "_tick", tick)


def leave_the_wheel_unsynced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimerWheel, "sync", lambda wheel: None)
    mend_no_slots(patch)


def leave_the_timer_log_unsynced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimerLog, "sync", lambda log, start, end: None)


def mend_no_slots(patch: pytest.MonkeyPatch) -> None:
    def mend(files: TimerFiles, read_time_ms: int, log_end: int) -> Generator[None, None, int]:
        files.wheel.make()
        yield
        return 0

    patch.setattr(TimerFiles, "_mend", mend)


def deliver_a_millisecond_early(patch: pytest.MonkeyPatch) -> None:
    due_time = timer_properties.due_time
    for user in (slots_at_hand, delivery):
        patch.setattr(user, "due_time", lambda *args, **named: due_time(*args, **named) - 1)


@pytest.mark.parametrize(
    "mutation",
    [
        forget_marks_of_timers,
        forget_marks_of_levels,
        save_before_the_log_is_safe,
        leave_the_wheel_unsynced,
        leave_the_timer_log_unsynced,
        mend_no_slots,
        deliver_a_millisecond_early,
    ],
)
def test_the_lives_notice_a_broken_promise(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 an AssertionError, or what the broken state leads to
        live((*range(1, MUTATION_SEEDS), KNOWN_TO_NOTICE))


def leave_what_the_clock_dated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClockSetBack, "new_due", lambda *what: None)


def write_over_another_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimerWheel, "is_free", lambda wheel, time_ms, read_time_ms: True)


def forget_what_was_delivered_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimerProgress, "was_handled", lambda progress, physical_offset: False)


@pytest.mark.parametrize(
    "mutation", [leave_what_the_clock_dated, write_over_another_time, forget_what_was_delivered_ahead]
)
def test_a_mistake_with_clocks_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        set_clocks(range(1, 401))
