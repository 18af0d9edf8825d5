"""Consumer groups in a lag state that needs attention, as `aerobee doctor` sees them at one look.

The states are those of monitoring/lag_state.py, which judges some minutes of samples. One look at a group's offsets shows
most of them, with the same window: the store time of the last consumed message and the last activity of each member say how
long an offset has stood still, and the offset of two minutes ago says how many messages producers have added since.

    MISMATCH  members of the group have different subscriptions
    STOP      lag, and no member is online
    BLOCKED   as STALL, and a member has locked the queue for a minute or more
    STALL     lag, and members are online, but the owner of the queue has consumed nothing in the window
    WARN      lag, the group consumes, and producers add at least as many messages per second

REWIND takes two looks: the console and the metrics show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aerobee.client import Admin
from aerobee.client.base.results import ConsumerProgress, QueueProgress
from aerobee.errors import AerobeeError
from aerobee.message import MessageQueue
from aerobee.monitoring.lag_state import BLOCKED_AFTER_MS, WINDOW_MS, LagState
from aerobee.ops.diagnosis.finding import Finding
from aerobee.ops.options.clients import open_admin
from aerobee.ops.terminal.failure import explain
from aerobee.system_names import is_hidden_group
from aerobee.words import plural

GROUPS_MAX = 500  # groups whose lag is read
QUEUES_MAX = 32  # queues of one group whose growth is read
BACKLOG_S = 10.0  # a lag that the group consumes within this time is no WARN
_ADVICE: Mapping[LagState, str] = {
    LagState.MISMATCH: "give all members the same subscriptions: `aerobee why --group {group}` names the members",
    LagState.STOP: "start its consumers, or delete the group: `aerobee group delete {group}`",
    LagState.BLOCKED: "`aerobee why --group {group}` names the member that holds the queue: restart it",
    LagState.STALL: "`aerobee why --group {group}` tells what keeps it from its messages",
    LagState.WARN: "add members, or make the listener faster: `aerobee group lag {group} --watch 5` shows the lag",
}


@dataclass(frozen=True, slots=True)
class LagFacts:
    """What one look at a group with lag or with conflicts has read.

    `held_ms`: duration for which each queue is locked. `produced_tps`: messages per second that producers added to the queues with lag
    in the window; None where it was not read.
    """

    progress: ConsumerProgress
    held_ms: Mapping[MessageQueue, int] = field(default_factory=dict)
    produced_tps: float | None = None


async def examine_lag(nameservers: list[str], now_ms: int) -> list[Finding]:
    """A warning for each group in a state that needs attention."""
    found: list[LagFacts] = []
    try:
        async with open_admin(nameservers) as admin:
            names = sorted({info.name for info in await admin.groups() if not is_hidden_group(info.name)})
            for name in names[:GROUPS_MAX]:
                try:
                    progress = await admin.consumer_progress(name)
                    if progress.lag > 0 or progress.conflicts:
                        found.append(await _facts(admin, progress, now_ms))
                except AerobeeError as error:
                    return [_unknown(f"group {name}: {explain(error).sentence}")]
    except AerobeeError as error:
        return [_unknown(explain(error).sentence)]
    return lag_findings(found, now_ms, left_out=max(0, len(names) - GROUPS_MAX))


async def _facts(admin: Admin, progress: ConsumerProgress, now_ms: int) -> LagFacts:
    """Read the locks where an offset stands still, and the growth of the queues where the group consumes."""
    if not progress.members:
        return LagFacts(progress)
    if _standing(progress, now_ms):
        locks = await admin.queue_locks(progress.group) or ()
        return LagFacts(progress, {each.queue: max(0, now_ms - each.since_ms) for each in locks})
    behind = [each for each in progress.queues if each.lag > 0][:QUEUES_MAX]
    if progress.consume_tps <= 0 or progress.lag <= progress.consume_tps * BACKLOG_S:
        return LagFacts(progress)
    before = [await admin.offset_at(each.queue, now_ms - WINDOW_MS) for each in behind]
    added = sum(max(0, each.broker_offset - then) for each, then in zip(behind, before, strict=True))
    return LagFacts(progress, produced_tps=added * 1000 / WINDOW_MS)


def lag_findings(groups: Iterable[LagFacts], now_ms: int, *, left_out: int = 0) -> list[Finding]:
    """`groups`: those with a lag or with conflicts. `left_out`: number of groups that were not read."""
    findings = []
    for facts in groups:
        verdict = _verdict(facts, now_ms)
        if verdict is None:
            continue
        state, why = verdict
        findings.append(
            Finding(
                part=f"group {facts.progress.group}",
                check="lag",
                level="warn",
                detail=f"{state.value}: {why}",
                advice=_ADVICE[state].format(group=facts.progress.group),
            )
        )
    if left_out:
        detail = f"{plural(left_out, 'group')} not checked: the limit is {GROUPS_MAX} groups"
        findings.append(Finding(part="cluster", check="lag", level="warn", detail=detail))
    return findings or [
        Finding(part="cluster", check="lag", level="ok", detail="no group needs attention because of its lag")
    ]


def _verdict(facts: LagFacts, now_ms: int) -> tuple[LagState, str] | None:
    """The worst state of a group and its reason; None where it needs no attention."""
    progress = facts.progress
    if progress.conflicts:
        topics = ", ".join(sorted({each.topic for each in progress.conflicts}))
        return LagState.MISMATCH, f"members have different subscriptions to {topics}, so they miss messages"
    standing = _standing(progress, now_ms)
    if standing and not progress.members:
        return LagState.STOP, f"{_lag(standing)}, no member is online"
    blocked = [each for each in standing if facts.held_ms.get(each.queue, 0) >= BLOCKED_AFTER_MS]
    if blocked:
        held_s = max(facts.held_ms[each.queue] for each in blocked) // 1000
        return (
            LagState.BLOCKED,
            f"{_lag(blocked)}, one member has locked the queue for {held_s} s, no offset moved for 2 minutes",
        )
    if standing:
        return LagState.STALL, f"{_lag(standing)}, no offset moved for 2 minutes"
    if facts.produced_tps is not None and facts.produced_tps >= progress.consume_tps:
        behind = [each for each in progress.queues if each.lag > 0]
        return (
            LagState.WARN,
            f"{_lag(behind)}, producers add {facts.produced_tps:.1f}/s, "
            f"the group consumes {progress.consume_tps:.1f}/s",
        )
    return None


def _lag(queues: list[QueueProgress]) -> str:
    lag = plural(sum(each.lag for each in queues), "message")
    return f"lag of {lag} in {plural(len(queues), 'queue')}"


def _standing(progress: ConsumerProgress, now_ms: int) -> list[QueueProgress]:
    """The queues with lag whose offset has stood still for the window; without those where nothing says since when."""

    def stands(queue: QueueProgress) -> bool:
        last_ms = max(queue.last_timestamp_ms, queue.member_worked_ms)
        return (
            last_ms > 0 and now_ms - last_ms > WINDOW_MS and (bool(progress.members) or not queue.client_id)
        )

    return [each for each in progress.queues if each.lag > 0 and stands(each)]


def _unknown(why: str) -> Finding:
    return Finding(part="cluster", check="lag", level="warn", detail=why)
