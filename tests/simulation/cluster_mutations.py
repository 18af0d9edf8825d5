"""Promises taken out of the real code, as a careless change would. Each is noticed in a scenario, by a checker with a name.

    python -m tests.simulation.cluster_mutations [NAME…]

says for each from which seed of its scenario on, and by whom.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from aerobee.broker.assembly import broker
from aerobee.broker.assembly.leading import Leading
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.fastpath.choice import BackendChoice, choose_backend
from aerobee.broker.grpc.ack_message import AckRpcs
from aerobee.broker.pop.engine import PopEngine
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.replication.after_cut import AfterCut
from aerobee.broker.replication.auto_switch_follower import AutoSwitchFollower, _AutoSwitchConnection
from aerobee.broker.replication.auto_switch_mode import AutoSwitchMode
from aerobee.broker.replication.controller_agent import ControllerAgent
from aerobee.broker.replication.follower import Follower
from aerobee.broker.replication.offset_merge import Merge, OffsetMerge
from aerobee.broker.replication.raw_receiver import RawReceiver
from aerobee.broker.send.duplicate_window import DuplicateWindow
from aerobee.broker.timer.timer_copy import TimerCopy
from aerobee.broker.timer.timer_feature import Timers
from aerobee.broker.transaction import end as end_transaction
from aerobee.broker.transaction.check import Checker as TransactionChecks
from aerobee.broker.transaction.transaction_table import Outcome
from aerobee.client.base.topic_route import TopicRoute
from aerobee.client.consumer.process_queue import ProcessQueue
from aerobee.client.session.route_cache import RouteCache
from aerobee.errors import RecordInvalid, TransportError
from aerobee.ha.controller import election, state
from aerobee.ha.controller.leases import MasterLeases
from aerobee.ha.stream.sync_state_set import SyncStateSet
from aerobee.message import TRANSACTION_ROLLBACK
from aerobee.simulation.broken import Checker
from aerobee.simulation.run import run_seed
from aerobee.simulation.scenarios import SCENARIOS
from aerobee.store.append import raw_appender
from aerobee.store.append.durability import Durability
from aerobee.store.log.dispatch import is_batch_record
from aerobee.store.message_store import MessageStore
from aerobee.store.queue import queue_table
from aerobee.store.queue.queue_kind import Kind, kind_for
from aerobee.store.timer.timer_checkpoint import TimerCheckpoint

Break = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """`scenario` notices it by one of `checkers`."""

    name: str
    break_: Break
    scenario: str
    checkers: tuple[Checker, ...]


def _replaced(owner: Any, name: str, new: Any) -> Break:
    return lambda: mock.patch.object(owner, name, new)


# --- the six histories


def _counted(found: SyncStateSet) -> frozenset[int]:
    return found.members


@contextmanager
def _queues_end_where_it_is_confirmed() -> Any:
    become_master = AutoSwitchMode.become_master

    def become(mode: AutoSwitchMode, epoch: int) -> None:
        become_master(mode, epoch)
        store, confirmed = mode._store, mode.confirm_offset
        for queue in store.queues.values():
            queue.cut_records_from(confirmed)

    with mock.patch.object(AutoSwitchMode, "become_master", become):
        yield


def _always(_: object) -> bool:
    return True


@contextmanager
def _confirm_offset_outlives_a_cut() -> Any:
    align, become_master = AutoSwitchFollower._align, AutoSwitchMode.become_master
    highest: dict[int, int] = {}

    def become(mode: AutoSwitchMode, epoch: int) -> None:
        become_master(mode, epoch)
        assert mode._set is not None
        mode._set.confirm_offset = max(mode._set.confirm_offset, highest.get(mode._broker_id(), 0))

    async def kept(follower: AutoSwitchFollower, greeting: Any) -> None:
        end = follower._store.log.end
        await align(follower, greeting)
        highest[follower._broker_id()] = end

    with (
        mock.patch.object(AutoSwitchFollower, "_align", kept),
        mock.patch.object(AutoSwitchMode, "become_master", become),
    ):
        yield


async def _heartbeats_until_one_fails(agent: ControllerAgent, address: str, now: asyncio.Event) -> None:
    while True:
        now.clear()
        try:
            await agent._heartbeat(address)
        except TransportError:
            return
        timer = agent._clock.call_later(agent._heartbeat_interval_s, now.set)
        try:
            await now.wait()
        finally:
            timer.cancel()


# --- replication and failover


def _copied_by_known_members(found: SyncStateSet, own_end: int, copies: int) -> int:
    with mock.patch.object(SyncStateSet, "counted", property(_counted)):
        return _COPIED(found, own_end, copies)


_COPIED = SyncStateSet.copied


@contextmanager
def _queues_have_the_kind_of_their_topic() -> Any:
    """A batch whose queue was opened before the settings of its topic were copied is refused, and the queue stays as it is."""

    def kind(record: Any, *, is_batch: bool, start: int, end: int, is_batch_topic: bool) -> Kind:
        if is_batch_record(record.topic, record.sys_flag) and not is_batch:
            raise RecordInvalid(f"the batch at {record.physical_offset} is for a queue of single messages")
        return kind_for(record, is_batch=is_batch, start=start, end=end, is_batch_topic=is_batch_topic)

    def without_native(wanted: str) -> BackendChoice:
        return dataclasses.replace(choose_backend(wanted), make_raw_appender=None)

    with (
        mock.patch.object(raw_appender, "kind_for", kind),
        mock.patch.object(queue_table, "kind_for", kind),
        mock.patch.object(MessageStore, "settle_kinds", return_value=[]),
        mock.patch.object(broker, "choose_backend", without_native),
    ):
        yield


def _begins_nothing(window: DuplicateWindow, end: int) -> bool:
    """Keys are read at the process's start only."""
    return False


