"""The lag job's samples and rules at a broker of RocketMQ: every state but one, of which it does not tell.

The holder of an ordered queue: the group looks idle. Members name their differing subscriptions themselves.
"""

from __future__ import annotations

from tests.integration.lag_states import LagStates, judged, sampled
from tests.interop.rocketmq import Cluster


def test_every_state_is_recognised_at_a_broker_of_rocketmq(real: Cluster):
    nameservers = real.namesrv
    with LagStates(nameservers, real.broker.broker_name, real.broker.address) as states:
        found = judged(states.looks(lambda: sampled(nameservers)))
        wanted = {name: truth.state for name, truth in states.TRUTH.items()} | {
            "blocked": "STALL",
        }
        assert {name: found[name].state for name in wanted} == wanted
        lags = {name: truth.lag for name, truth in states.TRUTH.items() if truth.lag is not None}
        assert {name: found[name].lag for name in lags} == lags
