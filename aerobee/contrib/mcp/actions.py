"""Tools that change the cluster. Each `plan_…` is a dry run that returns a plan; `apply_plan` carries a plan out, once.

The actions are those of the console's pages. A plan freezes what would otherwise mean something else later: a time in the past
becomes a timestamp, and a redrive the messages that its dry run lists. A redrive that is longer than a call stops between two
messages and returns a plan for the others.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from aerobee.client import Admin
from aerobee.clock import Clock
from aerobee.console.audit import Audit
from aerobee.console.fields import Run
from aerobee.console.group_actions import GroupActions
from aerobee.console.schedule_actions import ScheduleActions
from aerobee.console.topic_actions import TopicActions
from aerobee.contrib.mcp.call_time import must_end
from aerobee.contrib.mcp.plans import PLAN_LIFE_MS, Plan, Plans
from aerobee.contrib.mcp.reads import Group, Topic
from aerobee.errors import AerobeeError
from aerobee.ops.commands.known_groups import require_group
from aerobee.ops.commands.offset import parse_target
from aerobee.ops.commands.topic import require_topic
from aerobee.ops.options.clients import open_admin

SHORT = Field(max_length=255)
USER = "mcp"


class ActionTools:
    """`plans`: the dry runs, `tools`: what changes the cluster."""

    def __init__(self, nameserver: str, clock: Clock, new_token: Callable[[], str], audit: Audit) -> None:
        """`new_token` returns a text that cannot be guessed."""
        self._nameserver = nameserver
        self._clock = clock
        self._new_token = new_token
        self._audit = audit
        self._kept = Plans()
        self.plans = (
            self.plan_redrive,
            self.plan_reset_offsets,
            self.plan_create_topic,
            self.plan_create_schedule,
            self.plan_change_schedule,
        )
        self.tools = (self.apply_plan,)

    async def plan_redrive(
        self,
        group: Group,
        ids: Annotated[
            list[Annotated[str, SHORT]] | None,
            Field(description="Origin message ids; without them all that are not redriven.", max_length=200),
        ] = None,
    ) -> dict[str, Any]:
        """Dry run: redrive up to 200 dead-letter messages of a group to its retry topic. Returns a plan for apply_plan."""
        fields: dict[str, Any] = {"group": group, "waiting": True, **({"ids": ids} if ids else {})}
        return await self._plan("redrive", fields)

    async def plan_reset_offsets(
        self,
        group: Group,
        topic: Topic,
        to: Annotated[
            str,
            Field(
                description="earliest, latest, offset:N, +N or -N (relative), 2026-11-21T10:00:00 (UTC), or 15m (ago).",
                max_length=40,
            ),
        ],
    ) -> dict[str, Any]:
        """Dry run: reset a group's offsets in a topic; shows each queue before and after. Returns a plan for apply_plan."""
        target = parse_target(to, self._clock.now_ms())
        if target.kind == "time":
            to = str(target.value)
        async with open_admin(self._nameserver) as admin:
            await require_topic(admin, topic)
            await require_group(admin, group)
        return await self._plan("reset", {"group": group, "topic": topic, "to": to})

    async def plan_create_topic(
        self, topic: Topic, queues: Annotated[int, Field(ge=1, le=1024)] = 8
    ) -> dict[str, Any]:
        """Dry run: create a topic that does not exist at every master. Returns a plan for apply_plan."""
        return await self._plan("topic-create", {"topic": topic, "queues": queues, "new": True})

    async def plan_create_schedule(
        self,
        name: Annotated[str, Field(max_length=64)],
        topic: Topic,
        body: Annotated[str, Field(description="Body of each message.", max_length=100_000)],
        cron: Annotated[str, Field(description="Cron expression; or give every.", max_length=255)] = "",
        every: Annotated[str, Field(description="Interval: 30s, 1h30m.", max_length=40)] = "",
        time_zone: Annotated[str, Field(description="Zone of the cron expression.", max_length=64)] = "UTC",
    ) -> dict[str, Any]:
        """Dry run: create a recurring schedule. Returns a plan for apply_plan."""
        fields = {"name": name, "topic": topic, "body": body, "cron": cron, "every": every}
        return await self._plan("schedule-create", fields | {"time_zone": time_zone})

    async def plan_change_schedule(
        self, name: Annotated[str, Field(max_length=64)], action: Literal["pause", "resume", "delete"]
    ) -> dict[str, Any]:
        """Dry run: pause, resume or delete a recurring schedule. Returns a plan for apply_plan."""
        return await self._plan("schedule-change", {"name": name, "action": action})

    async def apply_plan(
        self, plan: Annotated[str, Field(description="The plan that a dry run returned.", max_length=100)]
    ) -> dict[str, Any]:
        """Carry out a plan, once. Call it only after a person has seen the dry run's result and agreed.

        A redrive that takes longer than a call returns a plan for the messages that are left: apply it to continue.
        """
        taken = self._kept.take(plan, self._clock.now_ms())
        fields = dict(taken.fields)
        self._write(taken.action, fields, "asked")
        try:
            async with open_admin(self._nameserver) as admin:
                outcome = await self._run(admin, taken.action)(fields, False)
        except AerobeeError as error:
            self._write(taken.action, fields, str(error))
            raise
        except BaseException as error:  # also the deadline of the call
            self._write(taken.action, fields, f"ended by {error!r}: a part may be done")
            raise
        document = {"done": outcome.text, "command": outcome.command, "rows": _rows(outcome.rows)}
        if not outcome.rest:
            self._write(taken.action, fields, "done")
            return document
        self._write(taken.action, fields, f"stopped before the end of the call: {outcome.text}")
        note = "the call was too short for all: apply this plan to continue with the next message"
        return document | self._keep(taken.action, {**fields, **outcome.rest}) | {"note": note}

    async def _plan(self, action: str, fields: dict[str, Any]) -> dict[str, Any]:
        async with open_admin(self._nameserver) as admin:
            outcome = await self._run(admin, action)(fields, True)
        fields = {**fields, **outcome.frozen}  # exactly these, whatever dies until the plan is applied
        document = {"preview": outcome.text, "command": outcome.command, "rows": _rows(outcome.rows)}
        if action in ("redrive", "reset") and not outcome.rows:
            return document | {"plan": None, "note": "there is nothing to change"}
        return document | self._keep(action, fields)

    def _keep(self, action: str, fields: dict[str, Any]) -> dict[str, Any]:
        """A new plan, as it stands in an answer."""
        token = self._new_token()
        self._kept.add(token, Plan(action=action, fields=fields, made_ms=self._clock.now_ms()))
        return {"plan": token, "valid_s": PLAN_LIFE_MS // 1000}

    def _run(self, admin: Admin, action: str) -> Run:
        table = {
            **GroupActions(admin, self._clock, self._command, must_end).table,
            **TopicActions(admin, self._command).table,
            **ScheduleActions(admin, self._command).table,
        }
        return table[action][1]

    def _command(self, *words: str) -> str:
        return shlex.join(("aerobee", *words, "--nameserver", self._nameserver))

    def _write(self, action: str, fields: dict[str, Any], result: str) -> None:
        self._audit.write(user=USER, address="", action=action, fields=fields, result=result)


def _rows(rows: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """The rows of an outcome; ids, topics and reasons of messages are their clients' texts."""
    named = ("message_id", "from", "reason")
    return [
        {key: value for key, value in row.items() if key not in named}
        | ({"untrusted": {key: row[key] for key in named if key in row}} if "message_id" in row else {})
        for row in rows
    ]