_load_pops, _take_over = Pop.load, Leading._take_over


def _counts_all_as_read(feature: Pop) -> None:
    _load_pops(feature)
    feature._known_to = feature._parts.store.log.end


async def _reads_what_is_readable(leading: Leading, log_end: int) -> None:
    await _take_over(leading, 0)


async def _reads_nothing(_: object) -> None:
    """In place of what a new master reads in its log."""


# --- others


def _copied_timers(**changes: Callable[[TimerCopy, TimerCheckpoint], int]) -> Break:
    """A slave that becomes master continues from another checkpoint than its master's."""
    take = TimerCopy.take

    def changed(copy: TimerCopy) -> TimerCheckpoint | None:
        told = take(copy)
        values = {} if told is None else {name: change(copy, told) for name, change in changes.items()}
        return None if told is None else replace(told, **values)

    return _replaced(TimerCopy, "take", changed)


def _confirm_alone(mode: AutoSwitchMode) -> None:
    mode._acks.advance(mode._store.log.end)


@contextmanager
def _anybody_may_be_elected() -> Any:
    choose = election.choose

    def anybody(*args: Any, **named: Any) -> Any:
        return choose(*args, **{**named, "is_unclean_allowed": True})

    with mock.patch.object(state, "choose", anybody):
        yield


async def _not_cut(follower: AutoSwitchFollower, greeting: Any) -> None:
    follower._master_end = greeting.max_offset


@contextmanager
def _a_byte_changes_on_its_way() -> Any:
    take = RawReceiver.take

    def damaged(receiver: RawReceiver, offset: int, body: bytes) -> int:
        at = bytes(body).find(b"xxxxx")
        if at >= 0:
            body = bytes(body[:at]) + b"y" + bytes(body[at + 1 :])
        return take(receiver, offset, body)

    with mock.patch.object(RawReceiver, "take", damaged):
        yield


@contextmanager
def _a_property_changes_on_its_way() -> Any:
    """No checksum covers it, and without controllers no replica compares before the end."""
    take = RawReceiver.take

    def damaged(receiver: RawReceiver, offset: int, body: bytes) -> int:
        return take(receiver, offset, bytes(body).replace(b"UNIQ_KEY", b"UNIQ_KEZ"))

    with mock.patch.object(RawReceiver, "take", damaged):
        yield


