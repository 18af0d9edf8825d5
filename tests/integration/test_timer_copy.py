"""A slave has its master's wheel: what it reads when it becomes master does not grow with the log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.replication import after_cut
from aerobee.broker.replication.ha_mode import HaMode
from aerobee.broker.timer import enqueue, timer_feature, timer_saver
from aerobee.broker.timer.enqueue import TimerEnqueue
from aerobee.broker.timer.timer_copy import TimerCopy
from aerobee.broker.timer.timer_feature import Timers
from aerobee.broker.timer.timer_source import TimerSource
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.store.message_store import MessageStore
from aerobee.store.timer.timer_checkpoint import decode_timer_checkpoint
from aerobee.store.timer.timer_log import TimerLog, TimerUnit
from tests.integration.failover_pair import Failover, send, served
from tests.integration.promoted_pair import keys
from tests.integration.replica_pair import same
from tests.waiting import wait_until

DELIVERED, HOUR_S = 200, 3_600
BODY = "x" * 400


class Reads:
    """What a promotion reads: bytes of the log, units of the timer log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log_bytes = self.units = 0
        between, units = timer_feature.deliveries_between, TimerLog.units

        async def counted_bytes(store: MessageStore, start: int, end: int) -> set[int]:
            self.log_bytes += end - start
            return await between(store, start, end)

        def counted_units(log: TimerLog, start: int) -> Iterator[tuple[int, TimerUnit]]:
            for each in units(log, start):
                self.units += 1
                yield each

        monkeypatch.setattr(timer_feature, "deliveries_between", counted_bytes)
        monkeypatch.setattr(TimerLog, "units", counted_units)


def timers_of(broker: Broker) -> Timers:
    return next(each for each in broker.features if isinstance(each, Timers))


def enqueued(broker: Broker) -> int:
    return timers_of(broker)._service.progress.enqueued


async def history(failover: Failover) -> None:
    """One timer that waits for long, many that were delivered, and ordinary messages behind them."""
    await send(failover, failover.a, "in an hour", f"TIMER_DELAY_SEC\x01{HOUR_S}\x02")
    for number in range(DELIVERED):
        await send(failover, failover.a, f"t{number}", f"TIMER_DELAY_MS\x01200\x02KEYS\x01{BODY}\x02")
    await wait_until(lambda: len(keys(failover.a, "t")) == DELIVERED, "delivered", timeout_s=60)


async def copied(master: Broker, slave: Broker) -> None:
    """The slave's copy is of a moment after this call, at which nothing is due."""
    await same(master, slave)
    end, feature = master.store.log.end, timers_of(slave)

    def is_there() -> bool:
        checkpoint = feature._copy.checkpoint
        return checkpoint is not None and checkpoint.scan_from >= end

    await wait_until(is_there, "copied", timeout_s=60)


