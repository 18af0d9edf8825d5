"""State besides the log after mastership goes from broker A to B and back to A: the table in docs/replication.md, line by line."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.replication.metadata_sync import MetadataSync
from aerobee.broker.timer.timer_copy import TimerCopy
from aerobee.broker.timer.timer_feature import Timers
from aerobee.broker.transaction.recovery import Recovered
from aerobee.broker.transaction.service import Transactions
from aerobee.broker.transaction.transaction_store import TransactionStore
from aerobee.errors import StoreError
from aerobee.message import decode_record
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import dumps, loads
from aerobee.store.timer import timer_files, timer_log
from aerobee.store.timer.timer_log import UNIT_BYTES, TimerLog
from tests.integration.broker_calls import pull_request, records_of, send_request
from tests.integration.failover_pair import Failover, break_feature, send, served
from tests.integration.pop_requests import Popped, ack, pop, pop_request
from tests.integration.replica_pair import figures, log_bytes, same
from tests.waiting import wait_until

HALF_SEND = {"a": "payers", "f": "4"}
WINDOW = {"dedup_window_millis": 600_000}


async def keyed(failover: Failover, broker: Broker, key: str) -> tuple[bool, str]:
    """Send with a DEDUP_KEY; whether it was a repetition, and the message's queue offset."""
    request = send_request(
        "t", key.encode(), properties=f"UNIQ_KEY\x01{key}{failover.epoch}\x02DEDUP_KEY\x01{key}\x02"
    )
    reply = await failover.ask(broker, request)
    assert reply.code == 0, reply
    assert reply.ext is not None
    return reply.ext.get("duplicate") == "true", reply.ext["queueOffset"]


async def test_a_new_master_knows_the_dedup_keys_of_the_one_before(failover: Failover) -> None:
    await failover.begin(**WINDOW)
    a, b = failover.a, failover.b
    stored = await keyed(failover, a, "k1")
    assert stored[0] is False
    await failover.switch(b)
    assert await keyed(failover, b, "k1") == (True, stored[1])
    second = await keyed(failover, b, "k2")
    assert second[0] is False
    await failover.switch(a)
    assert await keyed(failover, a, "k1") == (True, stored[1])
    assert await keyed(failover, a, "k2") == (True, second[1])


async def test_a_dedup_key_of_a_message_that_was_cut_off_is_new(failover: Failover) -> None:
    await failover.begin(**WINDOW)
    a, b = failover.a, failover.b
    failover.lead(b)  # and A still believes that it is master
    lost = await keyed(failover, a, "lost")
    assert lost[0] is False
    kept = await keyed(failover, b, "kept")
    await failover.follow(a, b)
    await failover.switch(a)
    assert await keyed(failover, a, "kept") == (True, kept[1])
    again = await keyed(failover, a, "lost")
    assert again[0] is False, "the first one is free"
    assert await keyed(failover, a, "lost") == (True, again[1])


# --- what consumers have


def offsets(broker: Broker) -> object:
    return broker.offsets.to_dict()["offsetTable"]


async def copied(failover: Failover, master: Broker) -> None:
    """The other broker has the master's offsets."""
    other = failover.b if master is failover.a else failover.a
    await wait_until(lambda: offsets(other) == offsets(master), "offsets are copied", timeout_s=60)


async def test_group_offsets_go_to_and_fro(failover: Failover) -> None:
    await failover.begin()
    a, b = failover.a, failover.b
    await failover.pair.send(a, 9)
    a.offsets.commit("g", "t", 0, 3)
    await copied(failover, a)
    await failover.switch(b)
    assert b.offsets.query("g", "t", 0) == 3
    b.offsets.commit("g", "t", 0, 7)
    b.offsets.commit("new", "t", 0, 1)
    await copied(failover, b)
    await failover.switch(a)
    assert (a.offsets.query("g", "t", 0), a.offsets.query("new", "t", 0)) == (7, 1)


