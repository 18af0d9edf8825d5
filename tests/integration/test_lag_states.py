"""The lag job's samples and rules at a real cluster: every state made for real, every figure known."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from itertools import pairwise
from typing import Any

import pytest

from aerobee.client.base.results import QueueStats
from aerobee.message import Message, MessageQueue
from aerobee.spark.lag_rows import evaluate
from aerobee.spark.lag_sampler import ClusterSampler, sample_cluster
from aerobee.testing.threaded_cluster import ThreadedCluster
from tests.integration.lag_states import WINDOW_MS, LagStates, as_row, judged, sampled


def test_every_state_is_recognised_and_every_figure_is_true():
    with ThreadedCluster() as cluster:
        nameservers = cluster.nameserver_address
        with LagStates(nameservers, "broker-a", cluster.broker_addresses[0]) as states:
            looks = states.looks(lambda: sampled(nameservers))
            found = judged(looks)
            assert {name: (each.state, each.reason) for name, each in found.items()} == {
                name: (truth.state, found[name].reason) for name, truth in states.TRUTH.items()
            }
            assert {
                name: found[name].lag for name, truth in states.TRUTH.items() if truth.lag is not None
            } == {name: truth.lag for name, truth in states.TRUTH.items() if truth.lag is not None}
            assert found["ok"].lag_ms == 0
            assert found["ok"].drain_s == 0
            for name in ("stop", "stall", "blocked"):
                (first,) = (each for each in looks[0] if each.group == name and each.topic == name)
                assert first.oldest_ms is not None
                lag_ms = found[name].lag_ms
                assert lag_ms == looks[-1][0].at_ms - first.oldest_ms, "the first unread message's age"
                assert found[name].consume_rate == found[name].produce_rate == 0
                retention_s = found[name].retention_s
                assert retention_s is not None
                assert abs(retention_s - (72 * 3600 - lag_ms / 1000)) < 0.01
            # Rates cover the samples of the window: what was committed and sent between the first of them and the last.
            times = [look[0].at_ms for look in looks]
            inside = [at_ms for at_ms in times if at_ms >= times[-1] - WINDOW_MS]
            span_s, steps = (inside[-1] - inside[0]) / 1000, len(inside) - 1
            assert found["warn"].consume_rate == steps / span_s
            assert found["warn"].produce_rate == 2 * steps / span_s
            assert found["drains"].consume_rate == 2 * steps / span_s
            assert all(before < after for before, after in pairwise(times))
            known = [(each.group, states.queue(each.group)) for each in looks[-1] if each.group == each.topic]
            cluster.kill_broker(0)
            gone = sample_cluster(nameservers, known=known)
            assert {each.group for each in gone} == set(states.TRUTH)
            for each in gone:
                history = [
                    as_row(one) for look in looks for one in look if one.group == each.group == one.topic
                ]
                result = evaluate([*history, as_row(each)], window_ms=WINDOW_MS)
                assert result is not None
                assert (result.state, result.lag, result.lag_ms) == ("UNKNOWN", None, None)
                assert "not registered" in result.reason


def test_a_topic_is_asked_for_its_bounds_once_a_look_whatever_groups_read_it(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    given = ClusterSampler.topic_stats

    def note(sampler: ClusterSampler, topic: str) -> Coroutine[Any, Any, Sequence[QueueStats]]:
        asked.append(topic)
        return given(sampler, topic)

    monkeypatch.setattr(ClusterSampler, "topic_stats", note)
    groups = [f"group-{number}" for number in range(20)]
    with ThreadedCluster() as cluster:
        cluster.create_topic("orders", 1)
        queue = MessageQueue("orders", "broker-a", 0)
        with cluster.producer() as producer:
            for _ in range(3):
                producer.send(Message("orders", b"x"), queue=queue)
        for number, group in enumerate(groups):
            with cluster.admin() as admin:
                admin.create_group(group)
            with cluster.pull_consumer(group) as consumer:
                consumer.assign([queue])
                consumer.commit({queue: number % 4})
        for _ in range(2):
            asked.clear()
            samples = {each.group: each for each in sample_cluster(cluster.nameserver_address, groups=groups)}
            assert [samples[group].committed for group in groups] == [number % 4 for number in range(20)]
            assert {(each.min_offset, each.max_offset) for each in samples.values()} == {(0, 3)}
            assert asked.count("orders") == 1
