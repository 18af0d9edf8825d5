"""Committed offsets of each group and queue, stored in config/consumerOffset.json.

Source: ConsumerOffsetManager (RocketMQ). The file:

    {"dataVersion":{...},
     "groupTopicMap":{group:[topic]},                    groups and the topics they have offsets of
     "offsetTable":{"topic@group":{queue id: offset}},   the next offset to consume
     "pullOffsetTable":{"topic@group":{queue id: offset}},   the next offset to pull, as last answered
     "aerobeeLogEnd": n,                                 the commit log's end then (RocketMQ does not read it): what
                                                         was popped since shows in the log behind it,
     "aerobeePopBuffer": true,                           unless check points were kept in memory
     "aerobeeRemoved": {"topic@" or "@group": number}}   whose offsets were removed: a slave removes them, too

A commit takes any offset up to the queue's end, smaller ones too: one beyond the end would skip messages that do not
exist yet. A server-side reset stores an offset outside the table, which the reply to the group's next pull returns
(OFFSET_RESET); until then commits for that queue are ignored, because they belong to messages that were pulled before
the reset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from aerobee.broker.state.bounds import Bounds
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.newest_names import newest_names, newest_of_peer
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame, StoreError
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.data_version import DataVersion
from aerobee.system_names import SYSTEM_GROUP_PREFIX

log = logging.getLogger(__name__)

SEPARATOR = "@"
LOG_END = "aerobeeLogEnd"
POP_BUFFER = "aerobeePopBuffer"
CUT_OFF = "aerobeeCutOff"
REMOVED = "aerobeeRemoved"
COUNT_KEY = "consumerOffsetNumsMax"
COMMITS_PER_VERSION = 500  # consumerOffsetUpdateVersionStep: slaves compare the version, not each commit

Table = dict[tuple[str, str], dict[int, int]]  # (topic, group) -> queue id -> offset
Before = dict[tuple[str, str], dict[int, int | None]]  # as Table; None: there was no offset
ResetCallback = Callable[[str, str, int], None]


class ConsumerOffsets:
    """The offset table. Calls are plain and cheap; load() and save() block."""

    def __init__(
        self,
        *,
        clock: Clock,
        file: ConfigFile | None = None,
        end_of: Callable[[str, int], int] | None = None,
        bounds: Bounds | None = None,
        log_end_now: Callable[[], int] = lambda: -1,
        has_pop_buffer: bool = False,
    ) -> None:
        """`end_of(topic, queue id)` is the offset that the queue's next message gets, whether or not consumers see
        those before it; `bounds` say how many offsets there may be; without them nothing is bounded. `log_end_now`
        returns the log's end, which save() writes to the file; -1: unknown. `has_pop_buffer`: check points may wait in
        memory, which the file says, too.
        """
        self._end_of = end_of
        self._bounds = bounds
        self._count = 0  # of the queues in _offsets
        self._clock = clock
        self._file = file
        self._offsets: Table = {}
        self._pulled: Table = {}
        self._topics: dict[str, dict[str, None]] = {}  # group -> its topics, in order of first commit
        self._resets: dict[tuple[str, str, int], int] = {}
        self._reset_callbacks: list[ResetCallback] = []
        self._commits = 0
        # "topic@" or "@group" -> a number that grows: a slave's older offsets of them are void.
        self.removed: dict[str, int] = {}
        self._committed_here: set[tuple[str, str, int]] = (
            set()
        )  # at a slave: committed by clients; (topic, group, queue id)
        self.counts_cut_off = False  # at a slave whose log was truncated, until it has its master's offsets
        self._lacks_pops = False  # a new master's, until it has read the pops after `log_end` in the log
        # At a slave: its log's end when it received the master's offsets.
        self._copied_from: int | None = None
        self._dirty = False
        self._before: Before | None = (
            None  # while a save waits for its thread: values that later commits have replaced
        )
        self.log_end = -1  # of the loaded file; -1: not stated, or RocketMQ wrote the file
        self.had_pop_buffer = False  # in the run that wrote the file
        self.has_pop_buffer = has_pop_buffer
        self._log_end_now = log_end_now
        self.has_resets = False  # the hot path's test; take_reset() is called only when it is true
        self.data_version = DataVersion(timestamp=clock.now_ms())

    # --- requests of consumers

    def commit(self, group: str, topic: str, queue_id: int, offset: int, *, client: str = "") -> None:
        """Store the next offset to consume. Ignored while a reset of this queue is pending."""
        if self.has_resets and (group, topic, queue_id) in self._resets:
            return
        queues = self._offsets.get((topic, group))
        if queues is None:
            queues = self._new_entry(topic, group)
        before = queues.get(queue_id)
        if before is not None and offset < before:
            log.warning(
                "group %s goes back on %s queue %d: offset %d after %d, committed by %s",
                group, topic, queue_id, offset, before, client or "the broker",
            )  # fmt: skip
        self._count += before is None
        kept = self._before
        if kept is not None:  # first, because a thread may copy the queues at any moment
            kept.setdefault((topic, group), {}).setdefault(queue_id, before)
        queues[queue_id] = offset
        self._dirty = True
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            self._next_version()

    def commit_by_client(self, group: str, topic: str, queue_id: int, offset: int, client: str) -> str:
        """Commit an offset from a peer, in an existing queue. Returns the reason for a refusal, or "".

        Offsets below the queue's first message are accepted, because clients begin with them. Source:
        ConsumerOffsetManager (RocketMQ), which takes any value.
        """
        queues = self._offsets.get((topic, group))
        if queues is None or queues.get(queue_id) != offset:  # most commits repeat the present value
            if group.startswith(SYSTEM_GROUP_PREFIX):
                return f"group {group} belongs to the broker itself: only it commits offsets of it"
            end = offset if self._end_of is None else self._end_of(topic, queue_id)
            if not 0 <= offset <= end:
                return f"offset is {offset}, queue {queue_id} of {topic} has 0 to {end}"
            is_new = queues is None or queue_id not in queues
            if is_new and self._bounds is not None and self._count >= self._bounds.limit(COUNT_KEY):
                return str(self._bounds.reached(COUNT_KEY, f"{self._count} offsets are kept already", client))
            if self._copied_from is not None:
                self._committed_here.add((topic, group, queue_id))
        self.commit(group, topic, queue_id, offset, client=client)
        return ""

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Store the group's next pull offset: the nextBeginOffset of the reply."""
        queues = self._pulled.get((topic, group))
        if queues is None:
            queues = self._pulled[(topic, group)] = {}
        queues[queue_id] = next_offset

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset to consume, or None when nothing is stored."""
        queues = self._offsets.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    @property
    def table(self) -> Table:
        """The offsets as they are now: to be read by native code, and changed by commit() alone."""
        return self._offsets

    def query_pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset to pull, or None when the group has not pulled from this broker."""
        queues = self._pulled.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    # --- server-side reset

    def assign_reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store reset offsets ({queue id: offset}), returned by the reply to the group's next pull of each queue."""
        queues = self._offsets.get((topic, group))
        if queues is None:
            queues = self._new_entry(topic, group)
        for queue_id, offset in offsets.items():
            self._count += queue_id not in queues
            queues[queue_id] = offset
            self._resets[(group, topic, queue_id)] = offset
        self.has_resets = bool(self._resets)
        self._dirty = True
        self._next_version()
        for callback in self._reset_callbacks:
            for queue_id in offsets:
                callback(group, topic, queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return and remove the pending reset of a queue, or None."""
        offset = self._resets.pop((group, topic, queue_id), None)
        self.has_resets = bool(self._resets)
        return offset

    def reset_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset of this queue is pending."""
        return (group, topic, queue_id) in self._resets

    def forget_resets(self) -> None:
        """Drop all pending resets; the offsets stay. A reset that stays pending at a slave would otherwise take effect
        long afterwards, when that broker is master again."""
        self._resets.clear()
        self.has_resets = False

    def on_reset(self, callback: ResetCallback) -> None:
        """Call back with (group, topic, queue id) when a reset is assigned, so that a pending pull can be released."""
        self._reset_callbacks.append(callback)

    # --- admin requests

    def topics_of(self, group: str) -> list[str]:
        """The topics for which the group has offsets."""
        return list(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets for the topic."""
        return [group for group, topics in self._topics.items() if topic in topics]

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        """A copy of {queue id: offset}; empty when nothing is stored."""
        return dict(self._offsets.get((topic, group), ()))

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """Copy the offsets of `source_group` for the topic to `target_group`."""
        for queue_id, offset in self.queues_of(source_group, topic).items():
            self.commit(target_group, topic, queue_id, offset)

    def remove_group(self, group: str) -> None:
        """Remove a group's offsets, at slaves too."""
        self._note_removed(f"{SEPARATOR}{group}")
        self._remove([(topic, group) for topic in self._topics_anywhere(group)])

    def remove_topic(self, topic: str) -> None:
        """Remove a topic's offsets, at slaves too."""
        self._note_removed(f"{topic}{SEPARATOR}")
        self._remove(self._keys_of({topic}, set()))

    def remove_queue(self, group: str, topic: str, queue_id: int) -> None:
        """Remove one offset that the master no longer has."""
        queues = self._offsets.get((topic, group), {})
        if queues.pop(queue_id, None) is not None:
            self._count -= 1
            self._dirty = True
            if not queues:
                self._remove([(topic, group)])

    def remove_progress(self, group: str) -> list[str]:
        """Remove the offsets of one of the broker's internal groups, not at slaves. Returns the topics that had an
        offset."""
        topics = [topic for topic in self.topics_of(group) if self.queues_of(group, topic)]
        for topic in topics:
            for queue_id in self.queues_of(group, topic):
                self.remove_queue(group, topic, queue_id)
        return topics

    def take_removed(self, removed: Mapping[str, int]) -> bool:
        """Apply a master's removals that this table has not applied yet. Returns whether there were any."""
        news = [name for name, number in removed.items() if self.removed.get(name) != number]
        self.removed = dict(removed)
        topics = {name[: -len(SEPARATOR)] for name in news if name.endswith(SEPARATOR)}
        groups = {name[len(SEPARATOR) :] for name in news if name.startswith(SEPARATOR)}
        keys = self._keys_of(topics, groups)
        if keys:
            self._remove(keys)
        self._dirty = self._dirty or bool(news)
        return bool(keys)

    def has_same_removals(self, topic: str, group: str, removed: Mapping[str, int]) -> bool:
        """Whether another table with these removals has applied all removals of this table that concern an offset."""
        names = f"{topic}{SEPARATOR}", f"{SEPARATOR}{group}"
        return all(self.removed.get(name) in (None, removed.get(name)) for name in names)

    @property
    def count(self) -> int:
        """Number of offsets."""
        return self._count

    def committed_here(self, topic: str, group: str, queue_id: int) -> bool:
        """At a slave: whether a client committed this offset here, since the process started."""
        return (topic, group, queue_id) in self._committed_here

    def all_offsets(self) -> Iterator[tuple[str, str, int, int]]:
        """Topic, group, queue id and offset of everything in the table, which must not change meanwhile."""
        for (topic, group), queues in self._offsets.items():
            for queue_id, offset in queues.items():
                yield topic, group, queue_id, offset

    def _keys_of(self, topics: Collection[str], groups: Collection[str]) -> set[tuple[str, str]]:
        return {
            key
            for table in (self._offsets, self._pulled)
            for key in table
            if key[0] in topics or key[1] in groups
        }

    def _note_removed(self, name: str) -> None:
        number = max(self._clock.now_ms(), 1 + max(self.removed.values(), default=0))
        kept = {each: at for each, at in self.removed.items() if each != name}
        self.removed = newest_names({**kept, name: number})
        self._dirty = True

    # --- persistence

    def load(self) -> None:
        """Read the file; a missing file is an empty table. Raises StoreError for a damaged one."""
        fields = self._file.read() if self._file is not None else None
        if fields is None:
            self.log_end = 0  # nothing was ever saved: the whole log must be read
            return
        try:
            offsets = parse_offset_table(fields, "offsetTable")
            pulled = parse_offset_table(fields, "pullOffsetTable")
            version = DataVersion.from_dict(json_fields.mapping(fields, "dataVersion"))
            self.log_end = json_fields.integer(fields, LOG_END, -1)
            self.had_pop_buffer = json_fields.boolean(fields, POP_BUFFER)
            self.counts_cut_off = json_fields.boolean(fields, CUT_OFF)
            self.removed = removed_of(fields) or {}
        except MalformedFrame as error:
            raise StoreError(f"config/consumerOffset.json is not an offset table: {error}") from error
        self._offsets, self._pulled, self.data_version = offsets, pulled, version
        self._count = sum(map(len, offsets.values()))
        self._topics = {}
        for topic, group in offsets:
            self._topics.setdefault(group, {})[topic] = None
        self._dirty = False

    def save(self, *, force: bool = False) -> None:
        """Write the file when something was committed since the last time. Raises StoreError."""
        if self._file is None or not (self._dirty or force):
            return
        self._file.write(self._file_content())
        self._dirty = False

    def save_soon(self) -> None:
        """Save the present table after earlier saves; every record of the log is durable."""
        file = self._file
        if file is not None:
            content = self._file_content()
            file.write_soon(lambda: file.write(content))

    def prepare_save(self) -> Callable[[], None] | None:
        """Return a function that writes the table as it is now, for a thread where it may block; None when nothing was
        committed since the last call, or when the previous function was neither called nor passed to drop_save(). The
        function raises StoreError; the table is then saved the next time. Called again it writes the same.

        Commits after this call are not in the file: if the log is durable up to this call before the function runs, the
        file contains nothing that a power loss can undo.
        """
        file = self._file
        if file is None or not self._dirty or self._before is not None:
            return None
        before: Before = {}
        make_content = self._prepare_content()
        made: list[dict[str, Any]] = []
        self._before = before
        self._dirty = False

        def write() -> None:
            try:
                if not made:
                    content = make_content()
                    for name, queues in list(before.items()):
                        _take_back(content["offsetTable"], name, queues)
                    made.append(content)
                    self._before = None
                file.write(made[0])
            except BaseException:
                self._before = None
                self._dirty = True
                raise

        return write

    def drop_save(self) -> None:
        """Cancel prepare_save(): its function will not be called, so the offsets stay unsaved."""
        self._before = None
        self._dirty = True

    def _file_content(self) -> dict[str, Any]:
        return self._prepare_content()()

    def _prepare_content(self) -> Callable[[], dict[str, Any]]:
        """Return a function that builds the file's content in a thread: 100,000 queues take a second.

        It contains the log's present end, and offsets committed until the function runs. Each copy of a table in it is
        atomic under the GIL.
        """
        log_end = self._log_end_now() if self._copied_from is None else self._copied_from
        if (known_to := self.known_to) is not None:
            log_end = known_to
        has_pop_buffer, counts_cut_off = self.has_pop_buffer, self.counts_cut_off
        version, removed = self.data_version.to_dict(), self.removed
        offsets, pulled = list(self._offsets.items()), list(self._pulled.items())

        def content() -> dict[str, Any]:
            topics: dict[str, list[str]] = {}
            for (topic, group), _ in offsets:
                topics.setdefault(group, []).append(topic)
            found: dict[str, Any] = {
                "dataVersion": version,
                "groupTopicMap": topics,
                "offsetTable": _table_dict(offsets),
                "pullOffsetTable": _table_dict(pulled),
            }
            if removed:
                found[REMOVED] = removed
            if counts_cut_off:
                found[CUT_OFF] = True
            if log_end >= 0:
                found[LOG_END] = log_end
                if has_pop_buffer:
                    found[POP_BUFFER] = True
            return found

        return content

    def to_dict(self) -> dict[str, Any]:
        """The file's content without the log's end; also the body of GET_ALL_CONSUMER_OFFSET (43)."""
        return {
            "dataVersion": self.data_version.to_dict(),
            "groupTopicMap": {group: list(topics) for group, topics in self._topics.items()},
            "offsetTable": _table_dict(self._offsets.items()),
            "pullOffsetTable": _table_dict(self._pulled.items()),
        }

    def limit_to_ends(self) -> list[tuple[str, str, int]]:
        """Set each offset that is behind its queue's end to that end. Returns (topic, group, queue id) of these."""
        end_of = self._end_of
        lowered: list[tuple[str, str, int]] = []
        for table in (self._offsets, self._pulled):
            for (topic, group), queues in table.items():
                for queue_id, offset in queues.items():
                    end = offset if end_of is None else end_of(topic, queue_id)
                    if offset > end:
                        queues[queue_id] = end  # the key stays, so that the iteration may continue
                        if table is self._offsets:
                            lowered.append((topic, group, queue_id))
        if lowered:
            self._dirty = True
            self._next_version()
        return lowered

    def copied(self, log_offset: int | None) -> None:
        """The table contains a master's offsets; later pops are in the log from `log_offset` on. None: the offsets are
        this broker's own, as at a master."""
        if log_offset is None and self._copied_from is not None:
            self.log_end, self._lacks_pops = self._copied_from, True
            self._committed_here.clear()
        elif log_offset is not None:
            self._lacks_pops = False
        self._copied_from = log_offset

    def log_cut(self, log_offset: int) -> None:
        """The log after `log_offset` comes from another master; these offsets do not include its pops."""
        if self._copied_from is None or log_offset < self._copied_from:
            self._copied_from = log_offset
        self.log_end = min(self.log_end, log_offset)
        self.counts_cut_off = True

    def cut_is_over(self) -> None:
        """The offsets come from a master without the truncated records."""
        self._dirty = self._dirty or self.counts_cut_off
        self.counts_cut_off = False

    def resigned(self) -> None:
        """Another broker is master from now on: its deliveries to POP groups are only in the log until its offsets are
        copied. This broker's deliveries are in the table."""
        self.forget_resets()
        if self._copied_from is None:
            known_to = self.known_to
            self._copied_from = self._log_end_now() if known_to is None else known_to

    def pops_are_known(self) -> None:
        """The table includes the pops in the log after `log_end`."""
        self._lacks_pops = False

    @property
    def known_to(self) -> int | None:
        """At a new master: log offset up to which the table includes pops; None: all are included."""
        return self.log_end if self._lacks_pops and self.log_end >= 0 else None

    @property
    def change_token(self) -> str:
        """A text that differs after each change: a slave with the same text has the same table."""
        version = self.data_version
        return f"{version.timestamp}.{version.counter}.{self._commits}"

    # --- helpers

    def _new_entry(self, topic: str, group: str) -> dict[int, int]:
        self._topics.setdefault(group, {})[topic] = None
        return self._offsets.setdefault((topic, group), {})

    def _topics_anywhere(self, group: str) -> set[str]:
        return {key[0] for table in (self._offsets, self._pulled) for key in table if key[1] == group}

    def _remove(self, keys: Iterable[tuple[str, str]]) -> None:
        for topic, group in list(keys):
            self._count -= len(self._offsets.pop((topic, group), ()))
            self._pulled.pop((topic, group), None)
            topics = self._topics.get(group)
            if topics is not None:
                topics.pop(topic, None)
                if not topics:
                    del self._topics[group]
            for reset in [key for key in self._resets if key[0] == group and key[1] == topic]:
                del self._resets[reset]
            self._dirty = True
        self.has_resets = bool(self._resets)
        self._next_version()

    def _next_version(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())


def _table_dict(entries: Iterable[tuple[tuple[str, str], dict[int, int]]]) -> dict[str, dict[int, int]]:
    return {f"{topic}{SEPARATOR}{group}": queues.copy() for (topic, group), queues in entries}


def _take_back(
    table: dict[str, dict[int, int]], name: tuple[str, str], before: dict[int, int | None]
) -> None:
    """Restore the offsets of `before` in a later copy of the table."""
    topic, group = name
    queues = table.get(f"{topic}{SEPARATOR}{group}")
    if queues is None:
        return
    for queue_id, offset in before.copy().items():
        if offset is None:
            queues.pop(queue_id, None)
        else:
            queues[queue_id] = offset


def removed_of(fields: json_fields.Fields) -> dict[str, int] | None:
    """The removals in a file or a master's reply; None without any. Raises MalformedFrame."""
    if fields.get(REMOVED) is None:
        return None
    told = newest_of_peer(json_fields.mapping(fields, REMOVED))
    return {
        name: json_fields.as_integer(number, f"the removal of {name[:80]!r}") for name, number in told.items()
    }


def parse_offset_table(fields: json_fields.Fields, name: str) -> Table:
    """The table of this name as a file and answers have it. Raises MalformedFrame."""
    table: Table = {}
    for key, value in json_fields.mapping(fields, name).items():
        # Neither a topic's nor a group's name has an @.
        topic, separator, group = key.rpartition(SEPARATOR)
        if not separator:
            log.warning("consumerOffset.json: %s entry %r is not topic@group: left out", name, key)
            continue
        queues = json_fields.as_object(value, f"{name} entry {key[:80]!r}")
        table[(topic, group)] = {
            json_fields.as_integer(queue, "a queue id"): json_fields.as_integer(
                offset, f"an offset of {key[:80]!r}"
            )
            for queue, offset in queues.items()
        }
    return table