async def test_an_offset_before_the_log_is_confirmed_stays(failover: Failover) -> None:
    """A new master shows its log's end only when it is confirmed; its predecessor may have shown that end before."""
    await failover.begin()
    a = failover.a
    await failover.pair.send(a, 6)
    assert len(records_of(await failover.ask(a, pull_request("t", group="g")))) == 6  # the group exists
    popped = await pop(failover.pair.client, a, "t", "popping", queue=0)
    assert len(popped) == 6
    hidden = a.store.log.end
    entry = a.store.queues["t", 0].entry(2)
    assert entry is not None
    a.store.visibility.hold_back(entry[0])
    assert a.store.max_offset("t", 0) == 2
    commit = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "5"}
    reply = await failover.ask(a, RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, commit))
    assert (reply.code, a.offsets.query("g", "t", 0)) == (ResponseCode.SUCCESS, 5)
    reply = await failover.ask(a, pull_request("t", 5, group="g"))
    assert reply.ext is not None
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "5")
    assert await ack(failover.pair.client, a, popped[5]) == ResponseCode.SUCCESS
    assert await pop(failover.pair.client, a, "t", "g", queue=0) == []
    assert a.offsets.query("g", "t", 0) == 5, "popped messages are not delivered again"
    a.store.visibility.show_safe(hidden)
    assert [
        each.queue_offset for each in records_of(await failover.ask(a, pull_request("t", 5, group="g")))
    ] == [5]
    reply = await failover.ask(a, pull_request("t", 7, group="g"))
    assert reply.code == ResponseCode.PULL_OFFSET_MOVED, "no message ever had that offset"


async def test_a_pending_reset_does_not_come_back_to_life(failover: Failover) -> None:
    """The offset is reset at B, too; that the group is sent there ends with A's mastership."""
    await failover.begin()
    a, b = failover.a, failover.b
    await failover.pair.send(a, 9)
    a.offsets.commit("g", "t", 0, 8)
    a.offsets.assign_reset("g", "t", {0: 2})
    await copied(failover, a)
    await failover.switch(b)
    assert b.offsets.query("g", "t", 0) == 2
    b.offsets.commit("g", "t", 0, 9)
    await wait_until(lambda: a.offsets.query("g", "t", 0) == 9, "A takes B's offset", timeout_s=60)
    await failover.switch(a)
    assert not a.offsets.has_resets
    assert a.offsets.query("g", "t", 0) == 9


def lock_request(code: int, client_id: str) -> RemotingCommand:
    queue = {"topic": "t", "brokerName": "broker-a", "queueId": 0}
    body = dumps({"consumerGroup": "g", "clientId": client_id, "mqSet": [queue]})
    return RemotingCommand(code, {}, body)


async def lock(failover: Failover, broker: Broker, client_id: str) -> bool:
    reply = await failover.ask(broker, lock_request(RequestCode.LOCK_BATCH_MQ, client_id))
    assert reply.code == 0, reply
    return bool(loads(reply.body)["lockOKMQSet"])


async def test_orderly_locks_are_those_of_the_present_master(failover: Failover) -> None:
    await failover.begin()
    a, b = failover.a, failover.b
    assert await lock(failover, a, "one")
    assert not await lock(failover, a, "two")
    assert not await lock(failover, b, "two"), "a slave grants none"
    await failover.switch(b)
    assert not await lock(failover, a, "one"), "a deposed master grants none"
    assert await lock(failover, b, "two")
    await failover.switch(a)
    assert await lock(failover, a, "three"), "what A granted in its first mastership expired"
    assert not await lock(failover, a, "one")


