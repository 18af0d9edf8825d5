"""Every page and every action of the console at a RocketMQ cluster: what RocketMQ does not tell is said, and is no error."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from typing import Any

import aiohttp

from aerobee import Message, Producer
from aerobee.client import ConsumeFrom, ConsumerConfig, PushConsumer, ReceivedMessage, reject
from aerobee.console.config import ConsoleConfig
from aerobee.console.server import ConsoleServer
from tests.interop.rocketmq import Cluster, routed_brokers
from tests.waiting import wait_until


class Console:
    """The console's own calls, as its pages make them."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def get(self, view: str, **query: str) -> dict[str, Any]:
        """A view. Fails for an error."""
        async with self._session.get(f"{self._url}api/{view}", params=query) as answer:
            document: dict[str, Any] = await answer.json()
            assert answer.status == 200, f"{view} {query}: {document}"
            return document

    async def act(self, name: str, **fields: Any) -> dict[str, Any]:
        """What a dialog does: look first, then do it. Returns what was done."""
        token = (await self.get("session"))["csrf"]
        document: dict[str, Any] = {}
        for dry_run in (True, False):
            body = {**fields, "dry_run": dry_run}
            async with self._session.post(
                f"{self._url}api/act/{name}", json=body, headers={"X-CSRF-Token": token}
            ) as answer:
                document = await answer.json()
                assert answer.status == 200, f"{name} {body}: {document}"
                assert document["command"]
        return document


async def make_dead_letters(namesrv: str, topic: str, group: str) -> None:
    """One message that the group gives up."""
    refused: list[str] = []

    async def refuse(message: ReceivedMessage) -> None:
        refused.append(message.message_id)
        raise reject("it is refused")

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with PushConsumer(namesrv, group, subscriptions={topic: "*"}, handler=refuse, config=config):
        await wait_until(lambda: refused, timeout_s=120)


async def test_every_page_and_every_action(real: Cluster) -> None:
    namesrv, broker = real.namesrv, real.broker.address
    orders, refusing = "console-orders", "console-refusing"  # the cluster is shared with other tests
    server = ConsoleServer(ConsoleConfig(nameserver=namesrv, port=0, refresh_s=0.5))
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            page = Console(session, server.url)
            await page.act("topic-create", topic=orders, queues=2)
            await wait_until(lambda: routed_brokers(namesrv, orders), timeout_s=60)
            sent = await page.act("send", topic=orders, body='{"order": 17}', tag="paid", keys="o-17")
            message_id = sent["rows"][0]["message_id"]
            async with Producer(namesrv, "tracers", trace=True) as producer:
                await producer.send(Message(orders, b"traced", keys=("t-1",)))
                await producer.send(Message(orders, b"later", deliver_after=3600))
            await make_dead_letters(namesrv, orders, refusing)

            overview = await page.get("overview")
            (row,) = overview["brokers"]
            assert (row["address"], row["role"], row.get("error")) == (broker, "master", None)
            assert row["version"].startswith("V5_5_0")

            async def known(view: str, name: str) -> bool:
                rows = (await page.get(view, filter=name))["rows"]
                return any(each["name"] == name and each["is_known"] for each in rows)

            await wait_until(lambda: known("topics", orders), timeout_s=120)
            await wait_until(lambda: known("groups", refusing), timeout_s=120)
            topic = await page.get("topic", name=orders)
            assert (len(topic["queues"]), topic["groups"]) == (2, [refusing])
            group = await page.get("group", name=refusing)
            assert {each["topic"] for each in group["queues"]} >= {orders}

            found = await page.get("messages", topic=orders, id=message_id)
            assert found["messages"][0]["keys"] == ["o-17"]
            time_ms = str(found["messages"][0]["store_timestamp"])
            assert (await page.get("messages", topic=orders, time=time_ms))["messages"]

            page_of = await page.get("browse", topic=orders)
            assert {each["body"] for each in page_of["messages"]} >= {b64encode(b"traced").decode()}
            (tagged,) = (await page.get("browse", topic=orders, filter="tag", value="paid"))["messages"]
            assert tagged["message_id"] == message_id
            where = {
                "queue": f"{tagged['broker']}/{tagged['queue_id']}",
                "offset": str(tagged["queue_offset"]),
            }
            assert (await page.get("message", topic=orders, **where))["message"]["keys"] == ["o-17"]
            for of, name in (("cluster", ""), ("broker", broker), ("topic", orders), ("group", refusing)):

                async def drawn(of: str = of, name: str = name) -> Any:
                    return (await page.get("charts", of=of, name=name))["charts"]

                await wait_until(drawn, of, timeout_s=120)
            topology = await page.get("topology")
            assert [each["trouble"] for each in (*topology["nameservers"], *topology["groups"])] == ["", ""]
            assert topology["groups"][0]["brokers"][0]["trouble"] == ""

            async def by_key() -> Any:
                return (await page.get("messages", topic=orders, key="o-17"))["messages"]

            await wait_until(by_key, timeout_s=60)
            assert (await page.get("why", group=refusing, topic=orders))["findings"]
            await page.get("trace", id=message_id)

            async def waiting() -> Any:
                return [
                    each
                    for each in (await page.get("dlq"))["groups"]
                    if each["waiting"] and each["group"] == refusing
                ]

            await wait_until(waiting, timeout_s=120)
            assert (await page.get("dead-letters", group=refusing))["dead_letters"]
            assert (await page.act("redrive", group=refusing))["text"].endswith("0 failed")
            await page.act("reset", group=refusing, topic=orders, to="latest")

            # What RocketMQ does not tell is said in a sentence.
            for view, sentence in (
                ("transactions", "do not list open transactions"),
                ("timers", "do not list pending timer messages"),
                ("schedules", "have no recurring schedules"),
                ("access", "The cluster has no access control"),
            ):
                assert sentence in (await page.get(view))["unsupported"], view
            assert (await page.get("placement")) == {"file": None}

            settings = (await page.get("settings", broker=broker))["settings"]
            values = {each["key"]: each["value"] for each in settings}
            before = values["waitTimeMillsInHeartbeatQueue"]
            for value in ("30999", before):
                await page.act("setting", broker=broker, key="waitTimeMillsInHeartbeatQueue", value=value)
            async with session.get(f"{server.url}api/tail", params={"topic": orders}) as tail:

                async def event() -> dict[str, Any]:
                    line = await tail.content.readline()
                    while not line.startswith(b"data: "):
                        line = await tail.content.readline()
                        assert line, "the stream has ended"
                    return dict(json.loads(line[6:]))

                async with asyncio.timeout(120):
                    assert await event() == {"watching": True}
                    await page.act("send", topic=orders, body="seen as it comes")
                    assert b64decode((await event())["message"]["body"]) == b"seen as it comes"
            await page.act("topic-delete", topic=orders, confirm=orders)
            assert server.snapshot.error == ""
    except AssertionError:
        print(real.broker.tail())
        raise
    finally:
        await server.stop()
