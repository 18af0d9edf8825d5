"""`aerobee placement apply` and `revert` as processes that get kill -9 after each line of their journal, and are begun again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from aerobee.testing.local_cluster import LocalCluster
from tests.integration.placement.plans import (
    FREE,
    KEYS,
    ORDER,
    Load,
    admin_of,
    counts,
    make,
    plan_of,
    settled,
)

# At 1 a run is killed after every line that it can write; otherwise after each seventh, because each run is a process.
STRIDE = int(os.environ.get("AEROBEE_PLACEMENT_KILL_STRIDE", "7"))
RUNS_MAX = 200
QUICK = ("--yes", "--route-wait", "300ms", "--grace", "0", "--measure", "0", "--changes-per-minute", "100000")


def line_count(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


async def run_and_kill(action: str, plan: Path, nameserver: str, lines_more: int) -> bool:
    """Kill it when it has written so many lines; True when it was through before."""
    journal = plan.with_name(plan.name + ".journal")
    lines = line_count(journal) + lines_more
    command = [sys.executable, "-m", "aerobee.ops", "placement", action, str(plan), *QUICK, "-n", nameserver]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    said = asyncio.create_task(process.stderr.read())
    ended = asyncio.create_task(process.wait())
    while not ended.done() and line_count(journal) < lines:
        await asyncio.wait({ended}, timeout=0.002)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    code = await ended
    text = (await said).decode()
    assert code in (0, -signal.SIGKILL), text
    return code == 0


async def test_a_plan_killed_at_each_journal_line_resumes_and_reverts(tmp_path: Path):
    async with LocalCluster(
        brokers=2, nameserver_config={**ORDER, "deleteTopicWithBrokerRegistration": "true"}
    ) as cluster:
        await make(cluster, FREE, KEYS)
        plan = tmp_path / "plan.json"
        plan.write_bytes(plan_of(cluster, FREE, KEYS).encode())
        async with (
            admin_of(cluster) as admin,
            Load(cluster, "free", by_key=False) as free,
            Load(cluster, "keys", by_key=True) as keys,
        ):
            for action, wanted in (
                ("apply", {"free": settled(broker_a=1, broker_b=3), "keys": settled(broker_a=2, broker_b=3)}),
                ("revert", {"free": settled(broker_a=4), "keys": settled(broker_a=4)}),
            ):
                kills = 0
                # The first line says that it begins: from the second on there is a step behind it.
                while not await run_and_kill(action, plan, cluster.nameserver_address, 1 + kills * STRIDE):
                    kills += 1
                    assert kills < RUNS_MAX, "it never came through"
                assert kills >= (8 if STRIDE == 1 else 2)
                for topic, states in wanted.items():
                    assert await counts(admin, topic) == states
                assert await admin.order_entry("keys") is None
            await free.check()
            await keys.check()
