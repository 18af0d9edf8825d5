"""Copies a master's tables to its slave: topics, groups, offsets and others (SlaveSynchronize of RocketMQ).

Topics and static topics, groups, offsets, delay levels' offsets, request modes, filters.

Requested once a second; an unchanged table costs a page of one entry, or with an Aerobee master a few bytes. Tables
that take long are requested less often (CopyPace); what this broker waited for its own log and files does not count: a slow
disk makes no table older. RocketMQ's slaves request the tables once a minute: they lack a topic that was created
shortly before its master died. Here a slave that becomes master recreates the topics whose messages it has
(broker/state/missed_topics.py).

Offsets are taken when this log has reached the offset where the master's ended when it sent them. Taken earlier, and with the
master lost then, they would lead over messages that this broker gets as the next master.

Timers are copied separately (broker/timer/timer_copy.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets, parse_offset_table, removed_of
from aerobee.broker.consumer.group_table import NAMES_SAID_MAX, GroupTable
from aerobee.broker.consumer.request_mode import RequestModes
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.filter.filter_table import FilterTable
from aerobee.broker.replication.offset_merge import OffsetAt, OffsetMerge
from aerobee.broker.state.master_questions import MasterQuestions
from aerobee.broker.state.missed_topics import settle_kinds
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.settled_decisions import SettledDecisions
from aerobee.broker.state.topic_table import DELETED_FIELD, TopicTable, deletions_of
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, MalformedFrame, RemoteError
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.queue_mapping import QueueMapping
from aerobee.remoting.body.subscription_group import SubscriptionGroupWrapper
from aerobee.remoting.body.topic_config import TopicConfigSerializeWrapper
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)
REACH_WAIT_S = 5.0  # for this log to reach the end that the master's log had
REACH_LOOK_S = 0.02
TABLE_FIELD, FILTERS = "aerobeeTable", "filters"  # of 43: requests the SQL92 filters, not the offsets
LOG_END_FIELD = "aerobeeLogEnd"  # of a copied table: where the log ended then; RocketMQ does not say it
SETTLED_FIELD = "aerobeeSettled"  # of offsets: SettledDecisions.told()
BEHIND_FIELD = (
    "aerobeeBehind"  # of topics, offsets: their master has not read yet what its log says beyond them
)
TOKEN_FIELD = "aerobeeMark"  # of a table: the same token, the same content; RocketMQ ignores it


class MetadataSync:
    """Copies the tables in one task while this broker is a slave. Belongs to the event loop."""

    def __init__(
        self,
        *,
        questions: MasterQuestions,
        store: MessageStore,
        topics: TopicTable,
        mappings: QueueMappings,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        schedule: Schedule,
        modes: RequestModes,
        filters: FilterTable,
        decisions: SettledDecisions,
        clock: Clock,
    ) -> None:
        self._decisions = decisions
        self.synced_at_s = -1.0  # monotonic time of the last round that succeeded; negative: none yet
        self._questions = questions
        self._store = store
        self._topics = topics
        self._mappings = mappings
        self._groups = groups
        self._offsets = offsets
        self._schedule = schedule
        self._modes = modes
        self._filters = filters
        self._filters_body = b""
        self._kinds_settled = self._deletions_settled = False
        self._clock = clock
        self._merge = OffsetMerge()
        self._master = ""
        self._offsets_token = ""
        self._modes_body = b""
        self._connection: object | None = None  # over which the last offsets came
        self._trouble = ""
        self._waited_s = 0.0  # of this round, for this broker's own log and files

    async def run(self, master: str) -> None:
        """Copy from the broker at `master` until cancelled."""
        self._master, self._offsets_token, self._modes_body, self._filters_body = master, "", b"", b""
        self._merge.master_lost()
        self._kinds_settled = self._deletions_settled = False
        # The next data may come from another master.
        if self._topics.copied_to is None:
            self._topics.copied(self._store.log.end)
        else:
            self._topics.log_cut(self._store.log.end)
        pace = CopyPace()
        while True:
            started, self._waited_s, is_complete = self._clock.monotonic(), 0.0, False
            try:
                await self._round()
                is_complete = True
                if self._trouble:
                    log.info("settings and offsets of the master at %s are copied again", master)
                self._trouble = ""
            except AerobeeError as error:
                self._master_lost()
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    log.warning("settings and offsets of the master at %s are not copied: %s", master, error)
            except Exception:
                # The task's outermost edge: a slave whose tables silently grow old would lead consumers astray.
                self._master_lost()
                log.exception("copying settings and offsets from %s failed; trying again", master)
            took_s = self._clock.monotonic() - started - self._waited_s
            await self._clock.sleep(pace.pause_s(took_s, is_complete=is_complete))

    def _master_lost(self) -> None:
        """From here on a lower offset is no reset. The slave requests the whole table, to compare it with the offsets
        that were committed here.
        """
        self._merge.master_lost()
        self._offsets_token = ""

    async def _round(self) -> None:
        await self._copy_topics()
        await self._delete_ended()
        await self._copy_groups()
        await self._copy_modes()
        await self._copy_offsets()
        if self._offsets_token:  # RocketMQ's masters send no filters
            await self._copy_filters()
        self.synced_at_s = self._clock.monotonic()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Time that this block waits does not lengthen the pause, because it is no work for the master."""
        started = self._clock.monotonic()
        try:
            yield
        finally:
            self._waited_s += self._clock.monotonic() - started

    async def _ask(self, code: RequestCode, ext: dict[str, str] | None = None) -> RemotingCommand:
        return await self._questions.ask(self._master, RemotingCommand(code, ext or {}))

    # --- tables with a version

    async def _copy_topics(self) -> None:
        known, log_end = self._topics.data_version, self._store.log.end
        asks_end = {LOG_END_FIELD: "true"}
        page = {**_first_page("topicSeq", "maxTopicNum"), **asks_end}
        first = await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG, page)
        # A master older than 5.0 sends no version of mappings: it has none.
        same_mappings = _version_of(first, "mappingDataVersion") in (
            self._mappings.data_version,
            DataVersion(),
        )
        if _is_behind(first):
            return  # topics of the newest messages are not in its table
        if _version_of(first) == known and same_mappings:
            self._topics_known(self._known_to(first, log_end))
            return
        whole = await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG, asks_end)
        if _is_behind(whole):
            return
        left_out: list[str] = []
        fields = fastjson.loads_trusted(whole.body, "TopicConfigSerializeWrapper")
        wrapper = TopicConfigSerializeWrapper.from_dict(fields, left_out=left_out)
        for reason in left_out:
            log.warning("a topic of the master is not copied: %s", reason)
        # Mappings first: a topic that is known without its mapping would be served as an ordinary one.
        details = wrapper.topic_queue_mapping_detail_map or {}
        mappings = {
            name: QueueMapping.from_dict(json_fields.as_object(value, f"the mapping of {name[:80]!r}"))
            for name, value in details.items()
        }
        version = wrapper.mapping_data_version or self._mappings.data_version
        if mappings != self._mappings.by_topic or version != self._mappings.data_version:
            with self._waiting():
                await self._mappings.copy_from(mappings, version)
        deleted = deletions_of(fields.get(DELETED_FIELD))
        self._topics.copy_from(wrapper.topic_config_table, wrapper.data_version, deleted)
        self._kinds_settled = self._deletions_settled = False
        self._topics_known(self._known_to(whole, log_end))

    def _topics_known(self, log_end: int) -> None:
        self._topics.copied(log_end)
        if not self._kinds_settled:
            settle_kinds(self._topics, self._store, log_end)
            self._kinds_settled = True

    async def _delete_ended(self) -> None:
        """Remove queues of topics that the master deleted, once this log has all of their messages."""
        deleted = self._topics.deleted
        if self._deletions_settled or not deleted:
            return
        is_whole = self._store.log.end >= max(deleted.values())
        with self._waiting():
            gone = await self._store.delete_ended(deleted)
        if gone:
            log.info(
                "queues of topics that the master deleted were removed: %s", ", ".join(gone[:NAMES_SAID_MAX])
            )
        self._deletions_settled = is_whole

    def _known_to(self, reply: RemotingCommand, log_end: int) -> int:
        """The log offset up to which this table has all topics: the end of the master's log at the reply, which this
        log may not have reached. A new slave gets the messages of topics that were deleted long ago after the table
        without them.

        For a master that does not report its log end: this log's end at the request, `log_end`.
        """
        told = (reply.ext or {}).get(LOG_END_FIELD, "")
        if told.isdecimal() and len(told) < 20:
            return int(told)
        return min(log_end, self._store.log.end)  # it may have been cut meanwhile

    async def _copy_groups(self) -> None:
        known = self._groups.data_version
        first = await self._ask(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _first_page("groupSeq", "maxGroupNum")
        )
        if _version_of(first) == known:
            return
        whole = await self._ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        wrapper = SubscriptionGroupWrapper.decode(whole.body)
        self._groups.copy_from(wrapper)

    async def _copy_modes(self) -> None:
        reply = await self._ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        if reply.body != self._modes_body:
            self._modes.copy_from(fastjson.loads_trusted(reply.body, "messageRequestModeMap"))
            self._modes_body = reply.body

    async def _copy_filters(self) -> None:
        reply = await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET, {TABLE_FIELD: FILTERS})
        if (reply.ext or {}).get(TABLE_FIELD) == FILTERS and reply.body != self._filters_body:
            self._filters.copy_from(fastjson.loads_trusted(reply.body, "the master's filters"))
            self._filters_body = reply.body

    # --- offsets

    async def _copy_offsets(self) -> None:
        if self._questions.connection_to(self._master) is not self._connection:
            self._master_lost()
        log_end = self._store.log.end
        delays = await self._ask(RequestCode.GET_ALL_DELAY_OFFSET)
        reply = await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET, {TOKEN_FIELD: self._offsets_token})
        if _is_behind(delays) or _is_behind(reply):
            return  # what was popped and delivered beyond them would count as not done once this broker is master
        settled = (reply.ext or {}).get(SETTLED_FIELD, "")
        if settled.isdecimal() and len(settled) < 20:
            self._decisions.copied(int(settled), self._store.log.end)
        table: list[OffsetAt] | None = None
        removed: dict[str, int] | None = None
        if reply.body:
            fields = fastjson.loads_trusted(reply.body, "the master's offsets")
            table, removed = offsets_of(fields), removed_of(fields)
        levels = _levels_of(fastjson.loads_trusted(delays.body, "the master's delay offsets"))
        if table is not None or levels != self._schedule.offsets:
            end = (reply.ext or {}).get(LOG_END_FIELD, "")
            with self._waiting():
                has_reached = await self._has_reached(int(end) if end.isdecimal() and len(end) < 20 else None)
            if not has_reached:
                return
        self._schedule.copy_from(levels, log_end)
        connection = self._questions.connection_to(self._master)
        if connection is not self._connection:
            # A master that was killed and came back immediately has the offsets that its file had: that is no reset.
            self._master_lost()
            self._connection = connection
        if table is not None:
            await self._take(table, removed)
            self._offsets_token = (reply.ext or {}).get(TOKEN_FIELD, "")
        self._offsets.copied(log_end)

    async def _has_reached(self, end: int | None) -> bool:
        """Wait until this log is as long as the master's was, `end`, or else is now; whether it got there in time."""
        if end is None:
            bounds = await self._questions.log_bounds(self._master)
            if bounds is None:
                return False
            end = bounds.end
        deadline = self._clock.monotonic() + REACH_WAIT_S
        while self._store.log.end < end:
            if self._clock.monotonic() >= deadline:
                return False
            await self._clock.sleep(REACH_LOOK_S)
        return True

    async def _take(self, table: list[OffsetAt], removed: dict[str, int] | None) -> None:
        """Merge the master's table. `removed` are the topics and groups that the master removed; None: the master does
        not report them (RocketMQ).
        """
        offsets = self._offsets
        if removed is not None:
            offsets.take_removed(removed)
        found = self._merge.merge(
            table,
            offsets.query,
            offsets.all_offsets(),
            own_count=offsets.count,
            is_from_here=lambda each: (
                removed is not None or offsets.committed_here(each.topic, each.group, each.queue_id)
            ),
            counts_cut_off=offsets.counts_cut_off,
        )
        offsets.cut_is_over()
        for each in found.removed:
            offsets.remove_queue(each.group, each.topic, each.queue_id)
        for each in found.taken:
            offsets.commit(each.group, each.topic, each.queue_id, each.offset, client="the master")
        for each in found.given_back:
            await self._give_back(each)

    async def _give_back(self, each: OffsetAt) -> None:
        """Commit at the master what a group has consumed here; a group that came up here is made there as by its first consumer."""
        if self._topics.get(each.topic) is None:
            return  # the master has deleted the topic
        try:
            if self._groups.get(each.group) is None:
                await self._ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": each.group})
            await self._ask(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {
                    "consumerGroup": each.group,
                    "topic": each.topic,
                    "queueId": str(each.queue_id),
                    "commitOffset": str(each.offset),
                },
            )
        except RemoteError as error:
            log.warning(
                "the master does not take that group %s has consumed %s queue %d up to %d here: %s",
                each.group, each.topic, each.queue_id, each.offset, error,
            )  # fmt: skip
        else:
            log.info(
                "reporting to the master that group %s has consumed %s queue %d up to %d here",
                each.group, each.topic, each.queue_id, each.offset,
            )  # fmt: skip


