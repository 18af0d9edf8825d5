"""A client whose NameServers do not answer fails at its start, not at its first call, and leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.client import Producer, PullConsumer, PushConsumer, SyncProducer, TransactionProducer
from aerobee.client.producer.transaction import TransactionState
from aerobee.errors import ConnectFailed

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Producer(NOWHERE),
        lambda: Producer(NOWHERE, trace=True),
        lambda: TransactionProducer(NOWHERE, "G", checker=lambda message: TransactionState.COMMIT),
        lambda: PullConsumer(NOWHERE, "G"),
        lambda: PushConsumer(NOWHERE, "G", subscriptions={"orders": "*"}, handler=print),
    ],
    ids=["producer", "traced producer", "transaction producer", "pull consumer", "push consumer"],
)
async def test_start_fails_when_no_nameserver_answers(make):
    tasks = asyncio.all_tasks()
    with pytest.raises(ConnectFailed, match=NOWHERE):
        await make().start()
    assert asyncio.all_tasks() == tasks


def test_a_blocking_producer_fails_at_its_start_too():
    with pytest.raises(ConnectFailed, match=NOWHERE), SyncProducer(NOWHERE):
        pass
