"""Requests of slaves to their master other than log replication, and of tools about replication: 43, 45, 906, 907.

21, 201, 402, 60 and 61 are answered where their tables are. Source: AdminBrokerProcessor (RocketMQ).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aerobee.broker.admin.sliced_json import dump_sliced
from aerobee.broker.consumer.consumer_offsets import REMOVED, ConsumerOffsets
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.filter.filter_table import FilterTable
from aerobee.broker.replication.ha_mode import FollowState, ReplicaState
from aerobee.broker.replication.metadata_sync import (
    BEHIND_FIELD,
    FILTERS,
    LOG_END_FIELD,
    SETTLED_FIELD,
    TABLE_FIELD,
    TOKEN_FIELD,
)
from aerobee.broker.replication.replication import ReplicationState
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import Role
from aerobee.broker.state.settled_decisions import SettledDecisions
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.clock import Clock
from aerobee.remoting import fastjson
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.store.message_store import MessageStore


class SlaveCalls:
    """Answers 43, 45, 906 and 907."""

    def __init__(
        self,
        *,
        offsets: ConsumerOffsets,
        schedule: Schedule,
        filters: FilterTable,
        store: MessageStore,
        identity: BrokerIdentity,
        state: Callable[[], ReplicationState],
        clock: Clock,
        unserved: UnservedKinds,
        decisions: SettledDecisions,
    ) -> None:
        self._decisions = decisions
        self._unserved = unserved
        self._offsets = offsets
        self._schedule = schedule
        self._filters = filters
        self._store = store
        self._identity = identity
        self._state = state
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.ha_info,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
        }

    async def all_offsets(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """43: all offsets of all groups. An Aerobee slave that already has this version gets no body; its request also
        covers the filters.

        The reply states the log's end: the slave applies the offsets when its log has reached it. It also states the offset
        before which every decision about a transaction has its op record.
        """
        if request.field(TABLE_FIELD) == FILTERS:
            return request.reply(ext={TABLE_FIELD: FILTERS}, body=fastjson.dumps(self._filters.to_dict()))
        token = self._offsets.change_token
        ext = {TOKEN_FIELD: token, **self._log_end(), **self._behind("pop")}
        if request.field(TOKEN_FIELD) == token:
            return request.reply(ext=ext)
        tree = self._offsets.to_dict()  # copies, because the table may change while the body is built
        # RocketMQ's slaves do not know this table, and their parser refuses bare keys within skipped values.
        pulled = tree["pullOffsetTable"].items()
        tree["pullOffsetTable"] = {
            name: {str(queue_id): offset for queue_id, offset in queues.items()} for name, queues in pulled
        }
        table = tree.pop("offsetTable")
        before = {key: tree.pop(key) for key in ("dataVersion", "groupTopicMap")}
        if TOKEN_FIELD in (request.ext or {}):  # an Aerobee slave
            before[REMOVED] = self._offsets.removed
        body = await dump_sliced(before, "offsetTable", table.items(), tree)
        return request.reply(ext=ext, body=body)

    def _behind(self, feature: str) -> dict[str, str]:
        """Whether the offsets are behind the log: at a new master that has not read this feature's records in its log
        yet, and at an elected broker that is not master yet."""
        leads = self._state().role in (Role.MASTER, Role.ACTING)
        is_behind = not leads or self._unserved.has(feature)
        return {BEHIND_FIELD: "true"} if is_behind else {}

    def _log_end(self) -> dict[str, str]:
        end = self._store.log.end
        return {LOG_END_FIELD: str(end), SETTLED_FIELD: str(self._decisions.told(end))}

    def delay_offsets(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """45: delivery offset of each delay level, as in delayOffset.json."""
        return request.reply(ext=self._behind("delay levels"), body=fastjson.dumps(self._schedule.to_json()))

    def ha_info(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """906: the HA port for a slave that comes online, and the flushed end of the log."""
        return request.reply(
            ext={
                "masterAddress": self._identity.address,
                "masterHaAddress": self._identity.ha_address,
                "masterFlushOffset": str(self._store.flushed.value),
            }
        )

    def ha_status(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """907: a master's slaves with their lag, or a slave's view of its master."""
        state = self._state()
        body: dict[str, Any] = {
            "haClientRuntimeInfo": self._client_info(state.following),
            "haConnectionInfo": [_connection_info(each, state.log_end) for each in state.replicas],
            "inSyncSlaveNums": sum(each.is_in_sync for each in state.replicas),
            "master": state.role is Role.MASTER,
            "masterCommitLogMaxOffset": state.log_end,
        }
        return request.reply(body=fastjson.dumps(body))

    def _client_info(self, following: FollowState | None) -> dict[str, Any]:
        info: dict[str, Any] = {
            "lastReadTimestamp": 0,
            "lastWriteTimestamp": 0,
            "masterFlushOffset": 0,
            "maxOffset": 0,
            "transferredByteInSecond": 0,
        }
        if following is None:
            return info
        back_ms = self._clock.now_ms() - int(self._clock.monotonic() * 1000)

        def wall(at_s: float) -> int:
            return back_ms + int(at_s * 1000) if at_s >= 0 else 0

        return {
            **info,
            "activated": following.is_connected,
            "lastReadTimestamp": wall(following.last_read_s),
            "lastWriteTimestamp": wall(following.last_write_s),
            "masterAddr": following.master.ha,
            "masterFlushOffset": following.master_end,
            "maxOffset": self._store.log.end,
            "transferredByteInSecond": following.bytes_per_s,
        }


def _connection_info(replica: ReplicaState, log_end: int) -> dict[str, Any]:
    return {
        "addr": replica.address,
        "diff": log_end - replica.acknowledged,
        "inSync": replica.is_in_sync,
        "slaveAckOffset": replica.acknowledged,
        "transferFromWhere": replica.sent,
        "transferredByteInSecond": replica.bytes_per_s,
    }