@contextmanager
def _a_message_is_forgotten() -> Any:
    put_all = ProcessQueue.put_all

    def forget(queue: ProcessQueue, messages: Any) -> Any:
        return [each for each in put_all(queue, messages) if not each.body.startswith(b"1-3-")]

    with mock.patch.object(ProcessQueue, "put_all", forget):
        yield


@contextmanager
def _nobody_leaves() -> Any:
    wanted = SyncStateSet.wanted

    def grown(found: SyncStateSet, now_ms: float) -> frozenset[int] | None:
        members = wanted(found, now_ms)
        return None if members is None or members < found.members else members

    with mock.patch.object(SyncStateSet, "wanted", grown):
        yield


@contextmanager
def _offsets_are_put_over() -> Any:
    def merge(self: OffsetMerge, table: Any, query: Any, *others: Any, **named: Any) -> Merge:
        return Merge([each._replace(offset=max(0, each.offset - 3)) for each in table], [], [])

    with mock.patch.object(OffsetMerge, "merge", merge):
        yield


def _free_at_once(_: MasterLeases, broker_name: str) -> float:
    return float("-inf")


@contextmanager
def _clients_keep_their_first_route() -> Any:
    refresh = RouteCache.refresh

    async def first(cache: RouteCache, topic: str) -> TopicRoute:
        return cache.cached(topic) or await refresh(cache, topic)

    with mock.patch.object(RouteCache, "refresh", first):
        yield


@contextmanager
def _replicas_report_what_the_master_has() -> Any:
    send = _AutoSwitchConnection.report

    def report(connection: _AutoSwitchConnection, offset: int) -> None:
        send(connection, max(offset, connection._owner._master_end))

    with mock.patch.object(_AutoSwitchConnection, "report", report):
        yield


@contextmanager
def _nobody_waits_for_the_disk() -> Any:
    def wait(_: Durability, offset: int, callback: Callable[[bool], None]) -> None:
        callback(True)

    def acknowledge(follower: Follower, connection: Any) -> None:
        connection.report(follower._store.log.end)

    with (
        mock.patch.object(Durability, "wait", wait),
        mock.patch.object(Follower, "_acknowledge", acknowledge),
    ):
        yield


def _disk_is_always_sound(agent: ControllerAgent) -> bool:
    return True


# --- delays, transactions, POP


@contextmanager
def _levels_are_early() -> Any:
    run = Schedule._run

    def at_once(schedule: Schedule, level: int) -> None:
        schedule._delays_ms = [0 for _ in schedule._delays_ms]
        run(schedule, level)

    with mock.patch.object(Schedule, "_run", at_once):
        yield


def _asks_nobody(checks: TransactionChecks, transaction: Any, half: Any) -> bool:
    return True


@contextmanager
def _offsets_outlive_a_cut() -> Any:
    """A deposed master keeps the offsets of what it popped alone, and gives them back to the next one."""
    merge = OffsetMerge.merge

    def of_a_whole_log(self: OffsetMerge, table: Any, query: Any, *others: Any, **named: Any) -> Merge:
        return merge(self, table, query, *others, **{**named, "counts_cut_off": False})

    with (
        mock.patch.object(OffsetMerge, "merge", of_a_whole_log),
        mock.patch.object(AfterCut, "_lowering", return_value=()),
    ):
        yield


def _keeps_progress(offsets: ConsumerOffsets, group: str) -> list[str]:
    """Transactions before the offset count as decided, though the log lost the decisions."""
    return []


def _acks_not_written(engine: PopEngine, acks: Any, now_ms: int) -> int:
    return 0


