"""Rules of `aerobee why`: from facts to findings. Pure.

Each rule reads the facts and yields findings. A finding is one sentence, with its values for --json. Findings are sorted
by RANK: the first one is the answer, the others are its causes and further observations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aerobee.broker.filter.sql92 import FilterSyntaxError, compile_filter
from aerobee.client import ReceivedMessage
from aerobee.client.admin.explain import InvisibleMessage
from aerobee.client.base.results import QueueProgress, SubscriptionInfo
from aerobee.client.base.trace_record import TraceEvent, TraceKind
from aerobee.message import DLQ_PREFIX, MessageQueue
from aerobee.ops.diagnosis.why_facts import GroupFacts, MessageFacts, TopicRates, Waiting
from aerobee.ops.terminal.times import moment_text
from aerobee.words import plural

# Kinds of findings, the strongest first.
RANK = (
    "dead-letter", "consumed-again", "consumed", "filtered", "not-subscribed", "undecided", "rolled-back", "delayed",
    "overdue", "retry", "invisible", "in-progress", "stored-twice", "no-offset", "behind", "passed", "gone", "never-stored",
    "no-group", "disabled", "no-topic", "no-members", "conflict", "shared-id", "lock", "no-owner", "lag", "dead-letters", "replicas", "well",
)  # fmt: skip
STUCK_LOCK_MS = 60_000
SHOWN_MAX = 5  # queues or members that a sentence lists by name


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `kind` is one of RANK."""

    kind: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        return {"kind": self.kind, "text": self.text, **self.facts}


def findings(group: GroupFacts, message: MessageFacts | None) -> list[Finding]:
    """All findings, the answer first. Never empty."""
    found: list[Finding] = []
    if message is not None:
        found += _of_message(group, message)
    found += _of_group(group, {copy.queue for copy in message.stored} if message is not None else set())
    if not found:
        found.append(Finding("well", f"group {group.group} has no lag, and no problem was found"))
    return sorted(found, key=lambda each: RANK.index(each.kind))


# --- a group


def _of_group(facts: GroupFacts, asked: Collection[MessageQueue]) -> Iterator[Finding]:
    yield from _settings(facts)
    yield from _members(facts)
    yield from _shared_ids(facts)
    yield from _locks(facts, asked)
    yield from _lag(facts)
    if facts.invisible:
        until = max(each.visible_at_ms for each in facts.invisible)
        yield Finding(
            "invisible",
            f"{plural(len(facts.invisible), 'message')} delivered by POP {_are(len(facts.invisible))} not acknowledged yet "
            f"and invisible to other members until {moment_text(until)} at the latest",
            {"count": len(facts.invisible), "until": until},
        )
    if facts.dead_count:
        yield Finding(
            "dead-letters",
            f"the group has {plural(facts.dead_count, 'dead-letter message')} in topic {DLQ_PREFIX}{facts.group}",
            {"count": facts.dead_count, "topic": DLQ_PREFIX + facts.group},
        )


def _settings(facts: GroupFacts) -> Iterator[Finding]:
    if not facts.settings and facts.connections is None and not facts.progress:
        yield Finding(
            "no-group",
            f"no broker knows group {facts.group}: no client has consumed with it; `aerobee group list` shows the known "
            "groups",
        )
    disabled = [each.broker_address for each in facts.settings if not each.consume_enabled]
    if disabled:
        yield Finding(
            "disabled",
            f"consumption is disabled for the group (consumeEnable=false) at {', '.join(disabled)}",
            {"brokers": disabled},
        )
    for topic in facts.missing_topics:
        yield Finding("no-topic", f"topic {topic} does not exist", {"topic": topic})


