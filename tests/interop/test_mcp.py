"""`aerobee mcp` at our cluster and at one of RocketMQ 5.5.0."""

from __future__ import annotations

from aerobee.client import Producer
from aerobee.message import Message
from tests.integration.contrib.mcp_client import call, refused, stdio_client
from tests.interop.java_topics import make_topic
from tests.interop.rocketmq import Cluster, Driver
from tests.waiting import wait_until


async def look_around(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    async with Producer(cluster.namesrv) as producer:
        sent = await producer.send(Message(topic, b"paid", tag="paid", keys=("k-1",)))
    async with stdio_client(cluster.namesrv, "--allow-actions") as client:
        assert all(each["state"] == "up" for each in (await call(client, "describe_cluster"))["brokers"])
        assert (await call(client, "doctor"))["failed"] == 0
        assert (await call(client, "list_topics", contains=topic))["topics"] == [topic]
        (message,) = (await call(client, "search_messages", topic=topic))["messages"]
        assert message["untrusted"]["message_id"] == sent.message_id

        async def is_indexed() -> bool:
            return bool((await call(client, "find_messages_by_key", topic=topic, key="k-1"))["messages"])

        await wait_until(is_indexed, "the message in the index")
        shown = await call(client, "show_message", topic=topic, message_id=sent.message_id)
        assert shown["message"]["untrusted"]["body"] == "paid"
        plan = await call(client, "plan_create_topic", topic=f"{topic}-made", queues=2)
        await call(client, "apply_plan", plan=plan["plan"])
        assert (await call(client, "describe_topic", topic=f"{topic}-made"))["queue_count"] >= 2


async def test_an_assistant_at_our_broker(cluster: Cluster, driver: Driver, topic: str) -> None:
    await look_around(cluster, driver, topic)


async def test_an_assistant_at_a_real_broker(real: Cluster, driver: Driver, topic: str) -> None:
    await look_around(real, driver, topic)
    async with stdio_client(real.namesrv) as client:
        assert "not an Aerobee broker" in await refused(client, "list_schedules")