_ALL = (
    Mutation(
        "what_was_asked_for_does_not_count",
        lambda: mock.patch.object(SyncStateSet, "counted", property(_counted)),
        "set-grows-early",
        (Checker.ACKNOWLEDGED,),
    ),
    Mutation(
        "queues_end_where_it_is_confirmed",
        _queues_end_where_it_is_confirmed,
        "shared-queue-offsets",
        (
            Checker.ACKNOWLEDGED,
            Checker.EXACTLY_ONCE,
            Checker.EQUAL,
            Checker.PROGRESS,
            Checker.NO_FAULT_OF_OURS,
        ),
    ),
    Mutation(
        "a_master_needs_no_lease",
        lambda: mock.patch.object(AutoSwitchMode, "_has_lease", property(_always)),
        "two-masters",
        (Checker.ONE_MASTER,),
    ),
    Mutation(
        "a_confirm_offset_outlives_a_cut",
        _confirm_offset_outlives_a_cut,
        "confirm-of-another-epoch",
        (Checker.CONFIRMED,),
    ),
    Mutation(
        "heartbeats_until_one_fails",
        _replaced(ControllerAgent, "_send_heartbeats", _heartbeats_until_one_fails),
        "wrong-controller",
        (Checker.PROGRESS,),
    ),
    Mutation(
        "a_bad_disk_counts_as_sound",
        lambda: mock.patch.object(ControllerAgent, "_is_sound", property(_disk_is_always_sound)),
        "bad-disk",
        (Checker.PROGRESS,),
    ),
    Mutation(
        "a_master_waits_for_nobody",
        _replaced(AutoSwitchMode, "_confirm", _confirm_alone),
        "unreplicated-master",
        (Checker.ACKNOWLEDGED,),
    ),
    Mutation("anybody_may_be_elected", _anybody_may_be_elected, "left-behind", (Checker.ACKNOWLEDGED,)),
    Mutation(
        "who_rejoins_is_not_cut",
        _replaced(AutoSwitchFollower, "_align", _not_cut),
        "unreplicated-master",
        (Checker.PROGRESS, Checker.EQUAL, Checker.CONFIRMED),
    ),
    Mutation(
        "a_byte_changes_on_its_way",
        _a_byte_changes_on_its_way,
        "unreplicated-master",
        (Checker.CONFIRMED, Checker.EQUAL, Checker.PROGRESS),
    ),
    Mutation("a_property_changes_on_its_way", _a_property_changes_on_its_way, "classic", (Checker.EQUAL,)),
    Mutation(
        "offsets_of_the_master_are_put_over",
        _offsets_are_put_over,
        "rolling-restart",
        (Checker.OFFSETS,),
    ),
    Mutation(
        "a_message_is_forgotten",
        _a_message_is_forgotten,
        "power-of-all",
        (Checker.DELIVERED, Checker.PROGRESS),
    ),
    Mutation(
        "the_lease_of_the_last_master_is_not_waited_for",
        _replaced(MasterLeases, "free_at_ms", _free_at_once),
        "elected-by-hand",
        (Checker.ONE_MASTER,),
    ),
    Mutation(
        "clients_keep_their_first_route",
        _clients_keep_their_first_route,
        "unreplicated-master",
        (Checker.PROGRESS,),
    ),
    Mutation(
        "replicas_report_what_the_master_has",
        _replicas_report_what_the_master_has,
        "slow-to-join",
        (Checker.ACKNOWLEDGED, Checker.CONFIRMED),
    ),
    Mutation(
        "nobody_waits_for_the_disk",
        _nobody_waits_for_the_disk,
        "power-of-all",
        (Checker.ACKNOWLEDGED, Checker.PROGRESS),
    ),
    Mutation("nobody_leaves_the_set", _nobody_leaves, "left-behind", (Checker.PROGRESS,)),
    Mutation("levels_are_early", _levels_are_early, "features", (Checker.NOT_EARLY,)),
    Mutation(
        "a_rollback_is_a_commit",
        lambda: mock.patch.dict(end_transaction._DECISIONS, {TRANSACTION_ROLLBACK: Outcome.COMMITTED}),
        "features",
        (Checker.TRANSACTIONS,),
    ),
    Mutation(
        "nobody_asks_about_a_transaction",
        _replaced(TransactionChecks, "ask", _asks_nobody),
        "features",
        (Checker.DELIVERED,),
    ),
    Mutation(
        "a_copied_wheel_lacks_messages",
        _copied_timers(queue_offset=lambda copy, told: told.queue_offset + 3),
        "features",
        (Checker.DELIVERED,),
    ),
    Mutation(
        "deliveries_behind_the_copied_wheel_are_not_read",
        _copied_timers(scan_from=lambda copy, told: copy._store.log.end),
        "features",
        (Checker.POPPED,),
    ),
    Mutation(
        "progress_of_transactions_outlives_a_cut",
        _replaced(ConsumerOffsets, "remove_progress", _keeps_progress),
        "cut-and-again",
        (Checker.DELIVERED,),
    ),
    Mutation(
        "offsets_of_a_deposed_master_outlive_a_cut",
        _offsets_outlive_a_cut,
        "popped-and-cut",
        (Checker.DELIVERED,),
    ),
    Mutation(
        "acknowledgements_are_not_written",
        _replaced(PopEngine, "write_acks", _acks_not_written),
        "features",
        (Checker.POPPED,),
    ),
    Mutation(
        "queues_have_the_kind_of_their_topic",
        _queues_have_the_kind_of_their_topic,
        "batches-before-their-topic",
        (Checker.PROGRESS, Checker.EQUAL),
    ),
    Mutation(
        "a_replicated_message_waits_for_known_members",
        _replaced(SyncStateSet, "copied", _copied_by_known_members),
        "level-while-set-grows",
        (Checker.ACKNOWLEDGED,),
    ),
    Mutation(
        "a_new_master_knows_no_keys",
        _replaced(DuplicateWindow, "_begin", _begins_nothing),
        "masters-by-turns",
        (Checker.EXACTLY_ONCE,),
    ),
    Mutation(
        "a_new_master_knows_no_pops",
        _replaced(Pop, "_read_back", _reads_nothing),
        "masters-by-turns",
        (Checker.POPPED, Checker.DELIVERED),
    ),
    Mutation(
        "pops_behind_the_confirm_offset_count_as_read",
        _replaced(Pop, "load", _counts_all_as_read),
        "down-after-pops",
        (Checker.POPPED,),
    ),
    Mutation(
        "a_new_master_reads_what_its_disk_has_synced",
        _replaced(Leading, "_take_over", _reads_what_is_readable),
        "synced-late",
        (Checker.POPPED,),
    ),
    Mutation(
        "an_acknowledgement_by_grpc_is_only_answered",
        _replaced(AckRpcs, "_acknowledge", lambda self, *names: False),
        "grpc-clients",
        (Checker.POPPED,),
    ),
    Mutation(
        "a_new_master_knows_no_timers",
        _replaced(Timers, "take_over", _reads_nothing),
        "masters-by-turns",
        (
            Checker.DELIVERED,
            Checker.EXACTLY_ONCE,
            Checker.POPPED,
            Checker.NOT_EARLY,
            Checker.NO_FAULT_OF_OURS,
        ),
    ),
)
MUTATIONS = {each.name: each for each in _ALL}
SEEDS_TO_NOTICE = 30
HISTORIES = tuple(each.name for each in _ALL[:6])


def noticed(mutation: Mutation, seeds: range) -> tuple[int, str, str] | None:
    """(seed, checker, what it said) of the first run that one of the mutation's checkers ends; None when none does.

    Another checker may be the first to notice: a run ends with it, and the next one is looked at.
    """
    for seed in seeds:
        with mutation.break_():
            outcome = run_seed(seed, scenario=SCENARIOS[mutation.scenario])
        if outcome.failure and outcome.checker in [each.value for each in mutation.checkers]:
            return seed, outcome.checker, outcome.failure
    return None


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for name in sys.argv[1:] or MUTATIONS:
        print(name, MUTATIONS[name].scenario, noticed(MUTATIONS[name], range(SEEDS_TO_NOTICE)), flush=True)