def _members(facts: GroupFacts) -> Iterator[Finding]:
    connections = facts.connections
    if connections is None:
        if facts.settings or facts.progress:
            yield Finding(
                "no-members",
                f"no member of group {facts.group} is online, so no client consumes its messages",
            )
        return
    subscribed = {each.topic for each in connections.subscriptions}
    for topic in facts.topics:
        if topic not in subscribed:
            yield Finding(
                "not-subscribed",
                f"the online members of group {facts.group} do not subscribe to topic {topic}, but to "
                f"{_listed(sorted(name for name in subscribed if not name.startswith('%')))}",
                {"topic": topic, "subscribed": sorted(subscribed)},
            )
    for each in facts.differences:
        yield Finding(
            "conflict",
            f"members of the group have different subscriptions to topic {each.topic}: {each.client_id} to "
            f"{each.expression}, {each.other_client_id} to {each.other_expression}. Messages that only one of them "
            "subscribes to get lost at the other: all members of a group need the same subscription",
            {
                "topic": each.topic,
                "client_id": each.client_id,
                "expression": each.expression,
                "other_client_id": each.other_client_id,
                "other_expression": each.other_expression,
            },
        )


def _shared_ids(facts: GroupFacts) -> Iterator[Finding]:
    for each in facts.shared_ids:
        first, *others = each.addresses or ("?",)
        yield Finding(
            "shared-id",
            f"the clients at {first} and {', '.join(others)} have the same client id, {each.client_id}: {first} gets the "
            "queues of this id, the others get none. Set a distinct instance name for each client",
            {"client_id": each.client_id, "addresses": list(each.addresses)},
        )


def _locks(facts: GroupFacts, asked: Collection[MessageQueue]) -> Iterator[Finding]:
    """Locks of orderly groups. A lock is normal; it is a finding if its holder is offline, if the queue makes no progress,
    or if the message in question is in the queue."""
    online = {each.client_id for each in facts.connections.connections} if facts.connections else set()
    for lock in facts.locks or ():
        progress = facts.progress_of(lock.queue)
        is_gone = lock.client_id not in online
        is_idle = progress is None or progress.broker_offset <= progress.reached
        moved_ms = max(lock.since_ms, progress.member_worked_ms if progress is not None else 0)
        is_stuck = facts.now_ms - moved_ms >= STUCK_LOCK_MS
        if not is_gone and (is_idle or not (is_stuck or lock.queue in asked)):
            continue
        held_ms, left_ms = facts.now_ms - lock.since_ms, lock.lease_ms - lock.age_ms
        holder = f"{lock.client_id}, which is not online" if is_gone else lock.client_id
        ends = f"; the lock expires in {_seconds(left_ms)} unless renewed" if left_ms > 0 else ""
        yield Finding(
            "lock",
            f"queue {_queue(lock.queue)} has been locked for {_seconds(held_ms)} by {holder}{ends}: in an orderly group "
            "no other member consumes it meanwhile",
            {
                "topic": lock.queue.topic,
                "broker": lock.queue.broker_name,
                "queue_id": lock.queue.queue_id,
                "client_id": lock.client_id,
                "online": not is_gone,
                "held_ms": held_ms,
                "renewed_ms_ago": lock.age_ms,
            },
        )


def _lag(facts: GroupFacts) -> Iterator[Finding]:
    by_topic: dict[str, list[QueueProgress]] = {}
    for each in facts.progress:
        by_topic.setdefault(each.queue.topic, []).append(each)
    for topic, rows in sorted(by_topic.items()):
        if topic not in facts.topics and not topic.startswith("%RETRY%" + facts.group):
            continue
        behind = [each for each in rows if each.broker_offset > each.reached]
        if not behind:
            continue
        lag = sum(each.broker_offset - each.reached for each in behind)
        rates = facts.rates.get(topic)
        since = min((each.last_timestamp_ms for each in behind if each.last_timestamp_ms > 0), default=0)
        yield Finding(
            "lag",
            f"topic {topic}: lag of {plural(lag, 'message')} in {plural(len(behind), 'queue')} of {len(rows)}"
            + (f", the last consumed message is of {moment_text(since)}" if since else "")
            + (_rate_text(lag, rates) if facts.connections is not None else ""),
            {
                "topic": topic,
                "lag": lag,
                "queues_behind": len(behind),
                "queues": len(rows),
                "last_consumed": since,
                "stored_per_s": rates.stored if rates else None,
                "handed_out_per_s": rates.handed_out if rates else None,
                "seconds_to_catch_up": _catch_up_s(lag, rates),
            },
        )
        ownerless = [each.queue for each in behind if not each.client_id]
        if facts.connections is not None and ownerless and len(ownerless) < len(rows):
            yield Finding(
                "no-owner",
                f"no member reports that it owns {_listed([_queue(queue) for queue in ownerless])}: a rebalance is "
                "in progress, or the owner does not respond",
                {"queues": [_queue(queue) for queue in ownerless]},
            )