async def test_a_promotion_reads_from_what_the_master_told(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    await failover.begin()
    a, b = failover.a, failover.b
    await history(failover)
    await copied(a, b)
    await send(failover, a, "soon", "TIMER_DELAY_MS\x011500\x02")
    told_end = a.store.log.end
    reads = Reads(monkeypatch)
    await failover.switch(b)
    await wait_until(lambda: "soon" in keys(b, "t"), "delivered", timeout_s=60)
    assert told_end > DELIVERED * len(BODY)
    assert reads.log_bytes < 5_000
    assert reads.units == 0, "the wheel is there"
    assert enqueued(b) <= 1
    await send(failover, b, "end", "TIMER_DELAY_MS\x01300\x02")
    await wait_until(lambda: "end" in keys(b, "t"), "delivered", timeout_s=60)
    assert sorted(keys(b, "t")) == sorted(["soon", "end", *(f"t{number}" for number in range(DELIVERED))])
    assert timers_of(b)._service.progress.pending.total == 1, "the one that waits for long"
    # And back: A follows B, and has B's wheel.
    await copied(b, a)
    reads.log_bytes = reads.units = 0
    before = enqueued(a)
    await failover.switch(a)
    assert reads.log_bytes < 5_000
    assert (reads.units, enqueued(a)) == (0, before)


async def test_a_slave_that_was_restarted_reads_from_its_checkpoint(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_saver, "COPY_SAVE_BYTES", 1)
    await failover.begin()
    a, b = failover.a, failover.b
    await history(failover)
    await copied(a, b)
    end = a.store.log.end
    path = f"{b.store.config.store_path_root_dir}/config/timercheck"

    def is_saved() -> bool:
        try:
            with open(path, "rb") as file:
                saved = decode_timer_checkpoint(file.read())
        except FileNotFoundError:
            return False
        return saved is not None and saved.copied_from is not None and saved.scan_from >= end

    await wait_until(is_saved, "saved", timeout_s=60)
    await b.stop()
    failover.pair.brokers.remove(b)

    async def no_copy(copy: TimerCopy, master: str, is_following: object) -> None:
        """The restarted slave gets nothing new."""

    monkeypatch.setattr(TimerCopy, "run", no_copy)
    b = failover.b = await failover.pair.start_slave(a, "b")
    reads = Reads(monkeypatch)
    await failover.switch(b)
    await send(failover, b, "end", "TIMER_DELAY_MS\x01300\x02")
    await wait_until(lambda: "end" in keys(b, "t"), "delivered", timeout_s=60)
    assert reads.log_bytes < 20 * len(BODY)
    assert enqueued(b) == 1
    assert sorted(keys(b, "t")) == sorted(["end", *(f"t{number}" for number in range(DELIVERED))])


async def cut_before_the_last_timer(failover: Failover) -> Broker:
    """B has copied two timers of A; then the second one is cut off its log, and B leads and stores another at the same offset."""
    await failover.begin()
    a, b = failover.a, failover.b
    await send(failover, a, "kept", "TIMER_DELAY_MS\x013000\x02")
    end = a.store.log.end
    await send(failover, a, "lost", f"TIMER_DELAY_SEC\x01{HOUR_S}\x02")
    await copied(a, b)
    b.replication._stop_following()
    await b.store.cut_to(end)
    await b.replication.after_cut.finish()
    failover.lead(b)
    await wait_until(lambda: served(b), "everything is served", timeout_s=60)
    await send(failover, b, "new", "TIMER_DELAY_MS\x01300\x02")
    await wait_until(lambda: not timers_of(b)._service.progress.behind_messages, "in the wheel", timeout_s=60)
    return b


async def test_a_cut_drops_the_copy(failover: Failover) -> None:
    b = await cut_before_the_last_timer(failover)
    await wait_until(lambda: set(keys(b, "t")) >= {"kept", "new"}, "delivered", timeout_s=60)
    assert sorted(keys(b, "t")) == ["kept", "new"]
    assert timers_of(b)._service.progress.queue_offset == 2


async def test_a_copy_that_outlives_a_cut_loses_a_timer(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the rule of the test above is needed: the copy counts a message that is not in the log any more."""
    monkeypatch.setattr(Timers, "log_cut", lambda timers, log_offset: None)
    monkeypatch.setattr(after_cut, "PROGRESS_FILES", ("transactionSettled.json",))
    b = await cut_before_the_last_timer(failover)
    assert enqueued(b) == 0, "the new message has no unit, and never gets one"


async def test_nothing_is_copied_while_the_log_may_be_another_one(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave's longer log of its former mastership reaches every end that the master names."""
    await failover.begin()
    a, b = failover.a, failover.b
    await send(failover, a, "in an hour", f"TIMER_DELAY_SEC\x01{HOUR_S}\x02")
    await copied(a, b)
    asked: list[object] = []
    ask = TimerCopy._copy_next

    async def counted(copy: TimerCopy, master: str) -> float:
        asked.append(copy)
        return await ask(copy, master)

    def not_connected(mode: HaMode) -> None:
        return None

    monkeypatch.setattr(TimerCopy, "_copy_next", counted)
    monkeypatch.setattr(type(b.replication.mode), "following", not_connected)
    synced = b.replication.metadata.synced_at_s
    await wait_until(lambda: b.replication.metadata.synced_at_s > synced + 2, "two rounds", timeout_s=60)
    assert not asked


async def test_rocketmqs_slave_gets_the_checkpoint_alone(failover: Failover) -> None:
    await failover.begin()
    a, b = failover.a, failover.b
    await send(failover, a, "in an hour", f"TIMER_DELAY_SEC\x01{HOUR_S}\x02")
    await copied(a, b)
    await wait_until(lambda: timers_of(a)._saver.current.queue_offset == 1, "saved", timeout_s=60)
    reply = await failover.ask(a, RemotingCommand(RequestCode.GET_TIMER_CHECK_POINT))
    assert len(reply.body) == 56
    assert not [name for name in reply.ext or {} if name.startswith("aerobee")]
    told = decode_timer_checkpoint(reply.body)
    assert told is not None
    assert told.master_queue_offset == 1
    # A slave says what its master said: that decides which of them knows more when a RocketMQ master comes back.
    await wait_until(lambda: timers_of(b)._saver.current.queue_offset == 1, "saved", timeout_s=60)
    of_slave = decode_timer_checkpoint(
        (await failover.ask(b, RemotingCommand(RequestCode.GET_TIMER_CHECK_POINT))).body
    )
    assert of_slave is not None
    assert of_slave.queue_offset == 1
    assert of_slave.counter > 0


def as_rocketmq(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ tells the time up to which it has delivered, and its deliveries do not say what they deliver."""

    def answer(source: TimerSource, request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=source._saver.present().fields())

    async def no_pointers(store: MessageStore, start: int, end: int) -> set[int]:
        return set()

    monkeypatch.setattr(TimerSource, "answer", answer)
    monkeypatch.setattr(timer_feature, "deliveries_between", no_pointers)
    monkeypatch.setattr(timer_feature, "delivered_sources", lambda log_files, start, end: set())
    monkeypatch.setattr(timer_feature, "LATE_MS", 0)
    monkeypatch.setattr(timer_saver, "READ_TIME_SAVE_MS", 1)


async def test_a_slave_of_rocketmq_delivers_nothing_of_what_its_master_did(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rocketmq(monkeypatch)
    await failover.begin()
    a, b = failover.a, failover.b
    await send(failover, a, "waits", "TIMER_DELAY_SEC\x018\x02")
    for number in range(20):
        await send(failover, a, f"t{number}", "TIMER_DELAY_MS\x01200\x02")
    await wait_until(lambda: len(keys(a, "t")) == 20, "delivered", timeout_s=60)
    read_time = timers_of(a)._service.progress.read_time
    await same(a, b)
    saver = timers_of(b)._saver
    await wait_until(lambda: saver.current.read_time_ms > read_time, "the read time is copied", timeout_s=60)
    assert saver.current.copied_from is not None
    assert saver.current.copied_from.position == 21
    await failover.switch(b)
    await send(failover, b, "end", "TIMER_DELAY_MS\x01300\x02")
    await wait_until(lambda: {"end", "waits"} <= set(keys(b, "t")), "delivered", timeout_s=60)
    assert sorted(keys(b, "t")) == sorted(["end", "waits", *(f"t{number}" for number in range(20))])


@pytest.mark.parametrize("is_late", [True, False], ids=["entered late", "stored again"])
async def test_a_slave_of_rocketmq_loses_no_message_beyond_the_roll_window(
    failover: Failover, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """A RocketMQ replica that was added later has entered an older message when its time was within the window: it waits in the slot
    of its time, and was not stored again."""
    as_rocketmq(monkeypatch)
    short = {"timer_roll_window_slot": 3}
    failover.a = a = await failover.pair.start("a", store={} if is_late else short)
    failover.b = b = await failover.pair.start_slave(a, "b", store=short)
    await send(failover, a, "waits", "TIMER_DELAY_SEC\x018\x02")
    stored_ms = a.store.last_store_timestamp
    saver = timers_of(b)._saver
    await wait_until(lambda: saver.current.read_time_ms > stored_ms + 4_000, "copied", timeout_s=60)
    await failover.switch(b)
    await wait_until(lambda: keys(b, "t") == ["waits"], "delivered", timeout_s=60)
    await send(failover, b, "end", "TIMER_DELAY_MS\x011000\x02")
    await wait_until(lambda: "end" in keys(b, "t"), "delivered", timeout_s=60)
    assert keys(b, "t") == ["waits", "end"]


async def test_a_kill_before_all_timers_of_a_rocketmq_master_are_read_delivers_none_again(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What RocketMQ delivered is known by its read time alone: no checkpoint may replace it before all messages have been read."""
    as_rocketmq(monkeypatch)
    await failover.begin()
    a, b = failover.a, failover.b
    await send(failover, a, "in an hour", f"TIMER_DELAY_SEC\x01{HOUR_S}\x02")
    for number in range(20):
        await send(failover, a, f"t{number}", "TIMER_DELAY_MS\x01200\x02")
    await wait_until(lambda: len(keys(a, "t")) == 20, "delivered", timeout_s=60)
    read_time = timers_of(a)._service.progress.read_time
    saver = timers_of(b)._saver
    await wait_until(lambda: saver.current.read_time_ms > read_time, "the read time is copied", timeout_s=60)
    with monkeypatch.context() as stalled:
        stalled.setattr(enqueue, "ENQUEUES_PER_PASS", 5)
        stalled.setattr(
            TimerEnqueue, "_want", lambda enqueuer, *delays: enqueuer._clock.call_later(0.0, lambda: None)
        )
        failover.lead(b)
        await wait_until(lambda: served(b), "everything is served", timeout_s=60)
        timers_of(b)._service._enqueue._enqueue()
        assert timers_of(b)._service.progress.behind_messages == 16
        saver._tick()
        await wait_until(lambda: not saver._is_saving, "saved, if at all", timeout_s=60)
        shutil.copytree(failover.pair.path / "b", failover.pair.path / "killed")
    killed = await failover.pair.start("killed")
    await send(failover, killed, "end", "TIMER_DELAY_MS\x01300\x02")
    await wait_until(lambda: "end" in keys(killed, "t"), "delivered", timeout_s=60)
    assert sorted(keys(killed, "t")) == sorted(["end", *(f"t{number}" for number in range(20))])
