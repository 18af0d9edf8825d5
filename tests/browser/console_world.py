"""A cluster with messages of every kind and a console, for the browser: prints one JSON line with addresses, stays until stdin ends.

`--topics N` adds so many empty topics. The console at `login` wants one: vera (viewer), otto (operator), ada (admin), password
"secret"; that at `proxy` takes the name from the header X-User; the one at `read_only` permits no change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aerobee import Message
from aerobee.client import ProducerConfig
from aerobee.console.config import ConsoleConfig
from aerobee.console.server import ConsoleServer
from aerobee.console.users import hash_password
from aerobee.placement.plan import Forecast, Plan, TopicChange
from aerobee.remoting.body.topic_config import TopicConfig
from tests.integration.access_cluster import USERS, Cluster, client
from tests.integration.access_cluster import running as running_closed
from tests.integration.prometheus import world


def a_plan(broker_name: str) -> Plan:
    """Two more queues for a topic."""
    change = TopicChange(topic="orders", before={broker_name: 2}, after={broker_name: 4})
    return Plan(
        made_at_ms=round(time.time() * 1000),
        changes=(change,),
        before=Forecast(imbalance={"bytes_in": 1.62}, broken_goals={}, loads={}),
        after=Forecast(imbalance={"bytes_in": 1.08}, broken_goals={}, loads={}),
        warnings=("payments is left alone: its keys choose the queue, half of them would move",),
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topics", type=int, default=0)
    asked = parser.parse_args()
    async with AsyncExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = await stack.enter_async_context(world())
        cluster = running.cluster
        broker = cluster.broker()
        if asked.topics:
            broker.topics.put_all(TopicConfig(f"wide-{number:05}", 1, 1) for number in range(asked.topics))
            broker.registration.register_all()
        async with cluster.producer("tracers", config=ProducerConfig(), trace=True) as producer:
            sent = await producer.send(
                Message(
                    "orders", json.dumps({"order": 17, "lines": [1, 2]}).encode(), tag="paid", keys=("o-17",)
                )
            )
            await producer.send(Message("later", b"in an hour", deliver_after=3600, keys=("later-1",)))
            await cluster.create_topic("binary", queues=1)
            await producer.send(
                Message("binary", bytes.fromhex("82a67061636b6564c3a573746f6e65cb4004000000000000"))
            )
            await producer.send(
                Message("binary", bytes.fromhex("bf657072696365f93e00656c696e657383010203ff"))
            )
            await producer.send(Message("binary", b"<img src=x onerror=alert(1)>", tag="<b>tag</b>"))
        plan = path / "plan.json"
        plan.write_bytes(a_plan(broker.config.broker_name).encode())
        people = {"vera": "viewer", "otto": "operator", "ada": "admin"}
        known = {name: {"role": role, "password": hash_password("secret")} for name, role in people.items()}
        users = path / "users.json"
        users.write_text(json.dumps(known))

        async def console(**settings: Any) -> ConsoleServer:
            config = ConsoleConfig(nameserver=cluster.nameserver_address, port=0, refresh_s=1.0, **settings)
            server = ConsoleServer(config)
            await server.start()
            stack.push_async_callback(server.stop)
            return server

        plain = await console(audit_file=path / "audit.jsonl", plan_file=plan)
        several = await console(further_clusters=(("nothing-there", "127.0.0.1:1"),))
        login = await console(audit_file=path / "audit-of-users.jsonl", users_file=users)
        proxy = await console(users_file=users, user_header="X-User")
        read_only = await console(read_only=True)
        (path / "closed").mkdir()
        closed = await stack.enter_async_context(running_closed(Cluster(path / "closed", USERS)))
        access = ConsoleServer(
            ConsoleConfig(nameserver=closed.server.address, port=0, refresh_s=1.0), client=client("root")
        )
        await access.start()
        stack.push_async_callback(access.stop)
        line = {
            "url": plain.url,
            "login": login.url,
            "proxy": proxy.url,
            "read_only": read_only.url,
            "several": several.url,
            "access": access.url,
            "topics": asked.topics,
            "broker": broker.address,
            "message": sent.message_id,
            "audit": str(path / "audit-of-users.jsonl"),
        }
        print(json.dumps(line), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