def _rate_text(lag: int, rates: TopicRates | None) -> str:
    if rates is None or rates.handed_out is None:
        return ""
    text = f"; {rates.handed_out:.1f} messages/s delivered"
    if rates.stored is not None:
        text += f", {rates.stored:.1f} messages/s stored (last minute)"
    seconds = _catch_up_s(lag, rates)
    return text + (
        f": time to drain about {_seconds(seconds * 1000)}" if seconds is not None else ": not catching up"
    )


def _catch_up_s(lag: int, rates: TopicRates | None) -> float | None:
    if rates is None or rates.handed_out is None:
        return None
    gain = rates.handed_out - (rates.stored or 0.0)
    return round(lag / gain, 1) if gain > 0.01 else None


# --- a message


def _of_message(group: GroupFacts, facts: MessageFacts) -> Iterator[Finding]:
    yield from _dead(facts)
    yield from _consumed(group, facts)
    yield from _before_it_is_stored(group, facts)
    yield from _retries(group, facts)
    if len(facts.stored) > 1:
        yield Finding(
            "stored-twice",
            f"the message is stored {plural(len(facts.stored), 'time')}, at {_listed([_where(each) for each in facts.stored])}: "
            "the producer retried the send, so each copy is consumed. See `docs/idempotence.md`",
            {"positions": [_where(each) for each in facts.stored]},
        )
    settled = bool(facts.dead or facts.retried or any(_is_for_retry(each) for each in facts.waiting))
    for copy in facts.stored:
        yield from _copy(group, facts, copy, settled)
        yield from _replicas(facts, copy)


def _replicas(facts: MessageFacts, copy: ReceivedMessage) -> Iterator[Finding]:
    """Which replicas have the message, if there is more than one."""
    replicas = [each for each in facts.replicas if each.broker_name == copy.queue.broker_name]
    masters = [each for each in replicas if each.is_master]
    if len(replicas) < 2 and masters:
        return
    at = copy.physical_offset
    have = [each for each in replicas if each.log_end > at]
    lack = [each for each in replicas if each.log_end <= at]
    named = [f"{each.role or ('master' if each.is_master else 'slave')} {each.address}" for each in have]
    text = (
        f"{_where(copy)} is stored at {_listed(named)}"
        if named
        else f"{_where(copy)} is stored at no responding broker"
    )
    if lack:
        lacking = [
            f"{each.address} lacks the last {plural(at - each.log_end + 1, 'byte')} up to it" for each in lack
        ]
        text += f"; {', '.join(lacking)}"
    is_confirmed = any(each.confirmed > at for each in masters)
    if masters:
        text += f"; epoch {masters[0].epoch}, {'confirmed' if is_confirmed else 'not confirmed by the replicas yet'}"
    else:
        text += "; the group has no master now"
    yield Finding(
        "replicas",
        text,
        {
            "at": [each.address for each in have],
            "lacking": [each.address for each in lack],
            "epoch": max((each.epoch for each in masters), default=-1),
            "confirmed": is_confirmed,
        },
    )


def _dead(facts: MessageFacts) -> Iterator[Finding]:
    for copy in facts.dead:
        properties = copy.properties
        tries = properties.get("DLQ_TRIES") or str(copy.reconsume_times)
        reason = properties.get("DLQ_REASON", "")
        error = properties.get("LAST_ERROR", "")
        yield Finding(
            "dead-letter",
            f"the message has been in the dead-letter queue since {moment_text(copy.store_timestamp)}, "
            f"after {tries} {'try' if tries == '1' else 'tries'}"
            + (f": {reason}" if reason else "")
            + (f"; last error: {error}" if error else ""),
            {
                "since": copy.store_timestamp,
                "tries": int(tries) if tries.isdigit() else 0,
                "reason": reason,
                "last_error": error,
                "position": _where(copy),
            },
        )