def _first_page(start_key: str, count_key: str) -> dict[str, str]:
    return {start_key: "0", count_key: "1", "dataVersion": ""}


def _is_behind(reply: RemotingCommand) -> bool:
    return BEHIND_FIELD in (reply.ext or {})


def _version_of(reply: RemotingCommand, key: str = "dataVersion") -> DataVersion:
    fields = fastjson.loads_trusted(reply.body, "a page of a table")
    return DataVersion.from_dict(json_fields.mapping(fields, key))


def offsets_of(fields: json_fields.Fields) -> list[OffsetAt]:
    """Every offset of a table of all groups (43). Raises MalformedFrame."""
    return [
        OffsetAt(topic, group, queue_id, offset)
        for (topic, group), queues in parse_offset_table(fields, "offsetTable").items()
        for queue_id, offset in queues.items()
        if queue_id >= 0 and offset >= 0
    ]


def _levels_of(fields: json_fields.Fields) -> dict[int, int]:
    levels: dict[int, int] = {}
    for level, offset in json_fields.mapping(fields, "offsetTable").items():
        levels[json_fields.as_integer(level, "a delay level")] = json_fields.as_integer(offset, "an offset")
    if any(level < 1 or offset < 0 for level, offset in levels.items()):
        raise MalformedFrame("the master's delay offsets hold a level below 1 or an offset below 0")
    return levels


INTERVAL_S = 1.0
PAUSE_FACTOR = 10  # pause as a multiple of a round's duration
PAUSE_MAX_S = 60.0  # RocketMQ's slaves request the tables this often


class CopyPace:
    """The pause grows with the duration of a round, so that large tables are requested less often.

    A single slow round does not show such a cost: the master may have been paused, or the network interrupted. A pause of ten
    times that wait left deleted topics at a slave for minutes.
    """

    def __init__(self) -> None:
        self._last_s = 0.0  # duration of the last complete round

    def pause_s(self, took_s: float, *, is_complete: bool) -> float:
        """The pause after a round that took `took_s`, from INTERVAL_S to PAUSE_MAX_S.

        Ten times the duration of the faster one of the last two complete rounds. An incomplete round ended with an
        error, usually after a wait for an answer: the pause is as long as the round.
        """
        wanted_s = took_s
        if is_complete:
            wanted_s = PAUSE_FACTOR * min(took_s, self._last_s)
            self._last_s = took_s
        return min(PAUSE_MAX_S, max(INTERVAL_S, wanted_s))
