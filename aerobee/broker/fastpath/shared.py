"""Shared by all frame handlers: the burst, look-up of topics and queues, storing, and replies to sends. A core."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from aerobee.broker.fastpath.permits import HOLDS
from aerobee.broker.fastpath.request import NO_ROOM, FallBackToHandler, number
from aerobee.broker.fastpath.seam import (
    Appended,
    Authorization,
    BackendSettings,
    HandedOut,
    LeveledReplies,
    PullResult,
)
from aerobee.broker.fastpath.topic import SMALL_BYTES, FastQueue, FastTopic
from aerobee.broker.state.ack_level import LEVELS
from aerobee.message import wants_to_wait
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import PREFIX, encode_frame
from aerobee.store.log.record_layout import Origin
from aerobee.store.queue.consume_queue import ConsumeQueue

# frame_prefix() of the usual lengths.
PREFIXES = [
    f"\0\0{chr((n + 4) >> 8)}{chr((n + 4) & 255)}\0\0{chr(n >> 8)}{chr(n & 255)}" for n in range(4096)
]


class Shared:
    """State that all frame handlers of one backend share."""

    def __init__(self, settings: BackendSettings) -> None:
        store = settings.store
        self.store = store
        self.log = store.log
        self.appender = store.appender
        self.origin = Origin(settings.store_host)
        self.own_properties = settings.own_properties
        self.store_host_hex = settings.store_host.hex().upper()
        self._find_topic = settings.find_topic
        self.waiting = settings.waiting
        self.reply_fields = settings.reply_fields
        self._reply_ext = settings.reply_ext
        self.topics: dict[str, FastTopic] = {}  # those that are known
        self._permits = settings.permits  # [FENCE] is read by the backend
        # Of the burst.
        self.now_ms = 0
        self.holds_replies = False  # senders that request durability are answered when the append is safe
        self.holds_all = False  # and the others by the handlers
        self._holds = 0  # the number that says both
        self.number = 0  # number of the burst: values cached for one burst are invalid in the next
        self.replies: list[str] = []  # to sends, as Latin-1 text
        self.parts: list[bytes] = []  # replies to pulls, and to the sends before them
        self.held: list[str] = []
        self.codes = settings.answered
        self.deferred_codes: list[int] = []  # of those in `held`
        # The texts and the codes of replies: not deferred, deferred, or deferred until the append has that ack level.
        self.outputs: dict[bool | str, tuple[list[str], list[int]]] = {
            False: (self.replies, self.codes),
            True: (self.held, self.deferred_codes),
            **{level: ([], []) for level in LEVELS},
        }
        self.has_leveled = False
        self.pulled: list[PullResult] = []
        self.pulled_bytes = 0
        self.has_counted = False  # a frame handler has counted the answer itself
        self.has_stored = False
        self.stored_count = 0  # requests that have stored something
        self.at_end: list[Callable[[], None]] = []  # work of frame handlers at the end of the burst
        # Since totals were taken.
        self.touched: list[FastTopic] = []  # topics in which something was stored
        self.handed_out: dict[Authorization, list[int]] = {}  # messages, bytes, pulls

    def forget_topics(self) -> None:
        """Topics have changed: look everything up again."""
        self.topics.clear()

    def begin(self, born_host: bytes, now_ms: int) -> None:
        """Begin a burst: set what its records share."""
        self.number += 1
        self.now_ms = now_ms
        if (holds := self._permits[HOLDS]) != self._holds:
            self._holds = holds
            self.holds_replies, self.holds_all = holds != 0, holds == 2
        origin = self.origin
        origin.now_ms = now_ms
        if born_host != origin.born_host:
            origin.enter(born_host)

    def waits(self, properties: Mapping[str, str]) -> bool:
        """Whether a message's reply is deferred. Raises FallBackToHandler when it is not, but must not be sent from
        here."""
        waits = self.holds_replies and wants_to_wait(properties)
        if self.holds_all and not waits:
            raise FallBackToHandler
        return waits

    def take_leveled(self) -> list[LeveledReplies]:
        """The replies that wait for an ack level."""
        self.has_leveled = False
        taken: list[LeveledReplies] = []
        for level in sorted(LEVELS):
            replies, codes = self.outputs[level]
            if replies:
                taken.append((level, "".join(replies).encode("latin-1"), tuple(Counter(codes).items())))
                replies.clear()
                codes.clear()
        return taken

    def end(self) -> int:
        """Write the deferred data of a burst that stored messages; return the number of these requests, at least 1."""
        count, self.stored_count, self.has_stored = self.stored_count or 1, 0, False
        self.appender.end_burst(self.now_ms)
        return count

    def take_stored(self) -> list[Appended]:
        """Messages stored since the last call, by topic."""
        appended: list[Appended] = []
        for topic in self.touched:
            if count := topic.count:
                appended.append(
                    (topic.name, count, topic.byte_count, topic.request_count, topic.larger or ())
                )
            topic.is_touched = False
            topic.count = topic.byte_count = topic.request_count = 0
            topic.larger = None
        self.touched.clear()
        return appended

    def take_handed_out(self) -> list[HandedOut]:
        """Messages delivered since the last call, by authorization."""
        handed_out = [
            (authorization, messages, size, pulls)
            for authorization, (messages, size, pulls) in self.handed_out.items()
        ]
        self.handed_out.clear()
        return handed_out

    # --- cached look-ups

    def find(self, name: str, queue_text: object) -> tuple[FastTopic, FastQueue]:
        """The topic and the queue that a send names. Raises one of UNREADABLE for a topic or queue that is not
        ordinary.
        """
        topic = self.topics.get(name) or self.admit(name)
        return topic, self.queue_of(topic, queue_text)

    def queue_of(self, topic: FastTopic, queue_text: object) -> FastQueue:
        """A queue of a topic. Raises one of UNREADABLE for a queue that is not ordinary."""
        queue = topic.queues.get(queue_text) if type(queue_text) is str else None
        return queue or self.admit_queue(topic, queue_text)

    def admit(self, name: str) -> FastTopic:
        """Look up a topic, new here. Raises one of UNREADABLE for a topic that is not ordinary."""
        if type(name) is not str:
            raise ValueError
        config = self._find_topic(name)
        if config is None:
            raise KeyError(name)
        topic = self.topics[name] = FastTopic(config)
        return topic

    def admit_queue(self, topic: FastTopic, queue_text: object) -> FastQueue:
        """Look up a queue of a topic that find() does not know: one not used yet, or named by a number instead of
        text.
        """
        if type(queue_text) is not str:
            queue_text = str(number(queue_text))
            if (known := topic.queues.get(queue_text)) is not None:
                return known
        queue_id = number(queue_text)
        if not 0 <= queue_id < topic.queue_count or str(queue_id) != queue_text:
            raise ValueError
        queue = self.store.queue(topic.name, queue_id)
        if type(queue) is not ConsumeQueue:  # one of another kind has more to write than an entry
            raise ValueError
        found = topic.queues[queue_text] = FastQueue(queue, queue_id)
        return found

    # --- storing

    def append(
        self,
        topic: FastTopic,
        queue: FastQueue,
        body: bytes | bytearray,
        properties: bytes,
        hashes: list[int],
        tag_code: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        reconsume_times: int,
        prepared_offset: int = 0,
    ) -> tuple[int, int]:
        """Store a record with its entries, and count it; return (queue offset, physical offset).

        Raises FallBackToHandler when there is no space or a number does not fit its field: nothing is written then.
        """
        target = queue.queue
        queue_offset = target.max_offset
        try:
            offset = self.appender.append_parts(
                self.origin, target, topic.field, body, properties, hashes, tag_code, flag, sys_flag,
                born_timestamp, reconsume_times, prepared_offset, queue.key in self.waiting,
            )  # fmt: skip
        except NO_ROOM as error:
            raise FallBackToHandler from error
        size = self.log.end - offset
        self.count(topic, 1, size)
        if size > SMALL_BYTES:
            topic.note_size(size)
        return queue_offset, offset

    def is_awaited(self, queue: FastQueue) -> bool:
        """Whether a consumer waits at the queue."""
        return queue.key in self.waiting

    def count(self, topic: FastTopic, message_count: int, byte_count: int) -> None:
        """Count messages stored in a topic."""
        self.has_stored = True
        if not topic.is_touched:
            topic.is_touched = True
            self.touched.append(topic)
        topic.count += message_count
        topic.byte_count += byte_count

    def count_for(self, stored: FastTopic, topic: FastTopic, size: int) -> None:
        """Count the last stored message for the topic that it was sent to."""
        stored.count -= 1
        stored.byte_count -= size
        if size > SMALL_BYTES:
            stored.note_size(size, -1)
            topic.note_size(size)
        self.count(topic, 1, size)
        self.count_request(topic)

    def count_request(self, topic: FastTopic) -> None:
        """Count a request that stored messages for a topic."""
        topic.request_count += 1
        self.stored_count += 1

    def hashes(
        self, topic: FastTopic, unique_key: str, keys: str | None, tag: str | None
    ) -> tuple[list[int], int]:
        """Index hashes of a message, in the order in which they are written, and its tags code."""
        hashes = [topic.key_hash(unique_key)] if unique_key else []
        if keys:
            hashes += [topic.key_hash(key) for key in keys.split(" ") if key]
        if not tag:
            return hashes, 0
        code, tag_hash = topic.tag(tag)
        hashes.append(tag_hash)
        return hashes, code

    def message_id(self, offset: int) -> str:
        """An offset message id: the packed store host and the physical offset in hex."""
        return f"{self.store_host_hex}{offset:016X}"

    def message_ids(self, offsets: Sequence[int]) -> str:
        """Message ids of a batch, created together in a fourth of the time that single ids take."""
        digits = struct.pack(f">{len(offsets)}q", *offsets).hex(",", 8).upper()
        return self.store_host_hex + digits.replace(",", f",{self.store_host_hex}")

    # --- the reply to a send

    def binary_reply(
        self, command: RemotingCommand, queue: FastQueue, queue_offset: int, message_ids: str, unique_key: str
    ) -> str:
        """A reply with the binary header, as Latin-1 text."""
        ext = {
            "queueId": str(queue.queue_id),
            "transactionId": unique_key,
            "msgId": message_ids,
            **self._reply_ext,
            "queueOffset": str(queue_offset),
        }
        return encode_frame(command.reply(ext=ext)).decode("latin-1")


def frame_prefix(length: int) -> str:
    """The eight bytes in front of a JSON header of that length, which has no body behind it."""
    return PREFIX.pack(length + 4, length).decode("latin-1")
