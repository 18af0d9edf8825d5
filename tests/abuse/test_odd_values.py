"""Values that are well formed, and that something behind the edge cannot hold: what the semantic fuzzer found."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from aerobee.message import TRIES_MAX, decode_records
from aerobee.remoting.command import RemotingCommand
from aerobee.testing import LocalCluster
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at
from tests.fakes import FakePeer
from tests.waiting import wait_until

MALFORMED, MESSAGE_ILLEGAL = 1, 13
POP, ACK, BATCH_ACK, SEND_BACK = 200_050, 200_051, 200_151, 36


async def test_a_message_with_the_greatest_number_of_tries_does_not_end_redelivery_for_all() -> None:
    async with LocalCluster() as cluster, UntrustedPeer(cluster.broker_addresses[0]) as peer:
        store = cluster.broker().store
        for tries in (TRIES_MAX, 0):
            assert (await peer.send_message("t", j=str(tries))).code == 0
        pop = {"consumerGroup": "g", "topic": "t", "queueId": "0", "maxMsgNums": "2", "invisibleTime": "10000",
               "pollTime": "0", "bornTime": str(cluster.clock.now_ms()), "initMode": "0", "exp": "*", "expType": "TAG"}  # fmt: skip
        assert (await peer.call(POP, pop)).code == 0
        async with asyncio.timeout(60):
            while store.max_offset("%RETRY%g_t", 0) < 2:
                await cluster.advance_clock(5)
                await asyncio.sleep(0.01)
        again = store.get_messages("%RETRY%g_t", 0, 0, count_max=2)
        assert [record.reconsume_times for record in decode_records(again.body)] == [TRIES_MAX, 1]


async def test_such_a_message_can_be_sent_back(tmp_path: Path) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        sent = await peer.send_message("t", j=str(TRIES_MAX))
        assert sent.ext is not None
        pull = {"consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
                "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}  # fmt: skip
        assert (await peer.call(11, pull)).code == 0  # makes the group
        back = {"group": "g", "originMsgId": "", "originTopic": "t", "offset": str(int(sent.ext["msgId"][-16:], 16)),
                "delayLevel": "0"}  # fmt: skip
        assert (await peer.call(SEND_BACK, back)).code == 0
        dead = broker.store.get_messages("%DLQ%g", 0, 0, count_max=1)
        assert [record.reconsume_times for record in decode_records(dead.body)] == [TRIES_MAX]


async def test_a_groups_policy_that_is_nested_too_deep_is_refused_and_others_can_be_changed(
    tmp_path: Path,
) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        deep: object = "x"
        for _ in range(500):
            deep = {"x": deep}
        for field, value in (("groupRetryPolicy", deep), ("subscriptionDataSet", [deep])):
            body = json.dumps({"groupName": "deep", field: value}).encode()
            assert (await peer.call(200, {}, body)).code != 0
        assert (await peer.call(200, {}, b'{"groupName":"plain"}')).code == 0
        assert "plain" in broker.groups.groups
        assert "deep" not in broker.groups.groups


async def test_an_acknowledgement_for_a_time_that_no_pop_gave_is_refused_and_nothing_is_stored(
    tmp_path: Path,
) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        assert (await peer.send_message("t")).code == 0
        now_ms, end = broker.clock.now_ms(), broker.store.log.end
        for pop_time, invisible in ((100, 2**62), (2**63 - 1, -1), (-5, 10), (0, -1), (now_ms, 10**10)):
            entry = {
                "c": "g",
                "t": "t",
                "r": "0",
                "b": "AQ==",
                "so": 0,
                "rq": 0,
                "pt": pop_time,
                "it": invisible,
                "q": 0,
            }
            body = json.dumps({"brokerName": "broker-a", "acks": [entry]}).encode()
            assert (await peer.call(BATCH_ACK, {}, body)).code == MESSAGE_ILLEGAL
            ack = {"consumerGroup": "g", "topic": "t", "queueId": "0", "offset": "0",
                   "extraInfo": f"0 {pop_time} {invisible} 0 0 broker-a 0 0"}  # fmt: skip
            assert (await peer.call(ACK, ack)).code in (MALFORMED, MESSAGE_ILLEGAL)
        assert broker.store.log.end == end


@pytest.mark.parametrize("code", [215, 207])
async def test_a_deletion_continues_when_its_peer_disconnects(tmp_path: Path, code: int) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        assert (await peer.send_message("t")).code == 0
        pull = {"consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "5",
                "commitOffset": "1", "suspendTimeoutMillis": "0", "subscription": "*"}  # fmt: skip
        assert (await peer.call(11, pull)).code == 0
        assert broker.offsets.query("g", "t", 0) == 1
        connection = FakePeer()
        request = RemotingCommand(code, {"topic": "t", "groupName": "g", "cleanOffset": "true"})
        asked: Any = broker.handlers[code](connection, request)  # type: ignore[arg-type]
        task = asyncio.ensure_future(asked)
        await asyncio.sleep(0)
        task.cancel()  # as Connection does when it is lost
        await wait_until(lambda: broker.offsets.query("g", "t", 0) is None, "its offsets are gone, too")
        if code == 215:
            await wait_until(lambda: ("t", 0) not in broker.store.queues, "and its queues")
