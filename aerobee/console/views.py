"""Data of the pages: one method per path below /api/, each returns a JSON document. No method changes anything."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from aerobee.client import Admin, ReceivedMessage
from aerobee.clock import MS_PER_DAY, Clock
from aerobee.console.body_schemas import BodySchemas, ResponseBodies
from aerobee.console.browse import Browser, Search
from aerobee.console.charts import Charts
from aerobee.console.history import CLUSTER, Kind
from aerobee.console.masks import Masks, masked
from aerobee.console.placement_view import PlacementView
from aerobee.console.rebalances import rebalance_row
from aerobee.console.schedule_actions import next_ticks
from aerobee.console.snapshot import GroupLook, Snapshot, TopicLook, group_row, topic_row
from aerobee.console.topology import Topology
from aerobee.errors import (
    AerobeeError,
    ConsumerNotOnline,
    RemoteSystemError,
    RequestNotSupported,
    UsageError,
)
from aerobee.message import MessageQueue, check_group_name
from aerobee.monitoring.lag_state import SEVERITY
from aerobee.ops.commands.consume import shown_document
from aerobee.ops.commands.schedule import schedule_row
from aerobee.ops.commands.trace import event_document
from aerobee.ops.diagnosis.why_facts import gather_group, gather_message
from aerobee.ops.diagnosis.why_rules import findings
from aerobee.ops.settings.setting_meanings import SettingMeaning, broker_settings
from aerobee.ops.settings.setting_subjects import SUBJECTS, subject_of
from aerobee.system_names import TRACE_TOPIC

BODY_MAX = 65_536  # bytes of a body that a page gets
LISTED_BODY_MAX = 8_192  # in a list of messages, of which each can be read whole
WHOLE_BODY_MAX = 4 * 1024 * 1024  # of one message
FOUND_MAX = 64
DEAD_LETTERS_MAX = 200
SCHEDULES_MAX = 500
ORIGINS = ("RETRY_TOPIC", "REAL_TOPIC")  # properties with the original topic of a message
PAGE_ROWS = 100  # rows of a list in one response
NUMBER_DIGITS_MAX = 15

Query = Mapping[str, str]
Row = TypeVar("Row")
# Columns by which the lists of topics and groups are sorted, over all their pages.
TOPIC_ORDERS: Mapping[str, Callable[[TopicLook], Any]] = {
    "name": lambda look: look.name,
    "in": lambda look: look.rate,
    "out": lambda look: look.out,
    "messages": lambda look: look.messages,
    "queues": lambda look: look.queues,
    "last": lambda look: look.last_ms,
}
GROUP_ORDERS: Mapping[str, Callable[[GroupLook], Any]] = {
    "name": lambda look: look.name,
    "state": lambda look: -SEVERITY.index(look.state),
    "lag": lambda look: look.lag,
    "late": lambda look: look.late_ms,
    "drain": lambda look: look.drain_s,
    "out": lambda look: look.tps,
    "members": lambda look: look.members,
}


class Views:
    """Reads from the snapshot, or from the brokers what the snapshot does not contain."""

    def __init__(
        self,
        admin: Admin,
        snapshot: Snapshot,
        clock: Clock,
        placement: PlacementView,
        charts: Charts,
        topology: Topology,
        schemas: BodySchemas,
        masks: Masks,
    ) -> None:
        self._bodies = schemas.for_response
        self._masks = masks
        self._admin = admin
        self._charts = charts
        self._topology = topology
        self._browser = Browser(admin, masks)
        self._placement = placement
        self._snapshot = snapshot
        self._clock = clock
        self.paths = {
            "overview": self.overview,
            "charts": self.charts,
            "topics": self.topics,
            "topic": self.topic,
            "groups": self.groups,
            "group": self.group,
            "rebalances": self.rebalances,
            "browse": self.browse,
            "message": self.message,
            "messages": self.messages,
            "trace": self.trace,
            "why": self.why,
            "dlq": self.dead_letter_groups,
            "dead-letters": self.dead_letters,
            "transactions": self.transactions,
            "timers": self.timers,
            "schedules": self.schedules,
            "settings": self.settings,
            "access": self.access,
            "topology": self.topology,
            "placement": self.placement,
        }

    async def overview(self, query: Query) -> dict[str, Any]:
        return self._snapshot.overview()

    async def charts(self, query: Query) -> dict[str, Any]:
        """The charts `of` the cluster, or of the broker (an address), topic or group `name`, over the last `range`."""
        try:
            kind = Kind(query.get("of", Kind.CLUSTER.value))
        except ValueError:
            raise UsageError(f"of is {query['of']!r}, must be cluster, broker, topic or group") from None
        name = CLUSTER if kind is Kind.CLUSTER else needed(query, "name")
        self._snapshot.charted(kind, name)
        rows = self._snapshot.brokers
        broker_name = next((row["name"] for row in rows if row["address"] == name), "")
        clusters = {row["cluster"] for row in rows}
        return await self._charts.document(kind, name, query.get("range", "10m"), clusters, broker_name)

    async def topics(self, query: Query) -> dict[str, Any]:
        wanted, offset, count = query.get("filter", "").lower(), number(query, "offset", 0), _page(query)
        found = [each for each in self._snapshot.topics.values() if wanted in each.name.lower()]
        found = _sorted(found, query, TOPIC_ORDERS)
        shown = found[offset : offset + count]
        self._snapshot.shown_topics(each.name for each in shown)
        return {"total": len(found), "rows": [topic_row(each) for each in shown]}

    async def topic(self, query: Query) -> dict[str, Any]:
        name = needed(query, "name")
        stats = await self._admin.topic_stats(name)
        return {
            "name": name,
            "queues": [
                {
                    "broker": row.queue.broker_name,
                    "queue_id": row.queue.queue_id,
                    "min_offset": row.min_offset,
                    "max_offset": row.max_offset,
                    "last_ms": row.last_update_ms,
                }
                for row in stats
            ],
            "settings": [
                {
                    "broker": each.broker_address,
                    "read_queues": each.read_queue_count,
                    "write_queues": each.write_queue_count,
                    "perm": each.perm,
                    "order": each.order,
                    "type": each.message_type,
                    "ack": each.ack,
                }
                for each in await self._admin.topic_config(name)
            ],
            "groups": await self._admin.topic_groups(name),
        }

    async def groups(self, query: Query) -> dict[str, Any]:
        wanted, offset, count = query.get("filter", "").lower(), number(query, "offset", 0), _page(query)
        found = [
            each
            for each in self._snapshot.groups.values()
            if wanted in f"{each.name} {each.state.value}".lower()
        ]
        found = _sorted(found, query, GROUP_ORDERS)
        shown = found[offset : offset + count]
        self._snapshot.shown_groups(each.name for each in shown)
        return {"total": len(found), "rows": [group_row(each) for each in shown]}

    async def group(self, query: Query) -> dict[str, Any]:
        name = needed(query, "name")
        check_group_name(name)
        progress = await self._admin.consumer_progress(name)
        try:
            online = await self._admin.consumer_connections(name)
        except (ConsumerNotOnline, AerobeeError):
            online = None
        locks = await self._admin.queue_locks(name)
        now_ms = self._clock.now_ms()
        look = self._snapshot.groups.get(name)
        return {
            "name": name,
            "look": group_row(look) if look is not None else None,
            "tps": progress.consume_tps,
            "settings": [
                {
                    "broker": each.broker_address,
                    "retries": each.retry_count_max,
                    "retry_queues": each.retry_queue_count,
                    "consume": each.consume_enabled,
                    "broadcast": each.broadcast_enabled,
                    "orderly": each.orderly,
                }
                for each in (look.settings if look is not None else ())
            ],
            "queues": [
                {
                    "topic": row.queue.topic,
                    "broker": row.queue.broker_name,
                    "queue_id": row.queue.queue_id,
                    "end": row.broker_offset,
                    "committed": row.consumer_offset,
                    "lag": row.lag,
                    "wanted": row.wanted,
                    "late_ms": await self._late_ms(row.queue, row.consumer_offset) if row.lag > 0 else 0,
                    "owner": row.client_id,
                }
                for row in progress.queues
            ],
            "members": [
                {
                    "client_id": each.client_id,
                    "address": each.address,
                    "language": each.language,
                    "version": each.version_text,
                    "protocol": each.protocol,
                }
                for each in (online.connections if online else ())
            ],
            "model": online.message_model if online else None,
            "subscriptions": [
                {"topic": each.topic, "expression": each.expression, "type": each.expression_type}
                for each in (online.subscriptions if online else ())
            ],
            "conflicts": [
                {
                    "topic": each.topic,
                    "client_id": each.client_id,
                    "expression": each.expression,
                    "other_client_id": each.other_client_id,
                    "other_expression": each.other_expression,
                }
                for each in (online.conflicts if online else ())
            ],
            "locks": [
                {
                    "topic": lock.queue.topic,
                    "broker": lock.queue.broker_name,
                    "queue_id": lock.queue.queue_id,
                    "client_id": lock.client_id,
                    "held_ms": now_ms - lock.since_ms,
                    "age_ms": lock.age_ms,
                }
                for lock in locks or ()
            ],
        }

    async def rebalances(self, query: Query) -> dict[str, Any]:
        """The rebalances of a group since the console began to read it, the newest first."""
        found = self._snapshot.rebalances.of(needed(query, "group"))
        return {"rebalances": [rebalance_row(each) for each in found[:PAGE_ROWS]], "total": len(found)}

    async def _late_ms(self, queue: Any, offset: int) -> int | None:
        """Lag time: the age of the oldest unconsumed message in ms; None if it cannot be read."""
        try:
            message = await self._admin.message_at(queue, max(0, offset))
        except AerobeeError:
            return None
        return max(0, self._clock.now_ms() - message.store_timestamp)

    async def browse(self, query: Query) -> dict[str, Any]:
        """A page of a topic's messages: see browse.Search."""
        order = query.get("by", "newest")
        found = await self._browser.page(
            Search(
                topic=needed(query, "topic"),
                queue=query.get("queue", ""),
                order=order,
                start=number(query, "what") if order in ("offset", "time") else 0,
                filter_by=query.get("filter", ""),
                value=query.get("value", ""),
                cursor=query.get("cursor", ""),
            )
        )
        return found | {
            "messages": _all_shown(found.pop("messages"), self._bodies(), self._masks, LISTED_BODY_MAX)
        }

    async def message(self, query: Query) -> dict[str, Any]:
        """The message at an `offset` of a `queue` (broker/id) of a `topic`, with its whole body."""
        topic, offset = needed(query, "topic"), number(query, "offset")
        broker, _, queue_id = needed(query, "queue").rpartition("/")
        if not queue_id.isdecimal() or len(queue_id) > 9:
            raise UsageError(f"queue is {query['queue']!r}, not broker/id")
        found = await self._admin.message_at(MessageQueue(topic, broker, int(queue_id)), offset)
        return {"message": shown(found, WHOLE_BODY_MAX, self._bodies(), masks=self._masks)}

    async def messages(self, query: Query) -> dict[str, Any]:
        """Messages by `id` (a unique key needs the topic), by `key`, or by `time` in ms: the first of each queue from then on."""
        topic = query.get("topic", "")
        if query.get("id"):
            found = [await self._admin.message(query["id"], topic or None)]
        elif query.get("key"):
            found = list(
                await self._admin.messages_by_key(needed(query, "topic"), query["key"], count_max=FOUND_MAX)
            )
        elif query.get("time"):
            found = await self._at_time(needed(query, "topic"), number(query, "time"))
        else:
            raise UsageError("give an id, a key or a time")
        return {"messages": _all_shown(found, self._bodies(), self._masks)}

    async def _at_time(self, topic: str, time_ms: int) -> list[ReceivedMessage]:
        found = []
        for row in await self._admin.topic_stats(topic):
            low, high = row.min_offset, row.max_offset
            while low < high:  # binary search of the first message stored at or after the time
                middle = (low + high) // 2
                message = await self._admin.message_at(row.queue, middle)
                if message.store_timestamp < time_ms:
                    low = middle + 1
                else:
                    high = middle
            for offset in range(low, min(low + 8, row.max_offset)):
                found.append(await self._admin.message_at(row.queue, offset))
        return sorted(found, key=lambda each: each.store_timestamp)[:FOUND_MAX]

    async def trace(self, query: Query) -> dict[str, Any]:
        now_ms = self._clock.now_ms()
        events = await self._admin.trace(
            needed(query, "id"), trace_topic=TRACE_TOPIC, end_ms=now_ms + MS_PER_DAY
        )
        return {"events": [event_document(event) for event in events]}

    async def why(self, query: Query) -> dict[str, Any]:
        group, topic, message_id = (
            needed(query, "group"),
            query.get("topic") or None,
            query.get("message") or None,
        )
        check_group_name(group)
        facts = await gather_group(self._admin, group, topic)
        message = await gather_message(self._admin, facts, message_id, topic) if message_id else None
        return {"findings": [{"kind": each.kind, "text": each.text} for each in findings(facts, message)]}

    async def dead_letter_groups(self, query: Query) -> dict[str, Any]:
        rows = []
        for group in await self._admin.dead_letter_groups():
            queues = await self._admin.dead_letter_queues(group)
            count, waiting = sum(each.count for each in queues), sum(each.waiting for each in queues)
            rows.append({"group": group, "dead_letters": count, "waiting": waiting})
        return {"groups": rows}

    async def dead_letters(self, query: Query) -> dict[str, Any]:
        group = needed(query, "group")
        check_group_name(group)
        rows: list[dict[str, Any]] = []
        bodies = self._bodies()
        async for dead in self._admin.dead_letters(group, only_waiting=query.get("waiting") == "true"):
            rows.append(
                {
                    "topic": dead.topic,
                    "message_id": dead.message_id,
                    "reason": dead.reason,
                    "error": dead.error,
                    "tries": dead.tries,
                    "died_ms": dead.died_ms,
                    "message": shown(dead.message, bodies=bodies, topic=dead.topic, masks=self._masks),
                }
            )
            if len(rows) >= DEAD_LETTERS_MAX:
                break
        return {"dead_letters": rows, "is_cut": len(rows) >= DEAD_LETTERS_MAX}

    async def transactions(self, query: Query) -> dict[str, Any]:
        try:
            found = await self._admin.transactions(state=query.get("state", "open"))
        except RequestNotSupported:
            return {"unsupported": "RocketMQ's brokers do not list open transactions"}
        return {
            "total": found.total,
            "transactions": [
                {
                    "id": each.transaction_id,
                    "group": each.group,
                    "topic": each.topic,
                    "state": each.state,
                    "age_ms": each.age_ms,
                    "checks": each.checks,
                    "checks_max": each.checks_max,
                    "next_check_ms": each.next_check_ms,
                    "producers": each.producers_online,
                    "keys": each.keys,
                }
                for each in found.transactions
            ],
        }

    async def timers(self, query: Query) -> dict[str, Any]:
        try:
            found = await self._admin.timers(topic=query.get("topic") or None, count_max=200)
        except RequestNotSupported:
            return {"unsupported": "RocketMQ's brokers do not list pending timer messages"}
        return {
            "pending": found.pending,
            "timers": [
                {
                    "id": each.message_id,
                    "topic": each.topic,
                    "due_ms": each.due_ms,
                    "in_ms": each.in_ms,
                    "keys": each.keys,
                    "tag": each.tag,
                    "body_bytes": each.body_bytes,
                    "handle": each.recall_handle,
                }
                for each in found.timers
            ],
        }

    async def schedules(self, query: Query) -> dict[str, Any]:
        """Recurring schedules with their next ticks."""
        try:
            found = await self._admin.schedules()
        except RequestNotSupported:
            return {"unsupported": "RocketMQ's brokers have no recurring schedules"}
        now_ms = self._clock.now_ms()
        return {
            "total": len(found),
            "schedules": [
                {
                    **schedule_row(info),
                    "last_tick_ms": info.schedule.last_tick_ms,
                    "in_ms": max(0, info.next_due_ms - now_ms) if info.next_due_ms else None,
                    "next_ticks": next_ticks(info, now_ms),
                }
                for info in found[:SCHEDULES_MAX]
            ],
        }

    async def settings(self, query: Query) -> dict[str, Any]:
        address = needed(query, "broker")
        if address not in {row["address"] for row in self._snapshot.brokers}:
            raise UsageError(f"{address} is not a broker of this cluster")
        known = broker_settings()
        config = await self._admin.broker_config(address)
        nothing = SettingMeaning("", "", is_live=False)
        return {
            "broker": address,
            "subjects": SUBJECTS,
            "settings": [
                {
                    "subject": subject_of(key),
                    "is_live": key not in known or known[key].is_live,  # RocketMQ's brokers have further keys
                    "key": key,
                    "value": value,
                    "meaning": known.get(key, nothing).meaning,
                    "default": known.get(key, nothing).default,
                }
                for key, value in sorted(config.items())
            ],
        }

    async def access(self, query: Query) -> dict[str, Any]:
        try:
            users, policies = await self._admin.users(), await self._admin.policies()
        except (RequestNotSupported, RemoteSystemError) as error:
            return {"unsupported": f"The cluster has no access control: {error.plain}"}
        return {
            "users": [
                {
                    "user": each.name,
                    "is_super": each.is_super,
                    "is_enabled": each.is_enabled,
                    "at": each.addresses,
                }
                for each in users
            ],
            "policies": [
                {
                    "user": each.user,
                    "resource": each.resource,
                    "actions": each.actions,
                    "is_allowed": each.is_allowed,
                    "policy": each.policy,
                    "source_ips": each.source_ips,
                    "at": each.addresses,
                }
                for each in policies
            ],
        }

    async def topology(self, query: Query) -> dict[str, Any]:
        return await self._topology.document()

    async def placement(self, query: Query) -> dict[str, Any]:
        return await self._placement.of_file()


