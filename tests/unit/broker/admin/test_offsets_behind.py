"""Answers to slaves of a broker whose topics or offsets are behind its log: elected and no master yet, or not read up to the end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aerobee.broker.admin.replication import SlaveCalls
from aerobee.broker.admin.topic import AdminTopicCalls
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.state.queue_mappings import QueueMappings
from aerobee.broker.state.role import Role, RoleState
from aerobee.broker.state.settled_decisions import SettledDecisions
from aerobee.broker.state.topic_table import TopicTable
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.clock import ManualClock
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand


def _calls(role: Role, unserved: UnservedKinds) -> SlaveCalls:
    return SlaveCalls(
        offsets=SimpleNamespace(  # type: ignore[arg-type]
            change_token="1",
            to_dict=lambda: {
                "dataVersion": {},
                "groupTopicMap": {},
                "offsetTable": {},
                "pullOffsetTable": {},
            },
        ),
        schedule=SimpleNamespace(to_json=dict),  # type: ignore[arg-type]
        filters=SimpleNamespace(),  # type: ignore[arg-type]
        store=SimpleNamespace(log=SimpleNamespace(end=7)),  # type: ignore[arg-type]
        identity=SimpleNamespace(),  # type: ignore[arg-type]
        state=lambda: SimpleNamespace(role=role),  # type: ignore[arg-type,return-value]
        clock=SimpleNamespace(),  # type: ignore[arg-type]
        unserved=unserved,
        decisions=SettledDecisions(),
    )


@pytest.mark.parametrize(
    ("role", "waiting", "behind"),
    [
        (Role.MASTER, (), (False, False)),
        (Role.MASTER, ("pop",), (True, False)),
        (Role.MASTER, ("delay levels",), (False, True)),
        (Role.SLAVE, (), (True, True)),
        (Role.FENCED, (), (True, True)),
        (Role.ACTING, (), (False, False)),
    ],
)
async def test_offsets_that_are_behind_the_log_say_so(
    role: Role, waiting: tuple[str, ...], behind: tuple[bool, bool]
) -> None:
    unserved = UnservedKinds()
    unserved.put(waiting, "it has just become master")
    calls = _calls(role, unserved)
    offsets = await calls.all_offsets(None, RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET))  # type: ignore[arg-type]
    delays = calls.delay_offsets(None, RemotingCommand(RequestCode.GET_ALL_DELAY_OFFSET))  # type: ignore[arg-type]
    assert ("aerobeeBehind" in (offsets.ext or {}), "aerobeeBehind" in (delays.ext or {})) == behind


@pytest.mark.parametrize(
    ("role", "is_behind"),
    [(Role.MASTER, False), (Role.ACTING, False), (Role.SLAVE, True), (Role.FENCED, True)],
)
async def test_topics_that_are_behind_the_log_say_so(role: Role, is_behind: bool) -> None:
    clock = ManualClock()
    unused = SimpleNamespace()
    calls = AdminTopicCalls(
        topics=TopicTable(file=None, clock=clock),
        mappings=QueueMappings(file=None, clock=clock),
        offsets=unused,  # type: ignore[arg-type]
        consumers=unused,  # type: ignore[arg-type]
        locks=unused,  # type: ignore[arg-type]
        stats=BrokerStats(clock=clock, cluster="c"),
        store=SimpleNamespace(log=SimpleNamespace(end=7)),  # type: ignore[arg-type]
        live=unused,  # type: ignore[arg-type]
        identity=unused,  # type: ignore[arg-type]
        role=RoleState(role, "the test says so"),
        clock=clock,
    )
    for ext, wanted in (({"aerobeeLogEnd": "true"}, is_behind), ({}, False)):
        reply = await calls.all_configs(None, RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG, ext))  # type: ignore[arg-type]
        assert ("aerobeeBehind" in (reply.ext or {})) == wanted
