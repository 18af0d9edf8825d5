"""Batches (320): several messages for one queue, stored back to back in one file. A core; batch_layout.py cuts the body."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from aerobee.broker.fastpath.batch_layout import Layout, cut_batch
from aerobee.broker.fastpath.exclusions import (
    BATCH_MESSAGE_PROPERTIES,
    BATCH_PROPERTIES,
    ELIGIBLE_SYS_FLAG,
)
from aerobee.broker.fastpath.frame_handlers import Answer, Serve
from aerobee.broker.fastpath.request import (
    NO_ROOM,
    UNREADABLE,
    FallBackToHandler,
    Request,
    number,
    read_pairs,
)
from aerobee.broker.fastpath.send import SHORT_NAMES
from aerobee.broker.fastpath.shared import Shared
from aerobee.broker.fastpath.topic import SMALL_BYTES
from aerobee.remoting.codes import RequestCode
from aerobee.store.log.stored_message import record_sizes

_SIZE_BYTES = 2  # of a properties text's length
_EXCLUDED = frozenset(BATCH_PROPERTIES)
(_EXCLUDED_INSIDE,) = (name.encode() for name in BATCH_MESSAGE_PROPERTIES)


class Batches:
    """The frame handler of batches."""

    is_send = True

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    @property
    def serves(self) -> Mapping[int, Serve]:
        """As FrameHandler.serves."""
        return dict.fromkeys((RequestCode.SEND_BATCH_MESSAGE.value,), self.serve)

    def serve(self, request: Request) -> Answer:
        """As Serve."""
        shared = self._shared
        try:
            topic_name, queue_text, sys_flag, born_timestamp, _, text, tries, _ = SHORT_NAMES(request.ext)
            topic, queue = shared.find(topic_name, queue_text)
            outer = read_pairs(text)
            waits = shared.waits(outer)
            sys_flag, born_timestamp, tries = number(sys_flag), number(born_timestamp), number(tries)
            unique_key = outer["UNIQ_KEY"]
            body = request.body
            if (
                not _EXCLUDED.isdisjoint(outer)
                or sys_flag & ~ELIGIBLE_SYS_FLAG
                or len(body) > shared.store.config.max_message_size
                or _EXCLUDED_INSIDE in body  # the handlers read whether it is a property
                or not (unique_key.isalnum() and unique_key.isascii())
            ):
                raise ValueError
            cut = cut_batch(bytes(body), topic)
            count = cut.message_count
            total = cut.byte_count + count * (shared.origin.head.size + len(topic.field) + _SIZE_BYTES)
            target = queue.queue
            if target.max_offset + count > target.room:
                target.make_room(count)
                if target.max_offset + count > target.room:
                    raise ValueError  # over the end of the queue's file
            hosts = shared.origin.pack_hosts(sys_flag, born_timestamp, tries)
            is_awaited = shared.is_awaited(queue)
        except UNREADABLE as error:
            raise FallBackToHandler from error
        first = target.max_offset
        try:
            offsets, end = shared.appender.append_run(
                target,
                count,
                total,
                shared.now_ms,
                partial(cut.lay_out, Layout(queue.queue_id, hosts, topic.field)),
                keys=cut.index_entries,
                key_count=len(cut.hashes),
                is_awaited=is_awaited,
            )
        except NO_ROOM as error:
            raise FallBackToHandler from error
        shared.count(topic, count, end - offsets[0])
        if end - offsets[0] > SMALL_BYTES:
            for size in record_sizes(offsets, end):
                if size > SMALL_BYTES:
                    topic.note_size(size)
        shared.count_request(topic)
        return queue, first, shared.message_ids(offsets), unique_key, waits, ""

    def forget_topics(self) -> None:
        """Do nothing: this handler caches no topics."""

    def forget_authorizations(self) -> None:
        """Do nothing: this handler caches no authorizations."""