def _consumed(group: GroupFacts, facts: MessageFacts) -> Iterator[Finding]:
    hosts = {each.request_id: each for each in facts.trace if each.kind is TraceKind.SUB_BEFORE}
    done = [each for each in _ends(facts, group.group) if each.success]
    if not done:
        return
    parts = [f"by {each.client_host} at {moment_text(_end_ms(each, hosts))}" for each in done]
    clients = [{"client": each.client_host, "time": _end_ms(each, hosts)} for each in done]
    if len(done) == 1:
        yield Finding("consumed", f"the message was consumed {parts[0]} (trace)", {"consumptions": clients})
        return
    yield Finding(
        "consumed-again",
        f"the message was consumed {plural(len(done), 'time')}: {_listed(parts)} (trace). Delivery is at least once: after a "
        "crash, a rebalance or an offset reset a message is redelivered",
        {"consumptions": clients},
    )


def _ends(facts: MessageFacts, group: str) -> list[TraceEvent]:
    begun = {
        each.request_id for each in facts.trace if each.kind is TraceKind.SUB_BEFORE and each.group == group
    }
    return [
        each
        for each in facts.trace
        if each.kind is TraceKind.SUB_AFTER and (each.group == group or each.request_id in begun)
    ]


def _end_ms(end: TraceEvent, begins: dict[str, TraceEvent]) -> int:
    begin = begins.get(end.request_id)
    return end.time_ms or (begin.time_ms + end.cost_ms if begin is not None else 0)


def _before_it_is_stored(group: GroupFacts, facts: MessageFacts) -> Iterator[Finding]:
    due = [each for each in facts.waiting if not _is_for_retry(each)]
    if facts.half and not facts.stored:
        open_one = facts.transaction
        if open_one is not None:
            yield Finding(
                "undecided",
                f"its transaction is open: a half message of producer group {open_one.group} for "
                f"{_seconds(open_one.age_ms)}, checked {open_one.checks} of {plural(open_one.checks_max, 'time')}, "
                f"{plural(open_one.producers_online, 'producer')} online",
                {"age_ms": open_one.age_ms, "checks": open_one.checks, "producer_group": open_one.group},
            )
        else:
            yield Finding(
                "rolled-back",
                "only its half message is stored: its transaction was rolled back or given up, or the broker does not "
                "report transactions",
                {"half_message_since": facts.half[0].store_timestamp},
            )
    elif due and not facts.stored and not facts.dead:
        last = due[-1]
        late_ms = group.now_ms - last.due_ms
        if late_ms <= 0:
            text = f"the message is delayed until {moment_text(last.due_ms)}, in {_seconds(-late_ms)}"
        else:
            text = f"the message was due at {moment_text(last.due_ms)}, {_seconds(late_ms)} ago, and is not delivered yet"
        yield Finding(
            "delayed" if late_ms <= 0 else "overdue", text, {"due": last.due_ms, "for": last.for_topic}
        )
    elif not (facts.stored or facts.retried or facts.waiting or facts.dead or facts.half):
        yield from _absent(facts)


def _absent(facts: MessageFacts) -> Iterator[Finding]:
    sent = [each for each in facts.trace if each.kind is TraceKind.PUB]
    if sent:
        yield Finding(
            "gone",
            f"the message was sent at {moment_text(sent[0].time_ms)} to {sent[0].topic} (trace) and is no longer stored: "
            "it expired, or the broker lost it",
            {"sent": sent[0].time_ms, "topic": sent[0].topic},
        )
        return
    oldest = [
        f"the oldest message of {name} is of {moment_text(each)}"
        for name, each in facts.oldest_ms.items()
        if each
    ]
    where = _listed(list(facts.searched)) if facts.searched else "any topic of the group"
    yield Finding(
        "never-stored",
        f"no message {facts.message_id} was ever stored in {where}"
        + (f", or it has expired ({'; '.join(oldest)})" if oldest else "")
        + ("" if facts.searched else "; name a topic with --topic"),
        {"searched": list(facts.searched), "oldest": facts.oldest_ms},
    )


