"""PopChecks.grant: what was found once is used again until one of the settings behind it changes."""

from __future__ import annotations

import dataclasses

import pytest

from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.filter.expressions import Expressions
from aerobee.broker.pop.checks import PopChecks
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.refusal import Refused, remote_refusal
from aerobee.broker.state.role import Role, RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import ManualClock
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import ResponseCode


class Broker:
    def __init__(self) -> None:
        clock = ManualClock()
        self.live = LiveConfig(BrokerConfig())
        self.topics = TopicTable(file=None, clock=clock)
        self.groups = GroupTable(clock=clock, live=self.live, file=None)
        self.topics.put(TopicConfig("jobs", 4, 4))
        self.role = RoleState(Role.MASTER, "of the test")
        self.checks = PopChecks(
            topics=self.topics,
            groups=self.groups,
            live=self.live,
            identity=BrokerIdentity(
                cluster="c",
                name="broker-a",
                broker_id=0,
                address="127.0.0.1:10911",
                ha_address="127.0.0.1:10912",
                store_host=b"\x7f\x00\x00\x01\x00\x00\x2a\x9f",
            ),
            role=self.role,
            expressions=Expressions(),
        )

    def refusal(self, queue_id: int = -1) -> int:
        with pytest.raises(Refused) as caught:
            self.checks.grant("workers", "jobs", queue_id)
        return int(remote_refusal(caught.value).code)


def test_a_grant_is_used_again() -> None:
    broker = Broker()
    first = broker.checks.grant("workers", "jobs", -1)
    assert broker.checks.grant("workers", "jobs", 3) is first
    assert first.retries == (("%RETRY%workers_jobs", "1"),)


def test_each_request_is_checked_for_its_queue() -> None:
    broker = Broker()
    broker.checks.grant("workers", "jobs", -1)
    assert broker.refusal(4) == ResponseCode.INVALID_PARAMETER


def test_a_group_that_may_not_consume_any_more_is_refused_at_once() -> None:
    broker = Broker()
    broker.checks.grant("workers", "jobs", -1)
    broker.groups.put(SubscriptionGroupConfig("workers", consume_enable=False))
    assert broker.refusal() == ResponseCode.NO_PERMISSION


def test_a_topic_that_changes_or_goes_is_looked_up_again() -> None:
    broker = Broker()
    broker.checks.grant("workers", "jobs", -1)
    broker.topics.put(dataclasses.replace(broker.topics.topics["jobs"], read_queue_nums=8))
    assert broker.checks.grant("workers", "jobs", 7).topic.read_queue_nums == 8
    broker.topics.delete("jobs")
    assert broker.refusal() == ResponseCode.TOPIC_NOT_EXIST


def test_settings_that_change_are_heeded() -> None:
    broker = Broker()
    broker.checks.grant("workers", "jobs", -1)
    broker.live.replace(enable_retry_topic_v2=True)
    assert broker.checks.grant("workers", "jobs", -1).retries[0] == ("%RETRY%workers+jobs", "2")


def test_a_broker_that_is_no_master_any_more_refuses_at_once() -> None:
    broker = Broker()
    broker.checks.grant("workers", "jobs", -1)
    broker.role.change(Role.SLAVE, "of the test")
    assert broker.refusal() == ResponseCode.SYSTEM_ERROR
    broker.role.change(Role.MASTER, "of the test")
    broker.checks.grant("workers", "jobs", -1)


def test_tags_are_parsed_once_and_per_expression() -> None:
    checks = Broker().checks
    one, _ = checks.filter("jobs", "TAG", "A")
    both, _ = checks.filter("jobs", "TAG", "A || B")
    assert one is not None and both is not None and one < both  # noqa: PT018
    assert checks.filter("jobs", None, "A")[0] is one
    assert checks.filter("jobs", "TAG", "*") == (None, None)
