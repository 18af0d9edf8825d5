"""What a slave knows of the topics that its master deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

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

    async def ask(self, address: str, request: RemotingCommand) -> RemotingCommand:
        body = {**self.topics.to_json(), "aerobeeDeleted": self.topics.deleted}
        return RemotingCommand(0, {"aerobeeLogEnd": "1000"}, dumps(body))


async def test_deletions_that_a_cut_took_away_are_copied_again() -> None:
    """The master's log continued past the offset of the cut, and its table is the one that was copied before it."""
    clock = ManualClock()
    master = TopicTable(file=None, clock=clock)
    slave = TopicTable(file=None, clock=clock)
    master.copy_from({"kept": TopicConfig("kept")}, DataVersion(1, 5, 3), {"gone": 900})
    store = SimpleNamespace(log=SimpleNamespace(end=1_000), settle_kinds=lambda *_: [])
    mappings = SimpleNamespace(by_topic={}, data_version=DataVersion())
    sync = MetadataSync(
        **cast(Any, dict.fromkeys(("groups", "offsets", "schedule", "modes", "filters"))),
        questions=cast(Any, Master(master)),
        store=cast(Any, store),
        topics=slave,
        mappings=cast(Any, mappings),
        clock=clock,
    )
    await sync._copy_topics()
    assert slave.deleted == {"gone": 900}
    slave.log_cut(800)
    await sync._copy_topics()
    assert slave.deleted == {"gone": 900}