def _retries(group: GroupFacts, facts: MessageFacts) -> Iterator[Finding]:
    if facts.dead:
        return
    waiting = [each for each in facts.waiting if _is_for_retry(each) and each.due_ms > group.now_ms]
    if waiting:
        last = waiting[-1]
        copy, tries = last.copy, last.copy.reconsume_times
        yield Finding(
            "retry",
            f"the message {_failed(copy)} {plural(tries, 'time')}; {group.retry_text(tries)} is due at "
            f"{moment_text(last.due_ms)}, in {_seconds(last.due_ms - group.now_ms)}" + _error_text(last.copy),
            {"tries": tries, "tries_max": group.retry_count_max, "due": last.due_ms},
        )
        return
    if not facts.retried:
        return
    copy = facts.retried[-1]
    tries = copy.reconsume_times
    progress = group.progress_of(copy.queue)
    hidden = _invisible_entry(group, copy)
    if hidden is not None:
        yield _handed_out(
            copy, hidden, f"the message {_failed(copy)} {plural(tries, 'time')}; retry {tries}: "
        )
    elif progress is not None and progress.reached <= copy.queue_offset:
        before = copy.queue_offset - progress.reached
        yield Finding(
            "retry",
            f"the message {_failed(copy)} {plural(tries, 'time')}; {group.retry_text(tries)} is due and pending in "
            f"{_where(copy)}, {plural(before, 'message')} before it" + _error_text(copy),
            {
                "tries": tries,
                "tries_max": group.retry_count_max,
                "due": copy.store_timestamp,
                "before": before,
            },
        )
    else:
        yield Finding(
            "passed",
            f"the message {_failed(copy)} {plural(tries, 'time')}, and {group.retry_text(tries)} was delivered after "
            f"{moment_text(copy.store_timestamp)}: it has not failed since" + _error_text(copy),
            {"tries": tries, "tries_max": group.retry_count_max, "handed_out_after": copy.store_timestamp},
        )


def _copy(group: GroupFacts, facts: MessageFacts, copy: ReceivedMessage, settled: bool) -> Iterator[Finding]:
    """Findings about one stored copy in its queue."""
    reason = _filter_reason(group, copy)
    if reason:
        yield Finding("filtered", f"{_where(copy)}: {reason}", {"position": _where(copy)})
    hidden = _invisible_entry(group, copy)
    if hidden is not None:
        yield _handed_out(copy, hidden)
        return
    progress = group.progress_of(copy.queue)
    if progress is None or progress.consumer_offset < 0:
        yield Finding(
            "no-offset",
            f"{_where(copy)}: stored at {moment_text(copy.store_timestamp)}, but group {group.group} has no committed offset "
            "in that queue: it has never consumed a message of it",
            {"position": _where(copy), "stored": copy.store_timestamp},
        )
    elif progress.reached <= copy.queue_offset:
        if not reason:
            yield _not_yet(group, copy, progress)
    elif not settled and not reason and not any(each.success for each in _ends(facts, group.group)):
        yield Finding(
            "passed",
            f"{_where(copy)}: the group's offset in that queue is {progress.reached}, after this message, so a member has "
            "consumed it, or the offset was reset past it; only a trace shows which client and when (trace=True, Java: "
            "enableMsgTrace)",
            {"position": _where(copy), "consumer_offset": progress.reached},
        )


