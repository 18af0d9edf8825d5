"""Pulls of a logical queue: from its offsets to those of one physical queue, and the outcome back. Core.

Source: rewriteRequestForStaticTopic and rewriteResponseForStaticTopic of PullMessageProcessor (RocketMQ). A pull is served
by the item that has its offset. At the end of an item that is not the last the consumer is sent to the next one
(PULL_RETRY_IMMEDIATELY); between two items lie offsets that no message ever gets.

Differences: the offset that a pull commits on the way is translated, too; an offset behind the end of the last item is
corrected as in any other topic, where RocketMQ answers PULL_NOT_FOUND for ever when the queue was never remapped.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.remoting.body.queue_mapping import Items, QueueMappingItem, find_item, next_item
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import PULL_COMMIT_OFFSET, PULL_SUSPEND

# Replies that carry offsets.
_WITH_OFFSETS = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


@dataclass(frozen=True, slots=True)
class PullTranslation:
    """One pull: the mapping item that serves it, and the physical queue offset to pull there."""

    items: Items
    item: QueueMappingItem
    offset: int

    @classmethod
    def of(cls, items: Items, logic_offset: int) -> PullTranslation | None:
        """None when no part of the queue can be read yet."""
        item = find_item(items, logic_offset)
        return None if item is None else cls(items, item, max(item.physical(logic_offset), -1))

    def fields(self, request: RemotingCommand, *, is_local: bool) -> dict[str, str]:
        """The request's fields for the physical queue. A pull forwarded to another broker neither stays pending nor
        commits an offset.
        """
        item = self.item
        count = request.integer("maxMsgNums")
        if item.has_end:
            count = min(count, max(1, item.end_offset - self.offset))
        flags = request.integer("sysFlag", 0)
        fields = {
            **(request.ext or {}),
            "queueId": str(item.queue_id),
            "queueOffset": str(self.offset),
            "maxMsgNums": str(count),
        }
        if not is_local:
            flags &= ~(PULL_SUSPEND | PULL_COMMIT_OFFSET)
            fields |= {"lo": "false", "bname": item.broker_name}
        elif flags & PULL_COMMIT_OFFSET:
            commit = request.integer("commitOffset")
            if find_item(self.items, commit) is item and commit >= item.logic_offset:
                fields["commitOffset"] = str(item.physical(commit))
            else:
                flags &= (
                    ~PULL_COMMIT_OFFSET
                )  # it belongs to another part; clients commit by UPDATE_CONSUMER_OFFSET as well
        fields["sysFlag"] = str(flags)
        return fields

    def reply(self, reply: RemotingCommand) -> RemotingCommand:
        """The reply with logical offsets, changed in place: code, the four offsets, `offsetDelta`.

        `offsetDelta` is what the client adds to the queue offset of each record of the body.
        """
        if reply.code not in _WITH_OFFSETS or reply.ext is None or "nextBeginOffset" not in reply.ext:
            return reply
        item, items, ext = self.item, self.items, reply.ext
        low, high = reply.integer("minOffset"), reply.integer("maxOffset")
        following, next_offset = next_item(items, item), reply.integer("nextBeginOffset")
        if reply.code != ResponseCode.SUCCESS:
            is_last, is_first = item is items[-1], item is find_item(items, 0)
            if not is_last and self.offset >= high:
                if following is not None:
                    reply.code, reply.remark = int(ResponseCode.PULL_RETRY_IMMEDIATELY), "NEXT_QUEUE"
                    item, next_offset, low, high = (
                        following,
                        following.start_offset,
                        following.start_offset,
                        0,
                    )
                else:
                    # The next part takes sends already, and where it begins is being decided.
                    reply.code, next_offset = int(ResponseCode.PULL_NOT_FOUND), self.offset
            elif not is_first and self.offset < low:
                reply.code, next_offset = int(ResponseCode.PULL_RETRY_IMMEDIATELY), low
            elif is_first and self.offset < low:
                reply.code, next_offset = int(ResponseCode.PULL_OFFSET_MOVED), low
        if item.has_end:
            next_offset = min(next_offset, item.end_offset)
        ext["nextBeginOffset"] = str(item.logical(next_offset))
        ext["minOffset"] = str(item.logical(max(item.start_offset, low)))
        ext["maxOffset"] = str(max(item.logical(high), items[-1].logic_end if items[-1].is_decided else 0))
        ext["offsetDelta"] = str(item.offset_delta)
        return reply
