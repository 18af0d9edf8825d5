"""Consumer groups in a red lag state, as `aerobee doctor` sees them at one look.

The states are those of monitoring/lag_state.py, which judges some minutes of samples. One look at a group's offsets shows
two of them, with the same window: the store time of the last consumed message and the last activity of each member say how
long an offset has stood still.

    STOP    lag, and no member is online
    STALL   lag, and members are online, but the owner of the queue has consumed nothing in the window
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aerobee.client import Admin
from aerobee.client.base.results import ConsumerProgress, QueueProgress
from aerobee.errors import AerobeeError, ConsumerNotOnline
from aerobee.monitoring.lag_state import WINDOW_MS, LagState
from aerobee.ops.diagnosis.finding import Finding
from aerobee.ops.options.clients import open_admin
from aerobee.ops.terminal.failure import explain
from aerobee.system_names import is_hidden_group
from aerobee.words import plural

GROUPS_MAX = 500  # groups whose lag is read
_ADVICE: Mapping[LagState, str] = {
    LagState.STOP: "start its consumers, or delete the group: `aerobee group delete {group}`",
    LagState.STALL: "`aerobee why {group}` tells what keeps it from its messages",
}


async def examine_lag(nameservers: list[str], now_ms: int) -> list[Finding]:
    """A warning for each group in a red state."""
    found: list[tuple[ConsumerProgress, bool]] = []
    try:
        async with open_admin(nameservers) as admin:
            names = sorted({info.name for info in await admin.groups() if not is_hidden_group(info.name)})
            for name in names[:GROUPS_MAX]:
                try:
                    progress = await admin.consumer_progress(name)
                    if progress.lag > 0:
                        found.append((progress, await _has_members(admin, name)))
                except AerobeeError as error:
                    return [_unknown(f"group {name}: {explain(error).sentence}")]
    except AerobeeError as error:
        return [_unknown(explain(error).sentence)]
    return lag_findings(found, now_ms, left_out=max(0, len(names) - GROUPS_MAX))


def lag_findings(
    groups: Iterable[tuple[ConsumerProgress, bool]], now_ms: int, *, left_out: int = 0
) -> list[Finding]:
    """`groups`: those with a lag, and whether members are online. `left_out`: number of groups that were not read."""
    findings = []
    for progress, has_members in groups:
        state = LagState.STALL if has_members else LagState.STOP
        red = [queue for queue in progress.queues if queue.lag > 0 and _stands(queue, has_members, now_ms)]
        if not red:
            continue
        lag = plural(sum(queue.lag for queue in red), "message")
        where = plural(len(red), "queue")
        why = "no offset moved for 2 minutes" if has_members else "no member is online"
        findings.append(
            Finding(
                part=f"group {progress.group}",
                check="lag",
                level="warn",
                detail=f"{state.value}: lag of {lag} in {where}, {why}",
                advice=_ADVICE[state].format(group=progress.group),
            )
        )
    if left_out:
        detail = f"{plural(left_out, 'group')} not checked: the limit is {GROUPS_MAX} groups"
        findings.append(Finding(part="cluster", check="lag", level="warn", detail=detail))
    return findings or [
        Finding(part="cluster", check="lag", level="ok", detail="no group is stopped or stalled")
    ]


def _stands(queue: QueueProgress, has_members: bool, now_ms: int) -> bool:
    """Whether the offset of a queue has stood still for the window; False where nothing says since when."""
    last_ms = max(queue.last_timestamp_ms, queue.member_worked_ms)
    return last_ms > 0 and now_ms - last_ms > WINDOW_MS and (has_members or not queue.client_id)


async def _has_members(admin: Admin, group: str) -> bool:
    try:
        await admin.consumer_connections(group)
    except ConsumerNotOnline:
        return False
    return True


def _unknown(why: str) -> Finding:
    return Finding(part="cluster", check="lag", level="warn", detail=why)
