"""Static topics: which mappings are taken over, and how pulls of a logical queue are translated."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.queue_mappings import QueueMappings, merged
from aerobee.broker.static_topic.mapping_cleaning import (
    given_away,
    holders_of_oldest,
    without_expired,
    without_moved_on,
)
from aerobee.broker.static_topic.pull_translation import PullTranslation
from aerobee.clock import ManualClock
from aerobee.errors import StoreError, UsageError
from aerobee.message import MessageQueue
from aerobee.remoting.body.queue_mapping import EPOCH_AHEAD_MS_MAX, QueueMapping, QueueMappingItem
from aerobee.remoting.body.topic_stats import TopicOffset, TopicStatsTable
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.simulation.simulated_disk import SimulatedDisk

A = QueueMappingItem(0, 0, "a", 0)
B = QueueMappingItem(1, 3, "b", 10_000)
C = QueueMappingItem(2, 1, "a", 30_000)
B0 = replace(B, queue_id=0)
KNOWN = QueueMapping("t", 1, "a", 1_000, hosted={0: (A,)})


def items_of(*items: QueueMappingItem, epoch: int = 2_000) -> QueueMapping:
    return QueueMapping("t", 1, "a", epoch, hosted={0: items})


def test_a_remapping_is_taken_over_in_two_steps() -> None:
    undecided = merged(KNOWN, items_of(A, replace(B, logic_offset=-1)), force=False)
    assert undecided.hosted[0][-1].logic_offset == -1
    decided = merged(undecided, items_of(A, B), force=False)
    assert decided.hosted[0] == (A, B)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (items_of(A, epoch=999), "older than"),
        (items_of(A, B, epoch=1_000), "another leader"),
        (replace(items_of(A), scope="__mine__"), "scope"),
        (items_of(replace(A, queue_id=5), B), "another than the one in force"),
        (items_of(replace(A, logic_offset=7), B), "another than the one in force"),
        (items_of(replace(A, logic_offset=-1), B), "no logicOffset"),
        (items_of(A, replace(B, gen=0)), "gen"),
        (items_of(A, replace(B, logic_offset=0)), "logicOffset of its items must grow"),
        (items_of(replace(A, end_offset=20_000), B), "logicOffset of its items must grow"),
        (items_of(A, replace(B, start_offset=5, end_offset=2)), "before it begins"),
        (items_of(A, replace(B, queue_id=-1)), "below 0"),
        (QueueMapping("t", 1, "a", 1_000), "leaves out"),
    ],
)
def test_a_mapping_that_contradicts_is_refused(wanted: QueueMapping, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        merged(KNOWN, wanted, force=False)


def test_force_takes_what_comes_and_keeps_queues_that_it_leaves_out() -> None:
    other = QueueMapping("t", 2, "a", 5, hosted={1: (A,)})
    assert merged(KNOWN, other, force=True).hosted == {0: (A,), 1: (A,)}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (items_of(A, epoch=2**63 - 1), "epoch 9223372036854775807"),
        (items_of(A, epoch=-1), "epoch -1"),
        (items_of(replace(A, gen=2**31 - 1)), "gen is at most"),
        (items_of(replace(A, start_offset=2**62)), "offsets are at most"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
async def test_numbers_that_leave_no_room_for_the_next_are_refused(
    wanted: QueueMapping, said: str, force: bool
) -> None:
    clock = ManualClock()
    mappings = QueueMappings(file=None, clock=clock)
    with pytest.raises(UsageError, match=said):
        await mappings.put(wanted, force=force)
    assert mappings.by_topic == {}
    last = clock.now_ms() + EPOCH_AHEAD_MS_MAX
    assert (await mappings.put(items_of(A, epoch=last), force=force)).epoch == last
    clock.advance(1.0)  # what tools add to the last epoch is possible a second later
    assert (await mappings.put(items_of(A, epoch=last + 1_000))).epoch == last + 1_000


def test_the_file_is_there_before_the_mapping_counts_and_is_read_again() -> None:
    disk, clock = SimulatedDisk(random.Random(1)), ManualClock()

    def table() -> QueueMappings:
        return QueueMappings(file=ConfigFile("/config/topicQueueMapping.json", disk=disk), clock=clock)

    async def run() -> None:
        first = table()
        assert await first.put(KNOWN) == KNOWN
        again = table()
        again.load()
        assert (again.by_topic, again.data_version.counter) == ({"t": KNOWN}, 1)
        assert await again.put(KNOWN) == KNOWN  # the same changes nothing
        assert again.data_version.counter == 1
        assert again.infos(["t", "other"]) == {"t": KNOWN.to_info()}
        assert await again.delete("t")
        assert not await again.delete("t")
        last = table()
        last.load()
        assert last.by_topic == {}

    asyncio.run(run())
    damaged = b'{"topicQueueMappingInfoMap":{"t":{"totalQueues":-4}}}'
    disk.replace_file("/config/topicQueueMapping.json", damaged)
    with pytest.raises(StoreError, match="queue mappings"):
        table().load()


# --- pulls


def pull(
    items: tuple[QueueMappingItem, ...], offset: int, **fields: str
) -> tuple[PullTranslation, RemotingCommand]:
    translation = PullTranslation.of(items, offset)
    assert translation is not None
    request = RemotingCommand(
        RequestCode.PULL_MESSAGE, {"queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32", **fields}
    )
    return translation, request


def answer(code: ResponseCode, following: int, low: int, high: int) -> RemotingCommand:
    ext = {"nextBeginOffset": str(following), "minOffset": str(low), "maxOffset": str(high)}
    return RemotingCommand(int(code), ext)


def offsets(reply: RemotingCommand) -> tuple[int, int, int]:
    return reply.code, reply.integer("nextBeginOffset"), reply.integer("offsetDelta")


def test_a_pull_goes_to_the_part_that_has_its_offset() -> None:
    translation, request = pull((A, B, C), 10_007, sysFlag="7", commitOffset="10003")
    assert (translation.item, translation.offset) == (B, 7)
    remote = translation.fields(request, is_local=False)
    assert remote["queueId"] == "3"
    assert remote["queueOffset"] == "7"
    assert (remote["lo"], remote["bname"]) == ("false", "b")
    assert remote["sysFlag"] == "4", "it is neither held nor does it commit there"
    local = translation.fields(request, is_local=True)
    assert (local["sysFlag"], local["commitOffset"]) == ("7", "3")
    elsewhere, request = pull((A, B, C), 10_007, sysFlag="3", commitOffset="12")
    assert elsewhere.fields(request, is_local=True)["sysFlag"] == "2", (
        "what belongs to another part is not committed"
    )


def test_found_messages_get_logical_offsets() -> None:
    translation, _ = pull((A, B), 10_007)
    reply = translation.reply(answer(ResponseCode.SUCCESS, 12, 0, 20))
    assert offsets(reply) == (0, 10_012, 10_000)
    assert (reply.text("minOffset"), reply.text("maxOffset")) == ("10000", "10020")


def test_at_the_end_of_a_part_the_next_one_follows() -> None:
    for items, offset, following in (((A, B, C), 55, 10_000), ((A, B, C), 10_055, 30_000)):
        translation, _ = pull(items, offset)
        reply = translation.reply(answer(ResponseCode.PULL_NOT_FOUND, 55, 0, 55))
        assert offsets(reply)[:2] == (ResponseCode.PULL_RETRY_IMMEDIATELY, following)
    # In the gap between two parts, where no message ever was.
    translation, _ = pull((A, B), 9_000)
    reply = translation.reply(answer(ResponseCode.PULL_OFFSET_MOVED, 55, 0, 55))
    assert offsets(reply)[:2] == (ResponseCode.PULL_RETRY_IMMEDIATELY, 10_000)


def test_no_client_enters_a_part_without_decided_begin() -> None:
    translation, _ = pull((A, replace(B, logic_offset=-1)), 55)
    reply = translation.reply(answer(ResponseCode.PULL_NOT_FOUND, 55, 0, 55))
    assert offsets(reply)[:2] == (ResponseCode.PULL_NOT_FOUND, 55)


def test_the_end_of_the_last_part_is_waited_at_and_beyond_it_corrected() -> None:
    translation, _ = pull((A, B), 10_020)
    assert offsets(translation.reply(answer(ResponseCode.PULL_NOT_FOUND, 20, 0, 20)))[:2] == (
        ResponseCode.PULL_NOT_FOUND,
        10_020,
    )
    for items, offset, end in (((A, B), 10_099, 10_020), ((A,), 99, 20)):
        translation, _ = pull(items, offset)
        reply = translation.reply(answer(ResponseCode.PULL_OFFSET_MOVED, 20, 0, 20))
        assert offsets(reply)[:2] == (ResponseCode.PULL_OFFSET_MOVED, end)


def test_messages_that_retention_took_are_passed_over() -> None:
    translation, _ = pull((A, B, C), 3)
    assert offsets(translation.reply(answer(ResponseCode.PULL_OFFSET_MOVED, 10, 10, 55)))[:2] == (
        ResponseCode.PULL_OFFSET_MOVED,
        10,
    )
    translation, _ = pull((A, B, C), 10_003)
    assert offsets(translation.reply(answer(ResponseCode.PULL_OFFSET_MOVED, 10, 10, 55)))[:2] == (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        10_010,
    )


def test_a_part_with_an_end_is_not_read_beyond_it() -> None:
    ended = replace(A, end_offset=50)
    translation, request = pull((ended, B), 45)
    assert translation.fields(request, is_local=True)["maxMsgNums"] == "5"
    assert offsets(translation.reply(answer(ResponseCode.SUCCESS, 60, 0, 60)))[1] == 50


def test_a_refusal_passes_unchanged() -> None:
    translation, _ = pull((A, B), 5)
    refusal = RemotingCommand(int(ResponseCode.TOPIC_NOT_EXIST), {}, remark="no")
    assert translation.reply(refusal) == RemotingCommand(int(ResponseCode.TOPIC_NOT_EXIST), {}, remark="no")


# --- cleaning


def ends(**offsets: tuple[int, int]) -> dict[str, TopicStatsTable]:
    """Broker -> the begin and end of its queue 0."""
    return {
        broker: TopicStatsTable({MessageQueue("t", broker, 0): TopicOffset(*each)})
        for broker, each in offsets.items()
    }


@pytest.mark.parametrize(
    ("stats", "left"),
    [
        (ends(b=(0, 0)), (C,)),
        (ends(b=(70, 70)), (C,)),
        (ends(b=(69, 70)), (B0, C)),
        (ends(b=(0, -1)), (B0, C)),  # its broker could not say
        (ends(c=(0, 0)), (B0, C)),
        ({}, (B0, C)),
        ({"b": TopicStatsTable()}, (B0, C)),
    ],
)
def test_the_oldest_part_goes_when_it_holds_no_message(
    stats: dict[str, TopicStatsTable], left: tuple[QueueMappingItem, ...]
) -> None:
    mapping = items_of(B0, C)
    assert holders_of_oldest(mapping) == {"b"}
    assert without_expired(mapping, stats) == {0: left}


def test_the_last_part_never_goes_and_neither_do_those_of_a_queue_that_another_leads() -> None:
    assert without_expired(items_of(C), ends(a=(0, 0))) == {0: (C,)}
    away = items_of(replace(A, queue_id=0), B)
    assert holders_of_oldest(away) == set()
    assert without_expired(away, ends(a=(0, 0))) == {0: away.hosted[0]}


ELSEWHERE = replace(C, broker_name="c")
OF_C = QueueMapping("t", 1, "c", 2_000, hosted={0: (A, B, ELSEWHERE)})


@pytest.mark.parametrize(
    ("leader", "theirs", "is_left"),
    [
        ("c", {"c": OF_C}, False),
        ("b", {"b": OF_C}, True),  # who the list says leads, leads
        ("c", {}, True),
        ("c", {"c": replace(OF_C, epoch=3_000)}, True),
        ("c", {"c": replace(OF_C, total_queues=2)}, True),
        ("c", {"c": OF_C.with_hosted({})}, True),
        ("c", {"c": OF_C.with_hosted({0: (A, B)})}, True),  # it does not say so itself
        ("__syslo__none__", {}, True),
    ],
)
def test_a_list_goes_when_the_queue_has_another_leader_than_it_says(
    leader: str, theirs: dict[str, QueueMapping], is_left: bool
) -> None:
    mapping = items_of(A, B)
    assert given_away(mapping) == {0: "b"}
    assert without_moved_on(mapping, {0: leader}, theirs) == ({0: (A, B)} if is_left else {})


async def test_a_mapping_that_changed_meanwhile_is_not_replaced() -> None:
    table = QueueMappings(file=None, clock=ManualClock())
    known = await table.put(KNOWN)
    newer = await table.put(items_of(A, B))
    assert not await table.replace(known, {})
    assert table.get("t") is newer
    assert await table.replace(newer, {0: (B,)})
    assert table.by_topic["t"].hosted == {0: (B,)}