async def test_request_modes_and_filters_go_to_and_fro(failover: Failover) -> None:
    await failover.begin()
    a, b = failover.a, failover.b

    async def set_mode(broker: Broker, count: int) -> None:
        mode = {"topic": "t", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": count}
        reply = await failover.ask(
            broker, RemotingCommand(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, dumps(mode))
        )
        assert reply.code == 0, reply

    def knows(broker: Broker, count: int, expression: str) -> bool:
        found = broker._serving.parts.filters.find("g", "t")
        mode = broker._serving._modes.get("t", "g")
        return mode.share_queue_num == count and found is not None and found.expression == expression

    for number, (master, other) in enumerate(((a, b), (b, a), (a, b)), 2):
        await set_mode(master, number)
        item = SubscriptionData("t", f"a > {number}", expression_type="SQL92", sub_version=number)
        master._serving.parts.filters.subscribed("g", [item])
        await wait_until(lambda: knows(other, number, f"a > {number}"), "copied", timeout_s=60)  # noqa: B023
        await failover.switch(other)
        assert knows(other, number, f"a > {number}")


# --- what waits


def keys(broker: Broker, topic: str) -> list[str]:
    """Of a topic's first queue, in order."""
    found = []
    for offset in range(broker.store.max_offset(topic, 0)):
        entry = broker.store.queue(topic, 0).entry(offset)
        assert isinstance(entry, tuple)
        found.append(decode_record(broker.store.read_record(entry[0]) or b"").properties["UNIQ_KEY"])
    return found


@pytest.mark.parametrize("are_offsets_copied", [True, False])
async def test_delayed_messages_arrive_once_after_two_failovers(
    failover: Failover, monkeypatch: pytest.MonkeyPatch, are_offsets_copied: bool
) -> None:
    """Also when a slave could not ask its master for the offsets of delay levels: the log has the deliveries."""
    if not are_offsets_copied:

        async def refuse(sync: MetadataSync) -> None:
            raise StoreError("the master cannot be asked")

        monkeypatch.setattr(MetadataSync, "_copy_offsets", refuse)
    await failover.begin()
    a, b = failover.a, failover.b
    sent: list[str] = []
    for number, (master, other) in enumerate(((a, b), (b, a), (a, b))):
        for name, due in (
            ("soon", "DELAY\x011\x02"),
            ("later", "DELAY\x012\x02"),
            ("timer", "TIMER_DELAY_MS\x011500\x02"),
        ):
            sent.append(f"{name}{number}")
            await send(failover, master, sent[-1], due)
        soon = f"soon{number}"
        await wait_until(lambda: soon in keys(master, "t"), "delivered", timeout_s=60)  # noqa: B023
        await failover.switch(other)
    await wait_until(lambda: set(keys(b, "t")) >= set(sent), "all came", timeout_s=60)
    assert sorted(keys(b, "t")) == sorted(sent)


async def test_the_event_loop_gets_its_turn_while_the_timer_wheel_is_opened(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel that has to be written again from its units: a few of them, then what else the broker does."""

    async def refuse(copy: TimerCopy, master: str, is_following: object) -> None:
        """The slave has no copy of its master's wheel."""

    monkeypatch.setattr(TimerCopy, "run", refuse)
    await failover.begin()
    a, b = failover.a, failover.b
    for number in range(60):
        await send(failover, a, f"t{number}", f"TIMER_DELAY_MS\x01{2000 + number}\x02")
    timer = next(each for each in a.features if isinstance(each, Timers))
    await wait_until(lambda: timer._service.progress.queue_offset == 60, "in the wheel")
    await wait_until(lambda: timer._saver.current.queue_offset == 60, "in the checkpoint", timeout_s=60)
    await failover.switch(b)
    await wait_until(lambda: len(keys(b, "t")) == 60, "delivered", timeout_s=60)
    await same(a, b)
    for module in (timer_files, timer_log):
        monkeypatch.setattr(module, "UNITS_PER_STEP", 4)
    monkeypatch.setattr(timer_log, "_READ_UNITS", 4)
    turn, opened_in = 0, list[int]()
    pieces = TimerLog.unit_pieces

    def counted(log: TimerLog, start: int) -> Iterator[tuple[int, bytes]]:
        for position, data in pieces(log, start):
            opened_in.extend([turn] * (len(data) // UNIT_BYTES))
            yield position, data

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    turns = asyncio.create_task(count_turns())
    monkeypatch.setattr(TimerLog, "unit_pieces", counted)
    failover.lead(a)
    await wait_until(lambda: served(a), "everything is served")
    turns.cancel()
    assert len(opened_in) >= 120, "looked at for damage, then for the slots"
    assert max(Counter(opened_in).values()) <= 8
    await failover.follow(b, a)
    await send(failover, a, "end", "TIMER_DELAY_MS\x01300\x02")
    await wait_until(lambda: "end" in keys(a, "t"), "delivered", timeout_s=60)
    assert sorted(keys(a, "t")) == sorted(["end", *(f"t{number}" for number in range(60))])


async def test_timers_come_once_when_the_log_was_cut(failover: Failover) -> None:
    await failover.begin()
    a, b = failover.a, failover.b
    await send(failover, a, "kept", "TIMER_DELAY_MS\x014000\x02")
    await same(a, b)
    failover.lead(b)
    await send(failover, a, "lost", "TIMER_DELAY_MS\x01300\x02")
    await send(failover, b, "at b", "TIMER_DELAY_MS\x01500\x02")
    await wait_until(lambda: "lost" in keys(a, "t"), "A delivers yet", timeout_s=60)
    await failover.follow(a, b)
    await wait_until(lambda: "at b" in keys(b, "t"), "delivered", timeout_s=60)
    await failover.switch(a)
    await wait_until(lambda: "kept" in keys(a, "t"), "delivered", timeout_s=60)
    await send(failover, a, "end", "TIMER_DELAY_MS\x01300\x02")
    await wait_until(lambda: "end" in keys(a, "t"), "delivered", timeout_s=60)
    assert sorted(keys(a, "t")) == ["at b", "end", "kept"]


def end_request(half: RemotingCommand, key: str, decision: int) -> RemotingCommand:
    assert half.ext is not None
    return RemotingCommand(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "payers", "tranStateTableOffset": half.ext["queueOffset"],
            "commitLogOffset": str(int(half.ext["msgId"][-16:], 16)), "commitOrRollback": str(decision),
            "fromTransactionCheck": "false", "msgId": key, "transactionId": key,
        },
    )  # fmt: skip


def open_transactions(broker: Broker) -> set[str]:
    found = next(each for each in broker.features if isinstance(each, Transactions))
    return {key[1] for key in found.transaction_store.table.by_key}


async def test_transactions_are_open_where_the_log_leaves_them_open(failover: Failover) -> None:
    await failover.begin()
    a, b = failover.a, failover.b
    text = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02"
    halves = {
        key: await send(failover, a, key, text, **HALF_SEND) for key in ("at a", "at b", "back at a", "open")
    }
    assert (await failover.ask(a, end_request(halves["at a"], "at a", 8))).code == 0
    await failover.switch(b)
    assert open_transactions(a) == set(), "a slave decides nothing"
    assert open_transactions(b) == {"at b", "back at a", "open"}
    assert (await failover.ask(b, end_request(halves["at b"], "at b", 8))).code == 0
    await failover.switch(a)
    assert open_transactions(a) == {"back at a", "open"}
    assert (await failover.ask(a, end_request(halves["back at a"], "back at a", 12))).code == 0
    assert open_transactions(a) == {"open"}
    assert sorted(keys(a, "t")) == ["at a", "at b"]


@pytest.mark.parametrize("with_open", [True, False])
async def test_a_promotion_searches_the_end_of_the_log_for_commits(
    failover: Failover, monkeypatch: pytest.MonkeyPatch, with_open: bool
) -> None:
    """Not from the oldest open transaction on, which may be as old as the log."""
    found: list[int] = []
    use = Transactions._use

    def noted(feature: Transactions, recovered: Recovered) -> None:
        found.append(recovered.scanned_bytes)
        use(feature, recovered)

    await failover.begin()
    a, b = failover.a, failover.b
    text = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02"
    if with_open:
        await send(failover, a, "open", text, **HALF_SEND)
    await failover.pair.send(a, 200, size=2_000)
    end = a.store.log.end
    await same(a, b)
    settled = b._serving.parts.decisions
    await wait_until(lambda: settled.offset >= end, "copied", timeout_s=60)
    # A commit whose op record the slave does not have is found behind that.
    half = await send(failover, a, "late", text, **HALF_SEND)
    monkeypatch.setattr(TransactionStore, "write_ops", lambda store: None)
    assert (await failover.ask(a, end_request(half, "late", 8))).code == 0
    await same(a, b)
    monkeypatch.setattr(Transactions, "_use", noted)
    await failover.switch(b)
    assert end > 400_000
    assert max(found) < 20_000
    assert open_transactions(b) == ({"open"} if with_open else set())


async def test_a_cut_drops_what_was_told_of_decisions(failover: Failover) -> None:
    await failover.begin()
    settled = failover.b._serving.parts.decisions
    await wait_until(lambda: settled.offset > 0, "copied", timeout_s=60)
    failover.b.replication._stop_following()
    await failover.b.store.cut_to(0)
    await failover.b.replication.after_cut.finish()
    assert settled.offset == 0


async def test_a_transaction_is_open_again_when_its_decision_was_cut_off(failover: Failover) -> None:
    """A noted as decided what its own end of the log decided, and leads again before it has B's offsets."""
    await failover.begin(transaction_metric_flush_interval=50)
    a, b = failover.a, failover.b
    text = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02"
    half = await send(failover, a, "open", text, **HALF_SEND)
    await same(b, a)
    failover.lead(b)  # and A still believes that it is master
    assert (await failover.ask(a, end_request(half, "open", 12))).code == 0
    group, topic = "CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC"
    await wait_until(lambda: a.offsets.query(group, topic, 0) == 1, "A notes the decision", timeout_s=60)
    assert open_transactions(b) == {"open"}
    await failover.pair.send(b, 1)
    await failover.follow(a, b)
    await failover.switch(a)
    assert open_transactions(a) == {"open"}


# --- POP


@pytest.mark.parametrize("buffer", [False, True])
async def test_pops_in_hand_stay_in_hand_over_two_failovers(failover: Failover, buffer: bool) -> None:
    await failover.begin(enable_pop_buffer_merge=buffer)
    a, b, client = failover.a, failover.b, failover.pair.client
    for key in ("one", "two"):
        await send(failover, a, key)
    taken = {each.body: each for each in await pop(client, a, "t", queue=0, invisible_ms=120_000)}
    assert set(taken) == {b"one", b"two"}
    await copied(failover, a)
    await failover.switch(b)
    feature = next(each for each in a.features if isinstance(each, Pop))
    assert feature.engine.in_flight.message_count == 0, "a slave has nothing in hand"
    again = {each.body: each for each in await pop(client, b, "t", queue=0, invisible_ms=120_000)}
    if buffer:
        assert set(again) == {b"one", b"two"}, "what was in A's memory alone comes again"
        taken = again
    else:
        assert again == {}
    assert await ack(client, b, taken[b"one"]) == 0
    await copied(failover, b)
    await failover.switch(a)
    assert await pop(client, a, "t", queue=0) == [] or buffer
    if not buffer:
        assert await ack(client, a, taken[b"two"]) == 0
        assert feature.engine.in_flight.message_count == 0


async def test_a_reset_stays_when_a_master_is_a_slave_for_a_moment(failover: Failover) -> None:
    """It leads again before it has copied any offsets: its check points from before the reset are stale."""
    await failover.begin()
    a, client = failover.a, failover.pair.client
    for key in ("one", "two"):
        await send(failover, a, key)
    for each in await pop(client, a, "t", queue=0, count=8, invisible_ms=120_000):
        assert await ack(client, a, each) == 0
    (group,) = a.offsets.groups_of("t")
    assert a.offsets.query(group, "t", 0) == 2
    a.offsets.commit(group, "t", 0, 0)  # an operator has them consumed again
    failover.epoch += 1
    a.replication.become_slave("", failover.epoch)
    failover.lead(a)
    await wait_until(lambda: served(a), "everything is served", timeout_s=60)
    assert a.offsets.query(group, "t", 0) == 0


async def test_ordered_pops_begin_again_at_the_committed_offset(failover: Failover) -> None:
    await failover.begin()
    a, b, client = failover.a, failover.b, failover.pair.client
    for key in ("one", "two", "three"):
        await send(failover, a, key)

    async def ordered(broker: Broker) -> list[Popped]:
        return await pop(client, broker, "t", queue=0, count=1, order=True, invisible_ms=120_000)

    (first,) = await ordered(a)
    assert await ack(client, a, first) == 0
    (second,) = await ordered(a)
    assert second.body == b"two"
    assert await ordered(a) == [], "the queue is blocked"
    await copied(failover, a)
    await failover.switch(b)
    (again,) = await ordered(b)
    assert again.body == b"two", "in order, and once more: who has it is known at A alone"
    assert await ack(client, b, again) == 0
    await copied(failover, b)
    await failover.switch(a)
    (third,) = await ordered(a)
    assert third.body == b"three", "A's block of its first mastership expired"


# --- a feature that cannot start


KINDS = {
    "transactions": send_request(
        "t", b"x", properties="UNIQ_KEY\x01h\x02TRAN_MSG\x01true\x02PGROUP\x01payers\x02"
    ),
    "delay levels": send_request("t", b"x", properties="UNIQ_KEY\x01d\x02DELAY\x013\x02"),
    "timer": send_request("t", b"x", properties="UNIQ_KEY\x01t\x02TIMER_DELAY_SEC\x0160\x02"),
    "deduplication": send_request("t", b"x", properties="UNIQ_KEY\x01k\x02DEDUP_KEY\x01k\x02"),
}


@pytest.mark.parametrize("kind", [*KINDS, "pop"])
async def test_a_master_refuses_the_kind_that_it_cannot_serve(
    failover: Failover, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await failover.begin(**WINDOW)
    b = failover.b
    request = KINDS[kind] if kind in KINDS else pop_request(b, "first")
    if kind == "transactions":
        assert request.ext is not None
        request.ext |= HALF_SEND
    break_feature(monkeypatch, b, kind)
    failover.lead(b)
    unserved = b._serving.parts.unserved
    await wait_until(lambda: unserved.reasons.get(kind) == "its file is damaged", kind)
    await wait_until(lambda: set(unserved.reasons) <= {kind, "pop", "lite topics"}, "the others are served")
    assert (await failover.ask(b, send_request("t", b"an ordinary one"))).code == 0
    end = b.store.log.end
    reply = await failover.ask(b, request)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE, reply
    assert "its file is damaged" in (reply.remark or "")
    assert b.store.log.end == end, "nothing was stored"
    assert (await figures(failover.pair, b))["unservedKinds"].startswith(f"{kind}: its file is damaged")
    monkeypatch.undo()
    await wait_until(lambda: served(b), "it tries again", timeout_s=60)
    reply = await failover.ask(b, request)
    assert reply.code in (0, ResponseCode.PULL_NOT_FOUND, 210), reply


async def test_a_damaged_settled_file_costs_a_search_and_nothing_else(
    failover: Failover, tmp_path: Path
) -> None:
    await failover.begin()
    b = failover.b
    path = tmp_path / "b" / "config" / "transactionSettled.json"
    path.write_text("{")
    failover.lead(b)
    await wait_until(lambda: served(b), "everything is served", timeout_s=60)
    assert b._serving.parts.unserved.failed_count == 0


async def test_a_master_that_leads_again_right_after_a_cut_hands_out_what_was_popped(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    await failover.begin()
    a, b, client = failover.a, failover.b, failover.pair.client
    for key in ("one", "two"):
        await send(failover, a, key)
    await same(a, b)

    async def never(_: MetadataSync) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(MetadataSync, "_copy_offsets", never)  # both failovers lie between two copies
    failover.lead(b)  # while A still believes that it leads
    taken = await pop(client, a, "t", queue=0, count=8, invisible_ms=120_000)
    assert len(taken) == 2
    await send(failover, b, "three")
    await failover.follow(a, b)  # A's check points are cut off
    failover.lead(a)
    await failover.follow(b, a)
    again = await pop(client, a, "t", queue=0, count=8, invisible_ms=120_000)
    assert {each.body for each in again} >= {b"one", b"two"}


async def test_a_delayed_message_whose_delivery_was_cut_off_is_delivered(
    failover: Failover, monkeypatch: pytest.MonkeyPatch
) -> None:
    await failover.begin()
    a, b = failover.a, failover.b

    async def never(_: MetadataSync) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(MetadataSync, "_copy_offsets", never)  # both failovers lie between two copies
    await send(failover, a, "later", "DELAY\x011\x02")
    await same(a, b)
    break_feature(monkeypatch, b, "delay levels")  # B is lost before it delivers
    failover.lead(b)  # while A still believes that it leads
    await wait_until(lambda: "later" in keys(a, "t"), "A delivers", timeout_s=60)
    await send(failover, b, "other")
    a.replication.become_slave(b.identity.ha_address, failover.epoch, master_address=b.address)
    await wait_until(lambda: log_bytes(a) == log_bytes(b), "one log", timeout_s=60)
    assert "later" not in keys(a, "t")
    monkeypatch.undo()
    failover.lead(a)
    await wait_until(lambda: "later" in keys(a, "t"), "A delivers again")
    assert keys(a, "t").count("later") == 1
