"""What a slave copies of its master's topics, and of those that the master deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.broker.replication.metadata_sync import MetadataSync
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import ManualClock
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import dumps


class Master:
    """Answers the questions for its topics."""

    def __init__(self, topics: TopicTable) -> None:
        self.topics = topics
        self.says_behind: dict[str, str] = {}

    async def ask(self, address: str, request: RemotingCommand) -> RemotingCommand:
        body = {**self.topics.to_json(), "aerobeeDeleted": self.topics.deleted}
        return RemotingCommand(0, {"aerobeeLogEnd": "1000", **self.says_behind}, dumps(body))


def sync_of(slave: TopicTable, master: Master, clock: ManualClock) -> MetadataSync:
    store = SimpleNamespace(log=SimpleNamespace(end=1_000), settle_kinds=lambda *_: [])
    mappings = SimpleNamespace(by_topic={}, data_version=DataVersion())
    return MetadataSync(
        **cast(Any, dict.fromkeys(("groups", "offsets", "schedule", "modes", "filters", "decisions"))),
        questions=cast(Any, master),
        store=cast(Any, store),
        topics=slave,
        mappings=cast(Any, mappings),
        clock=clock,
    )


async def test_deletions_that_a_cut_took_away_are_copied_again() -> None:
    """The master's log continued past the offset of the cut, and its table is the one that was copied before it."""
    clock = ManualClock()
    master = TopicTable(file=None, clock=clock)
    slave = TopicTable(file=None, clock=clock)
    master.copy_from({"kept": TopicConfig("kept")}, DataVersion(1, 5, 3), {"gone": 900})
    sync = sync_of(slave, Master(master), clock)
    await sync._copy_topics()
    assert slave.deleted == {"gone": 900}
    slave.log_cut(800)
    await sync._copy_topics()
    assert slave.deleted == {"gone": 900}


@pytest.mark.parametrize("is_newer", [False, True])
async def test_topics_of_a_broker_that_is_no_master_yet_are_not_taken(is_newer: bool) -> None:
    """It was elected, and has not read yet that its log has messages of a topic which its table lacks."""
    clock = ManualClock()
    master = Master(TopicTable(file=None, clock=clock))
    slave = TopicTable(file=None, clock=clock)
    slave.copy_from({"newest": TopicConfig("newest")}, DataVersion(1, 5, 3))
    slave.copied(900)
    master.topics.copy_from({}, DataVersion(2, 6, 1) if is_newer else slave.data_version)
    master.says_behind = {"aerobeeBehind": "true"}
    sync = sync_of(slave, master, clock)
    await sync._copy_topics()
    assert (list(slave.topics), slave.copied_to) == (["newest"], 900)
    master.says_behind = {}
    await sync._copy_topics()
    assert (list(slave.topics), slave.copied_to) == ([] if is_newer else ["newest"], 1_000)
