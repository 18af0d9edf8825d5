"""The lag job's samples and rules at a real cluster: every state made for real, every figure known."""

from __future__ import annotations

from itertools import pairwise

from aerobee.spark.lag_rows import evaluate
from aerobee.spark.lag_sampler import sample_cluster
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
            # Rates are over the samples of the window: what was committed and sent between the first of them and the last.
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
