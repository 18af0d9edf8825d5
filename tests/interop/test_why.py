"""`aerobee why` about groups of Java consumers, at our broker and at a real one."""

from __future__ import annotations

import asyncio

from aerobee.client import Admin, Producer
from aerobee.message import Message
from aerobee.ops.diagnosis.why_facts import gather_group, gather_message
from aerobee.ops.diagnosis.why_rules import Finding, findings
from tests.interop.java_topics import make_topic
from tests.interop.rocketmq import Cluster, Driver
from tests.waiting import wait_until


async def ask(cluster: Cluster, group: str, message_id: str | None, topic: str) -> list[Finding]:
    async with Admin(cluster.namesrv) as admin:
        facts = await gather_group(admin, group, topic)
        message = await gather_message(admin, facts, message_id, topic) if message_id else None
    return findings(facts, message)


async def answer(cluster: Cluster, group: str, message_id: str, topic: str, kind: str) -> Finding:
    """Ask until the answer is of this kind: members, offsets and index entries appear a moment later."""
    found: list[Finding] = []

    async def is_of_kind() -> bool:
        found[:] = await ask(cluster, group, message_id, topic)
        return found[0].kind == kind

    await wait_until(is_of_kind, f"an answer of kind {kind}")
    return found[0]


async def reasons(driver: Driver, cluster: Cluster, topic: str) -> None:
    make_topic(driver, cluster, topic)
    async with Producer(cluster.namesrv) as producer:
        refund = (await producer.send(Message(topic, b"refund", tag="refund"))).message_id
        paid = (await producer.send(Message(topic, b"paid", tag="paid"))).message_id
        delayed = (await producer.send(Message(topic, b"later", tag="paid", delay_level=18))).message_id
    group = driver.unique("CG_why")
    assert (await answer(cluster, group, paid, topic, "no-offset")).kind == "no-offset"
    assert (await answer(cluster, group, delayed, topic, "delayed")).facts["for"] == topic
    consumer = await asyncio.to_thread(driver.push, cluster.namesrv, topic, group=group, tags="paid")
    try:
        await asyncio.to_thread(consumer.received, 1)
        left_out = await answer(cluster, group, refund, topic, "filtered")
        assert "its tag is refund, the group subscribes to paid" in left_out.text
        passed = await answer(cluster, group, paid, topic, "passed")
        assert "only a trace shows" in passed.text
        assert (await answer(cluster, group, "0" * 32, topic, "never-stored")).kind == "never-stored"
    finally:
        await asyncio.to_thread(consumer.stop)
    async with Producer(cluster.namesrv) as producer:
        late = (await producer.send(Message(topic, b"late", tag="paid"))).message_id
    behind = await answer(cluster, group, late, topic, "behind")
    assert behind.facts["before"] >= 0
    assert "no-members" in [each.kind for each in await ask(cluster, group, late, topic)]


async def test_reasons_at_our_broker(cluster: Cluster, driver: Driver, topic: str) -> None:
    await reasons(driver, cluster, topic)


async def test_reasons_at_a_real_broker(real: Cluster, driver: Driver, topic: str) -> None:
    await reasons(driver, real, topic)
