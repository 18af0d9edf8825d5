"""The console's page of recurring schedules: list with next ticks, create, pause, resume, delete."""

from __future__ import annotations

from typing import Any

import aiohttp

from aerobee.testing import LocalCluster
from tests.integration.console_server import console
from tests.integration.test_console import act

FIELDS = {
    "name": "report",
    "topic": "orders",
    "body": "daily",
    "cron": "0 6 * * *",
    "time_zone": "Europe/Berlin",
}


async def listed(session: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    async with session.get(f"{url}api/schedules") as answer:
        document = await answer.json()
        assert answer.status == 200, document
        found: list[dict[str, Any]] = document["schedules"]
        return found


async def test_a_schedule_is_created_paused_resumed_and_deleted(cluster: LocalCluster) -> None:
    await cluster.create_topic("orders", 1)
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        assert await listed(session, server.url) == []
        status, preview = await act(session, server.url, "schedule-create", {**FIELDS, "dry_run": True})
        assert status == 200
        assert "would send to orders" in preview["text"]
        assert preview["command"].startswith(
            "aerobee schedule create report orders daily --cron '0 6 * * *' --tz Europe/Berlin"
        )
        assert await listed(session, server.url) == []  # a preview changes nothing
        assert (await act(session, server.url, "schedule-create", FIELDS))[0] == 200
        (row,) = await listed(session, server.url)
        assert (row["name"], row["topic"], row["state"]) == ("report", "orders", "active")
        assert len(row["next_ticks"]) == 5
        assert row["next_ticks"] == sorted(row["next_ticks"])
        for action, state in (("pause", "paused"), ("resume", "active")):
            change = {"name": "report", "action": action}
            status, preview = await act(session, server.url, "schedule-change", {**change, "dry_run": True})
            assert (status, len(preview["rows"])) == (200, 1)
            assert (await act(session, server.url, "schedule-change", change))[0] == 200
            (row,) = await listed(session, server.url)
            assert row["state"] == state
            assert len(row["next_ticks"]) == 5  # of a paused one: after a resume
        assert (await act(session, server.url, "schedule-change", {"name": "report", "action": "delete"}))[
            0
        ] == 200
        assert await listed(session, server.url) == []


async def test_a_wrong_schedule_is_refused_in_its_preview(cluster: LocalCluster) -> None:
    await cluster.create_topic("orders", 1)
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        for wrong, says in (
            ({"every": "1h"}, "either cron or every"),
            ({"cron": "", "every": ""}, "either cron or every"),
            ({"cron": "61 * * * *"}, "61"),
            ({"time_zone": "Mars/Olympus"}, "Mars/Olympus"),
            ({"body": ""}, "body is missing"),
            ({"topic": "no-such"}, "no-such"),
            ({"name": "a b"}, "a b"),
            ({"body": "x" * 300_000}, "limit"),
        ):
            status, answer = await act(
                session, server.url, "schedule-create", {**FIELDS, **wrong, "dry_run": True}
            )
            assert (status >= 400, says in str(answer)) == (True, True), (wrong, answer)
        for wrong, says in (
            ({"name": "none", "action": "pause"}, "no broker has a schedule"),
            ({"name": "none", "action": "explode"}, "pause, resume, delete"),
        ):
            status, answer = await act(session, server.url, "schedule-change", {**wrong, "dry_run": True})
            assert (status >= 400, says in str(answer)) == (True, True), (wrong, answer)