def needed(query: Query, name: str) -> str:
    """A parameter that must be given. Raises UsageError."""
    value = query.get(name, "").strip()
    if not value:
        raise UsageError(f"{name} is missing")
    return value


def number(query: Query, name: str, default: int | None = None) -> int:
    """A whole number, 0 or above. Raises UsageError."""
    text = needed(query, name) if default is None else query.get(name, str(default))
    if not text.isdecimal() or len(text) > NUMBER_DIGITS_MAX:
        raise UsageError(f"{name} is {text!r}, not a whole number")
    return int(text)


def _sorted(rows: list[Row], query: Query, orders: Mapping[str, Callable[[Row], Any]]) -> list[Row]:
    """The rows by the column `sort`, descending if `way` is down; rows without a value come last. Without `sort` as they are."""
    name = query.get("sort", "")
    if not name:
        return rows
    if name not in orders:
        raise UsageError(f"sort is {name!r}, must be one of {', '.join(orders)}")
    value = orders[name]
    known = [row for row in rows if value(row) is not None]
    known.sort(key=value, reverse=query.get("way") == "down")
    return known + [row for row in rows if value(row) is None]


def _page(query: Query) -> int:
    return max(1, min(number(query, "count", PAGE_ROWS), PAGE_ROWS))


def _all_shown(
    messages: list[ReceivedMessage], bodies: ResponseBodies, masks: Masks, body_max: int = BODY_MAX
) -> list[dict[str, Any]]:
    """As shown(). Each message is released before the body of the next one is inflated, which may take 16 MiB."""
    messages.reverse()
    return [shown(messages.pop(), body_max, bodies, masks=masks) for _ in range(len(messages))]


def shown(
    message: ReceivedMessage,
    body_max: int = BODY_MAX,
    bodies: ResponseBodies | None = None,
    topic: str = "",
    masks: Masks | None = None,
) -> dict[str, Any]:
    """A message for a page: the body as base64, truncated to `body_max` bytes, and `decoded` by the schema of `topic`, by
    default the message's. `masks` hide fields of the body; a body with hidden fields is not decoded by a schema."""
    document = shown_document(message)
    del document["encoding"]
    body, _ = message.body_or_stored()
    names = (
        topic,
        message.topic,
        message.queue.topic,
        *(message.properties.get(each, "") for each in ORIGINS),
    )
    paths = masks.paths_of(names) if masks is not None else ()
    if paths:
        body = masked(body, paths)
    return document | {
        "queue_topic": message.queue.topic,
        "body": b64encode(body[:body_max]).decode(),
        "body_bytes": len(body),
        "is_cut": len(body) > body_max,
        "is_masked": bool(paths),
        "decoded": bodies.decoded(topic or message.topic, body) if bodies is not None and not paths else None,
    }
