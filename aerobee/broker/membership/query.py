"""QUERY_MESSAGE 12 and VIEW_MESSAGE_BY_ID 33: messages by key and by offset in the log.

Source: QueryMessageProcessor (RocketMQ). The index holds hashes of `topic#key`, so an answer may contain messages of
other keys, though of no other topic; the client compares the keys itself. A query by unique key uses the broker's limit
instead of the client's.
"""

from __future__ import annotations

from aerobee.broker.admission.record_access import RecordAccess
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.signature import UNIQUE_KEY_QUERY
from aerobee.store.message_store import MessageStore

UNIQUE_KEY, KEY, TAG = "U", "K", "T"  # indexType
NOT_FOUND_REMARK = "can not find message, maybe time range not correct"


class QueryCalls:
    """Answers 12 and 33."""

    def __init__(self, *, store: MessageStore, records: RecordAccess) -> None:
        self._store = store
        self._records = records

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    def query(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """12: records with a key, stored in the requested time range; QUERY_NOT_FOUND without any."""
        config = self._store.config
        count = min(max(1, request.integer("maxNum")), config.max_msgs_num_batch)
        if request.boolean(UNIQUE_KEY_QUERY, False):
            count = config.default_query_max_num
        result = self._store.query(
            request.text("topic"),
            request.text("key"),
            count_max=count,
            begin_ms=request.integer("beginTimestamp"),
            end_ms=request.integer("endTimestamp"),
            index_type=TAG if request.text("indexType", "") == TAG else "",
        )
        ext = {
            "indexLastUpdateTimestamp": str(result.index_last_timestamp),
            "indexLastUpdatePhyoffset": str(result.index_last_physical_offset),
        }
        if not result.body:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark=NOT_FOUND_REMARK, ext=ext)
        return request.reply(ext=ext, body=result.body)

    def view(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """33: the record at a physical offset, if its own topic may be read."""
        offset = request.integer("offset")
        # With access control only offsets of queue entries are records. Repairs of a store may read any
        # offset.
        sees_all = self._records.sees_all(peer)
        record = self._store.read_record(offset) if sees_all else self._store.named_record(offset)
        if record is None or not self._records.may_view(peer, request, record):
            return request.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}"
            )
        return request.reply(body=record)