def _not_yet(group: GroupFacts, copy: ReceivedMessage, progress: QueueProgress) -> Finding:
    before = copy.queue_offset - progress.reached
    shared = {
        "position": _where(copy),
        "stored": copy.store_timestamp,
        "consumer_offset": progress.reached,
        "before": before,
        "client_id": progress.client_id,
    }
    if progress.pull_offset > copy.queue_offset and progress.client_id:
        return Finding(
            "in-progress",
            f"{_where(copy)}: {progress.client_id} has pulled the message but not committed it"
            + (f", nor {plural(before, 'message')} before it" if before else "")
            + f" (stored {_seconds(group.now_ms - copy.store_timestamp)} ago)",
            shared,
        )
    rates = group.rates.get(copy.queue.topic)
    when = ""
    if rates is not None and rates.handed_out:
        when = f"; the group receives {rates.handed_out:.1f} messages/s of the topic"
    owner = f", owned by {progress.client_id}" if progress.client_id else ""
    return Finding(
        "behind",
        f"{_where(copy)}: pending. The group's offset in that queue{owner} is {progress.reached}, "
        f"{plural(before, 'message')} before it{when}",
        shared | {"handed_out_per_s": rates.handed_out if rates else None},
    )


def _handed_out(copy: ReceivedMessage, hidden: InvisibleMessage, before: str = "") -> Finding:
    return Finding(
        "invisible",
        f"{before}{_where(copy)}: delivered by POP to {hidden.client_id or 'a client'} at "
        f"{moment_text(hidden.popped_ms)}, invisible to other members until {moment_text(hidden.visible_at_ms)}",
        {"position": _where(copy), "client_id": hidden.client_id, "until": hidden.visible_at_ms},
    )


def _invisible_entry(group: GroupFacts, copy: ReceivedMessage) -> InvisibleMessage | None:
    return next(
        (
            each
            for each in group.invisible or ()
            if each.queue == copy.queue
            and each.offset == copy.queue_offset
            and each.visible_at_ms > group.now_ms
        ),
        None,
    )


def _filter_reason(group: GroupFacts, copy: ReceivedMessage) -> str:
    """Why the group's subscription filters a message out; empty when it does not."""
    subscription = next(
        (
            each
            for each in (group.connections.subscriptions if group.connections is not None else ())
            if each.topic == copy.queue.topic
        ),
        None,
    )
    if subscription is None:
        return ""
    if subscription.expression_type in ("TAG", ""):
        return _tag_reason(subscription, copy)
    try:
        compiled = compile_filter(subscription.expression)
    except FilterSyntaxError as error:
        return f"the group's filter expression is invalid: {error}"
    if compiled.matches(dict(copy.properties)):
        return ""
    missing = sorted(compiled.properties - copy.properties.keys())
    lacks = f"; it has no {', '.join(missing)}" if missing else ""
    return f"filtered out by the group's subscription: {subscription.expression} is not true of its properties{lacks}"


def _tag_reason(subscription: SubscriptionInfo, copy: ReceivedMessage) -> str:
    wanted = [each.strip() for each in subscription.expression.split("||") if each.strip()]
    if not wanted or "*" in wanted or copy.tag in wanted:
        return ""
    tag = f"its tag is {copy.tag}" if copy.tag else "it has no tag"
    return (
        f"filtered out by the group's subscription: {tag}, the group subscribes to {subscription.expression}"
    )


# --- words


def _is_for_retry(waiting: Waiting) -> bool:
    return waiting.for_topic.startswith("%RETRY%")


def _failed(copy: ReceivedMessage) -> str:
    """The verb: a message redelivered after a pop was not acknowledged, for any reason."""
    return "was popped and not acknowledged" if "1ST_POP_TIME" in copy.properties else "failed"


def _error_text(copy: ReceivedMessage) -> str:
    error = copy.properties.get("LAST_ERROR", "")
    return f"; last error: {error}" if error else ""


def _where(copy: ReceivedMessage) -> str:
    return f"{_queue(copy.queue)} offset {copy.queue_offset}"


def _queue(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name}/{queue.queue_id}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _listed(texts: Iterable[str]) -> str:
    names = list(texts)
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return (", ".join(names[:SHOWN_MAX]) or "nothing") + more


def _seconds(ms: float) -> str:
    """A duration as text: 350 ms, 12.0 s, 3 min, 2.5 h."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    if ms < 2 * 3_600_000:
        return f"{ms / 60_000:.0f} min"
    return f"{ms / 3_600_000:.1f} h"
